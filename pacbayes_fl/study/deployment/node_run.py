"""What a node makes of a run after its last round: scores and predictions of its own clients, in a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pacbayes_fl import tensors
from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import federation_state
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.node import Node
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.privacy import ledger
from pacbayes_fl.results.manifest import put
from pacbayes_fl.results.records import Result
from pacbayes_fl.study import residuals
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows.held_rows import CertificateSplit, TrainingHistory
from pacbayes_fl.study.run import Trained, report
from pacbayes_fl.study.storage.run_folder import RunFolder, Settled
from pacbayes_fl.tensors import AnyTree


class Made(NamedTuple):
    """A node's clients after some round.

    Args:
        study: of the deployment.
        dataset: all rows of its clients.
        division: what the training saw of them.
        method: the algorithm.
        groups: its clients.
        state: after the round.
    """

    study: Study
    dataset: tables.Dataset
    division: CertificateSplit
    method: AnyMethod
    groups: Mapping[str, ScaledGroup]
    state: FederationState


def state_of(
    method: AnyMethod, node: Node, server: AnyTree, round: int, watch: Watch, seed: int, batch: ClientBatch
) -> FederationState:
    """Put the states of a node's clients beside the server's.

    Args:
        method: the algorithm.
        node: remembers its clients.
        server: its state.
        round: rounds finished.
        watch: how often learning rates were halved, and of which clients the last answers did not count.
        seed: with which the federation began.
        batch: training rows of the clients.

    Returns:
        The state in which these clients personalise.
    """
    server = tensors.tree_map(lambda leaf: leaf.to(batch.x.device), server)
    own = node.state(method.broadcast(server), seed, watch.since)
    return FederationState(server, own, round, watch)


def finish(made: Made, folder: Path | None, spent: bytes | None = None, released: object = None) -> Result:
    """Personalise, score and predict for a node's clients, and keep all of it where `open_run` finds it.

    Args:
        made: the clients after the last round.
        folder: a run folder of their own; nothing is written when None.
        spent: ledger of a private run, which certificates need.
        released: how many releases the state has seen.

    Returns:
        The result, as `study.run.run` gives it.

    Raises:
        CheckpointError: when it cannot be written, or another process uses the folder.
        DeployError: when the ledger is missing.
    """
    study, folder_of_run = made.study, None if folder is None else RunFolder(folder)
    if folder is None or folder_of_run is None:
        return report(_trained(made, TrainingHistory(), None))
    if study.privacy.epsilon is not None and (spent is None or type(released) is not int):
        raise DeployError("the server does not say what the releases of its private run have spent")
    existing = made.groups["existing"]
    with folder_of_run.lock():
        history = TrainingHistory.read(folder).extended(study, made.dataset, made.division.dataset)
        if spent is not None:
            put(folder, {ledger.NAME: spent})
        folder_of_run.open(Settled(study, {}, made.dataset, made.division, history, existing.shared), 0)
        put(folder, {"rounds.jsonl": b""})  # the server has the records
        folder_of_run.save(
            study, existing.train, made.state, released if isinstance(released, int) and spent is not None else None
        )
        trained = _trained(made, history, folder)
        residuals.keep(folder, trained.errors, trained.round)
        result = report(trained)
        folder_of_run.finish(result, study.report.page)
    return result


def _trained(made: Made, history: TrainingHistory, folder: Path | None) -> Trained:
    study, state = made.study, made.state
    method = federation_state.at_rates(made.method, state)
    errors = residuals.recall(study, folder, method, state, made.groups["existing"])
    rows = made.division.bound_rows
    return Trained(study, method, state, made.groups, made.dataset, rows, history=history, folder=folder, errors=errors)
