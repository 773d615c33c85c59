"""Check that no training row is told a test row's target by a lag or a rolling mean."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from pacbayes_fl.data import lags
from pacbayes_fl.data.layout import Layout
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
            if feature.span is None:
                continue
            if feature.kind == "lag":
                seen = np.isin(train - feature.span.amount, scored)
            else:
                ahead = layout.ends_before(feature, table.made_of)
                ends = lags.window(train, feature.span.amount, None if ahead is None else ahead.amount)
                low, high = (np.searchsorted(scored, end, side="right") for end in ends)
                seen = high > low
            if seen.any():
                what = f"{int(seen.sum())} of its {len(train)} training rows have {feature.name!r} from its test rows"
                hint = "let the last rows in time be the test rows: without a column 'split', data.test says how many"
                raise DataError(
                    f"{what}, by column 'split': that leaks what they are scored on", client=name, hint=hint
                )
