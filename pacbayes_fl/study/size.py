"""Memory of a study, estimated before allocation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

from pacbayes_fl.data import memory, tables
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.study.config.models import InstanceModel
from pacbayes_fl.study.file import Study

_COPIES: Final = (
    "particles",
    "svgd_particles",
    "clusters",
    "max_clusters",
    "members",
)  # and all that ends in "draws": of all weights


class _Demand(NamedTuple):
    """Bytes, their use, and the options that determine them."""

    size: int
    what: str
    options: str


def check_model(study: Study, inputs: int, classes: int | None) -> None:
    """Refuse networks of more weights than there is memory for.

    Args:
        study: any.
        inputs: d, numbers of one input.
        classes: C of labels 0..C-1; None for regression.

    Raises:
        StudyError: with the size asked for, the limit and the options to change.
    """
    if isinstance(study.model, InstanceModel):
        return  # it is there already
    weights, which = study.model.size(inputs, classes)
    what = f"{'a network' if study.recipe.model == 'weights' else 'a model'} of {weights} weights"
    _refuse([_Demand((4 if study.model.single else 8) * weights, what, which)])


def check_method(study: Study, method: AnyMethod, dataset: tables.Dataset) -> None:
    """Refuse a method that holds more copies of its model than there is memory for.

    What is counted is the least that a round needs: the weights of every client of a cohort, all particles or draws of
    one client, and what `Method.footprint` says of its rows, which for an exact Gaussian process is their square.

    Args:
        study: of the method.
        method: as built.
        dataset: the data.

    Raises:
        StudyError: with the size asked for, the limit and the options to change.
    """
    model = getattr(method, "model", None)
    if model is None:
        return
    size = 4 if study.model.single else 8
    clients = dataset.groups["existing"].train.clients
    cohort = min(clients, study.federation.cohort or clients)
    rows = max(int(group.train.size.max()) for group in dataset.groups.values())
    demands = [
        _Demand(size * model.dim * cohort, f"the model of each of {cohort} clients", "model.widths, federation.cohort"),
        _Demand(size * method.footprint(rows), f"a client of {rows} rows", "the model's widths, minibatch, particles"),
        *_copies(study.instances.method or study.method.options, size * model.dim, size),
    ]
    _refuse(demands)


def _copies(options: Any, size: int, number: int) -> Iterator[_Demand]:
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, int) and (field.name in _COPIES or field.name.endswith("draws")):
            yield _Demand(size * value, f"a model {value} times over", f"method.{field.name}")
            if field.name == "particles":  # distances between all pairs
                yield _Demand(number * value**2, f"{value} particles, pair by pair,", "method.particles")
        elif field.name == "inducing":
            yield _Demand(number * value**2, f"a covariance of {value} inducing points", "method.inducing")


def _refuse(demands: Sequence[_Demand]) -> None:
    most = max(demands, key=lambda one: one.size)
    memory.require(most.size, most.what, f"lower {most.options}")
