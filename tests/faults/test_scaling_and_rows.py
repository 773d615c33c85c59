"""Units, times and rows that a user may come with: what is learned from them, what is said, and what is refused."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from pacbayes_fl import cli
from pacbayes_fl.data.scaling import ColumnScale
from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.results import records as results
from pacbayes_fl.results import rounds as results_rounds
from pacbayes_fl.results.records import Result
from pacbayes_fl.study import data as study_data
from pacbayes_fl.study import run
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.serving.predict import predict
from tests.tiny import NUMBERS, TABLE, Row, on_csv, quick, rows, write_csv

FEW = ("federation.rounds=2", "federation.checkpoint_every=2")
REGRESSION = [name for name in NUMBERS if name != "persistence"]
"""Methods that see standardised rows; persistence works in the data's own units."""


def scaled(table: Sequence[Row], factors: dict[str, float]) -> list[Row]:
    return [
        {name: value * factors.get(name, 1.0) if name in factors else value for name, value in row.items()}
        for row in table
    ]


def command(*arguments: str | Path) -> int:
    """Run a command as its script does, whose warnings are shown and no other module's."""
    script = {"__name__": "__main__", "main": cli.main, "arguments": [*map(str, arguments)]}
    return int(eval("main(arguments)", script))


# --- units ---


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """Return the result of a method on the rows in their usual units."""
    path = write_csv(tmp_path_factory.mktemp("usual") / "rows.csv", rows())
    known: dict[str, Result] = {}

    def get(name: str) -> Result:
        if name not in known:
            known[name] = run.run(on_csv(path, *quick(name), *FEW))
        return known[name]

    return get


@pytest.mark.law
@pytest.mark.parametrize(
    ("name", "power"),
    [  # rows are scaled before any method sees them: one unit each, and both for one method of each kind
        (name, power)
        for i, name in enumerate(REGRESSION)
        for power in ((-40, 664) if name in ("pac-pfl", "pfedbayes", "fedavg", "ridge") else ((-40, 664)[i % 2],))
    ],
)
def test_no_method_knows_in_which_units_its_rows_came(
    usual: Callable[[str], Result], tmp_path: Path, name: str, power: int
) -> None:
    """Powers of two about 1e-12 and 1e200: the same bits but for the unit, for every method of the table."""
    unit = 2.0**power
    path = write_csv(tmp_path / "rows.csv", scaled(rows(), {"y": unit, "lag_1": unit, "wind": 2.0**-power}))
    got, known = run.run(on_csv(path, *quick(name), *FEW)), usual(name)
    for one, other in zip(got.clients, known.clients, strict=True):
        for metric, value in other.metrics.items():
            expected = {"rmse_raw": value * unit, "crps_raw": value * unit, "nlpd_raw": value + power * math.log(2)}
            assert one.metrics[metric] == pytest.approx(expected.get(metric, value), rel=1e-13, nan_ok=True), metric
    for group in ("existing", "new"):
        for number in ("mean", "std", "lower", "upper", "pit"):
            mine, theirs = (result.predictions[f"{group}.{number}"] for result in (got, known))
            theirs = theirs if number == "pit" else theirs * unit
            assert torch.equal(mine.nan_to_num(nan=-1.0), theirs.nan_to_num(nan=-1.0)), number


@pytest.mark.parametrize("factor", [0.5e-12, 1e-12, 1e200])
def test_predictions_of_a_ridge_follow_a_shift_and_a_unit_that_is_no_power_of_two(
    usual: Callable[[str], Result], tmp_path: Path, factor: float
) -> None:
    moved = [row | {"y": factor * row["y"] - 7.0 * factor, "wind": row["wind"] * factor} for row in rows()]
    got = run.run(on_csv(write_csv(tmp_path / "rows.csv", moved), *quick("ridge"), *FEW))
    for group in ("existing", "new"):
        mine, theirs = (result.predictions[f"{group}.mean"] for result in (got, usual("ridge")))
        torch.testing.assert_close(mine / factor + 7.0, theirs, rtol=1e-10, atol=1e-8, equal_nan=True)


