"""Certificates of a finished run: bounds on each client's true risk, from its folder alone.

A client's prior P is what the run knew of it without the rows of the bound: of a run with `report.certify`, its model
after the training on its other rows ("split") or the hyper-posterior that was trained without it ("folds"); of a client
that never trained, what the server knows. Its posterior Q has seen the rows of the bound too. The bound is on the risk
of Q as a Gibbs predictor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import bounds, study_certify_average, study_certify_log, study_hold_out
from pacbayes_fl.bounds import BoundedLoss, Certificate, Premises, Provenance
from pacbayes_fl.bounds.risk import gibbs_losses, gibbs_risk, listed_losses, listed_risks
from pacbayes_fl.errors import AssumptionError, DataError
from pacbayes_fl.federation import engine
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.base import Listed
from pacbayes_fl.results_certificates import CertifiedClient, CertifiedRun, model_of
from pacbayes_fl.study import Trained
from pacbayes_fl.study_certify_request import AVERAGES, Request
from pacbayes_fl.study_certify_rows import UNDECLARED, Evidence, evidence_of, independent

OnClients = Callable[[int], None]

_STREAMS = (2**32 - 4, 2**32 - 3)  # rounds of the noise that refines posteriors, and draws from them: no run gets there
_TEST_DRAWS = 30  # of a risk that is shown and bounds nothing
_POOLED = ("seeger", "mcallester", "pbb-quadratic", "pbb-lambda")
_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "(independent)": "(report.certify.independent = true, where they are)",
        "(drawn_clients)": "(report.certify.drawn_clients = true, where they are)",
        "(give tried)": "(--tried)",
    }
)


class Measured(NamedTuple):
    """Numbers of the clients of a group, float64.

    Args:
        risk: empirical [K].
        kl: [K], in nats.
        n: rows of the bound that count [K].
        test_risk: [K], NaN without test rows.
        test_rows: [K].
        log_z: ln Z of the exact Gibbs posterior [K], where that is what is certified.
        draws: hypotheses that were drawn, if any.
        rows: all rows of the bound [K], by which a beta is fixed: which of them count depends on their values.
    """

    risk: Tensor
    kl: Tensor
    n: Tensor
    test_risk: Tensor
    test_rows: Tensor
    log_z: Tensor | None
    draws: int | None
    rows: Tensor

    def select(self, wanted: Tensor) -> Measured:
        """Take some clients.

        Args:
            wanted: bool [K].

        Returns:
            Their numbers.
        """
        return Measured(
            self.risk[wanted],
            self.kl[wanted],
            self.n[wanted],
            self.test_risk[wanted],
            self.test_rows[wanted],
            None if self.log_z is None else self.log_z[wanted],
            self.draws,
            self.rows[wanted],
        )


def certify(trained: Trained, request: Request, on_clients: OnClients | None = None) -> CertifiedRun:
    """Bound the true risk of every client of a finished run.

    Args:
        trained: as `study.open_run` gives it.
        request: which bound, on which loss.
        on_clients: called with the number of clients that were done in one go.

    Returns:
        A line a client; groups without a valid certificate have reasons and no numbers.

    Raises:
        AssumptionError: when the method's models are no posteriors, the loss is not for the run's predictions, or no
            number can be formed.
    """
    study = trained.study
    loss = request.loss or (bounds.SaturatingSquare() if trained.dataset.classes is None else bounds.ZeroOne())
    model = {} if trained.folder is None else model_of(trained.folder, trained.state.round)
    settled = {"loss": loss.name, "tables": study.report.certify.tables}
    turn = study_certify_log.turn(trained.folder, {**asdict(request), **settled, **model})
    request, uncounted = _counted(trained, request, turn)
    evidence, reasons = _grouped(trained, request, uncounted)
    if not reasons and not evidence:
        raise AssumptionError(f"the run has no clients that {request.bound!r} is about", hint="run with new clients")
    certified = _certified_on_average if request.bound in AVERAGES else _certified
    shared = sum(found.rows.clients for found in evidence.values()) if request.jointly else 1
    asked = _Asked(request, loss, shared, on_clients or (lambda _: None))
    parts = {name: certified(trained, name, found, asked) for name, found in evidence.items()}
    known = [part.certificate for part in parts.values() if part.certificate is not None]
    table = CertifiedRun(
        study=study.name,
        method=study.method.name,
        seed=study.seed,
        bound=request.bound,
        asked=request.asked,
        theorem=known[0].theorem if known else request.bound,
        risk=known[0].risk if known else loss.name,
        low=loss.low,
        high=loss.high,
        delta=request.delta,
        clients=tuple(line for part in parts.values() for line in part.lines),
        reasons=reasons | {name: part.reasons for name, part in parts.items()},
        summary={name: bounds.to_record(part.average) for name, part in parts.items() if part.average is not None},
        certificates={
            name: bounds.to_record(part.certificate) for name, part in parts.items() if part.certificate is not None
        },
        labels=_labels(trained, request, evidence)
        | {"left_out": {k: v for p in parts.values() for k, v in p.left_out.items()}},
        number=None if trained.folder is None or uncounted else turn.number,
        model=model,
    )
    if table.clients:  # else nobody has seen a number
        turn.keep()
    return table


def _grouped(trained: Trained, request: Request, uncounted: str) -> tuple[dict[str, Evidence], dict[str, list[str]]]:
    """Put the rows of every group that the bound is about apart, or say why it can have no certificate."""
    reasons: dict[str, list[str]] = {}
    evidence: dict[str, Evidence] = {}
    for name, group in trained.groups.items():
        if request.bound in AVERAGES and name != study_certify_average.GROUPS[request.bound]:
            continue
        if uncounted:
            reasons[name] = [uncounted]
            continue
        found = evidence_of(trained, name, group, _least_delta(trained, request), request.bound in AVERAGES)
        why = _missing(trained, found, request)
        if found is None or why:
            reasons[name] = why
        else:
            evidence[name] = found
    return evidence, reasons


class _Asked(NamedTuple):
    """What holds for all groups: the request, its loss, how many clients share delta, and who is told of progress."""

    request: Request
    loss: BoundedLoss
    shared: int
    on_clients: OnClients


class Certified(NamedTuple):
    """What became of a group.

    Args:
        certificate: of its clients; None where none has numbers.
        lines: one a client; none where the certificate is not valid.
        reasons: why it is not.
        average: bound on the average over the clients' rows, where there can be one.
        left_out: clients without numbers, and why.
    """

    certificate: Certificate | None
    lines: list[CertifiedClient]
    reasons: list[str]
    average: Certificate | None = None
    left_out: Mapping[str, str] = MappingProxyType({})


def _missing(trained: Trained, found: Evidence | None, request: Request) -> list[str]:
    """Say why a group can have no certificate of this kind, before its rows are looked at; nothing where it can."""
    why = []
    if found is None:
        (saw,) = Premises(Provenance("saw the rows"), independent=True).broken()
        why.append(f"{saw}: report.certify.scheme = 'split', or certify --retrain")
    elif request.bound == "theorem-3.2" and not found.prior.private:
        why.append(f"Theorem 3.2 is for a prior that was drawn with privacy, and this one is {found.prior}")
    elif not (trained.method.row_by_row or bool(found.seen.mask.any(1).all())):
        why.append("the network normalises by rows that the prior has seen, and this one has seen none")
    return [*why, UNDECLARED] if why and not independent(trained.study) else why


def _least_delta(trained: Trained, request: Request) -> float:
    """Give the least probability with which a bound on one client may fail, for the choice of a guarantee."""
    shared = sum(group.train.clients for group in trained.groups.values()) if request.jointly else 1
    return request.delta * (1.0 - request.draws_delta) / ((request.tried or 1) * shared)


def _counted(trained: Trained, request: Request, turn: study_certify_log.Turn) -> tuple[Request, str]:
    """Count what chose by the rows of the bound: what the study says, what is said now, and what was asked before."""
    part = trained.study.report.certify
    tried = None if request.tried is None else max(request.tried, part.tried)
    needed = ("environment.json", study_hold_out.MEMORY, f"checkpoints/round_{trained.state.round:06d}")
    if gone := [name for name in needed if trained.folder is not None and not (trained.folder / name).exists()]:
        return request, f"{' and '.join(gone)} missing: whom and what the run was trained on is not known"
    if turn.reason or turn.folder is None or tried is None:
        return replace(request, tried=tried), turn.reason
    share = study_certify_log.share(turn.number, part.tables)
    if share is None:
        what = f"this is table {turn.number} of these rows, and the study settled report.certify.tables = {part.tables}"
        return request, what
    return replace(request, tried=tried * share), ""


def _certified(trained: Trained, name: str, found: Evidence, asked: _Asked) -> Certified:
    """Certify every client of a group on its own, and the average over their rows."""
    request, loss, shared, on_clients = asked
    measured = measure(trained, found, loss, request, on_clients)
    usable = (measured.n > 0) & measured.risk.isfinite() & measured.kl.isfinite()
    left_out = {found.rows.names[k]: _without(found, k) for k in (~usable).nonzero().flatten().tolist()}
    if not bool(usable.any()):
        none = "no client has rows that count, and a posterior at a finite distance"
        return Certified(None, [], [none, *dict.fromkeys(left_out.values())], None, left_out)
    some = measured.select(usable)
    premises = Premises(found.prior, independent(trained.study), loss, tried=request.tried)
    certificate = bound(request, some, premises, shared)
    average = None
    once = not bool(found.repeats.left_out.any()) and not found.repeats.shared
    if request.bound in _POOLED and found.apart and once and bool((usable | (measured.n == 0)).all()):
        average = _together(request, some, premises)
    if not certificate.valid:
        return Certified(certificate, [], _with_keys(certificate.reasons), None, left_out)
    trivial = _trivial(trained, found, loss, certificate)
    return Certified(certificate, _lines(name, found, usable, some, certificate, trivial), [], average, left_out)


def _trivial(trained: Trained, found: Evidence, loss: BoundedLoss, certificate: Certificate) -> Tensor:
    """Bound the uniform guess, or the mean of a client's targets, by the same formula: [] or [K]; NaN without one."""
    risk = getattr(loss, "trivial", None)
    if risk is None:
        return torch.full_like(certificate.value, math.nan)
    if trained.dataset.classes is not None:
        return bounds.trivial_bound(certificate, risk(trained.dataset.classes)).expand_as(certificate.value)
    y, mask = found.rows.y.double().cpu(), found.rows.mask.cpu()
    mean = torch.where(mask, y, 0.0).sum(1) / mask.sum(1).clamp_min(1)
    residual = torch.where(mask, y - mean.unsqueeze(1), 0.0)
    variance = float(residual.square().sum() / (mask.sum() - mask.any(1).sum()).clamp_min(1))
    return bounds.trivial_bound(certificate, risk(variance)).expand_as(certificate.value)


