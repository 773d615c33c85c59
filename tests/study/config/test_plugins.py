"""What users bring: references, what they lead to, what is refused, and studies that use them."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl import settings
from pacbayes_fl.cli import main
from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.plugins.references import read_again
from pacbayes_fl.results.comparison import load
from pacbayes_fl.study.config.plugins import METHODS, METRICS
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import open_run, run
from pacbayes_fl.study.storage import origins as study_origins
from tests import tiny_images
from tests.tiny import TABLE
from tests.user_objects import BOUND, LOSS, METHOD, METRIC, MODEL, RULE, SOURCE, write

DERIVED = """
from dataclasses import dataclass, replace

from pacbayes_fl.methods.variational.cfedbayes import CFedBayes
from pacbayes_fl.methods.variational.pfedbayes import RECIPE as OTHER


@dataclass(frozen=True)
class Mine(CFedBayes):
    pass


RECIPE = replace(OTHER, method=Mine)
"""
BOTH = "Mine", "RECIPE"
RECIPE = """
from dataclasses import replace

from pacbayes_fl.methods.baselines.fedavg import RECIPE as OTHER

RECIPE = replace(OTHER, {})
"""
PINSKER = (Path(__file__).parents[3] / "examples" / "own_bound.py").read_text("utf-8").partition("\ncheck_bound(")[0]


def table(**parts: Any) -> dict[str, Any]:
    """Return a study of two rounds with some parts replaced."""
    return {**TABLE, "federation": {**TABLE["federation"], "rounds": 2, "checkpoint_every": 1}, **parts}


def written(folder: Path, **parts: Any) -> str:
    """Write a study beside the user's files."""
    path = folder / "mine.toml"
    path.write_text(settings.to_toml(table(**parts)), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (None, "mine.py:MeanTarget", ["[method] name: there is no file", "mine.py", "folder of the study"]),
        (METHOD, "mine.py:MeanTargett", ["has no 'MeanTargett'", "did you mean 'MeanTarget'?"]),
        (METHOD, "mine.py:Mean", ["must be a subclass of Method, or a Recipe, got the class Mean"]),
        ("x = 3\n", "mine.py:x", ["must be a subclass of Method, or a Recipe, got 3 of type int"]),
        ("a = 1\nraise RuntimeError('no luck')\n", "mine.py:A", ["mine.py, line 2: RuntimeError: no luck"]),
        ("a = 1\n\nb = = 2\n", "mine.py:A", ["mine.py, line 3: SyntaxError"]),
        ("import beside\n", "mine.py:A", ["line 1: ModuleNotFoundError", "no files beside it"]),
        (METHOD.replace("@dataclass(frozen=True)\n", ""), "mine.py:MeanTarget", ["is no dataclass"]),
        (METHOD.replace("= option(0.5, low=0, high=1)", ""), "mine.py:MeanTarget", ["no default for shrink"]),
        (METHOD.replace("def personalise", "def other"), "mine.py:MeanTarget", ["does not define personalise"]),
        (
            METHOD.replace("shrink: float = option(0.5, low=0, high=1)", "shrink: dict = option(factory=dict)"),
            "mine.py:MeanTarget",
            ["MeanTarget has options that no study can hold: shrink is <class 'dict'>"],
        ),
        (METHOD + "    model: int = 3\n", "mine.py:MeanTarget", ["MeanTarget.model is annotated"]),
        (
            METHOD.replace("low=0, high=1)", "above=0, paper=Paper(0.0, 'eq. 1'))").replace(
                "from pacbayes_fl.options", "from pacbayes_fl.methods.options import Paper\nfrom pacbayes_fl.options"
            ),
            "mine.py:MeanTarget",
            ["mine.py:MeanTarget, preset 'paper' [method]: shrink must be"],
        ),
        *[
            (RECIPE.format(given), "mine.py:RECIPE", ["mine.py:RECIPE, " + said])
            for given, said in (
                ("presets={'paper': {'federation': {'rouns': 5}}}", "preset 'paper' [federation]: unknown key 'rouns'"),
                ("presets={'mine': {'fedration': {}}}", "preset 'mine': no part of a study is called 'fedration'"),
                ("own_rows={'method': {'ratee': 1.0}}", "own_rows [method]: unknown key 'ratee'"),
                ("variant={'momentun': 0.5}", "variant: FedAvg has no field 'momentun'"),
            )
        ],
        *[
            (DERIVED, f"mine.py:{name}", ["preset 'paper' [method]: unknown key", "dataclasses.replace"])
            for name in BOTH
        ],
    ],
)
def test_errors_say_file_name_and_what_was_expected(
    tmp_path: Path, text: str | None, name: str, words: list[str]
) -> None:
    if text is not None:
        write(tmp_path, "mine.py", text)
    with pytest.raises(StudyError) as error:
        Study.from_toml(written(tmp_path, method={"name": name}))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return Nothing()", "return 1 / 0", r"mine\.py, line 41: ZeroDivisionError: division by zero \(code that"),
        ("message.value", "message.lost", r"mine\.py, line \d+: AttributeError: .* \(code that the study brings"),
        (
            "return Update(total",
            "return (total",
            r"a defect of pacbayes-fl or of .*mine\.py, which the study brings: run",
        ),
    ],
)
def test_errors_of_code_that_a_study_brings_are_not_the_librarys(
    old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "mine.py", METHOD.replace(old, new))
    study = written(tmp_path, method={"name": "mine.py:MeanTarget"})
    assert main(["run", study, "--out", str(tmp_path / "run"), "--quiet"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(said, last), last
    assert main(["predict", str(tmp_path / "nowhere"), "--data", "x.csv"]) == 1
    assert "mine.py" not in capsys.readouterr().err


def test_a_module_is_imported_by_name_and_may_be_missing() -> None:
    known = METHODS["pacbayes_fl.methods.baselines.ridge:LocalRidge"]
    assert known is METHODS["ridge"]
    with pytest.raises(StudyError, match=r"\[method\] name: no_such_package.module: ModuleNotFoundError"):
        METHODS["no_such_package.module:Name"]
    assert "nothing" not in METHODS and METHODS.get("nothing") is None


def test_a_recipe_is_derived_from_the_dataclass(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.py", METHOD)
    recipe = METHODS[f"{path}:MeanTarget"]
    assert recipe.title == "The mean of all clients' means, shrunk towards zero"
    assert recipe.model == "functions" and recipe.options().shrink == 0.5
    with pytest.raises(StudyError, match="from 0 to 1"):
        Study.from_toml(written(tmp_path, method={"name": "mine.py:MeanTarget", "shrink": 2.0}))
    own = METHOD + "\nfrom pacbayes_fl.methods import MethodSummary, Recipe\n"
    own += "RECIPE = Recipe('Mine', MeanTarget, MethodSummary('a', 'b', 'c', 'd', 'e'), rounds=False)\n"
    assert METHODS[f"{write(tmp_path, 'own.py', own)}:MeanTarget"].title == "Mine"


@pytest.mark.parametrize(("base", "model"), [("FunctionModel", "functions"), ("WeightModel", "weights")])
def test_the_annotation_of_the_model_says_what_it_is_over(tmp_path: Path, base: str, model: str) -> None:
    text = METHOD.replace("    shrink: float", f"    model: {base}\n    shrink: float")
    path = write(tmp_path, "mine.py", f"from pacbayes_fl.models.base import {base}\n{text}")
    assert METHODS[f"{path}:MeanTarget"].model == model


def test_a_method_and_a_metric_of_ones_own_run_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "mine.py", METHOD)
    write(tmp_path, "largest.py", METRIC)
    study = written(
        tmp_path, method={"name": "mine.py:MeanTarget", "shrink": 0.25}, report={"metrics": ["largest.py:LARGEST"]}
    )
    out = tmp_path / "run"
    assert main(["run", study, "--out", str(out), "--quiet"]) == 0
    printed = capsys.readouterr().out
    with (out / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows and all(float(row["largest_error"]) >= float(row["rmse"]) for row in rows)
    kept = Study.from_toml(out / "study.toml")
    assert kept.method.name == f"{tmp_path.resolve()}/mine.py:MeanTarget" and kept.method.options.shrink == 0.25
    assert json.loads((out / "labels.json").read_text())["own_metrics"] == {"largest_error": "largest absolute error"}
    worst = max((float(row["largest_error"]), row["name"]) for row in rows if row["group"] == "existing")
    assert re.search(rf"^  largest_error .* {worst[1]} +{worst[0]:.3f}$", printed, re.MULTILINE)
    assert main(["run", study, "--out", str(out), "--quiet", "--resume", "--rounds", "3"]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("paged")
def test_a_comparison_shows_metrics_of_ones_own_with_their_better_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "largest.py", METRIC)
    study = written(tmp_path, method={"name": "ridge"}, report={"metrics": ["largest.py:LARGEST"]})
    out = tmp_path / "compared"
    given = ["--methods", "ridge,pooled-ridge", "--seeds", "1", "--out", str(out), "--quiet"]
    assert main(["compare", study, *given]) == 0
    table = capsys.readouterr().out.partition("largest_error, existing clients\n")[2].splitlines()
    assert [line.split()[0] for line in table[:2]] == ["ridge", "pooled-ridge"] and "poly_" in table[0]
    page = (out / "report.html").read_text("utf-8")
    assert "largest_error (lower is better), existing clients: method less" in page
    assert "largest_error" in load(out)._repr_html_() and (out / "figures" / "intervals.png").is_file()


def test_metrics_of_ones_own_are_refused_before_training(tmp_path: Path) -> None:
    path = write(tmp_path, "largest.py", METRIC)
    with pytest.raises(StudyError, match=r"unknown metric 'rmsee' \(did you mean 'rmse'"):
        Study.from_table(table(report={"metrics": ["rmsee"]}))
    for name in ("rmse", "m", "group", "n_clients"):
        taken = write(tmp_path, f"taken_{name}.py", METRIC.replace('"largest_error"', f'"{name}"'))
        with pytest.raises(StudyError, match=f"cannot be called '{name}'"):
            METRICS[f"{taken}:LARGEST"]
    low = write(tmp_path, "low.py", METRIC.replace('"lower"', '"low"'))
    with pytest.raises(StudyError, match="better must be 'lower', 'higher' or '', got 'low'"):
        METRICS[f"{low}:LARGEST"]
    flat = write(tmp_path, "flat.py", METRIC.replace(".amax(1)", ".amax()"))
    predictive = type("Predictive", (), {"mean": torch.zeros(2, 3)})()
    y, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    assert METRICS[f"{path}:LARGEST"](predictive, y, mask).tolist() == [1.0, 1.0]
    with pytest.raises(ShapeError, match=r"a number per client, \[2\], got \[\]"):
        METRICS[f"{flat}:LARGEST"](predictive, y, mask)


@pytest.mark.parametrize("result", ["LARGEST.numpy()", "LARGEST.float()", "LARGEST.long()", "y.zero_() * 0 + LARGEST"])
def test_whatever_numbers_a_metric_gives_are_taken_and_its_rows_are_copies(result: str, tmp_path: Path) -> None:
    largest = "torch.where(mask, (predictive.mean - y).abs(), 0.0).amax(1)"
    given = result.replace("y.zero_() * 0 + LARGEST", "(LARGEST, y.zero_(), mask.zero_())[0]").replace(
        "LARGEST", largest
    )
    write(tmp_path, "metric.py", METRIC.replace(f"return {largest}", f"return {given}"))
    plain = run(Study.from_toml(written(tmp_path, method={"name": "ridge"})), tmp_path / "plain")
    own = written(tmp_path, method={"name": "ridge"}, report={"metrics": ["metric.py:LARGEST"]})
    scored = run(Study.from_toml(own), tmp_path / "run")
    assert all(value >= 0 for value in scored.column("existing", "largest_error"))
    assert scored.column("existing", "rmse_raw") == plain.column("existing", "rmse_raw")
    one, other = ((tmp_path / each / "predictions.safetensors").read_bytes() for each in ("plain", "run"))
    assert one == other


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'return tables.Dataset({"existing"',
            'return ({"existing"',
            "must give a pacbayes_fl.data.tables.Dataset, got ",
        ),
        ('{"existing": group}', '{"new": group}', r"gives no group 'existing', but \['new'\] \(clients that train are"),
        ('(tables.Column("x"),)', "()", r"inputs of the group 'existing' must be \[0\], as features say, got \[1\]"),
        ("lines, Options,", "lines, dict,", "the options of a source must be a dataclass, got <class 'dict'>"),
    ],
)
def test_what_a_source_of_ones_own_must_give_is_said(old: str, new: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, "source.py", SOURCE.replace(old, new))
    with pytest.raises(StudyError, match=f"source.py:LINES.*{said}"):
        run(Study.from_toml(written(tmp_path, data={"source": "source.py:LINES"}, method={"name": "ridge"})))


