"""Persistence: tomorrow is like today. The target of the last hour, with the spread of its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.local_method import LocalMethod
from pacbayes_fl.methods.recipe import MethodSummary, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import LinearPoint

_SMALLEST_VARIANCE = 1e-8


@final
@dataclass(frozen=True)
class Persistence(LocalMethod[Nothing]):
    """Predict the value of one feature, the target's last known value; in the data's own units.

    Args:
        features: names of the features.
        column: name of the feature that holds the last known target.
    """

    raw_units: ClassVar[bool] = True
    leaves_rows_out: ClassVar[bool] = False

    features: tuple[str, ...]
    column: str = "lag_1"

    def __post_init__(self) -> None:
        """Check that there is such a feature."""
        if self.column not in self.features:
            raise StudyError(
                f"persistence needs a feature {self.column!r}, the data have {', '.join(self.features)}",
                hint="it is for series; name the column with --set method.column=NAME",
            )

    def init_server(self, generator: torch.Generator) -> Nothing:
        """No client state."""
        return Nothing()

    def personalise(self, message: Nothing, state: Nothing, batch: ClientBatch, noise: Noise) -> LinearPoint:
        """Measure each client's mean squared change from one hour to the next; 1 for a client without rows."""
        position = self.features.index(self.column)
        change = torch.where(batch.mask, batch.y - batch.x[..., position], 0.0)
        rows = batch.size.to(change.dtype)
        variance = torch.where(rows > 0, change.square().sum(1) / rows.clamp_min(1.0), 1.0)
        weight = batch.x.new_zeros(batch.clients, batch.x.shape[2])
        weight[:, position] = 1.0
        return LinearPoint(weight, weight.new_zeros(batch.clients), variance.clamp_min(_SMALLEST_VARIANCE))


RECIPE = Recipe(
    "Persistence: the last known value of a series",
    Persistence,
    MethodSummary("lag 1", "mean squared change", "nothing", "nothing", "nothing"),
    rounds=False,
)
