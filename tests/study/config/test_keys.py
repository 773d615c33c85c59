"""A key in the wrong table of a study is refused with the one that has it."""

from __future__ import annotations

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.study.config.keys import PARTS
from pacbayes_fl.study.file import Study


@pytest.mark.parametrize("name", sorted(METHODS))
def test_rounds_among_a_method_s_options_lead_to_the_federation(name: str) -> None:
    with pytest.raises(StudyError, match=r"\[method\]: unknown key 'rounds' \(it is federation\.rounds\)"):
        Study.from_table({"method": {"name": name, "rounds": 3}})


@pytest.mark.parametrize("part", [*dict(PARTS), "data"])
def test_every_table_says_whose_an_option_of_the_method_is(part: str) -> None:
    with pytest.raises(StudyError, match=rf"\[{part}\]: unknown key 'tau' \(it is method\.tau\)"):
        Study.from_table({part: {"tau": 1.0}})


def test_what_no_table_has_is_answered_with_what_is_near_it() -> None:
    with pytest.raises(StudyError, match="did you mean 'rounds'"):
        Study.from_table({"federation": {"roundz": 3}})
