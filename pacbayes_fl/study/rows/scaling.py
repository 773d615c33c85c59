"""What a study settles once on the training rows and keeps for clients to come: scaling, and where learning starts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, get_args

import torch
from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.data import scaling, tables
from pacbayes_fl.data.linear_start import LinearStart
from pacbayes_fl.data.private_moments import MomentMessage
from pacbayes_fl.data.scaling import FEDERATED, ColumnScale, Scaling, Shared
from pacbayes_fl.data.sent_moments import SentMoments
from pacbayes_fl.data.summaries import SummaryScale, settle_summaries, summary_names
from pacbayes_fl.data.target_bounds import Bounds
from pacbayes_fl.data.transforms import TRANSFORMS, Transform
from pacbayes_fl.errors import UNREADABLE, DataError, PrivacyError, StudyError
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.privacy.outside import Releases
from pacbayes_fl.results.folder import FILES
from pacbayes_fl.results.manifest import put
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import column_kinds
from pacbayes_fl.study.rows.target_power import settle_transform

MESSAGE: Final = "scaling"
"""What the ledger calls the release of moments."""

FILE: Final = "scaling.json"
"""What a run folder calls what all clients' scaling has in common."""


def names(dataset: tables.Dataset) -> list[str]:
    """Return the names of the features and, last, of the target."""
    return [column.name for column in (*dataset.features, dataset.target)]


def inputs(study: Study, dataset: tables.Dataset) -> list[str]:
    """Return the names of a method's inputs: the features, and the summaries of clients where the study has them."""
    own = summary_names(names(dataset)) if study.data.client_inputs == "summaries" else ()
    return [*names(dataset)[:-1], *own]


class Sent(NamedTuple):
    """What clients whose rows are elsewhere have sent of their columns.

    Args:
        moments: of a run that is not private.
        messages: of a private run [K, D], see `MomentMessage.of_clients`.
    """

    moments: SentMoments | None = None
    messages: Tensor | None = None


def settle(
    study: Study,
    dataset: tables.Dataset,
    releases: Releases | None = None,
    alone: str = "",
    sent: Sent | None = None,
) -> Shared:
    """Determine how every column of a study is scaled, from its training rows.

    Args:
        study: its [data] says how; columns that it says nothing of are looked at.
        dataset: rows in their own units.
        releases: of a private run, makes the one release of all clients' moments; None where none may be made.
        alone: why no moments of all clients' rows can be had, in words.
        sent: by clients whose rows are elsewhere; those of the dataset are not looked at then.

    Returns:
        What all clients' scaling has in common.

    Raises:
        StudyError: when a column is not known, or images or folds cannot have what is asked for.
        PrivacyError: when moments of all clients' rows would be published beside a private run's releases, or a column
            has no public range that they need.
    """
    data, columns = study.data, names(dataset)
    if dataset.feature_shape:
        of_columns = ("scale", "column_scale", "client_inputs", "lower_bound", "upper_bound", "transform")
        for name in of_columns:
            if getattr(data, name) != getattr(DataPart(), name):
                raise StudyError(f"[data] {name} is for columns, and images are left as they are", hint="drop it")
        return scaling.untouched(1)
    for name in data.column_scale:
        if name not in columns and name not in data.categorical:
            raise StudyError(f"[data] column_scale: no column {name!r}", hint=settings.nearest(name, columns))
    asked = column_kinds.asked(data, columns, dataset.classes is not None)
    why, private = alone, study.privacy.epsilon is not None
    if private:
        why = "a private run releases nothing else of others' rows"
    elif study.report.certify.scheme == "folds":
        why = "with report.certify.scheme = 'folds' a client's prior knows nothing of its rows"
    message = outside(study, dataset)
    paid = message is not None and releases is not None
    if why and not paid and (taken := [at for at, kind in enumerate(asked) if kind in FEDERATED]):
        first = taken[0]
        what = f"[data] scale = {asked[first]!r} of {columns[first]!r} takes moments of all clients' rows, and"
        kind = PrivacyError if private else StudyError
        raise kind(f"{what} {why}", hint="'client', or 'none' for columns that come in sensible units")
    train = dataset.groups["existing"].train
    transform = settle_transform(study, train, why)
    if transform is not None:
        train = transform.apply(train)
    if message is not None and releases is not None:
        told = message.of_clients(train) if sent is None or sent.messages is None else sent.messages
        shared = _released(message, told, columns, releases)
    elif sent is not None and sent.moments is not None:
        shared = scaling.settle_moments(sent.moments, asked, columns, why)
    else:
        shared = scaling.settle(train, asked, columns, why, elsewhere=bool(alone))
    shared = shared._replace(transform=transform)
    if (ends := bounds_of(data, columns[:-1])) != Bounds():
        if dataset.classes is not None:
            raise StudyError(
                "[data] lower_bound and upper_bound are of numbers, and targets are labels", hint="drop them"
            )
        shared = shared._replace(bounds=ends)
    if data.client_inputs != "summaries":  # or still open
        return shared
    if dataset.classes is not None:
        raise StudyError(
            "[data] client_inputs = 'summaries' are of targets that are numbers, not labels", hint="drop it"
        )
    if paid:
        return shared
    if why:
        kind = PrivacyError if private else StudyError
        what = "[data] client_inputs = 'summaries' are scaled by those of all clients, and"
        raise kind(f"{what} {why}", hint="client_inputs = 'none'")
    return shared._replace(summaries=settle_summaries(train))