def test_a_model_of_ones_own_is_trained_and_read_back(tmp_path: Path) -> None:
    write(tmp_path, "model.py", MODEL)
    study = written(
        tmp_path, model={"kind": "model.py:NARROW"}, method={"name": "fedavg", "steps": 2}, data=TABLE["data"]
    )
    out = tmp_path / "run"
    assert main(["run", study, "--out", str(out), "--quiet"]) == 0
    trained = open_run(out)
    assert trained.method.model.sizes == (1, 2, 1)
    assert trained.study.model.kind == f"{tmp_path.resolve()}/model.py:NARROW"
    with pytest.raises(StudyError, match="is over weights, and the method learns functions"):
        Study.from_toml(study, ["method.name=pac-pfl", "model.kind=" + trained.study.model.kind])


def test_a_source_and_a_bound_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "source.py", SOURCE)
    bound = write(tmp_path, "bound.py", BOUND)
    study = written(
        tmp_path,
        data={"source": "source.py:LINES", "options": {"clients": 4}},
        report={"certify": {"scheme": "split"}},
    )
    out = tmp_path / "run"
    assert main(["run", study, "--out", str(out), "--quiet"]) == 0
    trained = open_run(out)
    assert trained.groups["existing"].train.names == tuple(f"line_{k}" for k in range(4))
    assert list(study_origins.used(trained.study)) == [f"{tmp_path.resolve()}/source.py:LINES"]
    capsys.readouterr()
    assert main(["certify", str(out), "--bound", f"{bound}:MINE", "--quiet"]) == 0
    mine = capsys.readouterr().out
    assert "line_0" in mine and "mine" in mine
    assert hashlib.sha256(bound.read_bytes()).hexdigest() in (out / "certified.jsonl").read_text()
    other = write(tmp_path, "other.py", PINSKER)
    assert main(["certify", str(out), "--bound", f"{other}:PINSKER", "--quiet"]) == 0
    capsys.readouterr()
    for command in ("show", "plot"):
        assert main([command, str(out)]) == 0
        assert "pinsker" in capsys.readouterr().out.lower()
    taken = write(tmp_path, "taken.py", BOUND.replace('"mine"', '"catoni"'))
    assert main(["certify", str(out), "--bound", f"{taken}:MINE", "--quiet"]) == 1
    assert "cannot be called 'catoni'" in capsys.readouterr().err


