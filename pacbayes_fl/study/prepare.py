"""From a study and its data to a method and clients that it can take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

import torch

from pacbayes_fl.data import tables
from pacbayes_fl.data.far_clients import without_far
from pacbayes_fl.data.foreign_units import say_foreign
from pacbayes_fl.data.linear_start import LinearStart, linear_moments, pooled_ridge
from pacbayes_fl.data.scaling import Shared, untouched
from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.methods.pac_pfl.choice import PriorChoice
from pacbayes_fl.methods.pac_pfl.folds import CrossFitted
from pacbayes_fl.methods.pac_pfl.gp import FederatedSVGD, PacPFL
from pacbayes_fl.methods.tempered import Tempered
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork
from pacbayes_fl.privacy.kinds import MECHANISMS
from pacbayes_fl.privacy.outside import Releases
from pacbayes_fl.study import residuals, size
from pacbayes_fl.study.config import choices
from pacbayes_fl.study.config.gp_model import GPModel, check_points, with_points
from pacbayes_fl.study.config.models import InstanceModel
from pacbayes_fl.study.config.plugins import check_task
from pacbayes_fl.study.data import ScaledGroup, scale
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import scaling


def device_of(study: Study) -> torch.device:
    """Choose the device that a study asks for.

    Args:
        study: its [federation] device is "auto", "cpu" or "cuda".

    Returns:
        The device.

    Raises:
        StudyError: when CUDA is asked for and there is none.
    """
    wanted = study.federation.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise StudyError(
            "[federation] device is 'cuda', and there is no CUDA device", hint="device = 'auto' takes what there is"
        )
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def prepare(
    study: Study,
    dataset: tables.Dataset,
    fold_of: Mapping[int, int] = MappingProxyType({}),
    shared: Shared | None = None,
    releases: Releases | None = None,
) -> tuple[AnyMethod, dict[str, ScaledGroup]]:
    """Build a study's method and bring its data into the method's units.

    A temperature that is still to be chosen is 1.

    Args:
        study: what to run.
        dataset: its data.
        fold_of: fold of every existing client by id, of a study whose certificates need folds.
        shared: how columns are scaled, of a run that goes on; settled by the training rows when None.
        releases: of a private run, makes the release by which they are settled across clients.

    Returns:
        The method, and the clients by group.

    Raises:
        StudyError: when the method or the model is not for such data, is too large for the memory, or cannot be trained
            in folds, or when columns cannot be scaled as asked.
        PrivacyError: when a private run would scale them across clients.
    """
    choices.refuse_open(study)
    residuals.check_method(study)
    existing: ScaledGroup | None = None
    if shared is None:
        shared = scaling.settle(study, dataset, releases)
        if isinstance(study.model, GPModel) and study.model.linear == "ridge":
            existing = _with_linear_start(study, dataset, shared)
            shared = existing.shared
    inner, dtype = _inner(study, dataset, shared.linear)
    size.check_method(study, inner, dataset)
    method = _wrapped(study, inner, fold_of)
    return method, _scaled(study, method, dataset, dtype, shared, existing)


def build(study: Study, schema: tables.Dataset) -> tuple[AnyMethod, torch.dtype | None]:
    """Build a study's method for whoever has the columns of its data and none of their rows.

    Args:
        study: what was run.
        schema: its columns; groups are not looked at.

    Returns:
        The method, and the dtype of its rows; None for the data's own.

    Raises:
        StudyError: as `prepare`.
    """
    inner, dtype = _inner(study, schema)
    return _wrapped(study, inner, {}), dtype


def _with_linear_start(study: Study, dataset: tables.Dataset, shared: Shared) -> ScaledGroup:
    """Scale the existing clients and add the ridge regression of their training rows, where learning starts."""
    existing = scale(dataset.groups["existing"], shared, device_of(study), None, scaling.names(dataset))
    train, names = existing.train.to("cpu"), [*scaling.inputs(study, dataset), dataset.target.name]
    train = without_far(train, names, [True] * len(names), "the regression where learning starts")
    start = pooled_ridge(linear_moments(train))  # on every device alike
    return replace(existing, shared=shared._replace(linear=start))


def _inner(
    study: Study, dataset: tables.Dataset, linear: LinearStart | None = None
) -> tuple[AnyMethod, torch.dtype | None]:
    if study.instances.method is None:
        check_task(study.method.name, dataset.task)
    _check_given(study.instances.model, dataset)
    inputs = scaling.inputs(study, dataset)
    shape = dataset.feature_shape or (len(inputs),)
    size.check_model(study, math.prod(shape), dataset.classes)
    device = device_of(study)
    with torch.device(device), _seeded(study.seed, device):  # a hyper-prior's centre is made where particles will be
        part = study.model
        if isinstance(part, InstanceModel):
            model = study.instances.model
        elif isinstance(part, GPModel):
            model = part.build(shape, dataset.classes, linear)
        else:
            model = part.build(shape, dataset.classes)
        dtype = model.dtype if isinstance(model, BayesianNetwork) else None
        model = with_points(model, part.inducing)
        method = study.recipe.build(study.method.options, model, inputs)
    check_points(study.method.name, method, part.inducing)
    given = study.instances
    if given.model is not None and given.method is None and getattr(method, "model", None) is not model:
        what = f"the model given, {type(given.model).__name__}, would count for nothing"
        raise StudyError(f"{what}: {study.method.name} has one of its own", hint="leave it out, or name another method")
    return method, dtype


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let what a kind of model of one's own draws when it is made be the same wherever a run is opened."""
    with torch.random.fork_rng([] if device.type == "cpu" else [device]):
        torch.manual_seed(seed)
        yield


