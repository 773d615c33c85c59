"""Slopes of every bound and every divergence: finite differences inside, one-sided ones and limits at the edges."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from scipy import optimize
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from pacbayes_fl import bounds
from pacbayes_fl.bounds import BOUNDS, MonteCarlo, Premises, Provenance, SaturatingSquare
from pacbayes_fl.bounds import divergence as divergences
from pacbayes_fl.bounds import kl_inverse as inverses
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError, ShapeError
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.posteriors.functions.gaussian_process import condition

USUAL = frozenset(("risk", "kl", "n", "beta", "log_z"))
CLIENT_BOUNDS = [name for name, bound in BOUNDS.items() if bound.group is None and USUAL.issuperset(bound.needs)]
SERVER_BOUNDS = [bound.name for bound in BOUNDS.values() if bound.group is not None]
FINE = Premises(Provenance("data-free"), independent=True, posterior="exact Gibbs", drawn_clients=True)
PRIVATE = dataclasses.replace(FINE, prior=Provenance("client-level DP", 0.4, 1e-4))
ROWS = torch.tensor([3, 40, 40, 5000])
STEEP = ("seeger", "anytime", "holdout-kl")
Function = Callable[..., Tensor]


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def slopes(function: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [each.clone().requires_grad_() for each in inputs]
    return torch.autograd.grad(function(*leaves).sum(), leaves, allow_unused=True, materialize_grads=True)


def agree(function: Function, *inputs: Tensor, eps: float = 1e-7) -> None:
    leaves = tuple(each.clone().requires_grad_() for each in inputs)
    assert gradcheck(function, leaves, eps=eps, atol=2e-6, rtol=2e-5)


# every bound -------------------------------------------------------------------------------------------------------

CLIENT = MappingProxyType(
    {
        "risk": numbers(0.03, 0.1, 0.5, 0.02),
        "kl": numbers(0.2, 3.0, 1.0, 200.0),
        "beta": numbers(2.0, 15.0, 60.0, 900.0),
        "log_z": numbers(-0.5, -5.0, -30.0, -200.0),
        "delta": numbers(0.3, 0.05, 0.05, 0.01),
        "mc_delta": numbers(0.05, 0.01, 0.02, 0.001),
    }
)


def client_bound(name: str, given: Mapping[str, Tensor], n: Tensor, premises: Premises = FINE) -> Tensor:
    """Call a bound by what it needs; with draws where `given` has their delta."""
    premises = PRIVATE if BOUNDS[name].private else premises
    draws = MonteCarlo(300, given["mc_delta"]) if "mc_delta" in given else None
    return BOUNDS[name].certify({**given, "n": n}, given["delta"], premises, draws).value


@pytest.mark.law
@pytest.mark.parametrize(("drawn", "private"), [(False, True), (True, False)])
@pytest.mark.parametrize("name", CLIENT_BOUNDS)
def test_every_client_bound_has_the_slopes_of_its_values(name: str, drawn: bool, private: bool) -> None:
    known = {*BOUNDS[name].needs, "delta", *(["mc_delta"] if drawn and BOUNDS[name].estimable else [])}
    keys = [key for key in CLIENT if key in known]

    def value(*inputs: Tensor) -> Tensor:
        given = dict(zip(keys, inputs, strict=True))
        return client_bound(name, given, ROWS, PRIVATE if private else FINE)

    agree(value, *(CLIENT[key] for key in keys))
    assert all(bool((slope != 0).any()) for slope in slopes(value, *(CLIENT[key] for key in keys)))


def test_the_weight_of_the_lambda_form_has_slopes_too() -> None:
    given = {key: CLIENT[key] for key in ("risk", "kl", "delta")}
    agree(
        lambda weight: bounds.pbb_lambda(**given, n=ROWS, premises=FINE, weight=weight).value,
        numbers(0.1, 0.5, 1.0, 1.9),
    )


@pytest.mark.law
@pytest.mark.parametrize("name", [name for name in CLIENT_BOUNDS if "risk" in BOUNDS[name].needs])
@pytest.mark.parametrize(("risk", "kl"), [(0.0, 5.0), (0.0, 0.0), (0.2, 0.0), (1.0, 5.0), (1.0, 0.0)])
def test_slopes_at_the_edges_are_those_from_inside_and_never_none(name: str, risk: float, kl: float) -> None:
    """Half a bound's domain lies beyond an edge: differences of one side; infinite ones are large and finite."""
    rest = {key: CLIENT[key][1] for key in ("beta", "delta", "mc_delta")}
    for drawn in (False, True)[: 1 + BOUNDS[name].estimable]:
        given = {key: value for key, value in rest.items() if drawn or key != "mc_delta"}

        def value(risk: Tensor, kl: Tensor, given: Mapping[str, Tensor] = given) -> Tensor:
            return client_bound(name, {**given, "risk": risk, "kl": kl}, torch.tensor(40))

        at, step = (torch.tensor(risk).double(), torch.tensor(kl).double()), 1e-7
        result = slopes(value, *at)
        inward = -step if risk == 1 else step
        grad_kl = (value(at[0], at[1] + step) - value(*at)) / step
        assert result[1].item() == pytest.approx(grad_kl.item(), rel=1e-4, abs=1e-5)
        by_risk = ((value(at[0] + inward, at[1]) - value(*at)) / inward).item()
        if risk == 0 and (drawn or name in STEEP):  # the slope of kl^-1 there is infinite, and so is this one
            assert 10 < by_risk and 100 < result[0].item() < 1e6
        else:
            assert result[0].item() == pytest.approx(by_risk, rel=1e-3, abs=1e-4)
        fixed = {**given, "risk": at[0], "kl": at[1]}
        agree(
            lambda delta, fixed=fixed: client_bound(name, {**fixed, "delta": delta}, torch.tensor(40)),  # type: ignore[misc]
            CLIENT["delta"][1],
        )


