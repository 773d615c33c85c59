"""Scores of classifiers, against loops over clients and draws, scikit-learn and records made by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

from pacbayes_fl.federation import engine, personalisation
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Method
from pacbayes_fl.metrics import ece, mce
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.results.client_rows import ClientRow, ClientRows
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.data import ScaledGroup, load
from pacbayes_fl.study.evaluate import classification
from pacbayes_fl.study.evaluate.classification import evaluate, histograms, labels, predictive, selections
from pacbayes_fl.study.evaluate.points import means, totals
from pacbayes_fl.study.evaluate.report import metrics_of
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.run import report, run, train
from tests.tiny import quick
from tests.tiny_images import tiny_images, write_root

WEIGHTS = tuple(name for name, recipe in METHODS.items() if "classification" in recipe.learns)
TASK = "classification"
_GLOBAL = {name: METHODS[name].method.global_model for name in WEIGHTS}
NO_GLOBAL_MODEL = tuple(
    name for name, own in _GLOBAL.items() if own is Method.global_model or own.__annotations__["return"] == "None"
)
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("images"))


def trained(study: Study) -> tuple[Any, FederationState, dict[str, ScaledGroup]]:
    method, groups = prepare(study, load(study))
    return method, engine.run_rounds(method, groups["existing"].train, study.plan), groups


def softmax_mlp(model: Any, theta: torch.Tensor, x: Array) -> Array:
    """Apply one network to rows [m, d], in NumPy."""
    weights = {name: value[0].double().numpy() for name, value in model.unflatten(theta).items()}
    hidden = np.maximum(x @ weights["weight_0"] + weights["bias_0"], 0.0)
    logits = hidden @ weights["weight_1"] + weights["bias_1"]
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


@pytest.mark.parametrize("which", ["pm", "gm"])
@pytest.mark.parametrize("group", ["existing", "new"])
def test_metrics_are_those_of_a_loop_over_clients_and_draws(root: Path, group: str, which: str) -> None:
    study = tiny_images(root)
    method, state, groups = trained(study)
    scaled = groups[group]
    report = evaluate(method, state, group, scaled, study.plan, metrics_of(study, TASK))
    assert [row.name for row in report.rows] == list(scaled.test.names)
    for k, row in enumerate(report.rows):
        at = torch.tensor([k])
        one, rows = scaled.train.select(at), scaled.test.select(at)
        x, y = rows.x[0][rows.mask[0]].flatten(1).double().numpy(), rows.y[0][rows.mask[0]].numpy()
        noise = Noise(study.seed, 0, one.ids, engine="generators")
        if which == "gm":
            q = type(state.server.w)(*(leaf.unsqueeze(0) for leaf in state.server.w))
        elif group == "existing":
            q = type(state.clients.q)(*(leaf[k : k + 1] for leaf in state.clients.q))
        else:  # fitted from the global distribution; the draws that follow go on where the fit's ended
            message = method.broadcast(state.server)
            posterior = method.personalise(message, method.init_clients(message, one), one, noise)
            q, noise = posterior.family, posterior.noise
        noise = noise.copy()
        each = [softmax_mlp(method.model, q.weights(q.draw(noise)), x) for _ in range(method.draws)]
        for name, probs in ((which, np.mean(each, 0)), (f"{which}.mean_weights", softmax_mlp(method.model, q.loc, x))):
            hot = np.eye(10)[y]
            expected = {
                "accuracy": accuracy_score(y, probs.argmax(1)),
                "nll": log_loss(y, probs, labels=range(10)),
                "brier": np.square(probs - hot).sum(1).mean(),
            }
            for metric, value in expected.items():
                assert row.metrics[f"{name}.{metric}"] == pytest.approx(value, rel=1e-4), (name, metric)
        result = report.predictions[f"{group}.{which}.probs"][k][scaled.test.mask[k]].numpy()
        np.testing.assert_allclose(result, np.mean(each, 0), rtol=1e-3, atol=1e-5)
    assert len({row.metrics[f"{which}.nll"] for row in report.rows}) == len(report.rows)


@pytest.mark.parametrize("bins", [10, 20])
def test_calibration_errors_have_the_bins_of_the_study(root: Path, bins: int) -> None:
    study = tiny_images(root, "method.zeta=0.01", *([] if bins == 10 else [f"report.calibration_bins={bins}"]))
    result, differ = report(train(study)), 0
    assert result.labels["calibration_bins"] == bins
    assert all(f"{bins} bins of equal width" in result.labels[name] for name in ("ece", "mce"))
    for group in ("existing", "new"):
        y, mask = (result.predictions[f"{group}.{name}_test"] for name in ("y", "mask"))
        for model in ("pm", "gm"):
            probs = result.predictions[f"{group}.{model}.probs"].double()
            for name, metric in (("ece", ece), ("mce", mce)):
                expected = metric(ClassMixture(probs.log()), y, mask, bins=bins)
                found = result.column(group, f"{model}.{name}")
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)  # probabilities are kept in float32
                differ += not np.allclose(found, metric(ClassMixture(probs.log()), y, mask, bins=30 - bins), rtol=1e-3)
    assert differ


def test_the_methods_without_a_global_model_are_those_whose_last_layers_or_all_weights_are_their_clients() -> None:
    known = {"bpfed", "local", "fedsi", "fedsi-fac", "fedper", "fedrep", "lg-fedavg", "fedbabu", "fedbn"}
    assert known <= set(NO_GLOBAL_MODEL) and not {"fedavg", "pfedbayes", "pac-pfl-bnn"} & set(NO_GLOBAL_MODEL)


def test_a_federation_learns(root: Path) -> None:
    study = tiny_images(root, "federation.rounds=20", "method.steps=10", "method.zeta=0.01", "model.widths=[20]")
    method, state, groups = trained(study)
    rows = evaluate(method, state, "existing", groups["existing"], study.plan, metrics_of(study, TASK)).rows
    assert np.mean([row.metrics["pm.accuracy"] for row in rows]) > 0.9


@pytest.mark.law
@pytest.mark.parametrize("name", WEIGHTS)
def test_every_method_on_networks_is_scored(root: Path, name: str) -> None:
    study = tiny_images(root, *quick(name), "federation.rounds=2")
    method, state, groups = trained(study)
    for group, scaled in groups.items():
        report = evaluate(method, state, group, scaled, study.plan, metrics_of(study, TASK))
        known = set(report.rows[0].metrics)
        assert {f"pm.{metric}" for metric in ("accuracy", "nll", "brier", "ece", "mce")} <= known
        assert ("gm.accuracy" in known) == (name not in NO_GLOBAL_MODEL)
        assert ("pm.mean_weights.nll" in known) == ("mean_weights" in str(method.about()["average"]))
        assert (f"{group}.gm.probs" in report.predictions) == ("gm.accuracy" in known)
        assert all(math.isfinite(value) for row in report.rows for value in row.metrics.values())
        pm = report.predictions[f"{group}.pm.probs"]
        torch.testing.assert_close(pm.sum(-1), torch.ones_like(pm[..., 0]))
        if name == "fedavg":
            assert torch.equal(pm, report.predictions[f"{group}.gm.probs"])
    points = means([totals(method, state, groups["existing"], study.plan)])
    assert set(points) == {f"{part}{m}.accuracy" for part in ("", "validation.") for m in ("pm", "gm")} - (
        {"gm.accuracy", "validation.gm.accuracy"} if name in NO_GLOBAL_MODEL else set()
    )


def test_blocks_of_rows_and_calls_of_few_clients_change_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tiny_images(root)
    method, state, groups = trained(study)
    whole = evaluate(method, state, "existing", groups["existing"], study.plan, metrics_of(study, TASK))
    monkeypatch.setattr(classification, "_VALUES", 4 * 36 * 3)  # three rows of four clients
    alone = tiny_images(root, "federation.chunk=1").plan
    for plan in (study.plan, alone):
        pieces = evaluate(method, state, "existing", groups["existing"], plan, metrics_of(study, TASK))
        for one, other in zip(whole.rows, pieces.rows, strict=True):
            assert dict(one.metrics) == pytest.approx(dict(other.metrics), rel=1e-4)
    _, posterior = next(personalisation.personalise(method, state, groups["existing"].train, study.plan))
    x = groups["existing"].test.x
    torch.testing.assert_close(predictive(posterior, x).probs, posterior.predict(x).probs)


def test_the_learning_curve_is_at_the_mean_weights(root: Path) -> None:
    study = tiny_images(root)
    method, state, groups = trained(study)
    scaled = groups["existing"]
    points = means([totals(method, state, scaled, study.plan)])
    rows = evaluate(method, state, "existing", scaled, study.plan, metrics_of(study, TASK)).rows
    for model in ("pm", "gm"):
        values = [row.metrics[f"{model}.mean_weights.accuracy"] for row in rows]
        assert points[f"{model}.accuracy"] == pytest.approx(np.mean(values), rel=1e-12)
    assert scaled.validation is not None
    right = []
    for k in range(4):
        batch = scaled.validation.select(torch.tensor([k]))
        x, y = batch.x[0][batch.mask[0]].flatten(1).double().numpy(), batch.y[0][batch.mask[0]].numpy()
        right.append(np.mean(softmax_mlp(method.model, state.clients.q.loc[k : k + 1], x).argmax(1) == y))
    assert points["validation.pm.accuracy"] == pytest.approx(np.mean(right), rel=1e-12)


def test_histograms_sort_the_entropies_of_a_few_clients(root: Path) -> None:
    sets = ("data.options.clients=6", "data.options.new_clients=0")
    study = tiny_images(root, *sets)
    method, state, groups = trained(study)
    result = histograms(method, state, groups["existing"], study.plan)
    assert list(result) == [f"entropy.client_{k:02d}" for k in range(5)]
    report = evaluate(method, state, "existing", groups["existing"], study.plan, metrics_of(study, TASK))
    for k, shares in enumerate(result.values()):
        probs = report.predictions["existing.pm.probs"][k].double().numpy()
        entropy = -(probs * np.log(probs)).sum(-1) / np.log(10)
        expected, _ = np.histogram(entropy, 20, (0.0, 1.0))
        np.testing.assert_allclose(shares, expected / len(entropy), atol=1e-12)


def record(number: int, pm: float, validation: float | None = None) -> RoundRecord:
    values = {"pm.accuracy": pm} | ({} if validation is None else {"validation.pm.accuracy": validation})
    return RoundRecord(number, 3, values=values)


def test_selections_by_hand() -> None:
    rounds = [record(50, 0.95, 0.6), record(110, 0.7, 0.8), record(130, 0.75, 0.8), record(150, 0.72, 0.5)]
    result = selections([RoundRecord(1, 3), *rounds])
    assert set(result) == {"pm"} and set(result["pm"]) == {"best_validation", "best_of_last_100_test_rounds"}
    by_validation, by_test = result["pm"]["best_validation"], result["pm"]["best_of_last_100_test_rounds"]
    assert (by_validation["round"], by_validation["accuracy"]) == (110, 0.7)  # the first of equals, its test accuracy
    assert (by_test["round"], by_test["accuracy"]) == (130, 0.75)  # round 50 is not among 51..150
    assert "looks at test rows" in by_test["rule"]
    assert set(selections([record(5, 0.5)])["pm"]) == {"best_of_last_100_test_rounds"}
    assert selections([]) == selections([RoundRecord(1, 2)]) == {}
    assert selections([record(1, math.nan, math.nan)]) == {}


def test_labels_say_which_model_which_draws_and_which_rule(root: Path) -> None:
    study = tiny_images(root, "federation.rounds=1")
    method, _, _ = trained(study)
    rows = [ClientRow(k, f"c{k}", "existing", 3, {"kept": kept}) for k, kept in enumerate((0.25, 0.5))]
    said = labels(method, ClientRows.of(rows), [], metrics_of(study, TASK))
    assert (said["draws"], said["inference"]) == (4, "closed-form KL, written-out gradient")
    assert said["kept"] == 0.375 and said["selection"] == "last round" and "10 bins" in said["ece"]
    assert "last local steps left them" in said["evaluation_point"]
    study = tiny_images(root, "method.name=fedavg", "federation.rounds=1")
    method, _, _ = trained(study)
    said = labels(method, ClientRows.of([]), [], metrics_of(study, TASK))
    assert said["draws"] == 1 and "kept" not in said
    assert "personal models are the global one" in said["evaluation_point"]


def test_probabilities_are_kept_in_float32_whatever_the_default_is(root: Path) -> None:
    before = torch.get_default_dtype()
    study = tiny_images(root, "method.name=fedavg", "federation.rounds=1")
    usual = run(study).predictions
    torch.set_default_dtype(torch.float64)
    try:
        found = run(study).predictions
    finally:
        torch.set_default_dtype(before)
    assert found["existing.pm.probs"].dtype == usual["existing.pm.probs"].dtype == torch.float32
