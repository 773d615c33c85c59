"""Bounds as training objectives: differentiable, of the same formulas as their certificates."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal

import torch
from torch import Tensor

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo, shared_terms
from pacbayes_fl.bounds.checks import Number
from pacbayes_fl.bounds.losses import BoundedLoss
from pacbayes_fl.bounds.premises import Premises
from pacbayes_fl.bounds.table import bound_named
from pacbayes_fl.errors import AssumptionError

Trainable = Literal["pbb-quadratic", "pbb-lambda", "seeger", "mcallester", "catoni"]
"""Bounds of the table that a method's clients can descend; an option's choices, which is why they are spelled out."""

QUADRATIC: Final = "pbb-quadratic"
"""The one that is descended where none is asked for: f_quad of PAC-Bayes with Backprop (Perez-Ortiz et al. 2021)."""


@dataclass(frozen=True, eq=False)
class Objective:
    """A bound on a client as a function of what training moves: the empirical risk and the KL divergence.

    Args:
        bound: whose value it is.
        n: rows of the bound [] or [K], fixed.
        delta: probability with which the bound may fail, [] or [K].
        premises: of the certificate that the result will have; its loss is the one that is trained.
        options: further arguments of the bound, such as beta or weight, fixed before the rows are seen.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import BOUNDS, Objective, Premises, Provenance
        >>> bound = Objective(BOUNDS["mcallester"], 1000, 0.05, Premises(Provenance("split"), independent=True))
        >>> risk, kl = torch.tensor(0.1, requires_grad=True), torch.tensor(5.0, requires_grad=True)
        >>> bound(risk, kl).backward()
        >>> risk.grad.item(), bool(kl.grad > 0)  # the bound is the risk and what a root of the divergence adds
        (1.0, True)
    """

    bound: Bound
    n: Number
    delta: Number
    premises: Premises
    options: Mapping[str, Number] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What its certificate will assume beside the numbers."""
        return self.bound.assumptions

    @property
    def broken(self) -> tuple[str, ...]:
        """Why its certificate will not be valid, however training ends; empty where nothing stands against it."""
        return self.premises.broken()

    def __call__(self, risk: Tensor, kl: Tensor) -> Tensor:
        """Give the bound, with slopes in both.

        Args:
            risk: empirical risk of the bounded training loss [] or [K], in its unit.
            kl: KL divergence of the posterior from the prior [] or [K], in nats.

        Returns:
            [] or [K], in the unit of the loss, float64.

        Raises:
            AssumptionError: when the risk is outside of the loss's range, the divergence negative, or one no number.
        """
        return self.certify(risk, kl).value

    def certify(
        self,
        risk: Number,
        kl: Number,
        *,
        loss: BoundedLoss | None = None,
        monte_carlo: MonteCarlo | None = None,
    ) -> Certificate:
        """Certify what was trained, by the same formula and under the same premises.

        Args:
            risk: empirical risk of Q on the rows of the bound [] or [K], in the unit of the loss.
            kl: KL(Q || P) [] or [K], in nats.
            loss: another one than that which was trained, such as the 0-1 loss whose surrogate it was; a temperature of
                the bound is in units of the trained one.
            monte_carlo: how the risk was estimated, if it was.

        Returns:
            The certificate.

        Raises:
            AssumptionError: as the bound does.
        """
        premises = self.premises if loss is None else replace(self.premises, loss=loss)
        numbers = {"risk": risk, "kl": kl, "n": self.n}
        return self.bound.certify(numbers, self.delta, premises, monte_carlo, **self.options)

    def slopes(self, risk: Tensor, kl: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Give the bound and how fast it grows, for training that brings gradients of its own: unchecked.

        No number is read from its device, but by the kl inverse, and what is no number stays at its client.

        Args:
            risk: empirical risk [] or [K], in the unit of the loss.
            kl: divergence [] or [K], in nats.

        Returns:
            The bound, its slope in the risk and that in the divergence, each [] or [K], float64, without a graph.
        """
        with torch.enable_grad():
            fine = risk.isfinite() & kl.isfinite()
            risk, kl = (torch.where(fine, each.detach().double(), 0.0).requires_grad_() for each in (risk, kl))
            given = {**shared_terms(self.premises, {"bound": self.delta}), "n": self.n, **self.options}
            device = risk.device
            terms = {name: torch.as_tensor(each, dtype=torch.float64, device=device) for name, each in given.items()}
            parts = self.bound.formula({"risk": risk, "kl": kl, **terms}).values()
            value = terms["factor"] * torch.stack(torch.broadcast_tensors(*parts)).sum(0)
            by_risk, by_kl = torch.autograd.grad(value.sum(), (risk, kl))
        value, by_risk, by_kl = (torch.where(fine, each.detach(), torch.nan) for each in (value, by_risk, by_kl))
        return value, by_risk, by_kl


def objective(
    bound: str | Bound,
    *,
    n: Number,
    delta: Number,
    premises: Premises,
    beta: Number | None = None,
    weight: Number | None = None,
) -> Objective:
    """Make a bound on clients a training objective (PAC-Bayes with Backprop: Perez-Ortiz et al. 2021, section 6).

    "pbb-quadratic" is their f_quad; "pbb-lambda" their f_lambda, with the best lambda at every step unless `weight` is
    one; "mcallester" their f_classic, with Maurer's constant; "seeger" the kl inverse itself, with slopes by the
    implicit function theorem, which are 0 where it has reached 1; "catoni" the exact form at a beta fixed before. Any
    other bound of a risk and a divergence will do too, also one's own. The value is that of the certificate: the
    formula stands in the table of bounds and nowhere else.

    Args:
        bound: a name of `BOUNDS`, a reference such as "mine.py:MY_BOUND", or a record.
        n: rows of the bound [] or [K], all of them also where steps are taken on minibatches.
        delta: probability with which the certificate may fail, [] or [K].
        premises: of that certificate. The loss is the one that is trained, which must be bounded: for labels
            `ClippedNLL`, since the 0-1 loss has no slope. Where the rows of the bound will choose among results of
            several trainings, `tried` is their number.
        beta: of bounds at a temperature, in 1 / unit of the loss.
        weight: lambda of "pbb-lambda", strictly between 0 and 2.

    Returns:
        The objective, a function of risk and divergence.

    Raises:
        AssumptionError: when the bound is of other numbers, or misses its temperature or has none.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import ClippedNLL, Premises, Provenance, ZeroOne, objective
        >>> premises = Premises(Provenance("split"), independent=True, loss=ClippedNLL())
        >>> train = objective("pbb-quadratic", n=125, delta=0.05, premises=premises)
        >>> risk, kl = torch.tensor(0.02, requires_grad=True), torch.tensor(3.0, requires_grad=True)
        >>> train(risk, kl).backward()
        >>> f"{risk.grad:.2f} {kl.grad:.4f}"
        '1.80 0.0162'
        >>> train.certify(0.05, 3.0, loss=ZeroOne()).valid
        True
    """
    record = bound_named(bound)
    given = {"beta": beta, "weight": weight}
    options = {name: value for name, value in given.items() if value is not None}
    if not {"risk", "kl"} <= set(record.needs) <= {"risk", "kl", "n", "beta"}:
        what = f"the bound {record.name!r} needs {', '.join(record.needs)}"
        raise AssumptionError(f"an objective is a function of a client's risk and kl, and {what}", hint=QUADRATIC)
    if ("beta" in record.needs) != (beta is not None):
        needs = "has no beta" if beta is not None else "needs a beta, fixed before the rows are seen"
        raise AssumptionError(f"the bound {record.name!r} {needs}")
    if weight is not None and "weight" not in inspect.signature(record.function).parameters:
        raise AssumptionError(f"the bound {record.name!r} has no weight", hint="it is lambda of 'pbb-lambda'")
    result = Objective(record, n, delta, premises, MappingProxyType(options))
    result.certify(premises.loss.low, 0.0)  # whatever is wrong is said before training
    return result
