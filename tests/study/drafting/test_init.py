"""A first study: what columns are taken for, that the study runs, and that its comments are the options it has."""

from __future__ import annotations

import re
import resource
import signal
import tomllib
from pathlib import Path
from typing import Any

import pandas
import pytest

from pacbayes_fl import settings
from pacbayes_fl.errors import CheckpointError, DataError, StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.options import options_of
from pacbayes_fl.study.drafting.init import Columns, look, write
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import run
from tests.study.analyst import houses
from tests.tiny import NUMBERS, quick, write_csv

Row = dict[str, Any]


def rows(**more: Any) -> list[Row]:
    """Give 4 clients of 8 rows; what is given replaces or adds columns, by the numbers of client and row."""
    usual = {"client": lambda k, i: f"c{k}", "lag_1": lambda k, i: k + 0.1 * i, "x": lambda k, i: 0.3 * i - k}
    made = {**usual, "y": lambda k, i: 0.5 * i + k, **more}
    return [{name: value(k, i) for name, value in made.items() if value} for k in range(4) for i in range(8)]


def table(folder: Path, **more: Any) -> Path:
    write_csv(folder / "mine.csv", rows(**more))
    return folder / "mine.csv"


def targets(method: str) -> dict[str, Any]:
    """Give labels to a method that learns no numbers."""
    return {} if method in NUMBERS else {"y": lambda k, i: i % 3}


def uncommented(text: str) -> str:
    """Make every option of a study count."""
    return re.sub(r"^#(?=[a-z_0-9]+ = |\[)", "", text, flags=re.MULTILINE)


def month(k: int, i: int) -> str:
    return f"2024-{i + 1:02d}-01"


