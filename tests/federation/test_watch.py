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
    first = Watch().after(("a", "b", "c"), ("a", "b"), {"c": 1.0})
    assert first == Watch({"a": 1, "b": 1}, Steps(1.0, 1.0, "c"), 0, (1.0,), 1.0)
    assert first.after(("a", "c"), ("a",), {}) == Watch({"a": 2, "b": 1}, None, 0, (1.0,), 1.0)
    assert first.after(("a", "b"), (), {"b": 2.0}).failures == {}
    assert first._replace(halved=2).after(("a",), (), {}).halved == 2
    assert Watch().failures == {}, "a memory is never changed"


def test_median_norms_are_remembered_for_as_long_as_they_count() -> None:
    watch = Watch()
    for t in range(25):
        watch = watch.after(("a", "b"), (), {"a": float(t), "b": float(t) + 1.0} if t != 20 else {})
    assert watch.medians == tuple(t + 0.5 for t in range(25) if t != 20)[-WINDOW:]
    assert watch.usual == 24.5
    assert watch.after(("a", "b"), (), {"a": 0.0, "b": 1e-9}).usual == 24.5, "steps that come to rest are as usual"


def test_a_client_that_steers_alone_is_counted_in_the_rounds_that_it_is_in() -> None:
    def seen(watch: Watch, *rounds: tuple[str, str | None]) -> tuple[str | None, int]:
        for present, alone in rounds:
            watch = watch.after(present, (), dict.fromkeys(present, 1.0), alone)
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
    for watch in (Watch(), Watch({"house [1]": 2}, Steps(0.1, 1e300, "x"), 3, (0.1, 1 / 3, 5e-324), 1 / 3, "x", 2)):
        assert Watch.from_saved(json.loads(json.dumps(watch.to_save()))) == watch
    assert Watch.from_saved({}) == Watch()
