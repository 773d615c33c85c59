"""How far a predictive distribution is from the targets of each client: RMSE, RSMSE, NLPD and CRPS.

Every function takes `(predictive, y, mask)` and returns one number a client, float64 [K]: an average over the client's
real rows. Whatever stands in padded rows, NaN included, has no influence; a client without a row gets NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pacbayes_fl.metrics.rows import masked_mean, real_rows
from pacbayes_fl.posteriors.censored import CensoredMixture
from pacbayes_fl.posteriors.predictive import NormalMixture, RegressionPredictive
from pacbayes_fl.posteriors.sampled import SampledMixture
from pacbayes_fl.posteriors.transformed import TransformedMixture

_LEVELS = 1024  # of the quadrature of `crps` for a predictive without a closed form
_BLOCK = 64  # levels asked for at once
_DRAWS = 1000  # of a mixture that is scored by draws


def rmse(predictive: RegressionPredictive, y: Tensor, mask: Tensor) -> Tensor:
    """Root mean squared error of the predictive mean.

    RMSE_k = sqrt(1/m_k sum_j (y_j - mean_j)^2)

    Args:
        predictive: predictions for the same rows, [K, N].
        y: targets [K, N], in the unit of the predictive.
        mask: bool [K, N], True on real rows.

    Returns:
        RMSE [K], in the unit of y; NaN for a client without rows or with a prediction that has no mean.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape.

    Example:
        >>> import torch
        >>> from pacbayes_fl import metrics
        >>> from pacbayes_fl.posteriors.predictive import NormalMixture
        >>> log_weights, means, variances = torch.zeros(1, 1), torch.tensor([[[0.0, 1.0]]]), torch.ones(1, 1, 2)
        >>> predictive = NormalMixture(log_weights.double(), means.double(), variances.double())
        >>> y, mask = torch.tensor([[0.5, 1.0]]).double(), torch.ones(1, 2, dtype=torch.bool)
        >>> metrics.rmse(predictive, y, mask).numpy().round(4).tolist()
        [0.3536]
    """
    y = real_rows(predictive, y, mask)
    return masked_mean((y - predictive.mean.double()).square(), mask).sqrt()


def rsmse(predictive: RegressionPredictive, y: Tensor, mask: Tensor) -> Tensor:
    """Root standardised mean squared error: RMSE over the spread of the client's own test targets.

    RSMSE_k = RMSE_k / sqrt(1/m_k sum_j (y_j - ybar_k)^2)      (PAC-PFL, Section 8.6)

    The spread is the population standard deviation, so that predicting the mean of the test targets scores exactly 1.

    Args:
        predictive: predictions for the same rows, [K, N].
        y: targets [K, N], in the unit of the predictive.
        mask: bool [K, N], True on real rows.

    Returns:
        RSMSE [K], without unit; NaN for a client without rows or whose targets are all equal.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape.

    Example:
        >>> import torch
        >>> from pacbayes_fl import metrics
        >>> from pacbayes_fl.posteriors.predictive import NormalMixture
        >>> log_weights, means, variances = torch.zeros(1, 1), torch.tensor([[[0.0, 1.0]]]), torch.ones(1, 1, 2)
        >>> predictive = NormalMixture(log_weights.double(), means.double(), variances.double())
        >>> y, mask = torch.tensor([[0.5, 1.0]]).double(), torch.ones(1, 2, dtype=torch.bool)
        >>> metrics.rsmse(predictive, y, mask).numpy().round(4).tolist()
        [1.4142]
    """
    y = real_rows(predictive, y, mask)
    centred = y - masked_mean(y, mask).unsqueeze(1)
    spread = masked_mean(centred.square(), mask).sqrt()
    highest = y.masked_fill(~mask, -math.inf).amax(1) if y.shape[1] else spread
    lowest = y.masked_fill(~mask, math.inf).amin(1) if y.shape[1] else spread
    return rmse(predictive, y, mask) / spread.masked_fill(highest == lowest, math.nan)


def nlpd(predictive: RegressionPredictive, y: Tensor, mask: Tensor) -> Tensor:
    """Negative log predictive density, averaged over rows.

    NLPD_k = -1/m_k sum_j ln p(y_j | x_j)

    Args:
        predictive: predictions for the same rows, [K, N].
        y: targets [K, N], in the unit of the predictive.
        mask: bool [K, N], True on real rows.

    Returns:
        NLPD [K], in nats per row (it moves by ln a when y is measured in a unit 1/a as large); NaN for a client without
        rows, infinite where a predictive without spread misses a target, whatever it hits beside.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape.

    Example:
        >>> import torch
        >>> from pacbayes_fl import metrics
        >>> from pacbayes_fl.posteriors.predictive import NormalMixture
        >>> log_weights, means, variances = torch.zeros(1, 1), torch.tensor([[[0.0, 1.0]]]), torch.ones(1, 1, 2)
        >>> predictive = NormalMixture(log_weights.double(), means.double(), variances.double())
        >>> y, mask = torch.tensor([[0.5, 1.0]]).double(), torch.ones(1, 2, dtype=torch.bool)
        >>> metrics.nlpd(predictive, y, mask).numpy().round(4).tolist()
        [0.9814]
    """
    y = real_rows(predictive, y, mask)
    log_prob = predictive.log_prob(y).double().masked_fill(~mask, 0.0)
    finite = log_prob.masked_fill(log_prob.isneginf().any(1, keepdim=True) & log_prob.isposinf(), 0.0)
    return -masked_mean(finite, mask)


def crps(predictive: RegressionPredictive, y: Tensor, mask: Tensor) -> Tensor:
    """Continuous ranked probability score, averaged over rows: the absolute error of a distribution.

    CRPS(F, y) = E|Y - y| - 1/2 E|Y - Y'| = int (F(z) - 1{z >= y})^2 dz

    For a `NormalMixture` it is exact,
    sum_i w_i A(y - mu_i, s_i) - 1/2 sum_ij w_i w_j A(mu_i - mu_j, sqrt(s_i^2 + s_j^2)) with
    A(m, s) = 2 s phi(m/s) + m (2 Phi(m/s) - 1) (Grimit, Gneiting, Berrocal and Johnson 2006). A component without
    spread counts as a point mass. For a `CensoredMixture` it is that less what the integral counts beyond the bounds.
    For a `TransformedMixture` the integral is taken by Gauss-Legendre rules. For a `SampledMixture` it is the mean
    absolute distance of S = 1000 of its draws less half that between two of them,
    1/S sum_i |x_i - y| - 1/(2 S (S - 1)) sum_ij |x_i - x_j|, whose expectation is exact for every S (Zamo and Naveau
    2018, eq. PWM). For any other predictive it is the pinball loss integrated over levels,
    2 int (1{y <= Q(t)} - t) (Q(t) - y) dt, by a midpoint rule of 1024 points that crowd towards 0 and 1: for a normal
    within 1e-6 standard deviations of the exact value.

    Args:
        predictive: predictions for the same rows, [K, N].
        y: targets [K, N], in the unit of the predictive.
        mask: bool [K, N], True on real rows.

    Returns:
        CRPS [K], in the unit of y; NaN for a client without rows, and where a `SampledMixture` has no finite mean.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape.

    Example:
        >>> import torch
        >>> from pacbayes_fl import metrics
        >>> from pacbayes_fl.posteriors.predictive import NormalMixture
        >>> log_weights, means, variances = torch.zeros(1, 1), torch.tensor([[[0.0, 1.0]]]), torch.ones(1, 1, 2)
        >>> predictive = NormalMixture(log_weights.double(), means.double(), variances.double())
        >>> y, mask = torch.tensor([[0.5, 1.0]]).double(), torch.ones(1, 2, dtype=torch.bool)
        >>> metrics.crps(predictive, y, mask).numpy().round(4).tolist()
        [0.2825]
    """
    y = real_rows(predictive, y, mask)
    if isinstance(predictive, NormalMixture):
        score = _mixture_crps(predictive, y)
    elif isinstance(predictive, CensoredMixture):
        score = _mixture_crps(predictive.inner, y) - predictive.hidden_score()
    elif isinstance(predictive, TransformedMixture):
        score = predictive.ranked_score(y)
    elif isinstance(predictive, SampledMixture):
        score = _sampled_crps(predictive, y)
    else:
        score = _pinball_crps(predictive, y)
    return masked_mean(score, mask)


def _mixture_crps(mixture: NormalMixture, y: Tensor) -> Tensor:
    """Return the closed form [K, N], one component against all others at a time: never [K, P, P, N]."""
    weight = mixture.log_weights.double().exp().unsqueeze(-1)  # [K, P, 1]
    mean, variance = mixture.means.double(), mixture.variances.double()  # [K, P, N]
    distance = (weight * _expected_absolute(y.unsqueeze(1) - mean, variance.sqrt())).sum(1)
    for i in range(mean.shape[1]):
        gap, width = mean[:, i : i + 1] - mean, (variance[:, i : i + 1] + variance).sqrt()
        distance = distance - 0.5 * (weight[:, i : i + 1] * weight * _expected_absolute(gap, width)).sum(1)
    return distance


def _expected_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """Return E|Z| for Z ~ N(mean, std^2), which is |mean| where std is zero."""
    spread = std != 0  # NaN is no point
    ratio = mean / std.where(spread, torch.ones_like(std))
    density = torch.exp(-0.5 * ratio.square()) / math.sqrt(2 * math.pi)
    smooth = 2 * std * density + mean * torch.erf(ratio / math.sqrt(2))
    return smooth.where(spread, mean.abs())


def _sampled_crps(mixture: SampledMixture, y: Tensor) -> Tensor:
    """Return the unbiased estimate [K, N]; sum_i<j |x_i - x_j| = sum_i (2 i - S - 1) x_(i) over draws in order."""
    ordered = mixture.sample(_DRAWS, mixture.noise.copy()).sort(0).values
    rank = 2.0 * torch.arange(1, _DRAWS + 1, dtype=torch.float64, device=y.device) - _DRAWS - 1.0
    spread = (rank.view(-1, 1, 1) * ordered).sum(0) / (_DRAWS * (_DRAWS - 1))
    score = (ordered - y).abs().mean(0) - spread
    return torch.where(mixture.mean.isfinite(), score, torch.nan)


def _pinball_crps(predictive: RegressionPredictive, y: Tensor) -> Tensor:
    """Return the integral [K, N] after t = u^2 (3 - 2u), whose density 6 u (1 - u) tames both tails."""
    u = (torch.arange(_LEVELS, dtype=torch.float64, device=y.device) + 0.5) / _LEVELS
    level, density = u.square() * (3 - 2 * u), 6 * u * (1 - u)
    total = torch.zeros_like(y)
    for t, width in zip(torch.split(level, _BLOCK), torch.split(density, _BLOCK), strict=True):
        quantile = predictive.quantile(t).double()
        loss = ((y <= quantile).double() - t.view(-1, 1, 1)) * (quantile - y)
        total = total + (2 / _LEVELS) * (width.view(-1, 1, 1) * loss).sum(0)
    return total
