"""Which weights of a network are a client's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.options import check, option


@dataclass(frozen=True)
class Personal:
    """Weights that clients keep for themselves, as whole sites of a model; the others are shared.

    Args:
        sites: number of the sites that are a client's own; 2 are a layer's weight and bias. Looked at only of the
            last and the first ones.
        which: the "last" sites (a head), the "first" ones (a representation), those that are "named", or those of
            "normalisation", which are the model's `deterministic` ones.
        names: of the sites that are a client's own, where `which` is "named".
    """

    sites: int = option(2, low=0)
    which: Literal["last", "first", "named", "normalisation"] = "last"
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the ranges, and that names are given where they are looked at."""
        check(self)
        if self.names and self.which != "named":
            what = f"names = {list(self.names)!r} are of which = 'named', and which is {self.which!r}"
            raise StudyError(what, hint="which = 'named'")

    def mask(self, model: WeightModel) -> Tensor:
        """Mark the weights that are a client's own.

        Args:
            model: whose sites are meant.

        Returns:
            bool [D], on the CPU.

        Raises:
            StudyError: when the model has fewer sites, or none of a name.
        """
        sites = list(model.shapes)
        if unknown := [name for name in self.names if name not in sites]:
            what = f"names must be of the model's sites {', '.join(sites)}, got {', '.join(unknown)}"
            raise StudyError(what)
        if self.which in ("last", "first") and self.sites > len(sites):
            raise StudyError(f"sites must be at most {len(sites)}, as many as the model has, got {self.sites}")
        own = {
            "last": sites[len(sites) - self.sites :],
            "first": sites[: self.sites],
            "named": self.names,
            "normalisation": model.deterministic,
        }[self.which]
        mask = torch.zeros(model.dim, dtype=torch.bool)
        for name in own:
            mask[model.span(name)] = True
        return mask
