"""Pyro programs with weights that are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyro.distributions import Delta, TorchDistribution
from pyro.poutine import Trace
from torch import Tensor


@dataclass(frozen=True, eq=False)
class FixedWeights:
    """Weights that are known, as point masses: a Pyro program with them is a likelihood.

    Args:
        weights: by site [K, *shape].
    """

    weights: Mapping[str, Tensor]

    def site(self, name: str) -> TorchDistribution:
        """Point mass of one site."""
        value = self.weights[name]
        return Delta(value, event_dim=value.dim() - 1)


def observed(trace: Trace) -> list[tuple[str, Any]]:
    """Find the observed site of a program; a `pyro.deterministic` is not an observation.

    Args:
        trace: of the program.

    Returns:
        Sites by name.
    """
    nodes = ((name, trace.nodes[name]) for name in trace.observation_nodes)
    return [(name, node) for name, node in nodes if not node["infer"].get("_deterministic", False)]