def test_a_rule_of_ones_own_joins_steps_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the built-in one that it is; it is refused with what cannot go with it before anything is trained."""
    path = write(tmp_path, "rule.py", RULE)
    write(tmp_path, "median.py", MEDIAN)
    few = {"name": "fedavg", "weighting": "uniform", "steps": 2}
    given = {**TABLE["federation"], "rounds": 2, "aggregate": "rule.py:RULE"}
    study = written(tmp_path, method=few, model={"widths": [2]}, federation=given)
    assert main(["run", study, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert open_run(tmp_path / "run").study.federation.aggregate == f"{path.resolve()}:RULE"
    mine = run(Study.from_toml(study, [f"federation.aggregate={tmp_path}/median.py:MEDIAN"]))
    built_in = run(Study.from_toml(study, ["federation.aggregate=median"]))
    other = run(Study.from_toml(study, ["federation.aggregate=mean"]))
    assert mine.clients == built_in.clients != other.clients
    capsys.readouterr()
    for sets, said in {
        ("privacy.epsilon=5",): r"aggregate = '.*rule.py:RULE' is no sum of clipped steps",
        ("method.weighting=rows",): r"aggregate = '.*rule.py:RULE' counts every client once",
        ("federation.faulty=2",): r"'.*rule.py:RULE' with 2 faulty needs 5 clients in a round, got 4",
        ("federation.aggregate=rule.py:NONE",): r"aggregate: .*rule.py has no 'NONE'",
        ("federation.aggregate=rule.py:without_farthest",): r"must be a record .*AggregationRule, got",
        ("method.name=scaffold",): r"aggregate = '.*rule.py:RULE' joins clients' steps",
    }.items():
        given_sets = [f"--set={one.replace('rule.py', str(path))}" for one in sets]
        assert main(["run", study, *given_sets, "--out", str(tmp_path / "refused"), "--quiet"]) == 1
        assert re.search(said, capsys.readouterr().err), sets
        assert not (tmp_path / "refused" / "rounds.jsonl").exists()


MEDIAN = """
from pacbayes_fl.server import robust
from pacbayes_fl.server.aggregations import AggregationRule

