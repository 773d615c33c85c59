"""Laws of every bound, as functions of its record: `check_bound(bound)` tests a user's bound."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck

from pacbayes_fl.bounds.bound import Bound, World
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo, trivial_bound
from pacbayes_fl.bounds.coverage import MOST, WORLDS, Case, coverage, failures_at_any_n
from pacbayes_fl.bounds.losses import LossRange
from pacbayes_fl.bounds.pac_pfl import confidence_factor
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.record import from_record, to_record
from pacbayes_fl.bounds.size_weighted import size_weighted
from pacbayes_fl.errors import AssumptionError, ShapeError

_CLOSE = 1e-9
_ENERGY = (0.9, 1.1, 1.0)  # of three clients, times the risk: their mean is the risk
_POINTS = ((0.1, 2.0, 100, 10.0, 0.05), (0.0, 0.0, 7, 3.0, 0.3), (0.3, 0.4, 5000, 60.0, 0.001))


def premises_of(bound: Bound, loss: LossRange | None = None) -> Premises:
    """Give premises under which a bound is valid.

    Args:
        bound: any.
        loss: whose range the numbers have; [0, 1] when None.

    Returns:
        A prior without data, or a private one where the bound is about those, and an exact Gibbs posterior.
    """
    prior = Provenance("row-level DP", 0.02, rows=50) if bound.private else Provenance("data-free")
    unit = LossRange("loss", 0.0, 1.0) if loss is None else loss
    return Premises(prior, independent=True, posterior="exact Gibbs", drawn_clients=True, loss=unit)


def numbers_of(bound: Bound, risk: float, kl: float, n: float, beta: float, *, width: float = 1.0) -> dict[str, Tensor]:
    """Give all the numbers that a bound needs, of one client or of three clients of an average.

    Args:
        bound: any.
        risk: empirical risk, or average free energy, in [0, 0.9] times the width.
        kl: divergence, in nats.
        n: rows, of each client.
        beta: temperature, in 1 / unit of the loss.
        width: of the loss's range.

    Returns:
        Tensors by name, [] or [3].
    """
    energy = risk * torch.tensor(_ENERGY, dtype=torch.float64)
    lam = 50.0 / width
    log_z = -beta * risk - kl
    if bound.average != "client":
        log_z = -risk / confidence_factor(beta, len(_ENERGY), lam).item()
    values = {
        "tandem_risk": risk,
        "log_ratio": kl,
        "risk": risk,
        "variance": risk * (width - risk),
        "variance_factor": 0.25 * width**2,
        "scale": 0.5 * width,
        "kl": kl,
        "n": n,
        "beta": beta,
        "log_z": log_z,
        "lam": lam,
    }
    result = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    unit = risk / width
    chain = {"shares": [[0.5 + 0.5 * unit, unit, 0.5 * unit]], "gammas": [0.5], "kls": [kl, 0.5 * kl]}
    chain["counts"] = [n, max(1.0, float(n // 2))]
    result |= {name: torch.tensor(value, dtype=torch.float64) for name, value in chain.items()}
    result["losses"] = torch.full((int(n),), float(risk), dtype=torch.float64)
    result |= {"free_energy": energy, "m": torch.full((len(_ENERGY),), float(n), dtype=torch.float64)}
    return {name: result[name] for name in bound.needs}


def check_bound(bound: Bound) -> None:
    """Test a bound: that it covers the truth, and that it is the function that its record says.

    Args:
        bound: of the table, or of one's own.

    Raises:
        AssumptionError: naming the law that it breaks, and where.
    """
    for law in LAWS.values():
        law(bound)


def covers(bound: Bound, cases: Mapping[World, tuple[Case, ...]] | None = None) -> None:
    """Hold with probability 1 - delta in the world that the record states.

    Args:
        bound: any.
        cases: worlds that were drawn before; drawn anew when None.

    Raises:
        AssumptionError: when it fails too often.
    """
    for result in coverage(bound, cases):
        what = f"it fails in {result.failures} of {WORLDS} worlds at delta = 0.05 ({result.what})"
        _require(result.failures <= MOST, bound, "covers", what)


def holds_at_all_n(bound: Bound) -> None:
    """Hold at all numbers of rows at once, with probability 1 - delta, where the record says so.

    Args:
        bound: any.

    Raises:
        AssumptionError: when it fails too often at one of several numbers of rows.
    """
    if bound.anytime:
        failures = failures_at_any_n(bound)
        what = f"at some number of rows it fails in {failures} of {WORLDS} worlds at delta = 0.05"
        _require(failures <= MOST, bound, "holds_at_all_n", what)


def states_itself(bound: Bound) -> None:
    """The docstring states the bounded risk, the formula and the assumptions.

    Args:
        bound: any.

    Raises:
        AssumptionError: when one is missing.
    """
    _require(bool(bound.summary and bound.statement and bound.assumptions), bound, "states_itself", "a line is missing")


def never_rises(bound: Bound) -> None:
    """Grow with the risk and the divergence, and fall with rows and with delta.

    Args:
        bound: any.

    Raises:
        AssumptionError: naming the number that it moves the wrong way with.
    """
    for risk, kl, n, beta, delta in _POINTS:
        base = _value(bound, risk, kl, n, beta, delta)
        moves = {
            "risk": _value(bound, risk + 0.05, kl, n, beta, delta),
            "kl": _value(bound, risk, kl + 0.5, n, beta, delta),
            "n": _value(bound, risk, kl, max(1, n // 2), beta, delta),
        }
        if bound.group is None or kl == 0:  # a lambda of its own may be the best at another delta
            moves["delta"] = _value(bound, risk, kl, n, beta, 0.5 * delta)
        for name, value in moves.items():
            what = f"with a worse {name} it falls from {base:g} to {value:g}"
            _require(value >= base * (1 - 1e-12), bound, "never_rises", what)


def has_the_unit_of_the_loss(bound: Bound) -> None:
    """Scale with the loss; bounds as printed may not.

    Args:
        bound: any.

    Raises:
        AssumptionError: when it does not.
    """
    if bound.as_printed:
        return
    for risk, kl, n, beta, delta in _POINTS:
        for width in (0.01, 50.0):
            wide = premises_of(bound, LossRange("wide loss", 0.0, width))
            numbers = numbers_of(bound, width * risk, kl, n, beta / width, width=width)
            scaled = _certify(bound, numbers, delta, wide).value.item()
            unit = _value(bound, risk, kl, n, beta, delta)
            what = f"{unit:g} of a loss in [0, 1] is {scaled:g} of one in [0, {width:g}]"
            _require(math.isclose(scaled, width * unit, rel_tol=_CLOSE), bound, "has_the_unit_of_the_loss", what)


def has_slopes(bound: Bound) -> None:
    """Have the slopes of its values in every number that it needs, and in delta (`torch.autograd.gradcheck`).

    Args:
        bound: any.

    Raises:
        AssumptionError: when autograd and finite differences disagree.
    """
    numbers = numbers_of(bound, 0.2, 1.5, 60, 8.0)
    moving = [name for name in bound.needs if name not in ("n", "m", "counts")]
    premises = premises_of(bound)

    def value(*leaves: Tensor) -> Tensor:
        given = {**numbers, **dict(zip(moving, leaves, strict=False))}
        return _certify(bound, given, leaves[-1], premises).value

    leaves = [*(numbers[name] for name in moving), torch.tensor(0.05, dtype=torch.float64)]
    try:
        gradcheck(value, [leaf.clone().requires_grad_() for leaf in leaves], eps=1e-7, atol=1e-4, rtol=1e-4)
    except RuntimeError as error:
        raise _broken(bound, "has_slopes", str(error)) from error


def is_rebuilt(bound: Bound) -> None:
    """Come back from its terms and through JSON.

    Args:
        bound: any.

    Raises:
        AssumptionError: when another value comes back.
    """
    for risk, kl, n, beta, delta in _POINTS:
        certificate = _certify(bound, numbers_of(bound, risk, kl, n, beta), delta, premises_of(bound))
        again = from_record(json.loads(json.dumps(to_record(certificate, bound), allow_nan=False)), bound)
        same = torch.allclose(again.recompute(), certificate.value, rtol=1e-12, atol=0.0)
        _require(same, bound, "is_rebuilt", f"{again.recompute()} of the terms is not {certificate.value}")
        trivial_bound(certificate, 0.5)


def bounds_clients_one_by_one(bound: Bound) -> None:
    """Bound several clients, or several hyper-posteriors, as a loop over them does.

    Args:
        bound: any.

    Raises:
        AssumptionError: when the values differ.
    """
    several = [numbers_of(bound, risk, kl, n, 10.0) for risk, kl, n in ((0.1, 2.0, 50), (0.2, 0.0, 50), (0.3, 5.0, 50))]
    fixed = ("n", "m", "beta", "lam") if bound.group is not None else ()
    stacked = {
        name: several[0][name] if name in fixed else torch.stack([one[name] for one in several]) for name in bound.needs
    }
    together = _certify(bound, stacked, 0.05, premises_of(bound)).value
    alone = torch.stack([_certify(bound, one, 0.05, premises_of(bound)).value for one in several])
    same = together.shape == alone.shape and torch.allclose(together, alone, rtol=1e-12, atol=0.0)
    _require(same, bound, "bounds_clients_one_by_one", f"{together.tolist()} together, {alone.tolist()} alone")


def takes_one_shape(bound: Bound) -> None:
    """Refuse numbers that are neither one nor one a client, naming them: of two shapes broadcasting would make a third.

    Args:
        bound: any.

    Raises:
        AssumptionError: naming the number that it takes.
    """
    fixed = ("n", "m", "beta") if bound.group is not None else ()
    one, premises = numbers_of(bound, 0.1, 2.0, 50, 10.0), premises_of(bound)
    several = {name: each if name in fixed else torch.stack([each] * len(_ENERGY)) for name, each in one.items()}
    delta = torch.full((len(_ENERGY),), 0.05, dtype=torch.float64)
    _certify(bound, several, delta, premises)
    for name in (*bound.needs, "delta"):
        number = torch.tensor(0.05, dtype=torch.float64) if name == "delta" else one[name]
        two = torch.stack([number.flatten()[0] if name in fixed else number] * 2)
        alone = name == "m" and "free_energy" not in bound.needs  # says itself how many clients there are
        for wrong in (two.unsqueeze(1), *(() if alone else (two,))):
            given = {**several, "delta": delta} | {name: wrong}
            try:
                _certify(bound, given, given.pop("delta"), premises)
            except ShapeError as error:
                if name in str(error):
                    continue
            what = f"{name} {list(wrong.shape)} beside numbers of {len(_ENERGY)} clients is not refused by its name"
            raise _broken(bound, "takes_one_shape", what)


def pays_for_estimates(bound: Bound) -> None:
    """Cost more where the risk was estimated by draws, and refuse them where nothing is paid for them.

    Args:
        bound: any.

    Raises:
        AssumptionError: when draws are free.
    """
    numbers, premises = numbers_of(bound, 0.2, 1.0, 100, 10.0), premises_of(bound)
    if not bound.estimable:
        return
    exact = _certify(bound, numbers, 0.04, premises).value
    estimated = _certify(bound, numbers, 0.05, premises, MonteCarlo(500, 0.01)).value
    _require(bool((estimated > exact).all()), bound, "pays_for_estimates", f"{estimated} with draws, {exact} without")


def refuses_what_it_cannot_bound(bound: Bound) -> None:
    """Raise where no number can be formed, and give reasons where a premise is broken.

    Args:
        bound: any.

    Raises:
        AssumptionError: when it lets something pass.
    """
    numbers, premises = numbers_of(bound, 0.2, 1.0, 100, 10.0), premises_of(bound)
    for name in numbers:
        for bad in (math.nan, math.inf):
            try:
                _certify(bound, {**numbers, name: torch.full_like(numbers[name], bad)}, 0.05, premises)
            except AssumptionError:
                continue
            raise _broken(bound, "refuses_what_it_cannot_bound", f"{name} = {bad} passes")
    for change in ({"independent": False}, {"tried": None}):
        broken = _certify(bound, numbers, 0.05, replace(premises, **change))
        _require(not broken.valid, bound, "refuses_what_it_cannot_bound", f"it is valid with {change}")


def pools_as_it_states(bound: Bound) -> None:
    """Sum rows and divergences at pooled rows where it is poolable, and refuse them where it is not.

    Args:
        bound: any.

    Raises:
        AssumptionError: when it does otherwise.
    """
    risk, kl, n = (torch.tensor(each, dtype=torch.float64) for each in ((0.1, 0.3), (1.0, 3.0), (50.0, 150.0)))
    if not bound.poolable:
        try:
            size_weighted(risk, kl, n, 0.05, premises_of(bound), bound=bound)
        except AssumptionError:
            return
        raise _broken(bound, "pools_as_it_states", "it is not poolable, and `pooled` takes it")
    got = size_weighted(risk, kl, n, 0.05, premises_of(bound), bound=bound).value.item()
    one = _value(bound, 0.25, 4.0, 200, 1.0, 0.05)
    _require(math.isclose(got, one, rel_tol=1e-12), bound, "pools_as_it_states", f"{got:g} is not {one:g}")


LAWS: Mapping[str, Callable[[Bound], None]] = MappingProxyType(
    {
        law.__name__: law
        for law in (
            states_itself,
            covers,
            holds_at_all_n,
            never_rises,
            has_the_unit_of_the_loss,
            has_slopes,
            is_rebuilt,
            bounds_clients_one_by_one,
            takes_one_shape,
            pays_for_estimates,
            refuses_what_it_cannot_bound,
            pools_as_it_states,
        )
    }
)
"""Every law by name."""


def _certify(
    bound: Bound, numbers: Mapping[str, Any], delta: Any, premises: Premises, monte_carlo: MonteCarlo | None = None
) -> Certificate:
    return bound.certify(numbers, delta, premises, monte_carlo, **bound.example)


def _value(bound: Bound, risk: float, kl: float, n: float, beta: float, delta: float) -> float:
    return _certify(bound, numbers_of(bound, risk, kl, n, beta), delta, premises_of(bound)).value.item()


def _require(holds: bool, bound: Bound, law: str, what: str) -> None:
    if not holds:
        raise _broken(bound, law, what)


def _broken(bound: Bound, law: str, what: str) -> AssumptionError:
    return AssumptionError(f"the bound {bound.name!r} breaks the law {law}: {what}", hint=f"see bounds.laws.{law}")
