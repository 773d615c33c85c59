"""Running a study: data, model, method and federation come together here and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pacbayes_fl import (
    results,
    study_choice,
    study_classes,
    study_hold_out,
    study_keep,
    study_privacy,
    study_report,
    study_resume,
    study_scaling,
    tensors,
)
from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import CheckpointError, ClientError, NumericalError, StudyError
from pacbayes_fl.federation import checkpoint, engine
from pacbayes_fl.federation.engine import FederationState
from pacbayes_fl.federation.kept import Kept
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.methods.base import Method
from pacbayes_fl.privacy.accounting import Replacement
from pacbayes_fl.results import ClientRow, Result, RoundRecord, environment
from pacbayes_fl.results_folder import RELEASED, leaving, refuse_links
from pacbayes_fl.results_manifest import put
from pacbayes_fl.study_data import ScaledGroup, check_environment, provenance
from pacbayes_fl.study_file import Study
from pacbayes_fl.study_setup import device_of, prepare

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
        held: training rows of existing clients that the training never saw, in the data's own units.
        rounds: the record of every round.
        notes: what else labels should say, such as how an option was chosen that the study leaves open.
        replacement: gives, for the delta of a certificate, what all releases of a private run together tell of one
            client, by its ledger; None without one.
        memory: clients that ever took part.
        folder: of the run, where its state was read from one: there requests of certificates are counted.
        fell_back: newer rounds that were damaged, and which round was used in their place.
    """

    study: Study
    method: Method[Any, Any, Any, Any]
    state: FederationState
    groups: Mapping[str, ScaledGroup]
    dataset: tables.Dataset
    held: ClientBatch | None = None
    rounds: tuple[RoundRecord, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    replacement: Callable[[float], Replacement | None] = field(default=lambda _: None)
    memory: study_hold_out.Memory = field(default_factory=study_hold_out.Memory)
    folder: Path | None = None
    fell_back: Sequence[str] = ()

    @property
    def round(self) -> int:
        """Rounds finished."""
        return self.state.round


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def run(study: Study, out: Path | str | None = None, resume: bool = False, on_round: OnRound | None = None) -> Result:
    """Run a study: train, personalise, score; with a folder, write everything there.

    Args:
        study: what to run.
        out: run folder; nothing is written when None.
        resume: go on from the folder's last intact checkpoint.
        on_round: called after every round with its record, and before the first with one of round 0 for each candidate
            of an option that the study leaves open.

    Returns:
        The result, also in the folder.

    Raises:
        StudyError: when the folder holds a run already and `resume` is not asked for, or has finished more rounds than
            the study asks for, or is a release.
        PrivacyError: when the study asks for a guarantee that it cannot have.
        CheckpointError: when the folder is in use, belongs to another study, or holds no intact round.
        DataError: when rows of a client that the run knows have changed.
        KeyboardInterrupt: after SIGTERM, SIGHUP or Ctrl-C, when the state has been saved.
    """
    if out is not None:
        study_resume.refuse_release(Path(out))
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
        on_round: as `run`.

    Returns:
        The federation after its last round.

    Raises:
        StudyError, CheckpointError, KeyboardInterrupt: as `run`.
    """
    study_privacy.check(study, folder)
    study, notes, saved, fell_back = study_resume.left(study, folder, resume)
    dataset = study_keep.data_again(study, folder)
    division = study_hold_out.divide(study, dataset)  # before anything looks at the rows
    memory = study_hold_out.Memory.read(folder, saved is not None).joined(study, dataset, division.dataset)
    if folder is not None and (folder / study_keep.ROWS).exists():
        study_hold_out.check(folder, division)
    if study.held_out:
        study, notes = study_choice.choose(study, study_hold_out.open_rows(study, division), on_round)
    shared = study_scaling.read(folder, dataset) if folder is not None and saved is not None else None
    method, groups = prepare(study, division.dataset, memory.fold_of(dataset.groups["existing"].train), shared)
    study_keep.check(study, method)
    clients = groups["existing"].train
    with checkpoint.meant(saved):
        state = _restore(method, clients, study, saved)
    engine.check(method, clients, study.plan, state)
    aggregator = study_privacy.open_private(
        study, method, state, clients, folder, None if saved is None else saved.meta
    )
    every = study.federation.checkpoint_every if aggregator is None else 1  # what was paid for is kept
    paid = study_privacy.to_save(aggregator, {} if saved is None else saved.meta)
    if folder is not None:  # only now that nothing can be refused any more
        if study.report.keep == "all":
            study_hold_out.save(folder, division)  # before the data: where they are, these rows are looked for
        study_scaling.save(folder, groups["existing"].shared, dataset)
        _open_folder(folder, study, dataset, notes)
        memory.save(folder)
    records = list(results.truncate_rounds(folder, state.round)) if folder is not None else []
    with checkpoint.StopSignal() if folder is not None else nullcontext() as stop:
        try:
            for record, after in study_privacy.stop_when_spent(
                engine.rounds(method, clients, study.plan, state, aggregator)
            ):
                state, paid = after, study_privacy.to_save(aggregator)
                last = record.round == study.plan.rounds
                settled = engine.at_rates(method, state)
                record = _watched(study, settled, state, groups["existing"], record, aggregator, last)
                records.append(record)
                if on_round is not None:
                    on_round(record)
                if folder is None:
                    continue
                results.append_round(folder, record)
                stopping = stop is not None and stop.requested
                if stopping or last or record.round % every == 0:
                    _save(folder, study, clients, state, paid, fell_back)
                if stopping:
                    raise KeyboardInterrupt
        except (ClientError, NumericalError):
            if folder is not None:
                _save(folder, study, clients, state, paid, fell_back)  # nothing is lost: the last good round is on disk
            raise
    method = engine.at_rates(method, state)
    if records and state.round < study.plan.rounds:  # a budget ended it: this is the last round, and is scored as such
        records[-1] = _watched(study, method, state, groups["existing"], records[-1], aggregator, last=True)
    if folder is not None and (state.round == 0 or state.round < study.plan.rounds):
        _save(folder, study, clients, state, paid, fell_back)
    notes = {**notes, **study_privacy.labels(study, aggregator, state.round), **_of_rates(state)}
    return Trained(
        study,
        method,
        state,
        groups,
        dataset,
        division.held,
        tuple(records),
        notes,
        memory=memory,
        folder=folder,
        fell_back=fell_back,
    )


def _of_rates(state: FederationState) -> dict[str, Any]:
    """What labels say of learning rates that a run had to give up."""
    times = state.watch.halved
    return {"rates": f"{0.5**times:g} of the study's: as often as rounds diverged, {times}, halved"} if times else {}


def _watched(
    study: Study,
    method: Method[Any, Any, Any, Any],
    state: FederationState,
    group: ScaledGroup,
    record: RoundRecord,
    aggregator: PrivateAggregator | None,
    last: bool,
) -> RoundRecord:
    """Add scores, what privacy was spent, and how uncertain classifiers are, to the rounds that are to have them."""
    every = study.report.evaluate_every or max(1, study.plan.rounds // 10)
    classes = not group.train.y.is_floating_point()
    if study.recipe.rounds and (last or record.round % every == 0):
        scores = (study_classes.curve if classes else study_report.curve)(method, state, group, study.plan)
        record = replace(record, values={**record.values, **scores, **study_privacy.epsilon_spent(aggregator)})
    if classes and (last or record.round in study.report.uncertainty_rounds):
        record = replace(record, histograms=study_classes.histograms(method, state, group, study.plan))
    return record


def _open_folder(folder: Path, study: Study, dataset: tables.Dataset, notes: Mapping[str, Any]) -> None:
    put(folder, {"metrics.json": None})  # of fewer rounds: it would say that the run is finished
    if notes:
        study_choice.remember(folder, notes)  # first: who resumes this study must find the choice
    about = environment(device_of(study)) | {"seed": study.seed, "data": provenance(dataset)}
    files = {
        "study.toml": study.to_toml().encode(),
        "environment.json": (json.dumps(about, indent=1, default=str) + "\n").encode(),
    }
    put(folder, files)
    study_keep.save(folder, study, dataset)


def _save(
    folder: Path,
    study: Study,
    clients: ClientBatch,
    state: FederationState,
    paid: Mapping[str, int],
    fell_back: Sequence[str],
) -> None:
    kept = Kept.of(state.kept, clients.clients)
    known = kept.present or (0,)
    mine = kept.select(known)
    flat = tensors.leaves({"server": state.server, "clients": mine})
    meta = {"study": study.table(), "ids": list(clients.ids), "names": list(clients.names)}
    if len(known) < clients.clients and tensors.leaves(mine):
        meta["kept"] = [clients.ids[k] for k in known]  # the others have never taken part
    meta["watch"] = state.watch.to_save()
    if fell_back:
        meta["fell_back"] = list(fell_back)
    checkpoint.save(folder, state.round, flat, {**meta, **paid})


def _restore(
    method: Method[Any, Any, Any, Any], clients: ClientBatch, study: Study, saved: checkpoint.Checkpoint | None
) -> FederationState:
    """Match a saved round to today's clients, by id."""
    fresh = engine.start(method, clients, study.plan)
    if saved is None:
        return fresh
    _check_finite(saved)
    flat = {name: tensor.to(clients.x.device) for name, tensor in saved.tensors.items()}
    server = tensors.unleaves(
        {"server": fresh.server}, {n: t for n, t in flat.items() if n.startswith("server")}, exact=False
    )
    mine = {name: tensor for name, tensor in flat.items() if name.startswith("clients")}
    theirs = tensors.unleaves({"clients": fresh.kept.select((0,))}, mine, exact=False)["clients"]
    match = checkpoint.match_clients(saved.meta.get("kept", saved.meta["ids"]), clients.ids)
    known = [(match.target.tolist(), tensors.select(theirs, match.source.to(clients.x.device)))]
    seen = set(saved.meta["ids"])
    if joined := [k for k, client in enumerate(clients.ids) if client not in seen]:
        today = Kept.start(method, method.broadcast(server["server"]), clients)  # of today's server
        known.append((joined, today.select(joined)))
    kept = fresh.kept.after(known, apart=study.plan.cohort is not None and study.plan.train == "cohort")
    watch = Watch.from_saved(saved.meta.get("watch", {}))
    return FederationState(server["server"], kept, saved.round, watch)


def _check_finite(saved: checkpoint.Checkpoint) -> None:
    """Refuse a state of which a number is not finite, which no run saves: whatever followed from it would be none."""
    name_of = dict(zip(saved.meta["ids"], saved.meta.get("names", saved.meta["ids"]), strict=True))
    ids = saved.meta.get("kept", saved.meta["ids"])
    for name, tensor in saved.tensors.items():
        if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
            continue
        whose = tensor.isfinite().reshape(len(tensor), -1).all(1) if name.startswith("clients") else None
        client = None if whose is None else name_of[ids[int((~whose).nonzero()[0])]]
        hint = f"restore checkpoints/round_{saved.round:06d} from a copy, or remove it: the round before is then used"
        raise CheckpointError(f"the saved state is not finite: {name}", client=client, round=saved.round, hint=hint)


def report(trained: Trained) -> Result:
    """Score a trained federation on every group of clients.

    Args:
        trained: after its last round.

    Returns:
        The result: a row per client and group, predictions, and the record of the rounds.
    """
    study, task = trained.study, _task(trained)
    evaluate = study_report.evaluate if task == "regression" else study_classes.evaluate
    metrics = study_report.metrics_of(study, task)
    reports = []
    for name, group in trained.groups.items():
        one = evaluate(trained.method, trained.state, name, group, study.plan, metrics)
        reports.append(one._replace(rows=_described(trained, one.rows) if name == "existing" else one.rows))
    rows = tuple(row for one in reports for row in one.rows)
    return Result(
        study.name,
        study.method.name,
        study.seed,
        task,
        trained.rounds,
        rows,
        study_keep.shown(study, {name: tensor.cpu() for one in reports for name, tensor in one.predictions.items()}),
        _labels(trained, rows) | {**trained.notes},
    )


def _task(trained: Trained) -> str:
    return "regression" if trained.dataset.classes is None else "classification"


_DESCRIBED = 64  # clients whose states are looked at together


def _described(trained: Trained, rows: Sequence[ClientRow]) -> list[ClientRow]:
    """Add what the method says of every client's state to the rows of those clients."""
    kept = Kept.of(trained.state.kept, len(rows))
    said: dict[str, list[float]] = {}
    for at in range(0, len(rows), _DESCRIBED):
        some = trained.method.describe(kept.select(range(at, min(at + _DESCRIBED, len(rows)))))
        for name, values in some.items():
            said.setdefault(name, []).extend(values.tolist())
    return [
        replace(row, metrics={**row.metrics, **{name: values[k] for name, values in said.items()}})
        for k, row in enumerate(rows)
    ]


def _labels(trained: Trained, rows: Sequence[ClientRow]) -> dict[str, Any]:
    study, dataset = trained.study, trained.dataset
    metrics = study_report.metrics_of(study, _task(trained))
    differences: dict[str, Any] = {
        "differs_from_paper": {key: list(pair) for key, pair in study.differences().items()},
        "round": trained.state.round,
        "files": leaving(study.privacy.epsilon is not None and study.privacy.randomness == "system"),
        **({} if trained.method.raw_units else study_scaling.words(trained.groups["existing"].shared, dataset)),
    }
    if trained.fell_back:
        differences["fell_back"] = list(trained.fell_back)
    if "test_rows" in dataset.provenance:
        differences["test_rows"] = dataset.provenance["test_rows"]
    if dataset.classes is not None:
        words = study_classes.labels(trained.method, rows, trained.rounds, metrics)
        return {"classes": dataset.classes, "target_name": dataset.target.name} | words | differences
    options = study.table()["method"]
    words = (
        study_report.labels(study.method.name, options, dataset.features, dataset.target, metrics)
        | trained.method.about()
    )
    return words | differences


def open_run(folder: Path | str) -> Trained:
    """Open a run folder to predict with it: its study, its data and its last intact round, from the folder alone.

    Args:
        folder: the run folder.

    Returns:
        The federation as it was saved.

    Raises:
        CheckpointError: when there is no intact round, or a link stands in place of a file.
        StudyError: when the folder is not a run's.
        DataError: when the images of its study are not where they were, or not what they were, or the rows that it
            keeps are not those that it was run with.
    """
    folder = Path(folder)
    refuse_links(folder)
    if (folder / RELEASED).is_file():
        what = f"{folder} is a release of a run, which holds nothing of its clients"
        raise StudyError(what, hint="join takes a release; predict and certify take the run")
    if not (folder / "study.toml").is_file() or not study_keep.holds_data(folder):
        raise results.no_run(folder, "study.toml or data.npz is missing")
    saved, fell_back = study_resume.opened(folder)
    with checkpoint.meant(saved):
        study = Study.from_table(saved.meta["study"], str(folder))  # what was trained, whatever became of study.toml
        released = int(saved.meta.get("released", 0))
    if study.federation.device == "cuda" and not torch.cuda.is_available():  # trained elsewhere
        study = replace(study, federation=replace(study.federation, device="cpu"))
    dataset = study_keep.data_of(study, folder)
    check_environment(folder, dataset)
    division = study_hold_out.divide(study, dataset)
    if (folder / study_keep.ROWS).is_file():  # else they follow from the rows, which are those of before
        study_hold_out.check(folder, division)
    memory = study_hold_out.Memory.read(folder, True).joined(study, dataset, division.dataset)
    folds, shared = memory.fold_of(dataset.groups["existing"].train), study_scaling.read(folder, dataset)
    method, groups = prepare(study, division.dataset, folds, shared)
    with checkpoint.meant(saved):
        state = _restore(method, groups["existing"].train, study, saved)
        method = engine.at_rates(method, state)
    spent = partial(study_privacy.replacement, study, folder, released)
    known = tuple(record for record in results.read_rounds(folder) if record.round <= state.round)
    return Trained(study, method, state, groups, dataset, division.held, known, {}, spent, memory, folder, fell_back)
