"""What is remembered of a round."""

from __future__ import annotations

import json

from pacbayes_fl.federation.watch import Watch, summary
from pacbayes_fl.results.rounds import Steps
from pacbayes_fl.server.robust import WINDOW


def test_a_summary_says_how_long_and_whose() -> None:
    assert summary({}) is None
    assert summary({"a": 2.0}) == Steps(2.0, 2.0, "a")
    assert summary({"a": 1.0, "b": 8.0, "c": 2.0, "d": 3.0}) == Steps(2.5, 8.0, "b")
    assert summary({"b": 8.0, "a": 8.0}) == summary({"a": 8.0, "b": 8.0}) == Steps(8.0, 8.0, "a")


def test_failures_are_counted_in_a_row_and_only_of_those_who_were_asked() -> None:
    first = Watch().after(4, ("a", "b", "c"), ("a", "b"), {"c": 1.0})
    assert first == Watch({"a": 1, "b": 1}, Steps(1.0, 1.0, "c"), 0, (1.0,), 1.0, since={"a": 4, "b": 4})
    assert first.after(5, ("a", "c"), ("a",), {}) == first._replace(failures={"a": 2, "b": 1}, steps=None)
    held = first.after(5, ("a",), (), {"a": 2.0})
    assert held.failures == {"b": 1} and held.since == {"b": 4}
    assert held.after(6, ("a", "b"), ("a",), {"b": 2.0}).since == {"a": 6}
    assert first._replace(halved=2).after(5, ("a",), (), {}).halved == 2
    assert Watch().failures == {}, "a memory is never changed"


def test_of_a_private_round_nothing_is_remembered_but_whose_answer_did_not_count() -> None:
    watch = Watch(halved=1)
    for t, answers in enumerate(({"a": True, "b": False}, {"a": False, "b": False}, {"a": True}), 1):
        watch = watch.counted(t, answers)
    assert watch == Watch(halved=1, since={"b": 1})
    assert watch.counted(4, {"b": True}) == Watch(halved=1)


def test_a_clip_that_adapts_is_saved_to_the_last_bit_and_others_leave_nothing() -> None:
    clip = 0.1 + 0.2
    saved = json.loads(json.dumps(Watch(clip=clip).to_save()))
    assert Watch.from_saved(saved).clip == clip and Watch.from_saved(saved).counted(1, {"a": True}).clip == clip
    assert "clip" not in Watch().to_save() and Watch.from_saved(Watch().to_save()) == Watch()


def test_median_norms_are_remembered_for_as_long_as_they_count() -> None:
    watch = Watch()
    for t in range(25):
        watch = watch.after(t + 1, ("a", "b"), (), {"a": float(t), "b": float(t) + 1.0} if t != 20 else {})
    assert watch.medians == tuple(t + 0.5 for t in range(25) if t != 20)[-WINDOW:]
    assert watch.usual == 24.5
    assert watch.after(26, ("a", "b"), (), {"a": 0.0, "b": 1e-9}).usual == 24.5, "steps that come to rest are as usual"


def test_a_client_that_steers_alone_is_counted_in_the_rounds_that_it_is_in() -> None:
    def seen(watch: Watch, *rounds: tuple[str, str | None]) -> tuple[str | None, int]:
        for t, (present, alone) in enumerate(rounds, 1):
            watch = watch.after(t, present, (), dict.fromkeys(present, 1.0), alone)
        return watch.alone, watch.times

    assert seen(Watch(), ("abc", "a"), ("abc", "a")) == ("a", 2)
    assert seen(Watch(), ("abc", "a"), ("bcd", None), ("abc", "a")) == ("a", 2), "it was not asked"
    assert seen(Watch(), ("abc", "a"), ("abc", None), ("abc", "a")) == ("a", 1)
    assert seen(Watch(), ("abc", "a"), ("abc", "b")) == ("b", 1)
    assert seen(Watch(), ("abc", "a"), ("abc", None)) == (
        None,
        0,
    )


def test_what_is_remembered_survives_as_json() -> None:
    some = Watch({"house [1]": 2}, Steps(0.1, 1e300, "x"), 3, (0.1, 1 / 3, 5e-324), 1 / 3, "x", 2, {"house [1]": 7})
    for watch in (Watch(), some):
        assert Watch.from_saved(json.loads(json.dumps(watch.to_save()))) == watch
    assert Watch.from_saved({}) == Watch()
