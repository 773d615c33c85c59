"""The binary KL divergence and its inverses: published digits, 50-digit arithmetic, and the safe side of the root."""

from __future__ import annotations

import math
import sys
from decimal import Decimal, localcontext

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr
from torch import Tensor

from pacbayes_fl.bounds import kl_inverse
from pacbayes_fl.bounds.kl_inverse import binary_kl, kl_inverse_lower, kl_inverse_upper, log_excess
from pacbayes_fl.errors import AssumptionError

TABLE = [  # q, c, upper, lower: 50 digits, rounded
    (0.0, 0.1, 0.095162581964040427, 0.0),
    (0.0, 1e-12, 9.999999999995e-13, 0.0),
    (0.0, 50.0, 1.0, 0.0),
    (1e-12, 0.01, 0.0099501662746236905, 0.0),
    (0.01, 0.05, 0.078098462896721129, 2.497385718712519e-5),
    (0.1, 0.05, 0.22007860110692462, 0.031278396272279365),
    (0.5, 0.02, 0.59900828355203012, 0.40099171644796988),
    (0.9, 0.05, 0.96872160372772063, 0.77992139889307538),
    (0.999999, 0.001, 1.0, 0.99899259163310841),
    (1.0, 0.3, 1.0, 0.74081822068171787),
    (0.3, 0.0, 0.3, 0.3),
    (0.3, 20.0, 0.99999999999983685, 1.4545139400218636e-30),
    (0.0, 0.05, 0.048770575499285984, 0.0),
    (0.02, 0.05, 0.09857216773672911, None),
    (0.1, 0.1, 0.2823791394556453, 0.016564357914684608),
    (0.5, 0.01, 0.5703585934574544, 0.42964140654254646),
    (0.02, 0.001, 0.02691317292328865, None),
    (0.3, 0.02, 0.39608772636046174, None),
    (1.0, 0.1, 1.0, None),
]


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def exact_kl(q: float, p: float) -> Decimal:
    """Evaluate the definition at the very float64 numbers, in 150 digits."""
    with localcontext() as context:
        context.prec = 150
        total = Decimal(0)
        for a, b in ((Decimal(q), Decimal(p)), (1 - Decimal(q), 1 - Decimal(p))):
            if a:
                total += a * (a / b).ln() if b else Decimal("Infinity")
        return total


@pytest.mark.quick
@pytest.mark.parametrize(("q", "c", "upper", "lower"), TABLE)
def test_the_inverses_have_their_published_values(q: float, c: float, upper: float, lower: float | None) -> None:
    assert kl_inverse_upper(numbers(q), numbers(c)).item() == pytest.approx(upper, rel=1e-12, abs=0)
    if lower is not None:
        assert kl_inverse_lower(numbers(q), numbers(c)).item() == pytest.approx(lower, rel=1e-12, abs=1e-300)


def test_numbers_need_not_be_tensors() -> None:
    for function in (binary_kl, kl_inverse_upper, kl_inverse_lower):
        assert torch.equal(function(0.1, 0.2), function(numbers(0.1), numbers(0.2))[0])


def test_a_tensor_is_inverted_entry_by_entry() -> None:
    q, c, upper, _ = (numbers(*(row[i] or 0.0 for row in TABLE)) for i in range(4))
    torch.testing.assert_close(kl_inverse_upper(q, c), upper, rtol=1e-12, atol=0)
    q, c = q[3:7], c[3:7]
    grid = kl_inverse_lower(q.unsqueeze(1), c)
    one_by_one = [[kl_inverse_lower(a, b).item() for b in c] for a in q]
    torch.testing.assert_close(grid, torch.tensor(one_by_one, dtype=torch.float64), rtol=0, atol=0)


probabilities = st.one_of(
    st.floats(0, 1).map(lambda p: p if p > 1e-30 else 0.0),
    st.floats(-30, 0).map(lambda exponent: 10.0**exponent),
    st.just(1 - 2**-53),
)
budgets = st.floats(-14, 2).map(lambda exponent: 10.0**exponent)


@settings(max_examples=10)
@given(st.lists(st.tuples(probabilities, budgets), min_size=30, max_size=60))
def test_no_inverse_is_on_the_wrong_side_of_the_root_and_none_is_far_from_it(cases: list[tuple[float, float]]) -> None:
    q, c = (numbers(*column) for column in zip(*cases, strict=True))
    result = zip(cases, kl_inverse_lower(q, c).tolist(), kl_inverse_upper(q, c).tolist(), strict=True)
    for (one, budget), lower, upper in result:
        assert lower <= one <= upper
        for root, end in ((lower, 0.0), (upper, 1.0)):
            assert root == end or exact_kl(one, root) >= Decimal(budget)
            inside = math.nextafter(math.nextafter(root, 1 - end), 1 - end)  # where the numbers' spacing is coarser
            inside = max(inside, sys.float_info.min) if end == 0 else inside  # a subnormal root is given as 0
            passed = inside >= one if end == 0 else inside <= one
            assert passed or exact_kl(one, inside) <= Decimal(budget) * (1 + Decimal("3e-14"))


