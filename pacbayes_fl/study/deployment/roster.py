"""Studies whose clients' rows are on different machines: what they can do, what a node says of itself, and a roster."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.cells import check_names
from pacbayes_fl.data.layout import CLASSES
from pacbayes_fl.data.private_moments import MomentMessage
from pacbayes_fl.data.scaling import FEDERATED, Shared
from pacbayes_fl.data.sent_moments import SentMoments, width
from pacbayes_fl.errors import UNREADABLE, DataError, DeployError, PrivacyError, StudyError
from pacbayes_fl.federation.arrays import DTYPES, shown
from pacbayes_fl.federation.remote_player import Elsewhere, roster
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.privacy.outside import Rehearsal, Releases
from pacbayes_fl.study import residuals
from pacbayes_fl.study.config.gp_model import GPModel
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.deployment import claims
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import scaling
from pacbayes_fl.study.rows.table_checks import check_classes

ALONE: Final = "every node of a deployment knows its own rows alone"


_ROWS: Final = 2**40  # of a client
_INPUT: Final = 2**28  # numbers of one input
_CONTROL: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})  # Unicode's control characters, surrogates and ends of lines
MOMENTS: Final = f"{ALONE}; deploy.share with 'moments' lets them send these"


def shares(study: Study) -> frozenset[str]:
    """Say what nodes tell beside updates.

    Args:
        study: its [deploy] has a list, or leaves it open: then rows are told, and moments where the study itself says
            that columns are scaled by those of all clients; of a private run only these.

    Returns:
        Some of "rows", "loss", "metrics" and "moments".
    """
    if study.deploy.share != "auto":
        return frozenset(study.deploy.share)
    kinds = {study.data.scale, *study.data.column_scale.values()}
    moments = {"moments"} if kinds & {*FEDERATED} else set[str]()
    return frozenset(moments if study.privacy.epsilon is not None else {"rows", *moments})


def check(study: Study) -> None:
    """Refuse a study that takes more of its clients than their updates, before anything is read or trained.

    Args:
        study: to be deployed.

    Raises:
        StudyError: naming the option that takes sums or rows of all clients.
        PrivacyError: when a private study would tell what its budget does not pay for.
    """
    if study.privacy.ledger is not None:
        what = "[privacy] ledger knows rows by their values, which stay at the nodes of a deployment"
        raise PrivacyError(what, hint="privacy.ledger = 'none'")
    check_classes(study)
    recipe, name = study.recipe, study.method.name
    unpaid = sorted(shares(study) & {"rows", "loss", "metrics"})
    if unpaid and study.privacy.epsilon is not None:
        what = f"[deploy] share has {', '.join(map(repr, unpaid))}, which the budget of a private run does not pay for"
        raise PrivacyError(what, hint="deploy.share = [], or ['moments']")
    if study.data.scale in FEDERATED and "moments" not in shares(study):
        what = f"[data] scale = {study.data.scale!r} takes moments of all clients' rows, and {MOMENTS}"
        raise StudyError(what, hint="or data.scale = 'client'")
    if not recipe.federated or not recipe.rounds:
        what = f"{name} has no rounds in which clients keep their rows, so that there is nothing to deploy"
        raise StudyError(what, hint="a federated method, such as pac-pfl")
    if study.held_out:
        *others, last = [f"{asked.table}.{asked.option}" for asked in study.held_out]
        asked, each = (f"{', '.join(others)} and {last}", "are") if others else (last, "is")
        what = f"{asked} {each} open and would be chosen by rows of all clients; {ALONE}"
        raise StudyError(what, hint=f"set {asked} to {'values' if others else 'a value'}")
    if isinstance(study.model, GPModel) and study.model.linear == "ridge":
        what = f"[model] linear = 'ridge' takes sums of all clients' rows; {ALONE}"
        raise StudyError(what, hint="model.linear = 'zero' learns the linear term from 0")
    if learned := [column for column in study.data.categorical if column not in study.data.categories]:
        what = f"[data] categories of {learned[0]!r} would be the words of all clients' rows; {ALONE}"
        raise StudyError(what, hint=f'data.categories = {{ {learned[0]} = ["...", "..."] }} says them')
    if study.data.target_transform is not None and study.data.transform_lambda == "learned":
        what = f"[data] transform_lambda = 'learned' takes sums of all clients' targets; {ALONE}"
        raise StudyError(what, hint="data.transform_lambda = 0.5, or another number from 0 to 2")
    if study.data.client_inputs == "summaries" and (study.privacy.epsilon is None or "moments" not in shares(study)):
        what = f"[data] client_inputs = 'summaries' are scaled by those of all clients, and {ALONE}"
        raise StudyError(what, hint="data.client_inputs = 'none'")
    if residuals.sends(study):
        what = f"{residuals.asked_by(study)} takes a histogram of every client's residuals; {ALONE}"
        raise StudyError(what, hint="report.intervals = 'model', model.residual_share = 0")
    if study.report.certify.scheme == "folds":
        what = f"[report.certify] scheme = 'folds' deals all clients into folds; {ALONE}"
        raise StudyError(what, hint="report.certify.scheme = 'split' or 'none'")


@dataclass(frozen=True)
class Hello:
    """What a node says of itself before the first round.

    Args:
        clients: by name, number of training rows, or 1 where it is withheld.
        features: name and unit of every feature.
        target: of the target.
        classes: number of classes; None of a regression.
        feature_shape: of one input that is no flat row.
        dtypes: of inputs and targets, in the method's units.
        new: names of clients that never train, and get their models after the last round.

    Raises:
        DataError: naming a client whose name or number of rows is none, or looks like another's.
    """

    clients: Mapping[str, int]
    features: tuple[tuple[str, str], ...]
    target: tuple[str, str]
    classes: int | None
    feature_shape: tuple[int, ...]
    dtypes: tuple[str, str]
    new: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check names and numbers: they get into files, errors and sums of the server."""
        names = (*self.clients, *self.new)
        for name in names:
            if not name.strip() or any(unicodedata.category(character) in _CONTROL for character in name):
                what = "a name in a deployment has letters, no control characters and no half of a character"
                raise DataError(what, client=name, hint="rename the client")
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise DataError("its name is used twice", client=twice[0], hint="clients are told apart by name")
        check_names(names)
        for name, rows in self.clients.items():
            if not 1 <= rows <= _ROWS:
                raise DataError(f"must have 1 to {_ROWS} training rows, got {shown(rows)}", client=name)

    @classmethod
    def of(cls, study: Study, dataset: tables.Dataset, group: ScaledGroup, new: Sequence[str] = ()) -> Hello:
        """Describe the clients of a node: what leaves it beside updates.

        Args:
            study: of the deployment; numbers of rows are withheld where it does not share them.
            dataset: of the node.
            group: its existing clients.
            new: names of its new ones.

        Returns:
            Names, numbers of rows and columns.
        """
        train = group.train
        rows = [int(m) for m in train.size.tolist()] if "rows" in shares(study) else [1] * train.clients
        features = tuple((column.name, column.unit) for column in dataset.features)
        dtypes = [str(leaf.dtype).removeprefix("torch.") for leaf in (train.x, train.y)]
        own = dict(zip(train.names, rows, strict=True))
        target = dataset.target.name, dataset.target.unit
        return cls(own, features, target, dataset.classes, dataset.feature_shape, (dtypes[0], dtypes[1]), tuple(new))

    def to_json(self) -> JsonTable:
        """Give everything as JSON."""
        own: JsonTable = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return own | {"clients": dict(self.clients)}

    @classmethod
    def from_json(cls, table: JsonMapping) -> Hello:
        """Read the result of `to_json`.

        Args:
            table: as received.

        Returns:
            What the node says.

        Raises:
            DeployError: when it is nothing that a node says.
        """
        try:
            clients = {name: _whole(rows) for name, rows in table["clients"].items()}
            features = tuple((_text(name), _text(unit)) for name, unit in table["features"])
            target, classes = (_text(table["target"][0]), _text(table["target"][1])), table["classes"]
            shape, dtypes = tuple(map(_whole, table["feature_shape"])), (table["dtypes"][0], table["dtypes"][1])
            new = tuple(map(_text, table.get("new", ())))
            if not clients or not set(dtypes) <= DTYPES.keys():
                raise ValueError("no clients, or no such dtype")
            if math.prod(shape) > _INPUT or (classes is not None and not 2 <= _whole(classes) <= CLASSES):
                raise ValueError(f"inputs of {shown(shape)} numbers, or {shown(classes)} classes")
            return cls(clients, features, target, classes, shape, dtypes, new)
        except DataError as error:
            raise DeployError(f"what a node says of itself cannot be read: {error}") from error
        except UNREADABLE as error:
            raise DeployError(f"what a node says of itself cannot be read: {shown(str(error))}") from error

    @property
    def columns(self) -> object:
        """What all nodes must have in common."""
        return self.features, self.target, self.classes, self.feature_shape, self.dtypes

    @property
    def schema(self) -> tables.Dataset:
        """The columns as a data set without rows."""
        features, target = tuple(tables.Column(*one) for one in self.features), tables.Column(*self.target)
        return tables.Dataset({}, features, target, {}, self.classes, self.feature_shape)


