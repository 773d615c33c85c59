"""Requests of certificates, and their form on a command line."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pacbayes_fl import bounds
from pacbayes_fl.bounds import OWN_BOUNDS, Bound, BoundedLoss, MonteCarlo, UnboundedLoss
from pacbayes_fl.bounds.checks import checked, of_library, whole
from pacbayes_fl.bounds.loss_table import listing as listing
from pacbayes_fl.bounds.loss_table import settings_of
from pacbayes_fl.bounds.table import DEFAULT as DEFAULT
from pacbayes_fl.certificates.fingerprint import fingerprint
from pacbayes_fl.errors import AssumptionError, shown
from pacbayes_fl.plugins.references import reference

Beta = float | Literal["rows", "root"]

Which = Literal["best", "refined"]

_LINE = (
    "certify RUN --bound sub-gamma --loss normal-nll=STD --beta root --variance-factor S2 --scale 0, with S2 at least"
    " E (|y| + 4)^4 / (4 STD^4) in the units of the targets: see `describe normal-nll`"
)


@dataclass(frozen=True)
class Request:
    """A request of a certificate, fixed before the rows of the bound are read.

    Args:
        bound: a name of `bounds.BOUNDS`, a reference such as "mine.py:MY_BOUND", or a record, of a bound on each client
            on its own or on clients on average.
        delta: probability with which a bound may fail, of each client on its own.
        loss: whose risk is bounded; by the task when None: 0-1 of labels, 1 - exp(-e^2) of standardised targets.
        draws: M, hypotheses that estimate a risk without closed form. Where every row can have one of its own, n M
            losses of n rows are independent, and 200 M of them are enough: a group whose clients all have more than 200
            rows takes fewer draws.
        draws_delta: share of delta that the estimate may fail with.
        beta: of the bounds that need one: a number in 1 / unit of the loss, the number of "rows", or its square
            "root"; rows by default of bounds on averages.
        posterior: "best": of each client the one with the smallest bound among that which its rows gave, its prior and
            some between, which bounds for all posteriors allow; "refined": that which its rows gave.
        holdout: share of delta of the hold-out bound on the predictor that was fixed before the rows, which is printed
            beside each line; 0 leaves it out, as a loss without a range does. Both numbers of a line then hold at once
            with probability 1 - delta.
        jointly: the lines of all clients, existing and new, hold at once: they share delta.
        tried: number of configurations compared on the rows of the bound; 1 for no choice.
        smooth: of bounds on a server: standard deviation of a Gaussian around every particle, which a hyper-prior
            without data can be compared with; None takes the particles for the hyper-prior themselves.
        variance_factor: s^2 of "sub-gamma", which is stated and not estimated from rows, in squared units of the loss.
        scale: c of "sub-gamma", stated too, in the unit of the loss.
        later: rows that `update` brought are rows of the bound too. Bounds that hold at all numbers of rows at once
            ("anytime", "holdout-betting") are then one request, however many updates follow.

    Example:
        >>> import torch, pacbayes_fl as fl
        >>> request = fl.Request(bound="catoni", beta="root")
        >>> request.beta_for(torch.tensor([100.0, 400.0])).tolist()  # of clients with 100 and 400 rows
        [10.0, 20.0]
        >>> request.record.needs
        ('risk', 'kl', 'n', 'beta')
    """

    bound: str | Bound = DEFAULT
    delta: float = 0.05
    loss: BoundedLoss | None = None
    draws: int = 1000
    draws_delta: float = 0.2
    beta: Beta | None = None
    posterior: Which = "best"
    holdout: float = 0.5
    jointly: bool = False
    tried: int | None = 1
    smooth: float | None = None
    variance_factor: float | None = None
    scale: float | None = None
    later: bool = False

    def __post_init__(self) -> None:
        """Check the request."""
        known = [each.name for each in bounds.BOUNDS.values() if each.certifiable]
        if isinstance(self.bound, str) and self.bound not in bounds.BOUNDS and self.bound not in OWN_BOUNDS:
            raise AssumptionError(f"bound must be one of {', '.join(known)}, got {self.bound!r}")
        if isinstance(self.loss, str):
            what = f"loss must be a loss, got {shown(self.loss)}"
            raise AssumptionError(what, hint="bounds.loss_named makes one of a name")
        bound = self.record
        if not bound.certifiable:
            what = f"the bound {bound.name!r} needs {', '.join(bound.needs)}, which no run has all of"
            raise AssumptionError(what, hint=bound.unmeasured or f"one of {', '.join(known)}")
        if self.posterior not in get_args(Which):
            raise AssumptionError(f"posterior must be one of {', '.join(get_args(Which))}, got {self.posterior!r}")
        for name in ("jointly", "later"):
            if not isinstance(value := getattr(self, name), bool):
                raise AssumptionError(f"{name} must be True or False, got {shown(value)}")
        self._check_numbers()
        self._check_stated(bound)
        if bound.group is None:
            if self.smooth is not None:
                raise AssumptionError(
                    f"the bound {bound.name!r} has no use for smooth", hint="it is of a server's bound"
                )
            if ("beta" in bound.needs) != (self.beta is not None):
                needs = "has no beta" if self.beta is not None else "needs a beta that was fixed before"
                raise AssumptionError(
                    f"the bound {bound.name!r} {needs}", hint="--beta rows takes n, --beta root its root"
                )

    def _check_stated(self, bound: Bound) -> None:
        """Check that constants are stated where the bound rests on them, and there alone."""
        stated = {name: getattr(self, name) for name in ("variance_factor", "scale")}
        if gaps := [name for name, value in stated.items() if value is None and name in bound.needs]:
            what = (
                f"the bound {bound.name!r} needs {' and '.join(gaps)}, which you state: no row of the bound can show it"
            )
            raise AssumptionError(what, hint=_LINE)
        if idle := [name for name, value in stated.items() if value is not None and name not in bound.needs]:
            raise AssumptionError(f"the bound {bound.name!r} has no use for {', '.join(idle)}", hint="of sub-gamma")
        if not self.ranged and "variance_factor" not in bound.needs:
            what = f"the loss {getattr(self.loss, 'name', '')!r} has no range, which the bound {bound.name!r} needs"
            raise AssumptionError(what, hint=_LINE)

    @property
    def ranged(self) -> bool:
        """Whether the loss has a range."""
        return self.loss is None or not hasattr(self.loss, "high") or math.isfinite(self.loss.high)

    def premised(self, loss: BoundedLoss) -> BoundedLoss:
        """Give the loss that premises name: of one without a range its name alone.

        Args:
            loss: whose risk is bounded.

        Returns:
            The loss.
        """
        return loss if self.ranged else UnboundedLoss(loss.name)

    def stated(self, like: Tensor) -> dict[str, Tensor]:
        """Give the constants that were stated, to each client alike.

        Args:
            like: numbers of the clients [K].

        Returns:
            Each [K], by name; none where none was stated.
        """
        known = {name: getattr(self, name) for name in ("variance_factor", "scale")}
        return {name: torch.full_like(like, float(value)) for name, value in known.items() if value is not None}

    def _check_numbers(self) -> None:
        """Check that numbers are numbers, each in its range."""
        whole("draws", _number("draws", self.draws))
        for name in ("delta", "draws_delta"):
            if not 0 < (value := _number(name, getattr(self, name))) < 1:
                raise AssumptionError(f"{name} must lie strictly between 0 and 1, got {value}")
        if self.tried is not None:
            whole("tried", _number("tried", self.tried))
        if not 0 <= _number("holdout", self.holdout) < 1:
            raise AssumptionError(f"holdout must be at least 0 and below 1, got {self.holdout:g}", hint="0 for none")
        for name in ("beta", "smooth", "variance_factor", "scale"):
            value = getattr(self, name)
            if (name == "beta" and value in ("rows", "root")) or value is None:
                continue
            checked(
                name, _number(name, value, ", 'rows' or 'root'" if name == "beta" else ""), 0.0, strict=name != "scale"
            )

    @property
    def record(self) -> Bound:
        """The record of the bound."""
        return bounds.bound_named(self.bound)

    @property
    def shares(self) -> tuple[float, float]:
        """What the bound and the hold-out bound beside it take of delta: they sum to 1."""
        alone = self.record.fixed or self.record.group is not None or not self.ranged
        beside = 0.0 if alone else self.holdout
        return 1.0 - beside, beside

    @property
    def settings(self) -> dict[str, Any]:
        """Give all that was asked, by name, as JSON can hold it; what users bring also by what it is made of."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "later"}
        file = {}
        if isinstance(self.bound, str) and self.bound not in bounds.BOUNDS:
            result = OWN_BOUNDS.origin(self.bound)
            file = {} if result is None else {"bound_file": str(result.file), "bound_sha256": result.sha256}
        if self.loss is not None and not of_library(self.loss):
            file["loss_sha256"] = fingerprint(self.loss)
        if self.record not in bounds.BOUNDS.values():
            file |= {"record_sha256": fingerprint(self.record), "function_sha256": fingerprint(self.record.function)}
        return own | file | {"bound": self.record.name, "loss": None if self.loss is None else self.loss.name}

    @property
    def asked(self) -> str:
        """Name of the request in file names: the bound and its non-default settings."""
        loss = None if self.loss is None else self.loss.name
        constants = {"factor": self.variance_factor, "scale": self.scale}
        parts = {"beta": self.beta, "smooth": self.smooth, **constants, "loss": loss}
        named = [self.record.name, *(f"{name}-{value}" for name, value in parts.items() if value is not None)]
        text = "-".join([*named, *(["later"] if self.later else [])])
        return re.sub(r"[^\w.]+", "-", text).strip("-")

    def beta_for(self, n: Tensor) -> Tensor:
        """Give beta for clients with n rows.

        Args:
            n: rows [K].

        Returns:
            [K], in 1 / unit of the loss.
        """
        if self.beta is None or self.beta == "rows":
            return n
        return n.sqrt() if self.beta == "root" else torch.full_like(n, float(self.beta))

    def estimate(
        self,
        draws: int | None,
        delta: float,
        risks: Tensor | None = None,
        variances: Tensor | None = None,
        trials: Tensor | None = None,
    ) -> MonteCarlo | None:
        """The cost of an estimated risk.

        Args:
            draws: hypotheses behind it; None for an exact one.
            delta: of the whole certificate.
            risks: of every draw [M] or [K, M], in the unit of the loss, where they are known.
            variances: of every draw's losses [M] or [K, M], in its square.
            trials: independent losses behind it [] or [K], where rows have hypotheses of their own.

        Returns:
            Its share of delta; None where nothing was estimated.
        """
        return None if draws is None else MonteCarlo(draws, self.draws_delta * delta, risks, variances, trials)