MEDIAN = AggregationRule(
    "the-median", "median of every coordinate", lambda steps, weight, faulty: robust.middle(steps), False, True
)
"""


def test_a_rule_that_gives_no_step_ends_a_run_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {**TABLE["federation"], "rounds": 2, "aggregate": "rule.py:RULE"}
    few = {"name": "fedavg", "weighting": "uniform", "steps": 2}
    study = written(tmp_path, method=few, model={"widths": [2]}, federation=given)
    out = tmp_path / "run"
    for wrong, said in {
        "steps.mean(1)": r"rule.py:RULE' must give the step of the server, floating-point numbers \[\d+\], got \[4\]",
        "steps[0] / 0": r"rule.py:RULE' gave \d+ of \d+ numbers that are not finite",
        "steps[0] / {}": r"rule.py, line 10: TypeError: .*code that the study brings",
    }.items():
        kept = "return steps[far <= far.sort().values[kept - 1]].mean(0)"
        write(tmp_path, "rule.py", RULE.replace(kept, f"return {wrong}"))
        assert main(["run", study, "--out", str(out), "--quiet"]) == 1
        assert re.search(said, capsys.readouterr().err), wrong
        shutil.rmtree(out)


@pytest.mark.slow
def test_a_loss_of_ones_own_is_certified_and_counted_by_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file is asked for when the run is certified, from wherever that is; a changed one is another request."""
    out, path = tmp_path / "run", write(tmp_path, "mine.py", LOSS)
    study = written(tmp_path, report={"certify": {"scheme": "split", "independent": True}})
    assert main(["run", study, "--out", str(out), "--quiet"]) == 0

    def certified(loss: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["certify", str(out), "--loss", loss, "--json", "--quiet"]) == 0, capsys.readouterr().err
        read: dict[str, Any] = json.loads(capsys.readouterr().out)
        return read

    plain = certified(f"{path}:CappedAbsolute=3")
    assert plain["risk"].startswith("absolute error capped at 3 of the Gibbs predictor")
    assert (plain["low"], plain["high"]) == (0.0, 1.0)
    assert plain["number"] == 1 and plain["labels"]["loss"]["file"] == str(path)
    assert plain["labels"]["loss"]["class"] == "CappedAbsolute"
    monkeypatch.chdir(tmp_path)
    assert certified("mine.py:CappedAbsolute=3")["number"] == 1, "the same, from another folder"
    assert certified("mine.py:CappedAbsolute=4")["number"] == 2
    path.write_text(LOSS.replace("clamp_max(1.0)", "clamp_max(0.9)"))
    changed = certified("mine.py:CappedAbsolute=3")
    assert changed["number"] == 3 and changed["labels"]["loss"]["sha256"] != plain["labels"]["loss"]["sha256"]
    lines = [json.loads(line) for line in (out / "certified.jsonl").read_text().splitlines()]
    assert lines[0]["loss_sha256"] == plain["labels"]["loss"]["sha256"] and len(lines) == 3
    assert main(["show", str(out)]) == 0, "tables are read without the loss"
    path.unlink()
    assert main(["show", str(out)]) == 0