def bounds_of(data: DataPart, features: Sequence[str]) -> Bounds:
    """Find where targets end.

    Args:
        data: of a study.
        features: names of the columns of x.

    Returns:
        The numbers, and the columns of those that are no numbers.

    Raises:
        StudyError: when a bound is named that is no feature, or would be filled in.
    """
    at: list[int | None] = []
    for key in ("lower_bound", "upper_bound"):
        name = getattr(data, key)
        if isinstance(name, str) and name not in features:
            what = f"[data] {key} = {name!r} is none of the features {', '.join(features)}"
            raise StudyError(what, hint="a bound is a column of numbers that data.features or client_features name")
        if isinstance(name, str) and data.missing == "median":
            what = f"[data] {key} = {name!r} cannot be filled in by the median of other rows' bounds"
            raise StudyError(what, hint="data.missing = 'drop' or 'refuse'")
        at.append(features.index(name) if isinstance(name, str) else None)
    return Bounds(*data.bounds, *at)


def _released(message: MomentMessage, told: Tensor, columns: list[str], releases: Releases) -> Shared:
    """Scale columns by the mean of the clients' messages; what it is a function of beside the rows is public."""
    about = json.dumps([columns, message.kinds, message.low.tolist(), message.high.tolist(), message.summaries])
    mean = releases.mean(MESSAGE, told, message.longest, 0, about)
    return message.shared(mean, releases.noise_std(MESSAGE, message.longest))


def outside(study: Study, dataset: tables.Dataset) -> MomentMessage | None:
    """Say what the clients of a private run send of their columns, once and before its rounds.

    What is sent depends on the study alone: a column that it leaves open is scaled by client, whatever the rows are.

    Args:
        study: any.
        dataset: gives the names of its columns.

    Returns:
        The message; None where the study is not private, or takes no moments across clients.

    Raises:
        PrivacyError: when a column that is scaled across clients has no public range.
    """
    data, columns = study.data, names(dataset)
    if study.privacy.epsilon is None or dataset.feature_shape:
        return None
    kinds = [kind or "client" for kind in column_kinds.asked(data, columns, dataset.classes is not None)]
    summaries = data.client_inputs == "summaries" and dataset.classes is None
    needed = [at for at, kind in enumerate(kinds) if kind in FEDERATED]
    if summaries and len(columns) - 1 not in needed:
        needed.append(len(columns) - 1)
    if not needed:
        return None
    known = data.ranges
    if missing := [columns[at] for at in needed if columns[at] not in known]:
        what = f"moments of {', '.join(missing)} are released within public ranges, and [data] ranges has none of them"
        hint = f"data.ranges.{missing[0]} = [low, high], known without the rows; or data.scale = 'client'"
        raise PrivacyError(what, hint=hint)
    ranges = {at: (float(known[columns[at]][0]), float(known[columns[at]][1])) for at in needed}
    if data.target_transform is not None and (last := len(columns) - 1) in ranges:
        ends = data.target_transform.forward(torch.tensor(ranges[last], dtype=torch.float64)).tolist()
        if not all(map(math.isfinite, ends)):
            what = f"[data] ranges of {columns[-1]}: their ends have no finite {data.target_transform.title}"
            raise PrivacyError(what, hint="choose ends inside of its domain")
        ranges[last] = (ends[0], ends[1])
    return MomentMessage.of(kinds, ranges, summaries)


