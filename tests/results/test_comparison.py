"""Comparisons as they lie on disk, and the client that a metric is worst for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.comparison import FILE, direction, is_comparison, load, run_folder, table, worst
from pacbayes_fl.results.manifest import put
from pacbayes_fl.results.metrics import comparison_columns, headlines
from pacbayes_fl.results.records import Result
from tests.hostile import NAMES


def result(values: dict[str, float], metric: str = "rsmse", group: str = "existing", seed: int = 0) -> Result:
    rows = (ClientRow(k, name, group, 3, {metric: value}) for k, (name, value) in enumerate(values.items()))
    return Result("s", "m", seed, "regression", clients=tuple(rows))


def test_the_worst_client_by_the_direction_of_the_metric() -> None:
    values = {"a": 0.5, "b": 0.9, "c": 0.1, "d": math.nan}
    assert worst([result(values)], "existing", "rsmse") == ("b", 0.9)
    assert worst([result(values, "pm.accuracy")], "existing", "pm.accuracy") == ("c", 0.1)
    assert worst([result(values, "nlpd_raw")], "existing", "nlpd_raw") == ("b", 0.9)
    assert worst([result(values, "coverage_95")], "existing", "coverage_95") is None
    assert worst([result(values)], "new", "rsmse") is None
    assert worst([result({"a": math.nan})], "existing", "rsmse") is None
    assert worst([result({"a": 1.0, "b": math.inf})], "existing", "rsmse") == ("b", math.inf)
    assert worst([result({"a": 1.0, "b": 1.0})], "existing", "rsmse") == ("a", 1.0)  # the first of equals
    assert [direction(name) for name in ("rsmse", "gm.accuracy", "pm.kept")] == ["lower", "higher", ""]


def test_seeds_are_averaged_by_client() -> None:
    runs = [result({"a": 3.0, "b": 1.0}, seed=0), result({"a": 1.0, "b": 2.5, "c": math.nan}, seed=1)]
    assert worst(runs, "existing", "rsmse") == ("a", 2.0)
    (cell,) = table(runs)
    assert (cell.worst, cell.worst_client, cell.seeds) == (2.0, "a", 2)


def test_runs_of_other_settings_are_no_seeds_of_one_another() -> None:
    def asked(rounds: int, seed: int, value: float) -> Result:
        one = result({"a": value}, seed=seed)
        labels = {"settings": {"federation.rounds": rounds}, "round": rounds}
        return Result(one.study, one.method, seed, one.task, clients=one.clients, labels=labels)

    runs = [asked(10, 0, 1.0), asked(60, 0, 2.0), asked(60, 1, 3.0)]
    told = [(cell.method, cell.seeds, cell.round, cell.mean) for cell in table(runs)]
    assert told == [("m, rounds=10", 1, "10", 1.0), ("m, rounds=60", 2, "60", 2.5)]
    with pytest.warns(UserWarning, match="there twice, and counted once: m on s, seed 0"):
        (cell,) = table([runs[0], runs[0]])
    assert (cell.method, cell.seeds, cell.asked) == ("m", 1, 1)


def test_every_metric_of_a_table_has_a_direction() -> None:
    assert all(direction(name) for task in headlines() for name in comparison_columns(task))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_run_of_any_method_has_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / run_folder(name, 3)).mkdir()
    assert [path.name.endswith("-seed3") for path in tmp_path.iterdir()] == [True]


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"runs": 3}', '{"runs": [{}]}', "[" * 100_000])
def test_a_damaged_table_of_contents_is_named(text: str, tmp_path: Path) -> None:
    assert not is_comparison(tmp_path)
    with pytest.raises(StudyError, match=f"is not a finished comparison: {FILE} is missing"):
        load(tmp_path)
    put(tmp_path, {FILE: text.encode()})
    assert is_comparison(tmp_path)
    with pytest.raises(DataError, match=f"{FILE} cannot be read: .*run compare again"):
        load(tmp_path)
    put(tmp_path, {FILE: b'{"runs": []}'})
    with pytest.raises(DataError, match="names no run"):
        load(tmp_path)
    (tmp_path / FILE).write_text('{"runs": [1]}')  # behind the manifest's back
    with pytest.raises(DataError, match=FILE):
        load(tmp_path)
