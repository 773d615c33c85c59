"""Runs that differ in nothing but their seed are one, and others are told apart by what was asked of them."""

from __future__ import annotations

import pytest

from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.grouping import by_settings, differing, distinct
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.run_settings import LABEL

pytestmark = pytest.mark.filterwarnings("error")


def result(seed: int = 0, *, score: float | None = None, method: str = "m", study: str = "s", **own: object) -> Result:
    rows = (ClientRow(0, "a", "existing", 3, {"rsmse": seed / 8 if score is None else score}),)
    settings = {"method.name": method, **{key.replace("__", "."): value for key, value in own.items()}}
    return Result(study, method, seed, "regression", clients=rows, labels={LABEL: settings})


def seeds(results: list[Result], **options: object) -> dict[str, list[int]]:
    return {name: [one.seed for one in same] for name, same in by_settings(results, **options).items()}  # type: ignore[arg-type]


def test_seeds_are_pooled_and_other_settings_are_not() -> None:
    runs = [result(n, federation__rounds=10, method__rate=0.01) for n in (0, 1)]
    runs += [result(n, federation__rounds=60, method__rate=rate) for n, rate in ((2, 0.01), (0, 1e-4))]
    names = {"m, rounds=10, rate=0.01": [0, 1], "m, rounds=60, rate=0.01": [2], "m, rounds=60, rate=0.0001": [0]}
    assert seeds(runs) == names
    assert seeds(runs, separator="; ").keys() == {name.replace(", ", "; ") for name in names}
    assert seeds(runs, without=["method.rate"]) == {"m, rounds=10": [0, 1], "m, rounds=60": [2, 0]}
    assert seeds(runs[:2]) == {"m": [0, 1]} and differing(runs) == ["federation.rounds", "method.rate"]
    assert seeds([result(0, data__options__seed=1), result(0, data__options__seed=2)]).keys() == {
        "m, options.seed=1",
        "m, options.seed=2",
    }
    assert seeds([result(study="s"), result(study="t")]) == {"m, s": [0], "m, t": [0]}


def test_a_setting_that_only_a_later_version_has_parts_no_seeds() -> None:
    assert seeds([result(0, method__rate=1.0), result(1, method__rate=1.0, method__later="none")]) == {"m": [0, 1]}


def test_of_many_settings_few_are_named_and_the_others_counted() -> None:
    first, second = ({f"method__o{n}": n * k for n in range(1, 6)} for k in (1, 2))
    paper = [result(method__preset="recommended", **first), result(method__preset="paper", **second)]  # type: ignore[arg-type]
    assert [*seeds(paper)] == ["m, preset=recommended, 5 more differ", "m, preset=paper, 5 more differ"]
    files = [result(data__source=f"/data/{k}/rows.csv") for k in "ab"]
    assert [*seeds(files)] == ["m, source=rows.csv", "m, source=rows.csv (2)"]


def test_what_a_comparison_varied_is_in_the_name_already() -> None:
    runs = []
    for value in (1, 2):
        one = result(method__rate=value)
        about = {"key": "method.rate", "value": value, "method": "m"}
        runs.append(
            Result("s", f"m rate={value}", 0, "regression", (), one.clients, {}, {**one.labels, "varied": about})
        )
    assert [*seeds(runs)] == ["m rate=1", "m rate=2"]
    assert [*seeds(runs, without=["method.rate"])] == ["m"]


def test_a_run_that_is_there_twice_counts_once() -> None:
    one, again, other = result(score=0.5), result(score=0.5), result(score=0.6)
    with pytest.warns(UserWarning, match="there twice, and counted once: m on s, seed 0$"):
        assert distinct([one, again, one, other]) == [one, other]
    assert distinct([one, result(score=0.5, method__rate=2.0), result(1, score=0.5)])[2].seed == 1
