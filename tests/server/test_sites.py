"""What a client has contributed, divided out of Gaussians: the inverse of what was multiplied in."""

from __future__ import annotations

import torch
from torch import Tensor

from pacbayes_fl.server.moments import Moments
from pacbayes_fl.server.sites import contribution, without


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_what_a_client_contributed_is_what_is_taken_out() -> None:
    mean, spread = randn(1, 3, 8), randn(2, 3, 8).square() + 0.1
    prior = Moments(mean, torch.minimum(spread, torch.full_like(spread, 0.3)))
    posterior = Moments(mean + randn(3, 3, 8), 1 / (1 / prior.variance + randn(4, 3, 8).square()))
    site = contribution(prior, posterior)
    back = without(posterior, site, 0.3)
    for mine, theirs in zip(back, prior, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    nothing = contribution(prior, Moments(mean, torch.zeros_like(mean)))  # weights that were not inferred
    assert not nothing.precision.any() and not nothing.linear.any()
    for mine, theirs in zip(without(posterior, nothing, 0.3), posterior, strict=True):
        assert torch.equal(mine, theirs)
    less = without(prior, site, 0.3)  # the prior holds less than was sent
    assert (less.variance <= 0.3 * (1 + 1e-12)).all() and less.mean.isfinite().all()
    wide = Moments(*(torch.cat((leaf, leaf[:, :2] + 1), 1) for leaf in posterior))  # others of the client's weights
    for mine, theirs in zip(without(wide, site, 0.3), wide, strict=True):
        assert torch.equal(mine[:, 8:], theirs[:, 8:])
    single = without(Moments(*(leaf.float() for leaf in posterior)), site, 0.3)
    torch.testing.assert_close(single.variance.double(), prior.variance, rtol=1e-5, atol=0)
    assert single.mean.dtype == torch.float32
