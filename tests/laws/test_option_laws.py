"""Laws of options: for every method of the table, one place says what its options are, in a program as in a study."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
import torch

from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Method
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import HELD_OUT, Recipe
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.options import Option, options_of
from pacbayes_fl.posteriors.hyper_posterior import CentredHyperPrior, GaussianHyperPrior
from pacbayes_fl.study.file import Study
from tests.laws.cases import model_of

FEATURES = ("wind", "lag_1")
NAMES = tuple(METHODS)


def differences(one: Any, other: Any, at: str = "") -> Iterator[str]:
    """Yield dotted names of the fields in which two values differ."""
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        for field in dataclasses.fields(one):
            name = f"{at}.{field.name}" if at else field.name
            yield from differences(getattr(one, field.name), getattr(other, field.name), name)
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or not torch.equal(one, other):
            yield at
    elif one is not other and one != other:
        yield at


def recommended(name: str, model: Any) -> Method[Any, Any, Any, Any]:
    """Build what the recommended study trains; what it leaves open has its first candidate."""
    recipe, options = METHODS[name], Study.from_table({"method": {"name": name}}).method.options
    asks = [one for one in recipe.held_out if getattr(options, one.option, None) == HELD_OUT]
    settled = dataclasses.replace(options, **{one.option: one.candidates(options)[0] for one in asks})
    return recipe.build(settled, model, FEATURES)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_trains_what_the_recommended_study_trains(name: str) -> None:
    """The class with its defaults is the method, but for the fields that make a variant of it."""
    recipe = METHODS[name]
    model, needed = model_of(recipe), {field.name for field in dataclasses.fields(recipe.method) if required(field)}
    given = {key: value for key, value in {"model": model, "features": FEATURES}.items() if key in needed}
    plain = recipe.method(**given)
    assert {path.split(".")[0] for path in differences(plain, recommended(name, model))} == set(recipe.variant)
    varied = recipe.method(**given, **recipe.variant)
    assert not [*differences(varied, recommended(name, model))]
    assert not [*differences(recipe.make(model, FEATURES), recommended(name, model))]


def required(field: Any) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def test_differences_are_found_in_every_depth() -> None:
    recipe = METHODS["pfedbayes"]
    model = model_of(recipe)
    one, other = recipe.make(model), recipe.make(model, zeta=2.0, prior_rate=0.5, draws=3)
    assert set(differences(one, other)) == {"local.zeta", "tracking.rate", "draws"}
    location = DeepKernelGP(2, (3,), (3,)).location()
    priors = [GaussianHyperPrior(location + shift, 0.3) for shift in (0.0, 0.0, 1.0)]
    assert not set(differences(*priors[:2])) and set(differences(*priors[1:])) == {"loc"}
    assert set(differences(CentredHyperPrior(), CentredHyperPrior(0.5))) == {"std"}


def each_option(law: Callable[[str, Option], None]) -> Callable[[str], None]:
    """Make one test a method of a law of every option, which names the option that breaks it."""

    @pytest.mark.parametrize("name", NAMES)
    def of_all(name: str) -> None:
        for one in options_of(METHODS[name].options).values():
            try:
                law(name, one)
            except BaseException as error:  # of pytest too, where no error is raised
                error.add_note(f"the option {one.name} of {name}")
                raise

    of_all.__doc__ = law.__doc__
    return of_all


@each_option
def test_every_option_has_a_meaning_a_default_of_its_kind_and_a_range(name: str, one: Option) -> None:
    assert len(one.meaning.split()) >= 2 and "\n" not in one.meaning and "as in `" not in one.meaning
    if {int, float} & {one.kind, *get_args(one.kind)}:
        ends = [end for end in (one.range.low, one.range.above) if end is not None]
        assert len(ends) == 1 and math.isfinite(ends[0]), "a number has a lower bound"
    else:
        assert not any(value is not None for value in dataclasses.astuple(one.range))
    assert METHODS[name].options(**{one.name: one.default}) == METHODS[name].options()
    if isinstance(one.default, str):
        assert str in (one.kind, *get_args(one.kind)) or one.default in one.names


@each_option
def test_a_number_out_of_its_range_is_refused_by_name(name: str, one: Option) -> None:
    """In a study's table, and where a program builds the method: one range, two doors."""
    recipe, low = METHODS[name], one.range.low if one.range.above is None else one.range.above
    if low is None:
        if one.names:
            with pytest.raises(StudyError, match=f"{one.name} must be .*got 'nonsense'"):
                recipe.options(**{one.name: "nonsense"})
        return
    wrong = low - 1 if one.range.above is None else low
    for value in (wrong, -math.inf, math.nan):
        with pytest.raises(StudyError, match=rf"^{one.name} must be .*, got {value:g}( \(.+\))?$"):
            recipe.options(**{one.name: value})
    if one.range.high is not None:
        with pytest.raises(StudyError, match=one.name):
            recipe.options(**{one.name: one.range.high + 1})
    held = [path for path, placed in recipe.placed.items() if placed.name == one.name]
    for path in held:
        *parts, field = path.split(".")
        owner: Any = default_of(recipe, parts[0]) if parts else None
        with pytest.raises(StudyError, match=f"{field} must be .*got {wrong:g}"):
            if owner is not None:
                dataclasses.replace(owner, **{field: wrong})
            else:
                dataclasses.replace(recipe.make(model_of(recipe), FEATURES), **{field: wrong})


