"""Running a study: data, model, method and federation come together here and nowhere else."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pacbayes_fl import results, tensors
from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import CheckpointError, ClientError, NumericalError, StudyError
from pacbayes_fl.federation import checkpoint, engine
from pacbayes_fl.federation.engine import FederationState
from pacbayes_fl.methods.base import Method
from pacbayes_fl.results import Result, RoundRecord, environment
from pacbayes_fl.study_data import ScaledGroup, check_same_rows, load, provenance, scale
from pacbayes_fl.study_file import Study
from pacbayes_fl.study_report import evaluate, labels, score

__all__ = ["Study", "Trained", "open_run", "prepare", "report", "run", "train"]

OnRound = Callable[[RoundRecord], None]


@dataclass(frozen=True)
class Trained:
    """A federation after its last round, with everything that a prediction needs.

    Args:
        study: what was run.
        method: the algorithm.
        state: after the last round.
        groups: clients by group.
        dataset: rows in their own units.
        rounds: the record of every round.
    """

    study: Study
    method: Method[Any, Any, Any, Any]
    state: FederationState
    groups: Mapping[str, ScaledGroup]
    dataset: tables.Dataset
    rounds: tuple[RoundRecord, ...] = ()


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


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def prepare(study: Study, dataset: tables.Dataset) -> tuple[Method[Any, Any, Any, Any], dict[str, ScaledGroup]]:
    """Build a study's method and bring its data into the method's units.

    Args:
        study: what to run.
        dataset: its data.

    Returns:
        The method, and the clients by group.
    """
    device = device_of(study)
    with torch.device(device):  # a hyper-prior's centre is made once, where the particles will be
        model = study.model.build(len(dataset.features))
        method = study.recipe.build(study.method.options, model, [column.name for column in dataset.features])
    return method, {name: scale(group, method.raw_units, device) for name, group in dataset.groups.items()}


def run(study: Study, out: Path | str | None = None, resume: bool = False, on_round: OnRound | None = None) -> Result:
    """Run a study: train, personalise, score; with a folder, write everything there.

    Args:
        study: what to run.
        out: run folder; nothing is written when None.
        resume: go on from the folder's last intact checkpoint.
        on_round: called after every round with its record.

    Returns:
        The result, also in the folder.

    Raises:
        StudyError: when the folder holds a run already and `resume` is not asked for, or has finished more rounds than
            the study asks for.
        CheckpointError: when the folder is in use, belongs to another study, or holds no intact round.
        DataError: when rows of a client that the run knows have changed.
        KeyboardInterrupt: after SIGTERM or Ctrl-C, when the state has been saved.
    """
    with _threads(study.federation.threads), checkpoint.RunLock(out) if out is not None else nullcontext():
        trained = train(study, Path(out) if out is not None else None, resume, on_round)
        result = report(trained)
        if out is not None:
            result.save(out)
    return result


def train(study: Study, folder: Path | None = None, resume: bool = False, on_round: OnRound | None = None) -> Trained:
    """Run a study's rounds.

    Args:
        study: what to run.
        folder: run folder, locked by the caller; nothing is written when None.
        resume: go on from the folder's last intact checkpoint.
        on_round: called after every round with its record.

    Returns:
        The federation after its last round.

    Raises:
        StudyError, CheckpointError, KeyboardInterrupt: as `run`.
    """
    saved = None
    if folder is not None and (folder / "study.toml").exists():
        if not resume:
            raise StudyError(f"{folder} holds a run already", hint="go on with --resume, or choose another --out")
        saved = checkpoint.load(folder)
        toml = folder / "study.toml"
        before = Study.from_toml(toml) if saved is None else Study.from_table(saved.meta["study"], str(folder))
        checkpoint.check_study(before.table(), study.table())  # resolved anew: a key of later versions has its default
    if saved is not None:
        if saved.round > study.plan.rounds:
            raise StudyError(f"{folder} has finished round {saved.round}, and rounds is {study.plan.rounds}")
        for message in saved.warnings:
            warnings.warn(message, stacklevel=3)
    dataset = load(study)
    if folder is not None and (folder / "data.npz").exists():
        check_same_rows(tables.read(folder / "data.npz"), dataset)
    method, groups = prepare(study, dataset)
    clients = groups["existing"].train
    state = _restore(method, clients, study, saved)
    if folder is not None:  # only now that nothing can be refused any more
        _open_folder(folder, study, dataset)
    records = list(results.truncate_rounds(folder, state.round)) if folder is not None else []
    every = study.report.evaluate_every or max(1, study.plan.rounds // 10)
    with checkpoint.StopSignal() if folder is not None else nullcontext() as stop:
        try:
            for record, after in engine.rounds(method, clients, study.plan, state):
                state = after
                if study.recipe.rounds and (record.round % every == 0 or record.round == study.plan.rounds):
                    rsmse = score(method, state, groups["existing"], study.plan)
                    record = replace(record, values={**record.values, "rsmse": rsmse})
                records.append(record)
                if on_round is not None:
                    on_round(record)
                if folder is None:
                    continue
                results.append_round(folder, record)
                stopping = stop is not None and stop.requested
                last = record.round == study.plan.rounds
                if stopping or last or record.round % study.federation.checkpoint_every == 0:
                    _save(folder, study, clients, state)
                if stopping:
                    raise KeyboardInterrupt
        except (ClientError, NumericalError):
            if folder is not None:
                _save(folder, study, clients, state)  # nothing is lost: the last good round is on disk
            raise
    if folder is not None and state.round == 0:
        _save(folder, study, clients, state)
    return Trained(study, method, state, groups, dataset, tuple(records))


def _open_folder(folder: Path, study: Study, dataset: tables.Dataset) -> None:
    (folder / "metrics.json").unlink(missing_ok=True)  # of fewer rounds: it would say that the run is finished
    results.write_atomic(folder / "study.toml", study.to_toml().encode())
    about = environment(device_of(study)) | {"seed": study.seed, "data": provenance(dataset)}
    results.write_atomic(folder / "environment.json", (json.dumps(about, indent=1, default=str) + "\n").encode())
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **tables.to_arrays(dataset))  # type: ignore[arg-type]
    results.write_atomic(folder / "data.npz", buffer.getvalue())


def _save(folder: Path, study: Study, clients: ClientBatch, state: FederationState) -> None:
    flat = tensors.leaves({"server": state.server, "clients": state.clients})
    meta = {"study": study.table(), "ids": list(clients.ids), "names": list(clients.names)}
    checkpoint.save(folder, state.round, flat, meta)


def _restore(
    method: Method[Any, Any, Any, Any], clients: ClientBatch, study: Study, saved: checkpoint.Checkpoint | None
) -> FederationState:
    """Match a saved round to today's clients, by id."""
    fresh = engine.start(method, clients, study.plan)
    if saved is None:
        return fresh
    flat = {name: tensor.to(clients.x.device) for name, tensor in saved.tensors.items()}
    server = tensors.unleaves(
        {"server": fresh.server}, {n: t for n, t in flat.items() if n.startswith("server")}, exact=False
    )
    mine = {name: tensor for name, tensor in flat.items() if name.startswith("clients")}
    theirs = tensors.unleaves({"clients": fresh.clients}, mine, exact=False)["clients"]
    match = checkpoint.match_clients(saved.meta["ids"], clients.ids)
    source, target = match.source.to(clients.x.device), match.target.to(clients.x.device)
    starting = method.init_clients(method.broadcast(server["server"]), clients)  # of today's server
    kept = tensors.scatter(starting, target, tensors.select(theirs, source))
    return FederationState(server["server"], kept, saved.round)


