"""Laws of losses, for every one of the table, and for those of one's own as for the library's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacbayes_fl.bounds import LOSSES, loss_named
from pacbayes_fl.testing import LOSS_LAWS, check_loss
from tests.user_objects import LOSS, write

SETTINGS: dict[str, tuple[dict[str, float], ...]] = {
    "0-1": ({},),
    "clipped-nll": ({}, {"p_min": 0.2}),
    "clipped-square": ({"limit": 1.0}, {"limit": 50.0}),
    "saturating-square": ({}, {"scale": 0.1}),
}


@pytest.mark.parametrize("law", LOSS_LAWS)
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_keeps_every_law(name: str, law: str) -> None:
    for settings in SETTINGS[name]:
        check_loss(loss_named(name, **settings), without=[each for each in LOSS_LAWS if each != law])


@pytest.mark.parametrize("law", LOSS_LAWS)
def test_so_does_one_of_ones_own(law: str, tmp_path: Path) -> None:
    path = write(tmp_path, "mine.py", LOSS)
    for loss in (loss_named(f"{path}:NARROW"), loss_named(f"{path}:CappedAbsolute", limit=7.0)):
        check_loss(loss, without=[each for each in LOSS_LAWS if each != law])
