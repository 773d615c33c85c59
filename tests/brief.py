"""Which tests `make test` leaves out: those marked slow, and nine of ten forms of those marked law."""

from __future__ import annotations

import collections
import zlib
from collections.abc import Iterable

import pytest

_SHARE = 10


def left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return what a brief run leaves out.

    Forms are drawn by a hash of test and form: every process has the same ones, every law some of the methods and
    every method some of the laws.

    Args:
        items: Collected tests.

    Returns:
        The slow ones, and of each law all but a tenth of its forms, at least one.
    """
    out, laws = set(), collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow"):
            out.add(item)
        elif item.get_closest_marker("law"):
            laws[item.nodeid.split("[")[0]].append(item)
    for forms in laws.values():
        drawn = sorted(forms, key=lambda item: zlib.crc32(item.nodeid.encode()))
        out.update(drawn[-(-len(drawn) // _SHARE) :])
    return out
