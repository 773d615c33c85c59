"""Rows are equal by their content, of whatever type they are."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import date
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import sparse

from pacbayes_fl import certify_model
from pacbayes_fl.certificates.row_keys import keys_of
from pacbayes_fl.errors import AssumptionError


class Graph:
    """As many libraries have them: compared by identity, and shown by shapes."""

    def __init__(self, seed: int) -> None:
        self.x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))

    def __repr__(self) -> str:
        return "Graph(x=[5, 3])"


class Token:
    """Compared by value, and shown by its place in memory."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


@dataclass(frozen=True)
class Row:
    """A record."""

    day: date
    value: float


ROWS: dict[str, Any] = {
    "arrays": lambda k: np.arange(3000.0) + (np.arange(3000) == 1500) * k,
    "tensors": lambda k: {"text": torch.zeros(3000).index_fill(0, torch.tensor([1500]), float(k)), "age": 3},
    "images": lambda k: Image.new("L", (3 + k % 2, 3), k),
    "sparse rows": lambda k: sparse.random(1, 50, 0.1, format="csr", random_state=k),
    "graphs": Graph,
    "values": Token,
    "records": lambda k: Row(date(2026, 1, 1 + k), 0.5),
    "words": lambda k: f"word {k}",
    "lists of several lengths": lambda k: [0.0] * k,
    "sets of arrays": lambda k: (np.zeros(2), [np.full(k, 1.0)]),
}


@pytest.mark.parametrize("kind", ROWS)
def test_copies_are_found_and_others_told_apart(kind: str) -> None:
    rows = [ROWS[kind](k) for k in range(12)]
    keys = keys_of([*rows, *copy.deepcopy(rows), *(ROWS[kind](k) for k in range(12))])
    assert len({*keys}) == 12 and keys[:12] == keys[12:24] == keys[24:]
    fine: dict[str, Any] = {"source": "data-free", "independent": True}
    got = certify_model(lambda x: np.zeros(len(x), int), rows=(rows * 3, np.zeros(36, int)), **fine)
    assert got.terms["n"] == 12


def test_numbers_are_equal_as_numbers_are() -> None:
    assert keys_of([1, 1.0, True, np.float32(1), -0.0, 0]) == [1, 1, 1, 1, 0, 0]
    nan = float("nan")
    assert keys_of([(nan, 1), (float("nan"), 1.0)])[0] == keys_of([(nan, 1), (nan, 2)])[0]
    assert len({*keys_of(np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, 2.0]]))}) == 2


def test_rows_that_nobody_can_compare_are_refused() -> None:
    with pytest.raises(AssumptionError, match=r"rows of the type lock cannot be compared, and copies must count once"):
        keys_of([{"lock": Lock()}])
