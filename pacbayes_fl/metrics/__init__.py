"""Numbers that compare predictions with test rows, one a client: `(predictive, y, mask) -> [K]`, float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor

from pacbayes_fl.metrics.calibration import calibration_error, empirical_frequencies, interval_coverage, levels
from pacbayes_fl.metrics.classification import accuracy, brier, ece, mce, nll, reliability
from pacbayes_fl.metrics.regression import crps, nlpd, rmse, rsmse
from pacbayes_fl.posteriors.base import ClassPredictive, RegressionPredictive

__all__ = [
    "CLASS_METRICS",
    "METRICS",
    "ClassMetric",
    "Metric",
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

Metric = Callable[[RegressionPredictive, Tensor, Tensor], Tensor]
ClassMetric = Callable[[ClassPredictive, Tensor, Tensor], Tensor]

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

CLASS_METRICS: Mapping[str, ClassMetric] = MappingProxyType(
    {"accuracy": accuracy, "nll": nll, "brier": brier, "ece": ece, "mce": mce}
)
"""Every classification metric under the name that result tables use; "ece" and "mce" with 10 bins of equal width."""
