"""Certificates of a finished run: bounds on each client's true risk, from its folder alone.

A client's prior P is what the run knew of it without the rows of the bound: of a run with `report.certify`, its model
after the training on its other rows ("split") or the hyper-posterior that was trained without it ("folds"); of a client
that never trained, what the server knows. Its posterior Q has seen the rows of the bound too. The bound is on the risk
of Q as a Gibbs predictor.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import bounds
from pacbayes_fl.bounds import Bound, BoundedLoss, Certificate, Premises, Provenance
from pacbayes_fl.bounds.holdout import HOLDOUT_BETTING, of_losses
from pacbayes_fl.bounds.record import of_another_bound
from pacbayes_fl.bounds.table import DEFAULT
from pacbayes_fl.certificates import log as study_certify_log
from pacbayes_fl.certificates import network
from pacbayes_fl.certificates.averages import certify_average
from pacbayes_fl.certificates.labels import labels_of
from pacbayes_fl.certificates.measure import Measured, OnClients, measure
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.certificates.rows import BoundRows, bound_rows_of, told_by_all
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.scaling import Scaling
from pacbayes_fl.errors import AssumptionError, DataError, caller_stacklevel, kinds_checked
from pacbayes_fl.results.certificates import CertifiedClient, CertifiedRun, model_of
from pacbayes_fl.results.updates import fingerprints
from pacbayes_fl.study.method_names import as_named
from pacbayes_fl.study.rows import held_rows
from pacbayes_fl.study.rows.table_checks import made_of_others
from pacbayes_fl.study.run import Trained
from pacbayes_fl.study.serving.updates import rows_since
from pacbayes_fl.study.uncertifiable import UNDECLARED, independent, normalised

_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "(independent)": "(report.certify.independent = true, where they are)",
        "(drawn_clients)": "(report.certify.drawn_clients = true, where they are)",
        "(give tried)": "(--tried)",
    }
)


@kinds_checked
def certify(
    trained: Trained,
    request: Request | str = DEFAULT,
    on_clients: OnClients | None = None,
    ship: Path | str | None = None,
) -> CertifiedRun:
    """Bound the true risk of every client of a finished run.

    Args:
        trained: as `study.run.open_run` gives it.
        request: which bound, on which loss; or the name of a bound, or "mine.py:MY_BOUND", with all else by default.
        on_clients: called with the number of clients that were done in one go.
        ship: new folder for the networks of a bound on one draw, a folder a client for `load_network`; None for none.

    Returns:
        One entry per client; a group without a valid certificate carries reasons instead of numbers.

    Raises:
        AssumptionError: when the method's models are no posteriors, the loss is not for the run's predictions, or no
            number can be formed; or the networks cannot be shipped. StudyError: when `ship` holds something.

    Example:
        >>> import pacbayes_fl as fl
        >>> sets = ["federation.rounds=2", "method.particles=3", "report.certify.scheme=split"]
        >>> _ = fl.run(fl.Study.from_toml("polynomial", sets), "split_run")
        >>> table = fl.certify(fl.open_run("split_run"), fl.Request(bound="seeger", delta=0.1, tried=20))
        >>> table.bound, len(table.clients)
        ('seeger', 48)
        >>> table.save("split_run").name
        'seeger.json'
    """
    with as_named(trained.study):
        asked = Request(request) if isinstance(request, str) else request
        return _certify(trained, asked, on_clients or (lambda _: None), ship)


def _certify(trained: Trained, request: Request, on_clients: OnClients, ship: Path | str | None) -> CertifiedRun:
    network.check(trained, request, ship)
    study = trained.study
    loss = request.loss or (bounds.SaturatingSquare() if trained.dataset.classes is None else bounds.ZeroOne())
    model = {} if trained.folder is None else model_of(trained.folder, trained.state.round)
    settled: dict[str, object] = {"loss": loss.name, "tables": study.report.certify.tables}
    later = _later_rows(trained) if request.later else {}
    if request.later:  # with more updates the same request, or by any other name another one
        settled[study_certify_log.ARRIVED if request.record.anytime else "later"] = fingerprints(trained.folder)
    bound = request.record
    turn = study_certify_log.turn(trained.folder, {**request.settings, **settled, **model})
    request, uncounted = _count_tried(trained, request, turn)
    groups, reasons = _grouped(trained, request, uncounted, later)
    if not reasons and not groups:
        raise AssumptionError(f"the run has no clients that {bound.name!r} is about", hint="run with new clients")
    certified = _certified if bound.group is None else _certified_on_average
    shared = sum(group.rows.clients for group in groups.values()) if request.jointly else 1
    job = _Job(request, loss, shared, on_clients)
    parts = {name: certified(trained, name, group, job) for name, group in groups.items()}
    known = [part.certificate for part in parts.values() if part.certificate is not None]
    valid = {name: part for name, part in parts.items() if part.lines}  # other numbers nobody may see uncounted
    table = CertifiedRun(
        study=study.name,
        method=study.method.name,
        seed=study.seed,
        bound=bound.name,
        asked=request.asked,
        theorem=known[0].theorem if known else bound.name,
        risk=known[0].risk if known else loss.name,
        low=loss.low,
        high=loss.high,
        delta=request.delta,
        clients=tuple(line for part in parts.values() for line in part.lines),
        reasons=reasons | {name: part.reasons for name, part in parts.items()},
        summary={
            name: bounds.to_record(part.average, bound) for name, part in valid.items() if part.average is not None
        },
        certificates={name: bounds.to_record(one, bound) for name, part in valid.items() if (one := part.certificate)},
        holdout={name: bounds.to_record(part.holdout) for name, part in valid.items() if part.holdout is not None},
        labels=labels_of(trained, request, groups)
        | {"left_out": {k: v for p in parts.values() for k, v in p.left_out.items()}},
        number=turn.number if trained.folder is not None and valid else None,
        model=model,
    )
    if table.clients:  # else nobody has seen a number
        turn.keep()
    if ship is not None:
        network.write(trained, table, {name: part.networks for name, part in parts.items()}, Path(ship))
    return table


def _later_rows(trained: Trained) -> Mapping[str, ClientBatch]:
    if not (later := rows_since(trained)):
        hint = "pacbayes-fl update RUN --data FILE brings some"
        raise AssumptionError("no rows came after the training of this run", hint=hint)
    return later


def _grouped(
    trained: Trained, request: Request, uncounted: str, later: Mapping[str, ClientBatch]
) -> tuple[dict[str, BoundRows], dict[str, list[str]]]:
    """Split off the bound's rows of every group, or give the reasons why it can have no certificate."""
    reasons: dict[str, list[str]] = {}
    groups: dict[str, BoundRows] = {}
    average = request.record.group
    for name, group in trained.groups.items():
        if average not in (None, name):
            continue
        if uncounted:
            reasons[name] = [uncounted]
            continue
        delta = _least_delta(trained, request)
        result = bound_rows_of(trained, name, group, delta, average is not None, later.get(name))
        why = _why_not(trained, result, request)
        if result is None or why:
            reasons[name] = why
        else:
            groups[name] = result
    return groups, reasons


