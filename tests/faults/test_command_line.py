"""The command line under fault: whatever goes wrong is one line and an exit code, and a refused run leaves nothing."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import re
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from pacbayes_fl import cli
from pacbayes_fl.errors import DataError, PacBayesFLError
from pacbayes_fl.federation import lock
from pacbayes_fl.federation.lock import RunLock
from pacbayes_fl.names import from_cell
from pacbayes_fl.results import records as results
from pacbayes_fl.study.file import Study
from tests.faults.fuzz import Box, sets, write_small
from tests.hostile import NAMES, STEERING
from tests.tiny import TABLE, quick, write_csv, write_study

# What each command needs to be called at all.
ARGUMENTS = {
    "run": ["polynomial"],
    "compare": ["polynomial"],
    "tune": ["polynomial"],
    "list": ["methods"],
    "show": ["run"],
    "plot": ["run"],
    "report": ["run"],
    "certify": ["run"],
    "bound": ["seeger", "--n", "9", "--delta", "0.1", "--prior", "split"],
    "audit": ["run"],
    "join": ["run", "--data", "rows.csv"],
    "predict": ["run", "--client", "c0", "--data", "rows.csv"],
    "update": ["run", "--data", "rows.csv"],
    "score": ["run", "--data", "rows.csv"],
    "check": ["rows.csv"],
    "release": ["run", "--out", "released"],
    "describe": ["pac-pfl"],
    "init": ["--data", "rows.csv"],
    "schema": [],
    "deploy": ["polynomial", "--out", "deployed"],
    "node": ["check", "polynomial"],
}


def too_deep() -> None:
    too_deep()


def unheard_of() -> None:
    raise ValueError("first line\n  second \x1b[31mline")


def no_memory() -> None:
    raise MemoryError("Unable to allocate 7 TiB")


def no_memory_of_torch() -> None:
    import torch

    torch.empty(2**60)


FAULTS: dict[str, tuple[Callable[[], None], str]] = {
    "RecursionError": (too_deep, "(a defect of pacbayes-fl: run it again with --debug for the trace, and report that)"),
    "ValueError": (unheard_of, "ValueError: first line second \\x1b[31mline (a defect of pacbayes-fl"),
    "KeyError": (lambda: {}["lost"], "KeyError: 'lost' (a defect of pacbayes-fl"),
    "AssertionError": (lambda: exec("assert False"), "AssertionError (a defect of pacbayes-fl"),
    "MemoryError": (no_memory, "memory is exhausted: MemoryError: Unable to allocate 7 TiB (ask for less"),
    "RuntimeError": (no_memory_of_torch, "memory is exhausted: RuntimeError"),
    "OSError": (lambda: os.stat("nowhere"), "nowhere: No such file"),
    "DataError": (lambda: (_ for _ in ()).throw(DataError("bad\nrow", client="c\n0")), "client 'c\\n0': bad row"),
}


def test_every_command_is_attacked() -> None:
    result = next(each for each in cli.parser()._actions if isinstance(each, argparse._SubParsersAction))
    assert set(result.choices) == set(ARGUMENTS)


@pytest.mark.law
@pytest.mark.parametrize("command", ARGUMENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_happens_is_one_line_and_debug_shows_where(
    command: str, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind of failure inside each command, without --debug, and with it before and after the command."""
    raised, text = FAULTS[fault]
    module = {"list": "listing"}.get(command, command)
    monkeypatch.setattr(f"pacbayes_fl.cli.{module}.act", lambda options: raised())
    given = [command, *ARGUMENTS[command]]
    assert cli.main(given) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("pacbayes-fl: ") and err[:-1].isprintable()
    assert text in err
    for arguments in (["--debug", *given], [*given, "--debug"], ["--debug", *given, "--debug"]):
        assert cli.main(arguments) == 1
        out, traced = capsys.readouterr()
        assert out == "" and traced.endswith(err)
        assert traced.startswith("Traceback (most recent call last)") and fault in traced