@pytest.mark.law
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("high = 1.0", "high = 0.5", r"every value of the loss 'absolute error.*must lie in the range.*\[0, 0.5\]"),
        ("high = 1.0", "high = float('inf')", "must be bounded"),
        (".abs() / self", ".abs() / y.abs().max() / self", "must not depend on the others"),
        ("return (((mean - y).square() + variance)", "return 0.1 * ((0.01 * (mean - y).square())", "the average over"),
        ("    def expected", "    def averaged", "is not for real targets"),
        ("low = 0.0", "", "must be a bounded loss or its class, with name, low, high, convex"),
    ],
)
def test_losses_that_bound_nothing_are_refused(
    old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "mine.py", LOSS.replace(old, new))
    study = written(tmp_path, report={"certify": {"scheme": "split", "independent": True}})
    assert main(["run", study, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["certify", str(tmp_path / "run"), "--loss", f"{tmp_path}/mine.py:CappedAbsolute", "--quiet"]) == 1
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "run" / "certified.jsonl").exists(), "nobody has seen a number"


PARTITION = """
from pacbayes_fl.data.partition import Parts
from pacbayes_fl.data.partitions import Partition, ShareOptions

import numpy as np


def cut(pieces, own):
    rows = np.array_split(np.arange(60), len(pieces.members))
    return pieces.named([Parts(train=one[4:], validation=one[:0], test=one[:4]) for one in rows])


BLOCKS = Partition("blocks", "blocks of rows in their order", ShareOptions, cut)
"""


