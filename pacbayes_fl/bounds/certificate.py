"""A certificate: a bound on a true risk, with all that it rests on.

A number can always be computed from numbers; whether it bounds anything depends on where the prior came from, how the
rows were drawn and what was chosen by looking at them. A certificate carries these premises, and one whose premises are
broken or unknown prints the reasons in place of its value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from pacbayes_fl.bounds import latex
from pacbayes_fl.bounds.betting import grouped
from pacbayes_fl.bounds.checks import (
    NO_INNER,
    Number,
    as_numbers,
    checked,
    probability,
    require_alike,
    require_mean,
    whole,
)
from pacbayes_fl.bounds.losses import require_bounded
from pacbayes_fl.bounds.plain import plain, premises_record, renamed
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.errors import AssumptionError, ShapeError, kinds_checked
from pacbayes_fl.files import JsonTable
from pacbayes_fl.names import as_html
from pacbayes_fl.results.certificates import rounded_up

Terms = Mapping[str, Tensor]
Formula = Callable[[Terms], Mapping[str, Tensor]]
"""Turns terms into the named parts that sum to the bound."""


@dataclass(frozen=True)
class MonteCarlo:
    """A number that was estimated by independent draws from the posterior.

    It is an empirical risk, or, for draws of priors from a hyper-posterior, an average of clients' free energies; of
    one posterior, though the bound itself holds for all: the smallest of several certificates needs `Premises.tried`.

    Args:
        draws: number of draws, M.
        delta: probability with which the estimate may mislead, taken from the certificate's delta, [] or [K].
        risks: of every draw [M] or [K, M], in the unit of the loss, whose mean the risk is: what is paid follows from
            how little they differ (`costs.drawn_risk`). None where the mean alone is known. Another risk is refused.
        trials: independent losses whose mean the risk is, [] or [K]: M n where each of n rows has a hypothesis of its
            own in every draw. None where a draw is one hypothesis that is evaluated on all rows. A variance is always
            that of draws.
        variances: of every draw's losses over the rows [M] or [K, M], in the squared unit of the loss, for bounds by
            the variance, which is their mean: of draws that are one hypothesis for all rows. None where the mean alone
            is known.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, MonteCarlo, seeger
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> draws = MonteCarlo(1_000, delta=0.01)
        >>> seeger(0.03, 500.0, 30_000, 0.035, premises, monte_carlo=draws).delta_split
        mappingproxy({'bound': 0.025, 'Monte Carlo': 0.01})
    """

    draws: int
    delta: Number
    risks: Tensor | None = None
    variances: Tensor | None = None
    trials: Number | None = None

    def __post_init__(self) -> None:
        """Check the draws; delta is checked with the certificate's."""
        whole("draws", self.draws)
        if self.trials is not None and bool((whole("trials", self.trials) < self.draws).any()):
            raise AssumptionError(f"trials must be at least the {self.draws} draws, got {self.trials}")
        for name, each in (("risks", self.risks), ("variances", self.variances)):
            if each is None:
                continue
            numbers = each if isinstance(each, Tensor) else as_numbers(name, each)
            object.__setattr__(self, name, numbers)
            if numbers.shape[-1:] != (self.draws,):
                what = f"the {name} of {self.draws} draws must be [M] or [K, M], got {list(numbers.shape)}"
                raise AssumptionError(what, hint="draws is their number")


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """A bound on a true risk that holds with probability at least 1 - delta, of each of K clients or of an average.

    Args:
        theorem: which bound.
        value: the bound [] or [K], in the unit of the loss; larger than its range where the bound says nothing.
        delta: probability with which it may fail, [] or [K].
        delta_split: what delta was spent on, each [] or [K].
        terms: the numbers that the formula is made of, each [] or [K], also where the bound is on an average.
        formula: turns the terms into the parts that sum to the bound.
        premises: its assumptions.
        reasons: why it is no certificate; empty for one that is.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, seeger
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> certificate = seeger(0.1, 5.0, 1_000, 0.05, premises)
        >>> round(certificate.value.item(), 4), certificate.valid
        (0.152, True)
        >>> seeger(0.1, 5.0, 1_000, 0.05, Premises(Provenance("saw the rows"), independent=True)).valid
        False
    """

    theorem: str
    value: Tensor
    delta: Number
    delta_split: Mapping[str, Number]
    terms: Terms
    formula: Formula
    premises: Premises
    reasons: tuple[str, ...]

    @property
    def valid(self) -> bool:
        """Whether every premise holds."""
        return not self.reasons

    @property
    def vacuous(self) -> Tensor:
        """Where the bound says no more than the loss's range: bool [] or [K]."""
        return self.value >= self.premises.loss.high

    @property
    def risk(self) -> str:
        """Which risk is bounded."""
        return self.premises.risk

    @property
    def prior(self) -> Provenance:
        """Where the prior came from."""
        return self.premises.prior

    def parts(self) -> Mapping[str, Tensor]:
        """Take the value apart: named parts, each [] or [K], that sum to it; one part where it is no sum."""
        return {name: self.terms["factor"] * part for name, part in self.formula(self.terms).items()}

    def recompute(self) -> Tensor:
        """Rebuild the value [] or [K] from the terms alone."""
        return _total(self.parts())

    def to_dict(self) -> JsonTable:
        """Give all that it says as numbers, words, lists and dicts: what `json.dumps` takes.

        Returns:
            Without "valid" the "value" is None, and the number, which then bounds nothing, the "unfounded_value". What
            `from_record` reads back is `to_record`: this with the name of the formula, and a checksum.

        Example:
            >>> from pacbayes_fl.bounds import Premises, Provenance, seeger
            >>> about = seeger(0.1, 5.0, 1000, 0.05, Premises(Provenance("split"), independent=False)).to_dict()
            >>> about["valid"], about["value"], about["reasons"]
            (False, None, ["the rows were not declared independent draws of the client's distribution (independent)"])
        """
        number, simulated = self.value.tolist(), self.premises.prior.simulated
        return {
            "theorem": self.theorem,
            "risk": self.risk,
            "valid": self.valid,
            **({"value": number} if self.valid else {"value": None, "unfounded_value": number}),
            "vacuous": self.vacuous.tolist(),
            "delta": plain(self.delta),
            "split": {name: plain(share) for name, share in self.delta_split.items()},
            "terms": renamed({name: term.tolist() for name, term in self.terms.items()}, simulated),
            "premises": premises_record(self.premises),
            "reasons": list(self.reasons),
        }

    def to_json(self, indent: int | None = None) -> str:
        """Write `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @kinds_checked
    def to_latex(self, names: Sequence[str] = (), header: bool = True) -> str:
        r"""Write a row of a LaTeX table for every client: name, empirical risk, KL, rows and the bound, rounded up.

        Args:
            names: of the clients; their numbers when empty.
            header: whether a row of headings, and a rule of `booktabs`, come first.

        Returns:
            Rows that end in a double backslash, to stand in a `tabular` with a column for each heading. A certificate
            that is none has one row, of its reasons.

        Raises:
            AssumptionError: when there are not as many names as clients.

        Example:
            >>> import torch
            >>> from pacbayes_fl.bounds import Premises, Provenance, seeger
            >>> risk, premises = torch.tensor([0.03, 0.1]), Premises(Provenance("split"), independent=True)
            >>> print(seeger(risk, 5.0, 1000, 0.05, premises).to_latex(["north", "south"]))
            client & risk & KL & $n$ & bound \\
            \midrule
            north & 0.03 & 5 & 1000 & 0.06367 \\
            south & 0.1 & 5 & 1000 & 0.1521 \\
        """
        return latex.rows(self, names, header)

    def __str__(self) -> str:
        if self.reasons:
            return f"{self.theorem}: no certificate: {'; '.join(self.reasons)}"
        low, high = (rounded_up(value.item()) for value in (self.value.min(), self.value.max()))
        spread = low if self.value.numel() == 1 else f"{low} to {high} for {self.value.numel()} clients"
        split = ", ".join(f"{name} {_largest(share):.3g}" for name, share in self.delta_split.items())
        vacuous = int(self.vacuous.sum())
        counted = f" for {vacuous} of {self.value.numel()}" if self.value.numel() > 1 else ""
        note = f"; vacuous{counted}: the loss never exceeds {self.premises.loss.high:g}" if vacuous else ""
        delta = _largest(self.delta)
        sure = f"{1 - delta:.6g}"
        if sure == "1":
            sure = f"1 - {delta:g}"
        return (
            f"{self.theorem}: risk at most {spread} with probability at least {sure}"
            f" ({self.risk}; delta: {split}; prior: {self.prior}){note}"
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The bound and what it is made of, for notebooks."""
        named = {"bound": self.value, **self.parts(), "delta": self.delta, **self.terms}
        numbers = {name: torch.as_tensor(value).flatten().tolist() for name, value in named.items()}
        rows = [[name, min(values), max(values)] for name, values in numbers.items() if values]
        return as_html(str(self), ("", "least", "largest"), rows)


