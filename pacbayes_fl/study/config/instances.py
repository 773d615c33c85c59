"""Objects given to a run from Python: a method, a model, a data set and metrics, in place of the study's names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from inspect import getdoc
from types import MappingProxyType
from typing import Final

from pacbayes_fl.data import tables
from pacbayes_fl.errors import StudyError, shown
from pacbayes_fl.methods.base import AnyMethod, Method
from pacbayes_fl.methods.recipe import MethodSummary, Recipe
from pacbayes_fl.models.base import FunctionModel, WeightModel
from pacbayes_fl.plugins.references import INSTANCE
from pacbayes_fl.results.metrics import Metric
from pacbayes_fl.study.config.identity import Identity, identity
from pacbayes_fl.study.config.plugins import metric_of, stated_recipe

Model = FunctionModel | WeightModel

DATA: Final = f"{INSTANCE}data"
"""What a study calls the data set that a program has given it."""


@dataclass(frozen=True)
class Instances:
    """Objects in place of the names of a study.

    Args:
        method: the algorithm, with its model and the values of its options.
        model: the prior or network, of a method that the study names or of the one that is given.
        data: the clients' rows.
        metrics: scored beside all built-in ones.
    """

    method: AnyMethod | None = None
    model: Model | None = None
    data: tables.Dataset | None = None
    metrics: tuple[Metric, ...] = ()

    def __post_init__(self) -> None:
        """Check the kinds of the objects, and that a method that is given has the model that is given.

        Raises:
            StudyError: naming the argument, what was expected and what came.
        """
        for name, kind, expected in (
            ("method", Method, "Method"),
            ("model", Model, "FunctionModel or WeightModel"),
            ("data", tables.Dataset, "Dataset"),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                hint = "a study names classes, as [method] name = 'mine.py:MyMethod'" if name == "method" else None
                raise StudyError(f"{name} must be an instance of {expected}, got {shown(value)}", hint=hint)
        for metric in self.metrics:
            if not isinstance(metric, Metric):
                raise StudyError(f"metrics must be records Metric, got {shown(metric)}")
        if self.method is not None and not is_dataclass(self.method):
            what = f"method must be a frozen dataclass, got {type(self.method).__name__}"
            raise StudyError(what, hint="decorate its class with @dataclass(frozen=True)")
        held = getattr(self.method, "model", None)
        if self.method is not None and self.model is not None and self.model is not held:
            what = f"model is another than the one that the method holds, {type(held).__name__}"
            raise StudyError(
                what, hint="give the method alone; dataclasses.replace(method, model=...) changes its model"
            )
        if self.method is not None and isinstance(held, Model):
            object.__setattr__(self, "model", held)

    def beside(self, before: Instances) -> Instances:
        """Keep what a study was given before where nothing has come in its place.

        Args:
            before: of the study.

        Returns:
            These objects, and those of before; a method that comes brings its model.
        """
        method, model = self.method, self.model
        if method is None:
            method, model = before.method, before.model if model is None else model
        more = (one for one in self.metrics if one not in before.metrics)
        return Instances(method, model, before.data if self.data is None else self.data, (*before.metrics, *more))

    @property
    def method_name(self) -> str:
        """Name of the method in a study."""
        return f"{INSTANCE}{type(self.method).__name__}"

    @property
    def model_kind(self) -> str:
        """Name of the model in a study."""
        return f"{INSTANCE}{'none' if self.model is None else type(self.model).__name__}"

    @cached_property
    def recipes(self) -> Mapping[str, Recipe]:
        """The recipe of the method by its name; nothing where none is given."""
        method = self.method
        if method is None:
            return MappingProxyType({})
        stated = stated_recipe(type(method), sys.modules[type(method).__module__])
        over = "weights" if isinstance(self.model, WeightModel) else "functions"
        recipe = Recipe(
            (getdoc(type(method)) or type(method).__name__).splitlines()[0].rstrip("."),
            type(method),
            MethodSummary(over, "see the class", "see the class", "its updates", "its clients' states"),
            rounds=stated is None or stated.rounds,
            model=over,  # type: ignore[arg-type]
            instance=method,
        )
        return MappingProxyType({self.method_name: recipe})

    @cached_property
    def metrics_by_name(self) -> Mapping[str, Metric]:
        """The metrics by what a study calls them."""
        names = [f"{INSTANCE}{metric.name}" for metric in self.metrics]
        return MappingProxyType(
            {name: metric_of(metric, name) for name, metric in zip(names, self.metrics, strict=True)}
        )

    @cached_property
    def identities(self) -> Mapping[str, Identity]:
        """What the method, or the model where that is given alone, and the metrics are, by what a study calls them.

        The rows of a data set are compared client by client, as those of files are.
        """
        result: dict[str, AnyMethod | Model | Metric] = {}
        if self.method is not None:
            result[self.method_name] = self.method
        elif self.model is not None:
            result[self.model_kind] = self.model
        result |= {f"{INSTANCE}{metric.name}": metric for metric in self.metrics}
        return MappingProxyType({name: identity(one) for name, one in result.items()})

    def source(self, name: str) -> tables.Dataset | None:
        """Give the data set of a study's [data] source.

        Args:
            name: as the study has it.

        Returns:
            The data set; None where the source is another.

        Raises:
            StudyError: when it is one that a program has given, and now gives none.
        """
        if name != DATA:
            return None
        if self.data is None:
            raise refused(name, "[data] source")
        return self.data


NO_INSTANCES: Final = Instances()
"""What most runs are given: a study alone."""


def refused(name: str, where: str) -> StudyError:
    """The error of a missing object.

    Args:
        name: as a study has it.
        where: the option that names it.

    Returns:
        The error.
    """
    argument = {"[method] name": "method", "[model] kind": "model", "[data] source": "data"}.get(where, "metrics")
    what = f"{where}: {name.removeprefix(INSTANCE)!r} is an object that a program has given its run, and no file has it"
    return StudyError(what, hint=f"give it again from Python: pacbayes_fl.open_run(RUN, {argument}=...), or run alike")