def default_of(recipe: Recipe, field: str) -> Any:
    factory: Any = {one.name: one.default_factory for one in dataclasses.fields(recipe.method)}[field]
    return recipe.variant.get(field) or factory()


@each_option
def test_every_option_reaches_the_field_that_holds_it(name: str, one: Option) -> None:
    recipe = METHODS[name]
    paths = [path for path, placed in recipe.placed.items() if placed.name == one.name]
    if not paths:
        assert one.name in {field.name for field in dataclasses.fields(recipe.trials)}  # type: ignore[arg-type]
        return
    (path,) = paths
    if (name, one.name) == ("sfedbayes", "noise_std"):
        with pytest.raises(StudyError, match="noise_std must be 1 for gates that are drawn"):
            recipe.make(model_of(recipe), noise_std=0.5)
        return
    if path.startswith("hyper_prior."):
        return  # below: the method holds what is made of them
    value, rest = another(one)
    if name == "pbb" and one.name in ("divergence", "family"):
        rest = {"aggregation": "tracked"}  # moments are of a mean field, and minimise KL(q || w)
    method = recipe.make(model_of(recipe), FEATURES, **{one.name: value}, **rest)
    assert operator.attrgetter(path)(method) == value
    assert operator.attrgetter(path)(recipe.make(model_of(recipe), FEATURES)) != value


REST: dict[str, dict[str, Any]] = {
    "epochs": {"steps": None},
    "personal_epochs": {"personal_steps": None},
    "lam": {"tau": None, "beta": 2.0},
    "beta": {"tau": None, "lam": 9.0},
}
"""Options that a value other than the default, None, asks for."""

WORDS = {"column": "wind", "own_hyper_prior": "tests.user_objects:any_hyper_prior"}
"""Texts that options may be which no table names."""

BESIDE: dict[str, dict[str, Any]] = {"momentum": {"optimiser": "sgd"}}
"""Options that a value other than a default number asks for."""


def another(one: Option) -> tuple[Any, dict[str, Any]]:
    """Return a valid value that is not the default, and the options that it needs beside it."""
    rest = (REST if one.default is None else BESIDE).get(one.name, {})
    if one.name in ("lam", "beta") and one.default is None:
        return 9.0, rest
    if one.name in WORDS:
        return WORDS[one.name], rest
    if isinstance(one.default, bool):
        return not one.default, rest
    words = [word for word in one.names if word not in (one.default, HELD_OUT)]
    if isinstance(one.default, str) and words:
        return words[0], rest
    if one.default is None or isinstance(one.default, str):
        return (3 if int in get_args(one.kind) else 0.25), rest
    if isinstance(one.default, int):
        return one.default + 1, rest
    top = one.range.high if one.range.high is not None else one.range.below
    return (one.default * 0.5 if one.default else 0.125 if top is None else top / 8), rest


def test_hyper_priors_are_made_of_their_options() -> None:
    recipe = METHODS["pac-pfl"]
    model = model_of(recipe)
    method: Any = recipe.make(model, hyper_prior_std=0.7)
    assert method.hyper_prior.std == 0.7 and torch.equal(method.hyper_prior.loc, model.location())
    flat: Any = METHODS["pfedgp"].make(model, init_std=0.7)
    assert flat.hyper_prior.std == 0.7 and not flat.hyper_prior.score(model.location().unsqueeze(0)).any()
    network = model_of(METHODS["pac-pfl-bnn"])
    wide: Any = METHODS["pac-pfl-bnn"].make(network, mean_std=2.0, init_rho=-3.5, rho_std=0.5, init_std=0.25)
    d = network.dim
    assert (wide.hyper_prior.loc[d:] == -3.5).all() and not wide.hyper_prior.loc[:d].any()
    assert wide.hyper_prior.std.tolist() == [2.0] * d + [0.5] * d
    assert torch.equal(wide.hyper_prior.start_std, torch.tensor([0.25] * d + [0.0] * d))


@pytest.mark.parametrize("name", NAMES)
def test_what_the_paper_states_is_its_preset_and_says_where(name: str) -> None:
    study = Study.from_table({"method": {"name": name, "preset": "paper"}}).method.options
    for one in METHODS[name].placed.values():
        if one.paper is not None:
            assert isinstance(one.paper, Paper) and one.paper.where
            if one.paper.value is not ...:
                assert getattr(study, one.name) == one.paper.value, one.name


@pytest.mark.parametrize("name", [name for name in NAMES if METHODS[name].presets["paper"]])
def test_a_paper_has_stated_something(name: str) -> None:
    assert any(isinstance(one.paper, Paper) for one in METHODS[name].placed.values())
    assert any(METHODS[name].presets["paper"].values())
