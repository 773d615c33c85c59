"""The command `list` prints names, each with a line."""

from __future__ import annotations

import pytest

from pacbayes_fl.cli.listing import LISTED
from pacbayes_fl.methods import METHODS
from tests.cli.answers import Call


@pytest.mark.parametrize("what", LISTED)
def test_list(call: Call, what: str) -> None:
    code, out, err = call("list", what)
    assert (code, err) == (0, "")
    first = [line.split()[0] for line in out.splitlines()]
    if what == "methods":
        assert first == list(METHODS)
    assert len(first) == len(set(first)) > 0 and all(len(line.split()) > 1 for line in out.splitlines())
