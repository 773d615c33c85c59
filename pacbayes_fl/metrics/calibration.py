"""Whether predicted probabilities come true: empirical frequencies, calibration error, coverage of intervals.

All functions look at where the targets fall in their predictive distributions. Whatever stands in padded rows has no
influence; a client without a row gets NaN, as one with a row whose prediction is NaN.
"""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.metrics.rows import masked_mean, real_rows
from pacbayes_fl.posteriors.censored import CensoredMixture
from pacbayes_fl.posteriors.predictive import RegressionPredictive
from pacbayes_fl.posteriors.sampled import SampledMixture
from pacbayes_fl.posteriors.transformed import TransformedMixture

JUMPS = (SampledMixture, CensoredMixture, TransformedMixture)
"""Predictives under which a target may have a probability of its own; `below` gives that of all smaller ones."""

_RANGES = MappingProxyType({"paper": (0.0, 1.0), "pacoh": (0.05, 0.95)})


def levels(name: str, count: int = 20) -> Tensor:
    """Equally spaced confidence levels under the name of who uses them.

    "paper" runs from 0 to 1 (PAC-PFL, Section 8.6.1; both ends contribute nothing to the error but count in H), "pacoh"
    from 0.05 to 0.95 (Rothfuss et al. 2021, public code).

    Args:
        name: "paper" or "pacoh".
        count: how many levels, H.

    Returns:
        Levels [H] in float64, without unit.

    Raises:
        StudyError: when there are no levels of that name.

    Example:
        >>> from pacbayes_fl.metrics.calibration import levels
        >>> levels("paper", 5).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if name not in _RANGES:
        raise StudyError(f"levels must be one of {', '.join(_RANGES)}, got {name!r}")
    return torch.linspace(*_RANGES[name], count, dtype=torch.float64)


def empirical_frequencies(
    predictive: RegressionPredictive, y: Tensor, mask: Tensor, levels: str | Tensor = "paper"
) -> Tensor:
    """Share of a client's targets that lie below each predicted quantile.

    q-hat_h = 1/m |{j : F(y_j | x_j) <= q_h}|      (PAC-PFL, Section 8.6.1, above eq. 41)

    Where a target has a probability of its own, as a count or a bound has, F jumps there and the row counts for the
    share of the jump that lies below the level, (q_h - F(y-)) / (F(y) - F(y-)) in [0, 1]: the mean over randomised F,
    uniform where the predictive is right (Czado, Gneiting and Held 2009, eq. 2).

    Args:
        predictive: predictions for the same rows, [K, N].
        y: targets [K, N], in the unit of the predictive.
        mask: bool [K, N], True on real rows.
        levels: confidence levels [H] in [0, 1], or a name that `levels` knows.

    Returns:
        Frequencies [K, H], without unit; NaN for a client without rows or with a prediction that is NaN.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape, or levels is not [H].
        StudyError: when there are no levels of that name.

    Example:
        >>> import torch
        >>> from pacbayes_fl.metrics.calibration import empirical_frequencies
        >>> from pacbayes_fl.posteriors.predictive import NormalMixture
        >>> log_weights, means, variances = torch.zeros(1, 1), torch.tensor([[[0.0, 1.0]]]), torch.ones(1, 1, 2)
        >>> predictive = NormalMixture(log_weights.double(), means.double(), variances.double())
        >>> y, mask = torch.tensor([[0.5, 1.0]]).double(), torch.ones(1, 2, dtype=torch.bool)
        >>> empirical_frequencies(predictive, y, mask, torch.tensor([0.25, 0.5, 0.75])).numpy().round(4).tolist()
        [[0.0, 0.5, 1.0]]
    """
    y = real_rows(predictive, y, mask)
    level = _resolved(levels, y)
    upper = predictive.cdf(y).double().unsqueeze(1)
    below = upper <= level.view(1, -1, 1)  # [K, H, N]
    lower = predictive.below(y).unsqueeze(1) if isinstance(predictive, JUMPS) else upper
    jump = upper - lower
    share = ((level.view(1, -1, 1) - lower) / torch.where(jump > 0, jump, 1.0)).clamp(0.0, 1.0)
    share = torch.where(jump > 0, share, below.double()).masked_fill(jump.isnan(), torch.nan)
    return share.masked_fill(~mask.unsqueeze(1), 0.0).sum(2) / mask.sum(1, keepdim=True).double()


def calibration_error(
    predictive: RegressionPredictive,
    y: Tensor,
    mask: Tensor,
    levels: str | Tensor = "paper",
    norm: str = "abs",
) -> Tensor:
    """Distance between confidence levels and observed frequencies.

    CE = 1/H sum_h |q-hat_h - q_h|      (PAC-PFL, eq. 41)

    With norm = "rms" it is sqrt(1/H sum_h (q-hat_h - q_h)^2), the number that the public code of PACOH computes on its
    own levels. It does not change with the unit of y. For a predictive without spread it says only how often the target
    is missed from below: it is not defined there.

    Args:
        predictive: predictions for the same rows, [K, N].
        y: targets [K, N], in the unit of the predictive.
        mask: bool [K, N], True on real rows.
        levels: confidence levels [H] in [0, 1], or a name that `levels` knows.
        norm: "abs" or "rms".

    Returns:
        CE [K], in [0, 1]; NaN for a client without rows or with a prediction that is NaN.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape, or levels is not [H].
        StudyError: when there are no levels or no norm of that name.

    Example:
        >>> import torch
        >>> from pacbayes_fl.metrics.calibration import calibration_error
        >>> from pacbayes_fl.posteriors.predictive import NormalMixture
        >>> log_weights, means, variances = torch.zeros(1, 1), torch.tensor([[[0.0, 1.0]]]), torch.ones(1, 1, 2)
        >>> predictive = NormalMixture(log_weights.double(), means.double(), variances.double())
        >>> y, mask = torch.tensor([[0.5, 1.0]]).double(), torch.ones(1, 2, dtype=torch.bool)
        >>> calibration_error(predictive, y, mask).numpy().round(4).tolist()
        [0.1789]
    """
    if norm not in ("abs", "rms"):
        raise StudyError(f"norm must be one of abs, rms, got {norm!r}")
    residual = empirical_frequencies(predictive, y, mask, levels) - _resolved(levels, y)
    return residual.abs().mean(1) if norm == "abs" else residual.square().mean(1).sqrt()


def interval_coverage(predictive: RegressionPredictive, y: Tensor, mask: Tensor, level: float = 0.95) -> Tensor:
    """Share of a client's targets inside the central predictive interval.

    1/m |{j : Q_j((1 - level)/2) <= y_j <= Q_j((1 + level)/2)}|, the same quantiles that figures draw as a band.

    Args:
        predictive: predictions for the same rows, [K, N].
        y: targets [K, N], in the unit of the predictive.
        mask: bool [K, N], True on real rows.
        level: probability inside the interval, above 0 and below 1.

    Returns:
        Coverage [K], in [0, 1]; NaN for a client without rows or with a prediction that is NaN.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape.
        StudyError: when the level is not between 0 and 1.

    Example:
        >>> import torch
        >>> from pacbayes_fl.metrics.calibration import interval_coverage
        >>> from pacbayes_fl.posteriors.predictive import NormalMixture
        >>> log_weights, means, variances = torch.zeros(1, 1), torch.tensor([[[0.0, 1.0]]]), torch.ones(1, 1, 2)
        >>> predictive = NormalMixture(log_weights.double(), means.double(), variances.double())
        >>> y, mask = torch.tensor([[0.5, 1.0]]).double(), torch.ones(1, 2, dtype=torch.bool)
        >>> interval_coverage(predictive, y, mask).numpy().round(4).tolist()
        [1.0]
    """
    if not 0.0 < level < 1.0:
        raise StudyError(f"level must lie between 0 and 1, got {level}")
    y = real_rows(predictive, y, mask)
    lower, upper = predictive.quantile(y.new_tensor([(1 - level) / 2, (1 + level) / 2])).unbind(0)
    inside = ((lower <= y) & (y <= upper)).double()
    unknown = lower.isnan() | upper.isnan() | predictive.cdf(y).isnan()  # a bisection ends somewhere, whatever it is of
    return masked_mean(inside.masked_fill(unknown, torch.nan), mask)


def _resolved(given: str | Tensor, like: Tensor) -> Tensor:
    """Return levels [H] in float64 on the device of `like`."""
    level = levels(given) if isinstance(given, str) else given
    if level.dim() != 1:
        raise ShapeError(f"levels must be [H], got {list(level.shape)}")
    return level.to(like.device, torch.float64)
