"""One family of errors that say where, what and what to do."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import partial

import numpy as np
import pytest
import torch

import pacbayes_fl as fl
from pacbayes_fl import errors
from pacbayes_fl.errors import PacBayesFLError, caller_stacklevel, counted

KINDS = {
    errors.ShapeError: ValueError,
    errors.StudyError: ValueError,
    errors.DataError: ValueError,
    errors.AssumptionError: ValueError,
    errors.NumericalError: ArithmeticError,
    errors.ClientError: Exception,
    errors.CheckpointError: Exception,
    errors.PrivacyError: Exception,
    errors.DeployError: Exception,
}


def test_the_table_holds_the_whole_family() -> None:
    defined = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)}
    defined = {kind for kind in defined if not issubclass(kind, Warning)}
    assert defined == {PacBayesFLError, *KINDS}


@pytest.mark.parametrize(("kind", "builtin"), KINDS.items(), ids=lambda kind: kind.__name__)
def test_every_error_is_one_of_the_family_and_the_builtin_of_its_kind(
    kind: type[PacBayesFLError], builtin: type[Exception]
) -> None:
    assert issubclass(kind, PacBayesFLError) and issubclass(kind, builtin)
    assert kind.__mro__[1] is PacBayesFLError  # no kind is a special case of another


def test_the_text_names_round_client_fault_and_advice_on_one_line() -> None:
    error = errors.DataError("x is odd", client="house_07", round=0, cause="odd", hint="make it even")
    assert str(error) == "round 0: client 'house_07': x is odd (make it even)"
    assert (error.client, error.round, error.cause, error.hint) == ("house_07", 0, "odd", "make it even")


def test_fields_that_are_not_given_leave_no_trace() -> None:
    error = errors.DeployError("port 80 is in use")
    assert str(error) == "port 80 is in use"
    assert (error.client, error.round, error.cause, error.hint) == (None, None, None, None)


@pytest.mark.parametrize(
    "through", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"]
)
def test_an_error_survives_the_way_to_another_process(through: object) -> None:
    error = errors.ClientError("gone", client="w1", round=3, hint="wait")
    again = through(error)  # type: ignore[operator]
    assert type(again) is errors.ClientError and str(again) == str(error)
    assert (again.client, again.round, again.hint) == ("w1", 3, "wait")


def test_a_warning_finds_the_first_caller_outside_of_the_package() -> None:
    inside = {"__name__": "pacbayes_fl.somewhere", "caller_stacklevel": caller_stacklevel, "warnings": warnings}
    exec("def warn(): warnings.warn('look', stacklevel=caller_stacklevel())\ndef deeper(): warn()", inside)
    exec("import contextlib\n@contextlib.contextmanager\ndef managed():\n    yield\n    warn()", inside)
    exec("def by_manager():\n    with managed():\n        pass", inside)
    for name in ("warn", "deeper", "by_manager"):
        with pytest.warns(UserWarning, match="look") as caught:
            inside[name]()  # type: ignore[operator]
        assert caught[0].filename == __file__
    assert caller_stacklevel() == 1


@pytest.mark.parametrize(("number", "told"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows")])
def test_one_of_things_is_no_plural(number: int, told: str) -> None:
    assert counted(number, "row") == told


class OfPositions:
    """Holds values as a sequence of old does, and as a torch `Dataset`: by position alone."""

    def __getitem__(self, at: int) -> str:
        return "ab"[at]


@pytest.mark.parametrize(
    "value",
    [
        *([], ("a",), {"a"}, {"a": 1}, {"a": 1}.keys(), range(2), (one for one in "ab"), zip("a", "b", strict=True)),
        *(np.zeros(2), torch.zeros(2), OfPositions()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_holds_values_is_several_and_is_left_as_it_was(value: object) -> None:
    errors.several("x", value)
    assert next(iter(value), None) in (None, "a", 0, ("a", "b"))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "value",
    ["a", b"a", 3, None, object, np.array(3.0), np.float64(3.0), torch.tensor(3.0), partial(print)],
    ids=lambda value: type(value).__name__,
)
def test_one_value_is_not_several(value: object) -> None:
    with pytest.raises(errors.StudyError, match=r"^x must be a list, got .*write \["):
        errors.several("x", value)


def test_names_of_studies_and_one_alone_are_no_studies() -> None:
    study = fl.Study.from_toml("polynomial")
    errors.a_study("study", study)
    errors.studies("studies", [study, study])
    with pytest.raises(errors.StudyError, match=r"study must be a Study, got 'polynomial' \(Study\.from_toml\('polyn"):
        fl.run("polynomial")  # type: ignore[arg-type]
    with pytest.raises(errors.StudyError, match=r"studies must be a list, .* \(write \[study\] for one alone"):
        fl.compare(study, 1)  # type: ignore[arg-type]
    with pytest.raises(errors.StudyError, match=r"studies\[1\] must be a Study, got 'polynomial'"):
        fl.compare([study, "polynomial"], 1)  # type: ignore[list-item]
    with pytest.raises(errors.StudyError, match=r"got 'dict' \(as Study\.from_toml or from_table gives it\)"):
        fl.run({"data": {}})  # type: ignore[arg-type]
