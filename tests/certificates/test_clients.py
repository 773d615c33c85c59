"""Certificates of finished runs: every number by hand, and every premise that a run cannot vouch for."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl import bounds
from pacbayes_fl.bounds import BOUNDS, Provenance, SaturatingSquare, ZeroOne, from_record
from pacbayes_fl.bounds.risk import drawn_losses, finite_risks, gibbs_risk
from pacbayes_fl.certificates import measure
from pacbayes_fl.certificates.clients import certify, checked
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.errors import AssumptionError, DataError, PrivacyError
from pacbayes_fl.methods.base import RefinedPosterior
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.guarantees import replacement
from pacbayes_fl.privacy.mechanisms import Cohorts
from pacbayes_fl.results.certificates import CertifiedClient, CertifiedRun, load, tables_of
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import Trained, open_run, run, train
from pacbayes_fl.study.serving.predict import predict
from pacbayes_fl.study.serving.updates import update
from pacbayes_fl.study.uncertifiable import UNDECLARED
from tests.bounds.own import REFINED_PINSKER
from tests.tiny import Row, on_csv, quick, rows, tiny, write_csv
from tests.tiny_images import tiny_images, write_root

SPLIT, FOLDS = "report.certify.scheme=split", "report.certify.scheme=folds"


class Opened:
    """Run a study once and open its folder."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders, self._known = folders, dict[tuple[str, ...], Path]()

    def folder(self, *sets: str) -> Path:
        if sets not in self._known:
            self._known[sets] = self._folders.mktemp("run")
            run(tiny(*sets), self._known[sets])
        return self._known[sets]

    def __call__(self, *sets: str) -> Trained:
        return uncounted(self.folder(*sets))


def uncounted(folder: Path) -> Trained:
    """Open a run whose requests cost nothing, so that one test does not pay for another."""
    return replace(open_run(folder), folder=None)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return Opened(tmp_path_factory)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("images"))


def lines(table: CertifiedRun, group: str) -> list[CertifiedClient]:
    return [line for line in table.clients if line.group == group]


def standardised(x: Tensor, y: Tensor, over: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Bring rows into the units of other rows."""
    (a, b) = over
    return (x - a.mean(0)) / a.std(0, correction=0), (y - b.mean()) / b.std(correction=0)


def average_units(clients: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means and standard deviations of clients' rows, averaged over the clients."""
    each = [(x.mean(0), x.std(0, correction=0), y.mean(), y.std(correction=0)) for x, y in clients]
    a, b, c, d = (torch.stack(leaves).mean(0) for leaves in zip(*each, strict=True))
    return a, b, c, d


def gp(trained: Trained, theta: Tensor, x: Tensor, y: Tensor, new: Tensor) -> tuple[Tensor, Tensor, float]:
    """Posterior mean and covariance of one particle's GP at new inputs, densely; and its log evidence."""
    model = trained.method.model if hasattr(trained.method, "model") else trained.method.inner.model
    everything = torch.cat((x, new)).unsqueeze(0)
    prior, noise = model.prior(theta.view(1, 1, -1), everything)
    mean, covariance, s2 = prior.mean[0, 0].detach(), prior.covariance_matrix[0, 0].detach(), float(noise.unique())
    m = len(x)
    gram = covariance[:m, :m] + s2 * torch.eye(m, dtype=torch.float64)
    gain = covariance[m:, :m] @ torch.linalg.inv(gram)
    log_z = torch.distributions.MultivariateNormal(mean[:m], gram).log_prob(y) if m else torch.zeros(())
    after = covariance[m:, m:] - gain @ covariance[:m, m:]
    return mean[m:] + gain @ (y - mean[:m]), after, float(log_z)


def by_hand(
    trained: Trained, seen: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], theta: Tensor
) -> tuple[float, float]:
    """Empirical Gibbs risk on a client's rows, and KL of its mixture of GPs from what it was after the seen rows."""
    weights, divergences, risks = {"p": [], "q": []}, [], []  # type: ignore[var-annotated]
    everything = tuple(torch.cat(pair) for pair in zip(seen, own, strict=True))
    for one in theta:
        before_mean, before, log_p = gp(trained, one, *seen, own[0])
        mean, after, log_q = gp(trained, one, everything[0], everything[1], own[0])
        jitter = 1e-9 * torch.eye(len(own[0]), dtype=torch.float64)
        divergences.append(bounds.full_gaussian_kl(mean, after + jitter, before_mean, before + jitter))
        weights["p"].append(log_p)
        weights["q"].append(log_q)
        risks.append(SaturatingSquare().expected(mean, after.diagonal(), own[1]).mean())
    p, q = (torch.softmax(torch.tensor(weights[key], dtype=torch.float64), 0) for key in ("p", "q"))
    kl = bounds.mixture_kl(q, torch.stack(divergences), p)
    return float((q * torch.stack(risks)).sum()), float(kl)


def predicted(trained: Trained, k: int, x: Tensor) -> Tensor:
    """Means that `predict` gives for a client's scaled inputs [M, d], in scaled units."""
    group = trained.groups["existing"]
    name, used, raw = group.train.names[k], group.used, group.raw.train
    one_x, one_y = client_rows(raw, k)
    assert torch.allclose(used.y_mean[k], one_y.mean())
    mean = predict(trained, name, x * one_x.std(0, correction=0) + one_x.mean(0)).mean  # type: ignore[union-attr]
    return (mean - one_y.mean()) / one_y.std(correction=0)


