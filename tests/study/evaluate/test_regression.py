"""Scores and predictions of a state, against numbers made by hand."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from sklearn.linear_model import RidgeCV

from pacbayes_fl.data import tables
from pacbayes_fl.federation import engine
from pacbayes_fl.methods import METHODS
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior
from pacbayes_fl.study.config import choices
from pacbayes_fl.study.data import ScaledGroup, load
from pacbayes_fl.study.evaluate.points import means, totals
from pacbayes_fl.study.evaluate.regression import distance, evaluate, labels
from pacbayes_fl.study.evaluate.report import Report, metrics_of
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.search.held_out import first
from tests.tiny import on_csv, quick, rows, tiny, write_csv

ALPHAS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


def scored(
    study: Study, group: str = "existing", levels: Literal["paper", "pacoh"] = "paper"
) -> tuple[Report, ScaledGroup]:
    method, groups = prepare(study, load(study))
    state = engine.run_rounds(method, groups["existing"].train, study.plan)
    metrics = metrics_of(replace(study, report=replace(study.report, levels=levels)), "regression")
    return evaluate(method, state, group, groups[group], study.plan, metrics), groups[group]


def normal(residual: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return 0.5 * (residual.square() / variance + variance.log() + math.log(2 * math.pi))


@pytest.mark.parametrize("group", ["existing", "new"])
def test_ridge_is_scored_as_by_hand(tmp_path: Path, group: str) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    report, _ = scored(on_csv(path, "method.name=ridge"), group)
    raw = load(on_csv(path)).groups[group]
    assert [row.name for row in report.rows] == list(raw.train.names)
    for k, row in enumerate(report.rows):
        m = int(raw.train.size[k])
        x, y, x_test, y_test = raw.train.x[k, :m], raw.train.y[k, :m], raw.test.x[k], raw.test.y[k]
        loc, std = y.mean(), y.std(correction=0)
        inputs = [(t - x.mean(0)) / x.std(0, correction=0) for t in (x, x_test)]
        ridge = RidgeCV(alphas=ALPHAS, store_cv_results=True).fit(inputs[0].numpy(), ((y - loc) / std).numpy())
        variance = torch.tensor(ridge.cv_results_[:, ALPHAS.index(ridge.alpha_)].mean()).clamp_min(1e-8)
        mean = loc + std * torch.from_numpy(ridge.predict(inputs[1].numpy()))
        rmse = (mean - y_test).square().mean().sqrt()
        nlpd = normal((mean - y_test) / std, variance).mean()
        expected = {
            "rmse_raw": rmse,
            "rmse": rmse / std,
            "rsmse": rmse / y_test.std(correction=0),
            "nlpd": nlpd,
            "nlpd_raw": nlpd + std.log(),
        }
        assert (row.group, row.m, row.id) == (group, m, raw.train.ids[k])
        for name, value in expected.items():
            assert row.metrics[name] == pytest.approx(value.item(), rel=1e-7), name
        for name, values in {"mean": mean, "std": (std * variance.sqrt()).expand(3)}.items():
            torch.testing.assert_close(report.predictions[f"{group}.{name}"][k], values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", ["client", "shrunk"])
def test_clients_whose_targets_give_no_unit_are_named_and_not_said_to_be_far(scale: str) -> None:
    """One of a single training row and one of a constant target, of values whose unit of 1 means nothing."""
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).unsqueeze(1)
    y = 1e6 * (x[:, 0] + 0.1 * torch.sin(9 * x[:, 0]))
    train = {"a": (x, y), "b": (x, 2 * y), "one": (x[:1], y[:1]), "flat": (x, torch.full_like(y, 3e6)), "c": (x, -y)}
    table = {"data": {"scale": scale}, "method": {"name": "pac-pfl"}, "federation": {"rounds": 2, "device": "cpu"}}
    data = {name: (*rows, x[2:7] + 0.01, y[2:7]) for name, rows in train.items()}
    study = first(Study.from_table(table).with_instances(data=data))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scored(study)
    said = [str(one.message) for one in caught]
    assert [text for text in said if text.startswith("training targets of 'one', 'flat' do not vary, or are but one")]
    assert not [text for text in said if "standard deviations of their own targets away" in text]


def test_persistence_in_the_datas_own_units_is_scored_as_by_hand(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    report, _ = scored(on_csv(path, "method.name=persistence"))
    raw = load(on_csv(path)).groups["existing"]
    for k, row in enumerate(report.rows):
        y, m = raw.test.y[k], int(raw.train.size[k])
        residual, std = y - raw.test.x[k, :, 0], raw.train.y[k, :m].std(correction=0)
        rmse = residual.square().mean().sqrt()
        variance = (raw.train.y[k, :m] - raw.train.x[k, :m, 0]).square().mean()
        expected = {
            "rsmse": rmse / y.std(correction=0),
            "rmse_raw": rmse,
            "rmse": rmse / std,
            "nlpd_raw": normal(residual, variance).mean(),
            "nlpd": normal(residual, variance).mean() - std.log(),
        }
        for name, value in expected.items():
            assert row.metrics[name] == pytest.approx(value.item(), rel=1e-9), name
        assert torch.equal(report.predictions["existing.mean"][k], raw.test.x[k, :, 0])


@pytest.mark.parametrize("name", ["pac-pfl", "pooled-ridge", "persistence"])
@pytest.mark.parametrize("group", ["existing", "new"])
def test_metrics_in_both_units_agree(tmp_path: Path, name: str, group: str) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    report, scaled = scored(on_csv(path, f"method.name={name}"), group)
    for row, std in zip(report.rows, scaled.units.y_std.tolist(), strict=True):
        metrics = row.metrics
        assert metrics["rmse_raw"] == pytest.approx(metrics["rmse"] * std, rel=1e-9)
        assert metrics["crps_raw"] == pytest.approx(metrics["crps"] * std, rel=1e-9)
        assert metrics["nlpd_raw"] == pytest.approx(metrics["nlpd"] + math.log(std), rel=1e-9)
        assert all(math.isfinite(value) for value in metrics.values())


def test_predictions_hold_every_row_and_nan_in_padding(tmp_path: Path) -> None:
    table = [row for i, row in enumerate(rows()) if i != 8]  # the first client has two test rows, the others three
    path = write_csv(tmp_path / "rows.csv", table)
    report, scaled = scored(on_csv(path))
    numbers = report.predictions
    mask = numbers["existing.mask_test"]
    assert mask.sum(1).tolist() == [2, 3, 3, 3]
    for name in ("mean", "std", "lower", "upper", "pit"):
        assert torch.equal(numbers[f"existing.{name}"].isnan(), ~mask), name
    lower, mean, upper = (numbers[f"existing.{name}"][mask] for name in ("lower", "mean", "upper"))
    assert (lower < mean).all() and (mean < upper).all()
    inside = (numbers["existing.lower"] <= scaled.raw.test.y) & (scaled.raw.test.y <= numbers["existing.upper"])
    coverage = (inside & mask).sum(1) / mask.sum(1)
    assert [row.metrics["coverage_95"] for row in report.rows] == pytest.approx(coverage.tolist())
    for part in ("train", "test"):
        for name in ("x", "y", "mask"):
            assert torch.equal(numbers[f"existing.{name}_{part}"], getattr(getattr(scaled.raw, part), name))


def test_the_levels_reach_the_calibration_error() -> None:
    paper, pacoh = (scored(tiny(), levels=levels)[0].rows for levels in ("paper", "pacoh"))
    assert [row.metrics["ce"] for row in paper] != [row.metrics["ce"] for row in pacoh]
    assert [row.metrics["rsmse"] for row in paper] == [row.metrics["rsmse"] for row in pacoh]


def test_a_chunk_at_a_time_gives_the_same_report() -> None:
    whole, pieces = (scored(tiny(f"federation.chunk={chunk}"))[0] for chunk in (2**19, 1))
    for one, other in zip(whole.rows, pieces.rows, strict=True):
        assert (one.name, one.id) == (other.name, other.id)
        assert dict(one.metrics) == pytest.approx(dict(other.metrics), rel=1e-9)


@pytest.mark.parametrize("method", ["pac-pfl", "ridge"])
def test_the_score_of_a_learning_curve_is_the_mean_rsmse_of_the_report(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tiny(f"method.name={method}")
    built, groups = prepare(study, load(study))
    state = engine.run_rounds(built, groups["existing"].train, study.plan)
    report = evaluate(built, state, "existing", groups["existing"], study.plan, metrics_of(study, "regression"))
    values = [row.metrics["rsmse"] for row in report.rows]
    expected = {"rsmse": pytest.approx(sum(values) / len(values), rel=1e-12)}
    monkeypatch.setattr(GPPosterior, "function", lambda *_: pytest.fail("a mean needs no variances"))
    assert means([totals(built, state, groups["existing"], study.plan)]) == expected


def test_labels_say_what_the_numbers_are() -> None:
    columns = (tables.Column("a", "h"), tables.Column("b"))
    paper, pacoh = (metrics_of(tiny(f"report.levels={name}"), "regression") for name in ("paper", "pacoh"))
    said = labels({"particles": 7}, columns, tables.Column("p", "W"), pacoh)
    assert (said["feature_name"], said["feature_unit"]) == (["a", "b"], ["h", ""])
    assert (said["target_name"], said["target_unit"], said["band"]) == ("p", "W", [0.025, 0.975])
    assert "'pacoh'" in said["ce"] and said["particles"] == 7
    assert "particles" not in labels({}, columns, columns[0], paper)
    assert {"model", "rows", "selection", "rsmse", "nlpd"} <= set(said)


def test_labels_say_how_weights_were_learned() -> None:
    words = {}
    for name in ("pfedbayes", "fedavg", "fedsi", "ridge"):
        study = tiny(
            f"method.name={name}", *(["method.alpha=0.1", "method.personal_alpha=round"] if name == "fedsi" else [])
        )
        words[name] = prepare(study, load(study))[0].about()
    assert (words["pfedbayes"]["draws"], words["fedavg"]["draws"]) == (20, 1)
    assert words["pfedbayes"]["inference"] == "closed-form KL, written-out gradient"
    assert "20 draws" in words["pfedbayes"]["average"] and words["ridge"] == {}
    assert "linearised" in words["fedsi"]["average"] and "Laplace" in words["fedsi"]["inference"]


@pytest.mark.slow
def test_every_method_of_the_table_can_be_reported(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    for name in (name for name, recipe in METHODS.items() if "regression" in recipe.learns):
        for group in ("existing", "new"):
            study = on_csv(path, *quick(name), "federation.rounds=2")
            for asked in study.held_out:
                study = choices.with_value(study, asked, choices.candidates(study, asked)[0])
            report, _ = scored(study, group)
            assert all(math.isfinite(value) for row in report.rows for value in row.metrics.values()), name


def test_equal_targets_have_no_spread_whatever_rounding_leaves() -> None:
    same = torch.full((15,), -1.2345678, dtype=torch.float64)
    noisy = same + 1e-16 * torch.randn(15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean = torch.tensor([3.0, torch.nan], dtype=torch.float64)
    assert distance(mean, same) == distance(mean, noisy) == distance(mean, same[:0]) == distance(mean[:0], same) == 0.0
    assert 3.0 < distance(mean, torch.tensor([0.0, 1.0, -1.0]).double()) < 4.0