class _Job(NamedTuple):
    """Settings of all groups: the request, its loss, the number of clients that share delta, and the callback."""

    request: Request
    loss: BoundedLoss
    shared: int
    on_clients: OnClients


class Certified(NamedTuple):
    """Result of a group.

    Args:
        certificate: of its clients; None where none has numbers.
        lines: one a client; none where the certificate is not valid.
        reasons: why it is not.
        average: bound on the average over the clients' rows, where there can be one.
        left_out: clients without numbers, and why.
        holdout: of the predictor of each that was fixed before the rows, where that was asked for.
        networks: of the lines, where each is on one.
    """

    certificate: Certificate | None
    lines: list[CertifiedClient]
    reasons: list[str]
    average: Certificate | None = None
    left_out: Mapping[str, str] = MappingProxyType({})
    holdout: Certificate | None = None
    networks: network.Networks | None = None


def _why_not(trained: Trained, bound_rows: BoundRows | None, request: Request) -> list[str]:
    """Reasons why a group can have no certificate of this kind, before its rows are read; empty where it can."""
    why = [made] if (made := made_of_others(trained.study.data)) else []
    if bound_rows is None:
        (saw,) = Premises(Provenance("saw the rows"), independent=True).broken()
        why.append(f"{saw}: report.certify.scheme = 'split', or certify --retrain")
    elif request.record.private and not bound_rows.prior.private:
        name = request.record.name
        why.append(f"the bound {name!r} is for a prior that was drawn with privacy, and this one is {bound_rows.prior}")
    elif not (trained.method.row_by_row or bool(bound_rows.seen.mask.any(1).all())):
        why.append(normalised(trained.study))
    elif told := told_by_all(trained, bound_rows.prior):
        why.extend(told)
    return [*why, UNDECLARED] if why and not independent(trained.study) else why


def _least_delta(trained: Trained, request: Request) -> float:
    """Give the least probability with which a bound on one client may fail, for the choice of a guarantee."""
    shared = sum(group.train.clients for group in trained.groups.values()) if request.jointly else 1
    own, beside = request.shares
    least = min(own * (1.0 - request.draws_delta), beside or 1.0)
    return request.delta * least / ((request.tried or 1) * shared)


