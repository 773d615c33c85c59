"""Users' objects in studies: named by file or package in place of a built-in name.

References such as "mine.py:MyMethod" lead to them (`plugins.references`); installed packages add names of their own by
entry points, such as `pacbayes_fl.methods`. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, replace
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal, get_type_hints

from pacbayes_fl import methods, settings
from pacbayes_fl.errors import ShapeError, StudyError, shown
from pacbayes_fl.options import options_of
from pacbayes_fl.plugins import references
from pacbayes_fl.plugins.table import OpenTable
from pacbayes_fl.results import metrics
from pacbayes_fl.results.metrics import Metric

if TYPE_CHECKING:
    from torch import Tensor

    from pacbayes_fl.methods.recipe import AnyMethod, Recipe


_PARTS: Final = ("method", "model", "federation", "data")


def _recipe(thing: object, module: ModuleType, name: str) -> Recipe | None:
    """Take a recipe, or a method with the recipe of its module or one that is derived from its dataclass."""
    from pacbayes_fl.methods.base import Method
    from pacbayes_fl.methods.recipe import Recipe

    if isinstance(thing, Recipe):
        return _checked(thing, name)
    if not (isinstance(thing, type) and issubclass(thing, Method)):
        return None
    return _checked(stated_recipe(thing, module) or recipe_of(thing), name)


def _checked(recipe: Recipe, name: str) -> Recipe:
    """Refuse tables of a recipe that say what its method or a study cannot have, before anything is trained."""
    from pacbayes_fl.study.config.parts import FederationPart

    _require_concrete(recipe.method)
    hint = "what dataclasses.replace makes of another recipe keeps all that is not replaced: give it tables of its own"
    named = {f"preset {preset!r}": parts for preset, parts in recipe.presets.items()}
    for table, parts in {**named, "own_rows": recipe.own_rows, "own_labels": recipe.own_labels}.items():
        if other := [part for part in parts if part not in _PARTS]:
            what = f"{name}, {table}: no part of a study is called {shown(other[0])}"
            raise StudyError(what, hint=settings.nearest(str(other[0]), _PARTS))
        for part, kind in (("method", recipe.options), ("federation", FederationPart)):
            where = f"{name}, {table} [{part}]"
            try:
                settings.parse(kind, parts.get(part, {}), where)
            except StudyError as error:
                if "unknown key" in str(error):
                    raise StudyError(str(error), hint=hint) from error
                raise StudyError(f"{where}: {error}") from error
    fields = getattr(recipe.method, "__dataclass_fields__", {})
    if other := [field for field in recipe.variant if field not in fields]:
        what = f"{name}, variant: {recipe.method.__name__} has no field {other[0]!r}"
        raise StudyError(what, hint=settings.nearest(other[0], fields))
    return recipe


def _require_concrete(method: type[AnyMethod]) -> None:
    if missing := sorted(getattr(method, "__abstractmethods__", ())):
        what = f"{method.__name__} does not define {', '.join(missing)}"
        raise StudyError(what, hint="a method defines all of them")


def stated_recipe(method: type[AnyMethod], module: ModuleType) -> Recipe | None:
    """Find the recipe of a method in its module.

    Args:
        method: its class.
        module: where it is defined.

    Returns:
        The first recipe there that is of this class; None without one.
    """
    from pacbayes_fl.methods.recipe import Recipe

    own = (each for each in vars(module).values() if isinstance(each, Recipe) and each.method is method)
    return next(own, None)


def recipe_of(method: type[AnyMethod]) -> Recipe:
    """Derive the recipe of a method from its dataclass.

    Args:
        method: its title is the first line of its docstring, its options are its fields with defaults and those of its
            parts, and its model is what the annotation of its field `model` says: a FunctionModel or a WeightModel.

    Returns:
        The recipe.

    Raises:
        StudyError: when the class is abstract or no frozen dataclass, a field that is neither the model nor `features`
            has no default, or its model or options are of no kind that a study has.
    """
    from pacbayes_fl.methods.recipe import MethodSummary, Recipe

    name = method.__name__
    _require_concrete(method)
    if "__dataclass_fields__" not in vars(method):
        raise StudyError(f"{name} is no dataclass", hint="decorate it with @dataclass(frozen=True)")
    given = {"model", "features"} | {each.name for each in options_of(method).values() if each.default is not MISSING}
    if needy := [each for each in options_of(method) if each not in given]:
        raise StudyError(f"{name} has no default for {', '.join(needy)}", hint="a study may leave every option out")
    title = (inspect.getdoc(method) or name).splitlines()[0].rstrip(".")
    model = _over(method)
    summary = MethodSummary(model, "see the class", "see the class", "its updates", "its clients' states")
    try:
        recipe = Recipe(title, method, summary, model=model)
        _ = recipe.options
    except (TypeError, ValueError) as error:
        raise StudyError(f"{name} has options that no study can hold: {error}") from error
    return recipe


def _over(method: type[AnyMethod]) -> Literal["functions", "weights"]:
    """Say what a method's model is a prior over."""
    from pacbayes_fl.models.base import FunctionModel, WeightModel

    try:
        kind = get_type_hints(method).get("model")
    except (NameError, TypeError, AttributeError) as error:
        raise StudyError(f"the annotations of {method.__name__} cannot be read: {error}") from error
    for base, over in ((FunctionModel, "functions"), (WeightModel, "weights")):
        if kind is None or (isinstance(kind, type) and issubclass(kind, base)):
            return over  # type: ignore[return-value]
    what = f"{method.__name__}.model is annotated {kind!r}"
    raise StudyError(what, hint="annotate it with pacbayes_fl.models.base.FunctionModel or WeightModel")