def labels(shared: Shared, dataset: tables.Dataset) -> dict[str, dict[str, str]]:
    """Labels of the columns that are not scaled by client.

    Args:
        shared: of a run.
        dataset: gives the names of its columns.

    Returns:
        "scaling" by what it is, with the names of columns; nothing where all are scaled by client.
    """
    if dataset.feature_shape:
        return {}
    every = list(zip(names(dataset), shared.kinds, strict=True))
    every = every[: -1 if dataset.classes is not None else None]
    result = {
        label: ", ".join(name for name, one in every if one == kind)
        for label, kind in (("towards all clients", "shrunk"), ("across clients", "pooled"), ("own units", "none"))
    }
    result = {label: text for label, text in result.items() if text}
    if shared.bounds is not None:
        ends = shared.bounds.words(names(dataset))
        inside = shared.transform is not None and shared.transform.name == "logit"  # of which no target is at an end
        there = "; there NLPD is of a probability, not comparable with that of a run without"
        result["bounds"] = f"predictions lie between {ends}" if inside else f"predictions end at {ends}{there}"
    if shared.transform is not None:
        result["transform"] = f"t = {shared.transform.title} is learned; predictions and scores are of y"
    if shared.summaries is not None:
        result["client inputs"] = ", ".join(summary_names(names(dataset)))
    return {"scaling": result} if result else {}


def save(folder: Path, shared: Shared, dataset: tables.Dataset) -> None:
    """Write the common part of the clients' scaling; nothing for images, which are not scaled.

    Args:
        folder: of the run.
        shared: of its clients.
        dataset: gives the names of its columns.

    Raises:
        CheckpointError: when it cannot be written.
    """
    if not dataset.feature_shape:
        put(folder, {FILE: to_json(shared, dataset)})


def to_json(shared: Shared, dataset: tables.Dataset) -> bytes:
    """Serialise the common part of the clients' scaling for `read`.

    Args:
        shared: of the clients.
        dataset: gives the names of its columns.

    Returns:
        The contents of the file.

    Raises:
        DataError: when moments or the regression are not finite.
    """
    columns = [
        {"name": name, "scale": kind} | {what: float(getattr(shared, what)[at]) for what in _MOMENTS.get(kind, ())}
        for at, (name, kind) in enumerate(zip(names(dataset), shared.kinds, strict=True))
    ]
    average = None if shared.average is None else dict(zip(Scaling._fields, map(_plain, shared.average), strict=True))
    content: JsonTable = {"columns": columns, "average": average}
    if shared.linear is not None:
        content["linear"] = {name: _number_or_list(value) for name, value in shared.linear._asdict().items()}
    if shared.bounds is not None:
        ends = shared.bounds
        content["bounds"] = [bound if math.isfinite(bound) else None for bound in (ends.low, ends.high)]
        content["bound_columns"] = [ends.low_at, ends.high_at]
    if shared.transform is not None:
        known = shared.transform._asdict()
        content["transform"] = {
            name: None if isinstance(value, float) and math.isinf(value) else value for name, value in known.items()
        }
    if shared.summaries is not None:
        content["summaries"] = {name: leaf.tolist() for name, leaf in shared.summaries._asdict().items()}
    try:
        return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
    except ValueError as error:  # not finite
        what = "moments or the regression of all clients are no numbers of 64 bits: clients' values are too far apart"
        raise DataError(what, hint="write all clients in one unit; or data.scale = 'client'") from error


def _plain(leaf: Tensor) -> Any:
    return leaf[0].double().cpu().tolist()


def read(folder: Path, dataset: tables.Dataset) -> Shared:
    """Read the common part of the clients' scaling, for resumed runs and new clients.

    Args:
        folder: of a run.
        dataset: gives the columns that it must be of.

    Returns:
        As it was saved.

    Raises:
        DataError: when it is missing, cannot be read, or is of other columns.
    """
    if dataset.feature_shape:
        return scaling.untouched(1)
    path, hint = folder / FILE, "restore it, or run the study anew"
    try:
        return from_json(path.read_bytes(), dataset)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: it holds {FILES[FILE].holds}", hint=hint) from None
    except DataError as error:
        raise DataError(f"{path} cannot be read: {error}", hint=hint) from error