def test_a_partition_of_ones_own_shares_out_images(tmp_path: Path) -> None:
    write(tmp_path, "partition.py", PARTITION)
    study = tiny_images.table(tiny_images.write_root(tmp_path / "images"))
    asked = {"root": str(tmp_path / "images"), "clients": 4, "new_clients": 2, "partition": "partition.py:BLOCKS"}
    study["data"] = {"source": "mnist", "options": asked}
    (tmp_path / "mine.toml").write_text(settings.to_toml(study), encoding="utf-8")
    out = tmp_path / "run"
    assert main(["run", str(tmp_path / "mine.toml"), "--out", str(out), "--quiet", "--rounds", "2"]) == 0
    trained = open_run(out)
    assert trained.groups["existing"].train.size.tolist() == [6.0] * 4
    assert trained.groups["existing"].test.size.tolist() == [4.0] * 4
    assert [*study_origins.used(trained.study)] == [f"{tmp_path.resolve()}/partition.py:BLOCKS"]


def test_installed_packages_extend_the_tables_by_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package is what a folder on the path says that it is: here a module and its metadata."""
    write(tmp_path, "a_package_of_methods.py", METHOD)
    about = tmp_path / "a_package_of_methods-1.0.dist-info"
    about.mkdir()
    write(about, "METADATA", "Metadata-Version: 2.1\nName: a-package-of-methods\nVersion: 1.0\n")
    write(about, "entry_points.txt", "[pacbayes_fl.methods]\nmean-target = a_package_of_methods:MeanTarget\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "mean-target" in METHODS and "a_package_of_methods" not in sys.modules, "not loaded before it is asked for"
    assert main(["list", "methods"]) == 0
    assert "a-package-of-methods" in capsys.readouterr().out and "a_package_of_methods" not in sys.modules
    study = Study.from_toml(written(tmp_path, method={"name": "mean-target"}))
    assert study.recipe.title.startswith("The mean of all clients' means")
    assert study_origins.used(study)["mean-target"]["file"] == str(tmp_path / "a_package_of_methods.py")


MECHANISM = """
from dataclasses import replace

from pacbayes_fl.privacy.kinds import MECHANISMS

MINE = replace(MECHANISMS["laplace"], title="Laplace noise under another name")
"""


def test_a_mechanism_of_ones_own_makes_a_run_private(tmp_path: Path) -> None:
    """At the price of the built-in one, whose record it is under another name."""
    path = write(tmp_path, "noise.py", MECHANISM)
    private = {"epsilon_if_noise_were_secret": 10.0, "mechanism": "noise.py:MINE"}
    study = written(tmp_path, privacy=private)
    found = run(Study.from_toml(study), tmp_path / "run")
    expected = run(Study.from_toml(study, ["privacy.mechanism=laplace"]), tmp_path / "laplace")
    for key in ("multiplier", "delta", "releases", "pure_if_noise_were_secret"):
        assert found.labels["privacy"][key] == expected.labels["privacy"][key]
    name = f"{path.resolve()}:MINE"
    assert found.labels["privacy"]["mechanism"] == name
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["own_files"].keys() == {name}
    assert open_run(tmp_path / "run").study.privacy.mechanism == name


DIRECTIONS = """
import torch