def test_a_feature_in_farads_is_learned_from(tmp_path: Path) -> None:
    """A target that follows a feature of standard deviation 0.5e-12, and nothing else."""
    random = np.random.default_rng(0)
    table = [
        {"client": f"c{k}", "farad": 0.5e-12 * value, "y": 2.0 * value + 0.1 * random.normal()}
        for k in range(3)
        for value in random.normal(size=40)
    ]
    result = run.run(on_csv(write_csv(tmp_path / "rows.csv", table), "method.name=ridge"))
    assert max(result.column("existing", "rsmse")) < 0.12


@pytest.mark.parametrize("factor", [1e-12, 1e200])
def test_tuning_scores_do_not_depend_on_the_unit_of_the_target(tmp_path: Path, factor: float) -> None:
    from pacbayes_fl.study.data import load
    from pacbayes_fl.study.search import tune

    unit, result = 2.0 ** round(math.log2(factor)), []
    for name, table in (("a", rows()), ("b", scaled(rows(), {"y": unit}))):
        one = on_csv(write_csv(tmp_path / f"{name}.csv", table), "method.name=ridge")
        (scores,) = tune.cross_validate(one, load(one), 3).values()
        result.append(scores)
    assert result[0] == pytest.approx(result[1], rel=1e-12)


# --- what tells clients apart ---


def houses(path: Path, constant: bool = True) -> Path:
    """Rows whose targets are their client's capacity times the sun: only the capacity tells how much."""
    random = np.random.default_rng(1)
    table = []
    for group, clients in (("existing", 14), ("new", 6)):
        for k in range(clients):
            cap = float(random.uniform(2.0, 9.0)) if constant else 5.0
            for i, sun in enumerate(random.uniform(size=14)):
                y = cap + 0.3 * sun + 0.02 * random.normal()
                split = "test" if i >= 10 else "train"
                row = {"client": f"{group}_{k:02d}", "cap": cap, "east": float(k % 2), "sun": sun, "y": y}
                table.append(row | {"split": split, "group": group})
    return write_csv(path, table)


POOLED = ("data.column_scale.y=pooled", "method.name=pooled-ridge")


def test_capacities_are_scaled_across_clients_and_a_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = houses(tmp_path / "rows.csv")
    source = tmp_path / "houses.toml"
    source.write_text(
        f'[data]\nsource = "{path}"\n[data.column_scale]\ny = "pooled"\n[method]\nname = "pooled-ridge"\n'
    )
    assert command("run", source, "--out", tmp_path / "run", "--quiet") == 0
    out = capsys.readouterr().out
    assert "\nscaled across clients: cap, east, y\n" in out and "\ntest rows: column split\n" in out
    assert command("show", tmp_path / "run") == 0
    assert capsys.readouterr().out.splitlines() == out.splitlines()[:-1]
    across = results.load(tmp_path / "run")
    inside = run.run(on_csv(path, *POOLED, "data.column_scale.cap=client", "data.column_scale.east=client"))
    for group in ("existing", "new"):
        errors = [float(np.mean(one.column(group, "rmse_raw"))) for one in (across, inside)]
        assert errors[0] < 0.1 and errors[1] > 1.0  # without its capacity a client's level is anybody's guess


def test_a_column_that_nobody_varies_is_named_and_stays_out(tmp_path: Path) -> None:
    path = houses(tmp_path / "rows.csv", constant=False)
    with pytest.warns(
        UserWarning, match="^features that do not vary tell a client nothing, and become 0: cap in every client$"
    ):
        result = run.run(on_csv(path, "method.name=ridge"))
    assert result.labels["scaling"] == {"across clients": "east"}


