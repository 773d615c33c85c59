"""What must hold of `refine` whatever a variational method fits, against the certificates' own divergences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from pacbayes_fl import bounds, tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods.base import RefinedPosterior
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from tests.methods.by_hand import K, clients, randn

SEEN, NEW = (5, 0, 7), (4, 6, 0)  # the second client never trained, the third has no new rows


def more(*sizes: int) -> ClientBatch:
    """Return further rows of the clients, other ones than `clients` gives."""
    batch = clients(*sizes)
    return replace(batch, x=torch.where(batch.mask.unsqueeze(-1), batch.x.flip(-1) + 0.3, 0.0))


def learnable(*sizes: int) -> ClientBatch:
    """Return rows whose labels depend on the inputs."""
    batch = more(*sizes)
    return replace(batch, y=(batch.x > 0).sum(-1))


def priors(algorithm: Any, message: Any) -> tuple[WeightPosterior, ClientBatch]:
    """Return what clients have after a round on the rows `SEEN`, without a look at others."""
    seen = clients(*SEEN)
    fresh = algorithm.init_clients(message, seen)
    _, trained = algorithm.client(message, fresh, seen, Noise(3, 1, seen.ids))
    kept = tensors.where(seen.size > 0, trained, fresh)
    return algorithm.personalise(message, kept, seen, Noise(3, 0, seen.ids)), seen


def gaussian_oracle(q: Any, p: Any) -> Tensor:
    """KL divergence [K] of mean fields by the certificates' own formula."""
    (mine, theirs) = (softplus(one.rho.double()).square() for one in (q, p))
    return bounds.diagonal_gaussian_kl(q.loc, mine, p.loc, theirs)


def pruned_oracle(q: Any, p: Any) -> Tensor:
    """KL divergence [K] of spike-and-slab distributions by the certificates' own formula."""
    (mine, theirs) = ((one.loc, softplus(one.rho.double()).square(), one.inclusion.double()) for one in (q, p))
    return bounds.bernoulli_gaussian_kl(*mine, *theirs)


def same(mine: RefinedPosterior, theirs: RefinedPosterior, at: int, tolerance: float = 1e-9) -> None:
    """Compare client `at` of one result with the first client of another."""
    for one, other in zip(mine.posterior.family, theirs.posterior.family, strict=True):  # type: ignore[attr-defined]
        torch.testing.assert_close(one[at], other[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(mine.kl[at], theirs.kl[0], rtol=1e-7, atol=tolerance)


def check(algorithm: Any, message: Any, oracle: Callable[[Any, Any], Tensor]) -> RefinedPosterior:
    """Hold `refine` to everything that does not depend on the family."""
    prior, seen = priors(algorithm, message)
    before = tensors.tree_map(torch.clone, prior.family)
    rows = more(*NEW)
    refined: RefinedPosterior = algorithm.refine(prior, seen, rows, Noise(3, 0, rows.ids))
    q = refined.posterior.family  # type: ignore[attr-defined]
    # the divergence, and a client without new rows
    assert refined.kl.shape == (K,) and refined.kl.dtype == torch.float64
    torch.testing.assert_close(refined.kl, oracle(q, before), rtol=1e-10, atol=1e-12)
    assert (refined.kl[:2] > 1e-3).all() and refined.kl[2] == 0.0
    for now, was, p in zip(q, before, prior.family, strict=True):
        assert torch.equal(now[2], was[2]) and not torch.equal(now[:2], was[:2])
        assert torch.equal(p, was)
    # the same hypotheses: P's own statistics, and q's own draws
    assert refined.posterior.reference is prior.reference  # type: ignore[attr-defined]
    assert refined.posterior.noise_std == 1.0  # type: ignore[attr-defined]
    # one client at a time, without padding
    for k in range(K):
        one = torch.tensor([k])
        alone = replace(prior, family=tensors.select(prior.family, one), reference=seen.select(one))
        own = rows.select(one).trim()
        same(refined, algorithm.refine(alone, seen.select(one).trim(), own, Noise(3, 0, own.ids)), k)
    # padding, and what it holds
    wide = ClientBatch(pad(rows.x, (0, 0, 0, 3)), pad(rows.y, (0, 3)), pad(rows.mask, (0, 3)), rows.ids, rows.names)
    x = torch.where(wide.mask.unsqueeze(-1), wide.x, 9.0 * randn(90, *wide.x.shape))
    wide = replace(wide, x=x, y=torch.where(wide.mask, wide.y, 2))
    again = algorithm.refine(prior, seen, wide, Noise(3, 0, rows.ids))
    for one, other in zip(again.posterior.family, q, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    return refined


def likelihoods(posterior: WeightPosterior, rows: ClientBatch, draws: int = 200) -> Tensor:
    """Mean log likelihood [K] of a client's rows under networks that are drawn."""
    total = torch.zeros(rows.clients, dtype=torch.float64)
    for one in posterior.sample_hypotheses(rows.x, draws, Noise(8, 0, rows.ids)):
        total += torch.where(rows.mask, one.log_prob(rows.y), 0.0).sum(1) / draws
    return total
