"""Conformal intervals of Gaussian processes: jackknife+ and CV+ in closed form, and the federation's quantile.

A Gaussian process forgets rows at the cost of a solve of their size, so that all models of the jackknife+ come from the
one factor that predictions need. With alpha = .05 the interval of a new row covers its target with probability at least
1 - 2 alpha = .90, and with about .95 as a rule, where the client's rows and the new one are exchangeable and the priors
have seen none of them (Barber, Candes, Ramdas and Tibshirani, Annals of Statistics 2021, Theorem 1; Theorem 4 for
blocks, less sqrt(2 / m); their proofs hold for any score of a row under a model). That is so for clients that never
trained and whose units are not made of their own rows: a mean and a standard deviation of m rows hold a little of the
row that is left out, about 1 / m of it. The priors of clients that trained have seen it too, and rows of a series are
not exchangeable: for these nothing is guaranteed in finite samples. Inducing points stay where a row is left out, and
its input was among those that they were chosen from: of such posteriors too, the interval is near to the guarantee
rather than under it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.posteriors.functions.conditioning import MixedPosterior
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior
from pacbayes_fl.posteriors.functions.inducing import InducingPosterior
from pacbayes_fl.posteriors.predictive import NormalMixture, at_levels
from pacbayes_fl.posteriors.residuals import LeaveOneOut, RecalibratedPosterior, quantile_of_size

ALPHA = 0.05
"""Share of rows that may fall outside of an interval, where nothing else is said."""

_AT_ONCE = 64  # rows to predict: each takes as many numbers as the client has rows, under every particle


@dataclass(frozen=True, eq=False)
class Banded(NormalMixture):
    """A mixture with an interval of other origin, which stands for its quantiles at alpha / 2 and 1 - alpha / 2.

    The other quantiles are the mixture's as far as these two let them: between the two levels they are held inside the
    interval, and further out they do not fall into it, so that quantiles never cross. Mean, standard deviation, density
    and distribution function are the mixture's.

    Args:
        log_weights: as of the mixture [K, P].
        means: as of the mixture [K, P, N].
        variances: as of the mixture [K, P, N].
        band: lower and upper end of the interval [2, K, N], in units of y.
        alpha: share of rows that may fall outside.
    """

    band: Tensor
    alpha: float = ALPHA

    @at_levels
    def quantile(self, level: Tensor) -> Tensor:
        """Give quantiles of the mixture, but the ends of the interval at its own levels, and none beyond them.

        With ends [a, b] and the mixture's quantile q: min(q, a) below alpha / 2, a at it, q held in [a, b] between the
        two levels, b at 1 - alpha / 2 and max(q, b) above: monotone in the level.

        Args:
            level: [L], from 0 to 1, whose quantiles are the ends of what is possible; or a number, for [K, N].

        Returns:
            [L, K, N], in units of y.
        """
        level = level.to(self.means.device)
        result = NormalMixture(self.log_weights, self.means, self.variances).quantile(level)
        (low, high), tail = self.band, self.alpha / 2
        at = level.view(-1, 1, 1)
        result = torch.where(at < tail, result.fmin(low), result.fmax(low))  # an end that is NaN moves no other
        result = torch.where(at > 1 - tail, result.fmax(high), result.fmin(high))
        for end, own in ((low, tail), (high, 1 - tail)):
            result = torch.where((at - own).abs() < 1e-6, end, result)
        return result

    def rescale(self, loc: Tensor, scale: Tensor) -> Banded:
        """Change units.

        Args:
            loc: [K], added after scaling.
            scale: [K], positive.

        Returns:
            The distribution of loc + scale * y, with its interval.
        """
        known = NormalMixture(self.log_weights, self.means, self.variances).rescale(loc, scale)
        band = loc.view(-1, 1) + scale.view(-1, 1) * self.band
        return Banded(known.log_weights, known.means, known.variances, band, self.alpha)


@dataclass(frozen=True, eq=False)
class ConformalPosterior:
    """A posterior whose intervals are conformal.

    Args:
        inner: posterior whose mean and standard deviation the intervals are made of.
        shown: posterior that all else of a prediction is of.
        others: histogram of the federation's residuals [BINS], for clients with too few rows of their own.
        blocks: number of runs of consecutive rows that are left out together; single rows when None.
        alpha: share of rows that may fall outside.
    """

    inner: LeaveOneOut
    shown: LeaveOneOut | RecalibratedPosterior
    others: Tensor
    blocks: int | None
    alpha: float = ALPHA

    def predict(self, x: Tensor) -> Banded:
        """Predictive mixture of new targets, with its interval.

        Args:
            x: new inputs [K, M, d].

        Returns:
            [K, P, M], in units of y.
        """
        shown, known = self.shown.predict(x), self.inner.predict(x)
        half = quantile_of_size(self.others, 1 - self.alpha).to(known.means) * known.variance.sqrt()
        band = torch.stack((known.mean - half, known.mean + half))
        found = _own_ends(self.inner, x, self.blocks, self.alpha)
        if found is not None:
            own, widest = found.unbind()  # too few rows for the one: no narrower than what they say of a larger alpha
            beside = torch.stack((band[0].fmin(widest[0]), band[1].fmax(widest[1])))
            beside = torch.where(widest.isinf().any(0), band, beside)  # of a client without rows
            band = torch.where(own.isinf().any(0), beside, own)
        return Banded(shown.log_weights, shown.means, shown.variances, band, self.alpha)


class _Left(NamedTuple):
    """What is left of a posterior without each of G blocks of rows, b at most in one.

    Args:
        at: positions of the blocks' rows [K, G, b].
        mask: which of them are rows [K, G, b].
        cholesky: of the blocks' part of A^-1 [K, P, G, b, b].
        residual: y - mu of the rows without their block [K, P, G, b].
        unexplained: prior variance that inducing points leave of the rows [K, P, G, b].
        weights: of the particles without the block [K, P, G].
    """

    at: Tensor
    mask: Tensor
    cholesky: Tensor
    residual: Tensor
    unexplained: Tensor
    weights: Tensor

    def scores(self) -> Tensor:
        """Residuals over the standard deviation of the mixture [K, G, b]."""
        weights = self.weights.unsqueeze(-1)
        identity = torch.eye(self.at.shape[-1], dtype=weights.dtype, device=weights.device)
        half = torch.linalg.solve_triangular(self.cholesky, identity.expand_as(self.cholesky), upper=False)
        mean = (weights * self.residual).sum(1)
        between = (self.residual - mean.unsqueeze(1)).square()
        variance = (weights * (half.square().sum(-2) + self.unexplained + between)).sum(1)
        scores: Tensor = mean.abs() / variance.sqrt()
        return scores


def blocks_of(mask: Tensor, blocks: int | None) -> tuple[Tensor, Tensor]:
    """Cut every client's rows into runs of consecutive ones, as even as can be.

    Args:
        mask: [K, N] bool, rows before padding.
        blocks: G; as many as rows when None.

    Returns:
        Positions of the rows [K, G, b], and which of them are rows; a client with fewer than G rows has empty blocks.
    """
    rows = mask.sum(1)
    count = mask.shape[1] if blocks is None else max(1, min(blocks, mask.shape[1]))
    own = rows.clamp(1, count)  # blocks of the client
    edges = torch.arange(count + 1, device=mask.device)
    starts = torch.where(edges <= own.unsqueeze(1), edges * rows.unsqueeze(1) // own.unsqueeze(1), rows.unsqueeze(1))
    width = -(-mask.shape[1] // count)
    at = starts[:, :-1, None] + torch.arange(width, device=mask.device)
    inside = at < starts[:, 1:, None]
    return torch.where(inside, at, 0), inside


def left_out(posterior: GPPosterior | InducingPosterior, blocks: int | None) -> _Left:
    """Leave each block of rows out of a posterior.

    With L = [A^-1]_BB, A = K + D (or Q + D with inducing points, which stay, and what these leave of the prior variance
    beside it): y_B - mu_-B = L^-1 alpha_B, its covariance is L^-1, and
    ln p(y_B | y_-B) = (ln |L| - alpha_B' L^-1 alpha_B - b ln 2 pi) / 2 takes the block out of a particle's evidence
    (Rasmussen and Williams 2006, eqs. 5.10-5.12, for more than one row).

    Args:
        posterior: of K clients.
        blocks: number of blocks; single rows when None.

    Returns:
        What is left.
    """
    at, mask = blocks_of(posterior.mask, blocks)
    clients, particles, _ = posterior.alpha.shape
    count, width = at.shape[1:]
    part = posterior.precision_at(at)
    real = mask.unsqueeze(1)
    usable = (posterior.log_weights > -torch.inf)[..., None, None] & real
    both = usable.unsqueeze(-1) & usable.unsqueeze(-2)
    diagonal = torch.diag_embed((~usable).to(part.dtype))
    cholesky = torch.linalg.cholesky_ex(torch.where(both, part, 0.0) + diagonal).L
    flat = at.flatten(1).unsqueeze(1).expand(-1, particles, -1)
    alpha = torch.where(real, posterior.alpha.gather(2, flat).view(clients, particles, count, width), 0.0)
    unexplained = torch.where(real, posterior.unexplained.gather(2, flat).view_as(alpha), 0.0)
    residual = torch.cholesky_solve(alpha.unsqueeze(-1), cholesky).squeeze(-1)
    log_weights = posterior.log_weights.unsqueeze(-1).expand(-1, -1, count)
    if posterior.weighting == "evidence":
        log_determinant = cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        density = log_determinant - 0.5 * (alpha * residual).sum(-1) - 0.5 * math.log(2 * math.pi) * real.sum(-1)
        if isinstance(posterior, InducingPosterior):  # the bound's trace term
            noise = posterior.model.noise(posterior.theta, posterior.x).gather(2, flat).view_as(alpha)
            density = density - 0.5 * (unexplained / noise).sum(-1)
        log_weights = torch.log_softmax(log_weights - density, 1)
    return _Left(at, mask, cholesky, residual, unexplained, log_weights.exp())


def _own_ends(posterior: object, x: Tensor, blocks: int | None, alpha: float) -> Tensor | None:
    """Ends of `_found` at x [K, M, d] of posteriors of clients' own rows; None of others and without rows."""
    if isinstance(posterior, MixedPosterior):
        each = [_found(one, x[at], blocks, alpha) for one, at in zip(posterior.parts, posterior.at, strict=True)]
        return torch.cat(each, 2)[:, :, posterior.order.to(x.device)]
    known = isinstance(posterior, GPPosterior | InducingPosterior) and bool(posterior.mask.shape[1])
    return _found(posterior, x, blocks, alpha) if known else None  # type: ignore[arg-type]


def _found(posterior: GPPosterior | InducingPosterior, x: Tensor, blocks: int | None, alpha: float) -> Tensor:
    """Ends [2, 2, K, M] of the interval, and of the widest that the client's rows give: from the least to the most."""
    left = left_out(posterior, blocks)
    scores = left.scores()
    return torch.cat([_ends(posterior, left, scores, part, alpha) for part in x.split(_AT_ONCE, 1)], 3)


def jackknife_plus(
    posterior: GPPosterior | InducingPosterior, x: Tensor, blocks: int | None = None, alpha: float = ALPHA
) -> Tensor:
    """Jackknife+ interval with scores R_i = |y_i - mu_-i(x_i)| / s_-i(x_i), or CV+ with blocks.

    from the floor(alpha (m + 1))-th smallest of mu_-i(x*) - R_i s_-i(x*)
    to the ceil((1 - alpha) (m + 1))-th smallest of mu_-i(x*) + R_i s_-i(x*)

    mu_-i and s_-i are of the mixture over particles without the block of row i, whose weights forget it too.

    Args:
        posterior: of K clients.
        x: new inputs [K, M, d].
        blocks: number of blocks; single rows when None.
        alpha: share of rows that may fall outside.

    Returns:
        Lower and upper ends [2, K, M], in units of y; infinite where a client has fewer than 1 / alpha - 1 rows, of .05
        19.
    """
    return _found(posterior, x, blocks, alpha)[0]


def _ends(posterior: GPPosterior | InducingPosterior, left: _Left, scores: Tensor, x: Tensor, alpha: float) -> Tensor:
    """Return `_found` at a few inputs."""
    known, through = posterior.predict(x), posterior.through(x)  # [K, P, M, N]
    clients, particles, asked, _ = through.shape
    at = left.at.flatten(1)[:, None, None].expand(-1, particles, asked, -1)
    moved = through.gather(3, at).view(clients, particles, asked, *left.at.shape[1:])
    moved = torch.where(left.mask[:, None, None], moved, 0.0).transpose(2, 3)  # [K, P, G, M, b]
    white = torch.linalg.solve_triangular(left.cholesky, moved.mT, upper=False)  # [K, P, G, b, M]
    means = known.means.unsqueeze(2) - (moved * left.residual.unsqueeze(3)).sum(-1)
    variances = known.variances.unsqueeze(2) + white.square().sum(-2)
    weights = left.weights.unsqueeze(-1)
    mean = (weights * means).sum(1)  # [K, G, M]
    std = (weights * (variances + (means - mean.unsqueeze(1)).square())).sum(1).sqrt()
    half = scores.unsqueeze(-1) * std.unsqueeze(2)  # [K, G, b, M]
    real = left.mask.unsqueeze(-1)
    low, high = (
        torch.where(real, mean.unsqueeze(2) + sign * half, torch.inf).flatten(1, 2).sort(1).values for sign in (-1, 1)
    )
    return _order_statistics(low, high, posterior.mask.sum(1), alpha)


def _order_statistics(low: Tensor, high: Tensor, rows: Tensor, alpha: float) -> Tensor:
    """Take [2, 2, K, M] of sorted ends [K, N, M] of `rows` [K] rows; infinite where there are too few, or none."""
    below = (alpha * (rows + 1) + 1e-9).floor().long()
    above = ((1 - alpha) * (rows + 1) - 1e-9).ceil().long()
    few, none = (below < 1) | (above > rows), rows < 1

    def taken(ends: Tensor, place: Tensor, missing: Tensor, otherwise: float) -> Tensor:
        index = (place - 1).clamp(0, ends.shape[1] - 1).view(-1, 1, 1).expand(-1, 1, ends.shape[2])
        return torch.where(missing.unsqueeze(1), otherwise, ends.gather(1, index).squeeze(1))

    own = taken(low, below, few, -torch.inf), taken(high, above, few, torch.inf)
    widest = taken(low, torch.ones_like(rows), none, -torch.inf), taken(high, rows, none, torch.inf)
    return torch.stack((torch.stack(own), torch.stack(widest)))
