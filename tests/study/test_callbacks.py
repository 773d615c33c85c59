"""What programs do after every round: they are told all of them once, stop where they say so, and write what was."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.errors import PacBayesFLError, PrivacyError, StudyError
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.callbacks import Callback, EarlyStop, RoundLog, TensorBoard, check
from pacbayes_fl.study.run import open_run, run
from tests.tiny import tiny

CHEAP = ("federation.rounds=4", "federation.checkpoint_every=10", "report.evaluate_every=1")


class Listen(Callback):
    """Keeps what it is told, and stops after a round."""

    def __init__(self, last: int | None = None) -> None:
        self.last, self.past, self.rounds, self.values = last, list[int](), list[int](), list[Any]()

    def on_start(self, past: Sequence[RoundRecord]) -> None:
        self.past = [record.round for record in past]

    def on_round(self, record: RoundRecord) -> bool:
        self.rounds.append(record.round)
        self.values.append(dict(record.values))
        return record.round == self.last


def records(*values: float, name: str = "loss") -> list[RoundRecord]:
    return [RoundRecord(k + 1, 3, values={name: value}) for k, value in enumerate(values)]


def stopped(stop: EarlyStop, past: Sequence[RoundRecord]) -> int | None:
    """Return the round at which it stops."""
    return next((record.round for record in past if stop.on_round(record)), None)


def test_a_run_that_is_stopped_is_that_of_as_many_rounds(tmp_path: Path) -> None:
    """Bit by bit: its scores, its state, and what its folder says; and every callback is told of every round."""
    first, other = Listen(2), Listen()
    result = run(tiny(*CHEAP), tmp_path / "run", callbacks=[first, other])
    expected = run(tiny(*CHEAP, "federation.rounds=2"))
    assert [row.metrics for row in result.clients] == [row.metrics for row in expected.clients]
    assert first.rounds == other.rounds == [1, 2] and first.past == []
    assert other.values[-1]["rsmse"] == expected.rounds[-1].values["rsmse"], "with the scores of its round"
    assert result.labels["ended"] == "after round 2 of 4 by Listen" and "ended" not in expected.labels
    assert open_run(tmp_path / "run").round == 2
    again = Listen()
    assert run(tiny(*CHEAP), tmp_path / "run", resume=True, callbacks=[again]).rounds[-1].round == 4
    assert (again.past, again.rounds) == ([1, 2], [3, 4])


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ((5.0, 4.0, 3.0, 2.0), {"patience": 1}, None),
        ((5.0, 4.0, 4.0, 4.0, 3.0), {"patience": 2}, 4),
        ((5.0, 4.0, 4.5, 3.0, 3.5, 3.1), {"patience": 2}, 6),
        ((5.0, 4.9, 4.8, 4.7), {"patience": 2, "min_delta": 0.5}, 3),
        ((5.0, 4.4, 4.3), {"patience": 1, "min_delta": 0.5}, 3),
        ((float("nan"), 3.0, float("nan"), float("nan")), {"patience": 2}, 4),
        ((float("nan"), float("nan"), 3.0), {"patience": 2}, 2),
    ],
)
def test_it_stops_after_rounds_without_gain(
    values: tuple[float, ...], options: dict[str, Any], expected: int | None
) -> None:
    assert stopped(EarlyStop(**options), records(*values)) == expected
    mirrored = records(*(-value for value in values), name="log_evidence")
    assert stopped(EarlyStop(**options), mirrored) == expected, "an evidence is the better the larger it is"
    asked = EarlyStop(**options, monitor="mine", better="higher")
    assert stopped(asked, records(*(-value for value in values), name="mine")) == expected


def test_rounds_without_the_number_do_not_count_and_a_run_that_goes_on_counts_on() -> None:
    stop = EarlyStop(patience=2, monitor="rsmse")
    scored = [RoundRecord(k + 1, 3, values={"rsmse": 1.0} if k % 2 else {"loss": 1.0}) for k in range(6)]
    assert stopped(stop, scored) == 6
    stop.on_start(scored[:4])
    assert stopped(stop, scored[4:]) == 6
    stop.on_start(())
    assert stopped(stop, scored[4:]) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"min_delta": -1.0}, "min_delta must be at least 0 and finite, got -1"),
        ({"better": "more"}, "better must be 'lower' or 'higher', got 'more'"),
        ({"monitor": "seconds"}, "not known whether 'seconds' is better lower or higher"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        EarlyStop(**options)


def test_names_of_scores_have_a_direction_also_behind_a_model_and_a_part() -> None:
    for name, better in (("rsmse", "lower"), ("pm.accuracy", "higher"), ("validation.gm.accuracy", "higher")):
        values = records(1.0, 2.0, name=name) if better == "lower" else records(2.0, 1.0, name=name)
        assert stopped(EarlyStop(1, monitor=name), values) == 2


def test_without_an_objective_a_number_has_to_be_named() -> None:
    with pytest.raises(StudyError, match=r"record no objective, but seconds .set monitor"):
        EarlyStop().on_round(RoundRecord(1, 3, values={"seconds": 1.0}))


@pytest.mark.parametrize("wrong", [print, EarlyStop, 3])
def test_other_objects_are_refused_before_anything_is_trained(wrong: Any) -> None:
    check([EarlyStop()])
    with pytest.raises(StudyError, match="callbacks must be objects with on_start and on_round"):
        run(tiny(*CHEAP), callbacks=[wrong])


def test_a_private_run_does_not_end_by_what_its_clients_hold(tmp_path: Path) -> None:
    private = tiny("federation.rounds=2", "privacy.epsilon=5", "privacy.randomness=simulation")
    listen = Listen()
    with pytest.warns(UserWarning):
        run(private, tmp_path / "run", callbacks=[listen])
    assert listen.rounds == [1, 2]
    with pytest.warns(UserWarning), pytest.raises(PrivacyError, match=r"federation.rounds would be chosen"):
        run(private, tmp_path / "other", callbacks=[Listen(1)])


def test_tensorboard_shows_what_was_recorded(tmp_path: Path) -> None:
    """Read back by TensorBoard itself; rounds that are played again hide what was written of them before."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = run(tiny(*CHEAP, "federation.rounds=2"), callbacks=[TensorBoard(tmp_path)])
    again = TensorBoard(tmp_path)
    again.on_start(result.rounds[:1])
    again.on_round(RoundRecord(2, 3, values={"pm.accuracy": 0.25}))
    events = reader.EventAccumulator(str(tmp_path))
    events.Reload()
    found = [(one.step, one.value) for one in events.Scalars("log_evidence")]
    assert found == [(1, pytest.approx(result.rounds[0].values["log_evidence"], rel=1e-6))]
    assert [(one.step, one.value) for one in events.Scalars("pm/accuracy")] == [(2, 0.25)]
    assert [one.value for one in events.Scalars("clients")] == [4, 3]


