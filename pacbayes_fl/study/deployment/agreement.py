"""What of a study gives rows and scores their units, in which server and nodes have to agree."""

from __future__ import annotations

from collections.abc import Mapping

from pacbayes_fl.data import tables
from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation.arrays import shown
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import column_kinds, scaling

HINT = "all nodes take the server's study, and say by --set data.source where their rows are"


def units(study: Study, schema: tables.Dataset) -> JsonTable:
    """Say what decides in which units a method sees columns and learns targets, whoever holds the rows.

    Where the rows come from, which of them are for tests, and what leaves a node are its owner's. How each column is
    scaled is said by column, since it follows from several options.

    Args:
        study: of the server, or of a node.
        schema: its columns; groups are not looked at.

    Returns:
        Plain values by the option that decides them.
    """
    data, columns = study.data, scaling.names(schema)
    result: JsonTable = {"data.transform": data.transform, "data.client_inputs": data.client_inputs}
    result |= {"data.lower_bound": data.lower_bound, "data.upper_bound": data.upper_bound}
    if data.transform == "yeo-johnson":
        result["data.transform_lambda"] = data.transform_lambda
    if any(data.feature(name, ()).kind == "roll" for name in data.features):  # a mean that ends so long before
        result["data.horizon"] = None if data.ahead is None else str(data.ahead)
    for name, kind in zip(columns, column_kinds.asked(data, columns, schema.classes is not None), strict=True):
        result[f"data.scale of {name!r}"] = kind or "client"
    if study.privacy.epsilon is not None:  # messages are bounded by them
        for name in columns:
            if name in data.ranges:
                result[f"data.ranges of {name!r}"] = [float(end) for end in data.ranges[name]]
    return result


def check(own: JsonMapping, theirs: object, where: str = "the server's") -> None:
    """Refuse to take part where a study differs from that of the server.

    Args:
        own: of the node's study, see `units`.
        theirs: of the other study, as received.
        where: whose that is.

    Raises:
        DeployError: naming the first thing that differs and its value on both sides, and what else does.
    """
    if not isinstance(theirs, Mapping):
        raise DeployError(f"what should say the units of {where} study is {shown(theirs)}")
    keys = (*own, *sorted(theirs.keys() - own.keys(), key=str))
    if differ := [key for key in keys if own.get(key) != theirs.get(key)]:
        first, *others = differ
        what = f"{first} is {own.get(first)!r} in the node's study and {shown(theirs.get(first))} in {where}"
        raise DeployError(what + (f"; {len(others)} more differ" if others else ""), hint=HINT)
