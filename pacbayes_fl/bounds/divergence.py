"""KL divergences of posteriors from the priors that certificates measure them against, in float64.

A divergence may be infinite, as that of a point mass from a density is; a bound then refuses to form a number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pacbayes_fl.bounds.kl_inverse import binary_kl, log_excess, relative_entropy
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.posteriors.functions.conditioning import Conditioned

_ROUNDING = 1e-6  # of divergences in float32
_LARGEST = 700.0  # whose exponential is a double


def diagonal_gaussian_kl(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    """KL divergence between Gaussians of independent coordinates.

    KL = 1/2 sum_d [(v_d - w_d) / w_d - ln(v_d / w_d) + (m_d - o_d)^2 / w_d]

    A coordinate that is known to both, with variance 0 and the same mean, adds nothing; one that only one of them knows
    makes it infinite.

    Args:
        mean: m [*, D].
        variance: v [*, D].
        other_mean: o of the prior [*, D].
        other_variance: w of the prior [*, D].

    Returns:
        [*], in nats.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import diagonal_gaussian_kl
        >>> one, two = torch.ones(2), torch.full((2,), 2.0)
        >>> round(diagonal_gaussian_kl(one, one, 0 * one, two).item(), 4)
        0.6931
    """
    return _by_coordinate(mean, variance, other_mean, other_variance).sum(-1)


def _by_coordinate(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    m, v, o, w = torch.broadcast_tensors(*(x.double() for x in (mean, variance, other_mean, other_variance)))
    known, free = (v == 0) & (w == 0) & (m == o), (v > 0) & (w > 0)
    width = torch.where(free, w, 1.0)  # where the result is not of the terms, slopes must not be either
    terms = 0.5 * (log_excess((torch.where(free, v, 1.0) - width) / width) + (m - o).square() / width)
    return torch.where(known, 0.0, torch.where(free, terms, torch.inf))


def full_gaussian_kl(mean: Tensor, covariance: Tensor, other_mean: Tensor, other_covariance: Tensor) -> Tensor:
    """KL divergence between Gaussians with full covariances.

    KL(N(a, A) || N(b, B)) = (tr(B^-1 A) + (b - a)' B^-1 (b - a) - n + ln |B| - ln |A|) / 2

    Args:
        mean: a [*, n].
        covariance: A [*, n, n], positive definite.
        other_mean: b of the prior [*, n].
        other_covariance: B of the prior [*, n, n], positive definite.

    Returns:
        [*], in nats.

    Raises:
        AssumptionError: when a covariance is not positive definite: the divergence is infinite or does not exist.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import full_gaussian_kl
        >>> mean, covariance = torch.zeros(2), torch.tensor([[1.0, 0.9], [0.9, 1.0]])
        >>> round(full_gaussian_kl(mean, covariance, mean, torch.eye(2)).item(), 4)
        0.8304
    """
    a, wide, b, other_wide = (x.double() for x in (mean, covariance, other_mean, other_covariance))
    try:
        factor, other_factor = torch.linalg.cholesky(wide), torch.linalg.cholesky(other_wide)
    except RuntimeError as error:  # torch's LinAlgError, which it does not export by type
        raise AssumptionError(
            f"both covariances must be positive definite: {error}", hint="leave out the coordinates that are known"
        ) from error
    spread = torch.linalg.solve_triangular(other_factor, factor, upper=False).square().sum((-2, -1))
    moved = torch.linalg.solve_triangular(other_factor, (b - a).unsqueeze(-1), upper=False).squeeze(-1)
    ratio = (other_factor.diagonal(dim1=-2, dim2=-1) / factor.diagonal(dim1=-2, dim2=-1)).log().sum(-1)
    kl: Tensor = 0.5 * (spread + moved.square().sum(-1) - a.shape[-1]) + ratio
    return kl


def bernoulli_gaussian_kl(
    mean: Tensor,
    variance: Tensor,
    inclusion: Tensor,
    other_mean: Tensor,
    other_variance: Tensor,
    other_inclusion: Tensor,
) -> Tensor:
    """KL divergence between spike-and-slab distributions (sFedBayes eq. 34, where it is an equality).

    KL = sum_d [kl(lambda_d || lambda'_d) + lambda_d KL(N(m_d, v_d) || N(o_d, w_d))]

    Args:
        mean: of the slab [*, D].
        variance: of the slab [*, D].
        inclusion: probability lambda of the slab [*, D]; 0 for a weight that was pruned.
        other_mean: of the prior's slab [*, D].
        other_variance: of the prior's slab [*, D].
        other_inclusion: of the prior [*, D].

    Returns:
        [*], in nats.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import bernoulli_gaussian_kl
        >>> zero, one, half = torch.zeros(1), torch.ones(1), torch.full((1,), 0.5)
        >>> round(bernoulli_gaussian_kl(one, one, half, zero, one, half).item(), 4)
        0.25
    """
    gates = binary_kl(inclusion, other_inclusion)
    slabs = _by_coordinate(mean, variance, other_mean, other_variance)
    slabs = torch.where((inclusion > 0) | slabs.isfinite(), slabs, 0.0)
    return (gates + inclusion.double() * slabs).sum(-1)


def discrete_kl(weights: Tensor, prior: Tensor | None = None) -> Tensor:
    """KL divergence between weights on the same finite list: hypotheses, particles, or draws that stand for a prior.

    Draws theta_1 ... theta_L from a prior, taken before the rows were looked at, are themselves a legal prior, with
    weights 1/L: the divergence is at most ln L.

    Args:
        weights: probabilities [*, L].
        prior: probabilities [*, L]; 1/L each when not given.

    Returns:
        [*], in nats.

    Raises:
        AssumptionError: when weights are negative or do not sum to 1.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import discrete_kl
        >>> round(discrete_kl(torch.tensor([0.7, 0.2, 0.1])).item(), 4)  # from the uniform distribution
        0.2968
    """
    q = _probabilities("weights", weights)
    return relative_entropy(*torch.broadcast_tensors(q, _prior(q, prior))).sum(-1)


def mixture_kl(weights: Tensor, divergences: Tensor, prior: Tensor | None = None) -> Tensor:
    """Bound the KL divergence between mixtures with the same number of components, by convexity.

    KL(sum_p a_p Q_p || sum_p w_p P_p) <= KL(a || w) + sum_p a_p KL(Q_p || P_p)

    With one component of the prior for all, as of particles phi_p smoothed to N(phi_p, s^2 I), give equal weights.

    Args:
        weights: of the posterior's components, a [*, P].
        divergences: KL(Q_p || P_p) [*, P], in nats; ignored where a_p = 0.
        prior: of the prior's components, w [*, P]; 1/P each when not given.

    Returns:
        [*], in nats.

    Raises:
        AssumptionError: when weights are negative or do not sum to 1, or a divergence is negative.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import mixture_kl
        >>> round(mixture_kl(torch.tensor([0.7, 0.3]), torch.tensor([2.0, 1.0])).item(), 4)
        1.7823
    """
    q, each = torch.broadcast_tensors(_probabilities("weights", weights), divergences.double())
    used = q > 0
    if bool((wrong := used & (each < -_ROUNDING)).any()):
        raise AssumptionError(f"divergences must be at least 0 nats, got {each[wrong][0].item():g}")
    spent = (q * torch.where(used | each.isfinite(), each.clamp_min(0.0), 0.0)).sum(-1)
    kl = discrete_kl(weights, prior) + spent
    return torch.where(kl.isnan(), torch.inf, kl)


def gp_posterior_kl(posterior: Conditioned) -> Tensor:
    """Bound the divergence of the clients' GP posteriors from the particles' GP priors, over functions.

    That over functions is that at the training inputs, or at the inducing points where the posterior has them: by their
    values alone it differs from the prior. The prior is the equally weighted mixture of the particles, which must not
    have seen the rows. It has no slopes, as the posterior is conditioned outside of any graph.

    Args:
        posterior: mixture over P particles.

    Returns:
        [K], in nats.
    """
    with torch.no_grad():  # slopes by what `kl` computes anew, and by nothing else, would be wrong
        return mixture_kl(posterior.log_weights.double().exp(), posterior.kl())


def gibbs_weights(risk: Tensor, beta: Tensor | float, prior: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weigh a finite list of hypotheses by the exact Gibbs posterior (PAC-PFL eq. 5).

    Q*(h_l) = P(h_l) e^(-beta L_l) / Z,  Z = sum_l P(h_l) e^(-beta L_l)

    For draws from a prior these are its self-normalised importance weights, and Z is exact for the draws as the prior.

    Args:
        risk: empirical risk of every hypothesis [*, L], averaged over rows, in the unit of the loss.
        beta: positive [*], in 1 / unit of the loss.
        prior: P [*, L]; 1/L each when not given.

    Returns:
        Weights [*, L], and ln Z [*], in nats.

    Raises:
        AssumptionError: when a risk is not finite, or the prior negative or not summing to 1.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import gibbs_weights
        >>> weights, log_z = gibbs_weights(torch.tensor([0.1, 0.2, 0.9]), beta=10.0)
        >>> weights.numpy().round(3).tolist(), round(log_z.item(), 3)
        ([0.731, 0.269, 0.0], -1.785)
    """
    risk = risk.double()
    if not bool(risk.isfinite().all()):
        raise AssumptionError("risk must be finite for every hypothesis")
    exponent = torch.as_tensor(beta, dtype=risk.dtype, device=risk.device).unsqueeze(-1) * risk
    before, exponent = torch.broadcast_tensors(_prior(risk, prior), exponent)
    least = torch.where(before > 0, exponent, torch.inf).amin(-1, keepdim=True).detach()
    mass = before * (least - exponent).clamp_max(_LARGEST).exp()  # beyond 0 only where the prior is 0: for its slope
    total = mass.sum(-1)
    return mass / total.unsqueeze(-1), total.log() - least.squeeze(-1)


def _prior(like: Tensor, prior: Tensor | None) -> Tensor:
    """Weights of a prior, equal ones when there is none [*, L]."""
    alike = torch.full_like(like, 1.0 / like.shape[-1], dtype=torch.float64)
    return alike if prior is None else _probabilities("prior", prior)


def _probabilities(name: str, weights: Tensor) -> Tensor:
    weights = weights.double()
    total = weights.sum(-1)
    if not (bool((weights >= 0).all()) and bool(((total - 1).abs() <= 1e-6).all())):
        raise AssumptionError(f"{name} must be at least 0 and sum to 1 over the last dimension")
    return weights / total.unsqueeze(-1)
