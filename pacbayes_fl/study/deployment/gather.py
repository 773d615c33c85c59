"""What the server of a deployment asks of its nodes beside updates: moments of columns, scores and metrics."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from pacbayes_fl.data.batch import client_id
from pacbayes_fl.errors import UNREADABLE, DataError, DeployError, PacBayesFLError, caller_stacklevel, listed
from pacbayes_fl.federation import arrays, frames, public
from pacbayes_fl.federation.arrays import shown
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.frames import Array, Frame
from pacbayes_fl.federation.mail import Mail
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.results.client_rows import GROUPS, ClientRow
from pacbayes_fl.results.metrics import metric_of
from pacbayes_fl.study.deployment.roster import Hello, Roster
from pacbayes_fl.study.evaluate import points
from pacbayes_fl.study.evaluate.points import Total

_LONGEST = 100  # characters of a metric's name
_MOST = 1000  # metrics of a client
_ROUNDING = 1e-6  # beyond the ends of a metric
_WORDS = 400  # characters of what a node says when it refuses


class Nodes:
    """The nodes of a run, asked for what they share.

    Args:
        mail: reaches them.
        hellos: what they have said of themselves, by number.
        run: random identifier of the run.
        seconds: for which an answer is waited for.
    """

    def __init__(self, mail: Mail, hellos: Mapping[int, Hello], run: str, seconds: float) -> None:
        """Take the network."""
        self._mail, self._hellos, self._run, self._seconds = mail, hellos, run, seconds

    def moments(self, roster: Roster, width: int, about: JsonMapping = MappingProxyType({})) -> Tensor:
        """Collect what clients tell of their columns.

        Args:
            roster: of all clients.
            width: numbers of one client.
            about: what nodes compare with their own study before they tell anything.

        Returns:
            [K, width], float64, in the order of the roster.

        Raises:
            DeployError: when a node does not tell them.
        """
        came = dict[str, Tensor]()
        letter: JsonTable = {"kind": "moments", **about}
        for node, frame in answers(self._mail, [*self._hellos], letter, self._seconds).items():
            own = [*self._hellos[node].clients]
            like = {"moments": torch.zeros(len(own), width, dtype=torch.float64)}
            try:
                told = arrays.unpack(like, frame.arrays)["moments"]
                if frame.config.get("clients") != own or not bool(told.isfinite().all()):
                    raise DataError("they are of other clients, or not finite")
            except PacBayesFLError as error:
                raise DeployError(f"the moments of node {node} cannot be read: {error}") from error
            came |= dict(zip(own, told, strict=True))
        return torch.stack([came[name] for name in roster.batch.names])

    def join(self, round: int, about: JsonMapping) -> dict[str, bool]:
        """Let all nodes take part.

        Args:
            round: rounds that are finished.
            about: what else they need to know.

        Returns:
            By client, whether it begins anew.

        Raises:
            DeployError: when a node does not.
        """
        letter: JsonTable = {"kind": "join", "run": self._run, "round": round, **about}
        begins = dict[str, bool]()
        for frame in answers(self._mail, [*self._hellos], letter, self._seconds).values():
            new = frame.config.get("new")
            begins |= {str(name): anew is True for name, anew in new.items()} if isinstance(new, dict) else {}
        return begins

    def curve(self, method: AnyMethod, state: FederationState, seed: int) -> dict[str, float]:
        """Average the scores of all clients after a round.

        Args:
            method: the algorithm.
            state: after the round.
            seed: with which the federation began.

        Returns:
            As `points.means`, over the clients of the nodes that answer.
        """
        parts = []
        for node, frame in self._after("score", method, state, seed, {}).items():
            try:
                parts.append({str(name): _total(total) for name, total in frame.config["scores"].items()})
            except UNREADABLE:
                self._warn(node, "what came is no score")
        return points.means(parts)

    def finish(
        self, method: AnyMethod, state: FederationState, seed: int, spent: bytes | None, about: JsonMapping
    ) -> dict[int, Frame]:
        """Let nodes make models and scores of their clients after the last round, and tell what they share.

        Args:
            method: the algorithm.
            state: after it.
            seed: with which the federation began.
            spent: ledger of a private run.
            about: how many releases the state has seen, as "released", and whether "metrics" are to be told.

        Returns:
            Answers by node; a warning names who gave none.
        """
        more = {} if spent is None else {"ledger": Array("", (), "", spent)}
        return self._after("finish", method, state, seed, more, about)

    def _after(
        self,
        kind: str,
        method: AnyMethod,
        state: FederationState,
        seed: int,
        more: Mapping[str, Array],
        about: JsonMapping = MappingProxyType({}),
    ) -> dict[int, Frame]:
        model = Array("", (), "", public.to_bytes(method, state.server, seed))
        letter: JsonTable = {
            "kind": kind,
            "run": self._run,
            "round": state.round,
            "halved": state.watch.halved,
            **about,
        }
        came, there, letters = dict[int, Frame](), self._hellos.keys() & {*self._mail.nodes()}, dict[int, bytes]()
        for node in sorted(there):
            own = {name: first for name, first in state.watch.since.items() if name in self._hellos[node].clients}
            letters[node] = frames.encode({**letter, "uncounted": own}, {"model": model, **more})
        said = set[int]()  # what is wrong with their answers
        for node, answer in self._mail.ask(letters, self._seconds):
            try:
                frame = frames.decode(answer)
            except DeployError as error:
                self._warn(node, str(error))
                said.add(node)
                continue
            if "refused" in frame.config:
                said.add(node)
                self._warn(node, shown(frame.config["refused"], _WORDS))
            elif node in self._hellos:
                came[node] = frame
        for node in sorted(self._hellos.keys() - came.keys() - said):
            what = f"no answer that counts within {self._seconds:g} s" if node in there else "it is gone"
            self._warn(node, what)
        return came

    def _warn(self, node: int, what: str) -> None:
        names = ", ".join([*self._hellos[node].clients][:3]) if node in self._hellos else "nobody"
        warnings.warn(f"node {node} ({names}) tells nothing of a round: {what}", stacklevel=caller_stacklevel())


def answers(mail: Mail, nodes: Sequence[int], letter: JsonTable, seconds: float) -> dict[int, Frame]:
    """Ask all nodes the same, and insist on an answer of each.

    Args:
        mail: reaches them.
        nodes: their numbers.
        letter: plain values.
        seconds: for which to wait.

    Returns:
        Answers by node.

    Raises:
        DeployError: when one refuses, or does not answer.
    """
    came = dict[int, Frame]()
    for node, data in mail.ask(dict.fromkeys(nodes, frames.encode(letter, {})), seconds):
        try:
            came[node] = frames.decode(data)
        except DeployError as error:
            raise DeployError(f"node {node}: {error}", cause="frame") from error
        if "refused" in came[node].config:
            raise DeployError(f"node {node} does not take part: {shown(came[node].config['refused'], _WORDS)}")
    if silent := [node for node in nodes if node not in came]:
        raise DeployError(f"{len(silent)} of {len(nodes)} nodes did not answer within {seconds:g} s: {silent[:5]}")
    return came


def rows_of(came: Mapping[int, Frame], hellos: Mapping[int, Hello], roster: Roster) -> list[ClientRow]:
    """Read the lines of clients, each of which only the node that has it can tell, and once.

    Args:
        came: answers of `Nodes.finish`.
        hellos: what nodes have said of themselves.
        roster: of all clients.

    Returns:
        Lines of existing clients in the order of the roster, then those of new ones by name.

    Warns:
        UserWarning: of lines that are left out.
    """
    sizes = roster.sizes
    found = dict[tuple[str, str], ClientRow]()
    for node, frame in came.items():
        own = {"existing": {*hellos[node].clients}, "new": {*hellos[node].new}}
        said = frame.config.get("rows")
        for line in said if isinstance(said, list) else []:
            try:
                row = _row(line, own, sizes)
            except (*UNREADABLE, PacBayesFLError) as error:
                what = f"node {node}: a line of clients.csv is left out: {shown(str(error))}"
                warnings.warn(what, stacklevel=caller_stacklevel())
                continue
            found.setdefault((row.group, row.name), row)
    known = {name: k for k, name in enumerate(roster.batch.names)}
    return sorted(found.values(), key=lambda row: (row.group != "existing", known.get(row.name, 0), row.name))


def absent(rows: Sequence[ClientRow], hellos: Mapping[int, Hello]) -> JsonTable:
    """Say whose scores did not come, so that nobody takes a table of some clients for one of all.

    Args:
        rows: lines that came, as of `rows_of`.
        hellos: what nodes have said of themselves.

    Returns:
        Of a run's labels: "group_sizes", of groups of which not all clients have a line, how many there are.

    Warns:
        UserWarning: naming clients without a line, and those without a number that others of their group have.
    """
    sizes = dict[str, int]()
    for group in GROUPS:
        own = {row.name: row.metrics for row in rows if row.group == group}
        every = [name for hello in hellos.values() for name in (hello.clients if group == "existing" else hello.new)]
        if lost := sorted({*every} - own.keys()):
            sizes[group] = len(every)
            what = f"clients.csv and all means are of {len(own)} of {len(every)} {group} clients"
            warnings.warn(f"{what}, without {listed([*map(repr, lost)])}", stacklevel=caller_stacklevel())
        taken = Counter(metric for metrics in own.values() for metric in metrics)
        usual = [metric for metric, count in taken.items() if 2 * count >= len(own)]
        short = {name: [one for one in usual if math.isnan(own[name].get(one, math.nan))] for name in own}
        texts = [f"{name!r} ({listed([*map(shown, lacks)], 3)})" for name, lacks in short.items() if lacks]
        if texts:
            what = f"{group} clients without a number for a metric, which means leave out: {listed(texts)}"
            warnings.warn(f"{what}; it was not told, or they have no test rows for it", stacklevel=caller_stacklevel())
    return {"group_sizes": sizes} if sizes else {}


def _row(line: JsonMapping, own: Mapping[str, Collection[str]], sizes: Mapping[str, int]) -> ClientRow:
    name, group, metrics = line["name"], line["group"], line["metrics"]
    if name not in own[group]:
        raise DataError("the node does not hold it", client=shown(name))
    if len(metrics) > _MOST or not all(type(one) is str and 0 < len(one) <= _LONGEST for one in metrics):
        raise DataError("its metrics are too many, or have no names", client=name)
    if strange := [value for value in metrics.values() if type(value) not in (int, float)]:
        raise DataError(f"a metric is a number, got {shown(strange[0])}", client=name)
    numbers = {metric: float(value) for metric, value in metrics.items()}
    _check_ends(name, numbers)
    rows = sizes[name] if group == "existing" else int(line["m"])
    return ClientRow(client_id(name), name, group, rows, numbers)


def _check_ends(name: str, metrics: Mapping[str, float]) -> None:
    """Refuse a value that a metric cannot have, but for rounding; NaN says that it does not apply."""
    for column, value in metrics.items():
        low, high = (None, None) if (metric := metric_of(column)) is None else metric.ends
        if (low is not None and value < low - _ROUNDING) or (high is not None and value > high + _ROUNDING):
            ends = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
            raise DataError(f"{shown(column)} is {ends}, got {value:g}", client=name)


def _total(value: Sequence[float]) -> Total:
    total, scored, unscored = value
    if not math.isfinite(total) or min(int(scored), int(unscored)) < 0:
        raise ValueError("no sum of scores")
    return Total(float(total), int(scored), int(unscored))
