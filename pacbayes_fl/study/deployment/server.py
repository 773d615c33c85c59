"""The server's half of a study whose clients' rows are elsewhere: the rounds and the run folder, without a row."""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.scaling import Shared
from pacbayes_fl.errors import UNREADABLE, DataError, DeployError, caller_stacklevel
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.arrays import shown
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.mail import Mail, MailTransport
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.federation.remote_player import RemotePlayer
from pacbayes_fl.files import JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.results.client_rows import ClientRows
from pacbayes_fl.results.folder import NODES
from pacbayes_fl.results.manifest import put
from pacbayes_fl.results.records import Result, environment
from pacbayes_fl.results.rounds import RoundRecord, truncate_rounds
from pacbayes_fl.study import privacy
from pacbayes_fl.study.callbacks import Told
from pacbayes_fl.study.deployment import agreement, roster
from pacbayes_fl.study.deployment.gather import Nodes, absent, answers, rows_of
from pacbayes_fl.study.deployment.roster import Hello, Roster
from pacbayes_fl.study.evaluate import described, points
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import build, device_of
from pacbayes_fl.study.rows import scaling
from pacbayes_fl.study.rows.held_rows import TrainingHistory
from pacbayes_fl.study.storage.run_folder import RunFolder
from pacbayes_fl.study.training import Listeners, Training


@dataclass(frozen=True)
class Waits:
    """How long a server waits.

    Args:
        nodes: seconds until all nodes have said who they are.
        round: seconds for the answers of a round; those of the study when None.
    """

    nodes: float = 120.0
    round: float | None = None


PATIENT: Final = Waits()


def serve(
    study: Study,
    out: Path | str,
    mail: Mail,
    resume: bool = False,
    on_round: Callable[[RoundRecord], None] | None = None,
    waits: Waits = PATIENT,
    claims: Mapping[int, Sequence[str]] | None = None,
) -> Result:
    """Run a study whose clients are at nodes; the run folder holds what the server knows, and no row.

    Every round is saved: a server that was interrupted asks for at most one round again, which nodes answer from the
    state that they had before it.

    Args:
        study: what to run; its [data] is not read here.
        out: run folder.
        mail: reaches the nodes, all of which are there.
        resume: go on from the folder's last intact checkpoint.
        on_round: called after every round with its record.
        waits: how long it waits.
        claims: names of the clients of each node, by its number, where the server knows whose key it has.

    Returns:
        The result, with the lines of the clients that share them.

    Raises:
        StudyError: when the study takes more of clients than updates; as `study.run.run`.
        PrivacyError: when the study asks for a guarantee that it cannot have.
        DataError: when nodes differ in their columns, claim the same client, or are not those of the run.
        DeployError: when a node does not say who it is.
        CheckpointError, ClientError, NumericalError: as `study.run.run`.
    """
    roster.check(study)
    folder = RunFolder(Path(out))
    privacy.check(study, folder.path)
    with folder.lock():
        study, notes = folder.recall(study, resume)
        hellos = _greeted(mail, waits.nodes)
        _check_claims(hellos, claims)
        known = Roster.of([*hellos.values()], device_of(study), study.data.classes)
        run = _recalled(folder.path, known)
        method, _ = build(study, known.schema)
        state = _restored(folder, method, known.batch, study, resume)
        engine.check(method, known.batch, study.plan, state)
        schema = known.dataset(study.data.bounds)
        telling = roster.telling(study, schema)
        numbers = 0 if telling is None or telling.message is None else telling.width
        opening = study, method, state, known.batch, folder.path, folder.released, numbers
        aggregator = privacy.open_private(*opening)
        nodes = Nodes(mail, hellos, run, waits.nodes)
        agreed = {"seed": study.seed, "compress": study.deploy.compress, "units": agreement.units(study, known.schema)}
        shared = folder.scaling(schema) or _scaling(study, nodes, known, telling, aggregator, agreed)
        records = _opened(folder, study, known, shared, run, state.round)
        _joined(nodes, shared, schema, state.round, agreed, telling is not None)
        owners = {name: node for node, hello in hellos.items() for name in hello.clients}
        seconds = study.deploy.deadline if waits.round is None else waits.round
        nodes = Nodes(mail, hellos, run, seconds)
        transport = MailTransport(mail, owners, seconds)
        player = RemotePlayer(method, known.clients, study.plan, aggregator, transport, run, study.deploy.compress)
        scored = partial(_scored, study, method, nodes, aggregator)
        listeners = Listeners(scored, on_round or (lambda _: None), Told(()))
        going = Training(study, known.batch, folder, aggregator, 1, state, records, listeners)
        with going.open() as taken:
            for record, after in engine.play(player, state):
                if taken(record, after):
                    break
        state, averaged = going.state.used, going.state.labels()
        labels = {**notes, **privacy.labels(study, aggregator, state.round), **state.watch.labels(), **averaged}
        rows, told = _finished(study, method, nodes, hellos, known, state, aggregator)
        about = described.labels(study, method, state.round, schema, shared, rows, records)
        name, task, labels = study.method.name, known.schema.task, about | labels | told
        result = Result(study.name, name, study.seed, task, tuple(records), rows, labels=labels)
        folder.finish(result, study.report.page)
        return result


def _restored(
    folder: RunFolder, method: AnyMethod, clients: ClientBatch, study: Study, resume: bool
) -> FederationState:
    """Give the state to go on from; answers to a round that was cut short do not count, as others may be drawn now."""
    state = folder.restore(method, clients, study)
    nobody = dict.fromkeys(clients.names, False) if resume else {}
    return state._replace(watch=state.watch.counted(state.round + 1, nobody))