def certify(
    theorem: str,
    formula: Formula,
    terms: Mapping[str, Tensor],
    delta: Number,
    premises: Premises,
    *,
    monte_carlo: MonteCarlo | None = None,
    reasons: tuple[str, ...] = (),
    any_range: bool = False,
    inner: Mapping[str, int] = NO_INNER,
) -> Certificate:
    """Build a certificate: split delta, compute the value, collect the violated assumptions.

    The formula is given, beside the terms, "low" and "high" of the loss, "delta" of the bound itself, "factor" of the
    predictor, and where they apply "epsilon", "prior_rows" or "prior_delta", "mc_draws", "mc_delta", "mc_risks",
    "mc_variance_draws" and "mc_variances". Of a risk with trials they are the "mc_draws", for whose number it pays.

    Args:
        theorem: which bound.
        formula: turns terms into parts that sum to the bound on the Gibbs risk.
        terms: its own numbers.
        delta: of the whole certificate, [] or [K].
        premises: its assumptions.
        monte_carlo: how the risk was estimated, if it was.
        reasons: further violated assumptions.
        any_range: whether the bound also holds for losses without a range.
        inner: of terms that are several numbers of a client, such as losses [K, N], how many dimensions these have.

    Returns:
        The certificate.

    Raises:
        ShapeError: when two numbers of clients are of different shapes.
        AssumptionError: when delta is no probability or does not cover what is spent of it, that of the prior's privacy
            included, the loss has no range and the bound needs one, or an estimate is not the mean of its draws.
    """
    if not any_range:
        require_bounded(premises.loss)
    delta = probability("delta", delta)
    split = split_delta(delta, monte_carlo)
    require_alike({**terms, "delta": delta, **_of_draws(monte_carlo)}, {**inner, "risks": 1, "variances": 1})
    extra = shared_terms(premises, split)
    if monte_carlo is not None:
        extra["mc_draws"] = monte_carlo.draws
        if "variance" in terms:  # that is estimated by whole draws, however many trials the risk has
            extra["mc_variance_draws"] = monte_carlo.draws
        if monte_carlo.trials is not None and "risk" in terms:
            extra["mc_draws"] = _trials(monte_carlo.trials, monte_carlo.draws, terms)
        elif monte_carlo.risks is not None and "risk" in terms:
            risks = checked("risks of draws", monte_carlo.risks, premises.loss.low, premises.loss.high)
            require_mean("risk", terms["risk"], risks, premises.loss.high - premises.loss.low)
            extra["mc_risks"] = grouped(risks)
        if monte_carlo.variances is not None and "variance" in terms:
            largest = 0.25 * (premises.loss.high - premises.loss.low) ** 2
            variances = checked("variances of draws", monte_carlo.variances, 0.0, largest)
            require_mean("variance", terms["variance"], variances, largest)
            extra["mc_variances"] = grouped(variances)
    numbers = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in extra.items()}
    device = next(iter(terms.values())).device
    if "prior_delta" in numbers and bool((numbers["delta"] <= numbers["prior_delta"]).any()):
        least, given = numbers["prior_delta"].item(), numbers["delta"].min().item()
        what = f"delta of the bound must exceed that of the prior's privacy, {least:g}, got {given:g}"
        hint = "the releases have an epsilon at a smaller delta too: privacy.guarantees.replacement"
        raise AssumptionError(what, hint=hint)
    everything = MappingProxyType({**terms, **{name: value.to(device) for name, value in numbers.items()}})
    value = everything["factor"] * _total(formula(everything))
    checked(f"the bound by {theorem}", value, -math.inf)  # beyond float64, a beta is too small or too large for it
    return Certificate(
        theorem,
        value,
        delta,
        MappingProxyType(split),
        everything,
        formula,
        premises,
        (*premises.broken(), *reasons),
    )