@pytest.mark.parametrize(
    ("more", "given", "columns"),
    [
        ({}, {}, Columns("client", "y", None, ())),
        ({"client": None, "house": lambda k, i: f"h{k}"}, {}, Columns("house", "y", None, ())),
        ({"when": month}, {}, Columns("client", "y", "when", ())),
        ({"y": None, "price": lambda k, i: i + 0.5}, {}, Columns("client", "price", None, ())),
        ({"y": lambda k, i: i % 3}, {}, Columns("client", "y", None, (0, 1, 2))),
        ({"y": lambda k, i: i % 3 + 1}, {}, Columns("client", "y", None, (1, 2, 3))),
        ({"y": lambda k, i: 8 * k + i}, {}, Columns("client", "y", None, ())),  # each comes once: a number
        ({"split": lambda k, i: "test" if i > 5 else "train"}, {}, Columns("client", "y", None, ())),
        ({"client": None, "id": lambda k, i: k}, {"client": "id"}, Columns("id", "y", None, ())),
        ({"step": lambda k, i: i}, {"time": "step", "target": "x"}, Columns("client", "x", "step", ())),
        (
            {"client": month, "house": lambda k, i: f"h{k}"},
            {"client": "house"},
            Columns(
                *("house", "y", None, (), (), ("lag_1", "x"), False),
                remarks=("column 'client' is left out: it holds dates; --time names the times of the rows",),
            ),
        ),
        *(
            (
                {"when": lambda k, i, both=both: both[i % 2].format(i + 1)},
                {},
                Columns(
                    *("client", "y", None, (), (), ("lag_1", "x"), False),
                    remarks=(f"column 'when' is left out: {said}; write all of them in one way, and it is the time",),
                ),
            )
            for both, said in (
                (("2024-05-{:02}", "2024-05-{:02}T03:00"), "'2024-05-01' in line 2 is a date, and {} a datetime"),
                (
                    ("2024-05-{:02}T03:00", "2024-05-{:02}T03:00+01:00"),
                    "'2024-05-01T03:00' in line 2 is a datetime, and {} a datetime with a time zone",
                ),
            )
            for said in [said.format(repr(both[1].format(2)) + " in line 3")]
        ),
        (
            {
                "roof": lambda k, i: "flat" if k else "west",
                "x": lambda k, i: "" if i == 3 else i,
                "on": lambda k, i: i > 2,
            },
            {},
            Columns("client", "y", None, (), ("roof",), (), True),
        ),
        *(
            (
                {"client": None, "flag": lambda k, i: ("yes", "no")[k % 2], name: lambda k, i: 7 * k},
                {},
                Columns(
                    *(name, "y", None, (), ("flag",)),
                    remarks=(
                        f"column {name!r} is taken for the 4 clients by its name; --client names another, "
                        "such as 'flag'",
                    ),
                ),
            )
            for name in ("id", "townID", "subject", "Site", "house_id", "plot no")
        ),
        *(
            (
                {"client": None, "flag": lambda k, i: ("yes", "no")[k % 2], name: cell},
                {},
                Columns(
                    *("flag", "y", None, ()),
                    remarks=("column 'flag' makes 2 clients of the table; --client names another",),
                ),
            )
            for name, cell in (("id", lambda k, i: 8 * k + i), ("acid", lambda k, i: k), ("site", lambda k, i: k / 7))
        ),
        *(
            (
                {name: cell},
                {},
                Columns(
                    *("client", "y", None, (), (), ("lag_1", "x"), False),
                    remarks=(
                        f"column {name!r} is left out: it numbers or names the rows, as R and pandas write them; "
                        "data.features names what is used",
                    ),
                ),
            )
            for name, cell in (
                ("", lambda k, i: 8 * k + i + 1),
                ("Unnamed: 0", lambda k, i: 8 * k + i),
                ("Unnamed: 0", lambda k, i: i),
                ("", lambda k, i: 500 - 8 * k - i),
                ("rownames", lambda k, i: f"car {8 * k + i}"),
            )
        ),
        ({"": lambda k, i: 0.3 * i}, {}, Columns("client", "y", None, ())),
        ({"group": lambda k, i: "new" if k else "existing"}, {}, Columns("client", "y", None, ())),
        (
            {"client": None, "group": lambda k, i: k},
            {"client": "group"},
            Columns("group", "y", None, (), own_marks=("group",)),
        ),
        *(
            (
                {name: lambda k, i: ("a", "b")[i % 2]},
                {},
                Columns(
                    *("client", "y", None, (), (name,)),
                    remarks=(
                        f"column {name!r} does not hold {words}, and is one like others: data.{name} = 'none' says so",
                    ),
                    own_marks=(name,),
                ),
            )
            for name, words in (("split", "'train' and 'test'"), ("group", "'existing' and 'new'"))
        ),
        (
            {"site": lambda k, i: "X" if i == 7 else i + 1},
            {},
            Columns(
                *("client", "y", None, (), ("site",)),
                remarks=("column 'site' holds numbers and 'X', and each value is taken for a word (categorical)",),
            ),
        ),
        ({"y": lambda k, i: i % 2 == 0}, {}, Columns("client", "y", None, (0, 1))),
        (
            {"y": lambda k, i: "yn"[i % 2]},
            {},
            Columns(
                *("client", "x", None, (), ("y",)),
                remarks=(
                    "column 'y' holds words and was not taken for the target, but 'x', the last of numbers; classes "
                    "are numbered 0, 1, 2, ... in the table: 0 for 'n', 1 for 'y', and then --target y --method "
                    "pfedbayes learns them",
                ),
            ),
        ),
        (
            {"note": lambda k, i: "the same"},
            {},
            Columns(
                *("client", "y", None, (), (), ("lag_1", "x"), False),
                remarks=("column 'note' is left out: it holds one word",),
            ),
        ),
        *(
            (
                {"when": lambda k, i, form=form: form.format(day=i + 1)},
                {},
                Columns(
                    *("client", "y", None, (), (), ("lag_1", "x"), False),
                    remarks=(
                        "column 'when' is left out: it looks like dates, which are read as 2024-05-01, "
                        "2024-05-01T13:00+02:00 or 01.05.2024 13:00",
                    ),
                ),
            )
            for form in ("02/{day:02d}/2024", "{day}-02-2024", "{day} Feb 2024", "2/{day}/24 1:00 PM")
        ),
        (
            {"wind": lambda k, i: ("n/a?" if i == 2 else "1e400") if k == 1 and i in (2, 4) else i},
            {},
            Columns(
                *("client", "y", None, (), (), ("lag_1", "x"), False),
                remarks=("column 'wind' is left out: 'n/a?' in line 12 is no number, nor is one more",),
            ),
        ),
        (
            {"y": None, "price": lambda k, i: i + 0.5, "state": lambda k, i: ("good", "bad")[i % 2]},
            {},
            Columns(
                *("client", "price", None, (), ("state",)),
                remarks=(
                    "column 'state' holds words and was not taken for the target, but 'price', the last of numbers; "
                    "classes are numbered 0, 1, 2, ... in the table: 0 for 'bad', 1 for 'good', and then --target "
                    "state --method pfedbayes learns them",
                ),
            ),
        ),
    ],
)
def test_what_columns_are_taken_for(more: Row, given: Row, columns: Columns, tmp_path: Path) -> None:
    assert look(table(tmp_path, **more), **given) == columns


