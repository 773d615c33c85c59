"""Bounds on clients on average, term by term against dense Gaussian processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.bounds import SaturatingSquare, from_record, full_gaussian_kl
from pacbayes_fl.certificates.choice import POWERS
from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.methods.base import Method
from pacbayes_fl.noise import Noise, generator_from_text
from pacbayes_fl.posteriors.hyper_posterior import SmoothedHyperPosterior
from pacbayes_fl.posteriors.predictive import LearnedPriors
from pacbayes_fl.results.certificates import CertifiedRun
from pacbayes_fl.study.run import Trained, train
from tests.tiny import tiny

SPLIT, DRAWN = "report.certify.scheme=split", "report.certify.drawn_clients=true"
LOSS = SaturatingSquare()
Made = Callable[..., Trained]


@pytest.fixture(scope="module")
def made() -> Made:
    known: dict[tuple[str, ...], Trained] = {}

    def make(*sets: str) -> Trained:
        if sets not in known:
            known[sets] = train(tiny(*sets))
        return known[sets]

    return make


def energy(trained: Trained, theta: Tensor, x: Tensor, y: Tensor, beta: float) -> float:
    """Free energy of a client's answer to one prior, with dense matrices."""
    prior, noise = trained.method.model.prior(theta.view(1, 1, -1), x.unsqueeze(0))
    mean, covariance, s2 = prior.mean[0, 0].detach(), prior.covariance_matrix[0, 0].detach(), noise[0, 0].detach()
    jitter = 1e-9 * torch.eye(len(x), dtype=torch.float64)
    answers = [float(LOSS.expected(mean, covariance.diagonal(), y).mean())]
    for power in (1.0, *POWERS):
        gain = covariance @ torch.linalg.inv(covariance + s2.diag() / power)
        after_mean, after = mean + gain @ (y - mean), covariance - gain @ covariance
        kl = float(full_gaussian_kl(after_mean, after + jitter, mean, covariance + jitter))
        answers.append(float(LOSS.expected(after_mean, after.diagonal(), y).mean()) + kl / beta)
    return min(answers)


def held_rows(trained: Trained) -> list[tuple[Tensor, Tensor]]:
    """Rows of the bound in units of the rows that the training saw."""
    out = []
    raw, held = trained.groups["existing"].raw.train, trained.bound_rows
    assert held is not None
    for k in range(held.clients):
        seen_x, seen_y = raw.x[k][raw.mask[k]], raw.y[k][raw.mask[k]]
        x, y = held.x[k][held.mask[k]], held.y[k][held.mask[k]]
        scaled = (x - seen_x.mean(0)) / seen_x.std(0, correction=0), (y - seen_y.mean()) / seen_y.std(correction=0)
        out.append(scaled)
    return out


def only(table: CertifiedRun, group: str) -> float:
    (line,) = table.clients
    assert line.group == group and line.name == f"average of {2 if group == 'new' else 4} clients"
    assert table.reasons == {group: []}
    return line.bound


@pytest.mark.parametrize("beta", [None, 3.0])
def test_the_server_bound_of_particles_that_saw_other_rows(made: Made, beta: float | None) -> None:
    trained = made(SPLIT)
    value = only(certify(trained, Request("server", beta=beta)), "existing")
    betas = [beta] if beta else [3.0, 6.0, 12.0, 24.0]  # rows: 7 - 4
    particles, expected = trained.state.server.particles, []
    for b in betas:
        energies = [energy(trained, one, x, y, b) for x, y in held_rows(trained) for one in particles]
        total = sum(energies) / len(energies) + math.log(20 * len(betas)) / (4 * b)
        expected.append(math.expm1(-b / 3 * total) / math.expm1(-b / 3))
    assert value == pytest.approx(min(expected), abs=1e-4)  # the dense oracle needs jitter


