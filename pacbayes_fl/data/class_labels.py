"""Targets of a table that are labels of classes, or look like them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from pacbayes_fl.data import cells
from pacbayes_fl.errors import shown

LEARN_LABELS: Final = "which methods on networks learn, such as method.name = 'pfedbayes' or 'fedavg'"
"""What advice on labels says behind the word."""
FEW: Final = 6  # words of a target that are numbered one by one
_CLASSES: Final = 20  # distinct whole numbers that may be labels


def numbered(words: Collection[str]) -> str:
    """Say how words become labels.

    Args:
        words: of a column of classes.

    Returns:
        Such as "classes are numbered 0, 1, 2, ... in the table: 0 for 'N', 1 for 'Y'".
    """
    each = ", ".join(f"{k} for {shown(word)}" for k, word in enumerate(sorted(words)))
    return "classes are numbered 0, 1, 2, ... in the table" + (f": {each}" if len(words) <= FEW else "")


def like_labels(values: Iterable[Any]) -> tuple[int, ...]:
    """Give the labels that targets look like: whole numbers from 0 or from 1 on, or any two.

    Args:
        values: of the column; True and False are 1 and 0.

    Returns:
        At most 20, from the least, each of which comes twice on average; none where targets look like numbers.
    """
    try:
        numbers = [float(cells.true_or_false(value)) for value in values]
    except (TypeError, ValueError):
        return ()
    kinds = sorted(set(numbers))
    if not 2 <= len(kinds) <= min(_CLASSES, len(numbers) // 2) or any(kind % 1 != 0 for kind in kinds):
        return ()
    first, last = int(kinds[0]), int(kinds[-1])
    in_turn = first in (0, 1) and last - first + 1 == len(kinds)
    return tuple(map(int, kinds)) if in_turn or len(kinds) == 2 else ()


def are_numbered(labels: Sequence[int]) -> bool:
    """Say whether labels are 0, 1, ..., C-1, as they can be learned.

    Args:
        labels: as `like_labels` gives them.

    Returns:
        Whether they are; not where there are none.
    """
    return len(labels) > 0 and tuple(labels) == tuple(range(len(labels)))


def labels_said(name: str, labels: Sequence[int]) -> tuple[str, str]:
    """Say that targets look like labels, and what may be done.

    Args:
        name: of the target.
        labels: as `like_labels` gives them.

    Returns:
        What they look like, and the advice.
    """
    first, *_, last = labels
    kinds = f"{first} and {last} alone" if len(labels) == 2 else f"whole numbers {first} to {last}"
    kinds += ", as which True and False are read," if tuple(labels) == (0, 1) else ","
    takes = f"data.task = 'classification' takes them for labels of classes, {LEARN_LABELS}"
    advice = takes if are_numbered(labels) else f"where the table numbers them 0 to {len(labels) - 1}, {takes}"
    return f"{name} holds {kinds} and is learned as numbers", f"{advice}; 'regression' says that they are numbers"