def _without(found: Evidence, k: int) -> str:
    """Say why a client has no certificate."""
    rows = int(found.rows.size[k])
    if found.repeats.n[k]:
        return "its posterior or its divergence is not finite"
    if not rows:
        return "it has no rows"
    shared = ", or another client of the average has them too" if found.repeats.shared else ""
    return f"none of its {rows} rows counts: its prior saw them, under whatever name{shared}"


def _certified_on_average(trained: Trained, name: str, found: Evidence, asked: _Asked) -> Certified:
    request, loss, _, on_clients = asked
    premises = Premises(found.prior, independent(trained.study), loss, tried=request.tried)
    empty = [_without(found, k) for k in (found.repeats.n == 0).nonzero().flatten().tolist()]
    if empty and request.bound in AVERAGES:  # each counts with its beta
        who = found.rows.names[int((found.repeats.n == 0).nonzero()[0])]
        return Certified(None, [], [f"an average needs rows of every client, and of {who} {empty[0]}"])
    certificate, line = study_certify_average.certify_average(trained, found, request, premises, name)
    on_clients(found.rows.clients)
    line = replace(line, trivial=_trivial(trained, found, loss, certificate).item())
    return Certified(certificate, [line] if certificate.valid else [], _with_keys(certificate.reasons))


def _with_keys(reasons: Sequence[str]) -> list[str]:
    """Name the key of the study, or the option, where a premise names its argument."""
    found = []
    for reason in reasons:
        for argument, key in _KEYS.items():
            reason = reason.replace(argument, key)
        found.append(reason)
    return found


