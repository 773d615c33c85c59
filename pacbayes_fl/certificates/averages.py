"""Bounds on clients on average, under PAC-PFL's hyper-posterior: the repaired Theorem 4.2 and Lemma 4.6.

Each client responds to a prior of the hyper-posterior with its GP posterior, or with the prior itself where that has
the smaller free energy, which then never leaves the range of the loss.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.bounds import BoundedLoss, Certificate, Premises, Provenance
from pacbayes_fl.bounds.risk import function_losses, function_risks
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.certificates.rows import BoundRows, none_of
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.federation import client_calls
from pacbayes_fl.noise import generator_from_text
from pacbayes_fl.posteriors.hyper_posterior import SmoothedHyperPosterior
from pacbayes_fl.posteriors.predictive import LearnedPriors
from pacbayes_fl.results.certificates import CertifiedClient
from pacbayes_fl.study.run import Trained


class ClientResponses(NamedTuple):
    """How clients respond to priors, float64.

    Args:
        energy: free energy of the response [K, S], in the unit of the loss.
        risk: its empirical risk [K, S].
        kl: its divergence from the prior [K, S], in nats.
        test_risk: [K, S]; NaN without test rows.
    """

    energy: Tensor
    risk: Tensor
    kl: Tensor
    test_risk: Tensor


def certify_average(
    trained: Trained, rows: BoundRows, request: Request, premises: Premises, group: str
) -> tuple[Certificate, CertifiedClient]:
    """Bound the average risk of the clients of a run, or of new clients.

    Without `request.smooth` the hyper-posterior's particles, which have not seen the rows, are the hyper-prior too, and
    they cost nothing; with it they are blurred and compared with the data-free hyper-prior.

    Args:
        trained: a run of PAC-PFL on functions.
        rows: of the clients, none of them seen by their priors.
        request: which bound.
        premises: of the rows and the hyper-prior.
        group: of the clients.

    Returns:
        The certificate, and its line of the table.

    Raises:
        AssumptionError: for another method, or when no number can be formed.
    """
    bound, priors = request.record, trained.method.learned_priors(trained.state.server)
    if priors is None:
        raise AssumptionError(
            f"the bound {bound.name!r} is about one hyper-posterior over functions",
            hint="pac-pfl with report.certify.scheme = 'split', or with new clients",
        )
    theta, kl, estimate = priors.particles, torch.zeros((), dtype=torch.float64), None
    drawn = trained.study.report.certify.drawn_clients
    premises = replace(premises, posterior="no worse than the prior", drawn_clients=drawn)
    if request.smooth is not None:
        if trained.groups["existing"].shared.linear is not None:
            what = "learning started at a ridge regression of the clients' rows, so that no hyper-prior is data-free"
            raise AssumptionError(what, hint="run the study with model.linear = 'zero', or leave the blur out")
        smooth = SmoothedHyperPosterior(priors.particles, request.smooth, priors.hyper_prior)
        theta = smooth.sample(request.draws, generator_from_text(f"certify/{trained.study.seed}"))
        kl, estimate = smooth.kl().cpu(), request.estimate(request.draws, request.delta)
        premises = replace(premises, prior=Provenance("data-free"))
    n = rows.repeats.n
    beta = request.beta_for(n + rows.repeats.left_out)  # of all rows: which of them count is no choice made before
    responses = respond_to_priors(trained, priors._replace(particles=theta), rows, premises.loss, beta)
    numbers = {"free_energy": responses.energy.mean(1), "beta": beta, "m": n, "kl": kl}
    certificate = bound.certify(numbers, request.delta, premises, estimate)
    name = f"average of {rows.rows.clients} clients"
    values = (
        responses.risk.mean(),
        kl + responses.kl.mean(1).sum(),
        certificate.value,
        responses.test_risk.mean(1).nanmean(),
    )
    risk, spent, value, test_risk = (float(value) for value in values)
    counts = int(n.sum()), int(rows.test.size.sum()), int(rows.repeats.left_out.sum())
    line = CertifiedClient(name, group, counts[0], risk, spent, value, test_risk, *counts[1:])
    return certificate, line


def respond_to_priors(
    trained: Trained, priors: LearnedPriors, of: BoundRows, loss: BoundedLoss, beta: Tensor
) -> ClientResponses:
    """Let every client respond to every prior: with its posterior, or the prior where that has less free energy.

    F_i(P) = min(L^(Q_i) + KL(Q_i || P) / beta_i, L^(P))

    Args:
        trained: the run.
        priors: S of them.
        of: rows of the clients.
        loss: whose risk is bounded.
        beta: of every client [K], in 1 / unit of the loss.

    Returns:
        Free energies and risks of the responses.
    """
    theta, step = priors.particles, priors.at_once
    sizes = [int(m) for m in of.rows.size.tolist()]
    shape = (len(sizes), len(theta))
    columns = [torch.empty(shape, dtype=torch.float64, device=of.rows.x.device) for _ in ClientResponses._fields]
    for positions in client_calls.parts(trained.method, sizes, list(range(len(sizes))), trained.study.plan):
        index = torch.tensor(positions)
        rows, test = of.rows.select(index).trim(), of.test.select(index).trim()
        at = index.to(rows.x.device)
        repeats = of.repeats.select(index, rows.mask.shape[1])
        for start in range(0, len(theta), step):
            subset = theta[start : start + step].expand(len(positions), -1, -1)
            posterior, prior = (priors.condition(subset, batch) for batch in (rows, none_of(rows)))
            risk, before = (repeats.risk(function_losses(one, rows, loss)) for one in (posterior, prior))
            kl = posterior.kl().double()
            energy = risk + kl / beta[index].to(kl).unsqueeze(1)
            better = energy <= before  # False also for NaN, of a covariance that could not be factored
            on_test, instead = (function_risks(one, test, loss) for one in (posterior, prior))
            chosen = torch.where(better, energy, before), torch.where(better, risk, before)
            more = torch.where(better, kl, 0.0), torch.where(better, on_test, instead)
            for column, value in zip(columns, (*chosen, *more), strict=True):
                column[at, start : start + step] = value
    return ClientResponses(*(column.cpu() for column in columns))
