"""Which weights are a client's own, against the shapes of a network written out."""

from __future__ import annotations

from typing import Any

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.parts import Personal
from tests.methods.by_hand import MODEL, SHARED, D

SPANS = dict(zip(MODEL.shapes, (6, 3, 9, 3), strict=True))  # weights of 2-3-3, layer by layer


def expected(*own: bool) -> list[bool]:
    return [flag for flag, size in zip(own, SPANS.values(), strict=True) for _ in range(size)]


@pytest.mark.parametrize(
    ("part", "own"),
    [
        (Personal(), (False, False, True, True)),
        (Personal(1, "last"), (False, False, False, True)),
        (Personal(0, "last"), (False,) * 4),
        (Personal(4, "last"), (True,) * 4),
        (Personal(2, "first"), (True, True, False, False)),
        (Personal(0, "first"), (False,) * 4),
        (Personal(which="named"), (False,) * 4),
        (Personal(which="named", names=tuple(SPANS)[1::2]), (False, True, False, True)),
    ],
)
def test_a_part_is_whole_sites(part: Personal, own: tuple[bool, ...]) -> None:
    assert part.mask(MODEL).tolist() == expected(*own)


def test_the_last_sites_are_those_that_bpfed_and_fedsi_keep() -> None:
    for sites in (1, 2, 3):
        assert Personal(sites).mask(MODEL).tolist() == [at >= MODEL.shared(sites) for at in range(D)]
    assert MODEL.shared(2) == SHARED


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sites": 5}, "sites must be at most 4, as many as the model has, got 5"),
        ({"sites": 5, "which": "first"}, "sites must be at most 4, as many as the model has, got 5"),
        ({"sites": -1}, "sites must be at least 0, got -1"),
        ({"which": "middle"}, "which must be one of 'last', 'first', 'named', 'normalisation', got 'middle'"),
        ({"which": "named", "names": ("head",)}, "names must be of the model's sites .*, got head"),
        ({"names": ("head",)}, r"names = \['head'\] are of which = 'named', and which is 'last'"),
    ],
)
def test_parts_that_no_model_has_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        Personal(**options).mask(MODEL)