def test_a_run_keeps_what_its_clients_share_and_needs_nobody_else_for_a_newcomer(tmp_path: Path) -> None:
    """A client that joins gets what it got as a new client of the run, whatever has become of the other rows."""
    path = houses(tmp_path / "rows.csv")
    result = run.run(on_csv(path, *POOLED), tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "scaling.json").read_text())
    assert [column["scale"] for column in saved["columns"]] == ["pooled", "pooled", "client", "pooled"]
    with (tmp_path / "rows.csv").open() as file:
        own = [row for row in csv.DictReader(file) if row["client"] == "new_03"]
    asked = [{k: v for k, v in row.items() if k != "group"} for row in own]
    write_csv(tmp_path / "new.csv", asked)
    trained = run.open_run(tmp_path / "run")
    other = trained.groups["existing"]  # rows of others by which nothing may be scaled any more
    wrong = replace(
        other,
        units=other.units._replace(y_mean=other.units.y_mean + 1e6),
        used=other.used._replace(y_std=other.used.y_std * 9),
    )
    from pacbayes_fl.study.serving.predict import join

    got = join(replace(trained, groups={**trained.groups, "existing": wrong}), tmp_path / "new.csv")["new_03"]
    names = [row.name for row in result.clients if row.group == "new"]
    torch.testing.assert_close(got.mean, result.predictions["new.mean"][names.index("new_03")][:4], rtol=1e-12, atol=0)


def test_a_run_goes_on_in_the_units_that_it_began_in(tmp_path: Path) -> None:
    """A client more, with a larger capacity, moves nobody's units."""
    path, folder = houses(tmp_path / "rows.csv"), tmp_path / "run"
    sets = ("method.name=pac-pfl", "method.particles=2", "model.mean_widths=[4]", "model.linear=none")
    run.run(on_csv(path, *sets, "federation.rounds=1"), folder)
    before = (folder / "scaling.json").read_bytes()
    with path.open() as file:
        table = list(csv.DictReader(file))
    more = [row | {"client": "existing_99", "cap": "20.0"} for row in table if row["client"] == "existing_01"]
    write_csv(path, [*table, *more])
    with pytest.warns(UserWarning, match="existing_99 joined since the run was started"):
        run.run(on_csv(path, *sets, "federation.rounds=2"), folder, resume=True)
    assert (folder / "scaling.json").read_bytes() == before
    anew = prepare(on_csv(path, *sets), study_data.load(on_csv(path, *sets)))[1]["existing"].shared
    assert float(anew.mean[0]) > 0.5 + json.loads(before)["columns"][0]["mean"]


@pytest.mark.law
@pytest.mark.parametrize("asked", [*(f"scale={kind}" for kind in get_args(ColumnScale)), "client_inputs=summaries"])
@pytest.mark.parametrize("method", ["pac-pfl", "ridge"])
def test_what_is_predicted_of_a_client_is_what_its_run_reported_in_every_scale(
    tmp_path: Path, method: str, asked: str
) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    one = on_csv(path, *quick(method), *FEW, f"data.{asked}")
    result = run.run(one, tmp_path / "run")
    test = [
        {k: row[k] for k in ("lag_1", "wind")}
        for row in rows()
        if row["client"] == "existing_2" and row["split"] == "test"
    ]
    got = predict(run.open_run(tmp_path / "run"), "existing_2", write_csv(tmp_path / "ask.csv", test))
    for number in ("mean", "std", "lower", "upper"):
        torch.testing.assert_close(
            getattr(got, number), result.predictions[f"existing.{number}"][2, :3], rtol=1e-9, atol=1e-9
        )
    by_hand = np.sqrt(np.mean((got.mean.numpy() - [r["y"] for r in rows() if r["client"] == "existing_2"][-3:]) ** 2))
    assert result.column("existing", "rmse_raw")[2] == pytest.approx(by_hand, rel=1e-9)
    std = run.open_run(tmp_path / "run").groups["existing"].units.y_std[2]
    assert result.column("existing", "rmse")[2] * float(std) == pytest.approx(by_hand, rel=1e-9)


