"""Files of one's own are named with their SHA-256, and a run is not gone on with when they have changed."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pacbayes_fl.cli import main
from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.settings import to_toml
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import open_run
from pacbayes_fl.study.serving.release import open_release, release
from pacbayes_fl.study.storage import origins
from tests.tiny import TABLE, rows, tiny, write_csv
from tests.user_objects import METHOD, METRIC, RULE, write


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train two rounds of a method and a metric of one's own."""
    folder = tmp_path_factory.mktemp("own")
    write(folder, "mine.py", METHOD)
    write(folder, "largest.py", METRIC)
    table = TABLE | {"method": {"name": "mine.py:MeanTarget"}, "report": {"metrics": ["largest.py:LARGEST"]}}
    table |= {"data": {"source": str(write_csv(folder / "rows.csv", rows()))}}
    table["federation"] = {**TABLE["federation"], "rounds": 2, "checkpoint_every": 1}
    (folder / "mine.toml").write_text(to_toml(table), encoding="utf-8")
    assert main(["run", str(folder / "mine.toml"), "--out", str(folder / "run"), "--quiet"]) == 0
    release(folder / "run", folder / "released")
    return folder


def test_a_run_names_its_files_with_their_hash(trained: Path) -> None:
    place = trained.resolve()
    known: dict[str, dict[str, object]] = {
        f"{place}/{file}:{name}": {
            "file": f"{place}/{file}",
            "sha256": hashlib.sha256((place / file).read_bytes()).hexdigest(),
        }
        for file, name in (("mine.py", "MeanTarget"), ("largest.py", "LARGEST"))
    }
    known[f"{place}/largest.py:LARGEST"]["scores"] = True
    assert json.loads((trained / "run" / "environment.json").read_text())[origins.KEY] == known
    saved = checkpoint.load(trained / "run")
    assert saved is not None and saved.meta[origins.KEY] == known
    assert not list((trained / "run").rglob("*.py")), "no copy that could be executed"
    assert origins.used(tiny()) == {}