def report(trained: Trained) -> Result:
    """Score a trained federation on every group of clients.

    Args:
        trained: after its last round.

    Returns:
        The result: a row per client and group, predictions, and the record of the rounds.
    """
    study = trained.study
    reports = [
        evaluate(trained.method, trained.state, name, group, study.plan, study.report.levels)
        for name, group in trained.groups.items()
    ]
    options = study.table()["method"]
    words = labels(study.method.name, options, trained.dataset.features, trained.dataset.target, study.report.levels)
    words["differs_from_paper"] = {key: list(pair) for key, pair in study.differences().items()}
    return Result(
        study.name,
        study.method.name,
        study.seed,
        "regression",
        trained.rounds,
        tuple(row for one in reports for row in one.rows),
        {name: tensor.cpu() for one in reports for name, tensor in one.predictions.items()},
        words,
    )


def open_run(folder: Path | str) -> Trained:
    """Open a run folder to predict with it: its study, its data and its last intact round, from the folder alone.

    Args:
        folder: the run folder.

    Returns:
        The federation as it was saved.

    Raises:
        CheckpointError: when there is no intact round.
        StudyError: when the folder is not a run's.
    """
    folder = Path(folder)
    if not (folder / "study.toml").is_file() or not (folder / "data.npz").is_file():
        raise StudyError(f"{folder} is not a run folder: study.toml or data.npz is missing")
    saved = checkpoint.load(folder)
    if saved is None:
        raise CheckpointError(f"{folder} holds no saved round", hint="finish the run with --resume")
    study = Study.from_table(saved.meta["study"], str(folder))  # what was trained, whatever became of study.toml
    if study.federation.device == "cuda" and not torch.cuda.is_available():  # trained elsewhere
        study = replace(study, federation=replace(study.federation, device="cpu"))
    for message in saved.warnings:
        warnings.warn(message, stacklevel=2)
    dataset = tables.read(folder / "data.npz")
    method, groups = prepare(study, dataset)
    state = _restore(method, groups["existing"].train, study, saved)
    return Trained(study, method, state, groups, dataset, results.read_rounds(folder))
