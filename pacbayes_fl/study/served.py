"""The server's half of a study whose clients' rows are elsewhere: the rounds and the run folder, without a row."""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pacbayes_fl.errors import UNREADABLE, DataError, DeployError, caller_stacklevel
from pacbayes_fl.federation import engine, frames
from pacbayes_fl.federation.arrays import shown
from pacbayes_fl.federation.mail import Mail, MailTransport
from pacbayes_fl.federation.remote_player import RemotePlayer
from pacbayes_fl.files import JsonTable
from pacbayes_fl.results.folder import NODES, leaving
from pacbayes_fl.results.manifest import put
from pacbayes_fl.results.records import Result, environment
from pacbayes_fl.results.rounds import RoundRecord, truncate_rounds
from pacbayes_fl.study import apart, privacy, scaling
from pacbayes_fl.study.apart import Hello, Roster
from pacbayes_fl.study.callbacks import Callback, Told
from pacbayes_fl.study.callbacks import check as check_callbacks
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.folder import RunFolder
from pacbayes_fl.study.held_rows import TrainingHistory
from pacbayes_fl.study.prepare import build, device_of
from pacbayes_fl.study.training import Listeners, Training


@dataclass(frozen=True)
class Waits:
    """How long a server waits.

    Args:
        nodes: seconds until all nodes have said who they are.
        round: seconds for the answers of a round.
    """

    nodes: float = 120.0
    round: float = 600.0


PATIENT: Final = Waits()


def serve(
    study: Study,
    out: Path | str,
    mail: Mail,
    resume: bool = False,
    on_round: Callable[[RoundRecord], None] | None = None,
    callbacks: Sequence[Callback] = (),
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
        callbacks: told of every round; each can end the run.
        waits: how long it waits.
        claims: names of the clients of each node, by its number, where the server knows whose key it has.

    Returns:
        The result, without scores, which the nodes can give.

    Raises:
        StudyError: when the study takes more of clients than updates; as `study.run.run`.
        PrivacyError: when the study asks for a guarantee that it cannot have.
        DataError: when nodes differ in their columns, claim the same client, or are not those of the run.
        DeployError: when a node does not say who it is.
        CheckpointError, ClientError, NumericalError: as `study.run.run`.
    """
    apart.check(study)
    folder = RunFolder(Path(out))
    privacy.check(study, folder.path)
    check_callbacks(callbacks)
    told = Told(callbacks)
    with folder.lock():
        study, notes = folder.recall(study, resume)
        hellos = _greeted(mail, waits.nodes)
        _check_claims(hellos, claims)
        known = Roster.of([*hellos.values()], device_of(study))
        run = _recalled(folder.path, known, folder)
        method, _ = build(study, known.schema)
        clients = known.batch
        state = folder.restore(method, clients, study)
        engine.check(method, clients, study.plan, state)
        aggregator = privacy.open_private(study, method, state, clients, folder.path, folder.released)
        records = _opened(folder, study, known, run, state.round)
        _joined(mail, [*hellos], run, state.round, waits.nodes)
        told.on_start(tuple(records))
        owners = {name: node for node, hello in hellos.items() for name in hello.clients}
        transport = MailTransport(mail, owners, waits.round)
        player = RemotePlayer(method, clients, study.plan, aggregator, transport, run)
        listeners = Listeners(lambda record, *_: record, on_round or (lambda _: None), told)
        going = Training(study, clients, folder, aggregator, 1, state, records, listeners)
        with going.open() as taken:
            for record, after in engine.play(player, state):
                if taken(record, after):
                    break
        state = going.state
        labels = {**notes, **privacy.labels(study, aggregator, state.round), **state.watch.labels()}
        labels |= told.notes(state.round, study.plan.rounds) | _labels(study, state.round)
        task = "regression" if known.schema.classes is None else "classification"
        result = Result(study.name, study.method.name, study.seed, task, tuple(records), (), {}, labels)
        folder.finish(result)
        return result


def _labels(study: Study, round: int) -> JsonTable:
    differences = {key: list(pair) for key, pair in study.differences().items()}
    private = study.privacy.epsilon is not None and study.privacy.randomness == "system"
    return {"differs_from_paper": differences, "round": round, "files": leaving(private)}


def _asked(mail: Mail, nodes: Sequence[int], letter: JsonTable, seconds: float) -> dict[int, JsonTable]:
    """Ask all nodes the same, and insist on an answer of each."""
    answers = dict[int, JsonTable]()
    for node, data in mail.ask(dict.fromkeys(nodes, frames.encode(letter, {})), seconds):
        answers[node] = dict(frames.decode(data).config)
        if "refused" in answers[node]:
            raise DeployError(f"node {node} does not take part: {shown(str(answers[node]['refused']))}")
    if silent := [node for node in nodes if node not in answers]:
        raise DeployError(f"{len(silent)} of {len(nodes)} nodes did not answer within {seconds:g} s: {silent[:5]}")
    return answers


def _greeted(mail: Mail, seconds: float) -> dict[int, Hello]:
    nodes = list(mail.nodes())
    if not nodes:
        raise DeployError("there is no node", hint="start nodes, and see that their keys are registered")
    answers = _asked(mail, nodes, {"kind": "hello"}, seconds)
    return {node: Hello.from_json(answers[node].get("hello") or {}) for node in nodes}


def _check_claims(hellos: Mapping[int, Hello], claims: Mapping[int, Sequence[str]] | None) -> None:
    """Refuse a node that is nobody's, or that claims a client of another's."""
    for node, hello in hellos.items() if claims is not None else ():
        own = (claims or {}).get(node, ())
        for name in hello.clients:
            if name not in own:
                what = f"node {node} claims it, and its key belongs to the node of {', '.join(own[:5]) or 'nobody'}"
                raise DataError(what, client=name)


def _joined(mail: Mail, nodes: Sequence[int], run: str, round: int, seconds: float) -> None:
    """Let the nodes join the run, and name those that have lost what they knew of it."""
    for answer in _asked(mail, nodes, {"kind": "join", "run": run, "round": round}, seconds).values():
        new = answer.get("new")
        lost = [name for name, begins in new.items() if begins is True] if isinstance(new, dict) else []
        if round and lost:
            what = f"{', '.join(map(shown, lost[:5]))}: the node has lost what it knew of the run, and joins as new"
            warnings.warn(f"{what} after round {round}", stacklevel=caller_stacklevel())


def _recalled(path: Path, known: Roster, folder: RunFolder) -> str:
    """Give the identifier of a run that goes on, whose clients must be the same, or of a new one."""
    now = _clients(known)
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


def _clients(known: Roster) -> dict[str, int]:
    return dict(zip(known.batch.names, map(int, known.batch.size.tolist()), strict=True))


def _opened(folder: RunFolder, study: Study, known: Roster, run: str, last: int) -> list[RoundRecord]:
    """Write what the server knows before the first round, and give the records of the rounds that are finished."""
    path, schema = folder.path, known.schema
    shared = apart.settle(study, known.dataset(study.data.bounds))
    scaling.save(path, shared, schema)
    put(path, {"metrics.json": None, "ended.json": None})  # of fewer rounds: they say that it is over
    about = environment(device_of(study)) | {"seed": study.seed, "data": {"source": "nodes"}}
    nodes: JsonTable = {"run": run, "clients": _clients(known), "features": [list(one) for one in schema.features]}
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
