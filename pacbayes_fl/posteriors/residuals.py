"""The shape of a regression's errors, learned from leave-one-out residuals: a mixture of normals for a single one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.posteriors.predictive import NormalMixture

BINS: Final = 128
"""Numbers that a client sends: the share of its residuals in each bin."""

COMPONENTS: Final = 3

_LAST: Final = 32.0  # residuals beyond count as this one
_STEPS: Final = 100
_START: Final = (0.3, 0.8, 2.0)  # scales where EM starts, in units of the residuals' root mean square
_LEAST: Final = 0.05  # of scales: no spread is taken to be less than a twentieth of what the model says
_HALF: Final = 3 * COMPONENTS - 1  # rows whose residuals say as much as others': the mixture's free parameters
_FEW: Final = 5  # rows below which a model without one of them is too unlike the model of all


class Residuals(NamedTuple):
    """What rows leave of the predictions that a model makes of them without having seen them.

    Args:
        log_weights: of the model's components, normalised over P [K, P].
        z: residuals over the predictive standard deviation [K, P, N]; any number where there is no row.
        mask: [K, N] bool.
    """

    log_weights: Tensor
    z: Tensor
    mask: Tensor


@runtime_checkable
class LeaveOneOut(Protocol):
    """A posterior that can forget any one of its rows, and whose predictions are mixtures of normals."""

    @property
    def personal(self) -> bool:
        """Whether each client's own rows, and nobody else's, are what it was conditioned on."""

    def leave_one_out(self) -> Residuals:
        """Residuals of every row, predicted by all others."""

    def predict(self, x: Tensor) -> NormalMixture:
        """Predictive mixture [K, P, M] of new targets at inputs x [K, M, d]."""


class Mixture(NamedTuple):
    """A mixture of J normals for a standardised residual; its mean is 0.

    q(z) = sum_j v_j N(z | b_j, c_j^2),  sum_j v_j b_j = 0

    Args:
        log_weights: ln v [K, J].
        locs: b [K, J].
        scales: c [K, J], positive.
    """

    log_weights: Tensor
    locs: Tensor
    scales: Tensor

    def log_prob(self, z: Tensor) -> Tensor:
        """Log density.

        Args:
            z: residuals [K, M].

        Returns:
            [K, M], in nats.
        """
        return self._joint(z).logsumexp(1)

    def responsibilities(self, z: Tensor) -> Tensor:
        """Posterior probabilities of the components.

        Args:
            z: residuals [K, M].

        Returns:
            [K, J, M].
        """
        return self._joint(z).softmax(1)

    def _joint(self, z: Tensor) -> Tensor:
        steps = (z.unsqueeze(1) - self.locs.unsqueeze(-1)) / self.scales.unsqueeze(-1)
        constant = self.log_weights - self.scales.log() - 0.5 * math.log(2 * math.pi)
        return constant.unsqueeze(-1) - 0.5 * steps.square()


def bin_values(like: Tensor) -> Tensor:
    """Give the residual that stands for each bin.

    Bins are equal in arsinh z, where they span .065, so that near 0 they are that wide and far from it they grow with
    z: 6.5 % of it. What is moved to the middle of its bin moves by less than half of this.

    Args:
        like: gives the device [*].

    Returns:
        [BINS], float64, increasing and symmetric about 0.
    """
    last = math.asinh(_LAST)
    middles = (torch.arange(BINS, dtype=torch.float64, device=like.device) + 0.5) * (2 * last / BINS) - last
    return middles.sinh()


def histogram(residuals: Residuals) -> Tensor:
    """Count residuals by bins: the one message of a client, bounded and additive over clients.

    A row counts 1 / m_k, under the components by their weights.

    Args:
        residuals: of K clients.

    Returns:
        [K, BINS], float64, sums to 1 for a client with rows; 0 for one without, or whose residuals are no numbers.
    """
    z, mask = residuals.z.double(), residuals.mask
    known = (z.isfinite() | (residuals.log_weights == -torch.inf).unsqueeze(-1)).all(1) & mask
    usable = (known.sum(1) == mask.sum(1)) & mask.any(1)
    share = torch.where(usable, 1.0 / mask.sum(1).clamp_min(1).double(), 0.0)
    of_rows, of_components = mask * share.unsqueeze(1), residuals.log_weights.double().exp().nan_to_num(0.0)
    weight = of_components.unsqueeze(-1) * of_rows.unsqueeze(1)
    last = math.asinh(_LAST)
    at = ((z.nan_to_num(0.0).asinh() + last) * (BINS / (2 * last))).floor().clamp(0, BINS - 1).long()
    return weight.new_zeros(len(z), BINS).scatter_add_(1, at.flatten(1), weight.flatten(1))


def shape_of_errors(residuals: Residuals) -> Tensor:
    """Count residuals of clients whose model without a row is much like their model: those with five rows or more.

    Of three rows each residual is of a model of two, whose errors are far larger than those of the model of three.

    Args:
        residuals: of K clients.

    Returns:
        [K, BINS], as `histogram`; 0 for a client with fewer rows.
    """
    enough = residuals.mask.sum(1, keepdim=True) >= _FEW
    return torch.where(enough, histogram(residuals), 0.0)


def held_out_errors(known: NormalMixture, y: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """Count residuals of rows that neither a posterior nor its prior has seen: those of training flatter a prior.

    Args:
        known: prediction of such rows by the posteriors of K clients [K, P, M].
        y: their targets [K, M], in its units.
        mask: [K, M] bool.
        rows: that each posterior was conditioned on [K].

    Returns:
        [K, BINS], as `histogram`; 0 for a client with fewer rows than leave a row out in `shape_of_errors`.
    """
    found = histogram(Residuals(known.log_weights, (y.unsqueeze(1) - known.means) / known.stds, mask))
    return torch.where((rows >= _FEW - 1).unsqueeze(1), found, 0.0)


def pooled(histograms: Tensor) -> Tensor:
    """Average the messages of clients, each of which counts once, and a standard normal as one client more.

    A prior that was fitted to few clients leaves them residuals that are smaller than the errors of new rows; of a
    single client half of what is said of them is the model's.

    Args:
        histograms: of K clients [K, BINS]; one that is no histogram does not count.

    Returns:
        [BINS], sums to 1; that of a standard normal where no client sent any.
    """
    known, good = _known(histograms)
    return (known.sum(0) + standard_normal(histograms)) / (good.sum() + 1)


def pooled_without(histograms: Tensor) -> Tensor:
    """Average for each client the messages of all others, as `pooled`: what scores a client's rows has not seen them.

    Args:
        histograms: of K clients [K, BINS].

    Returns:
        [K, BINS], each sums to 1.
    """
    known, good = _known(histograms)
    return (known.sum(0) - known + standard_normal(histograms)) / (good.sum() + 1 - good.long()).unsqueeze(1)


def _known(histograms: Tensor) -> tuple[Tensor, Tensor]:
    """Let what is no histogram be 0, and say which are some."""
    good = (histograms >= 0).all(1) & ((histograms.sum(1) - 1.0).abs() < 1e-6)
    return torch.where(good.unsqueeze(1), histograms, 0.0), good


def standard_normal(like: Tensor) -> Tensor:
    """Give the histogram of residuals whose model is right.

    Args:
        like: gives the device [*].

    Returns:
        [BINS], float64.
    """
    weight: Tensor = torch.special.ndtr(_edges(like)).diff()
    return weight / weight.sum()


def quantile_of_size(histogram: Tensor, level: float) -> Tensor:
    """Quantile of the residuals' absolute values, interpolated inside of its bin.

    Args:
        histogram: of residuals [BINS].
        level: strictly between 0 and 1.

    Returns:
        [], the size that a share `level` of the residuals does not exceed.
    """
    half = BINS // 2
    mass = histogram[half:] + histogram[:half].flip(0)
    reached = mass.cumsum(0)
    at = int((reached < level * reached[-1]).sum().clamp_max(half - 1))
    edges = _edges(histogram)[half:]
    inside = (level * reached[-1] - (reached[at] - mass[at])) / mass[at].clamp_min(torch.finfo(mass.dtype).tiny)
    return edges[at] + inside.clamp(0.0, 1.0) * (edges[at + 1] - edges[at])


def _edges(like: Tensor) -> Tensor:
    last = math.asinh(_LAST)
    return torch.linspace(-last, last, BINS + 1, dtype=torch.float64, device=like.device).sinh()


def blend(own: Tensor, rows: Tensor, others: Tensor, share: float) -> Tensor:
    """Weigh a client's residuals against those of the federation, by how many it has.

    h_k = a_k own_k + (1 - a_k) others,  a_k = (1 - share) m_k / (m_k + 8)

    8 is the number of free parameters of three normals: so many rows count as much as what stands in for them.

    Args:
        own: histograms of K clients [K, BINS].
        rows: m [K].
        others: histogram of the federation [BINS], or one for each client [K, BINS].
        share: of the federation where a client has many rows, from 0 to 1.

    Returns:
        [K, BINS], float64, each sums to 1.
    """
    rows = torch.where(own.sum(1) > 0, rows, 0).double()
    own_share = ((1.0 - share) * rows / (rows + _HALF)).unsqueeze(1)
    return own_share * own + (1.0 - own_share) * others


def fit(weights: Tensor, z: Tensor, steps: int = _STEPS) -> Mixture:
    """Fit the mixture by expectation-maximisation to weighted residuals, moved so that their mean is 0.

    r_j = P(j | z),  n_j = sum w r_j,  v_j = n_j,  b_j = sum w r_j z / n_j,  c_j^2 = sum w r_j (z - b_j)^2 / n_j
    (Dempster, Laird and Rubin 1977; sum_j v_j b_j is then the mean of z itself), c_j >= .05

    The likelihood never falls from step to step; a number of steps is fixed, so that nothing waits for a device.

    Args:
        weights: w [K, M], sums to 1 for each client.
        z: residuals [M] or [K, M].
        steps: of EM.

    Returns:
        Mixtures of K clients, float64.
    """
    z = z.double() - (weights * z).sum(1, keepdim=True)
    spread = (weights * z.square()).sum(1, keepdim=True).sqrt()
    scales = (spread * spread.new_tensor(_START)).clamp_min(_LEAST)
    result = Mixture(torch.full_like(scales, -math.log(COMPONENTS)), torch.zeros_like(scales), scales)
    for _ in range(steps):
        result = em_step(result, weights, z)
    return result


def em_step(mixture: Mixture, weights: Tensor, z: Tensor) -> Mixture:
    """Make one step of expectation-maximisation; see `fit`.

    Args:
        mixture: of K clients.
        weights: w [K, M].
        z: residuals [K, M].

    Returns:
        Mixtures under which the residuals are at least as likely.
    """
    each = mixture.responsibilities(z) * weights.unsqueeze(1)
    mass = each.sum(-1).clamp_min(torch.finfo(each.dtype).tiny)
    locs = (each * z.unsqueeze(1)).sum(-1) / mass
    squares = (each * (z.unsqueeze(1) - locs.unsqueeze(-1)).square()).sum(-1) / mass
    return Mixture((mass / mass.sum(1, keepdim=True)).log(), locs, squares.sqrt().clamp_min(_LEAST))


@dataclass(frozen=True, eq=False)
class RecalibratedPosterior:
    """A posterior whose predictive errors have the shape of its leave-one-out residuals.

    p(y) = sum_p w_p sum_j v_j N(y | mu_p + b_j s_p, (c_j s_p)^2)

    Its mean is that of the posterior itself, since sum_j v_j b_j = 0. The posterior over functions, of which
    certificates are, stays what it is.

    Args:
        inner: the posterior.
        shape: of standardised errors of the K clients.
    """

    inner: LeaveOneOut
    shape: Mixture

    def predict(self, x: Tensor) -> NormalMixture:
        """Predictive mixture of new targets.

        Args:
            x: new inputs [K, M, d].

        Returns:
            [K, P J, M], in units of y, noise included.
        """
        return reshaped(self.inner.predict(x), self.shape)


def reshaped(known: NormalMixture, shape: Mixture) -> NormalMixture:
    """Give predictions another shape of errors; see `RecalibratedPosterior`.

    Args:
        known: the model's [K, P, M].
        shape: of standardised errors of the K clients.

    Returns:
        [K, P J, M].
    """
    log_weights, locs, scales = (leaf.to(known.means).unsqueeze(1) for leaf in shape)
    means = known.means.unsqueeze(2) + locs.unsqueeze(-1) * known.stds.unsqueeze(2)
    variances = scales.square().unsqueeze(-1) * known.variances.unsqueeze(2)
    weights = known.log_weights.unsqueeze(2) + log_weights
    return NormalMixture(weights.flatten(1), means.flatten(1, 2), variances.flatten(1, 2))


class OwnErrors(NamedTuple):
    """What clients' own rows say of the shape of their errors.

    Args:
        histogram: of their leave-one-out residuals [K, BINS]; 0 of too few.
        rows: m [K].
    """

    histogram: Tensor
    rows: Tensor


def own_errors(posterior: LeaveOneOut) -> OwnErrors | None:
    """Count the leave-one-out residuals of clients' own models.

    Args:
        posterior: of K clients.

    Returns:
        Their residuals; None of a model that was conditioned on everybody's rows.
    """
    if not posterior.personal:
        return None
    residuals = posterior.leave_one_out()
    return OwnErrors(shape_of_errors(residuals), residuals.mask.sum(1))


def shape_of(own: OwnErrors | None, others: Tensor, share: float) -> Mixture:
    """Fit the shape of errors to clients' own residuals and the federation's.

    Args:
        own: of K clients; None where the federation's count alone.
        others: of the federation [BINS], or one for each client [K, BINS].
        share: of these where a client has many rows of its own.

    Returns:
        Mixtures of the K clients, or one for all.
    """
    if own is None:
        every = others.double().reshape(-1, BINS)
        return fit(every, bin_values(every))
    others = others.to(own.histogram)
    return fit(blend(own.histogram, own.rows, others, share), bin_values(own.histogram))


def recalibrated(posterior: Any, others: Tensor | None, share: float = 0.5) -> RecalibratedPosterior:
    """Give a posterior's predictions the shape of its residuals.

    Args:
        posterior: of K clients.
        others: histogram of the federation's residuals [BINS]; that of a standard normal when None.
        share: of these where a client has many rows of its own.

    Returns:
        The posterior with mixtures of its own for each client.

    Raises:
        StudyError: when it has no leave-one-out residuals.
    """
    known = checked(posterior)
    base = standard_normal(torch.empty(0)) if others is None else others
    return RecalibratedPosterior(known, shape_of(own_errors(known), base, share))


def checked(posterior: Any) -> LeaveOneOut:
    """Check that a posterior can leave a row out.

    Args:
        posterior: any.

    Returns:
        The same.

    Raises:
        StudyError: when it cannot.
    """
    if not isinstance(posterior, LeaveOneOut):
        what = f"a {type(posterior).__name__} has no leave-one-out residuals to learn the shape of errors from"
        raise StudyError(what, hint="model.residuals = 'gaussian', report.intervals = 'model'; or a Gaussian process")
    return posterior
