"""How a study says that each column is scaled, whatever its rows are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pacbayes_fl.data.scaling import ColumnScale
from pacbayes_fl.study.config.parts import DataPart


def asked(data: DataPart, columns: Sequence[str], labels: bool) -> list[ColumnScale | None]:
    """Say how a study scales every column.

    Args:
        data: of the study.
        columns: names of the d features and, last, of the target.
        labels: whether targets are labels.

    Returns:
        Kinds [d + 1]; None of a feature that the study leaves open.
    """
    default: ColumnScale | None = None if data.scale in ("client", "held-out") else cast(ColumnScale, data.scale)
    usual = data.same_for_all(columns)
    kinds = [
        data.column_scale.get(name) or data.column_scale.get(data.column_of(name)) or usual.get(name, default)
        for name in columns
    ]
    last = kinds[-1] or "client"  # a target that tells clients apart is for a method to learn
    return [*kinds[:-1], "none" if labels else last]
