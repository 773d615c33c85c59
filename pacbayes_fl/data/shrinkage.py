"""Means and scales of clients' columns by empirical Bayes: between a client's own and those of the federation."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.moments import Moments, log_in, power_of_two

_LEAST: Final = 1e-300  # square of a spread in units of the federation's largest value: what is less is nothing


class Population(NamedTuple):
    """Distribution of the clients' means mu_k and scales sigma_k, of every column on its own.

    mu_k ~ N(mean, between^2),   ln sigma_k ~ (ln std, spread^2)

    Args:
        mean: [c], in units of each column.
        std: typical sigma_k [c], in the same units, positive.
        between: standard deviation of the mu_k [c], in the same units.
        spread: standard deviation of the ln sigma_k [c].
    """

    mean: Tensor
    std: Tensor
    between: Tensor
    spread: Tensor


def shrink(estimate: Tensor, variance: Tensor, centre: Tensor, between: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of theta_k ~ N(centre, between) given an estimate ~ N(theta_k, variance_k).

    (1 - B_k) estimate_k + B_k centre  and  B_k between,   B_k = variance_k / (variance_k + between)
    (Efron and Morris, JASA 70, 1975); of other distributions with these moments it is the best linear prediction.

    Args:
        estimate: [K, c], finite.
        variance: of the estimates [K, c], positive; infinite where there is none.
        centre: [c].
        between: variance between clients [c] or [K, c], not negative.

    Returns:
        Means and variances [K, c].
    """
    weight = torch.where(variance.isfinite(), variance / (variance + between), 1.0)
    return (1.0 - weight) * estimate + weight * centre, weight * between


def random_effects(estimate: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Fit centre and variance of the theta_k by moments, in two steps.

    With weights a_k, A = sum a_k and the mean e of the estimates under them,
    between = (sum a_k (e_k - e)^2 - sum a_k (1 - a_k / A) variance_k) / (A - sum a_k^2 / A), 0 at least,
    first with equal weights, then with a_k = 1 / (variance_k + between) (DerSimonian and Kacker, Contemporary Clinical
    Trials 28, 2007). Where the variances are equal this maximises the restricted likelihood of theta_k ~ N(centre,
    between).

    Args:
        estimate: [K, c]; not looked at where its variance is infinite.
        variance: of the estimates [K, c], positive; infinite where there is none.

    Returns:
        Centre and variance [c]; 0 and 0 where no client has an estimate.
    """
    known = variance.isfinite()
    estimate, variance = torch.where(known, estimate, 0.0), torch.where(known, variance, 1.0)
    centre, between = (estimate.new_zeros(estimate.shape[1:]) for _ in range(2))
    weight = known.to(estimate.dtype)
    for _ in range(2):
        share = weight / weight.sum(0).clamp_min(torch.finfo(weight.dtype).tiny)
        rest = share * (1.0 - share)
        centre = (share * estimate).sum(0)
        excess = (share * (estimate - centre).square()).sum(0) - (rest * variance).sum(0)
        between = (excess / rest.sum(0).clamp_min(torch.finfo(rest.dtype).tiny)).clamp_min(0.0)
        total = variance + between
        weight = torch.where(known, torch.where(known, total, torch.inf).amin(0) / total, 0.0)
    share = weight / weight.sum(0).clamp_min(torch.finfo(weight.dtype).tiny)
    return (share * estimate).sum(0), between


def fit_population(moments: Moments, size: Tensor) -> Population:
    """Fit how means and scales differ between clients, from one message of a client: its rows' number, sum and squares.

    Args:
        moments: of K clients.
        size: their rows [K].

    Returns:
        The population; mean 0 and std 1 where no client has rows, or a column varies in none of them.
    """
    rows = size.double().unsqueeze(-1)
    unit = power_of_two(torch.maximum(moments.mean.abs(), moments.std).double().amax(0))
    own, error = log_std(moments, rows, unit)
    centre, between = random_effects(own, error)
    own, error = shrink(own, error, centre, between)
    square = (2.0 * (own + error)).exp().clamp_min(_LEAST)  # the mean of sigma_k^2 under the posterior
    middle, apart = random_effects(moments.mean.double() / unit, square / rows)
    return Population(middle * unit, _exp(centre, unit), apart.sqrt() * unit, between.sqrt())


def shrunk(moments: Moments, size: Tensor, population: Population) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations of clients' columns, given how they differ in the federation.

    ln sigma_k is shrunk first; E[sigma_k^2] / m_k under its Gaussian posterior is the variance of the client's mean.

    Args:
        moments: of K clients, whether or not the population was fitted to them.
        size: their rows [K].
        population: of the c columns.

    Returns:
        Means and standard deviations [K, c], in units of each column, in the dtype of the moments.
    """
    known = Population(*(leaf.to(moments.mean.device, torch.float64) for leaf in population))
    rows, unit = size.double().unsqueeze(-1), power_of_two(known.std)
    own, error = log_std(moments, rows, unit)
    own, error = shrink(own, error, log_in(known.std, unit), known.spread.square())
    std = _exp(own, unit)
    error = (2.0 * error).exp() / rows  # in units of std^2
    mean, _ = shrink(moments.mean.double(), error, known.mean, (known.between / std).square())
    return mean.to(moments.mean.dtype), std.to(moments.std.dtype)


def log_std(moments: Moments, rows: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """Estimate ln sigma_k in units [c], without bias where rows are Gaussian, and give the estimate's variance.

    With f = m_k - 1 and the sum of squares S = m_k std^2, the mean of ln(S / 2) - psi(f / 2) is ln sigma_k^2, and its
    variance psi'(f / 2) (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004, section 6.2).

    Args:
        moments: of K clients.
        rows: their number [K, 1].
        unit: of each column, a power of two [c].

    Returns:
        Estimates and their variances [K, c], float64; infinite where a column does not vary or has a single row.
    """
    half = (rows - 1.0).clamp_min(1.0) / 2.0
    known = ~moments.flat & (rows > 1)
    log_squares = (rows.clamp_min(1.0) / 2.0).log() + 2.0 * log_in(torch.where(known, moments.std.double(), unit), unit)
    error = torch.where(known, torch.polygamma(1, half), torch.inf)
    return 0.5 * (log_squares - torch.digamma(half)), 0.25 * error


def _exp(log: Tensor, unit: Tensor) -> Tensor:
    """Return exp(log) unit, in two steps, as exp(log) may be too small or large for a number."""
    half = (0.5 * log).exp()
    return half * unit * half
