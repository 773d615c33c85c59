"""Options of parts in one table, and back."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, get_args, get_type_hints

import pytest

from pacbayes_fl import settings
from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods.options import Paper, built, flat_options, part, table_of, with_word
from pacbayes_fl.options import check, option, options_of


class Rule(Protocol):
    """What only a program can make."""

    def choose(self) -> int: ...


@dataclass(frozen=True)
class Steps:
    """Steps.

    Args:
        count: how many.
        rate: of each.
        kind: of step.
    """

    count: int | None = option(20, low=1, symbol="R")
    rate: float = option(0.1, above=0)
    kind: Literal["short", "long"] = "short"

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


@dataclass(frozen=True)
class Whole:
    """A method.

    Args:
        model: no option.
        first: its first steps.
        second: its second steps.
        rule: a name, or a rule.
        rate: its own.
    """

    model: str
    first: Steps = part(Steps, paper={"rate": Paper(0.2, "Table 1")})
    second: Steps = part(partial(Steps, count=3), names={"count": "second_count"}, others=False)
    rule: Literal["a", "b"] | Rule = option("a", paper=Paper(..., "in words"))
    own_rate: float = option(0.5, above=0, below=1)


def test_options_of_parts_are_options_of_the_whole_with_the_defaults_that_they_have_in_it() -> None:
    result = flat_options(Whole)
    assert [(path, one.name, one.default) for path, one in result.items()] == [
        ("first.count", "count", 20),
        ("first.rate", "rate", 0.1),
        ("first.kind", "kind", "short"),
        ("second.count", "second_count", 3),
        ("rule", "rule", "a"),
        ("own_rate", "own_rate", 0.5),
    ]
    assert result["first.rate"].paper == Paper(0.2, "Table 1") and result["second.count"].symbol == "R"
    assert result["first.rate"].meaning == "of each." and result["rule"].kind == Literal["a", "b"]
    given = flat_options(Whole, {"first": Steps(7, rate=0.3), "own_rate": 0.25})
    assert [one.default for one in given.values()] == [7, 0.3, "short", 3, "a", 0.25]


def test_two_options_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class Twice(Whole):
        third: Steps = part(Steps)

    with pytest.raises(ValueError, match=r"Twice has two options 'count': rename one of them in part\(names=...\)"):
        flat_options(Twice)


@pytest.mark.parametrize(
    "values", [{}, {"count": None}, {"count": 4, "second_count": 9, "kind": "long"}, {"rule": "b", "own_rate": 0.1}]
)
def test_a_whole_is_built_of_its_options_and_read_back(values: dict[str, Any]) -> None:
    whole = built(Whole, values, {}, {"model": "m", "features": ()})
    assert whole.model == "m"
    result = {one.name: value for path, one in flat_options(Whole).items() for value in [at(whole, path)]}
    usual = {one.name: one.default for one in flat_options(Whole).values()}
    assert result == usual | values


def at(whole: Any, path: str) -> Any:
    for name in path.split("."):
        whole = getattr(whole, name)
    return whole


def test_what_is_given_stands_in_for_defaults_and_options_for_both() -> None:
    given = {"first": Steps(7), "own_rate": 0.25}
    whole = built(Whole, {"rate": 0.4}, given, {"model": "m"})
    assert (whole.first, whole.own_rate) == (Steps(7, 0.4), 0.25)
    assert built(Whole, {"own_rate": 0.75}, given, {"model": "m"}).own_rate == 0.75


def test_a_table_reads_and_checks_options_and_tells_all_of_them() -> None:
    table = table_of("Options", flat_options(Whole), "Options of a test.")
    assert settings.parse(table, {"count": "none", "own_rate": 0.9}, "x") == table(count=None, own_rate=0.9)
    with pytest.raises(StudyError, match="own_rate must be strictly between 0 and 1, got 1"):
        settings.parse(table, {"own_rate": 1}, "x")
    with pytest.raises(StudyError, match="kind must be one of 'short', 'long', got 'wide'"):
        table(kind="wide")
    with pytest.raises(dataclasses.FrozenInstanceError):
        table().rate = 1.0
    told, known = options_of(table), {one.name: one for one in flat_options(Whole).values()}
    assert told.keys() == known.keys()
    for name, one in told.items():
        assert (one.meaning, one.range, one.symbol, one.paper) == (
            known[name].meaning,
            known[name].range,
            known[name].symbol,
            known[name].paper,
        )


def test_a_word_joins_those_that_there_are() -> None:
    assert with_word(float, "open") == float | Literal["open"]
    assert with_word(float | Literal["round"], "open") == float | Literal["round", "open"]
    assert set(get_args(with_word(int | None, "open"))) == {int, type(None), Literal["open"]}
    assert get_type_hints(table_of("T", flat_options(Steps), "x"))["kind"] == Literal["short", "long"]
