"""Parameters are the options of a study: each has one name, its study's default, and comes out where it was put."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

import numpy as np
import pytest

import pacbayes_fl as fl
from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.settings import plain
from pacbayes_fl.study.estimators.base import FederatedEstimator
from pacbayes_fl.study.estimators.parameters import arguments, parameters_of, signature, study_of
from pacbayes_fl.study.file import Study


def defaults(method: str) -> dict[str, object]:
    return {one.name: one.default for one in parameters_of(method)}


def built(method: str, given: Mapping[str, object] = MappingProxyType({}), seed: int = 0) -> Study:
    return study_of(method, parameters_of(method), defaults(method) | dict(given), seed, "regression")


@pytest.mark.parametrize("method", METHODS)
def test_every_option_of_a_method_has_one_name_that_the_class_has_not(method: str) -> None:
    known = parameters_of(method)
    names = [one.name for one in known]
    assert len(set(names)) == len(names)
    assert not [name for name in names if hasattr(FederatedEstimator, name) or name.endswith("_")]
    own = {field.name for field in fields(METHODS[method].options)}
    assert {one.option for one in known if one.table == "method"} == own
    assert all(one.meaning or one.table == "federation" for one in known)


@pytest.mark.parametrize("method", ["pac-pfl", "pfedbayes"])
def test_defaults_are_those_of_a_study_of_a_table_of_ones_own(method: str) -> None:
    file = Study.from_table({"data": {"source": "mine.csv"}, "method": {"name": method}})
    own = built(method)
    assert (own.method, own.model, own.federation, own.report) == (
        file.method,
        file.model,
        file.federation,
        file.report,
    )
    assert own.data.scale == file.data.scale


def test_a_value_arrives_in_its_table() -> None:
    given = {"rounds": np.int64(7), "rate": np.float64(0.5), "mean_widths": [3, 2], "scale": "pooled", "lower_bound": 0}
    study = built("pac-pfl", given, 9)
    assert (study.federation.rounds, study.method.options.rate, study.model.mean_widths) == (7, 0.5, (3, 2))
    assert (study.data.scale, study.data.lower_bound, study.seed) == ("pooled", 0.0, 9)


def test_names_of_several_tables_and_of_scikit_learn_have_their_table_in_front() -> None:
    names = {one.name: (one.table, one.option) for one in parameters_of("pfedbayes")}
    assert names["noise_std"] == ("method", "noise_std") and names["model_noise_std"] == ("model", "noise_std")
    assert names["data_transform"] == ("data", "transform") and "transform" not in names


@pytest.mark.parametrize(
    ("given", "said"), [({"rate": -1.0}, "rate"), ({"scale": "wild"}, "scale"), ({"rounds": 1.5}, "r")]
)
def test_a_value_out_of_its_range_is_refused_by_name(given: dict[str, object], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        built("pac-pfl", given, 0)


def test_the_signature_and_the_docstring_have_every_parameter() -> None:
    names = list(signature(parameters_of("pac-pfl"), {"seed": 0}).parameters)
    assert names[0] == "self" and names[-1] == "seed" and len(names) > 40
    text = arguments(parameters_of("pac-pfl"))
    assert all(f"        {name}: [" in text for name in names[1:-1])
    assert all(
        f"        {name}: " in (fl.PacPFLRegressor.__doc__ or "") for name in [*names[1:-1], "group", "federation_"]
    )
    assert plain(defaults("pac-pfl")["tau"]) == 1.0
