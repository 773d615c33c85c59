"""What was spent is on disk before it is released, through crashes, kills and damage."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pacbayes_fl.errors import CheckpointError, PrivacyError
from pacbayes_fl.privacy import mechanisms
from pacbayes_fl.privacy.accounting import Budget, epsilon
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.ledger import OUTSIDE, Ledger, file_of, to_release
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism
from pacbayes_fl.results import folder as results_folder
from pacbayes_fl.results import manifest

ALL = Cohorts(clients=100)
LAPLACE = Charge("laplace", 10.0, 4, ALL)  # a tenth of an epsilon
PURE = Budget(1.0, 0.0)


def test_spending_is_on_disk_and_counts_from_there(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, PURE)
    assert (len(ledger), ledger.epsilon(), ledger.room(LAPLACE)) == (0, 0.0, 10)
    assert [ledger.spend(LAPLACE) for _ in range(3)] == [0, 1, 2]
    other = Charge("knorm", 20.0, 4, Cohorts(100, 10, "poisson"))
    assert ledger.spend(other) == 3 and ledger.spend(LAPLACE) == 4
    again = Ledger(tmp_path, PURE)
    assert again.charges == ledger.charges == (LAPLACE, LAPLACE, LAPLACE, other, LAPLACE)
    assert again.epsilon() == ledger.epsilon() == pytest.approx(0.4 + other.pure)
    assert again.room(LAPLACE) == ledger.room(LAPLACE) == 5
    assert again.spend(LAPLACE) == 5


def test_it_stops_before_the_budget_is_exceeded_and_writes_nothing_then(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, PURE)
    for _ in range(10):  # ten tenths are one, whatever the last bit says
        ledger.spend(LAPLACE)
    assert ledger.epsilon() <= 1 + 1e-9 and ledger.room(LAPLACE) == 0
    before = ledger.path.read_bytes()
    for again in (ledger, Ledger(tmp_path, PURE)):
        with pytest.raises(PrivacyError, match=r"round 11: one more release would exceed .*10 releases have spent"):
            again.spend(LAPLACE, round=11)
        with pytest.raises(PrivacyError, match="would exceed"):
            again.spend(Charge("laplace", 1e6, 4, ALL))
    assert ledger.path.read_bytes() == before
    assert Ledger(tmp_path, Budget(1.1, 0.0)).room(LAPLACE) == 1


def test_looking_ahead_sets_no_limit(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, PURE, ahead=4)
    assert ledger.room(LAPLACE) == 4
    assert [ledger.spend(LAPLACE) for _ in range(10)] == list(range(10))
    with pytest.raises(PrivacyError, match="would exceed"):
        ledger.spend(LAPLACE)


@pytest.mark.slow
def test_a_budget_by_pld_lasts_as_long_as_its_account_says(tmp_path: Path) -> None:
    charge, budget = Charge("gaussian", 2.0, 50, Cohorts(120, 12, "poisson")), Budget(1.0, 1e-3)
    ledger = Ledger(tmp_path, budget)
    room = ledger.room(charge)
    assert epsilon([charge] * room, 1e-3) <= 1 < epsilon([charge] * (room + 1), 1e-3)
    for serial in range(room):
        assert ledger.spend(charge) == serial
    with pytest.raises(PrivacyError, match="would exceed"):
        ledger.spend(charge)
    said = ledger.statement()
    assert said.epsilon == ledger.epsilon() <= 1 and said.rho == pytest.approx(room / 8)


def test_a_resumed_run_pays_for_the_rounds_that_it_repeats_with_fresh_noise(tmp_path: Path) -> None:
    mechanism = Mechanism("laplace", 1.0, 10.0)

    def released(ledger: Ledger) -> torch.Tensor:
        return mechanisms.noise(mechanism, 4, mechanisms.source(7, ledger.spend(LAPLACE), mechanism, 4))

    first = [released(Ledger(tmp_path, PURE)) for _ in range(3)]
    ledger = Ledger(tmp_path, PURE, released=1)  # the state of round 1 is what was saved
    again = released(ledger)
    assert len(ledger) == 4 and ledger.epsilon() == pytest.approx(0.4)
    assert not any(torch.isclose(again, old).any() for old in first)
    assert torch.equal(again, mechanisms.noise(mechanism, 4, mechanisms.source(7, 3, mechanism, 4)))


def test_what_cannot_be_written_is_not_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path, PURE)
    ledger.spend(LAPLACE)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results_folder, "write_synced", full)
    with pytest.raises(CheckpointError, match="No space left"):
        ledger.spend(LAPLACE)
    assert len(ledger) == len(Ledger(tmp_path, PURE)) == 1
    monkeypatch.undo()
    assert ledger.spend(LAPLACE) == 1


def test_the_smallest_delta_stays_with_what_was_spent(tmp_path: Path) -> None:
    charge = Charge("gaussian", 5.0, 4, Cohorts(8))
    Ledger(tmp_path, Budget(2.0, 0.0125)).spend(charge)
    fewer = Ledger(tmp_path, Budget(2.0, 0.0333))
    assert fewer.budget == Budget(2.0, 0.0125) and fewer.statement().delta == 0.0125
    assert fewer.epsilon() == epsilon([charge], 0.0125) > epsilon([charge], 0.0333)
    fewer.spend(charge)
    assert Ledger(tmp_path, Budget(2.0, 0.0333)).budget.delta == 0.0125
    Ledger(tmp_path, Budget(2.0, 0.001)).spend(charge)
    assert Ledger(tmp_path, Budget(2.0, 0.0125)).budget.delta == 0.001
    forged = fewer.path.read_bytes().replace(b'"delta": 0.001', b'"delta": 0.01')
    assert forged != fewer.path.read_bytes()
    fewer.path.write_bytes(forged)
    with pytest.raises(PrivacyError, match="is damaged"):
        Ledger(tmp_path, PURE)


def test_what_was_spent_is_never_said_to_be_less(tmp_path: Path) -> None:
    budget, charge = Budget(2.0, 1 / 30), Charge("gaussian", 5.0, 4, Cohorts(3))
    ledger = Ledger(tmp_path, budget)
    with pytest.raises(PrivacyError, match="one more release would") as caught:
        while True:
            ledger.spend(charge)
    said = re.search(r"\(2, (\S+)\); \d+ releases have spent epsilon = (\S+)", str(caught.value))
    assert said is not None and said[1] == "0.03334"
    assert ledger.epsilon() <= float(said[2]) <= ledger.epsilon() * 1.001


@pytest.mark.slow
def test_a_kill_between_ledger_and_release_counts_the_release(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pacbayes_fl.privacy.accounting import Budget
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.ledger import OUTSIDE, Ledger, file_of, to_release
from pacbayes_fl.privacy.mechanisms import Cohorts
ledger, charge = Ledger({str(tmp_path)!r}, Budget(1.0, 0.0)), Charge("laplace", 10.0, 4, Cohorts(100))
ledger.spend(charge), ledger.spend(charge)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, cwd=Path(__file__).parents[2], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    ledger = Ledger(tmp_path, PURE, released=1)
    assert len(ledger) == 2 and ledger.epsilon() == pytest.approx(0.2)


@pytest.mark.slow
def test_no_kill_at_any_moment_loses_a_payment(tmp_path: Path) -> None:
    budget, paid = Budget(1e9, 0.0), 0
    reader, report = os.pipe()
    for attempt in range(12):
        child = os.fork()
        if child == 0:
            try:
                ledger = Ledger(tmp_path, budget, paid)
                while True:
                    os.write(report, struct.pack("q", ledger.spend(LAPLACE) + 1))  # what the world has seen
            finally:
                os._exit(1)
        told = os.read(reader, 8)
        time.sleep(0.002 * (attempt % 5) + 0.0003 * attempt)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.set_blocking(reader, False)
        try:
            told += os.read(reader, 1 << 20)
        except BlockingIOError:
            pass
        os.set_blocking(reader, True)
        seen = struct.unpack("q", told[-8:])[0]
        assert seen > paid
        paid = len(Ledger(tmp_path, budget, seen))
        assert paid in (seen, seen + 1)
    os.close(reader)
    os.close(report)


def test_a_damaged_ledger_is_never_taken_for_an_empty_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, PURE)
    for _ in range(3):
        ledger.spend(LAPLACE)
    good = ledger.path.read_bytes()
    forged = json.loads(good)
    forged["releases"][0]["count"] = 1
    for bad in (b"", b"\xff\xfe", b"[]", b"{}", good[:-9], json.dumps(forged).encode()):
        ledger.path.write_bytes(bad)
        with pytest.raises(PrivacyError, match="what was spent is not known"):
            Ledger(tmp_path, PURE)
    ledger.path.write_bytes(good)
    assert len(Ledger(tmp_path, PURE, released=3)) == 3
    with pytest.raises(PrivacyError, match="knows of 3 releases, the run of 4"):
        Ledger(tmp_path, PURE, released=4)
    ledger.path.unlink()
    with pytest.raises(PrivacyError, match="knows of 0 releases, the run of 3"):
        Ledger(tmp_path, PURE, released=3)


def test_a_ledger_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pacbayes_fl.privacy.ledger.FORMAT_VERSION", 2)
    Ledger(tmp_path, PURE).spend(LAPLACE)
    monkeypatch.undo()
    with pytest.raises(PrivacyError, match=r"ledger format 2, this pacbayes_fl reads 1 \(update pacbayes_fl\)"):
        Ledger(tmp_path, PURE)


MEAN = {"w.loc": torch.tensor([[1.5, -2.0]], dtype=torch.float64), "w.scale": torch.ones(1, 3)}


def paid(folder: Path, count: int) -> Ledger:
    """Return a ledger with releases that are kept, the last of round `count`."""
    ledger = Ledger(folder, PURE, simulated=False)
    for round in range(1, count + 1):
        ledger.invite([7, round])
        ledger.spend(LAPLACE, round, MEAN)
    return ledger


def test_the_newest_release_is_kept_for_a_state_that_has_not_seen_it(tmp_path: Path) -> None:
    assert paid(tmp_path, 3).kept(3) is None  # who pays goes on with it
    for seen, expected in ((0, True), (2, True), (3, False)):
        ledger = Ledger(tmp_path, PURE, released=seen)
        kept = ledger.kept(3)
        assert (kept is not None) == expected and ledger.kept(2) is None and ledger.kept(4) is None
    ledger = Ledger(tmp_path, PURE, released=2)
    kept = ledger.kept(3)
    assert kept is not None and (kept.serial, kept.round, kept.charge, kept.cohort) == (2, 3, LAPLACE, (7, 3))
    assert kept.mean.keys() == MEAN.keys() and all(torch.equal(kept.mean[name], MEAN[name]) for name in MEAN)
    ledger.take(kept)
    assert ledger.kept(3) is None and len(ledger) == 3


def test_a_release_counts_before_the_ledger_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paid(tmp_path, 2)
    ledger = Ledger(tmp_path, PURE, released=2)

    real = manifest.write_atomic

    def full(path: Path, data: bytes) -> None:
        if path.name == "privacy.json":
            raise CheckpointError("no space left")
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write_atomic", full)
        with pytest.raises(CheckpointError):
            ledger.spend(LAPLACE, 3, MEAN)
    assert json.loads(ledger.path.read_text())["releases"][0]["count"] == 2
    again = Ledger(tmp_path, PURE, released=2)
    assert len(again) == len(ledger) == 3 and again.kept(3) is not None and ledger.kept(3) is not None
    assert again.spend(LAPLACE, 4, MEAN) == 3 and len(Ledger(tmp_path, PURE)) == 4


@pytest.mark.parametrize("released", [0, 1])
def test_a_damaged_release_counts_and_is_not_used(tmp_path: Path, released: int) -> None:
    ledger = paid(tmp_path, 1)
    path = tmp_path / "release.safetensors"
    good = path.read_bytes()
    for at in range(0, len(good), 7):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.warns(UserWarning, match="counted as one more release, and its round is paid for again"):
            again = Ledger(tmp_path, PURE, released)
        assert len(again) == 2 and again.kept(1) is None
    path.write_bytes(good[:-3])
    ledger.path.unlink()
    with pytest.raises(PrivacyError, match="what was spent is not known"):
        Ledger(tmp_path, PURE)


def test_an_older_ledger_beside_a_newer_release_is_refused(tmp_path: Path) -> None:
    paid(tmp_path, 1)
    early = (tmp_path / "privacy.json").read_bytes()
    for round in (2, 3):
        Ledger(tmp_path, PURE).spend(LAPLACE, round, MEAN)
    (tmp_path / "privacy.json").write_bytes(early)
    with pytest.raises(PrivacyError, match="knows of 1 releases, the run of 3"):
        Ledger(tmp_path, PURE)


def test_what_is_secret_and_what_is_simulated_do_not_mix(tmp_path: Path) -> None:
    paid(tmp_path, 1)
    assert json.loads((tmp_path / "privacy.json").read_text())["randomness"] == "system"
    with pytest.raises(PrivacyError, match="randomness is of the system"):
        Ledger(tmp_path, PURE, simulated=True)
    assert not Ledger(tmp_path, PURE).simulated
    seeded = Ledger(tmp_path / "seeded", PURE, simulated=True)
    (tmp_path / "seeded").mkdir()
    while seeded.room(LAPLACE):
        seeded.spend(LAPLACE)
    with pytest.raises(PrivacyError, match=r"exceed \(epsilon_if_noise_were_secret, .*spent epsilon_if_noise_were"):
        seeded.spend(LAPLACE)
    assert Ledger(tmp_path / "seeded", PURE).simulated
    assert str(seeded.statement()) == "epsilon_if_noise_were_secret = 1 at delta = 0"


@pytest.mark.parametrize("message", ["round", *OUTSIDE[:1]])
def test_a_release_that_a_kill_left_out_of_the_count_is_counted_by_all_who_read_it(
    message: str, tmp_path: Path
) -> None:
    """The mean is on disk before the count: whoever takes it up writes the count, and whoever copies it has it."""
    charge, mean = replace(LAPLACE, message=message), {"leaf": torch.zeros(1, 4, dtype=torch.float64)}
    ledger = Ledger(tmp_path, PURE)
    ledger.spend(LAPLACE, 1, {"leaf": torch.zeros(1, 4, dtype=torch.float64)})
    short = ledger.path.read_bytes()
    ledger.spend(charge, 2, mean, about="rows")
    whole = to_release(ledger.path)
    ledger.path.write_bytes(short)  # as a kill between both files leaves it
    assert to_release(ledger.path) == whole and ledger.path.read_bytes() == short
    again = Ledger(tmp_path, PURE, released=1)
    kept = again.kept(2) if message == "round" else again.outside(message, "rows")
    assert kept is not None and len(again) == 2
    again.take(kept)
    assert to_release(ledger.path) == whole and ledger.path.read_bytes() != short
    (tmp_path / file_of(message)).unlink()
    assert len(Ledger(tmp_path, PURE)) == 2
