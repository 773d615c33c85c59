"""Fingerprints of what users bring: other values give others, wherever the values stand, and equal ones the same."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module, invalidate_caches
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch

from pacbayes_fl.bounds import SaturatingSquare
from pacbayes_fl.certificates.fingerprint import fingerprint
from pacbayes_fl.errors import AssumptionError


class Named(SaturatingSquare):
    """A loss of one's own that says nothing of its settings."""

    name = "mine"

    def __init__(self, weight: Any) -> None:
        super().__init__(1.0)
        self.__dict__["weight"] = weight

    def __repr__(self) -> str:
        return "Named()"


@dataclass(frozen=True)
class Slotted:
    """An object without a dictionary."""

    __slots__ = ("weight",)
    weight: float


def times(x: float, weight: float) -> float:
    return x * weight


def with_default(weight: float) -> Callable[..., float]:
    def made(x: float, weight: float = weight) -> float:
        return x * weight

    return made


def closed_over(weight: float) -> Callable[..., float]:
    def made(x: float) -> float:
        return x * weight

    return made


def with_method(weight: float) -> object:
    class Made:
        def __call__(self, x: float) -> float:
            return x * weight

    return Made()


def of_console(text: str) -> Callable[..., float]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(text, names)
    return names["made"]  # type: ignore[no-any-return]


MAKERS: dict[str, Callable[[float], object]] = {
    "attribute": Named,
    "attribute in a list": lambda weight: Named([weight]),
    "attribute that is a function": lambda weight: Named(closed_over(weight)),
    "long tensor": lambda weight: Named(torch.cat([torch.zeros(3000), torch.tensor([weight]), torch.zeros(3000)])),
    "slot": Slotted,
    "method of an object": lambda weight: Slotted(weight).__eq__,
    "default": with_default,
    "closure": closed_over,
    "closure of a method": with_method,
    "partial": lambda weight: partial(times, weight=weight),
    "constant in a console": lambda weight: of_console(f"def made(x):\n return x * {weight}"),
    "global name": lambda weight: of_console(f"C = {weight}\ndef made(x):\n return x * C"),
    "global name in a function within": lambda weight: of_console(
        f"C = {weight}\ndef made(x):\n return sum(C * one for one in x)"
    ),
    "global of a helper": lambda weight: of_console(
        f"C = {weight}\ndef helper(x):\n return x * C\ndef made(x):\n return helper(x)"
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("where", MAKERS)
def test_another_value_gives_another_fingerprint_and_the_same_value_the_same(where: str) -> None:
    make = MAKERS[where]
    assert fingerprint(make(0.5)) == fingerprint(make(0.5)) != fingerprint(make(0.25))


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_another_process() -> None:
    made = [fingerprint(make(0.5)) for make in MAKERS.values()]
    code = (
        "from tests.certificates.test_fingerprint import MAKERS, fingerprint\n"
        "print(*(fingerprint(make(0.5)) for make in MAKERS.values()))"
    )
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout.split() == made


def holding_itself() -> list[object]:
    own: list[object] = [1.0]
    own.append(own)
    return own


def deep() -> list[object]:
    own: list[object] = []
    for _ in range(5000):
        own = [own]
    return own


@pytest.mark.parametrize(
    "make",
    [
        *(holding_itself, object, Lock, torch.Generator, lambda: torch.eye(2).to_sparse()),
        *(lambda: torch.empty(2, device="meta"), lambda: torch.nn.Linear(2, 1).bias.fill_(0.0)),
    ],
)
@torch.no_grad()
def test_whatever_a_loss_holds_it_has_a_fingerprint(make: Callable[[], object]) -> None:
    assert fingerprint(Named(make())) == fingerprint(Named(make()))


def test_an_object_that_was_copied_or_pickled_has_its_fingerprint_still() -> None:
    """What pickle asks of a class once is kept in that class, and says nothing of it."""
    loss = Named(3.0)
    before = fingerprint(loss)
    loss.__reduce_ex__(2)
    assert "__slotnames__" in vars(Named) and fingerprint(loss) == before == fingerprint(copy.deepcopy(loss))


def test_a_function_that_waits_for_a_value_has_a_fingerprint() -> None:
    def made(x: float) -> float:
        return x * late

    assert fingerprint(made) == fingerprint(made)
    late = 2.0


def test_what_somebody_has_installed_is_seen_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    found = []
    for weight in (0.5, 0.25, 0.5):
        (folder / "own_loss.py").write_text(f"C = {weight}\nclass Own:\n def __call__(self, x):\n  return x * C\n")
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        monkeypatch.delitem(sys.modules, "own_loss", raising=False)
        invalidate_caches()
        found.append(fingerprint(import_module("own_loss").Own()))
    monkeypatch.delitem(sys.modules, "own_loss")
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("code", ["helper.C", "helper.inner.C", "helper.times(1.0)", "own_loss.helper.C"])
def test_values_of_modules_of_ones_own_are_seen_where_the_code_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Also where modules name each other."""
    folder = tmp_path / "helper"
    folder.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    (folder / "__init__.py").write_text("import own_loss\nfrom helper.inner import C, times\n")
    (tmp_path / "own_loss.py").write_text(f"import own_loss, helper\ndef made(x):\n return x * {code}\n")
    found = []
    for weight in (0.5, 0.25, 0.5):
        (folder / "inner.py").write_text(f"UNUSED = {len(found)}\nC = {weight}\ndef times(x):\n return x * C\n")
        for name in ("own_loss", "helper", "helper.inner"):
            shutil.rmtree(folder / "__pycache__", ignore_errors=True)
            monkeypatch.delitem(sys.modules, name, raising=False)
        invalidate_caches()
        found.append(fingerprint(import_module("own_loss").made))
    for name in ("own_loss", "helper", "helper.inner"):
        monkeypatch.delitem(sys.modules, name)
    assert found[0] == found[2] != found[1]


def test_what_is_deeper_than_python_follows_is_refused() -> None:
    with pytest.raises(AssumptionError, match=r"^Named\(\) holds values in values"):
        fingerprint(Named(deep()))
