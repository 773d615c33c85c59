"""The transform of a study's target, with a power that its training rows may settle."""

from __future__ import annotations

import warnings
from typing import NamedTuple

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.learned_power import learned_power, power_sums
from pacbayes_fl.data.transforms import Transform
from pacbayes_fl.errors import PrivacyError, StudyError, caller_stacklevel
from pacbayes_fl.study.config.gp_model import GPModel
from pacbayes_fl.study.file import Study


def settle_transform(study: Study, train: ClientBatch, why: str) -> Transform | None:
    """Give the transform of a study's target, by one message of sums of every client where its power is learned.

    Args:
        study: its [data] says which.
        train: training rows of the existing clients, in the data's own units.
        why: why no sums of all clients' rows can be had, in words; "" where they can.

    Returns:
        The transform with its power, None for none; see `data.learned_power`.

    Raises:
        DataError: naming a client that has a target outside the domain.
        StudyError: when targets are labels, nobody may learn anything of others' rows, or predictions have no mean.
        PrivacyError: when a private run would publish the sums, which nothing pays for.
    """
    transform = study.data.target_transform
    if transform is None:
        return None
    if not train.y.is_floating_point():
        raise StudyError("[data] transform is of numbers, and targets are labels", hint="drop it")
    transform.check(train)
    if study.data.transform_lambda != "learned":
        check_moments(study, transform)
        return transform
    if why:
        what = f"[data] transform_lambda = 'learned' takes sums of all clients' targets, and {why}"
        kind = PrivacyError if study.privacy.epsilon is not None else StudyError
        raise kind(what, hint="data.transform_lambda = 0.5, or another number from 0 to 2")
    power = learned_power(power_sums(train))
    if power is None:
        why = "training targets do not vary, or cannot be squared"
        what = f"data.transform_lambda = 1, which leaves targets as they are: {why}"
        warnings.warn(what, stacklevel=caller_stacklevel())
    transform = transform._replace(power=1.0 if power is None else power)
    check_moments(study, transform)
    return transform


def check_moments(study: Study, transform: Transform | None) -> None:
    """Refuse Student-t noise of t under which E|y| is infinite, and warn where E y^2 is.

    Args:
        study: has the noise, and the bounds of targets.
        transform: of them, with its power; None for none.

    Raises:
        StudyError: when predictions have no mean.

    Warns:
        UserWarning: when they may have no variance.
    """
    model = study.model
    if transform is None or not isinstance(model, GPModel) or model.likelihood != "student-t":
        return
    what = f"[data] transform = {transform.name!r}, t = {transform.title}, with model.likelihood = 'student-t':"
    if end := _endless(study, model, transform, 1):
        hint = f"data.{end.key}, or model.likelihood = 'gaussian'"
        raise StudyError(f"{what} targets have no mean where nothing ends them {end.side}", hint=hint)
    if end := _endless(study, model, transform, 2):
        what = f"{what} targets have no variance where nu is at most {2.0 * end.growth:g} and nothing ends them"
        what = f"{what} {end.side}: standard deviations of predictions say little then, and quantiles hold"
        warnings.warn(f"{what} (data.{end.key} gives them one)", stacklevel=caller_stacklevel())


class _End(NamedTuple):
    """An end of targets that study or transform may leave open.

    Args:
        growth: power a with which |y| grows as |t|^a towards it.
        side: of the targets, in words.
        key: of [data], of the bound there.
    """

    growth: float
    side: str
    key: str


def _endless(study: Study, model: GPModel, transform: Transform, power: int) -> _End | None:
    """Find a side on which E|y|^power may be infinite, as E|t|^b is from b = nu on."""
    learned = model.degrees_of_freedom == "learned"  # which are above 2
    nu = 2.0 if isinstance(model.degrees_of_freedom, str) else model.degrees_of_freedom
    down, up = transform.growth
    for end in (_End(down, "below", "lower_bound"), _End(up, "above", "upper_bound")):
        moment = power * end.growth
        if getattr(study.data, end.key) is None and not (moment < nu or (learned and moment == nu)):
            return end
    return None