def _count_tried(trained: Trained, request: Request, turn: study_certify_log.Turn) -> tuple[Request, str]:
    """Count the choices made by the rows of the bound: those of the study, of the request, and earlier requests."""
    part = trained.study.report.certify
    tried = None if request.tried is None else max(request.tried, part.tried)
    needed = ("environment.json", held_rows.HISTORY, f"checkpoints/round_{trained.state.round:06d}")
    if gone := [name for name in needed if trained.folder is not None and not (trained.folder / name).exists()]:
        return request, f"{' and '.join(gone)} missing: whom and what the run was trained on is not known"
    if turn.reason or turn.folder is None or tried is None:
        return replace(request, tried=tried), turn.reason
    share = study_certify_log.share(turn.number, part.tables)
    if share is None:
        what = f"this is table {turn.number} of these rows, and the study settled report.certify.tables = {part.tables}"
        return request, what
    return replace(request, tried=tried * share), ""


def _certified(trained: Trained, name: str, group: BoundRows, job: _Job) -> Certified:
    """Certify every client of a group on its own, and the average over their rows."""
    request, loss, shared, on_clients = job
    measured = measure(trained, group, loss, request, on_clients)
    usable = (measured.n > 0) & measured.risk.isfinite() & measured.kl.isfinite()
    if "log_ratio" in request.record.needs:
        usable &= measured.log_ratio.isfinite()
    left_out = {group.rows.names[k]: _without(group, k) for k in (~usable).nonzero().flatten().tolist()}
    if not bool(usable.any()):
        none = "no client has rows that count, and a posterior at a finite distance"
        return Certified(None, [], [none, *dict.fromkeys(left_out.values())], None, left_out)
    subset = measured.select(usable)
    premises = Premises(group.prior, independent(trained.study), request.premised(loss), tried=request.tried)
    certificate = bound_clients(request, subset, premises, shared)
    average = None
    once = not bool(group.repeats.left_out.any()) and not group.repeats.shared
    if request.record.poolable and group.independent and once and bool((usable | (measured.n == 0)).all()):
        average = _pooled_certificate(request, subset, premises)
    if not certificate.valid:
        return Certified(certificate, [], _with_keys(certificate.reasons), None, left_out)
    beside = _holdout(request, subset, premises, shared) if request.shares[1] else None
    trivial = _trivial(trained, group, loss, certificate)
    lines = _lines(name, group, usable, subset, certificate, trivial, beside)
    drawn = None
    if subset.network is not None:
        drawn = network.Networks(subset.network, Scaling(*(leaf.cpu()[usable] for leaf in group.units)))
    return Certified(certificate, lines, [], average, left_out, beside, drawn)


def _holdout(request: Request, measured: Measured, premises: Premises, shared: int) -> Certificate:
    """Bound the predictors that were fixed before the rows, with what is left of delta."""
    bound, delta = bounds.holdout_for(premises.loss), request.delta / shared * request.shares[1]
    if request.record.anytime:  # the line beside it holds at all of them too
        bound = HOLDOUT_BETTING
    return _of_fixed(bound, measured, premises, delta)


def _of_fixed(bound: Bound, measured: Measured, premises: Premises, delta: float) -> Certificate:
    if bound.counts or "losses" in bound.needs:
        return of_losses(bound, measured.losses, measured.n, measured.doubtful, delta, premises)
    return bound.certify({"risk": measured.risk, "n": measured.n}, delta, premises)  # the largest risk, the fewest rows


def _trivial(trained: Trained, group: BoundRows, loss: BoundedLoss, certificate: Certificate) -> Tensor:
    """Bound the uniform guess, or the mean of a client's targets, by the same formula: [] or [K]; NaN without one."""
    risk = getattr(loss, "trivial", None)
    if risk is None:
        return torch.full_like(certificate.value, math.nan)
    if trained.dataset.classes is not None:
        return bounds.trivial_bound(certificate, risk(trained.dataset.classes)).expand_as(certificate.value)
    y, mask = group.rows.y.double().cpu(), group.rows.mask.cpu()
    mean = torch.where(mask, y, 0.0).sum(1) / mask.sum(1).clamp_min(1)
    residual = torch.where(mask, y - mean.unsqueeze(1), 0.0)
    variance = float(residual.square().sum() / (mask.sum() - mask.any(1).sum()).clamp_min(1))
    return bounds.trivial_bound(certificate, risk(variance)).expand_as(certificate.value)


def _without(group: BoundRows, k: int) -> str:
    """The reason why a client has no certificate."""
    rows = int(group.rows.size[k])
    if group.repeats.n[k]:
        return "its posterior or its divergence is not finite"
    if not rows:
        return "it has no rows"
    shared = ", or another client of the average has them too" if group.repeats.shared else ""
    return f"none of its {rows} rows counts: its prior saw them, under whatever name{shared}"