def first(d, k, seed):
    return torch.eye(k, d)
"""


def test_directions_of_ones_own_are_found_from_the_studys_folder_and_watched(tmp_path: Path) -> None:
    """Of eight coordinates, the first; a run whose file has changed does not go on."""
    path = write(tmp_path, "mine.py", DIRECTIONS)
    private = {"epsilon_if_noise_were_secret": 10.0, "subspace": 8, "directions": "mine.py:first"}
    study = written(tmp_path, privacy=private)
    found = run(Study.from_toml(study), tmp_path / "run")
    name = f"{path.resolve()}:first"
    assert f"nothing leaves but 8 {name} directions" in found.labels["privacy"]["statement"]
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["own_files"].keys() == {name}
    path.write_text(DIRECTIONS.replace("eye", "ones"))
    with pytest.raises(StudyError, match="has changed: SHA-256"):
        run(Study.from_toml(study), tmp_path / "run", resume=True)


OWN_PARTS = """
import torch

from pacbayes_fl.posteriors.hyper_posterior import GaussianHyperPrior
from pacbayes_fl.posteriors.weights.families import Family
from pacbayes_fl.posteriors.weights.full_rank import FullRank

WIDTH = 0.3
FULL = FullRank()


def around(model):
    return GaussianHyperPrior(model.location(), WIDTH)
