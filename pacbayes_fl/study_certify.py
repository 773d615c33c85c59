"""Certificates of a finished run: bounds on each client's true risk, from its folder alone.

A client's prior P is what the run knew of it without the rows of the bound: of a run with `report.certify`, its model
after the training on its other rows ("split") or the hyper-posterior that was trained without it ("folds"); of a client
that never trained, what the server knows. Its posterior Q has seen the rows of the bound too. The bound is on the risk
of Q as a Gibbs predictor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import bounds, study_certify_average, tensors
from pacbayes_fl.bounds import BoundedLoss, Certificate, Premises, Provenance
from pacbayes_fl.bounds.risk import gibbs_risk, listed_risks
from pacbayes_fl.errors import AssumptionError, PrivacyError
from pacbayes_fl.federation import engine
from pacbayes_fl.methods.base import Refined
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.base import Listed
from pacbayes_fl.results_certificates import CertifiedClient, CertifiedRun
from pacbayes_fl.study import Trained
from pacbayes_fl.study_certify_request import AVERAGES, Request
from pacbayes_fl.study_certify_rows import Evidence, evidence_of, independent
from pacbayes_fl.study_file import Study

_DRAWING = 2**32 - 3  # rounds of the noise that draws hypotheses and that refines posteriors: no run gets there
_REFINING = 2**32 - 4
_TEST_DRAWS = 100  # of a risk that is shown and bounds nothing
_POOLED = ("seeger", "mcallester", "pbb-quadratic", "pbb-lambda")


class Measured(NamedTuple):
    """Numbers of the clients of a group, float64.

    Args:
        risk: empirical [K].
        kl: [K], in nats.
        n: rows of the bound [K].
        test_risk: [K], NaN without test rows.
        log_z: ln Z of the exact Gibbs posterior [K], where that is what is certified.
        draws: hypotheses that were drawn, if any.
    """

    risk: Tensor
    kl: Tensor
    n: Tensor
    test_risk: Tensor
    log_z: Tensor | None
    draws: int | None


def certify(trained: Trained, request: Request) -> CertifiedRun:
    """Bound the true risk of every client of a finished run.

    Args:
        trained: as `study.open_run` gives it.
        request: which bound, on which loss.

    Returns:
        A line a client; groups without a certificate have none, and their reasons.

    Raises:
        AssumptionError: when the method's models are no posteriors, the loss is not for the run's predictions, or no
            number can be formed.
    """
    study = trained.study
    loss = request.loss or (bounds.SaturatingSquare() if trained.dataset.classes is None else bounds.ZeroOne())
    reasons: dict[str, list[str]] = {}
    lines: list[CertifiedClient] = []
    certificates: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    theorem = risk = ""
    for name, group in trained.groups.items():
        if request.bound in AVERAGES and name != study_certify_average.GROUPS[request.bound]:
            continue
        found = evidence_of(trained, name, group, request.bound in AVERAGES)
        if found is None:
            reasons[name] = [Premises(Provenance("saw the rows"), True).broken()[0]]
            continue
        if request.bound == "theorem-3.2" and found.prior.source != "eps-DP":
            reasons[name] = [f"Theorem 3.2 is for a prior that was drawn with eps-DP, and this one is {found.prior}"]
            continue
        if not (_row_by_row(trained) or bool(found.seen.mask.any())):
            reasons[name] = ["the network normalises by rows that the prior has seen, and this one has seen none"]
            continue
        premises = Premises(found.prior, independent(study), loss, tried=request.tried)
        if request.bound in AVERAGES:
            certificate, line = study_certify_average.certify_average(trained, found, request, premises, name)
            lines.append(line)
        else:
            measured = measure(trained, found, loss, request)
            certificate = bound(request, measured, premises, found.rows.clients if request.jointly else 1)
            lines += _lines(name, found, measured, certificate)
            if request.bound in _POOLED:
                summary[name] = bounds.to_record(_together(request, measured, premises))
        theorem, risk = certificate.theorem, certificate.risk
        reasons[name] = list(certificate.reasons)
        certificates[name] = bounds.to_record(certificate)
    if not reasons:
        raise AssumptionError(f"the run has no clients that {request.bound!r} is about", hint="run with new clients")
    return CertifiedRun(
        study.name,
        study.method.name,
        study.seed,
        request.bound,
        theorem,
        risk,
        loss.low,
        loss.high,
        request.delta,
        tuple(lines),
        reasons,
        summary,
        certificates,
        _labels(study, request),
    )


def _row_by_row(trained: Trained) -> bool:
    """Whether the loss of a row depends on that row alone, as bounds need it, where there are no rows of before."""
    return bool(getattr(getattr(trained.method, "model", None), "row_by_row", True))


def calls(trained: Trained, found: Evidence) -> Iterator[tuple[Tensor, Refined, Any, Evidence]]:
    """Give every client its prior and its posterior, a few at a time.

    Args:
        trained: the run.
        found: the clients' rows.

    Yields:
        Positions [k] of the clients, their posterior and KL divergence, their prior, and their rows.
    """
    method, plan = trained.method, trained.study.plan
    sizes = [int(a + b) for a, b in zip(found.seen.size.tolist(), found.rows.size.tolist(), strict=True)]
    message = method.broadcast(found.state.server)
    for positions in engine.parts(method, sizes, list(range(len(sizes))), plan):
        index = torch.tensor(positions)
        seen, rows, test = (batch.select(index).trim() for batch in (found.seen, found.rows, found.test))
        state = tensors.select(found.state.clients, index.to(rows.x.device))
        noise = Noise(plan.seed, 0, rows.ids, rows.x.device, plan.noise)
        prior = method.personalise(message, state, seen, noise)
        apart = Noise(plan.seed, _REFINING, rows.ids, rows.x.device, plan.noise)
        refined = method.refine(prior, seen, rows, apart)
        some = Evidence(found.state._replace(clients=state), seen, rows, test, found.prior)
        yield index.to(rows.x.device), refined, prior, some


def measure(trained: Trained, found: Evidence, loss: BoundedLoss, request: Request) -> Measured:
    """Take the numbers that a bound is made of.

    Args:
        trained: the run.
        found: the clients' rows.
        loss: whose risk is bounded.
        request: gives the draws, and beta of an exact Gibbs posterior.

    Returns:
        The numbers of all clients, in their order.
    """
    plan, clients = trained.study.plan, found.rows.clients
    columns = [torch.full((clients,), math.nan, dtype=torch.float64, device=found.rows.x.device) for _ in range(4)]
    draws: int | None = None
    n = found.rows.size.to(found.rows.x.device)
    for index, (posterior, kl), prior, some in calls(trained, found):
        noise = Noise(plan.seed, _DRAWING, some.rows.ids, some.rows.x.device, plan.noise)
        if request.bound == "gibbs":
            values = _exact_gibbs(prior, some, loss, request.beta_for(n[index]))
        else:
            on_rows = gibbs_risk(posterior, some.rows, loss, request.draws, noise)
            on_test = gibbs_risk(posterior, some.test, loss, min(request.draws, _TEST_DRAWS), noise)
            draws = on_rows.draws
            values = (on_rows.risk, kl, on_test.risk, torch.full_like(kl, math.nan))
        for column, value in zip(columns, values, strict=True):
            column[index] = value.double()
    risk, kl, test_risk, log_z = (column.cpu() for column in columns)
    return Measured(risk, kl, n.cpu(), test_risk, log_z if request.bound == "gibbs" else None, draws)


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
    return (weights * risks).sum(1), bounds.discrete_kl(weights, before), (weights * on_test).sum(1), log_z


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
        return bounds.gibbs(measured.log_z, measured.n, request.beta_for(measured.n), delta, exact)
    numbers: dict[str, Any] = {} if request.beta is None else {"beta": request.beta_for(measured.n)}
    numbers |= {"delta": delta, "premises": premises, "monte_carlo": request.estimate(measured.draws, delta)}
    return bounds.BOUNDS[request.bound](measured.risk, measured.kl, measured.n, **numbers)


def _together(request: Request, measured: Measured, premises: Premises) -> Certificate:
    """Bound the average over the clients' rows."""
    estimate = request.estimate(measured.draws, request.delta)
    numbers = (measured.risk, measured.kl, measured.n, request.delta, premises)
    return bounds.pooled(*numbers, bound=bounds.BOUNDS[request.bound], monte_carlo=estimate)


