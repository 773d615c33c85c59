"""Comparisons: every cell against its definition, runs that are read instead of repeated, and what is refused."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import CheckpointError, DataError, NumericalError, PacBayesFLError, StudyError
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.variational.pfedbayes import PFedBayes
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.names import from_cell
from pacbayes_fl.results import records as results
from pacbayes_fl.results.bootstrap import nested_bootstrap
from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.comparison import Cell, table
from pacbayes_fl.results.metrics import comparison_columns
from pacbayes_fl.results.records import Result
from pacbayes_fl.study import compare as study_compare
from pacbayes_fl.study.compare import compare, varied, write
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import run
from tests.hostile import NAMES
from tests.tiny import on_csv, quick, rows, tiny, write_csv, write_study

RIDGES = ("ridge", "pooled-ridge")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Result]]:
    """Return the folder of a comparison of two methods over two seeds, with data that follow the seed."""
    out = tmp_path_factory.mktemp("compare") / "out"
    return out, compare(studies(), 2, out)


def studies() -> list[Study]:
    return [tiny(f"method.name={name}", "data.follow_seed=true") for name in RIDGES]


def result(values: Sequence[float], group: str = "existing", method: str = "a", seed: int = 0) -> Result:
    clients = tuple(ClientRow(k, f"c{k}", group, 3, {"rsmse": value}) for k, value in enumerate(values))
    return Result("s", method, seed, "regression", clients=clients)


def test_runs_come_method_by_method_and_seed_by_seed(compared: tuple[Path, list[Result]]) -> None:
    out, result = compared
    assert [(one.method, one.seed) for one in result] == [(name, seed) for name in RIDGES for seed in (3, 4)]
    assert result[0] != result[1] and result[0].column("new", "rsmse") != result[1].column("new", "rsmse")
    alone = run(tiny("method.name=pooled-ridge", "data.follow_seed=true", "seed=4"))
    assert alone.clients == result[3].clients
    for one in result:
        assert results.load(out / f"{one.method}-seed{one.seed}") == one


def test_every_cell_is_the_bootstrap_of_its_runs(compared: tuple[Path, list[Result]]) -> None:
    _, result = compared
    cells = table(result)
    assert [cell[:3] for cell in cells] == [
        (m, g, n) for m in RIDGES for g in ("existing", "new") for n in comparison_columns("regression")
    ]
    for cell in cells:
        values = [one.column(cell.group, cell.metric) for one in result if one.method == cell.method]
        assert cell[3:6] == nested_bootstrap(values)
        assert cell.median == pytest.approx(statistics.median([v for row in values for v in row]), rel=1e-12)
        assert cell.low <= cell.mean <= cell.high and cell.seeds == 2


def test_clients_without_a_number_are_left_out_and_named() -> None:
    nan = math.nan
    (cell,) = table([result([1.0, nan, 5.0]), result([3.0, 4.0, nan], seed=1)])
    assert cell[3:6] == nested_bootstrap([[1.0, 5.0], [3.0, 4.0]])
    assert (cell.mean, cell.median, cell.seeds) == (3.25, 3.5, 2)
    (odd,) = table([result([1.0, 2.0, nan]), result([nan] * 3, seed=1), result([6.0, nan, nan], seed=2)])
    assert (odd.mean, odd.median) == (3.75, 2.0)
    assert (odd.scores, odd.asked, odd.not_finite) == (3, 9, (("c1", "nan"), ("c2", "nan"), ("c0", "nan")))
    (none,) = table([result([nan, nan])])
    assert math.isnan(none.mean) and (none.scores, none.asked) == (0, 2)
    assert (cell.scores, cell.asked, cell.not_finite) == (4, 6, (("c2", "nan"), ("c1", "nan")))
    assert [cell.group for cell in table([result([1.0], "new")])] == ["new"]


def test_the_table_on_disk_is_the_table(compared: tuple[Path, list[Result]]) -> None:
    out, result = compared
    cells = table(result, result[0].metrics)
    with (out / "compare.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    assert tuple(lines[0]) == Cell._fields
    assert all(not cell.not_finite for cell in cells)
    read = [
        Cell(*line[:3], *map(float, line[3:7]), *map(int, line[7:10]), (), line[11], float(line[12]), line[13])
        for line in lines[1:]
    ]
    assert repr(read) == repr(cells) and {cell.round for cell in cells} <= {"1", "12"}  # NaN: a coverage has no bad end
    summary = json.loads((out / "compare.json").read_text())
    plain = [cell._asdict() | {"not_finite": []} | ({} if cell.worst_client else {"worst": None}) for cell in cells]
    runs = [{"folder": f"{name}-seed{seed}", "method": name, "seed": seed} for name in RIDGES for seed in (3, 4)]
    for one in runs:
        one["scores_sha256"] = hashlib.sha256((out / one["folder"] / "clients.csv").read_bytes()).hexdigest()
    assert summary == {"study": "tiny", "cells": plain, "runs": runs}
    assert {"rmse_raw", "rsmse", "coverage_95"} <= {cell["metric"] for cell in summary["cells"]}
    assert {"box_plots.png", "box_plots.svg"} <= {path.name for path in (out / "figures").iterdir()}


def test_the_bins_of_calibration_errors_stand_beside_the_cells(tmp_path: Path) -> None:
    runs = [
        replace(result([1.0], method=name), labels={"calibration_bins": bins}) for name, bins in (("a", 10), ("b", 20))
    ]
    write(tmp_path, runs)
    assert json.loads((tmp_path / "compare.json").read_text())["calibration_bins"] == {"a": 10, "b": 20}


def test_what_is_not_finite_stays_json(tmp_path: Path) -> None:
    write(tmp_path, [result([1.0, math.inf])])

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    summary = json.loads((tmp_path / "compare.json").read_text(), parse_constant=refuse)
    (cell,) = summary["cells"]
    assert (cell["mean"], cell["low"], cell["high"], cell["method"], cell["seeds"]) == (None, None, None, "a", 1)


def test_without_matplotlib_the_table_is_still_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any) -> None:
        raise PacBayesFLError("figures need matplotlib")

    monkeypatch.setattr(study_compare.plots, "save_joint", absent)
    with pytest.warns(UserWarning, match="no box plots: figures need matplotlib"):
        write(tmp_path, [result([1.0, 2.0])])
    assert (tmp_path / "compare.csv").is_file()


def test_finished_runs_are_read_and_unfinished_ones_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_compare.plots, "save_joint", lambda *_: None)  # what takes the time
    first = compare([tiny()], 1, tmp_path)
    ran: list[tuple[int, bool]] = []

    def watched(study: Study, out: Path | None, resume: bool, on_round: Any) -> Result:
        ran.append((study.seed, resume))
        return run(study, out, resume, on_round)

    monkeypatch.setattr(study_compare, "run", watched)
    assert compare([tiny()], 1, tmp_path) == first
    assert ran == []
    again = compare([tiny()], 2, tmp_path)
    assert ran == [(4, False)] and again[0] == first[0]
    (tmp_path / "pac-pfl-seed4" / "metrics.json").unlink()
    assert compare([tiny()], 2, tmp_path) == again
    assert ran == [(4, False), (4, True)]


def test_a_finished_run_of_another_study_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_compare.plots, "save_joint", lambda *_: None)
    compare([tiny()], 1, tmp_path)
    with pytest.raises(CheckpointError, match="the study is not the one that this run was started with"):
        compare([tiny("method.rate=0.5")], 1, tmp_path)


def test_nothing_is_written_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[tuple[str, int]] = []
    rounds: list[int] = []

    def on_run(study: Study) -> Any:
        seen.append((study.method.name, study.seed))
        return lambda record: rounds.append(record.round)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare([tiny("federation.rounds=2"), tiny("method.name=ridge")], 2, None, on_run)
    assert list(tmp_path.iterdir()) == []
    assert seen == [("pac-pfl", 3), ("pac-pfl", 4), ("ridge", 3), ("ridge", 4)]
    assert rounds == [1, 2, 1, 2, 1, 1]


def test_studies_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    with pytest.raises(StudyError, match="the studies to compare have different data"):
        compare([tiny(), on_csv(path, "method.name=ridge")], 1)
    with pytest.raises(
        StudyError, match="need different methods or values and at least 1 seed, got ridge, ridge and 1"
    ):
        compare([tiny("method.name=ridge")] * 2, 1)
    with pytest.raises(StudyError, match="got ridge and 0"):
        compare([tiny("method.name=ridge")], 0)
    with pytest.raises(StudyError, match="need different methods"):
        compare([], 1)


# one value, varied ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_method_runs_once_per_value_and_is_named_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, short = write_study(tmp_path), "federation.rounds=2"
    both = [
        study
        for method in ("pac-pfl", "pfedgp")
        for study in varied(path, "method.rate", ("0.001", "0.1"), [f"method.name={method}", short])
    ]
    assert [(one.method.name, one.method.options.rate) for one in both] == [
        (method, rate) for method in ("pac-pfl", "pfedgp") for rate in (0.001, 0.1)
    ]
    out = tmp_path / "out"
    result = compare(both, 2, out, vary="method.rate")
    names = [f"{method} rate={rate}" for method in ("pac-pfl", "pfedgp") for rate in ("0.001", "0.1")]
    assert [one.method for one in result] == [name for name in names for _ in range(2)]
    assert {folder.name for folder in out.glob("*-seed*")} == {
        f"{name}-seed{seed}" for name in names for seed in (3, 4)
    }
    alone = run(tiny("method.rate=0.1", short, "seed=4"))
    assert result[3].clients == alone.clients and result[3].clients != result[1].clients
    kept = results.load(out / "pac-pfl rate=0.1-seed4")  # the folder is a run's as any other
    assert (kept.method, kept.clients, kept.labels) == ("pac-pfl", alone.clients, alone.labels)
    assert result[3].labels["varied"] == {"key": "method.rate", "value": 0.1, "method": "pac-pfl"}
    summary = json.loads((out / "compare.json").read_text())
    assert list(summary["varied"]) == names == list(dict.fromkeys(cell["method"] for cell in summary["cells"]))
    assert summary["varied"][names[2]] == {"key": "method.rate", "value": 0.001, "method": "pfedgp"}
    assert {"sweep.png", "sweep.svg"} <= {path.name for path in (out / "figures").iterdir()}
    monkeypatch.setattr(study_compare, "run", lambda *_, **__: pytest.fail("run again"))
    assert compare(both, 2, out, vary="method.rate") == result


@pytest.mark.parametrize(
    ("key", "values", "names"),
    [
        ("model.mean_widths", ("zero", "[]", "[4, 2]"), ("mean_widths=zero", "mean_widths=[]", "mean_widths=[4, 2]")),
        ("federation.cohort", ("none", "2"), ("cohort=none", "cohort=2")),
        ("data.options.samples", ("5", "7"), ("samples=5", "samples=7")),  # data may differ in what is varied
    ],
)
def test_values_of_every_kind_make_names(
    key: str, values: Sequence[str], names: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_compare, "run", lambda one, *_, **__: result([1.0], method=one.method.name))
    found = compare(varied(write_study(tmp_path), key, values), 1, vary=key)
    assert [one.method for one in found] == [f"pac-pfl {name}" for name in names]
    assert [cell.method for cell in table(found)] == [f"pac-pfl {name}" for name in names]


def test_a_value_with_a_slash_makes_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def ran(one: Study, out: Path, **_: Any) -> Result:
        folders.append(out)
        return result([1.0])

    monkeypatch.setattr(study_compare, "run", ran)
    monkeypatch.setattr(study_compare.plots, "save_joint", lambda *_: None)
    compare([tiny("data.options.note=a/b")], 1, tmp_path, vary="data.options.note")
    (folder,) = folders
    assert folder.parent == tmp_path and re.fullmatch("pac-pfl note=a_b-[0-9a-f]{8}-seed3", folder.name)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_method_of_any_name_reads_back_from_the_table_and_is_no_formula(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_compare.plots, "save_joint", lambda *_: None)
    write(tmp_path, [result([1.0, -2.0], method=name)])
    text = (tmp_path / "compare.csv").read_text("utf-8")
    assert all(line.isprintable() for line in text.split("\n"))
    (row,) = [*csv.reader(text.splitlines())][1:]
    assert from_cell(row[0]) == name and (row[0][0] not in "=+-@" or row[0] == "-5")
    assert float(row[3]) == -0.5 and not row[3].startswith("'")  # numbers stay numbers


def test_values_that_cannot_be_varied_are_refused(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    with pytest.raises(StudyError, match=r"different methods or values .* got pac-pfl rate=0\.5, pac-pfl rate=0\.5"):
        compare(varied(path, "method.rate", ("0.5", ".5")), 1, vary="method.rate")
    with pytest.raises(StudyError, match=r"pac-pfl on tiny has no value 'method\.fraction'"):
        compare([tiny()], 1, vary="method.fraction")
    with pytest.raises(StudyError, match="unknown key 'fraction'"):
        varied(path, "method.fraction", ("1",))
    with pytest.raises(StudyError, match=r"there is no value of 'method\.rate' to take"):
        varied(path, "method.rate", ())
    with pytest.raises(StudyError, match="the studies to compare have different data"):
        compare([tiny(), tiny("data.options.samples=5")], 1, vary="method.rate")


# before the first run -------------------------------------------------------------------------------------------


def test_nothing_runs_where_one_method_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_compare, "run", lambda *_, **__: pytest.fail("run"))
    last = [tiny(f"method.name={name}") for name in ("ridge", "pooled-ridge", "persistence")]
    with pytest.raises(StudyError, match=r"^persistence cannot run, and nothing was run yet: persistence needs"):
        compare(last, 2, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    values = varied(write_study(tmp_path), "federation.min_clients", ("1", "4", "5"), ["method.name=ridge"])
    with pytest.raises(StudyError, match=r"^ridge min_clients=5 cannot run, and nothing was run yet: min_clients is 5"):
        compare(values, 1, vary="federation.min_clients")


@pytest.mark.parametrize("sets", ["report.intervals=conformal", "model.residuals=mixture"])
def test_nothing_runs_where_one_method_has_no_residuals(monkeypatch: pytest.MonkeyPatch, sets: str) -> None:
    monkeypatch.setattr(study_compare, "run", lambda *_, **__: pytest.fail("run"))
    asked = [tiny(f"method.name={name}", sets) for name in ("pac-pfl", "ridge")]
    with pytest.raises(StudyError, match=r"^ridge cannot run, and nothing was run yet: .* residuals, which ridge does"):
        compare(asked, 1)


def test_runs_that_fail_are_named_after_all_others_were_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(study: Study, *args: Any, **more: Any) -> Result:
        if study.method.name == "ridge" and study.seed < most:
            raise NumericalError("it has diverged", client="c1")
        return run(study, *args, **more)

    monkeypatch.setattr(study_compare, "run", broken)
    studies, told, most = [tiny(f"method.name={name}") for name in RIDGES], list[Result](), 5
    text = "^2 of 4 runs failed: ridge, seed 3: client 'c1': it has diverged; so did ridge, seed 4$"
    with pytest.raises(NumericalError, match=text):
        compare(studies, 2, tmp_path, on_result=told.append)
    assert [(one.method, one.seed) for one in told] == [("pooled-ridge", 3), ("pooled-ridge", 4)]
    most = 4
    with pytest.raises(NumericalError, match=r"^1 of 4 runs failed: ridge, seed 3: client 'c1': it has diverged$"):
        compare(studies, 2, tmp_path, resume=True)
    most = 0
    assert len(compare(studies, 2, tmp_path, resume=True)) == 4


def test_code_that_a_study_brings_may_raise_anything_and_the_others_are_made(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n\nfrom pacbayes_fl.methods.baselines.fedavg import FedAvg\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n"
        "    def descend(self, theta, batch, noise, passes=1):\n        return {}[0]\n"
    )
    studies = [tiny(f"method.name={name}") for name in (f"{tmp_path / 'mine.py'}:Mine", *RIDGES)]
    told = list[Result]()
    with pytest.warns(UserWarning, match=r"^1 of 3 runs failed: .*mine\.py:Mine, seed 3"), pytest.raises(KeyError):
        compare(studies, 1, on_result=told.append)
    assert [one.method for one in told] == ["ridge", "pooled-ridge"]


def test_a_defect_of_the_library_ends_a_comparison_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_compare, "run", lambda *_, **__: {}[0])
    monkeypatch.setattr(study_compare, "blamed", lambda _: (None, []))
    with pytest.raises(KeyError), warnings.catch_warnings():
        warnings.simplefilter("error")
        compare([tiny(f"method.name={name}") for name in RIDGES], 1)


def test_folders_are_looked_at_before_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all methods and seeds: a run of another study in the last one costs no training of the first."""
    monkeypatch.setattr(study_compare.plots, "save_joint", lambda *_: None)
    both = [tiny(f"method.name={name}", "federation.rounds=1") for name in ("pfedgp", "pac-pfl")]
    compare(both[1:], 2, tmp_path)
    monkeypatch.setattr(study_compare, "run", lambda *_, **__: pytest.fail("run"))
    changed = [both[0], tiny("method.name=pac-pfl", "federation.rounds=1", "method.tau=0.5")]
    with pytest.raises(CheckpointError, match=r"method\.tau: saved 1\.0, now 0\.5"):
        compare(changed, 2, tmp_path)
    (tmp_path / "pac-pfl-seed3" / "metrics.json").unlink()  # and of one that has not ended
    (tmp_path / "pac-pfl-seed4" / "study.toml").unlink()
    with pytest.raises(CheckpointError, match=r"method\.tau: saved 1\.0, now 0\.5"):
        compare(changed, 2, tmp_path)