def test_debug_is_no_part_of_what_a_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "methods"]) == cli.main(["--debug", "list", "methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]


@pytest.mark.parametrize("command", ARGUMENTS)
def test_quiet_stands_before_a_command_or_after_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    module = {"list": "listing"}.get(command, command)
    monkeypatch.setattr(f"pacbayes_fl.cli.{module}.act", lambda options: seen.append(options.quiet))
    given = [command, *ARGUMENTS[command]]
    for arguments in (given, ["--quiet", *given], [*given, "--quiet"]):
        cli.main(arguments)
    assert seen == [False, True, True]


def test_stopping_is_still_130_and_a_wrong_command_still_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(options: argparse.Namespace) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pacbayes_fl.cli.show.act", stopped)
    assert cli.main(["show", "run"]) == 130
    with pytest.raises(SystemExit) as left:
        cli.main(["--debug"])
    assert left.value.code == 2


@pytest.mark.parametrize("raised", [DataError("refused"), ZeroDivisionError(), KeyboardInterrupt()], ids=repr)
def test_a_refused_run_leaves_what_it_found(
    raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its folder, nor one above it, nor a lock in a folder of the user's."""

    def refuse(*_: object) -> None:
        raise raised

    monkeypatch.setattr("pacbayes_fl.study.run.prepare", refuse)
    study = str(write_study(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    for out in ("new", "deep/deeper/new"):
        assert cli.main(["run", study, "--quiet", "--out", str(tmp_path / out)]) in (1, 130)
        assert cli.main(["compare", study, "--quiet", "--out", str(tmp_path / out)]) in (1, 130)
        assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "mine").mkdir()
    assert cli.main(["run", study, "--quiet", "--out", str(tmp_path / "mine")]) in (1, 130)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "mine"])


def test_a_run_that_has_written_something_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure after the first file is a run to go on with."""
    monkeypatch.setattr("pacbayes_fl.federation.engine.rounds", lambda *_: (_ for _ in ()).throw(ZeroDivisionError()))
    study, folder = str(write_study(tmp_path, TABLE)), tmp_path / "run"
    assert cli.main(["run", study, "--quiet", "--out", str(folder)]) == 1
    assert {"study.toml", "run.lock", "data.npz"} <= {path.name for path in folder.iterdir()}


def test_a_lock_that_its_maker_takes_away_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opened the file of a failed run just before it went must not lock a file that nobody else can see."""
    folder = tmp_path / "run"
    first, real = RunLock(folder), lock.opened
    first.__enter__()

    def late(path: Path, mode: str, **named: object) -> object:
        file = real(path, mode, **named)
        monkeypatch.setattr(lock, "opened", real)
        first.__exit__(DataError, None, None)  # takes run.lock and its folder away
        return file

    monkeypatch.setattr(lock, "opened", late)
    with RunLock(folder):
        with pytest.raises(PacBayesFLError, match="in use"), RunLock(folder):
            pass
        assert (folder / "run.lock").read_text().startswith("pid ")


def test_the_program_itself_ends_without_a_trace(tmp_path: Path) -> None:
    """As a process: its own exit code and its own stderr."""
    code = (
        "import sys; from pacbayes_fl import cli; cli.listing.act = lambda options: 1 / 0; "
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, "list", "methods"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pacbayes-fl: ZeroDivisionError: division by zero (") and done.stderr.count("\n") == 1


def labels(folder: Path) -> None:
    """Write 40 rows of which one has a slip of the finger for a label."""
    rows = [f"c{i % 4},{i * 0.5},{1000001 if i == 7 else i % 3}" for i in range(40)]
    (folder / "data.csv").write_text("client,x,y\n" + "\n".join(rows))


def parquet(folder: Path) -> None:
    """Write a table that a few kilobytes say to have twelve million cells."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    ones = pa.DictionaryArray.from_arrays(pa.array(np.zeros(6_000_000, dtype=np.int8)), pa.array(["c0"]))
    pq.write_table(pa.table({"client": ones, "x": ones}), folder / "data.parquet")
    assert (folder / "data.parquet").stat().st_size < 50_000


def bomb(folder: Path) -> None:
    """Write zeros that a thousandth of their size says to be there."""
    np.savez_compressed(folder / "data.npz", x=np.zeros((100, 10**5)))
    assert (folder / "data.npz").stat().st_size < 100_000


SIZES: dict[str, tuple[str, list[str], Callable[[Path], None] | None, tuple[str, ...]]] = {
    "a label": (
        "fedavg",
        ["data.source=data.csv", "data.task=classification"],
        labels,
        ("label 1e+06 would be one of 1e+06 classes of 40 rows, and the limit is 1000", "number the classes 0, 1, 2"),
    ),
    "a network's width": (
        "fedavg",
        ["model.widths=[1000000000]"],
        None,
        ("a network of 3000000001 weights takes 12 GB", "lower model.widths"),
    ),
    "a prior's width": ("pac-pfl", ["model.mean_widths=[1000000000]"], None, ("24 GB", "lower model.mean_widths")),
    "particles": (
        "pac-pfl",
        ["method.particles=1000000"],
        None,
        ("1000000 particles, pair by pair, takes 8 TB", "lower method.particles"),
    ),
    "draws": (
        "pfedbayes",
        ["method.draws=4000000000"],
        None,
        ("a model 4000000000 times over takes", "lower method.draws"),
    ),
    "rows": (
        "ridge",
        ["data.options.samples=1000000000000000"],
        None,
        ("a client of 1000000000000002 rows would take", "lower samples"),
    ),
    "clients": (
        "ridge",
        ["data.options.clients=1000000000000000000"],
        None,
        ("1000000000000000001 clients of", "lower clients"),
    ),
    "modes": ("ridge", ["data.options.modes=1000000000000"], None, ("1000000000000 modes would take", "lower modes")),
    "an archive": (
        "fedavg",
        ["data.source=data.npz"],
        bomb,
        ("data.npz, 7", "takes 80 MB, and the limit is 67.1 MB", "data do not repeat"),
    ),
    "a Parquet table": (
        "ridge",
        ["data.source=data.parquet"],
        parquet,
        ("data.parquet of 18000000 cells, read, takes 1.8 GB", "fewer rows"),
    ),
}


@pytest.mark.law
@pytest.mark.parametrize("what", SIZES)
def test_a_size_is_judged_before_it_is_allocated(what: str, tmp_path: Path) -> None:
    """The error says the size asked for, the limit and what to change, and nothing of that size was there before it."""
    method, assignments, make, fragments = SIZES[what]
    box = Box(tmp_path)
    write_small(box.here)
    if make is not None:
        make(box.here)
    tracemalloc.start()
    answer = box.attack(
        what, "run", "s.toml", "--quiet", "--out", "out", *sets(*quick(method), *assignments), out="out"
    )
    assert tracemalloc.get_traced_memory()[1] < 10**8
    tracemalloc.stop()
    assert answer.code == 1 and "the limit is " in answer.err, answer.err
    for fragment in fragments:
        assert fragment in answer.err


def test_more_images_than_there_are_rows_for_are_refused_at_once(tmp_path: Path) -> None:
    from tests.tiny_images import table as image_table
    from tests.tiny_images import write_root

    box = Box(tmp_path)
    write_small(box.here, **image_table(write_root(box.here / "images")))
    for partition in ("labels", "dirichlet"):
        given = ["data.options.clients=1000000", f"data.options.partition={partition}"]
        answer = box.attack(partition, "run", "s.toml", "--quiet", "--out", "out", *sets(*given), out="out")
        assert "1000002 clients need a row each at least, and the limit is 420" in answer.err


NONSENSE = {
    "n2 below 0": ("pac-pfl", "method.n2=-1.0", "n2 must be at least 0, got -1"),
    "v below 0": ("pac-pfl-bnn", "method.v=-1e-3", "v must be at least 0, got -0.001"),
    "a minibatch of 2**63": ("pac-pfl", f"method.minibatch={2**63}", "minibatch must be"),
    "tries of 2**63": ("ridge", f"report.certify.tried={2**63}", "tried must be a whole number from 0 to 2**32 - 1"),
    "folds of 2**63": ("ridge", f"report.certify.folds={2**63}", "folds must be a whole number"),
    "a share that is no number": ("ridge", "data.test.share=nan", "share must be a finite number"),
    "a share below 0": ("ridge", "data.test.share=-1", "share must be strictly between 0 and 1"),
    "a round below 0": ("fedavg", "report.uncertainty_rounds=[-1]", "uncertainty_rounds[0] must be a whole number"),
    "a name that is a list": ("ridge", 'name=["a"]', "name must be text, and not blank, got ['a']"),
    "digits of another script": ("ridge", "federation.waste=٢", "waste must be of type float, got '٢'"),
}


@pytest.mark.parametrize(("method", "assignment", "text"), NONSENSE.values(), ids=NONSENSE)
def test_values_out_of_range_are_refused_though_nothing_uses_it(
    method: str, assignment: str, text: str, tmp_path: Path
) -> None:
    box = Box(tmp_path)
    write_small(box.here)
    answer = box.attack(
        assignment, "run", "s.toml", "--quiet", "--out", "out", *sets(*quick(method), assignment), out="out", stop=True
    )
    assert answer.code == 1 and text in answer.err, answer.err


TABLES = {
    "a blank at the end": ("t.csv", "client,x,y\nc0,1,2\nc0 ,2,3\n", "its name differs from 'c0' by what nobody sees"),
    "an accent in two ways": ("t.csv", "client,x,y\né,1,2\ne\u0301,2,3\n", "differs from 'é' by what nobody sees"),
    "an underscore": ("t.csv", "client,x,y\nc0,1_000,2\n", "line 2, column 'x': '1_000' is not a number"),
    "digits of another script": ("t.csv", "client,x,y\nc0,١٢,2\n", "column 'x': '١٢' is not a number"),
    "a spreadsheet": ("t.xlsx", "client,x,y\nc0,1,2\n", "t.xlsx is not .csv or .parquet (a spreadsheet can be saved"),
    "a text": ("t.txt", "client,x,y\nc0,1,2\n", "t.txt is not .csv or .parquet"),
    "thousands": (
        "t.csv",
        "client;x;y\nc0;1.200;2,5\n",
        "column 'x': '1.200' may be a decimal or thousands, in a table",
    ),
}


@pytest.mark.parametrize(("name", "table", "text"), TABLES.values(), ids=TABLES)
def test_a_table_that_is_read_in_no_other_way_than_it_is_meant(
    name: str, table: str, text: str, tmp_path: Path
) -> None:
    box = Box(tmp_path)
    write_small(box.here)
    (box.here / name).write_text(table, encoding="utf-8")
    answer = box.attack(name, "run", "s.toml", "--quiet", "--out", "out", *sets(f"data.source={name}"), out="out")
    assert answer.code == 1 and text in answer.err, answer.err


def test_an_empty_study_is_not_four_hundred_rounds_of_another(tmp_path: Path) -> None:
    box = Box(tmp_path)
    (box.here / "s.toml").write_text("# nothing yet\n")
    answer = box.attack("empty", "run", "s.toml", "--quiet", "--out", "out", out="out", stop=True)
    assert answer.code == 1 and "s.toml is empty (`list studies` names examples)" in answer.err


def test_a_client_of_the_training_does_not_join(finished: Path, tmp_path: Path) -> None:
    box = Box(tmp_path)
    (box.here / "t.csv").write_text("client,x,y\npoly_00,0.5,1\n")
    answer = box.attack("join", "join", str(finished), "--data", "t.csv", "--quiet")
    assert answer.code == 1 and "client 'poly_00': it took part in the training (ask for its predictions" in answer.err


# names ----------------------------------------------------------------------------------------------------------

ROWS_EACH = 7


def hostile_rows(names: Iterable[str], target: bool = True) -> list[dict[str, object]]:
    """Draw a few rows of each client, with features and a target whose names are as bad as theirs."""
    random = np.random.default_rng(0)
    table = []
    for k, name in enumerate(names):
        for i in range(ROWS_EACH):
            x = random.normal(size=2)
            row: dict[str, object] = {"client": name, "[/b]\x1b[2J\n": x[0], "=x $y$ \u202e": x[1]}
            row |= {"y[red]\x9b": x.sum() + 0.1 * k} if target else {}
            table.append(row | {"split": "test" if i > 4 else "train", "group": "new" if k % 9 == 8 else "existing"})
    return table


class Heard:
    """Run commands in a folder, on a terminal, and keep what they said."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys, self.out, self.err = folder, capsys, "", ""

    def __call__(self, *arguments: object, code: int = 0) -> str:
        self.capsys.readouterr()
        got = cli.main([str(argument) for argument in arguments])
        self.out, self.err = self.capsys.readouterr()
        assert got == code, self.err
        for text in (self.out, self.err):
            assert not [mark for mark in STEERING if mark in text.replace("\r", "")]  # the bar itself returns
            assert "\x1b[31m" not in text
        assert all(line.isprintable() for line in self.out.split("\n"))
        return self.out


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Heard:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)  # a bar, with the names in it
    write_csv(tmp_path / "rows.csv", hostile_rows(NAMES.values()))
    table = TABLE | {"name": "".join(NAMES.values()), "data": {"source": "rows.csv", "target": "y[red]\x9b"}}
    table = table | {"method": {"name": "ridge"}, "report": {"certify": {"scheme": "split", "independent": True}}}
    write_study(tmp_path, table)
    return Heard(tmp_path, capsys)


@pytest.mark.slow
def test_no_command_lets_a_name_steer_the_terminal(heard: Heard) -> None:
    """Every command that shows or writes names, of clients, studies and columns, by the table of hostile ones."""
    heard("run", "tiny.toml", "--out", "run", "--set", "report.certify.scheme=none")
    for name in NAMES.values():
        saved = results.load("run").clients
        assert name in [row.name for row in saved]
    lines = (heard.folder / "run/clients.csv").read_text("utf-8").split("\n")
    assert all(line.isprintable() for line in lines) and len(lines) == len(NAMES) + 2
    for cell in [row[2] for row in csv.reader(lines[1:-1])]:
        assert not cell.lstrip().startswith(("=", "+", "@")) and (cell[0] != "-" or cell == "-5")
    for path in (heard.folder / "run").rglob("*"):
        if path.suffix in (".json", ".jsonl", ".toml", ".csv") and path.name != "rows.csv":
            assert all(line.isprintable() for line in path.read_text("utf-8").split("\n")), path
    heard("show", "run")
    heard("show", "run", "--json")
    ask = hostile_rows([NAMES["formula"]], target=False)
    write_csv(heard.folder / "ask.csv", [{k: v for k, v in row.items() if k not in ("split", "group")} for row in ask])
    out = heard("predict", "run", "--client", NAMES["formula"], "--data", "ask.csv")
    assert out.splitlines()[1].startswith("\"'=HYPERLINK(") and len(out.splitlines()) == 1 + ROWS_EACH
    assert {from_cell(row[0]) for row in [*csv.reader(out.splitlines())][1:]} == {NAMES["formula"]}
    heard("predict", "run", "--client", "none\x1b[2J\u202e", "--data", "ask.csv", code=1)
    new = [row | {"client": f"new {row['client']}"} for row in hostile_rows(NAMES.values())]
    write_csv(heard.folder / "new.csv", [{k: v for k, v in row.items() if k != "group"} for row in new])
    out = heard("join", "run", "--data", "new.csv")
    assert {from_cell(row[0]) for row in [*csv.reader(out.splitlines())][1:]} == {f"new {n}" for n in NAMES.values()}
    heard("compare", "tiny.toml", "--methods", "ridge,pooled-ridge", "--out", "both\x1b[2J\u202e", "--set", SETS)
    heard("list", "studies")
    heard("show", "no\x1b[2J\u202e", code=1)
    heard("run", "no\x1b[2J\u202e", code=1)


SETS = "report.certify.scheme=none"


@pytest.mark.law
@pytest.mark.parametrize("name", [*NAMES.values(), "x" * 300 + "/../../y"], ids=[*NAMES, "long path"])
def test_a_study_of_any_name_runs_below_runs(
    name: str, tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(study: Study, out: Path, *_: object, **__: object) -> results.Result:
        clients = (results.ClientRow(0, study.name, "existing", 3, {"rsmse": 1.0}),)
        results.Result(study.name, "ridge", 3, "regression", clients=clients).save(out)
        return results.load(out)

    monkeypatch.setattr("pacbayes_fl.study.run.run", ran)
    heard("run", "tiny.toml", "--set", f"name={json.dumps(name)}", "--set", SETS)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-ridge-seed3") and (folder / "metrics.json").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "rows.csv", "tiny.toml"}
    assert results.load(folder).study == name


@pytest.mark.parametrize("name", ['""', '"  "', '["a"]', "true", "{ a = 1 }"])
def test_what_is_no_name_is_refused(name: str, heard: Heard) -> None:
    heard("run", "tiny.toml", "--set", f"name={name}", code=1)
    assert "name must be text, and not blank, got " in heard.err
    assert not (heard.folder / "runs").exists()


@pytest.mark.slow
def test_a_real_terminal_of_60_columns_shows_rounds_time_and_the_table(tmp_path: Path) -> None:
    """In a process with a terminal of its own, for which a study of a long and hostile name runs."""
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    name = "houses [/b]\x1b[2J of a long name " + "x" * 90
    write_study(tmp_path, TABLE | {"name": name, "method": {"name": "pfedgp"}})
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    code = "import sys; from pacbayes_fl.cli import main; sys.exit(main(sys.argv[1:]))"
    own = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR", "CI")}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "run", "tiny.toml", "--out", "here"],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=own | {"TERM": "xterm", "PYTHONPATH": str(Path(cli.__file__).parents[2])},
    )
    os.close(theirs)
    written = bytearray()
    with contextlib.suppress(OSError):  # which ends a terminal that nobody writes to any more
        while more := os.read(ours, 1 << 16):
            written += more
    os.close(ours)
    assert process.wait(60) == 0
    text = written.decode()
    assert "\x1b[2J" not in text
    shown = [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)) if line.strip()]
    long = ("preset ", "run folder: ", "test rows: ")  # lines of words, which may go on in the next
    assert all(len(line) <= 60 for line in shown if not line.startswith(long)), shown
    assert re.search(r" 12/12 +\d+:\d\d:\d\d rsmse [\d.]+", "\n".join(shown))
    assert [line for line in shown if line.startswith("house") and line.endswith("xx, pfedgp, seed 3, round 12")]
    assert sum(line.startswith("  rsmse ") for line in shown) == 2