"""


@pytest.mark.parametrize(
    ("method", "option", "name", "built_in"),
    [("pac-pfl", "own_hyper_prior", "around", "none"), ("pfedbayes", "family", "FULL", "full-rank")],
)
def test_a_part_of_ones_own_trains_as_the_built_in_one_that_it_is(
    method: str, option: str, name: str, built_in: str, tmp_path: Path
) -> None:
    """Its file stands in the run folder with its hash, and a run does not go on when it has changed."""
    path = write(tmp_path, "parts.py", OWN_PARTS)
    few = {"steps": 1, "draws": 2, "join_passes": 1} if method == "pfedbayes" else {}
    part = {"name": method, option: f"parts.py:{name}", **few}
    model = {"widths": [2]} if method == "pfedbayes" else {"mean_widths": [2], "linear": "none"}
    file = written(tmp_path, method=part, model=model)
    found = run(Study.from_toml(file), tmp_path / "run")
    assert found.clients == run(Study.from_toml(file, [f"method.{option}={built_in}"])).clients
    reference = f"{path.resolve()}:{name}"
    known = json.loads((tmp_path / "run" / "environment.json").read_text())["own_files"]
    assert known[reference]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert getattr(open_run(tmp_path / "run").study.method.options, option) == reference
    path.write_text(path.read_text().replace("WIDTH = 0.3", "WIDTH = 0.4"))
    with pytest.raises(StudyError, match="has changed: SHA-256"):
        open_run(tmp_path / "run")
    for wrong in ("WIDTH", "nothing"):
        with pytest.raises(StudyError, match=r"must be a|has no 'nothing'"):
            run(Study.from_toml(file, [f"method.{option}={path}:{wrong}"]))


def test_the_command_bound_takes_a_bound_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "bound.py", BOUND)
    asked = "--risk 0.03 --kl 500 --n 30000 --delta 0.025 --prior split --independent --json".split()
    said = []
    for name in (f"{path}:MINE", "seeger"):
        assert main(["bound", name, *asked]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[0]["value"] == said[1]["value"]
    assert main(["bound", f"{path}:NONE", *asked]) == 1
    assert "has no 'NONE'" in capsys.readouterr().err


OWN = {"METHOD": "MeanTarget", "METRIC": "LARGEST", "MODEL": "NARROW", "SOURCE": "LINES", "BOUND": "MINE"}
OWN |= {"LOSS": "NARROW", "LOSSES": "CappedAbsolute", "RULE": "RULE"}
KNOWN = {"METHOD": METHOD, "METRIC": METRIC, "MODEL": MODEL, "SOURCE": SOURCE, "BOUND": BOUND}
KNOWN |= {"LOSS": LOSS, "LOSSES": LOSS, "RULE": RULE}
FAMILY = {"METHOD": "method", "METRIC": "metric", "MODEL": "kind of model", "SOURCE": "source of data"}
FAMILY |= {"LOSSES": "loss", "RULE": "rule of aggregation"}


@pytest.mark.parametrize("kind", [*OWN, "PARTITION", "MECHANISM"])
def test_objects_of_ones_own_are_described(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = {"PARTITION": (PARTITION, "BLOCKS"), "MECHANISM": (MECHANISM, "MINE")}
    text, name = others[kind] if kind in others else (KNOWN[kind], OWN[kind])
    path = write(tmp_path, "own.py", text)
    read_again()
    assert main(["describe", f"{path}:{name}"]) == 0
    said = capsys.readouterr().out
    assert said.replace("\n", "").startswith(f"{path}:{name} ({FAMILY.get(kind, kind.lower())}") or kind == "MECHANISM"
    assert main(["describe", f"{path}:nothing"]) == 1
    assert "has no 'nothing'" in capsys.readouterr().err


def test_what_packages_add_is_listed_described_and_taken_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = {"models": (MODEL, "NARROW"), "partitions": (PARTITION, "BLOCKS"), "bounds": (BOUND, "MINE")}
    groups |= {"mechanisms": (MECHANISM, "MINE"), "losses": (LOSS, "CappedAbsolute"), "aggregations": (RULE, "RULE")}
    about = tmp_path / "a_package_of_all-1.0.dist-info"
    about.mkdir()
    write(about, "METADATA", "Metadata-Version: 2.1\nName: a-package-of-all\nVersion: 1.0\n")
    lines = []
    for group, (text, name) in groups.items():
        write(tmp_path, f"all_of_{group}.py", text)
        lines.append(f"[pacbayes_fl.{group}]\nadded-{group} = all_of_{group}:{name}\n")
    write(about, "entry_points.txt", "".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    for group in groups:
        assert main(["list", group]) == 0
        assert f"added-{group}" in capsys.readouterr().out
        assert f"all_of_{group}" not in sys.modules
        assert main(["describe", f"added-{group}"]) == 0
        assert f"added-{group}" in capsys.readouterr().out
    asked = {"root": str(tiny_images.write_root(tmp_path / "images")), "clients": 4, "partition": "added-partitions"}
    images = {"data": {"source": "mnist", "options": asked}, "method": {"name": "fedavg", "steps": 2}}
    study = Study.from_table(tiny_images.table(asked["root"]) | images | {"model": {"kind": "added-models"}})
    assert len(run(study).rows.names("existing")) == 4
    assert {*study_origins.used(study)} == {"added-models", "added-partitions"}
    with pytest.raises(StudyError, match=r"kind must be one of 'mlp', .*'added-models', got 'added-model'"):
        Study.from_table(tiny_images.table(asked["root"]) | images | {"model": {"kind": "added-model"}})


def test_whatever_takes_a_model_may_make_a_hyper_prior_and_nothing_else(tmp_path: Path) -> None:
    from pacbayes_fl.posteriors.hyper_posterior import HYPER_PRIORS
    from pacbayes_fl.study.describe import describe

    path = write(tmp_path, "mine.py", METHOD + METRIC + "\nmake = lambda model: 0\nnobody = lambda: 0\n")
    families = {name: [one.family for one in describe(f"{path}:{name}")] for name in ("MeanTarget", "LARGEST", "make")}
    assert families == {"MeanTarget": ["method"], "LARGEST": ["metric"], "make": ["hyper-prior"]}
    with pytest.raises(StudyError, match=r"a hyper-prior with sample and score, or a function of the model.*<lambda>"):
        HYPER_PRIORS[f"{path}:nobody"]
    with pytest.raises(StudyError, match=r"mine.py:largest is nothing .* pacbayes_fl.metrics.Metric; .*sources.Source"):
        describe(f"{path}:largest")


def test_errors_say_where_the_record_that_was_expected_comes_from(tmp_path: Path) -> None:
    from importlib import import_module

    from pacbayes_fl.study.describe import _open

    named = [table.expected.rpartition(" ")[2] for table, _ in _open() if table.expected.startswith("a record")]
    assert len(named) >= 5
    for place, _, name in (each.rpartition(".") for each in named):
        assert isinstance(getattr(import_module(place), name), type)
