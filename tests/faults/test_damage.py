"""Whatever becomes of a file of a run folder, every command says the same as before or names the file: never else."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pacbayes_fl import cli, plots
from pacbayes_fl.errors import NumericalError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.results import records as results
from pacbayes_fl.results import rounds as results_rounds
from pacbayes_fl.results.manifest import problems
from pacbayes_fl.study import run as study
from pacbayes_fl.study.search import tune
from tests.forked import child, fork
from tests.tiny import TABLE, assert_same_results, assert_same_state, spoiled, write_study

FILES = (
    *("study.toml", "environment.json", "data.npz", "held_out.npz", "trained.json", "rounds.jsonl", "manifest.json"),
    *("scaling.json", "clients.csv", "calibration.csv", "predictions.safetensors", "labels.json", "metrics.json"),
    "certified.jsonl",
    *(f"checkpoints/round_{n:06d}/{name}" for n in (2, 3) for name in ("state.safetensors", "state.json")),
    *("checkpoints/round_000003/manifest.json", "checkpoints/latest", "certificates/seeger.json"),
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "show": ("show", "run"),
    "show --json": ("show", "run", "--json"),
    "plot": ("plot", "run"),
    "predict": ("predict", "run", "--client", "poly_00", "--data", "ask.csv"),
    "join": ("join", "run", "--data", "join.csv"),
    "certify": ("certify", "run", "--json", "--draws", "20"),
    "resume": ("run", "tiny.toml", "--out", "run", "--resume"),
}
FEW = ("show", "plot", "join", "certify", "resume")  # these meet two damages of each file, the others all


class Answer(NamedTuple):
    """What a command has said."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished run that keeps rows for certificates and has one, and what commands read."""
    place = tmp_path_factory.mktemp("damage")
    certify = {"certify": {"scheme": "split", "independent": True}}
    federation = TABLE["federation"] | {"rounds": 3, "checkpoint_every": 1}
    write_study(place, TABLE | {"federation": federation, "report": certify})
    (place / "ask.csv").write_text("x\n0.5\n-1\n")
    (place / "join.csv").write_text("client,x,y\na,0.5,1\na,0.7,2\na,0.1,\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert cli.main(["run", "tiny.toml", "--out", "run", "--quiet"]) == 0
        assert cli.main(["certify", "run", "--json", "--draws", "20"]) == 0
    kept = {path.relative_to(place / "run").as_posix() for path in (place / "run").rglob("*") if path.is_file()}
    assert kept - {"checkpoints/round_000002/manifest.json", "run.lock"} == set(FILES), (
        "a file of the run folder is not attacked"
    )
    return place


def drawn(result: results.Result, folder: Path, *_: Any) -> list[Path]:
    """Stand in for figures: print every number that they could show."""
    predictions = sorted((name, tensor.tolist()) for name, tensor in result.predictions.items())
    print(result.summary(), [row.metrics for row in result.clients], result.rounds, predictions)
    return []


@pytest.fixture
def at(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a fresh copy of that folder."""
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plots, "save_all", drawn)
    monkeypatch.setattr(plots, "save_certificates", lambda tables, *_: [print(table) for table in tables] and [])
    return tmp_path


@pytest.fixture
def ask(at: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Answer]:
    """Return what asks a command, quietly, of the run folder as it is."""

    def asked(command: str) -> Answer:
        code = cli.main([*COMMANDS[command], "--quiet"])
        return Answer(code, *capsys.readouterr())

    return asked


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what the commands say of the run that nobody has touched."""
    said = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save_all", drawn)
        patch.setattr(plots, "save_certificates", lambda tables, *_: [print(table) for table in tables] and [])
        for command, arguments in COMMANDS.items():
            copy = tmp_path_factory.mktemp("whole")
            shutil.copytree(place, copy, dirs_exist_ok=True)
            patch.chdir(copy)
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
                assert cli.main([*arguments, "--quiet"]) == 0
            assert err.getvalue() == "", command
            said[command] = out.getvalue()
    return said


@pytest.mark.law
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", FILES)
def test_damage_changes_nothing_or_is_named(
    name: str, command: str, at: Path, place: Path, ask: Callable[[str], Answer], whole: dict[str, str]
) -> None:
    run, path = at / "run", at / "run" / name
    for what, bad in spoiled((place / "run" / name).read_bytes()).items():
        if command in FEW and what not in ("middle byte flipped", "gone"):
            continue
        shutil.rmtree(run)
        shutil.copytree(place / "run", run)
        path.write_bytes(bad) if bad is not None else path.unlink()
        code, out, err = ask(command)
        where = f"{what}: {code} {err}"
        if code:
            *said, last = err.splitlines()
            assert code == 1 and last.startswith("pacbayes-fl: ") and "defect" not in last and path.name in err, where
            assert all(line.startswith("warning: ") for line in said), where
        elif out != whole[command]:
            assert path.name in err, where
        if command == "resume" and code == 0:  # what it leaves is what it was, or what it was and a word of the damage
            for file in ("clients.csv", "predictions.safetensors", "trained.json", "held_out.npz", "data.npz"):
                assert (run / file).read_bytes() == (place / "run" / file).read_bytes(), (where, file)
            assert_same_state(run, place / "run")
            spare = {"certified.jsonl", "certificates/seeger.json"} | {name for name in FILES if "checkpoints" in name}
            assert problems(run).keys() <= spare, where
        if name in ("trained.json", "rounds.jsonl") and bad is None:
            holds = "which clients ever trained" if name == "trained.json" else "the record of every round"
            unfinished = "is not a finished run folder: rounds.jsonl is missing"
            if command not in ("show", "show --json", "plot") or name == "rounds.jsonl":
                assert code == 1 and (f"{name} is missing: it holds {holds}" in err or unfinished in err), where
            else:
                assert f"{name} is missing" in err, where


# kills ----------------------------------------------------------------------------------------------------------

CHANGES = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "ftruncate")  # of the disk, by a run


@contextlib.contextmanager
def seen_before_every_change(folder: Path, kept: Path) -> Any:
    """Keep a copy of a folder as it is just before each change of the disk: what a kill at that moment leaves."""
    copies: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            real = getattr(os, name)

            def watched(*arguments: Any, real: Any = real, **named: Any) -> Any:
                copies.append(kept / str(len(copies)) / "run")
                with patch.context() as unwatched:
                    for each, function in before.items():
                        unwatched.setattr(os, each, function)
                    shutil.copytree(folder, copies[-1]) if folder.exists() else copies[-1].mkdir(parents=True)
                return real(*arguments, **named)

            patch.setattr(os, name, watched)
        yield copies


before = {name: getattr(os, name) for name in CHANGES}


def distinct(copies: list[Path]) -> list[Path]:
    """Leave out copies that hold the same bytes as the one before them."""

    def content(copy: Path) -> dict[str, bytes]:
        return {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()}

    result = [(copy, content(copy)) for copy in copies]
    return [
        copy for (copy, now), last in zip(result, [None, *(each for _, each in result)], strict=False) if now != last
    ]


@pytest.mark.slow
def test_a_kill_before_any_change_of_the_disk_is_no_damage_and_costs_nothing(
    place: Path, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run from its start to its end, and of one that goes on after a kill."""
    (at / "kept").mkdir()
    with seen_before_every_change(at / "new", at / "kept") as copies:
        assert cli.main(["run", "tiny.toml", "--out", "new", "--quiet"]) == 0
    moments = distinct(copies)
    assert len(moments) > 60
    for copy in moments:
        if (copy / "manifest.json").exists():
            assert problems(copy) == {}, copy
    capsys.readouterr()
    for copy in moments[:: max(1, len(moments) // 16)]:
        assert cli.main(["run", "tiny.toml", "--out", str(copy), "--resume", "--quiet"]) == 0
        assert capsys.readouterr().err == "", copy
        assert_same_results(copy, place / "run")
        assert problems(copy) == {}
    with seen_before_every_change(moments[len(moments) // 2], at / "again") as copies:
        assert cli.main(["run", "tiny.toml", "--out", str(moments[len(moments) // 2]), "--resume", "--quiet"]) == 0
    assert all(problems(copy) == {} for copy in distinct(copies))


@pytest.mark.slow
def test_a_kill_while_a_certificate_is_made_is_no_damage(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "kept").mkdir()
    with seen_before_every_change(at / "run", at / "kept") as copies:
        assert cli.main(["certify", "run", "--bound", "mcallester", "--json", "--draws", "20", "--quiet"]) == 0
    for copy in distinct(copies):
        assert problems(copy) == {}
        capsys.readouterr()
        assert cli.main(["certify", str(copy), "--bound", "mcallester", "--json", "--draws", "20", "--quiet"]) == 0
        told = capsys.readouterr()
        assert told.err == "" and json.loads(told.out)["number"] == 2  # counted once, whenever it was killed


@pytest.mark.slow
def test_a_run_that_is_alive_is_looked_at_without_a_false_alarm(
    place: Path, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (at / "kept").mkdir()
    with seen_before_every_change(at / "run", at / "kept") as copies:
        more = ("--set", "federation.rounds=5")
        assert cli.main(["run", "tiny.toml", "--out", "run", "--resume", "--quiet", *more]) == 0
    capsys.readouterr()
    for copy in distinct(copies)[::5]:
        assert cli.main(["predict", str(copy), "--client", "poly_00", "--data", "ask.csv", "--quiet"]) == 0
        lines = capsys.readouterr().err.splitlines()
        alive = [line for line in lines if re.search("run has (not been finished|no scores yet)", line)]
        assert lines == alive and len(alive) <= 1


# what was lost, and a newest round that is damaged --------------------------------------------------------------


@pytest.mark.parametrize("name", ["rounds.jsonl", "trained.json", "scaling.json"])
@pytest.mark.parametrize("manifest", [True, False], ids=["listed", "without a manifest"])
def test_what_no_other_file_holds_must_be_there(
    name: str, manifest: bool, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (at / "run" / name).unlink()
    if not manifest:
        (at / "run" / "manifest.json").unlink()
    assert cli.main([*COMMANDS["resume"], "--quiet"]) == 1
    assert f"run/{name} is missing: it holds " in capsys.readouterr().err
    assert not (at / "run" / name).exists()


def test_a_folder_that_lost_its_study_is_not_written_over(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "run" / "study.toml").unlink()
    assert cli.main(["run", "tiny.toml", "--out", "run", "--quiet"]) == 1
    assert "run holds a run already (go on with --resume" in capsys.readouterr().err
    assert cli.main([*COMMANDS["resume"], "--quiet"]) == 0
    assert "warning: run/study.toml is missing: it holds every value of the study (run" in capsys.readouterr().err
    assert problems(at / "run") == {}


def test_all_rounds_lost_is_an_error_and_no_new_start(at: Path, ask: Callable[[str], Answer]) -> None:
    shutil.rmtree(at / "run" / "checkpoints")
    code, _, err = ask("resume")
    assert code == 1 and "checkpoints" in err and "missing" in err


def test_a_run_whose_newest_round_is_damaged_says_what_it_falls_back_to_in_its_result(
    at: Path, ask: Callable[[str], Answer]
) -> None:
    (at / "run" / "checkpoints" / "round_000003" / "state.json").write_bytes(b"{}")
    text = "state.json of round 3 is damaged; using round 2"
    for command in ("predict", "join", "certify"):
        code, out, err = ask(command)
        assert code == 0 and f"warning: {text}\n" in err, command
        if command == "certify":
            table = json.loads(out)
            assert table["model"]["round"] == table["labels"]["round"] == 2 and table["labels"]["fell_back"] == [text]
        else:
            head, *rows = (line.split(",") for line in out.splitlines())
            assert head[-1] == "round" and {row[-1] for row in rows} == {"2"}
    answer = ask("resume")
    assert answer.code == 0 and f"fell back: {text}" in answer.out
    assert "seed 3, round 3" in answer.out  # it has caught up, and says from where
    for name in ("metrics.json", "labels.json"):
        result = json.loads((at / "run" / name).read_text())
        assert (result["round"], result["fell_back"]) == (3, [text])
    assert f"fell back: {text}" in ask("show").out


# signals --------------------------------------------------------------------------------------------------------


@pytest.fixture
def listening() -> Iterator[None]:
    """Hear SIGHUP, also where the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice, by the terminal and the shell"])
def test_a_closed_terminal_ends_a_run_with_its_state_saved(times: int, at: Path, place: Path) -> None:
    def hang_up(record: results_rounds.RoundRecord) -> None:
        for _ in range(times if record.round == 2 else 0):
            os.kill(os.getpid(), signal.SIGHUP)

    one = study.Study.from_toml("tiny.toml", ["federation.checkpoint_every=100"])
    before = signal.getsignal(signal.SIGHUP)
    with pytest.raises(KeyboardInterrupt):
        study.run(one, at / "new", on_round=hang_up)
    assert signal.getsignal(signal.SIGHUP) == before
    saved = checkpoint.load(at / "new")
    assert saved is not None and saved.round == 2
    study.run(one, at / "new", resume=True)
    assert_same_state(at / "new", place / "run")


def test_nohup_is_respected(at: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        one = study.Study.from_toml("tiny.toml")
        result = study.run(one, at / "new", on_round=lambda _: os.kill(os.getpid(), signal.SIGHUP))
        assert result.round == 3 and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("listening")
@fork
def test_a_real_terminal_that_is_closed_leaves_a_run_that_goes_on(at: Path) -> None:
    """A session of its own on a terminal of its own, whose other end is closed while rounds are run."""
    rounds = ("--set", "federation.rounds=100000", "--set", "federation.checkpoint_every=100000")
    number, terminal = os.forkpty()
    if number == 0:
        code = 99
        try:
            code = cli.main(["run", "tiny.toml", "--out", "new", "--quiet", *rounds])
        finally:
            os._exit(code)
    until = time.monotonic() + 60
    while not (at / "new" / "rounds.jsonl").exists() or len(results_rounds.read_rounds(at / "new")) < 3:
        assert time.monotonic() < until and os.waitpid(number, os.WNOHANG) == (0, 0)
        time.sleep(0.005)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 130
    saved = checkpoint.load(at / "new")
    assert saved is not None and saved.round == len(results_rounds.read_rounds(at / "new")) >= 3
    assert problems(at / "new") == {}


# searches and comparisons ---------------------------------------------------------------------------------------


def killed_at(call: int, module: Any, name: str, work: Callable[[], object]) -> bool:
    """Do some work in a process that is killed just before the n-th call of a function; whether it was."""

    def life() -> None:
        real, calls = getattr(module, name), iter(range(1, 1000))

        def counted(*arguments: Any, **named: Any) -> Any:
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        setattr(module, name, counted)
        with contextlib.redirect_stdout(io.StringIO()):
            work()

    code = os.waitstatus_to_exitcode(child(life))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def joint(found: Any, folder: Path, *_: Any) -> list[Path]:
    """Stand in for figures: write every number that they could show."""
    folder.mkdir(exist_ok=True)
    (folder / "all.txt").write_text(str([[row.metrics for row in one.clients] for one in found]))
    return []


@pytest.mark.slow
@fork
def test_a_killed_comparison_ends_as_one_that_nobody_disturbed(
    at: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots, "save_joint", joint)
    arguments = ["compare", "tiny.toml", "--methods", "pac-pfl,pfedgp", "--quiet", "--out"]
    assert cli.main([*arguments, "whole"]) == 0
    told = capsys.readouterr().out.replace("whole", "killed")
    for call in (2, 5):  # of six rounds
        out = at / "killed"
        shutil.rmtree(out, ignore_errors=True)
        assert killed_at(call, results_rounds, "append_round", lambda: cli.main([*arguments, "killed"]))
        done = {path.parent.name: path.stat().st_mtime_ns for path in out.glob("*/metrics.json")}
        assert cli.main([*arguments, "killed", "--resume"]) == 0
        answer = capsys.readouterr()
        assert (answer.out, answer.err) == (told, "")
        for name in ("compare.csv", "compare.json", "comparison.json", "figures/all.txt"):
            assert (out / name).read_bytes() == (at / "whole" / name).read_bytes(), (call, name)
        for name, when in done.items():
            assert (out / name / "metrics.json").stat().st_mtime_ns == when, "it was run again"


def test_another_comparison_is_not_resumed(
    at: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots, "save_joint", joint)
    base = ["compare", "tiny.toml", "--quiet", "--out", "all", "--methods"]
    assert cli.main([*base, "ridge,pfedgp", "--rounds", "1"]) == 0
    before = {path: path.read_bytes() for path in (at / "all").rglob("*") if path.is_file() and path.name != "run.lock"}
    for more, text in (
        (["ridge"], 'methods: saved ["ridge", "pfedgp"], now ["ridge"]'),
        (["ridge,pfedgp", "--seeds", "3", "--rounds", "1"], "seeds: saved 1, now 3"),
        (["ridge,pfedgp", "--rounds", "2"], "ridge.federation.rounds: saved 1, now 2; pfedgp"),
    ):
        capsys.readouterr()
        assert cli.main([*base, *more, "--resume"]) == 1
        assert f"not the one that this comparison was started with: {text}" in capsys.readouterr().err
    (at / "all" / "comparison.json").write_text("{}")
    assert cli.main([*base, "ridge,pfedgp", "--rounds", "1", "--resume"]) == 1
    assert "comparison.json is damaged or was edited: it holds what a comparison is of" in capsys.readouterr().err
    (at / "all" / "comparison.json").write_bytes(before[at / "all" / "comparison.json"])
    assert {path: path.read_bytes() for path in before} == before
    assert cli.main(["compare", "tiny.toml", "--resume"]) == 1
    assert "--resume needs the folder of the comparison (give --out DIR)" in capsys.readouterr().err


COMPARE = "compare tiny.toml --vary federation.rounds=1,2 --seeds 2 --out all --quiet".split()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a comparison of two numbers of rounds, each over two seeds."""
    place = tmp_path_factory.mktemp("compared")
    write_study(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(plots, "save_joint", joint)
        assert cli.main(COMPARE) == 0
    scores = {path.read_bytes() for path in place.glob("all/*/clients.csv")}
    assert len(scores) == 4, "runs that change places could not be told apart"
    return place


@pytest.fixture
def there(compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a fresh copy of it, and return the folder of the comparison."""
    shutil.copytree(compared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plots, "save_joint", joint)
    return Path("all")


def test_runs_that_change_places_are_not_shown_as_one_another(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _, second, _ = sorted(path.parent for path in there.glob("*/metrics.json"))
    assert first.name.partition("-seed")[2] == second.name.partition("-seed")[2]
    first.rename("apart")
    second.rename(first)
    Path("apart").rename(second)
    for command in ("show", "plot"):
        assert cli.main([command, "all"]) == 1
        assert f"{first} is not the run that was compared: its scores have changed" in capsys.readouterr().err


def test_no_run_of_a_comparison_is_reached_through_a_link(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sorted(path.parent for path in there.glob("*/metrics.json"))[1]
    run.rename("elsewhere")
    run.symlink_to(Path("elsewhere").resolve())
    before = {path: path.read_bytes() for path in Path("elsewhere").rglob("*") if path.is_file()}
    for arguments in (["show", "all"], ["plot", "all"], COMPARE, [*COMPARE, "--resume"]):
        assert cli.main(arguments) == 1
        assert f"{run} is a symbolic link" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


AGAIN = ("clients.csv", "calibration.csv", "metrics.json", "labels.json", "predictions.safetensors", "manifest.json")


@pytest.mark.law
@pytest.mark.parametrize(
    ("name", "what"), [*((name, "gone") for name in AGAIN), *((name, "middle byte flipped") for name in AGAIN[:-1])]
)
def test_a_comparison_that_goes_on_repairs_what_a_run_can_write_again(
    name: str, what: str, there: Path, compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = next(there.glob("*/metrics.json")).parent
    data = spoiled((run / name).read_bytes())[what]
    (run / name).unlink()
    if data is not None:
        (run / name).write_bytes(data)
    assert cli.main([*COMPARE, "--resume"]) == 0
    assert f"{run / name} is " in capsys.readouterr().err
    for path in (p for p in there.rglob("*") if p.is_file() and p.name in (*AGAIN[:-1], "compare.csv", "compare.json")):
        assert path.read_bytes() == (compared / path).read_bytes(), path
    assert cli.main(["show", "all"]) == 0
    assert not capsys.readouterr().err


def test_a_comparison_without_its_manifest_goes_on_as_is_advised(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (there / "manifest.json").unlink()
    assert cli.main(["show", "all"]) == 1
    assert "resume the run: its files are then taken as they are" in capsys.readouterr().err
    assert cli.main([*COMPARE, "--resume"]) == 0
    assert "manifest.json is missing: the files of the run are taken as they are" in capsys.readouterr().err
    assert cli.main(["show", "all"]) == 0
    assert not capsys.readouterr().err


@pytest.mark.slow
@fork
def test_a_killed_search_ends_as_one_that_nobody_disturbed_and_tries_nothing_twice(
    at: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def scored(one: study.Study, dataset: Any, folds: int, marks: Any) -> dict[int, dict[str, float]]:
        tried.append(one.method.name)
        number = float(hashlib.sha256(one.to_toml().encode()).digest()[0])
        if number % 5 == 0:
            raise NumericalError("not finite", round=1)
        return {mark: {"rsmse": number / mark / 3, "nlpd": number} for mark in marks}

    monkeypatch.setattr(tune, "cross_validate", scored)
    arguments = ["tune", "tiny.toml", "--methods", "pac-pfl,pfedgp", "--budget", "4", "--quiet", "--out"]
    assert cli.main([*arguments, "whole.toml"]) == 0
    told, number = capsys.readouterr().out.replace("whole", "killed"), len(tried)
    assert number == 8
    for call in range(1, number + 1):
        for path in at.glob("killed*"):
            path.unlink()
        assert killed_at(call, tune, "cross_validate", lambda: cli.main([*arguments, "killed.toml"]))
        if call > 1:
            assert cli.main([*arguments, "killed.toml"]) == 1
            assert (
                "killed.search.json holds the trials of a search that was not finished (go" in capsys.readouterr().err
            )
        tried.clear()
        assert cli.main([*arguments, "killed.toml", "--resume"]) == 0
        assert len(tried) == number - (call - 1), "a trial was lost, or made again"
        assert capsys.readouterr().out == told
        for ending in ("toml", "trials.json", "search.json"):
            assert (at / f"killed.{ending}").read_bytes() == (at / f"whole.{ending}").read_bytes(), (call, ending)
    for more, text in (
        (["--folds", "3"], "folds: saved 5, now 3"),
        (["--set", "data.options.samples=9"], "samples: saved 7, now 9"),
    ):
        assert cli.main([*arguments, "killed.toml", "--resume", *more]) == 1
        assert "not the one that this search was started with" in (err := capsys.readouterr().err) and text in err


def test_an_edited_study_is_not_trained_again_for_certificates(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "tiny.toml", "--out", "plain", "--quiet", "--set", "report.certify.scheme=none"]) == 0
    toml = at / "plain" / "study.toml"
    toml.write_text(toml.read_text().replace("rate = 0.01", "rate = 0.02"))
    capsys.readouterr()
    assert cli.main(["certify", "plain", "--retrain", "--quiet"]) == 1
    assert "plain/study.toml is damaged or was edited: it holds every value" in capsys.readouterr().err
    assert not (at / "plain-certify").exists()


# links ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.lock", "checkpoints", "data.npz", "clients.csv", "certificates", "figures"])
def test_no_command_follows_a_link(name: str, at: Path, ask: Callable[[str], Answer]) -> None:
    link, victim = at / "run" / name, at / "victim"
    link.rename(victim) if link.exists() else victim.mkdir()
    link.symlink_to(victim)

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in (victim, *victim.rglob("*")) if path.is_file()}

    (victim / "round_000009.tmp").mkdir() if victim.is_dir() else None
    before = content()
    for command in COMMANDS:
        code, out, err = ask(command)
        assert (code, out) == (1, "") and f"{name} is a symbolic link" in err, (command, err)
    assert content() == before and (victim.is_file() or (victim / "round_000009.tmp").is_dir())


def test_a_run_folder_may_itself_be_reached_through_a_link(
    at: Path, ask: Callable[[str], Answer], whole: dict[str, str]
) -> None:
    (at / "run").rename(at / "elsewhere")
    (at / "run").symlink_to(at / "elsewhere")
    for command in COMMANDS:
        assert ask(command) == (0, whole[command], ""), command