SERVER = MappingProxyType(
    {
        "free_energy": numbers(0.1, 0.25, 0.3),
        "log_z": numbers(-3.0),
        "beta": numbers(7.0),
        "kl": numbers(2.0),
        "delta": numbers(0.05),
        "lam": numbers(11.0),
    }
)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("name", SERVER_BOUNDS)
def test_every_server_bound_has_the_slopes_of_its_values(name: str, drawn: bool) -> None:
    known = inspect.signature(BOUNDS[name].function).parameters
    keys = [key for key in SERVER if key in known]
    more: dict[str, Any] = {"monte_carlo": MonteCarlo(50, 0.01)} if drawn and "monte_carlo" in known else {}
    m = torch.tensor([30, 40, 50])

    def value(*inputs: Tensor) -> Tensor:
        given = {key: one if key == "free_energy" else one[0] for key, one in zip(keys, inputs, strict=True)}
        return BOUNDS[name].function(**given, m=m, premises=FINE, **more).value

    agree(value, *(SERVER[key] for key in keys))
    edge = SERVER["kl"] * 0.0
    if "kl" in keys:
        at = [edge if key == "kl" else SERVER[key] for key in keys]
        up = [edge + 1e-7 if key == "kl" else SERVER[key] for key in keys]
        expected = ((value(*up) - value(*at)) / 1e-7).item()
        assert slopes(value, *at)[keys.index("kl")].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", [name for name in SERVER_BOUNDS if "lam" not in BOUNDS[name].needs])
def test_server_bounds_choose_lambda_by_their_arguments_and_say_what_that_costs(name: str) -> None:
    def value(energy: Tensor, beta: Tensor, kl: Tensor, delta: Tensor) -> Tensor:
        return BOUNDS[name].function(energy, beta[0], ROWS[:3], kl[0], delta[0], FINE).value

    agree(value, *(SERVER[key] for key in ("free_energy", "beta", "kl", "delta")))


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("name", [name for name in CLIENT_BOUNDS if BOUNDS[name].poolable])
def test_the_pooled_bound_has_the_slopes_of_its_values(name: str, drawn: bool) -> None:
    def value(risk: Tensor, kl: Tensor, delta: Tensor) -> Tensor:
        draws = MonteCarlo(100, 0.2 * delta[0]) if drawn else None
        return bounds.size_weighted(risk, kl, ROWS, delta[0], FINE, bound=BOUNDS[name], monte_carlo=draws).value

    agree(value, CLIENT["risk"], CLIENT["kl"], CLIENT["delta"][1:2])
    assert all(bool(slope.isfinite().all()) for slope in slopes(value, 0 * CLIENT["risk"], CLIENT["kl"], numbers(0.05)))