def client_rows(batch: object, k: int) -> tuple[Tensor, Tensor]:
    return batch.x[k][batch.mask[k]], batch.y[k][batch.mask[k]]  # type: ignore[attr-defined]


def test_a_split_is_certified_from_its_own_half(opened: Opened) -> None:
    trained = opened(SPLIT)
    table = certify(trained, Request(posterior="refined"))
    assert trained.bound_rows is not None
    raw = trained.groups["existing"].raw.train
    for k, line in enumerate(lines(table, "existing")):
        units = client_rows(raw, k)
        seen = standardised(*units, units)
        own = standardised(*client_rows(trained.bound_rows, k), units)
        risk, kl = by_hand(trained, seen, own, trained.state.server.particles)
        assert (line.rows, line.risk) == (3, pytest.approx(risk, abs=1e-9))
        assert line.kl == pytest.approx(kl, abs=1e-4)  # the dense oracle needs jitter
        premises = bounds.Premises(Provenance("split"), True, SaturatingSquare())
        again = bounds.seeger(line.risk, line.kl, 3, 0.025, premises)  # the other half of delta is the hold-out bound's
        assert line.bound == pytest.approx(float(again.value), abs=1e-12)
        losses = SaturatingSquare()(predicted(trained, k, own[0]), own[1])
        assert line.holdout_risk == pytest.approx(float(losses.mean()), abs=1e-9)
        fixed = bounds.holdout_betting(losses, 0.025, premises).value
        assert line.holdout_bound == pytest.approx(float(fixed), abs=1e-9)
    assert table.reasons == {"existing": [], "new": []}


def test_rows_that_keep_arriving_are_certified_at_one_price(tmp_path: Path) -> None:
    """A bound at all numbers of rows is one request after any update; one at a fixed number is another each time."""
    path = write_csv(tmp_path / "rows.csv", rows(sizes=(9, 8), new=(7,)))
    folder = tmp_path / "run"
    run(on_csv(path, SPLIT, "report.certify.independent=true", "federation.rounds=1"), folder)
    first = certify(open_run(folder), Request("anytime", posterior="refined"))
    with pytest.raises(AssumptionError, match=r"no rows came after the training.*pacbayes-fl update"):
        certify(open_run(folder), Request("anytime", later=True))
    more = rows(5, sizes=(5,), new=(4,))
    for number, part in enumerate((more[::2], more)):
        update(open_run(folder), write_csv(tmp_path / f"{number}.csv", part))
        table = certify(open_run(folder), Request("anytime", posterior="refined", later=True))
        assert table.number == first.number == 1 and table.delta == first.delta
        came = {name: sum(row["client"] == name for row in part) for name in ("existing_0", "existing_1", "new_0")}
        assert [line.rows for line in table.clients] == [line.rows + came[line.name] for line in first.clients]
        assert certify(open_run(folder), Request(later=True)).number == 2 + number  # an update on, another request
    trained = uncounted(folder)  # and without updates: the models of the training
    assert trained.bound_rows is not None
    units = client_rows(trained.groups["existing"].raw.train, 0)
    own = [
        torch.cat(pair) for pair in zip(client_rows(trained.bound_rows, 0), _rows_of("existing_0", more), strict=True)
    ]
    seen, scaled = standardised(*units, units), standardised(own[0], own[1], units)
    risk, kl = by_hand(trained, seen, scaled, trained.state.server.particles)
    line = lines(table, "existing")[0]
    assert (line.risk, line.kl) == (pytest.approx(risk, abs=1e-9), pytest.approx(kl, abs=1e-4))
    premises = bounds.Premises(Provenance("split"), True, SaturatingSquare(), tried=2)  # delta / (1 x 2) for the first
    assert line.bound == pytest.approx(float(bounds.anytime(risk, kl, line.rows, 0.025, premises).value), abs=1e-6)
    losses = SaturatingSquare()(predicted(trained, 0, scaled[0]), scaled[1])
    assert line.holdout_bound == pytest.approx(float(bounds.holdout_betting(losses, 0.025, premises).value), abs=1e-9)
    assert " has not seen and those among 9 later rows of 2 clients in 2 updates; " in table.labels["rows"]["existing"]
    assert table.labels["later"] == "9 later rows of 2 clients in 2 updates are among the rows of the bound"


def _rows_of(name: str, table: list[Row]) -> tuple[Tensor, Tensor]:
    own = torch.tensor([[row["lag_1"], row["wind"], row["y"]] for row in table if row["client"] == name]).double()
    return own[:, :2], own[:, 2]