def _of_draws(monte_carlo: MonteCarlo | None) -> dict[str, Number]:
    """Numbers of an estimate that may be one a client."""
    if monte_carlo is None:
        return {}
    known = {"trials": monte_carlo.trials, "risks": monte_carlo.risks, "variances": monte_carlo.variances}
    return {"delta of draws": monte_carlo.delta, **{name: each for name, each in known.items() if each is not None}}


def _trials(given: Number, draws: int, terms: Mapping[str, Tensor]) -> Tensor:
    """Independent losses behind a risk, of which there is one a row and draw at most."""
    trials, most, like = whole("trials", given), draws * terms["n"], terms["risk"]
    if trials.dim() > like.dim() or bool((trials.to(most.device) > most).any()):
        what = f"trials must be at most the draws times the rows, {most.tolist()}, got {trials.tolist()}"
        raise AssumptionError(what, hint="one number for an average of clients")
    return trials


def trivial_bound(certificate: Certificate, risk: Number) -> Tensor:
    """The same bound for a predictor without learning (KL = 0), at the same number of rows and the same delta.

    It is fixed before any rows, such as a uniform guess or the mean of the targets: its divergence is 0, its empirical
    risk exact, and nothing is paid for privacy or for choices. A certificate that is not below it tells of no learning.

    Args:
        certificate: of a bound of this library.
        risk: of that predictor, [] or [K], in the unit of the loss: of a loss's `trivial`, or measured on the rows.

    Returns:
        [] or [K], in the unit of the loss.

    Raises:
        AssumptionError: when the risk is outside of the loss's range.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, seeger, trivial_bound
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> certificate = seeger(0.03, 500.0, 30_000, 0.025, premises)
        >>> round(trivial_bound(certificate, 0.5).item(), 4)  # of a predictor that errs half of the time
        0.5123
    """
    loss, terms = certificate.premises.loss, dict(certificate.terms)
    device = terms["delta"].device
    level = checked("risk", risk, loss.low, loss.high).to(device)
    for name in ("epsilon", "prior_rows", "prior_delta", *(name for name in terms if name.startswith("mc_"))):
        terms.pop(name, None)
    terms["delta"] = torch.as_tensor(certificate.delta, dtype=torch.float64, device=device)
    if "log_z" in terms:  # the first part of such a bound is -ln Z times a constant
        at_minus_one = certificate.formula(terms | {"log_z": -torch.ones_like(terms["log_z"])})
        return _total(certificate.formula(terms | {"log_z": -level / next(iter(at_minus_one.values()))}))
    named = ("risk", "losses", "free_energy")
    energy = {name: torch.broadcast_tensors(level, terms[name])[0] for name in named if name in terms}
    free = {"kl": torch.zeros_like(terms["kl"])} if "kl" in terms else {}
    if "variance" in terms:  # no losses of this mean vary more than those at the ends
        free["variance"] = ((level - loss.low) * (loss.high - level)).expand_as(terms["variance"])
    return _total(certificate.formula(terms | energy | free))


