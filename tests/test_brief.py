"""A brief run keeps an eighth of every law's forms and every test that is neither a law nor slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from tests.brief import left_out


@dataclass(frozen=True)
class Item:
    nodeid: str
    mark: str = ""

    def get_closest_marker(self, name: str) -> bool:
        return name == self.mark


def names(items: list[Item]) -> set[str]:
    return {item.nodeid for item in items} - {item.nodeid for item in left_out(cast(list[pytest.Item], items))}


def test_slow_tests_are_left_out_and_of_laws_nine_tenths() -> None:
    laws = [Item(f"t.py::law_{law}[form_{form}]", "law") for law in range(120) for form in range(50)]
    small = [Item("t.py::alone", "law"), Item("t.py::two[a]", "law"), Item("t.py::two[b]", "law")]
    others = [Item("t.py::plain"), *(Item(f"t.py::plain[{k}]") for k in range(9))]
    kept = names([*laws, *small, *others, Item("t.py::long", "slow"), Item("t.py::long[a]", "slow")])
    assert {item.nodeid for item in others} <= kept and not any("long" in name for name in kept)
    for law in range(120):
        assert sum(name.startswith(f"t.py::law_{law}[") for name in kept) == 5
    for form in range(50):  # by chance: a method that 120 laws leave out has probability 3e-6
        assert 1 <= sum(name.endswith(f"[form_{form}]") for name in kept) < 60
    assert "t.py::alone" in kept and len({"t.py::two[a]", "t.py::two[b]"} & kept) == 1


def test_the_same_forms_are_kept_in_any_order_and_without_the_others() -> None:
    forms = [Item(f"t.py::law[{form}]", "law") for form in range(10)]
    assert names(forms) == names(forms[::-1]) == names([*forms, Item("t.py::law_2[0]", "law")]) - {"t.py::law_2[0]"}