def _metric(thing: object, module: ModuleType, name: str) -> Metric | None:
    return metric_of(thing, name) if isinstance(thing, Metric) else None


def metric_of(thing: Metric, name: str) -> Metric:
    """Take a metric of one's own, whose name no built-in one has.

    Args:
        thing: the metric.
        name: what a study calls it.

    Returns:
        The metric, of which every result is checked to be a number per client [K].

    Raises:
        StudyError: when its name is a built-in one's or no identifier, or no end of it is called so.
    """
    from pacbayes_fl.results.client_rows import RESERVED

    taken = {*metrics.METRICS, *RESERVED}
    if thing.name in taken or not thing.name.isidentifier() or thing.name.endswith(metrics.RAW.format("")):
        what = f"{name}: a metric of one's own cannot be called {thing.name!r}"
        hint = (
            "choose an identifier that no built-in metric and no other column of a client has, and that does not end in"
        )
        raise StudyError(what, hint=f"{hint} _raw")
    if thing.better not in ("lower", "higher", ""):
        raise StudyError(f"{name}: better must be 'lower', 'higher' or '', got {shown(thing.better)}")

    def checked(predictive: object, y: Tensor, mask: Tensor, **given: object) -> Tensor:
        """Score by the user's function on copies of the rows, whose result must be a number per client [K]."""
        import torch

        values = {one.setting: given[one.argument] for one in thing.options if one.argument in given}
        scores = replace(thing, values=values)(predictive, y.clone(), mask.clone())
        shape = getattr(scores, "shape", None)
        if shape is None or tuple(shape) != (len(y),):
            got = type(scores).__name__ if shape is None else list(shape)
            raise ShapeError(f"the metric {name} must give a number per client, [{len(y)}], got {got}")
        return torch.as_tensor(scores, dtype=torch.float64, device=y.device).detach()

    return replace(thing, function=checked)


METHODS: Final = OpenTable(
    lambda: methods.METHODS, "pacbayes_fl.methods", "[method] name", "a subclass of Method, or a Recipe", _recipe
)
"""Every method by name or reference."""

METRICS: Final = OpenTable(
    lambda: metrics.METRICS, "pacbayes_fl.metrics", "[report] metrics", "a record pacbayes_fl.metrics.Metric", _metric
)
"""Every metric by name or reference."""


def forget() -> None:
    """Forget which files earlier studies of this process have brought."""
    references.read_again()


def blamed(error: BaseException) -> tuple[str | None, list[str]]:
    """Say whose an error may be that nobody expected.

    Args:
        error: with its trace.

    Returns:
        The innermost place of it in a file that a study has brought, such as "mine.py, line 3", None where no call is
        of one; and all such files.
    """
    return references.raised_in(error), references.brought()


def check_task(method: str, task: metrics.Task) -> None:
    """Refuse a method of regression on data with classes, and one of classification on numbers.

    Args:
        method: name of `METHODS`.
        task: what the data ask for.

    Raises:
        StudyError: saying which methods can learn them.
    """
    if task in METHODS[method].learns:
        return
    able = ", ".join(name for name, recipe in methods.METHODS.items() if task in recipe.learns)
    (own,) = METHODS[method].learns
    have, usual = ("classes", "pfedbayes") if task == "classification" else ("numbers", "pfedgp")
    raise StudyError(
        f"{method} is a method of {own}, and the data have {have}",
        hint=f"choose one of {able}, such as --set method.name={usual}",
    )
