"""A run in several processes: its folder is that of one, goes on with any number, and only the first writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.federation.ranks import Ranks
from pacbayes_fl.results.records import load
from pacbayes_fl.study.run import Study, run
from pacbayes_fl.study.storage.rank_folder import check, folder_for
from pacbayes_fl.study.storage.run_folder import NoFolder, RunFolder
from pacbayes_fl.study.storage.saved_meta import SavedMeta
from tests.forked import fork
from tests.ranked import together
from tests.tiny import on_csv, quick, rows, tiny, write_csv, write_study

pytestmark = fork

LEFT_OUT = {"run.lock", "environment.json", "manifest.json", "trained.json", "checkpoints"}  # salts, times, versions


def study_of(folder: Path, rounds: int) -> Study:
    """Return a study of clients that keep something, in float64."""
    more = [*quick("pfedbayes"), "model.dtype=float64", f"federation.rounds={rounds}", "federation.checkpoint_every=1"]
    base = on_csv(folder / "rows.csv").table() | {"model": {}}
    return Study.from_table({key: base[key] for key in ("name", "seed", "data", "federation")}, "tiny.toml", more)


def assert_same(one: Path, other: Path) -> None:
    mine, theirs = load(one), load(other)
    assert mine.predictions.keys() == theirs.predictions.keys()
    for group in ("existing", "new"):
        for metric in theirs.metrics:
            expected = theirs.column(group, metric)
            assert mine.column(group, metric) == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)
    for name, tensor in theirs.predictions.items():
        assert mine.predictions[name].double().allclose(tensor.double(), 1e-9, 1e-9, equal_nan=True), name
    assert [r.clients for r in mine.rounds] == [r.clients for r in theirs.rounds]
    a, b = checkpoint.load(one), checkpoint.load(other)
    assert a is not None and b is not None and a.round == b.round
    at = [SavedMeta.of(a).stateful.index(client) for client in SavedMeta.of(b).stateful]
    for name, tensor in b.tensors.items():
        own = a.tensors[name][at] if name.startswith("clients") else a.tensors[name]
        assert own.double().allclose(tensor.double(), 1e-12, 1e-12), name
    assert {p.name for p in one.iterdir()} - LEFT_OUT == {p.name for p in other.iterdir()} - LEFT_OUT


@pytest.mark.slow
def test_a_run_goes_on_with_any_number_of_processes(tmp_path: Path) -> None:
    """Begun by 2, gone on by 3, by one alone, and by 5, of which one has no client; new clients are scored too."""
    write_csv(tmp_path / "rows.csv", rows())
    run(study_of(tmp_path, 4), tmp_path / "alone")
    for rounds, world in enumerate((2, 3, 1, 5), 1):
        study, out, resume = study_of(tmp_path, rounds), tmp_path / "run", rounds > 1
        if world == 1:
            run(study, out, resume)
            continue

        def work(ranks: Ranks, study: Study = study, out: Path = out, resume: bool = resume) -> int:
            return len(run(study, out, resume, ranks=ranks).clients)

        assert together(world, tmp_path / f"pipes{rounds}", work) == [6, *[0] * (world - 1)]
    assert_same(tmp_path / "run", tmp_path / "alone")


@pytest.mark.slow
def test_processes_have_one_mean_of_the_servers_last_states(tmp_path: Path) -> None:
    """Two have it; three go on from the round before the last, within the rounds that are averaged."""
    write_csv(tmp_path / "rows.csv", rows())
    study = study_of(tmp_path, 4)
    study = replace(study, federation=replace(study.federation, average_last=0.8))
    run(study, tmp_path / "alone")

    def work(ranks: Ranks, resume: bool = False) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the last round is damaged
            return len(run(study, tmp_path / "run", resume, ranks=ranks).rounds)

    assert together(2, tmp_path / "two", work) == [4, 4]
    assert_same(tmp_path / "run", tmp_path / "alone")
    (tmp_path / "run" / "checkpoints" / "round_000004" / "state.safetensors").write_bytes(b"damaged")
    assert together(3, tmp_path / "three", partial(work, resume=True)) == [4, 4, 4]
    mine, theirs = (checkpoint.load(tmp_path / name) for name in ("run", "alone"))
    assert mine is not None and theirs is not None and mine.round == theirs.round == 4
    averaged = [name for name in theirs.tensors if name.startswith("average.")]
    assert "average.first" in averaged and int(mine.tensors["average.first"]) == 2
    for name in averaged:
        assert mine.tensors[name].double().allclose(theirs.tensors[name].double(), 1e-12, 1e-12), name


def test_private_studies_are_refused() -> None:
    with pytest.raises(StudyError, match=r"privacy.*one process"):
        check(tiny("privacy.epsilon=3"))


def test_one_process_has_the_usual_folder(tmp_path: Path) -> None:
    assert type(folder_for(tmp_path, None)) is RunFolder
    assert isinstance(folder_for(None, None), NoFolder)


@pytest.mark.slow
def test_torchrun_and_a_process_that_is_killed(tmp_path: Path) -> None:
    """Only the first process prints; the others end with it, for a reason that it names, and the run goes on."""
    file, out = write_study(tmp_path), tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "pacbayes_fl", "run", str(file), "--out", str(out), "--set", "federation.rounds=5000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        until = time.monotonic() + 120
        while not (out / "checkpoints/latest").is_file() and time.monotonic() < until:
            time.sleep(0.05)
        children = Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split()
        ranked = {Path(f"/proc/{c}/environ").read_bytes().split(b"\0RANK=")[1][:1]: int(c) for c in children}
        os.kill(ranked[b"1"], signal.SIGKILL)
        printed, said = one.communicate(timeout=60)
    assert one.returncode != 0 and printed == ""
    own = [line for line in said.splitlines() if line.startswith("pacbayes-fl:")]
    assert len(own) == 1 and "process 1 of 2 is gone without a word" in own[0] and "--resume" in own[0]
    saved = checkpoint.load(out)
    assert saved is not None
    result = run(Study.from_toml(file, [f"federation.rounds={saved.round + 2}"]), out, resume=True)
    assert result.round == saved.round + 2