def calls(trained: Trained, found: Evidence) -> Iterator[tuple[Tensor, Any, Evidence]]:
    """Give every client its prior, a few at a time.

    Args:
        trained: the run.
        found: the clients' rows.

    Yields:
        Positions [k] of the clients, their prior, and their rows.
    """
    more = [int(m) for m in found.rows.size.tolist()]

    def personalised(index: Tensor, *call: Any) -> tuple[Any, Any]:
        return trained.method.personalise(*call), call[2]

    some_of = engine.personal_calls(trained.method, found.state, found.seen, trained.study.plan, personalised, more)
    for index, (posterior, seen) in some_of:
        rows, test = (batch.select(index.cpu()).trim() for batch in (found.rows, found.test))
        some = found._replace(repeats=found.repeats.select(index.cpu(), rows.mask.shape[1]))
        yield index, posterior, some._replace(seen=seen, rows=rows, test=test)


def measure(trained: Trained, found: Evidence, loss: BoundedLoss, request: Request, on_clients: OnClients) -> Measured:
    """Take the numbers that a bound is made of.

    Args:
        trained: the run.
        found: the clients' rows.
        loss: whose risk is bounded.
        request: gives the draws, and beta of an exact Gibbs posterior.
        on_clients: called with the number of clients that were done in one go.

    Returns:
        The numbers of all clients, in their order.
    """
    plan, clients = trained.study.plan, found.rows.clients
    columns = [torch.full((clients,), math.nan, dtype=torch.float64, device=found.rows.x.device) for _ in range(4)]
    draws: int | None = None
    rows = found.rows.size.to(found.rows.x.device)
    for index, prior, some in calls(trained, found):
        refining, drawing = (
            Noise(plan.seed, stream, some.rows.ids, some.rows.x.device, plan.noise) for stream in _STREAMS
        )
        if request.bound == "gibbs":
            values = _exact_gibbs(prior, some, loss, request.beta_for(rows[index]))
        else:
            posterior, kl = trained.method.refine(prior, some.seen, some.rows, refining)
            on_rows = gibbs_losses(posterior, some.rows, loss, request.draws, drawing)
            on_test = gibbs_risk(posterior, some.test, loss, min(request.draws, _TEST_DRAWS), drawing)
            draws = on_rows.draws
            values = (some.repeats.risk(on_rows.rows), kl, on_test.risk, torch.full_like(kl, math.nan))
        for column, value in zip(columns, values, strict=True):
            column[index] = value.double()
        on_clients(len(index))
    risk, kl, test_risk, log_z = (column.cpu() for column in columns)
    given = log_z if request.bound == "gibbs" else None
    return Measured(risk, kl, found.repeats.n, test_risk, found.test.size.cpu(), given, draws, rows.cpu())


