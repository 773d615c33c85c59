"""Messages in bytes, and bytes that are none."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import frames
from pacbayes_fl.federation.frames import Array, Frame
from tests.remote import REPLIES, REQUEST

WHOLE = frames.encode(REQUEST.config, REQUEST.arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize("message", [REQUEST, *REPLIES.values()], ids=lambda one: type(one).__name__)
def test_what_is_written_is_read_again(message: Any) -> None:
    assert frames.decode(frames.encode(message.config, message.arrays)) == Frame(dict(message.config), message.arrays)
    assert frames.decode(frames.encode({}, {})) == Frame({}, {})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        WHOLE[:7],
        WHOLE[:20],
        WHOLE[:-1],
        WHOLE + b"x",
        b"\xff" * 8 + WHOLE[8:],
        (2).to_bytes(8, "big") + b"[]",
    ],
    ids=lambda data: str(len(data)),
)
def test_what_is_cut_or_longer_is_refused(data: bytes) -> None:
    with pytest.raises(DeployError, match="what came is no message"):
        frames.decode(data)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3))
def test_bytes_that_were_changed_are_a_message_or_refused(at: int, change: bytes) -> None:
    try:
        result = frames.decode(WHOLE[:at] + change + WHOLE[at + len(change) :])
    except DeployError:
        return
    assert all(isinstance(one, Array) for one in result.arrays.values())


def test_a_header_that_would_not_be_read_is_not_written() -> None:
    """It was sent, and refused elsewhere as one that is cut short."""
    with pytest.raises(
        DeployError, match=r"^a message of 2 plain values and 0 arrays has a header of \d+ bytes.*more nodes"
    ):
        frames.encode({"kind": "train", "requests": ["x" * 1024] * 2**14}, {})


def with_header(header: object) -> bytes:
    """Put another header in front of the arrays of a whole message."""
    at, text = 8 + int.from_bytes(WHOLE[:8], "big"), json.dumps(header).encode()
    text = text.replace(b'"!1e400"', b"1e400")
    return len(text).to_bytes(8, "big") + text + WHOLE[at:]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a header its values stand."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [place for key, one in inner for place in places(one, (*at, key))]


@pytest.mark.parametrize(
    "odd", [math.inf, math.nan, "!1e400", -1, 10**30, 1e30, "x", "\ud800", [], [1], {}, None, True, 0.5], ids=repr
)
def test_a_header_with_another_value_anywhere_is_a_message_or_refused(odd: Any) -> None:
    """A whole message has nothing but what is said here beside the plain values, which their readers judge."""
    header = json.loads(WHOLE[8 : 8 + int.from_bytes(WHOLE[:8], "big")])
    assert frames.decode(with_header(header)) == frames.decode(WHOLE)
    header["config"]["deep"] = [{"number": 1}]
    read = 0
    for place in places(header):
        other = copy.deepcopy(header)
        inner: Any = other
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = odd
        try:
            result = frames.decode(with_header(other))
        except DeployError as error:
            assert "what came is no message" in str(error)
            continue
        read += 1
        assert all(type(size) is int and size >= 0 for one in result.arrays.values() for size in one.shape)
        assert all(isinstance(text, str) for one in result.arrays.values() for text in (one.dtype, one.stype))
        assert place[0] == "config" or (place[0] == "arrays" and (isinstance(odd, str) or odd == [1] or odd == []))
    assert read


def test_a_relay_does_not_import_torch() -> None:
    code = "import sys, pacbayes_fl.federation.frames; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
