"""Numbers that compare predictions with test rows, one per client: `(predictive, y, mask) -> [K]`, float64.

Functions are loaded when they are first used: the table of metrics alone needs none of what they compute with.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pacbayes_fl.results.metrics import METRICS, Metric, Option

if TYPE_CHECKING:
    from pacbayes_fl.metrics.calibration import calibration_error, empirical_frequencies, interval_coverage, levels
    from pacbayes_fl.metrics.classification import accuracy, brier, ece, mce, nll, reliability
    from pacbayes_fl.metrics.regression import crps, nlpd, rmse, rsmse

__all__ = [
    "METRICS",
    "Metric",
    "Option",
    "accuracy",
    "brier",
    "calibration_error",
    "crps",
    "ece",
    "empirical_frequencies",
    "interval_coverage",
    "levels",
    "mce",
    "nll",
    "nlpd",
    "reliability",
    "rmse",
    "rsmse",
]

_HOMES = (
    ("calibration", ("calibration_error", "empirical_frequencies", "interval_coverage", "levels")),
    ("classification", ("accuracy", "brier", "ece", "mce", "nll", "reliability")),
    ("regression", ("crps", "nlpd", "rmse", "rsmse")),
)


def __getattr__(name: str) -> Any:
    """Load a function from its home."""
    for home, names in _HOMES:
        if name in names:
            return getattr(import_module(f"pacbayes_fl.metrics.{home}"), name)
    raise AttributeError(f"module 'pacbayes_fl.metrics' has no attribute {name!r}")