def _number(name: str, value: object, others: str = "") -> Any:
    """Refuse what is no number."""
    if not isinstance(value, Real):
        raise AssumptionError(f"{name} must be a number{others}, got {shown(value)}")
    return value


def loss_of(text: str | None) -> BoundedLoss | None:
    """Read a loss, such as "clipped-nll=1e-4"; None stands for that of the task.

    Args:
        text: a name of `bounds.LOSSES` or of an installed package, or a reference such as "mine.py:MyLoss", and its
            first setting.

    Returns:
        The loss.

    Raises:
        AssumptionError: when it is unbounded or unknown, or its setting is out of range.
        StudyError: when a reference leads to no loss.
    """
    if text is None:
        return None
    name, equals, value = (text, "", "") if reference(text) is not None else text.rpartition("=")
    if not equals:
        return bounds.loss_named(text)
    settings, number = settings_of(name), number_of(value)
    if not settings or number is None:
        raise AssumptionError(f"loss {text!r} must be NAME or NAME=NUMBER", hint="such as clipped-square=4")
    return bounds.loss_named(name, **{next(iter(settings)): number})


def beta_of(text: str | None) -> Beta | None:
    """Read a beta: a number, "rows" or "root".

    Args:
        text: as given on a command line.

    Returns:
        The beta; None for None.

    Raises:
        AssumptionError: when it is none of these.
    """
    if text is None:
        return None
    if text == "rows" or text == "root":
        return "rows" if text == "rows" else "root"
    number = number_of(text)
    if number is None or not number > 0:
        raise AssumptionError(f"beta must be a positive number, 'rows' or 'root', got {text!r}")
    return number


def number_of(text: str) -> float | None:
    """Read a number, None where it is none."""
    try:
        return float(text)
    except ValueError:
        return None