def _exact_gibbs(prior: Any, some: Evidence, loss: BoundedLoss, beta: Tensor) -> tuple[Tensor, ...]:
    """Weigh the hypotheses of a finite list by the Gibbs posterior of the loss itself (certificates of eq. 38)."""
    if not isinstance(prior, Listed):
        raise AssumptionError(
            "the bound 'gibbs' is for exact Gibbs posteriors: those over a finite list of hypotheses",
            hint="pac-pfl-bnn with method.posterior = 'importance', or another bound",
        )
    before, risks = listed_risks(prior, some.rows, loss)
    weights, log_z = bounds.gibbs_weights(risks, beta, before)
    _, on_test = listed_risks(prior, some.test, loss)
    risk, kl = (weights * risks).sum(1), bounds.discrete_kl(weights, before)
    if bool(some.repeats.left_out.any()):  # ln Z is -beta (L^(Q) + KL / beta), and L^(Q) may be larger on what counts
        risk = some.repeats.risk(listed_losses(prior, some.rows, loss, weights))
        log_z = torch.minimum(log_z, -(beta * risk + kl))
    return risk, kl, (weights * on_test).sum(1), log_z


def bound(request: Request, measured: Measured, premises: Premises, shared: int = 1) -> Certificate:
    """Apply the bound that was asked for.

    Args:
        request: which, and at which delta.
        measured: the clients' numbers.
        premises: what the bound rests on.
        shared: number of clients that delta is shared among.

    Returns:
        The certificate of K clients.
    """
    delta = request.delta / shared
    if measured.log_z is not None:
        exact = replace(premises, posterior="exact Gibbs")
        return bounds.gibbs(measured.log_z, measured.n, request.beta_for(measured.rows), delta, exact)
    numbers: dict[str, Any] = {} if request.beta is None else {"beta": request.beta_for(measured.rows)}
    numbers |= {"delta": delta, "premises": premises, "monte_carlo": request.estimate(measured.draws, delta)}
    return bounds.BOUNDS[request.bound](measured.risk, measured.kl, measured.n, **numbers)


