"""The upper end of Clopper and Pearson against another library, its slopes, and the side on which it errs."""

from __future__ import annotations

import torch
from scipy import special
from torch.autograd import gradcheck

from pacbayes_fl.bounds.binomial import binomial_upper


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_it_is_never_below_the_root_and_all_but_at_it() -> None:
    k, n = (grid.flatten() for grid in torch.meshgrid(numbers(0, 1, 7, 300), numbers(301, 10**4, 10**7), indexing="ij"))
    for delta in (0.5, 0.05, 1e-6, 1e-40):
        p = binomial_upper(k, n, torch.tensor(delta, dtype=torch.float64))
        at, below = (special.betaincc(k.numpy() + 1, (n - k).numpy(), p.numpy() * less) for less in (1.0, 1 - 1e-9))
        assert bool((torch.from_numpy(at) <= delta).all()) and bool((torch.from_numpy(below) > delta).all())
        other = torch.from_numpy(special.bdtr(k.numpy(), n.long().numpy(), p.numpy()))
        assert delta < 1e-6 or torch.allclose(other, torch.tensor(delta).double(), rtol=1e-6, atol=0)


def test_all_rows_wrong_bound_nothing_and_slopes_are_those_of_the_values() -> None:
    assert binomial_upper(numbers(5), numbers(5), numbers(0.05)).item() == 1.0
    k, delta = numbers(0.5, 3, 40).requires_grad_(), numbers(0.3, 0.05, 1e-4).requires_grad_()
    n = numbers(4, 40, 100)
    assert gradcheck(lambda a, b: binomial_upper(a, n, b), (k, delta), eps=1e-7, atol=1e-6, rtol=1e-4)


def test_chances_so_small_that_scipy_knows_no_inverse_bound_nothing_or_little() -> None:
    k, n = (grid.flatten() for grid in torch.meshgrid(numbers(0, 1, 2, 9), numbers(5, 20, 50), indexing="ij"))
    for delta in (1e-140, 1e-174, 1e-220, 5e-324):
        p = binomial_upper(k, n, torch.tensor(delta, dtype=torch.float64))
        assert bool((p > 0.6).all()) and bool((p <= 1.0).all())
        assert bool((torch.from_numpy(special.bdtr(k.numpy(), n.long().numpy(), p.numpy())) <= delta)[k < n].all())
