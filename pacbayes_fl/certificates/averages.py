"""Bounds on clients on average, under PAC-PFL's hyper-posterior: the repaired Theorem 4.2 and Lemma 4.6.

Each client responds to a prior of the hyper-posterior with its GP posterior, or with the prior itself where that has
the smaller free energy, which then never leaves the range of the loss.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

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

_FACTORS: Final = (1.0, 2.0, 4.0, 8.0)
"""Times the rows: values of beta that are tried where none was given, each at a fourth of delta."""


class ClientResponses(NamedTuple):
    """What clients may answer to priors with: the posterior, or the prior itself; float64.

    Args:
        risk: empirical risk of the posterior [K, S], in the unit of the loss.
        kl: its divergence from the prior [K, S], in nats.
        before: empirical risk of the prior [K, S].
        test_risk: of the posterior [K, S]; NaN without test rows.
        test_before: of the prior [K, S].
    """

    risk: Tensor
    kl: Tensor
    before: Tensor
    test_risk: Tensor
    test_before: Tensor

    def at(self, beta: Tensor) -> ClientResponses:
        """Answer by the posterior where it has no more free energy: F_i(P) = min(L^(Q_i) + KL / beta_i, L^(P)).

        Args:
            beta: of every client [K], in 1 / unit of the loss.

        Returns:
            Risks and divergences of the answers; `before` is their free energy.
        """
        energy = self.risk + self.kl / beta.unsqueeze(1)
        better = energy <= self.before  # False also for NaN, of a covariance that could not be factored
        return ClientResponses(
            torch.where(better, self.risk, self.before),
            torch.where(better, self.kl, 0.0),
            torch.where(better, energy, self.before),
            torch.where(better, self.test_risk, self.test_before),
            self.test_before,
        )


def certify_average(
    trained: Trained, rows: BoundRows, request: Request, premises: Premises, group: str
) -> tuple[Certificate, CertifiedClient]:
    """Bound the average risk of the clients of a run, or of new clients.

    Without a beta in the request several are tried, powers of 2 times the rows, each at its share of delta.

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
    n, every = rows.repeats.n, rows.repeats.n + rows.repeats.left_out  # which of them count was no choice made before
    betas = [every * factor for factor in _FACTORS] if request.beta is None else [request.beta_for(every)]
    if premises.tried is not None:
        premises = replace(premises, tried=premises.tried * len(betas))
    responded = respond_to_priors(trained, priors._replace(particles=theta), rows, premises.loss)
    certificates = []
    for beta in betas:
        numbers = {"free_energy": responded.at(beta).before.mean(1), "beta": beta, "m": n, "kl": kl}
        certificates.append(bound.certify(numbers, request.delta, premises, estimate))
    best = min(range(len(betas)), key=lambda place: certificates[place].value.item())
    certificate, responses = certificates[best], responded.at(betas[best])
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


def respond_to_priors(trained: Trained, priors: LearnedPriors, of: BoundRows, loss: BoundedLoss) -> ClientResponses:
    """Condition every client on its rows under every prior.

    Args:
        trained: the run.
        priors: S of them.
        of: rows of the clients.
        loss: whose risk is bounded.

    Returns:
        Risks of the posteriors and of the priors.
    """
    theta, step = priors.particles, priors.at_once
    sizes = [int(m) for m in of.rows.size.tolist()]
    shape, device = (len(sizes), len(theta)), of.rows.x.device
    columns = [torch.empty(shape, dtype=torch.float64, device=device) for _ in ClientResponses._fields]
    everybody = list(range(len(sizes)))
    for positions in client_calls.parts(trained.method, sizes, everybody, trained.study.plan, device):
        index = torch.tensor(positions)
        rows, test = of.rows.select(index).trim(), of.test.select(index).trim()
        at = index.to(rows.x.device)
        repeats = of.repeats.select(index, rows.mask.shape[1])
        for start in range(0, len(theta), step):
            subset = theta[start : start + step].expand(len(positions), -1, -1)
            posterior, prior = (priors.condition(subset, batch) for batch in (rows, none_of(rows)))
            risk, before = (repeats.risk(function_losses(one, rows, loss)) for one in (posterior, prior))
            on_test, instead = (function_risks(one, test, loss) for one in (posterior, prior))
            values = risk, posterior.kl().double(), before, on_test, instead
            for column, value in zip(columns, values, strict=True):
                column[at, start : start + step] = value
    return ClientResponses(*(column.cpu() for column in columns))