def _together(request: Request, measured: Measured, premises: Premises) -> Certificate:
    """Bound the average over the clients' rows."""
    estimate = request.estimate(measured.draws, request.delta)
    numbers = (measured.risk, measured.kl, measured.n, request.delta, premises)
    return bounds.pooled(*numbers, bound=bounds.BOUNDS[request.bound], monte_carlo=estimate)


def _lines(
    group: str, found: Evidence, usable: Tensor, measured: Measured, certificate: Certificate, trivial: Tensor
) -> list[CertifiedClient]:
    names = [name for name, good in zip(found.rows.names, usable.tolist(), strict=True) if good]
    columns = (*measured[:5], certificate.value, found.repeats.left_out[usable], trivial)
    numbers = zip(names, *(column.tolist() for column in columns), strict=True)
    return [
        CertifiedClient(name, group, int(n), risk, kl, value, test_risk, int(tested), int(repeats), level)
        for name, risk, kl, n, test_risk, tested, value, repeats, level in numbers
    ]


def _labels(trained: Trained, request: Request, evidence: Mapping[str, Evidence]) -> dict[str, Any]:
    part = trained.study.report.certify
    priors = {
        "split": "a client's model after the training on its other rows",
        "client-level DP": "the server's, released with",
    }
    rows, units = {}, {}
    for name, found in evidence.items():
        seen = "training rows that the training has not seen" if found.prior.source == "split" else "all training rows"
        prior = priors.get(found.prior.source, "what the server knows of others")
        if found.prior.private:
            prior = f"{prior} {found.prior}"
        if part.scheme == "folds" and name == "existing":
            prior = f"of {part.folds} hyper-posteriors the one that the client's fold had no part in"
        if found.prior.source == "split" and not bool(found.seen.mask.any()):
            prior = "what the server knows after the training on other rows"
        if request.smooth is not None:
            prior = f"particles blurred by {request.smooth:g}, against the hyper-prior of before any rows"
        rows[name] = f"{seen}; prior: {prior}"
        own = "the client's rows that the prior saw" if found.prior.source == "split" else "others' average units"
        units[name] = {
            "client": f"standardised by {own}",
            "pooled": "standardised by the rows of all clients that priors saw",
            "none": "in their own units",
        }[trained.groups[name].shared.kinds[-1]]
    words: dict[str, Any] = {
        "scheme": part.scheme,
        "rows": rows,
        "posterior": "the Gibbs predictor of the prior, refined by the rows of the bound"
        if request.bound not in AVERAGES
        else "each client's Gibbs predictor under every prior, or the prior itself where that has less free energy",
        "draws": request.draws,
        "jointly": request.jointly,
        "tried": request.tried,
        "requests": "counted in certified.jsonl here and in runs on the same rows beside it, not elsewhere"
        if trained.folder is not None
        else "not counted, as the run has no folder",
        "test_risk": "of the same predictor on the client's test rows, which nothing has seen",
        "round": trained.state.round,
    }
    if trained.fell_back:
        words["fell_back"] = list(trained.fell_back)
    return words if trained.dataset.classes is not None else words | {"units": units}


def checked(tables: Sequence[CertifiedRun]) -> None:
    """Compute every certificate of some tables again.

    Args:
        tables: as `results_certificates.tables_of` reads them.

    Raises:
        DataError: naming the table of which a record was edited or does not give its value.
    """
    for table in tables:
        for name, record in [*table.certificates.items(), *table.summary.items()]:
            try:
                bounds.from_record(record)
            except DataError as error:
                raise DataError(
                    f"certificates {table.stem} of {name} clients: {error}", hint="certify again"
                ) from error
