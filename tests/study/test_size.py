"""What a study would hold: counted as the models count it themselves, and refused before it is made."""

from __future__ import annotations

from typing import Any

import pytest

from pacbayes_fl.data import memory
from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.study import data as study_data
from pacbayes_fl.study import run, size
from pacbayes_fl.study.file import Study
from tests.tiny import NUMBERS, TABLE, quick

DATA = study_data.load(Study.from_table(TABLE))


def made(name: str, *sets: str) -> Study:
    return Study.from_table(TABLE, "s.toml", [*quick(name), *sets])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of all sizes that are judged."""
    sizes: list[int] = []
    monkeypatch.setattr(memory, "require", lambda wanted, *_: sizes.append(wanted))
    return sizes


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "persistence"])
def test_the_weights_are_counted_as_the_model_counts_them(name: str, asked: list[int]) -> None:
    one = made(name)
    size.check_model(one, 1, None)
    method, _ = run.prepare(one, DATA)
    model: Any = getattr(method, "model", None)
    if model is not None:
        noise = 1 if METHODS[name].model == "functions" else 0  # the observation noise is a number more
        assert asked[0] == (8 if METHODS[name].model == "functions" else 4) * (model.dim - noise)


@pytest.mark.parametrize(
    ("name", "assignment", "option"),
    [
        ("pac-pfl", "model.mean_widths=[1000000000]", "model.mean_widths"),
        ("pac-pfl", "model.kernel_widths=[100000,100000]", "model.kernel_widths"),
        ("pac-pfl", "model.feature_dim=4000000000", "model.feature_dim"),
        ("pac-pfl", "method.particles=1000000", "method.particles"),
        ("pooled-gp", "method.inducing=1000000", "method.inducing"),
        ("pooled-ensemble", "method.members=4000000000", "method.members"),
        *(
            (name, "model.widths=[1000000000,1000000000]", "model.widths")
            for name in NUMBERS
            if METHODS[name].model == "weights"
        ),
        *(
            (name, "method.draws=4000000000", "method.draws")
            for name in NUMBERS
            if hasattr(METHODS[name].options, "draws")
        ),
    ],
)
def test_what_has_no_room_is_refused_with_its_size_the_limit_and_the_option(
    name: str, assignment: str, option: str
) -> None:
    with pytest.raises(StudyError) as caught:
        run.prepare(made(name, assignment), DATA)
    text = str(caught.value)
    assert "B, and the limit is " in text and "of memory that there is (lower " in text and option in text


def test_rows_of_an_exact_gaussian_process_count_by_their_square(asked: list[int]) -> None:
    one = made("vanilla-gp")
    method: Any = run.prepare(one, DATA)[0]
    rows = 7
    assert method.footprint(rows) == rows * rows + method.model.dim
    assert asked[-1] == 8 * max(method.footprint(rows), 4 * method.model.dim)


def test_what_fits_is_not_refused() -> None:
    for name in ("pac-pfl", "pfedbayes", "fedsi"):
        run.prepare(made(name), DATA)