def _check_given(model: object, dataset: tables.Dataset) -> None:
    """Refuse a model of a program that predicts numbers where the data have labels, or labels where they have not."""
    labels = dataset.classes is not None
    have = f"the data have {dataset.classes} classes" if labels else "the targets are numbers"
    if isinstance(model, FunctionModel) and labels:
        what = f"{type(model).__name__} is a prior over functions, whose values are numbers, and {have}"
        raise StudyError(what, hint="a network with Categorical; pfedgp-tree has Gaussian processes for classes")
    if not isinstance(model, BayesianNetwork):
        return
    likelihood, of_labels = model.likelihood, isinstance(model.likelihood, Categorical)
    if of_labels != labels or (isinstance(likelihood, Categorical) and likelihood.classes != dataset.classes):
        said = f"{type(likelihood).__name__}({likelihood.outputs if of_labels else ''})"
        hint = f"Categorical({dataset.classes})" if labels else "Gaussian(), or data.task = 'classification' for labels"
        raise StudyError(f"the model given has the likelihood {said}, and {have}", hint=hint)


def _wrapped(study: Study, method: AnyMethod, fold_of: Mapping[int, int]) -> AnyMethod:
    """Put a private choice, folds and a temperature around a method, where the study has them."""
    part = study.privacy
    if part.epsilon is not None and MECHANISMS[part.mechanism].chooses:
        if not isinstance(method, PacPFL):
            what = f"[privacy] mechanism = {part.mechanism!r} chooses one of several priors, and {study.method.name}"
            raise PrivacyError(f"{what} learns none by rounds of Gaussian processes", hint="pac-pfl or pfedgp do")
        method = PriorChoice(method, part.candidates, part.candidate_step, study.seed)
    if study.report.certify.scheme == "folds":
        method = _cross_fitted(study, method, fold_of)
    if study.model.temperature not in (1.0, "held-out"):
        method = Tempered(method, float(study.model.temperature))
    return method


def _scaled(
    study: Study,
    method: AnyMethod,
    dataset: tables.Dataset,
    dtype: torch.dtype | None,
    shared: Shared,
    existing: ScaledGroup | None,
) -> dict[str, ScaledGroup]:
    """Bring all groups into the method's units, by what the existing clients settle; these may be there already."""
    if method.raw_units:
        own = untouched(len(dataset.features))
        shared, existing = own._replace(average=shared.average, bounds=shared.bounds), None
    how = device_of(study), dtype, scaling.names(dataset)
    if existing is None:
        existing = scale(dataset.groups["existing"], shared, *how)
    if shared.average is None and study.privacy.epsilon is None and not dataset.feature_shape:
        known = existing.units if shared.transform is None else existing.used  # those of the targets that are learned
        existing = replace(existing, shared=shared._replace(average=known.average()))
    others = {name: scale(group, existing.shared, *how) for name, group in dataset.groups.items() if name != "existing"}
    for group in others.values():
        say_foreign(existing.shared.learned(group.raw.train), existing.shared, scaling.names(dataset))
    return {name: others.get(name, existing) for name in dataset.groups}


def _cross_fitted(study: Study, method: AnyMethod, fold_of: Mapping[int, int]) -> CrossFitted:
    """Train a hyper-posterior for every fold of the existing clients without them."""
    if not (isinstance(method, FederatedSVGD) and method.personal_messages):
        raise StudyError(
            f"{study.method.name} cannot be trained in folds of clients", hint="report.certify.scheme = 'split'"
        )
    return CrossFitted(method, study.report.certify.folds, fold_of)