def _lines(group: str, found: Evidence, measured: Measured, certificate: Certificate) -> list[CertifiedClient]:
    columns = (measured.n, measured.risk, measured.kl, certificate.value, measured.test_risk, found.test.size)
    lists = (column.tolist() for column in columns)
    return [
        CertifiedClient(name, group, int(n), risk, kl, value, test_risk, int(tested))
        for name, n, risk, kl, value, test_risk, tested in zip(found.rows.names, *lists, strict=True)
    ]


def _labels(study: Study, request: Request) -> dict[str, Any]:
    part = study.report.certify
    existing = {
        "none": "all rows, which the training has seen; prior: what the server knows, if it was released privately",
        "split": f"a random share {1 - part.share:g} of the training rows, which the training has not seen; prior: "
        + ("the client's model after it" if part.prior == "personal" else "what the server knows after it"),
        "folds": f"all rows; prior: that of {part.folds} hyper-posteriors which the client's fold had no part in",
    }
    rows = {"existing": existing[part.scheme], "new": "all rows; prior: what the server knows"}
    posterior = "the Gibbs predictor of the prior, refined by the rows of the bound"
    if request.bound in AVERAGES:
        whose = "the particles" if request.smooth is None else f"particles blurred by {request.smooth:g}"
        rows = {
            name: f"{text.partition(';')[0]}; priors: {whose} of the hyper-posterior" for name, text in rows.items()
        }
        posterior = (
            "each client's Gibbs predictor under every prior, or the prior itself where that has less free energy"
        )
    return {
        "scheme": part.scheme,
        "rows": rows,
        "posterior": posterior,
        "draws": request.draws,
        "jointly": request.jointly,
        "tried": request.tried,
        "test_risk": "of the same predictor on the client's test rows, which nothing has seen",
    }


def certifiable(folder: Path) -> tuple[Study, Path]:
    """Say which run would have certificates for existing clients: that in the folder, or one yet to be made.

    Args:
        folder: of a finished run.

    Returns:
        The study of that run, and its folder, which is `folder` itself or beside it.

    Raises:
        StudyError: when the folder is not a run's.
        PrivacyError: when the run is private, so that training again would be another release.
    """
    study = Study.from_toml(folder / "study.toml")
    if study.report.certify.scheme != "none":
        return study, folder
    if study.privacy.epsilon is not None:
        what = "a private run is not trained again: the releases of both would add up, in two ledgers"
        raise PrivacyError(what, hint="run the study anew with report.certify.scheme = 'split' from the start")
    certify = replace(study.report.certify, scheme="split")
    return replace(study, report=replace(study.report, certify=certify)), folder.with_name(f"{folder.name}-certify")
