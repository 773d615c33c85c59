from __future__ import annotations

import sys

import pytest

from data_gen import DataGenError
from data_gen.needs import need_pvlib


def test_gives_pvlib() -> None:
    assert need_pvlib().__name__ == "pvlib"


def test_a_missing_package_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pvlib", None)
    with pytest.raises(DataGenError, match=r"pip install 'pacbayes_fl\[pv\]'$"):
        need_pvlib()