def test_a_finished_comparison_is_read_without_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_compare.plots, "save_joint", lambda *_: None)
    path = write_csv(tmp_path / "rows.csv", rows())
    both = [on_csv(path, f"method.name={name}") for name in RIDGES]
    first = compare(both, 1, tmp_path / "out")
    path.unlink()
    assert compare(both, 1, tmp_path / "out") == first


def test_scores_of_other_rows_are_no_part_of_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_compare.plots, "save_joint", lambda *_: None)
    path = write_csv(tmp_path / "rows.csv", rows())
    both = [on_csv(path, f"method.name={name}") for name in RIDGES]
    first = compare(both[:1], 1, tmp_path / "out")
    write_csv(path, [{**row, "y": -3.0 * float(str(row["y"]))} for row in rows()])
    with pytest.raises(DataError, match="its rows are not those that the run was started with"):
        compare(both, 1, tmp_path / "out")
    write_csv(path, rows())
    assert compare(both, 1, tmp_path / "out")[0] == first[0]


def test_the_same_rows_of_a_program_are_the_same_data_however_they_are_given(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 12).double().unsqueeze(1)
    data = {name: (x, factor * x[:, 0]) for name, factor in (("one", 1.0), ("two", 2.0))}
    study = Study.from_table({"method": {"name": "ridge"}})
    one, other = study.with_instances(data=data), tiny("method.name=pooled-ridge").with_instances(data=data)
    assert [made.method for made in compare([one, other], 1)] == [*RIDGES]
    network = BayesianMLP((1, 2, 1), Gaussian(), torch.float64)
    kept = other.with_instances(method=PFedBayes(network))
    assert kept.instances.data is other.instances.data and kept.instances.method is not None
    assert kept.with_instances(data=data).instances.method is kept.instances.method
    changed = study.with_instances(data={**data, "two": (x, x[:, 0])})
    with pytest.raises(StudyError, match="the studies to compare have different data"):
        compare([one, replace(changed, method=other.method)], 1)


