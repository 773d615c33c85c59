"""What studies leave open of methods on deep-kernel GPs: every candidate is one that such a study can have."""

from __future__ import annotations

import pytest

from pacbayes_fl.methods import METHODS, gp_choices
from pacbayes_fl.methods.recipe import HELD_OUT, HeldOutChoice
from pacbayes_fl.study.config.choices import candidates, with_value
from pacbayes_fl.study.file import Study

CHOICES = [gp_choices.RATE, gp_choices.SCALE, gp_choices.NOISE, gp_choices.NETWORKS, *gp_choices.PRIOR]


@pytest.mark.parametrize("name", ["pac-pfl", "pfedgp"])
@pytest.mark.parametrize("asked", CHOICES, ids=lambda asked: asked.key)
def test_every_candidate_makes_a_study(name: str, asked: HeldOutChoice) -> None:
    study = Study.from_table({"method": {"name": name}}, sets=[f"{asked.table}.{asked.option}={HELD_OUT}"])
    assert any(open_.key == asked.key for open_ in study.held_out)
    values = candidates(study, asked)
    assert len(values) > 1
    for value in values:
        settled = with_value(study, asked, value)
        assert all(open_.key != asked.key for open_ in settled.held_out)


@pytest.mark.parametrize("name", ["pac-pfl", "pfedgp"])
def test_rows_of_ones_own_leave_open_what_the_recipe_lists(name: str) -> None:
    recipe = METHODS[name]
    listed = {(asked.table, asked.option) for asked in recipe.held_out} | {("federation", "rounds")}
    left = {
        (table, key) for table, given in recipe.own_rows.items() for key, value in given.items() if value == HELD_OUT
    }
    assert left <= listed and {("data", "scale"), ("model", "networks")} <= left