def test_scales_are_compared_like_any_other_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "houses.toml"
    source.write_text(f'[data]\nsource = "{houses(tmp_path / "rows.csv")}"\n[method]\nname = "pooled-ridge"\n')
    assert command("compare", source, "--vary", "data.scale=client,shrunk,pooled,none", "--quiet") == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(f"pooled-ridge scale={scale}" in line for line in lines) for scale in get_args(ColumnScale))
    of = dict(
        zip(get_args(ColumnScale), (f"pooled-ridge scale={scale}" for scale in get_args(ColumnScale)), strict=True)
    )
    assert [line for line in lines if line.startswith(("scaled", "not scaled"))] == [
        f"scaled by moments shrunk towards those of all clients, in {of['shrunk']}: sun, y",
        f"scaled across clients, in {of['client']}, {of['shrunk']}: cap, east",
        f"scaled across clients, in {of['pooled']}: cap, east, sun, y",
        f"not scaled, in {of['none']}: cap, east, sun, y",
    ]


def test_a_private_run_tells_a_newcomer_without_targets_nobody_s_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    sets = ("privacy.epsilon=50", "privacy.delta=1e-5")
    run.run(on_csv(path, *quick("pac-pfl"), *FEW, *sets), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "scaling.json").read_text())["average"] is None
    ask = write_csv(tmp_path / "new.csv", [{"client": "late", "lag_1": 100.0, "wind": 100.0, "y": math.nan}])
    assert command("join", tmp_path / "run", "--data", ask, "--quiet") == 1
    assert (
        "client 'late': has no rows with a target, and the average units of others are nothing that it may know"
        in capsys.readouterr().err
    )


# --- rows that are alike, and times ---


def nights(path: Path, days: int = 8, time: str = "%Y-%m-%d %H:%M") -> Path:
    """Hours of three houses; every night has the same rows."""
    import datetime

    random = np.random.default_rng(2)
    table = []
    for house in range(3):
        start = datetime.datetime(2024, 3, 1)
        for hour in range(0, 24 * days, 3):
            at = start + datetime.timedelta(hours=hour)
            light = 6 <= at.hour <= 18
            sun = float(random.uniform()) if light else 0.0
            y = (house + 1) * sun + 0.01 * float(random.normal()) if light else 0.0
            table.append({"client": f"house_{house}", "at": at.strftime(time), "hour": at.hour, "sun": sun, "y": y})
    return write_csv(path, table)


def without(path: Path, column: str) -> Path:
    with path.open() as file:
        table = [{k: v for k, v in row.items() if k != column} for row in csv.DictReader(file)]
    return write_csv(path.with_name("without.csv"), table)


def on(path: Path, *sets: str) -> Study:
    return Study.from_table(TABLE | {"data": {"source": str(path)}, "method": {"name": "ridge"}}, "tiny.toml", sets)


def test_nights_are_refused_with_their_number_and_the_keys_that_keep_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = nights(tmp_path / "rows.csv")
    plain = without(path, "at")
    source = tmp_path / "nights.toml"
    source.write_text(f'[data]\nsource = "{plain}"\n[method]\nname = "ridge"\n')
    assert command("run", source, "--out", tmp_path / "a", "--quiet") == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "pacbayes-fl: client 'house_0': test row 0 is also a training row (x = 0, 0; y = 0), the first of 6 "
    )
    assert "such rows among its 16, of 18 in 3 clients" in said and "data.duplicate_rows = 'allow'" in said
    assert "data.time = 'COLUMN'" in said and said.count("\n") == 1
    assert command("run", source, "--out", tmp_path / "b", "--quiet", "--set", "data.duplicate_rows=allow") == 0
    assert "taken for that of time" in capsys.readouterr().out
    source.write_text(f'[data]\nsource = "{path}"\ntime = "at"\n[method]\nname = "ridge"\n')
    assert command("run", source, "--out", tmp_path / "c", "--quiet") == 0
    assert "test rows: last 0.25 of each client by column 'at'\n" in capsys.readouterr().out