def shared_terms(premises: Premises, split: Mapping[str, Number]) -> dict[str, Number]:
    """Give the terms that follow from the premises and delta alone, which every formula is given.

    Args:
        premises: name the loss, the predictor, and how many configurations share delta.
        split: what delta is spent on.

    Returns:
        Range of the loss, factor of the predictor, delta of the bound itself, and where they apply that of Monte Carlo
        and the privacy of the prior.
    """
    tried, prior = premises.tried or 1, premises.prior
    terms: dict[str, Number] = {"factor": premises.factor}
    if math.isfinite(premises.loss.high):
        terms |= {"low": premises.loss.low, "high": premises.loss.high}
    terms["delta"] = split["bound"] / tried
    if "Monte Carlo" in split:
        terms["mc_delta"] = split["Monte Carlo"] / tried
    if prior.epsilon is not None:
        terms["epsilon"] = prior.epsilon * prior.draws
        if prior.source == "client-level DP":
            terms["prior_delta"] = prior.delta * prior.draws
        elif prior.rows is not None:
            terms["prior_rows"] = prior.rows
    return terms


def split_delta(delta: Number, monte_carlo: MonteCarlo | None = None) -> dict[str, Number]:
    """The parts of delta by purpose.

    Args:
        delta: of the whole certificate, [] or [K].
        monte_carlo: takes its own part of it.

    Returns:
        Shares that sum to delta.

    Raises:
        AssumptionError: when delta is no probability or does not cover what is spent of it.

    Example:
        >>> from pacbayes_fl.bounds import MonteCarlo
        >>> from pacbayes_fl.bounds.certificate import split_delta
        >>> split_delta(0.05, MonteCarlo(1000, 0.01))
        {'bound': 0.04, 'Monte Carlo': 0.01}
    """
    delta = probability("delta", delta)
    whole_delta = torch.as_tensor(delta, dtype=torch.float64)
    if not isinstance(monte_carlo, MonteCarlo | None):
        raise AssumptionError(f"monte_carlo must be a MonteCarlo(draws, delta), got {monte_carlo!r}")
    if bool((wrong := ~((whole_delta > 0) & (whole_delta < 1))).any()):
        raise AssumptionError(f"delta must lie strictly between 0 and 1, got {whole_delta[wrong].flatten()[0].item()}")
    if monte_carlo is None:
        return {"bound": delta}
    share = probability("delta of draws", monte_carlo.delta)
    require_alike({"delta": delta, "delta of draws": share})
    part, of = torch.broadcast_tensors(torch.as_tensor(share, dtype=torch.float64), whole_delta)
    if bool((wrong := ~((part > 0) & (part < of))).any()):
        raise AssumptionError(
            f"the delta of Monte Carlo must be positive and smaller than delta = {of[wrong][0].item():g}, got"
            f" {part[wrong][0].item():g}",
            hint="it is taken from delta",
        )
    return {"bound": delta - share, "Monte Carlo": share}


def _largest(value: Number) -> float:
    return value.max().item() if isinstance(value, Tensor) else value


def _total(parts: Mapping[str, Tensor]) -> Tensor:
    total = torch.stack(torch.broadcast_tensors(*parts.values())).sum(0)
    if not total.numel():
        raise ShapeError("a bound is of one client [] or of several [K], got none")
    return total
