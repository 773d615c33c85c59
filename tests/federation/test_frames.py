"""Messages in bytes, and bytes that are none."""

from __future__ import annotations

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


def test_a_relay_does_not_import_torch() -> None:
    code = "import sys, pacbayes_fl.federation.frames; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
