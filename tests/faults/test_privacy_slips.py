"""What a run must not let slip: files that others may read, rows that were not to be kept, budgets that crashes eat."""

from __future__ import annotations

import itertools
import os
import re
import signal
import stat
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl import cli
from pacbayes_fl.errors import NumericalError, PrivacyError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.privacy import ledger, mechanisms
from pacbayes_fl.privacy.accounting import Budget
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.results import manifest, rounds
from pacbayes_fl.results import records as results
from pacbayes_fl.study import run
from pacbayes_fl.study.config.parts import PrivacyPart
from pacbayes_fl.study.file import Study
from tests.forked import child, fork
from tests.tiny import TABLE, assert_same_results, rows, tiny, write_csv, write_study

# modes ----------------------------------------------------------------------------------------------------------


def open_to_others(folder: Path) -> dict[str, str]:
    """Return what others may read, write or enter, with its mode; the folder itself is "."."""
    every = {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}
    return {name: oct(mode) for name, mode in every.items() if mode & 0o077}


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0, 0o022], ids=oct)
def test_nobody_else_may_read_what_a_run_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command that writes into a run folder, with the modes that a umask would give."""
    monkeypatch.chdir(tmp_path)
    path, private = write_study(tmp_path), ["--set", "privacy.epsilon=10", "--set", "report.certify.scheme=split"]
    before = os.umask(mask)
    try:
        for words in (
            ["run", str(path), *private, "--out", "run"],
            ["run", str(path), *private, "--out", "run", "--resume"],
            ["certify", "run"],
            ["plot", "run"],
            ["compare", str(path), "--rounds", "2", "--methods", "pac-pfl,ridge", "--out", "both"],
        ):
            assert cli.main([*words, "--quiet"]) == 0, capsys.readouterr().err
    finally:
        os.umask(before)
    for name, least in (("run", 20), ("both", 20)):
        assert len([*(tmp_path / name).rglob("*")]) > least and open_to_others(tmp_path / name) == {}


def test_a_folder_that_was_open_is_closed_and_the_run_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.warns(UserWarning, match=r"was open to others \(mode 0755\)"):
        run.run(tiny("federation.rounds=1"), tmp_path)
    for each in (tmp_path, *tmp_path.rglob("*")):  # as an earlier version has left it
        each.chmod(0o755 if each.is_dir() else 0o644)
    with pytest.warns(UserWarning, match="was open to others"):
        run.run(tiny("federation.rounds=1"), tmp_path, resume=True)
    assert open_to_others(tmp_path) == {}


def test_a_folder_with_other_files_is_not_changed_and_the_run_says_so(tmp_path: Path) -> None:
    write_csv(tmp_path / "mine.csv", rows())
    for path, mode in ((tmp_path, 0o755), (tmp_path / "mine.csv", 0o644)):
        path.chmod(mode)
    with pytest.warns(UserWarning, match="holds other files: it stays so"):
        run.run(tiny("federation.rounds=1"), tmp_path)
    assert open_to_others(tmp_path) == {".": "0o755", "mine.csv": "0o644"}


# budgets --------------------------------------------------------------------------------------------------------

ANYTHING = Budget(1e300, 1e-9)
KEYS = [key for key in PrivacyPart.__dataclass_fields__ if key != "epsilon"]
VALUES = {"mechanism": "laplace", "cohort": "all", "neighbours": "replace", "randomness": "system", "side_share": 0.2}
VALUES |= {"ledger": "all.json", "candidates": 400, "candidate_step": 0.6, "clip_rate": 0.2, "clip_noise": "none"}
VALUES |= {"subspace": 3, "directions": "random"}


@pytest.mark.parametrize("key", KEYS)
def test_a_privacy_table_without_a_budget_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    """Every key of the table, from a file and from the command line."""
    value = VALUES.get(key, 0.5)
    with pytest.raises(PrivacyError, match=rf"\[privacy\] gives {key} without epsilon"):
        Study.from_table(TABLE | {"privacy": {key: value}})
    with pytest.raises(PrivacyError, match=rf"\[privacy\] gives {key} without epsilon"):
        Study.from_table(TABLE | {"methods": {"pac-pfl": {"privacy": {key: value}}}})
    path, folder = write_study(tmp_path), tmp_path / "run"
    assert cli.main(["run", str(path), "--set", f"privacy.{key}={value}", "--out", str(folder)]) == 1
    printed = capsys.readouterr()
    assert (
        f"gives {key} without epsilon" in printed.err and "set privacy.epsilon to a budget, or to 'none'" in printed.err
    )
    assert not folder.exists() and printed.out == ""
    assert Study.from_table(TABLE | {"privacy": {key: value, "epsilon": 1.0}}).privacy.epsilon == 1.0


def test_an_empty_privacy_table_is_refused_and_one_that_says_none_is_remarked(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="gives nothing without epsilon"):
        Study.from_table(TABLE | {"privacy": {}})
    with pytest.warns(UserWarning, match="epsilon = 'none': this run is not private"):
        run.run(tiny("privacy.epsilon=none", "privacy.clip=2", "federation.rounds=1"), tmp_path / "clear")
    assert "privacy" not in results.load(tmp_path / "clear").labels


PLACES: tuple[tuple[Any, str, str], ...] = (  # what a private round calls, in its order, and of which file
    (mechanisms, "noise", ""),
    (ledger, "put", ""),
    (manifest, "write_atomic", "noise.safetensors"),
    (manifest, "write_atomic", "release.safetensors"),
    (manifest, "write_atomic", "privacy.json"),
    (PacPFL, "server", ""),
    (rounds, "append_round", ""),
    (checkpoint, "save", ""),
    (checkpoint, "sync_folder", ""),
)


def life(folder: Path, study: Study, place: tuple[Any, str, str], at: int, after: bool) -> None:
    """Go on with a run until it is killed at the `at`-th call of a place, before it or after it."""
    home, name, file = place
    real, calls = getattr(home, name), [0]

    def fatal(*arguments: Any, **named: Any) -> Any:
        calls[0] += not file or arguments[0].name == file
        found = real(*arguments, **named) if after or calls[0] != at else None
        if calls[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(home, name, fatal)
    run.run(study, folder, resume=True)


def killed(folder: Path, at: int, wanted: str, *sets: str) -> list[tuple[str, bool, int, int, int]]:
    """Run and kill at the `at`-th call of every place, before it and after it; tell what each life has left.

    Returns:
        Tuples of the place, whether it was after the call, the saved round, its releases, and those that are counted.
    """
    told = []
    for place, after in itertools.product(PLACES, (False, True)):
        if wanted not in ("all", f"{place[1]} {after}") or (
            place[2] == "noise.safetensors" and "dp-ftrl" not in str(sets)
        ):
            continue
        status = child(partial(life, folder, tiny(*sets), place, at, after))
        assert os.WTERMSIG(status) == signal.SIGKILL, f"not killed at {place[1]}, after: {after}"
        saved = checkpoint.load(folder)
        charges, *_ = ledger._read(folder / ledger.NAME)
        now = (saved.round, saved.meta["released"]) if saved else (0, 0)
        told.append((place[1], after, *now, sum(count for _, count in charges)))
    return told


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["laplace", "dp-ftrl"])
@fork
def test_a_run_that_is_killed_anywhere_buys_all_its_rounds(tmp_path: Path, mechanism: str) -> None:
    """One run, killed at every place of a round in turn; its budget is for its rounds and no more."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    sets = ("privacy.epsilon_if_noise_were_secret=10", "federation.cohort=2", "federation.rounds=30")
    sets += ("federation.checkpoint_every=50", "report.evaluate_every=30", f"privacy.mechanism={mechanism}")
    lives = killed(folder, 2, "all", *sets)
    assert len(lives) == 16 + 2 * (mechanism == "dp-ftrl")
    before = 0
    for name, after, round, released, counted in lives:
        assert round == released >= before, "a state is never older than it was"
        assert counted - released in (0, 1), f"at most the round in flight is paid and not saved: {name} {after}"
        before = round
    assert 10 < before < 30
    run.run(tiny(*sets), folder, resume=True)
    run.run(tiny(*sets), whole)
    assert_same_results(folder, whole)
    files = ("privacy.json", "rounds.jsonl", "release.safetensors", *["noise.safetensors"] * (mechanism == "dp-ftrl"))
    for file in files:
        assert (folder / file).read_bytes() == (whole / file).read_bytes(), file


