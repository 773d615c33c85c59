"""Bounds on clients on average, under PAC-PFL's hyper-posterior: the repaired Theorem 4.2 and Lemma 4.6.

Each client responds to a prior of the hyper-posterior with its GP posterior, with that of a power of its rows'
likelihood, or with the prior itself, whichever has the smallest free energy, which then never leaves the range of the
loss.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.bounds import BoundedLoss, Certificate, Premises, Provenance
from pacbayes_fl.bounds.risk import function_losses, function_risks
from pacbayes_fl.certificates.choice import POWERS
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
    """What clients may answer to priors with: one of A posteriors, or the prior itself; float64.

    Args:
        risk: empirical risks of the posteriors [A, K, S], in the unit of the loss.
        kl: their divergence from the prior [A, K, S], in nats.
        before: empirical risk of the prior [K, S].
        test_risk: of the posteriors [A, K, S]; NaN without test rows.
        test_before: of the prior [K, S].
    """

    risk: Tensor
    kl: Tensor
    before: Tensor
    test_risk: Tensor
    test_before: Tensor

    def at(self, beta: Tensor) -> ClientResponses:
        """Answer with the least free energy: F_i(P) = min(min_a L^(Q_ia) + KL(Q_ia || P) / beta_i, L^(P)).

        Args:
            beta: of every client [K], in 1 / unit of the loss.

        Returns:
            Risks and divergences of the answers [K, S]; `before` is their free energy.
        """
        energies = (self.risk + self.kl / beta.unsqueeze(1)).nan_to_num(torch.inf)  # of a covariance without a factor
        energy, which = energies.min(0)
        several = self.risk, self.kl, self.test_risk
        risk, kl, on_test = (one.gather(0, which.unsqueeze(0)).squeeze(0) for one in several)
        better = energy <= self.before
        return ClientResponses(
            torch.where(better, risk, self.before),
            torch.where(better, kl, 0.0),
            torch.where(better, energy, self.before),
            torch.where(better, on_test, self.test_before),
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
        Risks of the posteriors, of all rows and of powers of their likelihood, and of the priors.
    """
    theta, step = priors.particles, priors.at_once
    sizes = [int(m) for m in of.rows.size.tolist()]
    shape, device = (1 + len(POWERS), len(sizes), len(theta)), of.rows.x.device
    several = [torch.full(shape, torch.nan, dtype=torch.float64, device=device) for _ in range(3)]
    once = [torch.empty(shape[1:], dtype=torch.float64, device=device) for _ in range(2)]
    everybody = list(range(len(sizes)))
    for positions in client_calls.parts(trained.method, sizes, everybody, trained.study.plan, device):
        index = torch.tensor(positions)
        rows, test = of.rows.select(index).trim(), of.test.select(index).trim()
        at = index.to(rows.x.device)
        repeats = of.repeats.select(index, rows.mask.shape[1])
        for start in range(0, len(theta), step):
            subset = theta[start : start + step].expand(len(positions), -1, -1)
            those = slice(start, start + step)
            prior = priors.condition(subset, none_of(rows))
            weaker = [None if priors.temper is None else priors.temper(subset, rows, power) for power in POWERS]
            for place, answer in enumerate([priors.condition(subset, rows), *weaker]):
                if answer is not None:
                    risk = repeats.risk(function_losses(answer, rows, loss))
                    values = risk, answer.kl().double(), function_risks(answer, test, loss)
                    for column, value in zip(several, values, strict=True):
                        column[place, at, those] = value
            once[0][at, those] = repeats.risk(function_losses(prior, rows, loss))
            once[1][at, those] = function_risks(prior, test, loss)
    (risk, kl, on_test), (before, instead) = ([column.cpu() for column in columns] for columns in (several, once))
    return ClientResponses(risk, kl, before, on_test, instead)