@settings(max_examples=300)
@given(q=probabilities, p=st.one_of(probabilities, st.floats(-1e-3, 1e-3)))
def test_the_divergence_keeps_its_digits_where_its_parts_cancel(q: float, p: float) -> None:
    p = p if abs(p) > 1e-3 or p == 0 else min(max(q * (1 + p), 0.0), 1.0)
    p = abs(p)
    got, expected = binary_kl(numbers(q), numbers(p)).item(), float(exact_kl(q, p))
    assert got == pytest.approx(expected, rel=5e-15, abs=1e-300)


def test_the_divergence_is_scipy_s() -> None:
    q, p = torch.meshgrid(numbers(0, 0.1, 0.5, 0.9, 1), numbers(0, 0.2, 0.5, 1), indexing="ij")
    expected = torch.from_numpy(rel_entr(q.numpy(), p.numpy()) + rel_entr(1 - q.numpy(), 1 - p.numpy()))
    torch.testing.assert_close(binary_kl(q, p), expected, rtol=1e-14, atol=1e-17)


def test_x_minus_its_logarithm_keeps_its_digits() -> None:
    x = numbers(-1, -0.5, -1e-3, -1e-9, 0, 1e-9, 1e-3, 0.4999, 0.5, 3)
    with localcontext() as context:
        context.prec = 60
        exact = [float(Decimal(v) - (1 + Decimal(v)).ln()) if v > -1 else math.inf for v in x.tolist()]
    torch.testing.assert_close(log_excess(x), numbers(*exact), rtol=1e-15, atol=0)


def test_a_root_takes_a_few_divergences_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bisection alone takes more than fifty, and hundreds towards 0."""
    calls: list[Tensor] = []
    divergence = kl_inverse._kl
    monkeypatch.setattr(kl_inverse, "_kl", lambda q, p: calls.append(p) or divergence(q, p))
    q = numbers(0, 1e-30, 1e-12, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-6, 1 - 2**-53, 1)
    c = numbers(*(10.0**exponent for exponent in range(-14, 5)), 0, math.inf)
    for inverse in (kl_inverse_upper, kl_inverse_lower):
        calls.clear()
        inverse(q.unsqueeze(1), c)
        assert 0 < len(calls) <= 20


def test_the_smallest_numbers_of_all_are_no_trouble() -> None:
    q = numbers(5e-324, 1e-310)
    torch.testing.assert_close(kl_inverse_upper(q, numbers(1)), -torch.expm1(-numbers(1, 1)), rtol=1e-13, atol=0)
    assert kl_inverse_lower(q, numbers(1)).tolist() == [0, 0]
    assert kl_inverse_lower(numbers(0.01), numbers(7.5)).item() == 0  # e^-750 is no float64
    assert 0 < kl_inverse_lower(numbers(0.01), numbers(6.9)).item() < 1e-299


def test_an_infinite_budget_allows_everything() -> None:
    q = numbers(0, 0.3, 1)
    assert kl_inverse_upper(q, numbers(math.inf)).tolist() == [1, 1, 1]
    assert kl_inverse_lower(q, numbers(math.inf)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("q", "c", "message"),
    [
        (-0.1, 0.1, "q must be a probability, got -0.1"),
        (1.1, 0.1, "q must be a probability"),
        (math.nan, 0.1, "q must be a probability, got nan"),
        (0.1, -1e-3, "c must be at least 0 nats, got -0.001"),
        (0.1, math.nan, "c must be at least 0 nats"),
    ],
)
def test_what_has_no_inverse_is_refused(q: float, c: float, message: str) -> None:
    for inverse in (kl_inverse_upper, kl_inverse_lower):
        with pytest.raises(AssumptionError, match=message):
            inverse(numbers(0.5, q), numbers(c))


def test_numbers_whose_product_is_too_small_for_one_have_no_smaller_inverse() -> None:
    """q c underflows from 1e-308 on, and its root, by which the inverse exceeds q, does not: kl is c or more there."""
    with mpmath.workdps(350):
        for q in (10.0**-k for k in range(0, 300, 20)):
            for c in (10.0**-k for k in range(1, 300, 20)):
                p = kl_inverse_upper(*torch.tensor([q, c], dtype=torch.float64)).item()
                one, other = mpmath.mpf(q), mpmath.mpf(p)
                left = (1 - one) * mpmath.log((1 - one) / (1 - other)) if q < 1 else 0
                assert p == 1 or one * mpmath.log(one / other) + left >= c, (q, c)