def _text(value: object) -> str:
    """Give a text that can be written."""
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is no text")
    value.encode()
    return value


def _whole(value: object) -> int:
    """Give a positive whole number."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{shown(value)} is no positive whole number")
    return value


@dataclass(frozen=True)
class Roster:
    """The clients of a deployment as the server knows them.

    Args:
        clients: names, ids and numbers of rows; all else is 0.
        schema: columns; no rows.
    """

    clients: Elsewhere
    schema: tables.Dataset

    @property
    def batch(self) -> ClientBatch:
        """Names and ids, over one row of zeros each."""
        return self.clients.batch

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers of rows by name, in the order of the names."""
        return dict(zip(self.batch.names, self.clients.sizes, strict=True))

    def dataset(self, bounds: tuple[float, float]) -> tables.Dataset:
        """Give the columns as a data set whose inputs are 0, and whose targets every transform takes.

        Args:
            bounds: of targets.

        Returns:
            The data set.
        """
        lower, upper = bounds
        if math.isinf(lower):
            lower = min(upper, 1.0) - 1.0
        inside = (lower + min(upper, lower + 1.0)) / 2
        y = self.batch.y + inside if self.batch.y.is_floating_point() else self.batch.y
        batch = replace(self.batch, y=y)
        return replace(self.schema, groups={"existing": tables.Group(batch, batch)})

    @classmethod
    def of(cls, nodes: Sequence[Hello], device: torch.device, classes: int | None = None) -> Roster:
        """Put the clients of all nodes together.

        Args:
            nodes: what they say of themselves, at least one.
            device: of the server.
            classes: their number, where the server's study states it.

        Returns:
            The roster, in the order of the names, which does not depend on who came first.

        Raises:
            DataError: naming a client that two nodes claim, whose name looks like another's, or that has other
                columns or classes than the first.

        Warns:
            UserWarning: naming a client that says it has nearly all rows.
        """
        first, clients, new = nodes[0], dict[str, int](), set[str]()
        for node in nodes:
            name = next(iter(node.clients))
            if node.classes != first.classes:
                hint = "data.task = 'classification' and the same data.classes at all nodes"
                own, other = ("no labels" if n is None else f"{n} classes" for n in (node.classes, first.classes))
                what = f"it has {own}, and {next(iter(first.clients))!r} has {other}"
                raise DataError(f"{what}: a node counts those of its own labels", client=name, hint=hint)
            if node.columns != first.columns:
                raise DataError(f"it has other columns or dtypes than {next(iter(first.clients))!r}", client=name)
            if twice := sorted((clients.keys() | new) & {*node.clients, *node.new}):
                raise DataError("two nodes claim this client", client=twice[0], hint="each client belongs to one node")
            clients |= node.clients
            new |= {*node.new}
        check_names(sorted(clients.keys() | new))
        advice = "deploy.share without 'rows' lets all clients weigh alike"
        claims.say_heavy(clients, "every average by rows follows", advice)
        if classes not in (None, first.classes):
            what = f"nodes have {first.classes} classes, and the server's study states data.classes = {classes}"
            raise DataError(what, hint="state the same at all nodes")
        shape = first.feature_shape or (len(first.features),)
        x = torch.zeros((), dtype=DTYPES[first.dtypes[0]], device=device).expand(1, 1, *shape)
        y = torch.zeros(1, 1, dtype=DTYPES[first.dtypes[1]], device=device)
        like = ClientBatch(x, y, torch.ones_like(y, dtype=torch.bool), (0,), ("",))
        return cls(roster(dict(sorted(clients.items())), like), first.schema)


