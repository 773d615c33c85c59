"""Recursive PAC-Bayes: the decomposition on rows, the formula by another solver, its world, and where it gains."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import optimize

from pacbayes_fl import bounds
from pacbayes_fl.bounds import Premises, Provenance, chain
from pacbayes_fl.bounds.coverage import DRAWN, MOST, coverage
from pacbayes_fl.bounds.moment import log_moment
from pacbayes_fl.errors import AssumptionError, ShapeError

FINE = Premises(Provenance("data-free"), independent=True)
DELTA = 0.05


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def upper(q: float, nats: float) -> float:
    """The kl inverse by another solver."""

    def excess(p: float) -> float:
        parts = [a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a > 0]
        return sum(parts) - nats

    return 1.0 if excess(1 - 1e-15) < 0 else float(optimize.brentq(excess, q + 1e-15, 1 - 1e-15, xtol=1e-15))


def test_the_tails_of_the_excess_sum_to_the_difference_of_the_risks() -> None:
    """On rows: errors of hypotheses under Q, and of one drawn hypothesis for every row."""
    generator = torch.Generator().manual_seed(0)
    errors, other = (
        torch.randint(2, (6, 30), generator=generator).double(),
        torch.randint(2, (30,), generator=generator).double(),
    )
    q, gamma = torch.softmax(torch.randn(6, generator=generator).double(), 0), 0.3
    excess = errors - gamma * other
    tails = [(q @ (excess >= at - 1e-12).double()).mean() for at in (0.0, 1 - gamma, 1.0)]
    total = -gamma + gamma * tails[0] + (1 - gamma) * tails[1] + gamma * tails[2]
    assert total.item() == pytest.approx(float((q @ errors).mean() - gamma * other.mean()), rel=1e-12)
    wrong = q @ errors
    named = [1 - ((1 - wrong) * other).mean(), wrong.mean(), (wrong * (1 - other)).mean()]
    assert [each.item() for each in tails] == pytest.approx([each.item() for each in named], rel=1e-12)


def test_a_chain_of_one_is_the_kl_inverse_and_one_of_three_is_its_recursion_by_hand() -> None:
    alone = bounds.recursive(0.2, torch.empty(0, 3), torch.empty(0), numbers(2.0), numbers(90), DELTA, FINE)
    torch.testing.assert_close(alone.value, bounds.seeger(0.2, 2.0, 90, DELTA, FINE).value, rtol=1e-12, atol=0)
    shares, gammas = numbers(0.95, 0.1, 0.05, 0.9, 0.08, 0.03).reshape(2, 3), numbers(0.6, 0.4)
    kls, counts = numbers(5.0, 3.0, 2.0), numbers(3000, 2000, 1000)
    got = bounds.recursive(0.12, shares, gammas, kls, counts, DELTA, FINE)
    moments = log_moment(counts).tolist()
    bound = upper(0.12, (5.0 + moments[0] + math.log(3 / DELTA)) / 3000)
    for t, gamma in ((1, 0.6), (2, 0.4)):
        nats = (kls[t].item() + moments[t] + math.log(9 / DELTA)) / counts[t].item()
        k = [upper(share, nats) for share in shares[t - 1].tolist()]
        bound = gamma * bound - gamma + gamma * k[0] + (1 - gamma) * k[1] + gamma * k[2]
    assert got.valid and got.value.item() == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize("wrong", [lambda counts: 1000 * counts, None])
def test_its_world_covers_and_rows_that_are_counted_too_often_are_found(
    wrong: Callable[[torch.Tensor], torch.Tensor] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = chain._recursive
    if wrong is not None:
        monkeypatch.setattr(chain, "_recursive", lambda terms: own({**terms, "counts": wrong(terms["counts"])}))
    cases = {"chains": tuple(DRAWN["chains"](0))}
    most = max(one.failures for one in coverage(chain.RECURSIVE, cases))  # type: ignore[arg-type]
    assert (most > MOST) == (wrong is not None)


def test_rows_that_made_the_prior_are_not_lost() -> None:
    """A posterior that repeats nearly all errors of its prior, which has seen most of the rows."""
    shares, gammas = numbers(0.998, 0.2, 0.002).unsqueeze(0), numbers(1.0)
    both = bounds.recursive(0.2, shares, gammas, numbers(30.0, 2.0), numbers(20_000, 300), DELTA, FINE).value.item()
    split = bounds.seeger(0.2, 2.0, 300, DELTA, FINE).value.item()
    assert 0.2 < both < 0.27 < 0.3 < split


def test_a_step_gains_only_where_more_errors_are_corrected_than_the_nats_over_the_rows() -> None:
    """Random pairs of errors: of those that gain all obey the claim, and some gain, so that it is no empty one."""
    generator = torch.Generator().manual_seed(4)
    cells = torch._sample_dirichlet(torch.tensor([4.0, 0.3, 1.0, 0.5]).double().expand(4000, 4), generator)
    both, broken, corrected = cells[:, 1], cells[:, 3] * cells[:, 1], cells[:, 2]
    kls = torch.stack((torch.zeros(4000).double(), 5.0 * torch.rand(4000, generator=generator).double()), 1)
    n = (10.0 ** (1 + 4 * torch.rand(4000, generator=generator).double())).round()
    counts, shares = torch.stack((40.0 * n, n), 1), torch.stack((1 - corrected, both + broken, broken), 1).unsqueeze(1)

    def at(gamma: float) -> torch.Tensor:
        given = torch.full((4000, 1), gamma).double()
        return bounds.recursive(both + corrected, shares, given, kls, counts, DELTA, FINE).value

    ends = torch.minimum(at(0.0), at(1.0))
    assert all(bool((at(gamma) >= ends - 1e-9).all()) for gamma in (0.2, 0.5, 0.9))
    before = bounds.seeger(both + corrected, 0.0, 40.0 * n, DELTA / 2, FINE).value
    alone = bounds.seeger(both + broken, kls[:, 1], n, DELTA, FINE).value
    gained = at(1.0) < torch.minimum(before, alone) - 1e-9
    nats = (kls[:, 1] + log_moment(n) + math.log(6 / DELTA)) / n
    assert 0 < int(gained.sum()) < 3000 and bool((corrected > 1 - torch.exp(-nats))[gained].all())


def test_chains_that_do_not_fit_are_refused() -> None:
    shares, gammas, kls, counts = torch.full((1, 3), 0.5), numbers(0.5), numbers(1.0, 1.0), numbers(50, 20)
    with pytest.raises(ShapeError, match=r"a chain of T posteriors has .*, got kls \[2\], counts \[1\]"):
        bounds.recursive(0.1, shares, gammas, kls, numbers(50), DELTA, FINE)
    with pytest.raises(AssumptionError, match="counts must not grow along the chain"):
        bounds.recursive(0.1, shares, gammas, kls, numbers(20, 50), DELTA, FINE)
    soft = Premises(Provenance("data-free"), independent=True, loss=bounds.SaturatingSquare())
    assert "is no 0-1 loss" in str(bounds.recursive(0.1, shares, gammas, kls, counts, DELTA, soft))


@pytest.mark.parametrize("wrong", [[0.97, 0.1, 0.2], [0.02, 0.87, 0.05]])
def test_shares_that_rise_are_no_tails(wrong: list[float]) -> None:
    """Such as those of F = value: a bound of .14 came of them."""
    given = numbers(0.5), numbers(2, 1), numbers(2000, 1000), DELTA, FINE
    with pytest.raises(AssumptionError, match=r"shares must be those of F >= value by value, .* \[0\.[09]"):
        bounds.recursive(0.2, numbers(*wrong).unsqueeze(0), *given)
    assert bounds.recursive(0.2, numbers(0.97, 0.1, 0.1).unsqueeze(0), *given).valid
