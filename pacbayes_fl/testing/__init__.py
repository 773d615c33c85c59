"""Laws that methods, rules of aggregation and losses keep, for the tests of one's own."""

from pacbayes_fl.testing.aggregations import AGGREGATION_LAWS, check_aggregation
from pacbayes_fl.testing.check import LawError, check_method
from pacbayes_fl.testing.laws import LAWS
from pacbayes_fl.testing.losses import LOSS_LAWS, check_loss

__all__ = ["AGGREGATION_LAWS", "LAWS", "LOSS_LAWS", "LawError", "check_aggregation", "check_loss", "check_method"]