def test_rows_kept_for_certificates_may_be_nights_too(tmp_path: Path) -> None:
    path = nights(tmp_path / "rows.csv")
    sets = ("method.name=pac-pfl", "method.particles=2", *FEW, "report.certify.scheme=split")
    one = Study.from_table(TABLE | {"data": {"source": str(path), "time": "at"}}, "tiny.toml", sets)
    run.run(one, tmp_path / "run")
    run.open_run(tmp_path / "run")  # divides the rows again, from data.npz


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_the_file_moves_no_number_once_a_column_says_when(tmp_path: Path, seed: int) -> None:
    path = nights(tmp_path / "rows.csv")
    first = run.run(on(path, "data.time=at"))
    with path.open() as file:
        table = list(csv.DictReader(file))
    order = np.random.default_rng(seed).permutation(len(table))
    mixed = write_csv(tmp_path / "mixed.csv", [table[i] for i in order])
    second = run.run(on(mixed, "data.time=at"))
    mine, theirs = ({row.name: row.metrics["rsmse"] for row in one.clients} for one in (first, second))
    assert mine == theirs
    blind = run.run(on(without(mixed, "at"), "data.duplicate_rows=allow"))
    assert {row.name: row.metrics["rsmse"] for row in blind.clients} != mine  # which it does where nothing says when


def test_a_time_is_for_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command("run", "polynomial", "--set", "data.time=at", "--out", tmp_path / "run", "--quiet") == 1
    assert "[data] time is for the columns of a table, and 'polynomial' is none" in capsys.readouterr().err


# --- rows that are conditioned on already ---


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    run.run(on_csv(write_csv(root / "rows.csv", rows()), *quick("pac-pfl"), *FEW), root / "run")
    return root / "run"


COLUMNS = ("client", "lag_1", "wind", "y")


