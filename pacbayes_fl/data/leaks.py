"""Training rows that are told the target of a test row, or of one held out, by a lag or a rolling mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pacbayes_fl.data import lags
from pacbayes_fl.data.layout import Feature, Layout
from pacbayes_fl.data.user_tables import Table
from pacbayes_fl.errors import DataError


def check_leaks(table: Table, held: Mapping[str, Tensor], layout: Layout) -> None:
    """Refuse a training row whose lag or rolling mean takes the target of a test row; last rows in time leak nothing.

    Args:
        table: with times.
        held: test rows by client, bool [m].
        layout: has the horizon.

    Raises:
        DataError: naming the client, the feature and how many rows there are.
    """
    of_target = [one for one in table.made_of if one.known_later and one.source == layout.target]
    if table.split is None or table.times is None:
        return
    for name, test in held.items():
        own = table.times[name].numpy()
        train, scored = own[~test.numpy()], np.sort(own[test.numpy()])
        for feature in of_target:
            seen = takes(feature, table.made_of, layout, train, scored)
            if seen.any():
                what = f"{int(seen.sum())} of its {len(train)} training rows have {feature.name!r} from its test rows"
                hint = "let the last rows in time be the test rows: without a column 'split', data.test says how many"
                raise DataError(
                    f"{what}, by column 'split': that leaks what they are scored on", client=name, hint=hint
                )


def takes(
    feature: Feature, wanted: Sequence[Feature], layout: Layout, times: lags.Times, scored: lags.Times
) -> npt.NDArray[np.bool_]:
    """Find the rows whose lag or rolling mean is made of values at given times.

    Args:
        feature: any.
        wanted: all features.
        layout: has the horizon.
        times: of the rows [m].
        scored: increasing [n].

    Returns:
        bool [m].
    """
    if feature.span is None:
        return np.zeros(len(times), dtype=bool)
    if feature.kind == "lag":
        return np.isin(times - feature.span.amount, scored)
    ahead = layout.ends_before(feature, wanted)
    ends = lags.window(times, feature.span.amount, None if ahead is None else ahead.amount)
    low, high = (np.searchsorted(scored, end, side="right") for end in ends)
    return high > low