def test_methods_of_a_program_differ_by_a_value_as_those_of_tables_do(tmp_path: Path) -> None:
    study, network = tiny("federation.rounds=1"), BayesianMLP((1, 2, 1), Gaussian(), torch.float64)
    studies = [study.with_instances(method=PFedBayes(network, init_std=std)) for std in (0.1, 0.5)]
    with pytest.raises(StudyError, match=r'need different .*PFedBayes, .*: vary="method.rate" names the value'):
        compare(studies, 1)
    made = compare(studies, 1, tmp_path / "out", vary="method.init_std")
    assert [one.method for one in made] == [f"instance:PFedBayes init_std={std}" for std in (0.1, 0.5)]
    assert made[0].column("existing", "rsmse") != made[1].column("existing", "rsmse")
    other = [study.with_instances(method=PFedBayes(network, local=LocalInference(zeta=zeta))) for zeta in (0.1, 1.0)]
    assert [one.method.split()[1] for one in compare(other, 1, vary="method.zeta")] == ["zeta=0.1", "zeta=1.0"]
    with pytest.raises(StudyError, match=r"has no value 'method\.zetta'"):
        compare(other, 1, vary="method.zetta")


def test_a_run_and_a_comparison_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's table could not be shown any more, and its page was another's."""
    one, both = tmp_path / "run", tmp_path / "both"
    run(tiny(*quick("fedavg")), one)
    page = sorted(path.name for path in one.iterdir())
    with pytest.raises(StudyError, match=r"run holds a run, which a comparison would hide \(choose another --out\)"):
        compare([tiny(*quick("fedavg"))], seeds=1, out=one)
    assert sorted(path.name for path in one.iterdir()) == page
    compare([tiny(*quick("fedavg"))], seeds=1, out=both)
    for resume in (False, True):
        with pytest.raises(StudyError, match=r"both holds a comparison, whose runs have folders of their own in it"):
            run(tiny(*quick("fedavg")), both, resume=resume)
    assert not (both / "study.toml").exists()