@fork
def test_noise_of_the_system_is_not_drawn_twice_for_one_round(tmp_path: Path) -> None:
    """Killed with the release on disk and the round not saved: the round that is repeated takes that release."""
    sets = ("privacy.epsilon=10", "federation.cohort=2", "federation.rounds=3", "privacy.mechanism=laplace")
    ((*_, round, released, counted),) = killed(tmp_path, 3, "server False", *sets)
    assert (round, released, counted) == (2, 2, 3)
    kept = Ledger(tmp_path, ANYTHING, released=2).kept(3)
    assert kept is not None and kept.mean
    run.run(tiny(*sets), tmp_path, resume=True)
    result = Ledger(tmp_path, ANYTHING, released=2).kept(3)
    assert result is not None and result.cohort == kept.cohort and len(Ledger(tmp_path, ANYTHING)) == 3
    assert all((result.mean[name] == mean).all() for name, mean in kept.mean.items())
    assert results.load(tmp_path).labels["privacy"]["releases"] == len(results.load(tmp_path).rounds) == 3


@pytest.mark.filterwarnings("ignore:round 1 undone", "ignore:delta = ")
def test_a_run_that_diverged_pays_nothing_more_however_often_it_is_resumed(tmp_path: Path) -> None:
    """Rates halved three times, each for a release; the fourth shows that it is to no purpose, and so does it again."""
    diverging = tiny("privacy.epsilon=10", "federation.rounds=9", "method.optimiser=ascent", "method.rate=1e9")
    for resume in (False, True, True):
        with pytest.raises(NumericalError, match=r"round 1: .* at an eighth of the learning rates too"):
            run.run(diverging, tmp_path, resume=resume)
        assert len(Ledger(tmp_path, ANYTHING)) == 4


