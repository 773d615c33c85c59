"""Numbers that compare predictions with test rows, one a client: `(predictive, y, mask) -> [K]`, float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor

from pacbayes_fl.metrics.calibration import calibration_error, empirical_frequencies, interval_coverage, levels
from pacbayes_fl.metrics.regression import crps, nlpd, rmse, rsmse
from pacbayes_fl.posteriors.base import RegressionPredictive

__all__ = [
    "METRICS",
    "Metric",
    "calibration_error",
    "crps",
    "empirical_frequencies",
    "interval_coverage",
    "levels",
    "nlpd",
    "rmse",
    "rsmse",
]

Metric = Callable[[RegressionPredictive, Tensor, Tensor], Tensor]

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "rsmse": rsmse,
        "rmse": rmse,
        "ce": calibration_error,
        "nlpd": nlpd,
        "crps": crps,
        "coverage_95": interval_coverage,
    }
)
"""Every regression metric under the name that result tables use; "ce" is eq. 41, "coverage_95" the 95 % interval's."""
