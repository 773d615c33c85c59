"""Data frames of pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pacbayes_fl.errors import PacBayesFLError

if TYPE_CHECKING:
    from pandas import DataFrame


def frame(columns: Mapping[str, Sequence[object]]) -> DataFrame:
    """Make a data frame.

    Args:
        columns: values by name, as many in each.

    Returns:
        The data frame, its columns in this order.

    Raises:
        PacBayesFLError: when pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise PacBayesFLError("a data frame needs pandas", hint="pip install pandas") from error
    return DataFrame({name: list(values) for name, values in columns.items()})
