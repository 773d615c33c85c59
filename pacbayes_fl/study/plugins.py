"""Users' objects in studies: named by file or package in place of a built-in name.

References such as "mine.py:MyMethod" lead to them (`study.references`); installed packages add names of their own by
entry points, such as `pacbayes_fl.methods`. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar, get_type_hints

from pacbayes_fl import methods
from pacbayes_fl.errors import ShapeError, StudyError, shown
from pacbayes_fl.options import options_of
from pacbayes_fl.results import metrics
from pacbayes_fl.results.metrics import Metric
from pacbayes_fl.settings import nearest
from pacbayes_fl.study.references import Loaded, Reference, load_file, load_module, reference

if TYPE_CHECKING:
    from torch import Tensor

    from pacbayes_fl.methods.recipe import AnyMethod, Recipe

Record = TypeVar("Record")


class OpenTable(Mapping[str, Record], Generic[Record]):
    """A table of built-in records that also holds those of installed packages and, by reference, of users' files.

    Args:
        known: the built-in records by name; it is called when it is first needed.
        group: of the entry points of installed packages, such as "pacbayes_fl.methods".
        where: the option of a study that names a record, such as "[method] name".
        expected: what a reference must lead to, such as "a subclass of Method".
        record: makes a record of an object, its module and the name that a study gives it; None where it is no such
            object.
    """

    def __init__(
        self,
        known: Callable[[], Mapping[str, Record]],
        group: str,
        where: str,
        expected: str,
        record: Callable[[object, ModuleType, str], Record | None],
    ) -> None:
        """Nothing is loaded yet."""
        self._known, self._group, self._record = known, group, record
        self._where, self._expected = where, expected
        self._made: dict[tuple[str, str], Record] = {}

    def __getitem__(self, name: str) -> Record:
        """Give a record.

        Args:
            name: of a built-in record or an entry point, or a reference.

        Returns:
            The record.

        Raises:
            KeyError: when there is none of that name, and it is no reference.
            StudyError: when a reference leads to nothing, or to an object of another kind.
        """
        known = self._known()
        if isinstance(name, str) and name in known:
            return known[name]
        loaded, reference = self._loaded(name)
        if (name, loaded.sha256) not in self._made:
            self._made[name, loaded.sha256] = self._taken(name, loaded, reference)
        return self._made[name, loaded.sha256]

    def __contains__(self, name: object) -> bool:
        """Whether a study may say this name; nothing is imported, so that a reference may yet lead to nothing."""
        if not isinstance(name, str):
            return False
        return name in self._known() or reference(name) is not None or name in self.entries()

    def __iter__(self) -> Iterator[str]:
        """Go through the names of built-in records, then through those of installed packages."""
        yield from self._known()
        yield from (name for name in self.entries() if name not in self._known())

    def __len__(self) -> int:
        """Number of names."""
        return sum(1 for _ in self)

    def entries(self) -> dict[str, metadata.EntryPoint]:
        """Find the records of installed packages.

        Returns:
            Entry points by name, not loaded.
        """
        return {entry.name: entry for entry in metadata.entry_points(group=self._group)}

    def listing(self) -> list[tuple[str, str]]:
        """List the entries of installed packages.

        Returns:
            Names, each with the package that brings it.
        """
        return [(name, _package(entry)) for name, entry in self.entries().items() if name not in self._known()]

    def origin(self, name: str) -> Loaded | None:
        """The file of a record.

        Args:
            name: as `__getitem__` takes it.

        Returns:
            The module that was imported; None of a built-in record.

        Raises:
            KeyError, StudyError: as `__getitem__`.
        """
        return None if name in self._known() else self._loaded(name)[0]

    def _loaded(self, name: str) -> tuple[Loaded, Reference]:
        result = reference(name)
        if result is None:
            entry = self.entries().get(name)
            result = None if entry is None else reference(entry.value.replace(" ", ""))
            if result is None:
                raise KeyError(name)
        if result.is_file:
            return load_file(Path(result.place), self._where), result
        return load_module(result.place, self._where), result

    def _taken(self, name: str, loaded: Loaded, reference: Reference) -> Record:
        module = loaded.module
        if not hasattr(module, reference.name):
            public = [each for each in vars(module) if not each.startswith("_")]
            what = f"{self._where}: {reference.place} has no {reference.name!r}"
            raise StudyError(what, hint=nearest(reference.name, public))
        thing = getattr(module, reference.name)
        record = self._record(thing, module, name)
        if record is None:
            what = f"{self._where}: {reference} must be {self._expected}, got {_kind(thing)}"
            raise StudyError(what, hint=f"define it in {reference.place}")
        return record


def _package(entry: metadata.EntryPoint) -> str:
    return f"of the package {entry.dist.name}" if entry.dist is not None else f"from {entry.value}"


def _kind(thing: object) -> str:
    """Name an object in an error."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return f"{shown(thing)} of type {type(thing).__name__}"


def _recipe(thing: object, module: ModuleType, name: str) -> Recipe | None:
    """Take a recipe, or a method with the recipe of its module or one that is derived from its dataclass."""
    from pacbayes_fl.methods.base import Method
    from pacbayes_fl.methods.recipe import Recipe

    if isinstance(thing, Recipe):
        return thing
    if not (isinstance(thing, type) and issubclass(thing, Method)):
        return None
    return stated_recipe(thing, module) or recipe_of(thing)


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
    if missing := sorted(getattr(method, "__abstractmethods__", ())):
        raise StudyError(f"{name} does not define {', '.join(missing)}", hint="a method defines all of them")
    if "__dataclass_fields__" not in vars(method):
        raise StudyError(f"{name} is no dataclass", hint="decorate it with @dataclass(frozen=True)")
    given = {"model", "features"} | {each.name for each in options_of(method).values() if each.default is not MISSING}
    if needy := [each for each in options_of(method) if each not in given]:
        raise StudyError(f"{name} has no default for {', '.join(needy)}", hint="a study may leave every option out")
    title = (inspect.getdoc(method) or name).splitlines()[0].rstrip(".")
    model = _over(method)
    summary = MethodSummary(model, "see the class", "see the class", "its updates", "its clients' states")
    recipe = Recipe(title, method, summary, model=model)
    try:
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
        StudyError: when its name is a built-in one's or no identifier.
    """
    if thing.name in metrics.METRICS or not thing.name.isidentifier() or thing.name.endswith(metrics.RAW.format("")):
        what = f"{name}: a metric of one's own cannot be called {thing.name!r}"
        raise StudyError(what, hint="choose an identifier that no built-in metric has and that does not end in _raw")

    def checked(predictive: object, y: Tensor, mask: Tensor, **given: object) -> Tensor:
        """Score by the user's function, whose result must be a number per client [K]."""
        values = {one.setting: given[one.argument] for one in thing.options if one.argument in given}
        scores = replace(thing, values=values)(predictive, y, mask)
        shape = getattr(scores, "shape", None)
        if shape is None or tuple(shape) != (len(y),):
            got = type(scores).__name__ if shape is None else list(shape)
            raise ShapeError(f"the metric {name} must give a number per client, [{len(y)}], got {got}")
        return scores

    return replace(thing, function=checked)


METHODS: Final = OpenTable(
    lambda: methods.METHODS, "pacbayes_fl.methods", "[method] name", "a subclass of Method, or a Recipe", _recipe
)
"""Every method by name or reference."""

METRICS: Final = OpenTable(
    lambda: metrics.METRICS, "pacbayes_fl.metrics", "[report] metrics", "a record pacbayes_fl.metrics.Metric", _metric
)
"""Every metric by name or reference."""
