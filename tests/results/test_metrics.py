"""The table of metrics is the only place where a metric's name stands: what is added there is shown everywhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl import cli, metrics, plots
from pacbayes_fl.plots.style import metric_label
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.results import metrics as table
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.comparison import direction
from pacbayes_fl.results.metrics import METRICS, MODELS, Metric
from pacbayes_fl.study.compare import compare
from pacbayes_fl.study.config.parts import ReportPart
from pacbayes_fl.study.run import run
from tests.architecture.source import ROOT, complain, modules, violations
from tests.tiny import on_csv, rows, tiny, write_csv


def test_the_table_is_read_only_and_every_record_is_whole() -> None:
    with pytest.raises(TypeError):
        METRICS["own"] = METRICS["rmse"]  # type: ignore[index]
    settings = {field.name: field.default for field in fields(ReportPart)}
    for name, metric in METRICS.items():
        assert metric.name == name and metric.label and metric.meaning and metric.tasks
        assert all(settings[option.setting] == option.default for option in metric.options), name
        assert metric.at({}) == metric.at(settings)
        assert bool(metric.search) == bool(metric.summed)
    for task in ("regression", "classification"):
        assert sum(metric.headline for metric in table.of_task(task).values()) == 1
        assert len(table.search_scores(task)) == 2


def test_what_tables_and_figures_show_by_default() -> None:
    assert table.run_columns("regression") == ("rsmse", "ce", "nlpd", "crps", "rmse_raw")
    assert table.run_columns("classification") == (
        *("pm.accuracy", "pm.ece", "pm.nll", "pm.brier"),
        *("gm.accuracy", "gm.ece"),
    )
    assert table.comparison_columns("regression") == ("rsmse", "ce", "nlpd", "crps")
    assert table.comparison_columns("classification") == (
        *("pm.accuracy", "pm.nll", "pm.brier", "pm.ece", "pm.mce"),
        *("gm.accuracy", "gm.ece"),
    )
    assert table.box_columns() == ("rsmse", "ce", "pm.accuracy", "gm.accuracy", "pm.ece")
    assert table.headlines() == {"regression": "rsmse", "classification": "pm.accuracy"}
    assert [table.search_scores(task) for task in table.headlines()] == [("rsmse", "nlpd"), ("error", "nll")]


def test_a_column_is_looked_up_by_its_metric() -> None:
    for column, name in {"rmse": "rmse", "rmse_raw": "rmse", "pm.mean_weights.ece": "ece", "pm.kept": None}.items():
        result = table.metric_of(column)
        assert (result.name if result else None) == name
    assert [column for column in ("rmse", "rmse_raw", "pm.ece", "own_raw") if table.is_raw(column)] == ["rmse_raw"]


@pytest.mark.parametrize("name", METRICS)
def test_a_record_calls_the_function_that_it_names_with_its_options(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    metric = METRICS[name]
    assert isinstance(metric.function, str)
    module, _, function = metric.function.partition(":")
    assert getattr(metrics, function).__module__ == module, "the room offers it under its name"
    got: dict[str, Any] = {}
    monkeypatch.setattr(f"{module}.{function}", lambda predictive, y, mask, **given: got.update(given) or y)
    y = torch.zeros(2, 3)
    settings = {option.setting: f"{option.setting} of a study" for option in metric.options}
    assert metric.at(settings)(None, y, y > 0) is y
    assert got == {option.argument: settings[option.setting] for option in metric.options}


@pytest.mark.parametrize("name", METRICS)
def test_scores_lie_between_the_ends_that_a_record_states(name: str) -> None:
    """Of good, bad and sure predictions; what has no end goes beyond any that could be stated."""
    metric, draw = METRICS[name].at({}), torch.Generator().manual_seed(0)
    mean, y = torch.randn(2, 40, 9, generator=draw, dtype=torch.float64)
    log_probs = (5 * torch.randn(40, 9, 3, generator=draw, dtype=torch.float64)).log_softmax(-1)
    labels, mask = torch.randint(3, (40, 9), generator=draw), torch.ones(40, 9, dtype=torch.bool)
    regression = "regression" in metric.tasks
    for width in (1e-3, 1.0, 30.0):
        normal = NormalMixture(mean.new_zeros(40, 1), mean.unsqueeze(1), torch.full_like(mean, width).unsqueeze(1))
        made: Any = normal if regression else ClassMixture((log_probs / width).log_softmax(-1))
        scores = metric(made, y if regression else labels, mask)
        low, high = metric.ends
        assert (low is None or bool((scores >= low).all())) and (high is None or bool((scores <= high).all()))
    assert metric.ends != (None, None) or metric.raw == "log density"


def test_labels_say_the_values_of_options() -> None:
    settings = {"levels": "pacoh", "calibration_bins": 20}
    said = {name: METRICS[name].at(settings).labels() for name in ("ce", "ece", "accuracy")}
    assert said["ce"] == {"ce": "eq. 41, mean absolute residual, levels 'pacoh'"}
    assert list(said["ece"].items()) == [
        ("calibration_bins", 20),
        ("ece", "top-label, 20 bins of equal width (lo, hi] on [0, 1], l1 norm"),
    ]
    assert said["accuracy"] == {}


# one record is enough -------------------------------------------------------------------------------------------


def largest(predictive: Any, y: Tensor, mask: Tensor, factor: float = 1.0) -> Tensor:
    """Largest absolute error of the mean [K]."""
    worst: Tensor = (factor * (y - predictive.mean).abs()).masked_fill(~mask, 0.0).amax(1)
    return worst


OWN = Metric(
    name="max_error",
    label="largest error",
    unit="standard deviations",
    function=largest,
    better="lower",
    tasks=("regression",),
    meaning="largest absolute error of the predictive mean",
    raw="times unit",
    note="largest absolute error over test rows",
    run=("{}", "{}_raw"),
    comparison=("{}",),
    boxes=("{}",),
)


@pytest.mark.slow
def test_one_record_brings_a_metric_into_every_table_figure_label_and_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run(tiny("federation.rounds=1"))
    monkeypatch.setattr(table, "METRICS", MappingProxyType({**METRICS, OWN.name: OWN}))
    study = on_csv(write_csv(tmp_path / "rows.csv", rows()), "method.name=ridge")
    result = run(study, tmp_path / "run")
    for group in GROUPS:  # scored, in both units
        ratio = torch.tensor(result.column(group, "max_error_raw")) / torch.tensor(result.column(group, "max_error"))
        known = torch.tensor(result.column(group, "rmse_raw")) / torch.tensor(result.column(group, "rmse"))
        torch.testing.assert_close(ratio, known)
    assert result.labels["max_error"] == OWN.note
    assert cli.main(["show", str(tmp_path / "run")]) == 0  # the table of a run
    shown = capsys.readouterr().out
    assert "  max_error " in shown and "  max_error_raw " in shown
    assert (direction("max_error"), direction("max_error_raw")) == ("lower", "lower")
    compare([study, replace(study, method=tiny("method.name=pooled-ridge").method)], 1, tmp_path / "both")
    assert cli.main(["show", str(tmp_path / "both")]) == 0  # the table of a comparison
    assert "max_error, existing clients" in capsys.readouterr().out
    assert metric_label("max_error", result) == "largest error (standard deviations)"
    labels = [axis.get_ylabel() for axis in plots.client_boxes(result).figure.axes]
    assert any(label.startswith("largest error (standard deviations)") for label in labels)
    assert cli.main(["list", "metrics"]) == 0
    assert f"{OWN.name:20} regression: {OWN.meaning}; lower is better" in capsys.readouterr().out
    after = run(tiny("federation.rounds=1"))  # and nothing else changes
    for one, other in zip(before.clients, after.clients, strict=True):
        assert {**one.metrics} == {name: value for name, value in other.metrics.items() if "max_error" not in name}


# nowhere else ---------------------------------------------------------------------------------------------------

# Names of losses that are no metrics' (`certify --loss nll` is told which bounded loss to take).
_ALSO_LOSSES = ("pacbayes_fl/bounds/loss_table.py",)
_NAMES = {*METRICS, *(pattern.format(name) for name in METRICS for pattern in ("{}_raw", "_{}", ".{}"))} | {
    f"{model}.{name}" for model in MODELS for name in METRICS
}


def named_metrics(text: str, path: str) -> Iterator[tuple[int, str]]:
    """Yield each string of a module that is the name of a metric or of a column of one; words on axes may be."""
    if path.startswith(("pacbayes_fl/metrics/", "pacbayes_fl/results/metrics", "data_gen/")) or path in _ALSO_LOSSES:
        return
    tree = ast.parse(text)
    words = {
        id(key.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for key in node.keywords
        if key.arg in ("label", "xlabel", "ylabel", "title")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in _NAMES and id(node) not in words:
            yield node.lineno, f"{node.value!r} is a metric's name, which stands in results/metrics.py alone"


@pytest.mark.slow
def test_no_metric_is_named_in_another_module() -> None:
    assert "pacbayes_fl/cli/output.py" in modules()
    complain(violations(named_metrics))


@pytest.mark.parametrize("text", ['X = ("rsmse",)', 'f(f"{model}.accuracy")', 'x = row["pm.ece"]', 'y["rmse_raw"]'])
def test_a_planted_name_is_found(text: str) -> None:
    assert list(named_metrics(text, "pacbayes_fl/study/run.py"))
    assert not list(named_metrics(text, "pacbayes_fl/results/metrics.py"))
    assert not list(named_metrics('axis.set(ylabel="accuracy")', "pacbayes_fl/plots/own.py"))
    assert (ROOT / _ALSO_LOSSES[0]).is_file()