@pytest.mark.parametrize(
    ("more", "given", "text"),
    [
        (
            {"client": None},
            {},
            "has no column 'client', and none of its columns hold texts (name the column of clients",
        ),
        ({"client": None, "a": lambda k, i: "a", "b": lambda k, i: "b"}, {}, "and 2 of its columns hold texts"),
        ({}, {"client": "cleint"}, "has no column 'cleint' (did you mean 'client'?)"),
        ({}, {"target": "z"}, "has no column 'z' (valid: client, lag_1, x, y)"),
        (
            {"lag_1": None, "x": lambda k, i: "a word"},
            {},
            "has no column that could be a feature (column 'x' is left out: it holds one word",
        ),
        ({"x": None, "y": None, "lag_1": None}, {}, "has no column that could be the target (name it with --target)"),
    ],
)
def test_what_cannot_be_told_is_asked_for(more: Row, given: Row, text: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError) as caught:
        look(table(tmp_path, **more), **given)
    assert text in str(caught.value)


@pytest.mark.law
@pytest.mark.parametrize("method", METHODS)
def test_the_study_of_every_method_runs(method: str, tmp_path: Path) -> None:
    data, out = table(tmp_path, **targets(method)), tmp_path / "first.toml"
    written = write(data, method, out, look(data)).study
    study = Study.from_toml(out)
    assert study == written and study.method.name == method and study.data.source == str(data)
    _, *assignments = quick(method)
    result = run(Study.from_toml(out, [*assignments, "federation.rounds=1", "federation.device=cpu"]))
    assert {client.group for client in result.clients} == {"existing"} and len(result.clients) == 4


@pytest.mark.law
@pytest.mark.parametrize("method", METHODS)
def test_every_option_stands_in_it_at_its_default(method: str, tmp_path: Path) -> None:
    data, out = table(tmp_path, **targets(method)), tmp_path / "first.toml"
    study = write(data, method, out, look(data)).study
    text = out.read_text(encoding="utf-8")
    every = tomllib.loads(uncommented(text))
    plain = settings.as_table(study) | {"method": every["method"]}
    del plain["instances"], plain["unsaid"]  # objects of a program, and what nobody asked for, stand in no file
    assert plain["method"] == {"name": method, "preset": "recommended"} | settings.as_table(study.method.options)
    plain["data"] = {key: value for key, value in plain["data"].items() if key != "options"} | {"source": "mine.csv"}
    assert every == plain
    assert Study.from_table(settings.merge(every, {"data": {"source": str(data)}})) == study
    assert max(map(len, text.splitlines())) <= 120


def test_every_option_is_explained_above_it(tmp_path: Path) -> None:
    data, out = table(tmp_path), tmp_path / "first.toml"
    study = write(data, "fedavg", out, look(data)).study
    lines = out.read_text(encoding="utf-8").splitlines()
    for option in options_of(type(study.model)).values():
        at = next(i for i, line in enumerate(lines) if line.startswith(f"#{option.name} = "))
        above = []
        while lines[at - 1].startswith("# "):
            at -= 1
            above.insert(0, lines[at][2:])
        assert " ".join(above).lower() == f"{option.meaning} {option.allowed}.".lower()


def test_a_value_of_the_paper_stands_beside_the_default(tmp_path: Path) -> None:
    data, out = table(tmp_path), tmp_path / "first.toml"
    write(data, "pac-pfl", out, look(data))
    lines = out.read_text(encoding="utf-8").splitlines()
    assert '#rate = 0.01  # paper: "held-out"' in lines and '#rounds = "held-out"  # paper: 1000' in lines
    assert "#particles = 4" in lines


def test_labels_are_classified_by_networks_and_said_elsewhere(tmp_path: Path) -> None:
    data = table(tmp_path, y=lambda k, i: (i + k) % 2)
    columns = look(data)
    assert columns.labels
    assert write(data, "fedavg", tmp_path / "a.toml", columns).study.data.task == "classification"
    assert 'task = "classification"' in (tmp_path / "a.toml").read_text().splitlines()
    assert write(data, "ridge", tmp_path / "b.toml", columns).study.data.task == "auto"
    assert "Column 'y' holds 0 and 1 alone, as which" in (tmp_path / "b.toml").read_text()


def test_labels_that_do_not_begin_at_0_stay_numbers_and_are_said(tmp_path: Path) -> None:
    data = table(tmp_path, y=lambda k, i: (i + k) % 3 + 1)
    with pytest.warns(UserWarning, match=r"column 'y' holds whole numbers 1 to 3, and is learned as numbers"):
        assert write(data, "fedavg", tmp_path / "a.toml", look(data)).study.data.task == "auto"
    head = " ".join((tmp_path / "a.toml").read_text().replace("\n# ", " ").split())
    assert "where the table numbers them 0 to 2, data.task = 'classification'" in head