def test_a_blurred_hyper_posterior_pays_for_its_distance_from_the_hyper_prior(made: Made) -> None:
    trained = made(SPLIT, "model.linear=zero")
    table = certify(trained, Request("server", smooth=0.2, draws=6))
    smooth = SmoothedHyperPosterior(trained.state.server.particles, 0.2, trained.method.hyper_prior)  # type: ignore[attr-defined]
    theta = smooth.sample(6, generator_from_text(f"certify/{trained.study.seed}"))
    certificate = from_record(table.certificates["existing"])
    b = float(certificate.terms["beta"][0])
    energies = [energy(trained, one, x, y, b) for x, y in held_rows(trained) for one in theta]
    assert float(certificate.terms["free_energy"].mean()) == pytest.approx(sum(energies) / len(energies), abs=1e-4)
    assert float(certificate.terms["kl"]) == pytest.approx(float(smooth.kl()), rel=1e-12)
    assert certificate.prior.source == "data-free"
    assert certificate.delta_split["Monte Carlo"] == pytest.approx(0.01)
    assert b in (3.0, 6.0, 12.0, 24.0) and certificate.premises.tried == 4


def test_a_start_at_the_clients_ridge_regression_leaves_no_data_free_hyper_prior(made: Made) -> None:
    with pytest.raises(AssumptionError, match="learning started at a ridge regression") as caught:
        certify(made(SPLIT), Request("server", smooth=0.2, draws=6))
    assert "model.linear = 'zero'" in str(caught.value.hint)


def test_new_clients_on_average_need_the_declaration_that_they_are_drawn(made: Made) -> None:
    declared = certify(made(DRAWN), Request("new-clients"))
    assert only(declared, "new") == pytest.approx(from_record(declared.certificates["new"]).recompute().item())
    silent = certify(made(), Request("new-clients"))
    assert any("drawn_clients" in reason for reason in silent.reasons["new"])
    certificate = from_record(declared.certificates["new"])
    unit, rate = certificate.terms["free_energy"].mean(), float(certificate.terms["beta"]) / 7
    lam = math.sqrt(8 * 2 * math.log(80))  # two clients, and delta / 4 for each of four betas
    met = min(1.0, math.expm1(-lam / 2 * (float(unit) + math.log(80) / lam)) / math.expm1(-lam / 2))
    value = min(1.0, math.expm1(-rate * met) / math.expm1(-rate))
    assert float(certificate.value) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    ("sets", "bound", "words"),
    [
        ((), "server", "the prior saw the rows"),
        (("data.options.new_clients=0",), "new-clients", "no clients that 'new-clients' is about"),
        (("report.certify.scheme=folds",), "server", "one hyper-posterior over functions"),
        (("method.name=vanilla-gp", "method.steps=1"), "new-clients", "one hyper-posterior over functions"),
    ],
)
def test_runs_without_such_a_bound_say_why(made: Made, sets: tuple[str, ...], bound: str, words: str) -> None:
    if not sets:
        assert words in certify(made(), Request(bound)).reasons["existing"][0]
        return
    with pytest.raises(AssumptionError, match=words):
        certify(made(*sets), Request(bound))


@dataclass(frozen=True)
class Own(Method[Any, Any, Any, Any]):
    """A method of somebody else's, which only says that it learns priors, or that it does not."""

    inner: Any
    learns: bool = True

    def init_server(self, generator: torch.Generator) -> Any:
        return self.inner.init_server(generator)

    def init_clients(self, message: Any, batch: ClientBatch) -> Any:
        return self.inner.init_clients(message, batch)

    def broadcast(self, server: Any) -> Any:
        return self.inner.broadcast(server)

    def client(self, message: Any, state: Any, batch: ClientBatch, noise: Noise) -> Any:
        return self.inner.client(message, state, batch, noise)

    def server(self, server: Any, update: Any, n_clients: int) -> Any:
        return self.inner.server(server, update, n_clients)

    def personalise(self, message: Any, state: Any, batch: ClientBatch, noise: Noise) -> Any:
        return self.inner.personalise(message, state, batch, noise)

    def learned_priors(self, server: Any) -> LearnedPriors | None:
        if not self.learns:
            return None
        learned: LearnedPriors = self.inner.learned_priors(server)
        return learned._replace(at_once=1)


def test_a_method_that_says_what_priors_it_learned_has_bounds_on_averages_whatever_its_class(made: Made) -> None:
    trained = made(SPLIT)
    usual = only(certify(trained, Request("server")), "existing")
    own = only(certify(replace(trained, method=Own(trained.method)), Request("server")), "existing")
    assert own == pytest.approx(usual, rel=1e-9)
    with pytest.raises(AssumptionError, match="'server' is about one hyper-posterior over functions"):
        certify(replace(trained, method=Own(trained.method, learns=False)), Request("server"))