def from_json(data: bytes, dataset: tables.Dataset) -> Shared:
    """Read the result of `to_json`.

    Args:
        data: contents of the file.
        dataset: gives the columns that it must be of.

    Returns:
        As it was written.

    Raises:
        DataError: when it cannot be read, or is of other columns.
    """
    try:
        result = json.loads(data)
        columns, known = result["columns"], result["average"]
        kinds = tuple(column["scale"] for column in columns)
        if [column["name"] for column in columns] != names(dataset) or not {*kinds} <= {*get_args(ColumnScale)}:
            raise ValueError(f"it is not of the columns {', '.join(names(dataset))}")
        moments = {name: _numbers([_moment(column, name) for column in columns], [len(columns)]) for name in _ELSEWHERE}
        average = None
        if known is not None:
            shape = {"x": [len(columns) - 1], "y": []}
            average = Scaling(*(_numbers(known[name], shape[name[0]])[None] for name in Scaling._fields))
        if not bool((moments["std"] > 0).all()):
            raise ValueError("a standard deviation is not positive")
        if any(bool((moments[name] < 0).any()) for name in _MOMENTS["shrunk"][2:]):
            raise ValueError("a standard deviation is negative")
        linear = _linear(result.get("linear"), len(columns) - 1 + (len(columns) + 1) * ("summaries" in result))
        if "shrunk" not in kinds:
            moments = {name: moments[name] for name in _MOMENTS["pooled"]}
        summaries = _summaries(result.get("summaries"), len(columns) + 1)
        bounds = _bounds(result.get("bounds"), result.get("bound_columns", (None, None)), len(columns) - 1)
        transform = _transform(result.get("transform"))
        return Shared(
            kinds, **moments, average=average, linear=linear, summaries=summaries, bounds=bounds, transform=transform
        )
    except UNREADABLE as error:
        raise DataError(str(error)) from error


_MOMENTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"pooled": ("mean", "std"), "shrunk": ("mean", "std", "between", "spread")}
)
_ELSEWHERE: Final = MappingProxyType({"mean": 0.0, "std": 1.0, "between": 0.0, "spread": 0.0})


def _moment(column: JsonMapping, name: str) -> object:
    """Return one of the moments that a column's scale needs, or what stands for it elsewhere."""
    return column[name] if name in _MOMENTS.get(column["scale"], ()) else _ELSEWHERE[name]


def _linear(known: Any, features: int) -> LinearStart | None:
    """Read the ridge regression that learning started at."""
    if known is None:
        return None
    bias, noise_std = (float(_numbers(known[name], [])) for name in ("bias", "noise_std"))
    if not noise_std > 0:
        raise ValueError("a standard deviation is not positive")
    return LinearStart(_numbers(known["weight"], [features]), bias, noise_std)


def _bounds(known: Any, at: Any = (None, None), features: int = 0) -> Bounds | None:
    """Read the bounds of the targets."""
    if known is None:
        return None
    low_at, high_at = at
    if not {low_at, high_at} <= {None, *range(features)}:
        raise ValueError("a bound is of no column")
    low, high = (math.inf * sign if bound is None else float(bound) for sign, bound in zip((-1, 1), known, strict=True))
    if not low < high:
        raise ValueError("bounds are not in order")
    return Bounds(low, high, low_at, high_at)


def _transform(known: Any) -> Transform | None:
    """Read the transform of the targets."""
    if known is None:
        return None
    low, high, *_ = _bounds((known["low"], known["high"])) or Bounds()
    result = Transform(known["name"], low, high, float(known["power"]))
    if known["name"] not in TRANSFORMS or not 0 <= result.power <= 2 or not -math.inf <= low:
        raise ValueError("a transform is not known")
    return result


def _summaries(known: Any, count: int) -> SummaryScale | None:
    """Read the scale of the clients' summaries."""
    if known is None:
        return None
    result = SummaryScale(*(_numbers(known[name], [count] if name != "unit" else []) for name in SummaryScale._fields))
    if not bool((result.std > 0).all() & (result.unit > 0) & (result.between >= 0).all()):
        raise ValueError("a scale is not positive")
    return result


def _number_or_list(value: Tensor | float) -> object:
    return value.tolist() if isinstance(value, Tensor) else value


def _numbers(values: object, shape: list[int]) -> Tensor:
    """Return finite numbers of a shape."""
    result = torch.tensor(values, dtype=torch.float64)
    if not bool(result.isfinite().all()) or list(result.shape) != shape:
        raise ValueError("a moment is not a finite number")
    return result