# every argument a tensor, all of them of one shape -----------------------------------------------------------------


@pytest.mark.parametrize(("private", "drawn"), [(False, True), (True, False)])
@pytest.mark.parametrize("name", CLIENT_BOUNDS)
def test_tensors_of_any_shape_are_the_loop_over_their_numbers(name: str, private: bool, drawn: bool) -> None:
    premises = dataclasses.replace(PRIVATE if private else FINE, tried=2)
    shapes = {"risk": (4, 1, 1), "kl": (1, 4, 1), "beta": (4, 1, 1), "log_z": (1, 4, 1), "delta": (1, 1, 4)}
    shapes |= {"mc_delta": (1, 1, 4)} if drawn and BOUNDS[name].estimable else {}
    apart = {key: CLIENT[key].reshape(shape) for key, shape in shapes.items()}
    apart["log_z"] = apart["log_z"].clamp_min(-2.0)
    expand = {key: value.expand(4, 4, 4) for key, value in apart.items()}
    n = torch.tensor([50, 60, 70, 4000]).expand(4, 4, 4)
    together = client_bound(name, expand, n, premises)
    with pytest.raises(ShapeError, match=r"must be one number \[\] or one a client, \[.*\] as .* is, got \["):
        client_bound(name, apart, n, premises)
    loop = torch.stack(
        [
            client_bound(name, {key: each[i, j, k].item() for key, each in expand.items()}, int(n[i, j, k]), premises)  # type: ignore[misc, arg-type]
            for i, j, k in torch.cartesian_prod(*[torch.arange(4)] * 3).tolist()[::7]
        ]
    )
    torch.testing.assert_close(together.flatten()[::7], loop, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", [name for name in SERVER_BOUNDS if "free_energy" in BOUNDS[name].needs])
def test_hyper_posteriors_and_deltas_of_any_number_are_the_loop_over_them(name: str) -> None:
    energy = torch.rand(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kl, delta, lam = numbers(0.0, 1.0, 9.0), numbers(0.3, 0.05, 0.001), numbers(2.0, 10.0, 13.0)
    for more in ({}, {"monte_carlo": MonteCarlo(30, 0.2 * delta)}):
        together = BOUNDS[name].function(energy, 7.0, 30, kl, delta, FINE, lam=lam, **more)
        assert together.value.shape == (3,) and ("with probability at least 0.7 " in str(together)) is together.valid
        for k in range(3):
            some = {"monte_carlo": MonteCarlo(30, 0.2 * delta[k].item())} if more else {}
            alone = BOUNDS[name].function(energy[k], 7.0, 30, kl[k], delta[k].item(), FINE, lam=lam[k].item(), **some)
            assert together.value[k].item() == pytest.approx(alone.value.item(), rel=1e-12)


@pytest.mark.parametrize("name", CLIENT_BOUNDS)
def test_deltas_by_client_are_checked_one_by_one_and_come_back_from_a_record(name: str) -> None:
    given = {key: CLIENT[key] for key in ("risk", "kl", "beta", "log_z", "mc_delta")}
    bound, own = BOUNDS[name], {**given, "n": ROWS}
    premises = PRIVATE if bound.private else FINE
    draws = MonteCarlo(300, given["mc_delta"]) if bound.estimable else None
    result = bound.certify(own, CLIENT["delta"], premises, draws)
    again = bounds.from_record(bounds.to_record(result))
    assert torch.equal(again.value, result.value) and str(again) == str(result)
    assert torch.equal(torch.as_tensor(again.delta), CLIENT["delta"])
    torch.testing.assert_close(bounds.trivial_bound(again, 0.9), bounds.trivial_bound(result, 0.9), rtol=0, atol=0)
    for bad in (0.0, 1.0, math.nan, -0.1):
        with pytest.raises(AssumptionError, match="delta must lie strictly between 0 and 1"):
            bound.certify(own, numbers(0.3, 0.05, bad, 0.01), premises, draws)
    if draws:
        with pytest.raises(AssumptionError, match=r"smaller than delta = 0.01, got 0.02"):
            bound.certify(own, CLIENT["delta"], premises, MonteCarlo(9, 0.02))


# every divergence ---------------------------------------------------------------------------------------------------


def softmaxed(function: Function) -> Function:
    """Take weights by their logits, which have no edges and no sum to keep."""
    return lambda first, *rest: function(first.softmax(-1), *(each.softmax(-1) for each in rest[:1]), *rest[1:])


def definite(root: Tensor) -> Tensor:
    return root @ root.mT + 0.5 * torch.eye(root.shape[-1], dtype=torch.float64)


def of_gp(theta: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(5, *size, generator=generator, dtype=torch.float64) for size in ((2,), ()))
    posterior = condition(
        DeepKernelGP(2, (3,), (3,)), theta.expand(2, -1, -1), ClientBatch.pad([(x[:3], y[:3]), (x, y)])
    )
    return divergences.gp_posterior_kl(posterior)


def normal(*size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MEAN, OTHER, WIDE, NARROW = (
    normal(2, 3, seed=1),
    normal(2, 3, seed=2),
    normal(2, 3, seed=3).exp(),
    normal(3, seed=4).exp(),
)
GATES = numbers(0.2, 0.5, 0.9)
CASES: Mapping[str, tuple[Function, tuple[Tensor, ...]]] = MappingProxyType(
    {
        "diagonal_gaussian_kl": (divergences.diagonal_gaussian_kl, (MEAN, WIDE, OTHER, NARROW)),
        "full_gaussian_kl": (
            lambda m, a, o, b: divergences.full_gaussian_kl(m, definite(a), o, definite(b)),
            (MEAN, normal(2, 3, 3, seed=5), OTHER, normal(3, 3, seed=6)),
        ),
        "bernoulli_gaussian_kl": (divergences.bernoulli_gaussian_kl, (MEAN, WIDE, GATES, OTHER, NARROW, GATES.flip(0))),
        "discrete_kl": (softmaxed(divergences.discrete_kl), (MEAN, OTHER[0])),
        "mixture_kl": (
            lambda a, w, d: divergences.mixture_kl(a.softmax(-1), d, w.softmax(-1)),
            (MEAN, OTHER[0], WIDE),
        ),
        "gibbs_weights": (
            lambda r, beta, p: torch.cat(
                [out.reshape(2, -1) for out in divergences.gibbs_weights(r, beta, p.softmax(-1))], 1
            ),
            (WIDE, numbers(3.0, 0.7), OTHER),
        ),
        "binary_kl": (inverses.binary_kl, (GATES, numbers(0.3, 0.5 + 1e-5, 0.1))),
        "kl_inverse_upper": (inverses.kl_inverse_upper, (numbers(0.02, 0.3, 0.5, 0.9), numbers(0.02, 0.1, 0.5, 1e-4))),
        "kl_inverse_lower": (inverses.kl_inverse_lower, (numbers(0.02, 0.3, 0.5, 0.9), numbers(1e-4, 0.1, 0.5, 0.02))),
        "log_excess": (inverses.log_excess, (numbers(-0.9, -0.3, 0.0, 0.2, 0.6, 5.0),)),
        "relative_entropy": (inverses.relative_entropy, (WIDE, NARROW.expand(2, 3))),
    }
)


def test_no_divergence_is_without_a_case() -> None:
    rooms = (divergences, inverses)
    public = {
        name
        for room in rooms
        for name, value in inspect.getmembers(room, inspect.isfunction)
        if value.__module__ == room.__name__ and not name.startswith("_")
    }
    assert public == {*CASES, "gp_posterior_kl"}
    theta = (0.3 * normal(2, DeepKernelGP(2, (3,), (3,)).dim, seed=7)).requires_grad_()
    assert not of_gp(theta).requires_grad  # an error of autograd, and not the slopes of a part


@pytest.mark.parametrize("name", list(CASES))
def test_every_divergence_has_the_slopes_of_its_values(name: str) -> None:
    function, inputs = CASES[name]
    agree(function, *inputs)


@pytest.mark.parametrize("name", ["binary_kl", "kl_inverse_upper", "kl_inverse_lower", "relative_entropy"])
def test_slopes_have_slopes(name: str) -> None:
    function, inputs = CASES[name]
    leaves = tuple(each.clone().requires_grad_() for each in inputs)
    assert gradgradcheck(function, leaves, eps=1e-6, atol=1e-3, rtol=1e-4)


def test_the_inverses_have_the_slopes_that_50_digits_have() -> None:
    """(q, c), dp/dq, dp/dc of the upper inverse."""
    q, c = numbers(0.3, 0.5, 0.05), numbers(0.1, 0.5, 0.042)
    grad_q, grad_c = slopes(bounds.kl_inverse_upper, q, c)
    for k in range(3):
        p = optimize.brentq(
            lambda p, k=k: inverses.binary_kl(q[k], torch.tensor(p, dtype=torch.float64)).item() - c[k].item(),
            q[k].item() + 1e-9,
            1 - 1e-12,
            xtol=1e-15,  # type: ignore[misc]
        )
        exact = p * (1 - p) / (p - q[k].item())
        assert grad_c[k].item() == pytest.approx(exact, rel=1e-9)
        logs = math.log(p * (1 - q[k].item()) / (q[k].item() * (1 - p)))
        assert grad_q[k].item() == pytest.approx(exact * logs, rel=1e-9)
    one = slopes(lambda r, k: bounds.seeger(r, k, 5000, 0.05, FINE).value, numbers(0.05), numbers(200.0))
    assert (one[0].item(), one[1].item()) == (pytest.approx(1.504, abs=2e-3), pytest.approx(2.70e-4, abs=1e-6))


def test_the_inverses_have_slopes_at_their_edges() -> None:
    q, c = numbers(0, 0, 0, 1, 1, 0.3, 0.3), numbers(0.3, 0, math.inf, 0.3, 0, math.inf, 80)
    grad_q, grad_c = slopes(bounds.kl_inverse_upper, q, c)
    torch.testing.assert_close(grad_c, numbers(math.exp(-0.3), 1, 0, 0, 0, 0, 0), rtol=1e-12, atol=1e-30)
    assert grad_q[0] > 500 and grad_q[1:].tolist() == [1, 0, 0, 1, 0, 0]
    mirrored = slopes(bounds.kl_inverse_lower, 1 - q, c)  # 1 - upper(1 - q, c), but for its last bits
    assert mirrored[0][0].item() == pytest.approx(grad_q[0].item()) and mirrored[1][0].item() == pytest.approx(
        -math.exp(-0.3)
    )
    assert mirrored[0][1:5].tolist() == [1, 0, 0, 1] and mirrored[1][1:5].tolist() == [-1, 0, 0, 0]
    steep = slopes(bounds.kl_inverse_upper, numbers(0.3, 0.3), numbers(0.0, 1e-300))
    assert bool(torch.stack(steep).isfinite().all()) and steep[1][0] > steep[1][1] > 1e15
    torch.testing.assert_close(steep[0], numbers(1.0, 1.0), rtol=1e-9, atol=0)


def test_divergences_have_slopes_at_their_edges() -> None:
    """Points without slopes of their own give none to others: no 0 times infinity."""
    zero, mean = numbers(0.0, 0.5), numbers(0.3, 0.1)
    for slope in slopes(bounds.diagonal_gaussian_kl, mean, zero, mean, zero):
        assert bool(slope.isfinite().all())
    known = slopes(bounds.diagonal_gaussian_kl, mean, zero, mean + numbers(0, 1), zero)
    assert known[0].tolist() == [0, -2] and known[1][0] == 0
    gates = slopes(bounds.bernoulli_gaussian_kl, mean, zero, numbers(0.0, 1.0), mean, numbers(1, 1), numbers(0.2, 0.7))
    assert all(bool(slope.isfinite().all()) for slope in (gates[0], *gates[2:]))
    assert gates[2][0] < -500 < 500 < gates[2][1] and gates[0].tolist() == [0, 0]
    weights, prior = numbers(0.0, 0.4, 0.6), numbers(0.2, 0.8, 0.0)
    for slope in slopes(bounds.discrete_kl, weights, numbers(0.2, 0.5, 0.3)):
        assert bool(slope.isfinite().all())
    apart = slopes(lambda a, d: bounds.mixture_kl(a, d), weights, numbers(math.inf, 1.0, 2.0))
    assert apart[1].tolist() == pytest.approx([0.0, 0.4, 0.6]) and bool(apart[0].isfinite().all())
    assert bounds.mixture_kl(weights, numbers(math.inf, 1.0, 2.0)).isfinite()
    risk = numbers(0.1, 0.2, 0.0)  # the best hypothesis has no prior
    q, log_z = bounds.gibbs_weights(risk, 2000.0, prior)
    assert q[2] == 0 and log_z.item() == pytest.approx(-200 + math.log(0.2), rel=1e-12)
    (by_prior,) = slopes(lambda p: bounds.gibbs_weights(risk, 3.0, p)[1], prior)
    raw = (-3.0 * risk).exp()
    expected = raw / (prior @ raw) - 1.0  # of weights that are divided by their sum
    torch.testing.assert_close(by_prior, expected, rtol=1e-12, atol=0)


# descent ------------------------------------------------------------------------------------------------------------


def fitted(parameters: Tensor) -> Tensor:
    """Seeger's bound of N(w, s^2) as the slope of a line through 40 rows, against N(0, 1)."""
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)
    y = 1.5 * x + 0.1 * normal(40, seed=8)
    mean, variance = parameters[0], parameters[1].exp()
    risk = SaturatingSquare(0.5).expected(mean * x, variance * x.square(), y).mean()
    kl = bounds.diagonal_gaussian_kl(mean.reshape(1), variance.reshape(1), numbers(0.0), numbers(1.0))
    premises = dataclasses.replace(FINE, loss=SaturatingSquare(0.5))
    return bounds.seeger(risk, kl, 40, 0.05, premises).value


def descended(objective: Function, *start: float) -> Tensor:
    """Go down the slopes that autograd gives (L-BFGS)."""
    parameters = numbers(*start).requires_grad_()
    search = torch.optim.LBFGS([parameters], max_iter=60, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        value = objective(parameters)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    search.step(closure)
    return parameters.detach()


def test_descent_reaches_the_minimum_that_scipy_finds_without_slopes() -> None:
    options = {"xatol": 1e-5, "fatol": 1e-10}
    result = optimize.minimize(lambda v: fitted(numbers(*v)).item(), (0.3, -1.0), method="Nelder-Mead", options=options)
    reached = descended(fitted, 0.3, -1.0)
    assert reached.tolist() == pytest.approx(result.x.tolist(), abs=1e-3)
    assert fitted(reached).item() == pytest.approx(result.fun, abs=1e-8)


def hinged(w: Tensor) -> Tensor:
    """No training error from w = 1 on; a divergence that grows with w."""
    return bounds.seeger((1 - w).clamp(0.0, 1.0).square(), 4.0 * w.square(), 100, 0.05, FINE).value.sum()


@pytest.mark.parametrize("start", [3.0, 1.0, 0.1])
def test_descent_from_zero_training_error_reaches_the_same_minimum(start: float) -> None:
    result = optimize.minimize_scalar(
        lambda w: hinged(numbers(w)).item(), bounds=(0, 3), method="bounded", options={"xatol": 1e-9}
    )
    reached = descended(hinged, start)
    assert reached.item() == pytest.approx(result.x, abs=1e-5)
    assert hinged(reached).item() == pytest.approx(result.fun, abs=1e-10)