def test_without_tensorboard_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(PacBayesFLError, match=r"pip install 'pacbayes_fl\[tensorboard\]'"):
        TensorBoard(tmp_path)


def test_rounds_are_logged_as_the_run_folder_has_them_also_when_a_run_goes_on(tmp_path: Path) -> None:
    logs = [RoundLog(tmp_path / "log.jsonl"), RoundLog(tmp_path / "log.csv")]
    run(tiny(*CHEAP), tmp_path / "run", callbacks=[*logs, Listen(last=2)])
    (tmp_path / "log.csv").write_text("half a round", encoding="utf-8")
    result = run(tiny(*CHEAP), tmp_path / "run", resume=True, callbacks=logs)
    assert logs[0].path.read_text("utf-8") == (tmp_path / "run" / "rounds.jsonl").read_text("utf-8")
    lines = [line.split(",") for line in logs[1].path.read_text("utf-8").splitlines()]
    assert lines[0] == ["round", "name", "value"]
    values = {(int(number), name): float(value) for number, name, value in lines[1:]}
    assert values == {
        (one.round, name): value
        for one in result.rounds
        for name, value in {"clients": one.clients, "dropped": 0, **one.values}.items()
    }


def test_a_log_of_another_ending_is_refused() -> None:
    with pytest.raises(StudyError, match=r"\.jsonl or \.csv, got log\.txt"):
        RoundLog("log.txt")
