"""Training rows that are told the targets of held-out ones by their lags and rolling means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.data import leaks
from pacbayes_fl.data.layout import Feature, Layout
from pacbayes_fl.data.tables import Dataset


@dataclass(frozen=True)
class Told:
    """Finds the rows beside held-out ones that are told their targets; a call gives those of one client.

    Args:
        times: of the training rows [K, N].
        features: of the layout.
        layout: has the target and the horizon.
    """

    times: Tensor
    features: tuple[Feature, ...]
    layout: Layout

    def __call__(self, client: int, held: Tensor) -> Tensor:
        """Find rows.

        Args:
            client: its position.
            held: its rows that are held out, bool [m].

        Returns:
            Those of the others that have a held-out target among their features, bool [m].
        """
        mask = held.cpu().numpy()
        own = self.times[client, : len(mask)].numpy()
        scored, seen = np.sort(own[mask]), np.zeros(len(mask), dtype=bool)
        for feature in self.features:
            if feature.known_later and feature.source == self.layout.target:
                seen |= leaks.takes(feature, self.features, self.layout, own, scored)
        return torch.from_numpy(seen & ~mask).to(held.device)


def told(dataset: Dataset, layout: Layout) -> Told | None:
    """Say how the existing clients' training rows are told each other's targets.

    Args:
        dataset: in the order of its rows.
        layout: of the table that it comes from.

    Returns:
        The finder; None where no feature is made of targets.
    """
    times, history = dataset.groups["existing"].times, dataset.history
    if times is None or history is None or layout.target not in history.columns:
        return None
    return Told(times.train.cpu(), tuple(layout.feature(name, ()) for name in layout.features), layout)