def later_of(
    folder: Path, table: Sequence[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[list[float], str]:
    """Predict with later rows by the command, and return the standard deviations and what was said."""
    ask = [{k: row[k] for k in ("lag_1", "wind")} for row in rows() if row["client"] == "existing_1"][-3:]
    arguments = ["predict", folder, "--client", "existing_1", "--data", write_csv(tmp_path / "ask.csv", ask), "--json"]
    if table:
        arguments += ["--later", write_csv(tmp_path / "later.csv", table)]
    assert command(*arguments) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out)["existing_1"]["std"], captured.err


def test_later_rows_that_are_training_rows_count_once(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [{k: row[k] for k in COLUMNS} for row in rows() if row["client"] == "existing_1"]
    train, fresh = own[:-3], [row | {"y": row["y"] + 0.25} for row in own[-3:-1]]
    plain, _ = later_of(finished, [], tmp_path, capsys)
    same, said = later_of(finished, train * 3, tmp_path, capsys)
    assert same == plain
    assert f"warning: {3 * len(train)} of {3 * len(train)} later rows of existing_1 are training rows of its" in said
    new, quiet = later_of(finished, fresh, tmp_path, capsys)
    assert new < plain and not quiet
    mixed, said = later_of(finished, [*train[:2], *fresh, fresh[0]], tmp_path, capsys)
    assert mixed == new and "3 of 5 later rows" in said


def test_equal_rows_count_as_often_as_a_discrete_table_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With duplicate_rows = "allow" a history that holds the training rows adds what it has more often than these."""
    path = write_csv(tmp_path / "rows.csv", rows())
    run.run(on_csv(path, *quick("pac-pfl"), *FEW, "data.duplicate_rows=allow"), tmp_path / "run")
    own = [{k: row[k] for k in COLUMNS} for row in rows() if row["client"] == "existing_1"]
    train = own[:-3]
    plain, _ = later_of(tmp_path / "run", [], tmp_path, capsys)
    history, said = later_of(tmp_path / "run", train, tmp_path, capsys)
    assert history == plain and f"{len(train)} of {len(train)} later rows" in said
    once, _ = later_of(tmp_path / "run", [*train, train[0]], tmp_path, capsys)
    twice, _ = later_of(tmp_path / "run", [*train, train[0], train[0]], tmp_path, capsys)
    assert twice < once < plain


def test_rows_of_another_time_are_later_rows_however_alike(tmp_path: Path) -> None:
    path = nights(tmp_path / "rows.csv")
    run.run(on(path, "data.time=at", "method.name=pac-pfl", "method.particles=2", *FEW), tmp_path / "run")
    trained = run.open_run(tmp_path / "run")
    with path.open() as file:
        night = [row for row in csv.DictReader(file) if row["client"] == "house_1" and row["sun"] == "0.0"][:2]
    ask = write_csv(tmp_path / "ask.csv", [{"hour": 0, "sun": 0.0}])
    before = predict(trained, "house_1", ask)
    with pytest.warns(UserWarning, match="2 of 2 later rows of house_1 are training rows"):
        same = predict(trained, "house_1", ask, write_csv(tmp_path / "same.csv", night))
    moved = [row | {"at": row["at"].replace("2024", "2025")} for row in night]
    other = predict(trained, "house_1", ask, write_csv(tmp_path / "moved.csv", moved))
    assert torch.equal(same.std, before.std) and float(other.std) < float(before.std)
    with pytest.warns(UserWarning, match="2 of 2"):  # without a column of times a row is known by its numbers
        blind = predict(trained, "house_1", ask, without(tmp_path / "moved.csv", "at"))
    assert torch.equal(blind.std, before.std)

    for write in (lambda at: at[:10], lambda at: f"{at}+02:00", lambda _: "17"):  # none of these would be known again
        otherwise = write_csv(tmp_path / "otherwise.csv", [row | {"at": write(row["at"])} for row in night])
        with pytest.raises(DataError, match=r"client 'house_1': .*: its times are of the kind '.*of the run of 'date"):
            predict(trained, "house_1", ask, otherwise)


# --- numbers that are none ---


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of three clients, one of which has a test target of 1e308."""
    root = tmp_path_factory.mktemp("huge")
    table = [row for row in rows() if row["client"] in ("existing_0", "existing_1", "existing_2")]
    last = max(i for i, row in enumerate(table) if row["client"] == "existing_1")
    table[last]["y"] = 1e308
    path = write_csv(root / "rows.csv", table)
    study_file = root / "huge.toml"
    study_file.write_text(f'name = "huge"\n[data]\nsource = "{path}"\n[method]\nname = "ridge"\n')
    return study_file


def test_a_client_whose_score_is_no_number_is_counted_and_named_in_every_table(
    huge: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", huge, "--out", tmp_path / "run", "--quiet") == 0
    out = capsys.readouterr().out
    assert "\nexisting rsmse: mean over 2 of 3 clients; existing_1: nan\n" in out
    assert "\nexisting nlpd, rmse_raw: mean over 3 of 3 clients; existing_1: inf\n" in out
    assert command("show", tmp_path / "run") == 0
    assert out.splitlines()[:-1] == capsys.readouterr().out.splitlines()
    summary = json.loads((tmp_path / "run" / "metrics.json").read_text())["groups"]["existing"]
    assert summary["rsmse"]["n_clients"] == 2 and summary["rsmse"]["not_finite"] == {"existing_1": "nan"}
    assert summary["nlpd"]["mean"] is None and summary["nlpd"]["not_finite"] == {"existing_1": "inf"}
    rounds = results_rounds.read_rounds(tmp_path / "run")
    assert rounds == () or rounds[-1].values.get("unscored", 1.0) == 1.0


def test_a_comparison_names_them_too(huge: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.tables import markdown

    assert command("compare", huge, "--methods", "ridge,persistence", "--seeds", "2", "--out", tmp_path, "--quiet") == 0
    out = capsys.readouterr().out
    assert "\nridge existing rsmse: mean over 4 of 6 scores; existing_1: nan\n" in out
    summary = json.loads((tmp_path / "compare.json").read_text())
    (cell,) = [c for c in summary["cells"] if (c["method"], c["metric"]) == ("ridge", "rsmse")]
    assert (cell["scores"], cell["asked"], cell["not_finite"]) == (4, 6, [["existing_1", "nan"]])
    with (tmp_path / "compare.csv").open() as file:
        rows_ = [row for row in csv.DictReader(file) if (row["method"], row["metric"]) == ("ridge", "rsmse")]
    assert [(row["scores"], row["asked"], row["not_finite"]) for row in rows_] == [("4", "6", "existing_1: nan")]
    assert "ridge, existing clients, rsmse: mean over 4 of 6 scores (existing_1: nan)." in markdown(
        summary, {"rows": {}}
    )


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of straight lines, which far away leave the numbers."""
    root = tmp_path_factory.mktemp("linear")
    run.run(on_csv(write_csv(root / "rows.csv", rows()), "method.name=ridge"), root / "run")
    return root / "run"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_prediction_that_is_no_number_ends_with_an_error(
    linear: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    ask = [{"lag_1": 100.0, "wind": 100.0}, {"lag_1": 1e308, "wind": -1e308}]
    path = write_csv(tmp_path / "ask.csv", ask)
    more = ["--json"] if as_json else []
    assert command("predict", linear, "--client", "existing_1", "--data", path, *more) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("pacbayes-fl: client 'existing_1': its prediction of line 3 is not finite (mean ")


def test_newcomers_beside_a_broken_one_are_printed_before_the_error(
    linear: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [{k: row[k] for k in COLUMNS} for row in rows() if row["client"] in ("new_0", "new_1")]
    good = [row for row in table if row["client"] == "new_1"]
    broken = [
        row | ({"lag_1": 1e308, "wind": -1e308, "y": math.nan} if i == 2 else {}) for i, row in enumerate(table[:7])
    ]
    both = [*broken, *good[:-1], good[-1] | {"y": math.nan}]
    assert command("join", linear, "--data", write_csv(tmp_path / "both.csv", both)) == 1
    out, err = capsys.readouterr()
    assert [line.split(",")[0] for line in out.splitlines()] == ["client", "new_1"]
    assert "pacbayes-fl: client 'new_0': its prediction of line 4 is not finite" in err
    assert command("join", linear, "--data", write_csv(tmp_path / "broken.csv", broken)) == 1
    assert capsys.readouterr().out == ""


@pytest.mark.law
@pytest.mark.parametrize(
    ("what", "value", "cohort"),
    [("server", math.nan, "none"), ("clients", math.inf, "none"), ("clients", math.nan, "1")],
)
def test_a_saved_state_that_is_not_finite_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, value: float, cohort: str
) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    one = on_csv(path, *quick("pfedbayes"), *FEW, f"federation.cohort={cohort}")
    run.run(one, tmp_path / "run")
    saved = checkpoint.load(tmp_path / "run")
    assert saved is not None
    tensors = {name: tensor.clone() for name, tensor in saved.tensors.items()}
    name = next(name for name, tensor in tensors.items() if name.startswith(what) and tensor.is_floating_point())
    last = len(tensors[name]) - 1  # with a cohort of one a client that took part in one of two rounds
    tensors[name][last, ...] = value
    ids = saved.meta.get("kept", saved.meta["ids"])
    whom = saved.meta["names"][saved.meta["ids"].index(ids[last])] if what == "clients" else ""
    assert cohort == "none" or len(ids) < 4
    checkpoint.save(tmp_path / "run", saved.round, tensors, dict(saved.meta))
    ask = write_csv(tmp_path / "ask.csv", [{"lag_1": 100.0, "wind": 100.0}])
    source = tmp_path / "tiny.toml"
    source.write_text(one.to_toml())
    for arguments in (
        ("predict", tmp_path / "run", "--client", "existing_1", "--data", ask),
        ("run", source, "--out", tmp_path / "run", "--resume", "--rounds", "4"),
    ):
        assert command(*arguments) == 1
        err = capsys.readouterr().err
        whose = f"client {whom!r}: " if what == "clients" else ""
        assert f"pacbayes-fl: round 2: {whose}the saved state is not finite: {name}" in err


def powers(path: Path) -> Path:
    """Rows of panels whose power is 0 whenever there is too little sun."""
    random = np.random.default_rng(4)
    table: list[Row] = []
    for group, clients in (("existing", 4), ("new", 2)):
        for k in range(clients):
            for i, sun in enumerate(random.uniform(-1, 1, size=30)):
                y = max(0.0, (k + 2.0) * sun + 0.2 * random.normal())
                split = {"split": "test" if i >= 18 else "train", "group": group}
                table.append({"client": f"{group}_{k}", "sun": sun, "y": y} | split)
    return write_csv(path, table)


@pytest.mark.law
@pytest.mark.parametrize("scale", ["client", "pooled", "none"])
def test_predictions_end_at_the_bounds_of_the_target(tmp_path: Path, scale: str) -> None:
    path, sets = powers(tmp_path / "rows.csv"), ("method.name=ridge", f"data.scale={scale}")
    free = run.run(on_csv(path, *sets))
    bound = run.run(on_csv(path, *sets, "data.lower_bound=0"), tmp_path / "run")
    for group in ("existing", "new"):
        for number in ("mean", "lower"):
            values = bound.predictions[f"{group}.{number}"]
            assert float(values.nan_to_num(nan=1.0).min()) >= 0.0 > float(free.predictions[f"{group}.{number}"].min())
        for metric in ("rsmse", "crps", "crps_raw"):
            assert np.mean(bound.column(group, metric)) < np.mean(free.column(group, metric)), metric
    assert "not comparable with that of a run without" in bound.labels["scaling"]["bounds"]
    with path.open() as file:
        own = [
            {k: v for k, v in row.items() if k != "group"} for row in csv.DictReader(file) if row["client"] == "new_1"
        ]
    from pacbayes_fl.study.serving.predict import join

    got = join(run.open_run(tmp_path / "run"), write_csv(tmp_path / "new.csv", own))["new_1"]
    torch.testing.assert_close(got.mean, bound.predictions["new.mean"][1][:12], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got.lower, bound.predictions["new.lower"][1][:12], rtol=1e-9, atol=1e-9)
    own[3]["y"] = "-0.5"
    with pytest.raises(DataError, match=r"'new_1': has targets from -0.5 to .*, beyond the bounds \[0, inf\]"):
        join(run.open_run(tmp_path / "run"), write_csv(tmp_path / "low.csv", own))
    later = write_csv(tmp_path / "later.csv", [{"sun": 0.1, "y": -1.0}])
    with pytest.raises(DataError, match="'existing_0': has targets from -1 to -1, beyond the bounds"):
        predict(run.open_run(tmp_path / "run"), "existing_0", later, later)


def test_bounds_that_rows_or_labels_contradict_are_refused(tmp_path: Path) -> None:
    path = powers(tmp_path / "rows.csv")
    with pytest.raises(DataError, match="beyond the bounds"):
        run.run(on_csv(path, "method.name=ridge", "data.upper_bound=1.5"))
    with pytest.raises(StudyError, match="lower_bound must be less than upper_bound, got"):
        on_csv(path, "data.lower_bound=2", "data.upper_bound=2")
    labelled = write_csv(tmp_path / "labels.csv", [row | {"y": i % 3} for i, row in enumerate(rows())])
    with pytest.raises(StudyError, match="are of numbers, and targets are labels"):
        run.run(on_csv(labelled, "method.name=fedavg", "data.task=classification", "data.lower_bound=0"))
