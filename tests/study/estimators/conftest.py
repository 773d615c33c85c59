"""Rows of a few clients, and estimators that are fitted in a moment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pacbayes_fl as fl

OPEN: dict[str, Any] = {"rounds": 3, "particles": 2, "mean_widths": (4,), "kernel_widths": (4,)}
"""What else there is, held-out rows choose."""
SMALL: dict[str, Any] = {**OPEN, "scale": "client", "noise_widths": "constant", "hyper_prior_std": 0.3}
NETWORK: dict[str, Any] = {"rounds": 3, "zeta": 0.1, "widths": (6,), "steps": 5, "draws": 2}


class Table:
    """Rows [R, 2], targets, labels and clients, in an order that mixes the clients."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        self.client = random.permutation(np.repeat(["north", "south", "west"], (9, 6, 7)))
        self.x: NDArray[np.float64] = random.normal(3.0, 2.0, size=(22, 2))
        self.y = 40.0 + self.x @ [3.0, -1.0] + random.normal(size=22)
        self.label = np.where(self.y > 46.0, "much", "little")


@pytest.fixture(scope="session")
def table() -> Table:
    return Table()


@pytest.fixture(scope="session")
def fitted(table: Table) -> fl.PacPFLRegressor:
    """A regressor that tests do not change."""
    return fl.PacPFLRegressor(**SMALL).fit(table.x, table.y, groups=table.client)


@pytest.fixture(scope="session")
def labelled(table: Table) -> fl.PFedBayesClassifier:
    """A classifier that tests do not change."""
    return fl.PFedBayesClassifier(**NETWORK).fit(table.x, table.label, groups=table.client)
