"""What a run has chosen, in its folder: read as it was written, taken back, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pacbayes_fl.errors import DataError
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.search import choice_file

KEY = "federation.rounds"
OPEN = Study.from_table({"federation": {"rounds": "held-out"}})
NOTES = {KEY: {"chosen": 28, "scores": {"28": -1.0}, "rule": "mean", "errors": [0.25, 0.75]}}


def test_a_choice_is_read_as_it_was_written_and_taken_back(tmp_path: Path) -> None:
    assert choice_file.kept(tmp_path) == {} == choice_file.kept(None)
    assert choice_file.recall(OPEN, tmp_path) == (OPEN, {})
    choice_file.remember(tmp_path, NOTES)
    chosen, notes = choice_file.recall(OPEN, tmp_path)
    assert chosen.federation.rounds == 28 and notes == NOTES == choice_file.kept(tmp_path)
    assert choice_file.without_choice(chosen, tmp_path) == OPEN
    assert choice_file.recall(chosen, tmp_path) == (chosen, {}), "nothing is open"


def test_residuals_of_held_out_rows_are_those_that_chose_the_rounds() -> None:
    assert torch.equal(choice_file.errors_of(NOTES), torch.tensor([0.25, 0.75], dtype=torch.float64))  # type: ignore[arg-type]
    for notes in ({}, {KEY: {"chosen": 28}}, {"zeta": NOTES[KEY]}):
        assert choice_file.errors_of(notes) is None


@pytest.mark.parametrize(
    "text", ["{", "{}", "[1]", '{"federation.rounds": {}}', '{"federation.rounds": {"chosen": "two"}}']
)
def test_a_damaged_choice_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / choice_file.FILE).write_text(text)
    with pytest.raises(DataError, match=r"choice\.json cannot be read"):
        choice_file.recall(OPEN, tmp_path)