ASKED = {
    "resume": ["run", "{}/mine.toml", "--out", "{}/run", "--resume", "--rounds", "3"],
    "predict": ["predict", "{}/run", "--client", "existing_0", "--data", "{}/rows.csv"],
    "certify": ["certify", "{}/run"],
    "join": ["join", "{}/run", "--data", "{}/rows.csv"],
    "join a release": ["join", "{}/released", "--data", "{}/rows.csv"],
    "compare": ["compare", "{}/mine.toml", "--out", "{}/compared", "--seeds", "1", "--resume"],
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("after", ["changed", "gone"])
def test_a_changed_file_is_refused_and_never_executed(
    trained: Path, asked: list[str], after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if asked[0] == "compare" and not (trained / "compared").exists():
        assert main([*(each.format(trained) for each in asked[:-1]), "--quiet"]) == 0
    file = trained / "mine.py"
    sign = trained / "executed"
    sign.unlink(missing_ok=True)
    try:
        if after == "changed":
            file.write_text(METHOD + f"open({str(sign)!r}, 'w').close()\n", encoding="utf-8")
        else:
            file.unlink()
        assert main([*(each.format(trained) for each in asked), "--quiet"]) == 1
    finally:
        file.write_text(METHOD, encoding="utf-8")
    said = capsys.readouterr().err
    assert str(file.resolve()) in said
    assert ("has changed: SHA-256" if after == "changed" else "there is no file") in said
    if asked[0] not in ("run", "compare"):  # which read the study file first
        assert not sign.exists()


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_metric_that_has_changed_is_told_where_no_scores_of_before_are_compared(
    trained: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """No training rests on a metric: a run whose metric was mended is not lost, and predicts as it did."""
    if asked[0] == "compare" and not (trained / "compared").exists():
        assert main([*(each.format(trained) for each in asked[:-1]), "--quiet"]) == 0
    file, compares = trained / "largest.py", asked[0] == "compare"
    if "--resume" in asked and not compares:  # it goes on with its copy, and that of the others stays as it is
        shutil.copytree(trained / "run", trained / "again", dirs_exist_ok=True)
        asked = [each.replace("{}/run", "{}/again") for each in asked]
    try:
        file.write_text(METRIC + "# a comment\n", encoding="utf-8")
        code = main([each.format(trained) for each in asked])
        with pytest.warns(
            UserWarning, match=r"largest\.py has changed: SHA-256 .* scores from now on are by the metric"
        ):
            open_run(trained / "run")
        with pytest.raises(StudyError, match=r"run was trained with .*largest\.py has changed: SHA-256"):
            origins.check_folder(trained / "run", scores=True)
    finally:
        file.write_text(METRIC, encoding="utf-8")
    assert (f"{file.resolve()} has changed: SHA-256" in capsys.readouterr().err) == compares
    assert code == 1 if compares else code == 0 or asked[0] in ("certify", "join")  # refused for other reasons


def test_a_file_that_was_put_back_goes_on(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", str(trained / "run"), "--client", "existing_0", "--data", str(trained / "rows.csv")]
    assert main(asked) == 0
    assert "existing_0" in capsys.readouterr().out
    assert open_release(trained / "released").study.method.name.endswith("mine.py:MeanTarget")


def test_a_file_that_changes_while_a_run_goes_on_does_not_change_the_run(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.py", METHOD)
    study = Study.from_table(TABLE | {"method": {"name": f"{path}:MeanTarget"}})
    before, recipe = origins.used(study), study.recipe
    path.write_text(METHOD + "\nraise RuntimeError\n", encoding="utf-8")
    assert study.differences() is not None and study.recipe is recipe
    assert origins.used(study) == before


@pytest.mark.parametrize("known", [[], {"a": 3}, {"a": {"file": "x"}}])
def test_what_cannot_be_read_is_refused(known: object) -> None:
    with pytest.raises(DataError, match="own_files"):
        origins.check(known, Path("run"))


def test_nothing_is_wrong_without_files_of_ones_own(tmp_path: Path) -> None:
    origins.check({}, Path("run"))
    origins.check_folder(tmp_path)
    with pytest.raises(StudyError, match="there is no file"):
        origins.check({"a.py:A": {"file": str(tmp_path / "a.py"), "sha256": "0"}}, Path("run"))


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train two rounds of FedAvg by a rule of one's own."""
    folder = tmp_path_factory.mktemp("rule")
    write(folder, "rule.py", RULE)
    table = TABLE | {"method": {"name": "fedavg", "weighting": "uniform", "steps": 2}, "model": {"widths": [2]}}
    table |= {"data": {"source": str(write_csv(folder / "rows.csv", rows()))}}
    table["federation"] = {"aggregate": "rule.py:RULE", "rounds": 2, "checkpoint_every": 1}
    (folder / "mine.toml").write_text(to_toml(table), encoding="utf-8")
    assert main(["run", str(folder / "mine.toml"), "--out", str(folder / "run"), "--quiet"]) == 0
    return folder


def test_a_rule_of_aggregation_is_named_and_watched(joined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run whose rule has changed does not go on, and the rule is not executed; put back, it does."""
    file, sign = joined / "rule.py", joined / "executed"
    (name,) = origins.used(Study.from_toml(joined / "run" / "study.toml"))
    known = json.loads((joined / "run" / "environment.json").read_text())[origins.KEY]
    assert name == f"{joined.resolve()}/rule.py:RULE"
    assert known == {name: {"file": name[:-5], "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}}
    go_on = ["run", str(joined / "mine.toml"), "--out", str(joined / "run"), "--resume", "--rounds", "3", "--quiet"]
    predict = ["predict", str(joined / "run"), "--client", "existing_0", "--data", str(joined / "rows.csv"), "--quiet"]
    file.write_text(RULE + f"open({str(sign)!r}, 'w').close()\n", encoding="utf-8")
    try:
        assert main(predict) == 1 and not sign.exists()
        assert main(go_on) == 1
    finally:
        file.write_text(RULE, encoding="utf-8")
    assert capsys.readouterr().err.count(f"{file.resolve()} has changed: SHA-256") == 2
    assert main(predict) == 0 and main(go_on) == 0


def moved(trained: Path, to: Path) -> Path:
    """Copy all that a run was made of to another place, and let it be gone at the first."""
    shutil.copytree(trained, to / "elsewhere")
    trained.rename(trained.with_name("away"))
    return to / "elsewhere"


@pytest.fixture
def elsewhere(trained: Path, tmp_path: Path) -> Iterator[Path]:
    yield moved(trained, tmp_path)
    trained.with_name("away").rename(trained)


def test_a_run_that_was_moved_with_its_files_is_opened_released_and_resumed(elsewhere: Path) -> None:
    opened = open_run(elsewhere / "run")
    assert opened.study.method.name == f"{elsewhere}/mine.py:MeanTarget"
    assert opened.study.report.metrics == (f"{elsewhere}/largest.py:LARGEST",)
    assert open_release(elsewhere / "released").study.method.name == f"{elsewhere}/mine.py:MeanTarget"
    again = ["run", str(elsewhere / "mine.toml"), "--out", str(elsewhere / "run"), "--resume", "--rounds", "3"]
    toml = (elsewhere / "mine.toml").read_text("utf-8")
    before = re.search(r'source = "(.*)/rows\.csv"', toml)
    assert before is not None
    (elsewhere / "mine.toml").write_text(toml.replace(before[1], str(elsewhere)), "utf-8")
    assert main([*again, "--quiet"]) == 0 and open_run(elsewhere / "run").round == 3


def test_files_beside_a_moved_run_or_where_one_works_have_to_be_the_same(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    for name in ("mine.py", "largest.py"):
        (elsewhere / name).rename(tmp_path / "work" / name)
    (elsewhere / "mine.py").write_text("raise SystemExit('executed')")
    with pytest.raises(StudyError, match=r"there is no file .* \(put it back there, into the working folder, or"):
        open_run(elsewhere / "run")
    monkeypatch.chdir(tmp_path / "work")
    assert open_run(elsewhere / "run").study.method.name == f"{tmp_path}/work/mine.py:MeanTarget"