def test_names_that_steer_a_terminal_or_end_a_comment_are_escaped(tmp_path: Path) -> None:
    name = 'a"b\n#[data]\x1b[2J'
    data = table(tmp_path, y=None, x=None, **{name: lambda k, i: 0.3 * i - k, 'y"\\': lambda k, i: 0.5 * i})
    study = write(data, "ridge", tmp_path / "first.toml", look(data)).study
    text = (tmp_path / "first.toml").read_text(encoding="utf-8")
    assert all(line.isprintable() for line in text.split("\n"))
    assert Study.from_toml(tmp_path / "first.toml") == study and study.data.target == 'y"\\'


def test_the_source_is_found_from_the_studys_folder(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    data, out = table(tmp_path), tmp_path / "studies" / "first.toml"
    write(data, "ridge", out, look(data))
    assert 'source = "../mine.csv"' in out.read_text(encoding="utf-8").splitlines()
    assert Study.from_toml(out).data.source == str(data)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    data, out = table(tmp_path), tmp_path / "first.toml"
    out.write_text("mine")
    with pytest.raises(StudyError, match=r"is there already: nothing is written over \(choose another --out\)"):
        write(data, "ridge", out, look(data))
    assert out.read_text() == "mine"
    (tmp_path / "link.toml").symlink_to(tmp_path / "nowhere.toml")
    with pytest.raises(StudyError, match="is there already"):
        write(data, "ridge", tmp_path / "link.toml", look(data))
    assert not (tmp_path / "nowhere.toml").exists()


def test_a_full_disk_leaves_no_half_of_a_study(tmp_path: Path) -> None:
    data, out = table(tmp_path), tmp_path / "first.toml"
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=f"cannot write {re.escape(str(out))}"):
            write(data, "ridge", out, look(data))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [*tmp_path.iterdir()] == [data]


def test_words_gaps_and_remarks_need_no_second_start(tmp_path: Path) -> None:
    houses(3).to_csv(tmp_path / "houses.csv", index=False)
    with pytest.warns(UserWarning, match="lack a value and are left out|at the time of the row before"):
        study = write(
            tmp_path / "houses.csv", "ridge", tmp_path / "s.toml", look(tmp_path / "houses.csv", "house", "power")
        ).study
    assert study.data.categorical == ("roof",) and study.data.missing == "drop" and "remark" not in study.data.features
    assert Study.from_toml(tmp_path / "s.toml").data == study.data


def remarks_on(folder: Path, table: list[Row], method: str = "ridge") -> tuple[Study, str]:
    """Write the study of a table, check that it runs, and give what is said."""
    data, out = write_csv(folder / "mine.csv", table), folder / "first.toml"
    written = write(data, method, out, look(data))
    assert Study.from_toml(out) == written.study
    assert run(Study.from_toml(out, ["federation.device=cpu"])).clients
    text = " ".join(line.removeprefix("# ") for line in out.read_text(encoding="utf-8").splitlines())
    assert all(f"{one[0].upper()}{one[1:]}." in text for one in written.remarks)
    return written.study, " | ".join(written.remarks)


def test_clients_without_rows_for_both_sides_are_left_out_and_said(tmp_path: Path) -> None:
    alone = [{"client": f"d{k}", "lag_1": 1.0, "x": 2.0, "y": 30.0} for k in range(7)]
    study, said = remarks_on(tmp_path, [*alone, *rows()])
    assert study.data.exclude_clients == tuple(f"d{k}" for k in range(7))
    assert "7 of 11 clients left out by exclude_clients" in said and "d0, d1, d2, d3, d4 and 2 more" in said
    (tmp_path / "first.toml").unlink()
    with pytest.raises(
        StudyError, match=r"no client in column 'client' .* \(every client has a single row; --client names a"
    ):
        remarks_on(tmp_path, alone)
    noon = [{"when": "2024-05-01", **row} for row in rows()]
    for i, row in enumerate(noon[8:]):
        row["when"] = f"2024-05-{1 + i % 8:02d}"
    study, said = remarks_on(tmp_path, noon)
    assert study.data.exclude_clients == ("c0",) and "1 of 4 clients left out" in said


def clock(k: int, i: int, mark: str = "") -> str:
    return f"2024-05-{1 + i // 2:02d}T{12 * (i % 2):02d}:00{mark}"


