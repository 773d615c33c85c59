"""Hold-out bounds: on the true risk of one predictor that was fixed before the rows of the bound were seen.

Nothing is paid for a posterior: there is one hypothesis, whatever it is made of - averaged predictions, a vote, a point
estimate - as long as none of the rows fixed it. That is what a run's split leaves for the personal models that it
deploys. Notation: L^ the mean loss on n rows, a loss with values in [a, b], R = b - a. Each bound holds with
probability at least 1 - delta over the rows. Who reads several of them for the same rows, or one of them beside a
PAC-Bayes bound, shares delta between them: they are different events.

A predictor that was released with differential privacy from the same rows pays as a prior does (`costs`): to be fixed
means to be a function of what was released.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.bounds.betting import betting_upper, counted
from pacbayes_fl.bounds.binomial import binomial_upper
from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, Formula, Terms, certify
from pacbayes_fl.bounds.checks import Number, checked, counts_errors, require_alike, whole
from pacbayes_fl.bounds.client import confidence, in_units, unit_risk
from pacbayes_fl.bounds.costs import unit_of
from pacbayes_fl.bounds.kl_inverse import kl_inverse_upper
from pacbayes_fl.bounds.losses import BoundedLoss
from pacbayes_fl.bounds.premises import FIXED, Premises, as_premises
from pacbayes_fl.errors import AssumptionError, ShapeError

_INNER: Final = MappingProxyType({"losses": 1})
_WHOLE = 1e-6  # by which a share of errors times n may miss a whole number
_OUTWARDS = 1e-9  # errors that are added to it: more than their share, in float64, can be wrong by


def holdout_binomial(risk: Number, n: Number, delta: Number, premises: Premises) -> Certificate:
    """Bound the error rate of a fixed predictor by the binomial tail (Clopper and Pearson 1934; Langford 2005).

    L <= max {p : P[Bin(n, p) <= n L^] >= delta} for the 0-1 loss

    Why it holds: n L^ is binomial, so that P[Bin(n, L) <= n L^] < delta has probability below delta. It is exact: no
    bound by n L^ that holds for every L is smaller.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, holdout_binomial
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> round(holdout_binomial(0.0, n=100, delta=0.05, premises=premises).value.item(), 4)  # 1 - 0.05^(1 / 100)
        0.0295
    """
    reasons: tuple[str, ...] = ()
    rows, share = whole("n", n), checked("risk", risk, as_premises(premises).loss.low, premises.loss.high)
    require_alike({"risk": share, "n": rows})
    if isinstance(risk, Tensor) and risk.dtype != torch.float64:  # a share of errors that was rounded, maybe down
        share = (share * (1.0 + torch.finfo(torch.float32).eps)).clamp_max(premises.loss.high)
    if not counts_errors(premises.loss):
        reasons = (f"errors are counted, and {premises.loss.name} is no 0-1 loss (holdout-betting is for those)",)
    elif not bool(whole_errors(share, rows).all()):
        reasons = ("the risk times n is no whole number of errors: it is not that of one fixed predictor on n rows",)
    else:  # of a share that was rounded down the errors are those it stands for
        share = share + ((share * rows).round() / rows - share).clamp_min(0.0).detach()
    return _of_fixed("hold-out, binomial tail", _binomial, {"risk": share, "n": rows}, delta, premises, reasons)


def whole_errors(risk: Tensor, n: Tensor) -> Tensor:
    """Say where a share of errors can be that of one predictor: n of its rows have a whole number of them.

    Args:
        risk: share of errors [*].
        n: rows [*].

    Returns:
        bool [*].
    """
    errors = risk * n
    return (errors - errors.round()).abs() <= _WHOLE * errors.clamp_min(1.0)


def _binomial(terms: Terms) -> dict[str, Tensor]:
    errors = torch.minimum(unit_risk(terms) * terms["n"] + _OUTWARDS, terms["n"])
    return {"bound": in_units(binomial_upper(errors, terms["n"], (-confidence(terms)).exp()), terms)}


HOLDOUT_BINOMIAL = Bound(
    name="holdout-binomial",
    function=holdout_binomial,
    formula=_binomial,
    needs=("risk", "n"),
    poolable=False,
    world="fixed predictor",
    fixed=True,
    counts=True,
)


def holdout_betting(
    losses: Tensor, delta: Number, premises: Premises, *, rows: Number | None = None, doubtful: Number = 0
) -> Certificate:
    """Bound the risk of a fixed predictor by betting against it (after Waudby-Smith and Ramdas 2024; proved here).

    L <= a + R max {m : mean_g prod_i (1 + g (m - x_i) / (1 - m)) <= 1 / delta}, x_i = (l_i - a) / R, bets g in (0, 1)

    The losses of all rows enter, so that little variance makes it small; for the 0-1 loss it is all but the kl inverse.
    It holds at all n at once: rows may keep arriving, in an order that does not depend on their losses. See `betting`.

    Args:
        losses: of a client's rows [N] or [K, N], in the unit of the loss.
        delta: probability with which it may fail, [] or [K].
        premises: of the predictor, the rows and the loss.
        rows: how many of the losses count, from the first on [] or [K]; all when None.
        doubtful: of those that follow, how many may be copies of others, or rows that fixed the predictor [] or [K]: a
            bound by whichever of them are own draws is no larger.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when losses are out of range or fewer than rows.
        ShapeError: when there is none, or rows and doubtful are not of the same clients as the losses.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import LossRange, Premises, Provenance, holdout_betting
        >>> premises = Premises(Provenance("split"), independent=True, loss=LossRange("cost", 0.0, 1.0))
        >>> steady, wild = torch.full((200,), 0.5), torch.tensor([0.0, 1.0] * 100)
        >>> [round(holdout_betting(losses, 0.05, premises).value.item(), 2) for losses in (steady, wild)]
        [0.51, 0.61]
    """
    low, high = as_premises(premises).loss.low, premises.loss.high
    values = checked("losses", losses, low, high)
    if values.dim() == 0 or values.shape[-1] == 0:
        raise ShapeError(f"losses must be [N] or [K, N] with at least one row, got {list(values.shape)}")
    count = whole("rows", values.shape[-1] if rows is None else rows).to(values.device)
    more = checked("doubtful", doubtful, 0.0).to(values.device)
    shape = require_alike({"losses": values, "rows": count, "doubtful": more}, _INNER)
    values, count, more = values.expand(*shape, -1), count.expand(shape), more.expand(shape)
    if bool((wrong := count + more > values.shape[-1]).any()):
        got = f"{(count + more)[wrong].flatten()[0]:g}"
        raise AssumptionError(f"rows must be at most {values.shape[-1]}, the losses given, got {got}")
    at = torch.arange(values.shape[-1], device=values.device)
    values = torch.where(at < (count + more).unsqueeze(-1), values, low)
    mean = low + torch.where(at < count.unsqueeze(-1), values - low, 0.0).sum(-1) / count
    terms = {"losses": values, "risk": mean, "n": count, "doubtful": more}
    return _of_fixed("hold-out, betting", _betting, terms, delta, premises)


def _betting(terms: Terms) -> dict[str, Tensor]:
    unit = unit_of(terms["losses"], terms)
    at, sure = torch.arange(unit.shape[-1], device=unit.device), terms["n"].unsqueeze(-1)
    counts = (at < sure + terms["doubtful"].unsqueeze(-1)).double()
    doubtful = at >= sure if bool(terms["doubtful"].any()) else None
    if doubtful is None:
        unit, counts = counted(unit, counts)
    return {"bound": in_units(betting_upper(unit, confidence(terms), counts, doubtful), terms)}


HOLDOUT_BETTING = Bound(
    name="holdout-betting",
    function=holdout_betting,
    formula=_betting,
    needs=("losses",),
    poolable=False,
    anytime=True,
    world="fixed predictor",
    fixed=True,
)


def holdout_kl(risk: Number, n: Number, delta: Number, premises: Premises) -> Certificate:
    """Bound the risk of a fixed predictor by the inverse of the binary KL divergence (Hoeffding 1963, Theorem 1).

    L <= a + R kl^-1((L^ - a) / R, ln(1 / delta) / n)

    Why it holds: the mean of n independent losses in [0, 1] is below q < L with probability at most exp(-n kl(q || L)).

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, holdout_kl
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> round(holdout_kl(0.0, n=100, delta=0.05, premises=premises).value.item(), 4)  # 1 - 0.05^(1 / 100)
        0.0295
    """
    return _of_risk("hold-out, kl inverse", _kl, risk, n, delta, premises)


def _kl(terms: Terms) -> dict[str, Tensor]:
    return {"bound": in_units(kl_inverse_upper(unit_risk(terms), confidence(terms) / terms["n"]), terms)}


HOLDOUT_KL = Bound(
    name="holdout-kl",
    function=holdout_kl,
    formula=_kl,
    needs=("risk", "n"),
    poolable=False,
    world="fixed predictor",
    fixed=True,
)


def holdout_chernoff(risk: Number, n: Number, delta: Number, premises: Premises) -> Certificate:
    """Bound the risk of a fixed predictor by the lower tail of Chernoff's bound, to compare (proved here).

    L <= L^ + c + sqrt(c^2 + 2 L^ c) for a loss in [0, 1],  c = ln(1 / delta) / n

    It is the kl inverse with kl(q || p) >= (p - q)^2 / (2 p), q <= p, in place of kl: as functions of q both are 0 and
    flat at q = p, and the second derivative of kl, 1 / (q (1 - q)), is at least 1 / p below. For sums of coins it is
    the multiplicative form exp(-n p e^2 / 2) of P[q <= (1 - e) p].
    """
    return _of_risk("hold-out, Chernoff", _chernoff, risk, n, delta, premises)


def _chernoff(terms: Terms) -> dict[str, Tensor]:
    unit, share = unit_risk(terms), confidence(terms) / terms["n"]
    return {"bound": in_units(unit + share + (share.square() + 2.0 * unit * share).sqrt(), terms)}


HOLDOUT_CHERNOFF = Bound(
    name="holdout-chernoff",
    function=holdout_chernoff,
    formula=_chernoff,
    needs=("risk", "n"),
    poolable=False,
    world="fixed predictor",
    fixed=True,
)


def holdout_hoeffding(risk: Number, n: Number, delta: Number, premises: Premises) -> Certificate:
    """Bound the risk of a fixed predictor by Hoeffding's inequality, to compare (Hoeffding 1963, Theorem 2).

    L <= L^ + R sqrt(ln(1 / delta) / (2 n))
    """
    return _of_risk("hold-out, Hoeffding", _hoeffding, risk, n, delta, premises)


def _hoeffding(terms: Terms) -> dict[str, Tensor]:
    root = (confidence(terms) / (2.0 * terms["n"])).sqrt()
    return {"risk": in_units(unit_risk(terms), terms), "confidence": (terms["high"] - terms["low"]) * root}


HOLDOUT_HOEFFDING = Bound(
    name="holdout-hoeffding",
    function=holdout_hoeffding,
    formula=_hoeffding,
    needs=("risk", "n"),
    poolable=False,
    world="fixed predictor",
    fixed=True,
)


def holdout_for(loss: BoundedLoss) -> Bound:
    """The hold-out bound that is printed beside others.

    Args:
        loss: whose risk is bounded.

    Returns:
        The binomial tail for the 0-1 loss, else betting.
    """
    return HOLDOUT_BINOMIAL if counts_errors(loss) else HOLDOUT_BETTING


def of_losses(
    bound: Bound, losses: Tensor, rows: Tensor, doubtful: Tensor, delta: Number, premises: Premises
) -> Certificate:
    """Bound fixed predictors by their losses; rows that may be copies count where they make the bound larger.

    A bound that counts errors grows with every further error; betting takes the worst of all choices itself.

    Args:
        bound: that of `holdout_for`, or another that counts errors or takes losses.
        losses: of a client's rows [N] or [K, N], in the unit of the loss.
        rows: how many of them count, from the first on [] or [K].
        doubtful: how many of those that follow may [] or [K].
        delta: probability with which it may fail, [] or [K].
        premises: of the predictor, the rows and the loss.

    Returns:
        The certificate.
    """
    if not bound.counts:
        return bound.certify({"losses": losses}, delta, premises, rows=rows, doubtful=doubtful)
    at, low = torch.arange(losses.shape[-1], device=losses.device), premises.loss.low
    sure, known = (at < count.unsqueeze(-1) for count in (rows, rows + doubtful))
    counted = sure | (known & (losses > low))
    n = counted.sum(-1).double()
    risk = low + torch.where(counted, losses - low, 0.0).sum(-1) / n
    return bound.certify({"risk": risk, "n": n}, delta, premises)


def _of_risk(theorem: str, formula: Formula, risk: Number, n: Number, delta: Number, premises: Premises) -> Certificate:
    terms = {"risk": checked("risk", risk, as_premises(premises).loss.low, premises.loss.high), "n": whole("n", n)}
    return _of_fixed(theorem, formula, terms, delta, premises)


def _of_fixed(
    theorem: str,
    formula: Formula,
    terms: dict[str, Tensor],
    delta: Number,
    premises: Premises,
    reasons: tuple[str, ...] = (),
) -> Certificate:
    if premises.average != "client":
        raise AssumptionError(
            f"a hold-out bound is on one client's predictor, not on {premises.average!r}",
            hint="pool rows of one distribution by hand: they are then one client's",
        )
    said = replace(premises, predictor=FIXED)
    return certify(theorem, formula, terms, delta, said, reasons=reasons, inner=_INNER)
