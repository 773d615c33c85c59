"""Which targets look like labels, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

from pacbayes_fl.data.class_labels import FEW, are_numbered, labels_said, like_labels, numbered


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0, 1, 1, 0], (0, 1)),
        (["True", "False", "False", "True"], (0, 1)),
        ([2.0, 1.0, 3.0, 3.0, 2.0, 1.0], (1, 2, 3)),
        ([-1, 1, 1, -1], (-1, 1)),
        ([10, 20, 10, 20, 20], (10, 20)),
        ([*range(20), *range(20)], tuple(range(20))),
        ([*range(21), *range(21)], ()),  # too many
        ([0, 1, 2, 0], ()),  # too seldom
        ([2, 3, 4, 2, 3, 4], ()),  # begins elsewhere
        ([0, 2, 4, 0, 2, 4], ()),  # with gaps
        ([0.5, 1.0, 0.5, 1.0], ()),
        ([1, 1, 1, 1], ()),
        ([float("inf"), 1, float("inf"), 1], ()),
        ([float("nan"), 1, float("nan"), 1], ()),
        (["yes", "no", "yes", "no"], ()),
        ([], ()),
    ],
)
def test_few_whole_numbers_in_turn_or_any_two_look_like_labels(values: list[Any], labels: tuple[int, ...]) -> None:
    assert like_labels(values) == labels
    assert are_numbered(labels) == (len(labels) > 0 and labels[0] == 0 and len(labels) == labels[-1] + 1)


@pytest.mark.parametrize(
    ("labels", "kinds", "advice"),
    [
        ((0, 1), "0 and 1 alone, as which True and False are read, and", "data.task = 'classification' takes"),
        ((0, 1, 2), "whole numbers 0 to 2, and", "data.task = 'classification' takes"),
        (
            (1, 2, 3),
            "whole numbers 1 to 3, and",
            "where the table numbers them 0 to 2, data.task = 'classification' takes",
        ),
        ((1, 5), "1 and 5 alone, and", "where the table numbers them 0 to 1, data.task = 'classification' takes"),
    ],
)
def test_it_is_said_what_labels_are_and_how_they_would_be_learned(
    labels: tuple[int, ...], kinds: str, advice: str
) -> None:
    what, hint = labels_said("y", labels)
    assert what == f"y holds {kinds} is learned as numbers" and hint.startswith(advice)


def test_few_words_are_numbered_one_by_one() -> None:
    assert numbered({"b", "a"}).endswith("table: 0 for 'a', 1 for 'b'")
    assert numbered(set(map(str, range(FEW + 1)))).endswith("in the table")