def _certified_on_average(trained: Trained, name: str, group: BoundRows, job: _Job) -> Certified:
    request, loss, _, on_clients = job
    premises = Premises(group.prior, independent(trained.study), loss, tried=request.tried)
    empty = [_without(group, k) for k in (group.repeats.n == 0).nonzero().flatten().tolist()]
    if empty:  # each counts with its beta
        who = group.rows.names[int((group.repeats.n == 0).nonzero()[0])]
        return Certified(None, [], [f"an average needs rows of every client, and of {who} {empty[0]}"])
    certificate, line = certify_average(trained, group, request, premises, name)
    on_clients(group.rows.clients)
    line = replace(line, trivial=_trivial(trained, group, loss, certificate).item())
    return Certified(certificate, [line] if certificate.valid else [], _with_keys(certificate.reasons))


def _with_keys(reasons: Sequence[str]) -> list[str]:
    """Name the key of the study, or the option, where a premise names its argument."""
    named = []
    for reason in reasons:
        for argument, key in _KEYS.items():
            reason = reason.replace(argument, key)
        named.append(reason)
    return named


def bound_clients(request: Request, measured: Measured, premises: Premises, shared: int = 1) -> Certificate:
    """Apply the bound that was asked for.

    Args:
        request: which, and at which delta.
        measured: numbers of the clients.
        premises: assumptions of the bound.
        shared: number of clients that delta is shared among.

    Returns:
        The certificate of K clients.
    """
    delta, bound = request.delta / shared * request.shares[0], request.record
    if bound.fixed:
        return _of_fixed(bound, measured, premises, delta)
    if bound.posterior != "any":
        premises = replace(premises, posterior=bound.posterior)
    numbers = {"risk": measured.risk, "kl": measured.kl, "n": measured.n, "log_z": measured.log_z}
    numbers |= {"variance": measured.variance, "log_ratio": measured.log_ratio}
    numbers["beta"] = request.beta_for(measured.rows)
    numbers |= request.stated(measured.risk)
    estimate = request.estimate(measured.draws, delta, measured.risks, measured.variances, measured.trials)
    return bound.certify(numbers, delta, premises, estimate)


def _pooled_certificate(request: Request, measured: Measured, premises: Premises) -> Certificate:
    """Bound the average over the clients' rows: one draw is a hypothesis of every client."""
    risks = None if measured.risks is None else (measured.risks.T * measured.n).sum(1) / measured.n.sum()
    trials = None if measured.trials is None else measured.trials.sum()
    estimate = request.estimate(measured.draws, request.delta, risks, trials=trials)
    numbers = (measured.risk, measured.kl, measured.n, request.delta, premises)
    return bounds.size_weighted(*numbers, bound=request.record, monte_carlo=estimate)


def _lines(
    name: str,
    group: BoundRows,
    usable: Tensor,
    measured: Measured,
    certificate: Certificate,
    trivial: Tensor,
    beside: Certificate | None,
) -> list[CertifiedClient]:
    names = [client for client, good in zip(group.rows.names, usable.tolist(), strict=True) if good]
    nothing = torch.full_like(certificate.value, math.nan)
    fixed = (nothing, nothing) if beside is None else (beside.terms["risk"], beside.value)
    terms = certificate.terms  # of which a hold-out bound may count rows of its own
    own = terms.get("risk", measured.risk), terms.get("n", measured.n)
    first = (*own, terms.get("kl", measured.kl), certificate.value, measured.test_risk, measured.test_rows)
    columns = (*first, group.repeats.left_out[usable], trivial, *fixed, measured.share)
    return [
        CertifiedClient(client, name, int(n), risk, kl, value, test_risk, int(tested), int(repeats), *more)
        for client, risk, n, kl, value, test_risk, tested, repeats, *more in zip(
            names, *(column.tolist() for column in columns), strict=True
        )
    ]


def checked(tables: Sequence[CertifiedRun], *known: Bound) -> None:
    """Compute every certificate of some tables again.

    Args:
        tables: as `results.certificates.tables_of` reads them.
        *known: records of bounds that are not in the table of bounds.

    Raises:
        DataError: naming the table of which a record was edited or does not give its value.

    Warns:
        UserWarning: naming tables of bounds of one's own that are not known here, and so were not computed again.
    """
    unknown = list[str]()
    for table in tables:
        for name, record in [*table.certificates.items(), *table.summary.items(), *table.holdout.items()]:
            try:
                bounds.from_record(record, *known)
            except DataError as error:
                if of_another_bound(record, *known):
                    unknown.append(table.stem)
                    continue
                what = f"certificates {table.stem} of {name} clients: {error}"
                raise DataError(what, hint="certify again") from error
    if unknown:
        names = ", ".join(dict.fromkeys(unknown))
        warnings.warn(
            f"certificates {names}: of a bound of one's own, not computed again", stacklevel=caller_stacklevel()
        )
