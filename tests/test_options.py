"""Options: what a field says of itself, ranges in words and in deed, and meanings out of docstrings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacbayes_fl import options
from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.options import Range, option


@dataclass(frozen=True)
class Base:
    """Some steps.

    Args:
        steps: how many,
            whatever happens: at least one.
        rate: of a step.
    """

    steps: int = option(20, low=1, symbol="T", paper=10)
    rate: float = option(1e-3, above=0)


@dataclass(frozen=True)
class Steps(Base):
    """More steps: a sentence with a colon.

    Args:
        rate: of a step in the
            paper's units.
        share, rest: of the rows.

    Raises:
        StudyError: never: this is no argument.
    """

    rate: float = option(0.5, above=0)
    share: float = option(0.5, above=0, below=1, hint="take half")
    rest: float | None = option(None, low=0, below=1)
    kind: str = option("a", names=lambda: ("a", "b"))
    mode: Literal["fast", "slow"] | None = None
    widths: tuple[int, ...] = option((3,), low=1)
    table: Mapping[str, Any] = option(factory=dict)
    needed: int = dataclasses.field(kw_only=True, default=1)
    flag: bool = option(True, metadata={"other": 3})


def test_a_field_says_everything_of_its_option() -> None:
    known = options.options_of(Steps)
    assert list(known) == [field.name for field in dataclasses.fields(Steps)]
    steps = known["steps"]
    assert (steps.default, steps.symbol, steps.paper, steps.range) == (20, "T", 10, Range(low=1))
    assert (known["rate"].default, known["share"].hint, known["table"].default) == (0.5, "take half", {})
    assert (known["kind"].names, known["mode"].names, known["rest"].names) == (("a", "b"), ("fast", "slow"), ())
    assert Steps.__dataclass_fields__["flag"].metadata["other"] == 3


def test_meanings_are_those_of_the_docstrings_and_of_nothing_else_in_them() -> None:
    assert options.meanings(Steps) == {
        "steps": "how many, whatever happens: at least one.",
        "rate": "of a step in the paper's units.",
        "share": "of the rows.",
        "rest": "of the rows.",
    }
    assert options.options_of(Base)["rate"].meaning == "of a step."
    assert options.options_of(Steps)["kind"].meaning == ""


def test_what_a_value_may_be_is_said_in_words() -> None:
    said = {name: one.allowed for name, one in options.options_of(Steps).items()}
    assert said == {
        "steps": "a whole number (at least 1)",
        "rate": "a number (positive and finite)",
        "share": "a number (strictly between 0 and 1)",
        "rest": "a number (at least 0 and below 1) or 'none'",
        "kind": "'a' or 'b'",
        "mode": "'fast' or 'slow' or 'none'",
        "widths": "a list of whole numbers (at least 1)",
        "table": "a table",
        "needed": "a whole number",
        "flag": "true or false",
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "[x] steps must be at least 1, got 0 (the default is x.steps = 20)"),
        ({"rate": 0.0}, "[x] rate must be positive and finite, got 0 (the default is x.rate = 0.5)"),
        ({"rate": math.inf}, "[x] rate must be positive and finite, got inf (the default is x.rate = 0.5)"),
        ({"rate": math.nan}, "[x] rate must be positive and finite, got nan (the default is x.rate = 0.5)"),
        ({"share": 1.0}, "[x] share must be strictly between 0 and 1, got 1 (take half)"),
        ({"rest": 1.0}, "[x] rest must be at least 0 and below 1, got 1 (leave x.rest out)"),
        ({"kind": "c"}, "[x] kind must be one of 'a', 'b', got 'c'"),
        ({"widths": (3, 0)}, "[x] widths must be at least 1, got 3, 0 (the default is x.widths = [3])"),
    ],
)
def test_a_value_out_of_range_is_refused(values: dict[str, Any], message: str) -> None:
    options.check(Steps(), "[x]")
    with pytest.raises(StudyError) as caught:
        options.check(Steps(**values), "[x]")
    assert str(caught.value) == message
    with pytest.raises(PrivacyError) as other:
        options.check(Steps(**values), error=PrivacyError)
    assert str(other.value) == message.removeprefix("[x] ").replace(" x.", " ")


@given(st.floats(allow_nan=True) | st.integers(-5, 5), st.lists(st.none() | st.integers(-2, 2), min_size=4, max_size=4))
def test_a_range_holds_what_every_one_of_its_bounds_lets_pass(number: float, ends: list[int | None]) -> None:
    low, high, above, below = ends
    passed = [
        math.isfinite(number),
        low is None or number >= low,
        high is None or number <= high,
        above is None or number > above,
        below is None or number < below,
    ]
    assert Range(low, high, above, below).holds(number) == (all(passed) or ends == [None] * 4)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Range(), "any number"),
        (Range(low=1), "at least 1"),
        (Range(high=3), "at most 3"),
        (Range(above=0), "positive and finite"),
        (Range(above=2), "above 2"),
        (Range(low=0, high=1), "from 0 to 1"),
        (Range(low=0, below=1), "at least 0 and below 1"),
        (Range(above=0, high=1), "above 0 and at most 1"),
        (Range(above=0, below=1), "strictly between 0 and 1"),
        (Range(above=0, high=math.inf), "above 0"),
        (Range(low=1, high=math.inf), "at least 1"),
    ],
)
def test_a_range_in_words(bounds: Range, words: str) -> None:
    assert str(bounds) == words


def test_infinity_is_in_a_range_that_says_so() -> None:
    assert Range(above=0, high=math.inf).holds(math.inf) and not Range(above=0).holds(math.inf)
    assert not Range(low=0, high=math.inf).holds(math.nan)


def test_records_stand_under_their_names_and_stay() -> None:
    made = options.by_name(Named("b"), Named("a"))
    assert list(made.items()) == [("b", Named("b")), ("a", Named("a"))]
    with pytest.raises(TypeError):
        made["c"] = Named("c")  # type: ignore[index]


@dataclass(frozen=True)
class Named:
    name: str
