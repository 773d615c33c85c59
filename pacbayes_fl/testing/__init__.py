"""Laws that every method keeps, for the tests of methods of one's own: `check_method`."""

from pacbayes_fl.testing.check import LawError, check_method
from pacbayes_fl.testing.laws import LAWS

__all__ = ["LAWS", "LawError", "check_method"]
