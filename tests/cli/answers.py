"""What a command has answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Answer]


def assert_one_line(answer: Answer, *fragments: str) -> None:
    """Check that a command failed in a named way: one line, with all that it should say."""
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.startswith("pacbayes-fl: ") and answer.err.count("\n") == 1 and answer.err.endswith("\n")
    for fragment in fragments:
        assert fragment in answer.err
