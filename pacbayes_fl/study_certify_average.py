"""Bounds on clients on average, under PAC-PFL's hyper-posterior: the repaired Theorem 4.2 and Lemma 4.6.

A prior that the hyper-posterior gives is answered by each client with its GP posterior, or with the prior itself where
that has the smaller free energy, which then never leaves the range of the loss.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import bounds
from pacbayes_fl.bounds import BoundedLoss, Certificate, Premises, Provenance
from pacbayes_fl.bounds.risk import function_losses, function_risks
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.federation import engine
from pacbayes_fl.methods.folded import Folded
from pacbayes_fl.methods.pac_pfl import PacPFL
from pacbayes_fl.noise import generator_of
from pacbayes_fl.posteriors.gaussian_process import condition
from pacbayes_fl.posteriors.particles import SmoothedHyperPosterior
from pacbayes_fl.results_certificates import CertifiedClient
from pacbayes_fl.study import Trained
from pacbayes_fl.study_certify_request import Request
from pacbayes_fl.study_certify_rows import Evidence, none_of

GROUPS = MappingProxyType({"server": "existing", "new-clients": "new"})
"""Whose rows a bound stands on."""


class Answers(NamedTuple):
    """What clients make of priors, float64.

    Args:
        energy: free energy of the answer [K, S], in the unit of the loss.
        risk: its empirical risk [K, S].
        kl: its divergence from the prior [K, S], in nats.
        test_risk: [K, S]; NaN without test rows.
    """

    energy: Tensor
    risk: Tensor
    kl: Tensor
    test_risk: Tensor


def certify_average(
    trained: Trained, found: Evidence, request: Request, premises: Premises, group: str
) -> tuple[Certificate, CertifiedClient]:
    """Bound the average risk of the clients of a run, or of clients like those that never trained.

    Without `request.smooth` the hyper-posterior's particles, which have not seen the rows, are the hyper-prior too, and
    nothing is paid for them; with it they are blurred and compared with the hyper-prior that was there before any rows.

    Args:
        trained: a run of PAC-PFL on functions.
        found: the clients' rows, none of them seen by their priors.
        request: which bound.
        premises: of the rows and the hyper-prior.
        group: of the clients.

    Returns:
        The certificate, and its line of the table.

    Raises:
        AssumptionError: for another method, or when no number can be formed.
    """
    method = trained.method
    if isinstance(method, Folded) or not isinstance(method, PacPFL):
        raise AssumptionError(
            f"the bound {request.bound!r} is about one hyper-posterior over functions",
            hint="pac-pfl with report.certify.scheme = 'split', or with new clients for 'new-clients'",
        )
    particles = trained.state.server.particles
    theta, kl, estimate = particles, torch.zeros((), dtype=torch.float64), None
    drawn = trained.study.report.certify.drawn_clients
    premises = replace(premises, posterior="no worse than the prior", drawn_clients=drawn)
    if request.smooth is not None:
        smooth = SmoothedHyperPosterior(particles, request.smooth, method.hyper_prior)
        theta = smooth.sample(request.draws, generator_of(f"certify/{trained.study.seed}"))
        kl, estimate = smooth.kl().cpu(), request.estimate(request.draws, request.delta)
        premises = replace(premises, prior=Provenance("data-free"))
    n = found.repeats.n
    beta = request.beta_for(n + found.repeats.left_out)  # of all rows: which of them count is no choice made before
    answers = answer(trained, method, theta, found, premises.loss, beta)
    numbers: dict[str, Any] = {"delta": request.delta, "premises": premises, "monte_carlo": estimate}
    apply = bounds.SERVER_BOUNDS[request.bound]
    certificate = apply(answers.energy.mean(1), beta, n, kl, **numbers)
    name = f"average of {found.rows.clients} clients"
    values = (
        answers.risk.mean(),
        kl + answers.kl.mean(1).sum(),
        certificate.value,
        answers.test_risk.mean(1).nanmean(),
    )
    risk, spent, value, test_risk = (float(value) for value in values)
    counts = int(n.sum()), int(found.test.size.sum()), int(found.repeats.left_out.sum())
    line = CertifiedClient(name, group, counts[0], risk, spent, value, test_risk, *counts[1:])
    return certificate, line


def answer(
    trained: Trained, method: PacPFL, theta: Tensor, found: Evidence, loss: BoundedLoss, beta: Tensor
) -> Answers:
    """Let every client answer every prior.

    F_i(P) = min(L^(Q_i) + KL(Q_i || P) / beta_i, L^(P))

    Args:
        trained: the run.
        method: whose priors they are.
        theta: priors [S, D].
        found: the clients' rows.
        loss: whose risk is bounded.
        beta: of every client [K], in 1 / unit of the loss.

    Returns:
        Free energies and risks of the answers.
    """
    sizes = [int(m) for m in found.rows.size.tolist()]
    shape = (len(sizes), len(theta))
    columns = [torch.empty(shape, dtype=torch.float64, device=found.rows.x.device) for _ in Answers._fields]
    for positions in engine.parts(method, sizes, list(range(len(sizes))), trained.study.plan):
        index = torch.tensor(positions)
        rows, test = found.rows.select(index).trim(), found.test.select(index).trim()
        at = index.to(rows.x.device)
        for start in range(0, len(theta), method.particles):
            some = theta[start : start + method.particles].expand(len(positions), -1, -1)
            posterior, prior = (condition(method.model, some, batch, "equal") for batch in (rows, none_of(rows)))
            repeats = found.repeats.select(index, rows.mask.shape[1])
            risk, before = (repeats.risk(function_losses(one, rows, loss)) for one in (posterior, prior))
            kl = posterior.kl().double()
            energy = risk + kl / beta[index].to(kl).unsqueeze(1)
            better = energy <= before  # False also for NaN, of a covariance that could not be factored
            on_test, instead = (function_risks(one, test, loss) for one in (posterior, prior))
            chosen = torch.where(better, energy, before), torch.where(better, risk, before)
            more = torch.where(better, kl, 0.0), torch.where(better, on_test, instead)
            for column, value in zip(columns, (*chosen, *more), strict=True):
                column[at, start : start + method.particles] = value
    return Answers(*(column.cpu() for column in columns))