@pytest.mark.filterwarnings("ignore:round 1 undone", "ignore:delta = ")
def test_a_budget_that_is_spent_on_rounds_that_were_undone_is_an_error(tmp_path: Path) -> None:
    """Two releases are all there are, and both rounds diverge: no table of a model that was never trained."""
    sets = ("privacy.epsilon=10", "federation.rounds=2", "method.optimiser=ascent", "method.rate=1e9")
    for resume in (False, True):
        with pytest.raises(NumericalError, match=r"round 1: .*budget.*lower the learning rates, and start anew"):
            run.run(tiny(*sets), tmp_path, resume=resume)
        assert len(Ledger(tmp_path, ANYTHING)) == 2 and not (tmp_path / "metrics.json").exists()


# names ----------------------------------------------------------------------------------------------------------

PLAIN = re.compile(rb"(?<![\w-])(epsilon|\xce\xb5)(?!\w| if (the )?noise were secret)", re.IGNORECASE)


@pytest.mark.slow
def test_a_simulation_shows_no_epsilon_by_its_plain_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every file of two run folders, of their certificates, figures and comparison, and all that is printed."""
    monkeypatch.chdir(tmp_path)
    path = str(write_study(tmp_path))
    seeded = ["--set", "privacy.randomness=simulation", "--set", "report.certify.independent=true"]
    for words in (
        ["run", path, *seeded, "--set", "privacy.epsilon=0.5", "--set", "privacy.delta=0.002", "--out", "gaussian"],
        ["certify", "gaussian"],
        ["show", "gaussian"],
        ["plot", "gaussian"],
        ["run", path, *seeded, "--set", "privacy.epsilon=3", "--set", "privacy.mechanism=paper_algorithm_3"],
        ["run", path, *seeded, "--set", "privacy.epsilon=0.5", "--set", "privacy.multiplier=9", "--out", "spent"],
    ):
        assert cli.main(words) == 0, capsys.readouterr().err
    varied = ["--vary", "privacy.epsilon=1,10", "--out", "both"]
    assert cli.main(["compare", path, *seeded, *varied, "--rounds", "2"]) == 0
    printed = "".join(capsys.readouterr())
    assert not PLAIN.findall(printed.encode()), printed
    assert printed.count("epsilon_if_noise_were_secret") > 5
    files = [one for one in tmp_path.rglob("*") if one.is_file() and one.name != "tiny.toml"]
    assert len(files) > 50
    for file in files:
        text = file.read_bytes()
        assert not PLAIN.search(file.name.encode())
        assert not PLAIN.search(text) or file.suffix in (".png", ".safetensors", ".npz"), file
    certified = (tmp_path / "gaussian" / "certificates" / "seeger.json").read_text("utf-8")
    assert "epsilon_if_noise_were_secret" in certified


# what may leave -------------------------------------------------------------------------------------------------


@pytest.mark.law
@pytest.mark.parametrize(
    ("sets", "may_leave"),
    [
        (("privacy.epsilon=10",), ["privacy.json"]),
        (("privacy.epsilon_if_noise_were_secret=10",), []),  # which hides nothing
        (("report.certify.scheme=split",), []),
        (("report.keep=no-rows", "report.certify.scheme=split"), []),
    ],
)
def test_labels_say_of_every_file_whether_it_may_leave(
    tmp_path: Path, sets: tuple[str, ...], may_leave: list[str]
) -> None:
    folder = tmp_path / "run"
    run.run(tiny(*sets, "federation.rounds=2"), folder)
    assert cli.main(["plot", str(folder), "--quiet"]) == 0
    assert cli.main(["certify", str(folder), "--quiet"]) == 0
    about = results.load(folder).labels["files"]
    assert about["may_leave"] == may_leave and about["to_publish"].startswith("pacbayes-fl release ")
    known = {*about["may_leave"], *about["stay"]}
    names = {path.name for path in folder.iterdir()}
    assert names <= known and {"checkpoints", "figures"} <= names, names - known
    assert not set(about["may_leave"]) & about["stay"].keys() and all(about["stay"].values())
