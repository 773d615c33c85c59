"""What studies of methods on deep-kernel Gaussian processes vary, may leave open, and leave open by default."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from pacbayes_fl.methods.recipe import HELD_OUT, Defaults, HeldOutChoice, LogUniform, OneOf, Search, Trials

STDS: Final = LogUniform(0.05, 1.0)
"""Spreads that a search tries."""

STEPS: Final = OneOf((50, 100, 200))
"""Numbers of rounds or steps that it tries."""

GP_SEARCH: Final[Search] = MappingProxyType(
    {
        "method.rate": LogUniform(1e-3, 3e-2),
        "model.mean_widths": OneOf(("zero", (), (8, 8), (16, 16), (32, 32))),
        "model.kernel_widths": OneOf(((8, 8), (16, 16), (32, 32))),
    }
)
"""What a search varies of every method on deep-kernel Gaussian processes, beside spreads and steps."""

OWN_ROWS: Final[Defaults] = MappingProxyType(
    {
        "federation": MappingProxyType({"rounds": HELD_OUT}),
        "data": MappingProxyType({"scale": HELD_OUT}),
        "model": MappingProxyType({"residuals": "mixture", "noise_widths": HELD_OUT, "networks": HELD_OUT}),
    }
)
"""Of rows for which nobody has tuned anything, those that a federation was not given say how long it may train, in what
units, whether the noise depends on the inputs and whether networks say more than lines; residuals say what shape errors
have."""

RATE: Final = HeldOutChoice("rate", (1e-2, 3e-3), by_default=False, clients=True)
"""Of Adam."""

SCALE: Final = HeldOutChoice(
    "scale", ("shrunk", "pooled", "client"), by_default=False, table="data", clients=True, rounds=10, better="most"
)
"""Of the columns: the first rounds say as much of it as the last ones, and whether a client stands out with it."""

NOISE: Final = HeldOutChoice(
    "noise_widths", ("constant", (16,)), by_default=False, table="model", clients=True, rounds=10, better="clearly"
)
"""Whether it depends on the inputs: few rows show it in the first rounds, or not at all."""

NETWORKS: Final = HeldOutChoice("networks", (True, False), by_default=False, table="model", clients=True, early=True)
"""Of mean and kernel: without them learning starts at the regression, which nothing need be clearly better than."""

TRIALS: Final = Trials(50)
"""Rounds of a federation that tries a candidate."""

PRIOR: Final = (
    HeldOutChoice("linear_kernel", (True, False), by_default=False, table="model", clients=True),
    HeldOutChoice("client_inputs", ("none", "summaries"), by_default=False, table="data", clients=True),
    HeldOutChoice("residuals", ("gaussian", "mixture"), after=True, by_default=False, table="model"),
)
"""What a study may leave open of the prior that every method on deep-kernel Gaussian processes learns."""
