"""From a study and its data to a method and clients that it can take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from pacbayes_fl import study_size
from pacbayes_fl.data import tables
from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods.base import Method
from pacbayes_fl.methods.federated_svgd import FederatedSVGD
from pacbayes_fl.methods.folded import Folded
from pacbayes_fl.methods.tempered import Tempered
from pacbayes_fl.study_data import ScaledGroup, scale
from pacbayes_fl.study_file import Study
from pacbayes_fl.study_model import ModelPart, NetworkPart, check_task


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
    study: Study, dataset: tables.Dataset, fold_of: Mapping[int, int] = MappingProxyType({})
) -> tuple[Method[Any, Any, Any, Any], dict[str, ScaledGroup]]:
    """Build a study's method and bring its data into the method's units.

    A temperature that is still to be chosen is 1.

    Args:
        study: what to run.
        dataset: its data.
        fold_of: fold of every existing client by id, of a study whose certificates need folds.

    Returns:
        The method, and the clients by group.

    Raises:
        StudyError: when the method or the model is not for such data, is too large for the memory, or cannot be trained
            in folds.
    """
    check_task(study.method.name, dataset.classes is not None)
    shape = dataset.feature_shape or (len(dataset.features),)
    study_size.check_model(study, math.prod(shape), dataset.classes)
    device, dtype = device_of(study), None
    with torch.device(device):  # a hyper-prior's centre is made once, where the particles will be
        if isinstance(study.model, ModelPart):
            model: Any = study.model.build(len(dataset.features))
        else:
            model = study.model.build(shape, dataset.classes)
            dtype = model.dtype
        method = study.recipe.build(study.method.options, model, [column.name for column in dataset.features])
    study_size.check_method(study, method, dataset)
    if study.report.certify.scheme == "folds":
        method = _folded(study, method, fold_of)
    if isinstance(study.model, NetworkPart) and study.model.temperature not in (1.0, "held-out"):
        method = Tempered(method, float(study.model.temperature))
    return method, {name: scale(group, method.raw_units, device, dtype) for name, group in dataset.groups.items()}


def _folded(study: Study, method: Method[Any, Any, Any, Any], fold_of: Mapping[int, int]) -> Folded:
    """Train a hyper-posterior for every fold of the existing clients without them."""
    if not (isinstance(method, FederatedSVGD) and method.personal_messages):
        raise StudyError(
            f"{study.method.name} cannot be trained in folds of clients", hint="report.certify.scheme = 'split'"
        )
    return Folded(method, study.report.certify.folds, fold_of)