def _scaling(
    study: Study,
    nodes: Nodes,
    known: Roster,
    telling: roster.Telling | None,
    aggregator: PrivateAggregator | None,
    agreed: JsonTable,
) -> Shared:
    """Settle how columns are scaled, by what clients tell."""
    came = None if telling is None else nodes.moments(known, telling.width, agreed)
    releases = None if aggregator is None else aggregator.outside
    return roster.settle(study, known.dataset(study.data.bounds), came, releases, known.sizes)


def _scored(
    study: Study,
    method: AnyMethod,
    nodes: Nodes,
    aggregator: PrivateAggregator | None,
    record: RoundRecord,
    state: FederationState,
    last: bool,
) -> RoundRecord:
    """Add scores to the rounds of the learning curve, where nodes tell them, and what privacy was spent."""
    if not (last or points.is_due(study, record.round)):
        return record
    shares = roster.shares(study)
    scores = nodes.curve(method, state, study.seed) if "loss" in shares else {}
    return replace(record, values={**record.values, **scores, **privacy.epsilon_spent(aggregator)})


def _finished(
    study: Study,
    method: AnyMethod,
    nodes: Nodes,
    hellos: Mapping[int, Hello],
    known: Roster,
    state: FederationState,
    aggregator: PrivateAggregator | None,
) -> tuple[ClientRows, JsonTable]:
    """Let nodes personalise after the last round, and give the lines of those who share them, and labels of these."""
    spent = None if aggregator is None else aggregator.ledger.path.read_bytes()
    released = None if aggregator is None else len(aggregator.ledger)
    asks = "metrics" in roster.shares(study)
    came = nodes.finish(method, state, study.seed, spent, {"released": released, "metrics": asks})
    if not asks:
        return ClientRows.of(()), {}
    rows = rows_of(came, hellos, known)
    return ClientRows.of(rows), absent(rows, hellos)


def _greeted(mail: Mail, seconds: float) -> dict[int, Hello]:
    nodes = list(mail.nodes())
    if not nodes:
        raise DeployError("there is no node", hint="start nodes, and see that their keys are registered")
    came = answers(mail, nodes, {"kind": "hello"}, seconds)
    hellos = dict[int, Hello]()
    for node in nodes:
        try:
            hellos[node] = Hello.from_json(came[node].config.get("hello") or {})
        except DeployError as error:
            raise DeployError(f"node {node}: {error}") from error
    return hellos


def _check_claims(hellos: Mapping[int, Hello], claims: Mapping[int, Sequence[str]] | None) -> None:
    """Refuse a node that is nobody's, or that claims a client of another's."""
    for node, hello in hellos.items() if claims is not None else ():
        own = (claims or {}).get(node, ())
        for name in (*hello.clients, *hello.new):
            if name not in own:
                what = f"node {node} claims it, and its key belongs to the node of {', '.join(own[:5]) or 'nobody'}"
                raise DataError(what, client=name)


def _joined(nodes: Nodes, shared: Shared, schema: tables.Dataset, round: int, agreed: JsonTable, scales: bool) -> None:
    """Let the nodes join the run, and name those that have lost what they knew of it."""
    about = dict(agreed)
    if scales:
        about["scaling"] = scaling.to_json(shared, schema).decode()
    lost = [name for name, begins in nodes.join(round, about).items() if begins]
    if round and lost:
        what = f"{', '.join(map(shown, lost[:5]))}: the node has lost what it knew of the run, and joins as new"
        warnings.warn(f"{what} after round {round}", stacklevel=caller_stacklevel())


def _recalled(path: Path, known: Roster) -> str:
    """Give the identifier of a run that goes on, whose clients must be the same, or of a new one."""
    now = known.sizes
    if not (path / NODES).is_file():
        return secrets.token_hex(8)
    try:
        before = json.loads((path / NODES).read_text("utf-8"))
        run, clients = str(before["run"]), dict(before["clients"])
    except UNREADABLE as error:
        raise DataError(f"{path / NODES} cannot be read: {error}", hint="choose another --out") from error
    for name in sorted(clients.keys() | now.keys()):
        if clients.get(name) != now.get(name):
            rows = [f"{count} rows" if count else "absent" for count in (clients.get(name), now.get(name))]
            what = f"it was {rows[0]} when the run was started, and is {rows[1]}"
            raise DataError(what, client=name, hint="start the node that holds it, or choose another --out")
    return run


def _opened(folder: RunFolder, study: Study, known: Roster, shared: Shared, run: str, last: int) -> list[RoundRecord]:
    """Write what the server knows before the first round, and give the records of the rounds that are finished."""
    path, schema = folder.path, known.schema
    scaling.save(path, shared, schema)
    put(path, {"metrics.json": None, "ended.json": None})  # of fewer rounds: they say that it is over
    about = environment(device_of(study)) | {"seed": study.seed, "data": {"source": "nodes"}}
    nodes: JsonTable = {"run": run, "clients": known.sizes, "features": [list(one) for one in schema.features]}
    nodes |= {"target": list(schema.target), "classes": schema.classes, "feature_shape": list(schema.feature_shape)}
    nodes["dtypes"] = [str(leaf.dtype).removeprefix("torch.") for leaf in (known.batch.x, known.batch.y)]
    files = {
        "study.toml": study.to_toml().encode(),
        "environment.json": (json.dumps(about, indent=1, default=str) + "\n").encode(),
        NODES: (json.dumps(nodes, indent=1) + "\n").encode(),
    }
    put(path, files)
    TrainingHistory().save(path)
    return list(truncate_rounds(path, last))