@pytest.mark.parametrize(("mark", "zone"), [("", None), ("Z", "UTC")])
def test_a_table_of_times_and_targets_alone_has_their_cycles_for_features(
    mark: str, zone: str | None, tmp_path: Path
) -> None:
    alone = rows(lag_1=None, x=None, when=lambda k, i: clock(k, i, mark))
    study, said = remarks_on(tmp_path, alone)
    assert study.data.features == ("hour:cyclic",) and study.data.zone == zone
    assert "no column is a feature, and the cycles of the times 'when' are: hour:cyclic" in said
    assert ("data.zone" in said) == (zone is not None)


def test_cycles_of_times_that_are_no_features_are_named(tmp_path: Path) -> None:
    study, said = remarks_on(tmp_path, rows(lag_1=None, when=clock))
    assert study.data.features == ()
    assert (
        said.split(" | ")[0]
        == """'when' orders rows and is no feature: data.features = ["x", "hour:cyclic"] learns its cycles"""
    )
    (tmp_path / "first.toml").unlink()
    assert "orders rows" not in remarks_on(tmp_path, rows(lag_1=None, when=month))[1]


def test_rows_on_both_sides_are_allowed_and_said(tmp_path: Path) -> None:
    study, said = remarks_on(tmp_path, rows(lag_1=None, x=lambda k, i: i % 4, y=lambda k, i: 9 + i % 4))
    assert study.data.duplicate_rows == "allow" and "by duplicate_rows, 8 of c0, c1, c2, c3: scores" in said
    assert "certificates count no row" in said and "data.time" in said


def test_columns_called_split_and_group_that_mark_nothing_are_features(tmp_path: Path) -> None:
    own = rows(split=lambda k, i: f"f{i % 2}", group=lambda k, i: "patient" if i % 3 else "control")
    study, said = remarks_on(tmp_path, own)
    assert (study.data.split, study.data.group) == (None, None) and "data.group = 'none'" in said
    assert study.data.categorical == ("split", "group")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (lambda k, i: 0.5 * i, "never below 0, and predictions may be: lower_bound = 0 says so"),
        (lambda k, i: (8 * k + i) / 40, "lie in [0, 1], and predictions may not: lower_bound = 0 and upper_bound = 1"),
        (lambda k, i: 40 + i, ""),
        (lambda k, i: i - 1.5, ""),
        (lambda k, i: i % 3, ""),
    ],
)
def test_targets_that_end_somewhere_are_said_to(target: Any, said: str, tmp_path: Path) -> None:
    study, got = remarks_on(tmp_path, rows(y=target))
    assert said in got and bool(said) == bool(got) and study.data.lower_bound is None
    if not said:
        return
    (tmp_path / "first.toml").unlink()
    _, got = remarks_on(tmp_path, rows(y=None, pct_poor=lambda k, i: 10 * i + k))
    assert "lie in [0, 100]" in got and "upper_bound = 100" in got


def test_a_study_that_could_not_run_is_not_written(tmp_path: Path) -> None:
    data, out = table(tmp_path, lag_1=None), tmp_path / "first.toml"
    with pytest.raises(StudyError, match="persistence needs a feature 'lag_1'"):
        write(data, "persistence", out, look(data))
    with pytest.raises(StudyError, match=r"unknown method 'ridgge' \(did you mean 'ridge'"):
        write(data, "ridgge", out, look(data))
    words = table(tmp_path, y=lambda k, i: "inf")
    with pytest.raises(DataError, match="column 'y': inf is not a finite number"):
        write(words, "ridge", out, look(words))
    assert not out.exists()


def test_words_that_are_classes_become_labels_by_what_their_refusal_says(tmp_path: Path) -> None:
    kinds = [f"kind {k}" for k in range(7)]
    table = pandas.DataFrame({"client": ["a", "b"] * 35, "x": range(70), "type": kinds * 10})
    table.to_csv(tmp_path / "words.csv", index=False)
    said = r"pandas\.factorize\(table\['type'\], sort=True\)\[0\] does; then `init --method pfedbayes` writes"
    with pytest.raises(DataError, match=said):
        write(tmp_path / "words.csv", "pfedbayes", tmp_path / "s.toml", look(tmp_path / "words.csv", target="type"))
    table["type"] = pandas.factorize(table["type"], sort=True)[0]
    table.to_csv(tmp_path / "labels.csv", index=False)
    columns = look(tmp_path / "labels.csv", target="type")
    assert write(tmp_path / "labels.csv", "pfedbayes", tmp_path / "s.toml", columns).study.data.task == "classification"