def test_a_later_row_that_the_bound_has_counts_once(tmp_path: Path) -> None:
    table = rows(sizes=(9, 8), new=(7,))
    run(on_csv(write_csv(tmp_path / "rows.csv", table), SPLIT, "report.certify.independent=true"), tmp_path / "run")
    before = certify(open_run(tmp_path / "run"), "anytime")
    found = update(open_run(tmp_path / "run"), tmp_path / "rows.csv").found
    assert found["existing_0"].new > 0  # predictions had not learned from the rows of the bound
    after = certify(open_run(tmp_path / "run"), Request("anytime", later=True))
    assert [line.rows for line in after.clients] == [line.rows for line in before.clients]  # nor do those of the test
    assert all(line.repeats > 3 for line in lines(after, "existing")) and lines(after, "new")[0].repeats == 3
    other = [{**row, "client": "existing_1"} for row in table if row["client"] == "new_0" and row["split"] == "test"]
    assert update(open_run(tmp_path / "run"), write_csv(tmp_path / "other.csv", other)).found["existing_1"].new == 3
    again = certify(open_run(tmp_path / "run"), Request("anytime", later=True))
    assert [line.rows for line in again.clients] == [line.rows for line in before.clients]


def test_a_new_client_is_certified_in_units_of_the_others(opened: Opened) -> None:
    trained = opened()
    table = certify(trained, Request(posterior="refined"))
    assert table.reasons["existing"] == [
        "the prior saw the rows of the bound (split them, or leave the client out of its training): "
        "report.certify.scheme = 'split', or certify --retrain"
    ]
    assert lines(table, "existing") == []
    known = [client_rows(trained.groups["existing"].raw.train, k) for k in range(4)]
    x_mean, x_std, y_mean, y_std = average_units(known)
    none = torch.zeros(0, 1, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    for k, line in enumerate(lines(table, "new")):
        x, y = client_rows(trained.groups["new"].raw.train, k)
        own = (x - x_mean) / x_std, (y - y_mean) / y_std
        risk, kl = by_hand(trained, none, own, trained.state.server.particles)
        assert (line.rows, line.risk) == (7, pytest.approx(risk, abs=1e-9))
        assert line.kl == pytest.approx(kl, abs=1e-4)
    assert len(lines(table, "new")) == 2
    certificate = from_record(table.certificates["new"])
    assert certificate.valid and certificate.prior.source == "disjoint clients"


def test_folds_certify_every_row_under_priors_that_never_saw_the_client(opened: Opened) -> None:
    sets = (FOLDS, "report.certify.folds=2")
    trained = opened(*sets)
    table = certify(trained, Request(posterior="refined"))
    fold_of = trained.method.fold_of  # type: ignore[attr-defined]
    raw = trained.groups["existing"].raw.train
    none = torch.zeros(0, 1, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    for k, line in enumerate(lines(table, "existing")):
        fold = fold_of[raw.ids[k]]
        others = [client_rows(raw, j) for j in range(4) if fold_of[raw.ids[j]] != fold]
        x_mean, x_std, y_mean, y_std = average_units(others)
        x, y = client_rows(raw, k)
        risk, kl = by_hand(
            trained, none, ((x - x_mean) / x_std, (y - y_mean) / y_std), trained.state.server.particles[fold]
        )
        assert (line.rows, line.risk) == (7, pytest.approx(risk, abs=1e-9))
        assert line.kl == pytest.approx(kl, abs=1e-4)
    assert table.reasons == {"existing": [], "new": []}
    assert from_record(table.certificates["existing"]).prior.source == "other clients"


@pytest.mark.parametrize(
    ("aggregate", "halved", "words"),
    [("mean", 0, []), ("median", 0, []), ("clipped", 0, ["'clipped' ended"]), ("mean", 1, ["rates were halved"])],
)
def test_folds_in_which_all_clients_decided_something_have_no_certificate(
    aggregate: str, halved: int, words: list[str], opened: Opened
) -> None:
    trained = opened(FOLDS, "report.certify.folds=2", "data.options.clients=6", f"federation.aggregate={aggregate}")
    watch = trained.state.watch._replace(halved=halved)
    table = certify(replace(trained, state=trained.state._replace(watch=watch)), Request())
    assert table.reasons["new"] == [] and len(table.reasons["existing"]) == len(words)
    assert all(word in reason for word, reason in zip(words, table.reasons["existing"], strict=True))
    assert bool(lines(table, "existing")) is not bool(words) and lines(table, "new")


def test_a_global_prior_has_seen_no_row_of_the_client(opened: Opened) -> None:
    trained = opened(SPLIT, "report.certify.prior=global")
    line = lines(certify(trained, Request()), "existing")[1]
    assert trained.bound_rows is not None
    units = client_rows(trained.groups["existing"].raw.train, 1)
    none = torch.zeros(0, 1, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    own = standardised(*client_rows(trained.bound_rows, 1), units)
    risk, kl = by_hand(trained, none, own, trained.state.server.particles)
    assert (line.risk, line.kl) == (pytest.approx(risk, abs=1e-9), pytest.approx(kl, abs=1e-4))


def test_classifiers_are_certified_by_draws_from_their_posterior(root: Path, tmp_path: Path) -> None:
    more = [f"data.options.{name}" for name in ("train=10", "test=2")]
    run(tiny_images(root, SPLIT, *more, "method.zeta=1.0"), tmp_path)
    trained = uncounted(tmp_path)
    table = certify(trained, Request(draws=300, posterior="refined"))
    method, plan, message = trained.method, trained.study.plan, trained.method.broadcast(trained.state.server)
    assert trained.bound_rows is not None
    noise = Noise(plan.seed, 0, trained.bound_rows.ids, None, plan.noise)
    train = trained.groups["existing"].train
    prior = method.personalise(message, trained.state.clients, train, noise)
    apart = Noise(plan.seed, 2**32 - 4, trained.bound_rows.ids, None, plan.noise)
    refined = method.refine(prior, train, trained.bound_rows, apart)
    drawn = Noise(plan.seed, 2**32 - 3, trained.bound_rows.ids, None, plan.noise)
    risk = gibbs_risk(refined.posterior, trained.bound_rows, ZeroOne(), 300, drawn, by_row=True).risk
    result = lines(table, "existing")
    assert [line.risk for line in result] == pytest.approx(risk.tolist(), abs=1e-6)
    assert [line.kl for line in result] == pytest.approx(refined.kl.tolist(), rel=1e-4)
    premises = bounds.Premises(Provenance("split"), True)
    held = trained.bound_rows
    by_row = bounds.MonteCarlo(300, 0.005, trials=torch.full((4,), 7_500))
    own = bounds.seeger(risk, refined.kl, 25, 0.025, premises, monte_carlo=by_row)
    assert [line.bound for line in result] == pytest.approx(own.value.tolist(), rel=1e-4)
    assert bool(
        (
            own.value
            < bounds.seeger(risk, refined.kl, 25, 0.025, premises, monte_carlo=bounds.MonteCarlo(300, 0.005)).value
        ).all()
    )
    assert from_record(table.certificates["existing"]).delta_split == pytest.approx(
        {"bound": 0.02, "Monte Carlo": 0.005}
    )
    wrong = [int((predict(trained, name, held.x[k]).label != held.y[k]).sum()) for k, name in enumerate(held.names)]  # type: ignore[union-attr]
    fixed = bounds.holdout_binomial(torch.tensor(wrong).double() / 25, 25, 0.025, premises)
    assert [line.holdout_bound for line in result] == pytest.approx(fixed.value.tolist(), rel=1e-9)
    together = from_record(table.summary["existing"])
    assert float(together.terms["kl"]) == pytest.approx(float(refined.kl.sum()), rel=1e-4)
    assert float(together.terms["n"]) == 100
    assert min(line.bound for line in result) < 0.99  # a bound of 1 would agree with any other


def test_a_method_without_a_posterior_has_the_binomial_bound_of_what_it_predicts(root: Path, tmp_path: Path) -> None:
    run(tiny_images(root, SPLIT, *quick("fedavg-ft"), "data.options.train=10", "data.options.test=2"), tmp_path)
    trained = uncounted(tmp_path)
    with pytest.raises(AssumptionError, match="fedavg-ft has no posterior"):
        certify(trained)
    table = certify(trained, Request("holdout-binomial"))
    held, result = trained.bound_rows, lines(table, "existing")
    assert held is not None and {line.rows for line in result} == {25} and table.reasons["existing"] == []
    wrong = [int((predict(trained, name, held.x[k]).label != held.y[k]).sum()) for k, name in enumerate(held.names)]  # type: ignore[union-attr]
    exact = stats.beta.ppf(0.95, np.array(wrong) + 1, 25 - np.array(wrong))
    assert [line.bound for line in result] == pytest.approx(exact.tolist(), rel=1e-6)  # all of delta: nothing is beside
    assert all(line.kl == 0 and math.isnan(line.holdout_bound) for line in result)
    assert from_record(table.certificates["existing"]).terms["n"].tolist() == [25.0] * 4


@pytest.mark.law
@pytest.mark.parametrize("name", ["bpfed", "cfedbayes", "sfedbayes", "fedsi", "fedsi-fac", "pac-pfl-bnn"])
def test_every_uncertain_network_is_certified(root: Path, tmp_path: Path, name: str) -> None:
    sets = [one for one in quick(name) if not one.startswith("method.clusters")]
    run(tiny_images(root, SPLIT, *sets, "federation.rounds=2"), tmp_path)
    table = certify(open_run(tmp_path), Request(draws=5))
    assert table.reasons == {"existing": [], "new": []}
    assert len(table.clients) == 6
    for line in table.clients:
        assert 0 <= line.risk <= 1 and 0 <= line.test_risk <= 1 and 0 <= line.kl < math.inf
        assert line.risk <= line.bound <= 1


@pytest.mark.parametrize("name", ["ridge", "pooled-gp", "pooled-ridge"])
def test_a_method_without_uncertainty_or_with_rows_of_others_is_refused(opened: Opened, name: str) -> None:
    with pytest.raises(AssumptionError, match=f"{name} has no posterior over hypotheses"):
        certify(opened(SPLIT, *quick(name)), Request())


def test_an_exact_gibbs_posterior_over_draws_from_the_prior(opened: Opened) -> None:
    sets = [one for one in quick("pac-pfl-bnn") if "importance_draws" not in one and "posterior" not in one]
    sets += ["method.posterior=importance", "method.importance_draws=20", "federation.rounds=2"]
    trained = opened(*sets)
    table = certify(trained, Request("gibbs", beta="rows"))
    raw, scaled = trained.groups["new"].raw.train, [leaf.mean(0) for leaf in trained.groups["existing"].used]
    x = torch.where(raw.mask[..., None], (raw.x - scaled[0]) / scaled[1], 0.0).float()
    y = torch.where(raw.mask, (raw.y - scaled[2]) / scaled[3], 0.0).float()
    batch = replace(raw, x=x, y=y)
    empty = replace(batch, x=0 * x[:, :1], y=0 * y[:, :1], mask=torch.zeros_like(raw.mask[:, :1]))
    plan = trained.study.plan
    noise = Noise(plan.seed, 0, batch.ids, None, plan.noise)
    message = trained.method.broadcast(trained.state.server)
    prior = trained.method.personalise(message, trained.method.init_clients(message, empty), empty, noise)
    weights, risks = finite_risks(prior, batch, SaturatingSquare())  # type: ignore[arg-type]
    log_z = torch.logsumexp(weights.log() - 7.0 * risks, 1)
    value = -log_z / 7 + 1 / 8 + math.log(40) / 7
    assert [line.bound for line in lines(table, "new")] == pytest.approx(value.tolist(), rel=1e-5)
    assert table.reasons["new"] == []
    assert all(line.kl <= math.log(20 * 2) for line in lines(table, "new"))
    with pytest.raises(AssumptionError, match="finite list of hypotheses"):
        certify(opened(), Request("gibbs", beta="rows"))


PRIVATE = {
    "laplace": ("privacy.epsilon=0.3", "privacy.mechanism=laplace", "privacy.clip=50.0"),
    "gaussian": ("privacy.epsilon=5", "privacy.delta=0.01"),
}


@pytest.mark.parametrize("kind", list(PRIVATE))
def test_a_prior_that_was_released_with_privacy_is_paid_for(opened: Opened, kind: str) -> None:
    trained = opened(*PRIVATE[kind])
    table = certify(trained, Request("theorem-3.2", beta=7.0, posterior="refined"))
    assert table.reasons["existing"] == []
    assert "drawn with privacy" in table.reasons["new"][0]
    certificate = from_record(table.certificates["existing"])
    assert certificate.prior.source == "client-level DP" and certificate.valid
    spent = json.loads((opened.folder(*PRIVATE[kind]) / "privacy.json").read_text())["releases"]
    charges = [
        Charge(**each | {"cohorts": Cohorts(**each["cohorts"])}) for each in spent for _ in range(each.pop("count"))
    ]
    guarantee = replacement(charges, 0.02)  # of half of delta a fifth might go to an estimate
    assert (certificate.prior.epsilon, certificate.prior.delta) == pytest.approx(guarantee)
    assert kind != "laplace" or guarantee.nats(0.04) <= 0.6  # twice its epsilon, of which max-information makes 3.6
    for line in lines(table, "existing"):
        tail = (line.kl + guarantee.nats(0.025) + math.log(40)) / 7 + 1 / 8
        assert line.bound == pytest.approx(line.risk + tail, rel=1e-6)
    raw = trained.groups["existing"].raw.train
    others = [client_rows(raw, k) for k in (1, 2, 3)]
    x_mean, x_std, y_mean, y_std = average_units(others)
    x, y = client_rows(raw, 0)
    none = torch.zeros(0, 1, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    risk, _ = by_hand(trained, none, ((x - x_mean) / x_std, (y - y_mean) / y_std), trained.state.server.particles)
    assert lines(table, "existing")[0].risk == pytest.approx(risk, abs=1e-9)
    jointly = certify(trained, Request(jointly=True, tried=3))
    joint = from_record(jointly.certificates["existing"])
    assert joint.valid and joint.prior.epsilon == pytest.approx(replacement(charges, 0.02 / (6 * 3)).epsilon)
    assert len(lines(jointly, "existing")) == 4 and {line.rows for line in lines(jointly, "existing")} == {7}


def test_clients_together_share_delta(opened: Opened) -> None:
    trained = opened(SPLIT)  # 4 existing clients and 2 new ones
    alone, jointly = certify(trained, Request(delta=0.05 / 6)), certify(trained, Request(delta=0.05, jointly=True))
    assert [line.bound for line in jointly.clients] == [line.bound for line in alone.clients]


def test_rows_that_nobody_declared_independent_give_no_certificate(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    for sets, expected in (((), 1), (("report.certify.independent=true",), 0)):
        run(on_csv(path, SPLIT, *sets), tmp_path / str(expected))
        table = certify(open_run(tmp_path / str(expected)), Request())
        assert [len(reasons) for reasons in table.reasons.values()] == [expected, expected]
        if expected:
            assert table.reasons["existing"] == table.reasons["new"] == [UNDECLARED]
            reasons = certify(open_run(tmp_path / "1"), Request("new-clients", beta=4.0, tried=None)).reasons["new"]
            for key in ("(report.certify.drawn_clients = true, where they are)", UNDECLARED, "(--tried)"):
                assert sum(key in reason for reason in reasons) == 1


def test_what_was_tried_costs_or_breaks_the_premise(opened: Opened) -> None:
    trained = opened(SPLIT)
    once, often, uncounted = (certify(trained, Request(tried=tried)) for tried in (1, 10, None))
    pairs = list(zip(once.clients, often.clients, strict=True))
    assert all(a.bound <= b.bound for a, b in pairs) and any(a.bound < b.bound for a, b in pairs)
    assert "uncounted" in uncounted.reasons["existing"][0]


def test_certificates_are_kept_and_say_the_same_when_they_are_computed_again(tmp_path: Path) -> None:
    run(tiny(SPLIT), tmp_path)
    table = certify(open_run(tmp_path), Request("catoni", beta=4.0))
    table.save(tmp_path)
    (read,) = tables_of(tmp_path)
    assert read == table and read.number == 1 and read.model["round"] == 12
    again = from_record(read.certificates["existing"])
    assert again.recompute().tolist() == pytest.approx([line.bound for line in lines(table, "existing")], rel=1e-12)
    json.loads(
        (tmp_path / "certificates" / "catoni-beta-4.0.json").read_text(), parse_constant=lambda word: pytest.fail(word)
    )


@pytest.mark.slow
@pytest.mark.parametrize("planted", [False, True])
def test_bounds_hold_in_many_worlds_and_a_prior_that_saw_the_rows_is_caught(
    planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup table that knows the rows of the bound, and nothing else, has no risk there and a bound of its own."""
    above = total = 0
    for seed in range(4):
        sets = ("federation.rounds=2", "data.options.clients=10", "data.options.new_clients=0")
        study = tiny(SPLIT, *sets, "data.options.samples=200", "data.options.test_samples=200")
        study = replace(study, seed=seed, data=replace(study.data, follow_seed=True))
        trained = train(study)
        if planted:  # as if the prior had been the posterior all along: the distance is what makes it honest
            monkeypatch.setattr(type(trained.method), "refine", _memorised)
        for line in lines(certify(trained, Request(delta=0.1)), "existing"):
            above += line.test_risk > line.bound
            total += 1
    assert total == 40
    assert (above > 30) if planted else (above <= 9)  # binomial(40, .1) is above 9 with probability .005


def _memorised(self: Any, prior: Any, seen: Any, rows: Any, noise: Any) -> RefinedPosterior:
    """Right on the rows that it saw, wrong by 3 standard deviations elsewhere, and said to be no distance away."""

    class Lookup:
        log_weights = torch.zeros(rows.clients, 1, dtype=torch.float64)

        def function(self, x: Tensor) -> NormalMixture:
            known = (x.unsqueeze(2) == rows.x.unsqueeze(1)).all(-1) & rows.mask.unsqueeze(1)  # [K, M, N]
            value = torch.where(known.any(2), (known * rows.y.unsqueeze(1)).sum(2), 3.0)
            return NormalMixture(self.log_weights, value.unsqueeze(1), torch.full_like(value, 1e-12).unsqueeze(1))

    return RefinedPosterior(Lookup(), torch.zeros(rows.clients, dtype=torch.float64))  # type: ignore[arg-type]


def test_pooled_rows_need_priors_that_saw_none_of_them(opened: Opened) -> None:
    assert certify(opened(SPLIT), Request()).summary.keys() == {"existing", "new"}
    assert certify(opened(FOLDS, "report.certify.folds=2"), Request()).summary.keys() == {"new"}
    assert certify(opened(*PRIVATE["gaussian"]), Request()).summary.keys() == {"new"}


@pytest.mark.filterwarnings("ignore:.*since the run was started")
def test_folds_stay_as_they_were_when_clients_come_and_go(tmp_path: Path) -> None:
    sets = (FOLDS, "report.certify.folds=2", "report.certify.independent=true")
    table = rows()
    run(on_csv(write_csv(tmp_path / "rows.csv", table), *sets), tmp_path / "run")
    before = json.loads((tmp_path / "run/trained.json").read_text())["fold"]
    joined = [row | {"client": "existing_9"} for row in table if row["client"] == "existing_2"]
    moved = [row | {"lag_1": row["lag_1"] + 1.0} for row in joined]
    stayed = [row for row in table if row["client"] != "existing_0"]
    run(on_csv(write_csv(tmp_path / "rows.csv", stayed + moved), *sets, "federation.rounds=14"), tmp_path / "run", True)
    after = json.loads((tmp_path / "run/trained.json").read_text())["fold"]
    assert {name: after[name] for name in before} == before
    trained = open_run(tmp_path / "run")
    train_rows = trained.groups["existing"].train
    fold_of = trained.method.fold_of  # type: ignore[attr-defined]
    assert {name: fold_of[i] for i, name in zip(train_rows.ids, train_rows.names, strict=True)} == {
        name: after[name] for name in train_rows.names
    }
    assert certify(trained, Request()).reasons == {"existing": [], "new": []}


@pytest.mark.filterwarnings("ignore:.*since the run was started")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: row | {"group": "new"}, "cannot be a client that never trained"),
        (lambda row: row | {"y": row["y"] + 1.0}, "not those that it trained on before"),
    ],
)
def test_a_client_that_left_comes_back_as_what_it_was(tmp_path: Path, change: Any, words: str) -> None:
    table, path = rows(), tmp_path / "rows.csv"
    run(on_csv(write_csv(path, table), SPLIT), tmp_path / "run")
    stayed = [row for row in table if row["client"] != "existing_1"]
    run(on_csv(write_csv(path, stayed), SPLIT, "federation.rounds=13"), tmp_path / "run", True)
    back = [change(row) if row["client"] == "existing_1" else row for row in table]
    with pytest.raises(DataError, match=words):
        run(on_csv(write_csv(path, back), SPLIT, "federation.rounds=14"), tmp_path / "run", True)
    run(on_csv(write_csv(path, table), SPLIT, "federation.rounds=14"), tmp_path / "run", True)


def test_a_lost_ledger_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    run(tiny("privacy.epsilon=0.3", "privacy.mechanism=laplace", "privacy.clip=50.0"), tmp_path)
    (tmp_path / "privacy.json").unlink()
    trained = open_run(tmp_path)  # predictions do not need it
    with pytest.raises(PrivacyError, match="what was spent is not known"):
        certify(trained, Request())


@pytest.mark.slow
def test_a_network_that_normalises_by_unseen_rows_is_not_certified(root: Path, tmp_path: Path) -> None:
    sets = ("model={kind='vgg'}", *quick("pac-pfl-bnn"), "method.posterior=importance")
    folds = (FOLDS, "report.certify.folds=2", "federation.rounds=1", "method.particles=1")
    trained = train(tiny_images(root, *sets, *folds))
    assert not trained.method.row_by_row
    reasons = certify(trained, Request(draws=1)).reasons
    assert all("normalises by rows" in reason for (reason,) in reasons.values())


def test_clients_without_rows_are_named_and_cost_nobody_else_the_certificate(tmp_path: Path) -> None:
    table = [row for row in rows() if row["client"] != "new_0" or row["split"] == "test"]
    path = write_csv(tmp_path / "rows.csv", table)
    try:
        trained = train(on_csv(path, "report.certify.independent=true", "federation.rounds=1"))
    except DataError:
        trained = train(on_csv(write_csv(path, rows()), "report.certify.independent=true", "federation.rounds=1"))
        trained.groups["new"].raw.train.mask[0] = False
    result = certify(trained, Request())
    assert result.labels["left_out"] == {"new_0": "it has no rows"}
    assert [line.name for line in lines(result, "new")] == ["new_1"]


def test_what_a_study_was_tuned_with_is_paid_for(opened: Opened) -> None:
    plain, tuned = (certify(opened(*sets), Request()) for sets in ((SPLIT,), (SPLIT, "report.certify.tried=20")))
    assert tuned.labels["tried"] == 20
    counted = certify(opened(SPLIT), Request(tried=20))
    assert [line.bound for line in tuned.clients] == [line.bound for line in counted.clients]
    assert plain.clients != tuned.clients


def test_the_bound_and_its_beta_must_fit() -> None:
    with pytest.raises(AssumptionError, match="needs a beta"):
        Request("catoni")
    with pytest.raises(AssumptionError, match="has no beta"):
        Request("seeger", beta="rows")
    assert np.isclose(float(Request("catoni", beta="root").beta_for(torch.tensor([9.0]))), 3.0)


@pytest.mark.slow
def test_digits_are_certified_well_below_chance(data_root: Path) -> None:
    """Ten clients, 125 rows each that the training never saw: no bound is vacuous, and test risks are below."""
    sets = ["method.name=pfedbayes", "federation.rounds=12", "report.evaluate_every=12"]
    sets += ["model.widths=[40]", "method.rate=0.003"]
    study = Study.from_toml("mnist-small", [SPLIT, *sets, "data.options={test=95}"])
    study = replace(study, data=replace(study.data, options={**study.data.options, "root": str(data_root)}))
    result = certify(train(study), Request(draws=100))
    assert result.reasons == {"existing": []}
    assert all(line.rows == 125 and line.test_rows == 475 for line in result.clients)
    assert all(line.bound < 0.75 for line in result.clients)  # of 5 labels, chance errs in .8
    assert sum(line.test_risk <= line.bound for line in result.clients) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("family", ["full-rank", "low-rank"])
def test_posteriors_with_correlated_weights_are_certified(family: str, root: Path, tmp_path: Path) -> None:
    """From a study, through its folder: the options come back, and all numbers are recomputed from the record."""
    run(
        tiny_images(root, SPLIT, f"method.family={family}", "method.rank=2", "model.widths=[3]", "federation.rounds=2"),
        tmp_path / "run",
    )
    trained = uncounted(tmp_path / "run")
    assert type(trained.state.server.w).__name__ == {"full-rank": "FullRankNormal", "low-rank": "LowRankNormal"}[family]
    table = certify(trained, Request(draws=5, posterior="refined"))
    assert table.reasons == {"existing": [], "new": []} and len(table.clients) == 6
    for line in table.clients:
        assert 0 < line.kl < math.inf and 0 <= line.risk <= line.bound <= 1
    again = from_record(table.certificates["existing"])
    assert again.valid and torch.allclose(again.recompute(), again.value)


def test_a_bound_of_one_s_own_certifies_a_run_as_any_other(opened: Opened) -> None:
    trained = opened()
    table = certify(trained, Request(REFINED_PINSKER, posterior="refined"))
    assert (table.bound, table.asked, table.theorem) == ("refined-pinsker", "refined-pinsker", "refined Pinsker")
    again = from_record(table.certificates["new"], REFINED_PINSKER)
    seeger = from_record(certify(trained, Request(posterior="refined")).certificates["new"])
    assert again.valid and torch.equal(again.terms["risk"], seeger.terms["risk"])
    numbers = {name: again.terms[name] for name in REFINED_PINSKER.needs}
    own = REFINED_PINSKER.certify(numbers, again.delta, again.premises)
    torch.testing.assert_close(own.value, again.value, rtol=1e-12, atol=0)
    checked([table], REFINED_PINSKER)
    with pytest.warns(UserWarning, match="^certificates refined-pinsker: of a bound of one's own, not computed again$"):
        checked([table])
    edited = {**table.certificates, "new": {**table.certificates["new"], "delta": 0.2}}
    with pytest.raises(DataError, match=r"^certificates refined-pinsker of new clients: .*not those that its checksum"):
        checked([replace(table, certificates=edited)])
    with pytest.raises(AssumptionError, match=r"the bound 'theorem-4.2' needs .*lam, which no run has all of"):
        Request(BOUNDS["theorem-4.2"])


def test_the_more_rows_the_fewer_draws_with_hypotheses_of_their_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tiny_images(root, SPLIT, "data.options.train=10", "data.options.test=2", "method.zeta=1.0"), tmp_path)
    monkeypatch.setattr(measure, "_ENOUGH", 10)  # rows of as many draws as are asked for, of 25 that there are
    table = certify(uncounted(tmp_path), Request(draws=300, posterior="refined"))
    own, all_rows = from_record(table.certificates["existing"]), from_record(table.summary["existing"])
    assert own.terms["mc_draws"].tolist() == [3_000.0] * 4 and all_rows.terms["mc_draws"].item() == 12_000
    assert "mc_risks" not in own.terms
    spread = certify(uncounted(tmp_path), Request("empirical-bernstein", draws=30, posterior="refined"))
    known = from_record(spread.certificates["existing"]).terms
    assert known["mc_draws"].item() == 30 and known["mc_risks"].shape == (4, 30), "a variance is one network's"


@pytest.mark.slow
def test_where_one_network_serves_many_rows_draws_look_at_a_part_of_them_each(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tiny_images(root, SPLIT, "data.options.train=10", "data.options.test=2", "method.name=sfedbayes")
    run(study, tmp_path)
    tables = [certify(uncounted(tmp_path), Request(draws=900, posterior="refined"))]
    monkeypatch.setattr(measure, "_LOOKED_AT", 6)  # of 25 rows, so that there are four parts of six and one row over
    looked = list[int]()

    def counted(posterior: Any, rows: Any, *more: Any) -> Any:
        looked.append(rows.mask.shape[1])
        return drawn_losses(posterior, rows, *more)

    monkeypatch.setattr(measure, "drawn_losses", counted)
    tables.append(certify(uncounted(tmp_path), Request(draws=900, posterior="refined")))
    assert set(looked) == {25 // 4 + 25 % 4, 10}  # new clients have ten rows, too few for two parts
    whole, parts = (from_record(table.certificates["existing"]) for table in tables)
    assert parts.terms["mc_draws"].item() == 900
    assert len({tuple(one) for one in parts.terms["mc_risks"].tolist()}) == 4
    torch.testing.assert_close(parts.terms["risk"], whole.terms["risk"], rtol=0, atol=0.03)
    torch.testing.assert_close(parts.value, whole.value, rtol=0, atol=0.04)


def test_a_gaussian_process_s_density_is_certified_under_a_stated_constant(opened: Opened, tmp_path: Path) -> None:
    trained = opened(SPLIT)
    loss, factor = bounds.NormalNLL(0.6, 3.0), 4000.0
    asked = Request("sub-gamma", loss=loss, beta=0.05, posterior="refined", variance_factor=factor, scale=0.0)
    table, square = certify(trained, asked), certify(trained, Request(posterior="refined", holdout=0.0))
    assert table.reasons["existing"] == [] and table.low == loss.low and math.isinf(table.high) and not table.holdout
    for line, same in zip(table.clients, square.clients, strict=True):
        assert (line.kl, line.rows) == (same.kl, same.rows) and math.isnan(line.holdout_bound)
        more = (line.kl + math.log(1 / 0.05)) / 0.05 + 0.05 * factor / (2 * line.rows)
        assert line.bound == pytest.approx(line.risk + more, rel=1e-9) and line.risk > loss.low
    again = load(table.save(tmp_path))
    assert str(again.clients) == str(table.clients) and math.isinf(again.high)
    checked([again])
    best = certify(trained, replace(asked, posterior="best"))
    assert all(one.bound <= line.bound + 1e-9 for one, line in zip(best.clients, table.clients, strict=True))
    assert {line.share for line in best.clients} - {1.0}


def test_networks_have_no_density_under_a_stated_constant_that_draws_estimate(opened: Opened) -> None:
    asked = Request("sub-gamma", loss=bounds.NormalNLL(0.6), beta=5.0, variance_factor=1e4, scale=0.0)
    with pytest.raises(AssumptionError, match="'sub-gamma' has no use for draws"):
        certify(opened(SPLIT, *quick("pfedbayes")), asked)