class Telling(NamedTuple):
    """What clients tell of their columns, so that these can be scaled across clients.

    Args:
        message: of a private run, bounded; None where moments are told as they are.
        width: numbers of one client.
    """

    message: MomentMessage | None
    width: int


def telling(study: Study, schema: tables.Dataset) -> Telling | None:
    """Say what clients tell of their columns.

    Args:
        study: of the deployment.
        schema: its columns.

    Returns:
        What they tell; None where they tell nothing.
    """
    if "moments" not in shares(study) or schema.feature_shape:
        return None
    if study.privacy.epsilon is None:
        return Telling(None, width(len(schema.features) + 1))
    message = scaling.outside(study, schema)
    return None if message is None else Telling(message, message.coordinates)


def told(study: Study, dataset: tables.Dataset, telling: Telling) -> Tensor:
    """Write what the clients of a node tell of their columns.

    Args:
        study: of the deployment.
        dataset: rows in their own units.
        telling: what they tell.

    Returns:
        [K, width], float64.
    """
    train, transform = dataset.groups["existing"].train, study.data.target_transform
    if transform is not None:
        transform.check(train)
        train = transform.apply(train)
    return SentMoments.of(train).to_rows() if telling.message is None else telling.message.of_clients(train)


def settle(
    study: Study,
    dataset: tables.Dataset,
    came: Tensor | None = None,
    releases: Releases | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Shared:
    """Determine how every column is scaled, by what clients have told.

    Args:
        study: of the deployment.
        dataset: of a node, or the columns of all of them.
        came: what the clients of the dataset have told [K, width]; None where they tell nothing.
        releases: of a private run, makes the one release of what was told.
        sizes: training rows that each client has told beside it, by name; not looked at in a private run, or where
            `deploy.share` has no rows.

    Returns:
        What all clients' scaling has in common.

    Raises:
        StudyError, PrivacyError: when columns are to be scaled by moments of all clients' rows, which are not told.
        ShapeError: when what was told is no moments.
        DeployError: when all moments are of other numbers of rows than were told.
    """
    if came is None:
        return scaling.settle(study, dataset, alone=MOMENTS)
    if releases is not None:
        return scaling.settle(study, dataset, releases, sent=scaling.Sent(messages=came))
    names, columns = dataset.groups["existing"].train.names, len(dataset.features) + 1
    moments = SentMoments.from_rows(names, came, columns, dataset.classes is not None)
    moments = claims.agreeing(moments, sizes if "rows" in shares(study) else None)
    return scaling.settle(study, dataset, sent=scaling.Sent(moments))


def rehearsed(study: Study, dataset: tables.Dataset) -> Shared:
    """Scale the columns of a node by its own clients alone, to look at what there is before others have told theirs.

    Args:
        study: of the deployment.
        dataset: of a node.

    Returns:
        Scaling that nothing may be trained in.
    """
    return scaling.settle(study, dataset, Rehearsal())
