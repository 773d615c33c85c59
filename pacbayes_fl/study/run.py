"""Running a study: data, model, method and federation come together here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.kept import Kept
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.names import printable
from pacbayes_fl.privacy.guarantees import Replacement
from pacbayes_fl.privacy.outside import Rehearsal, Releases
from pacbayes_fl.results.folder import leaving
from pacbayes_fl.results.metrics import Metric
from pacbayes_fl.results.records import ClientRow, Result
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import choices, duration, held_rows, privacy, residuals, saved_rows, scaling
from pacbayes_fl.study.callbacks import Callback, Told
from pacbayes_fl.study.callbacks import check as check_callbacks
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate import classification, coverage, regression
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.folder import Folder, RunFolder, Settled, folder_of
from pacbayes_fl.study.held_rows import TrainingHistory
from pacbayes_fl.study.instances import Instances, Model
from pacbayes_fl.study.prepare import device_of, prepare
from pacbayes_fl.study.search import held_out, overfitting
from pacbayes_fl.study.training import Listeners, Training

__all__ = ["Study", "Trained", "device_of", "open_run", "prepare", "report", "run", "train"]

OnRound = Callable[[RoundRecord], None]


@dataclass(frozen=True, repr=False)
class Trained:
    """A federation after its last round, with everything that a prediction needs.

    Args:
        study: what was run.
        method: the algorithm.
        state: after the last round.
        groups: clients by group.
        dataset: rows in their own units.
        bound_rows: training rows of existing clients that the training never saw, in the data's own units.
        rounds: the record of every round.
        notes: what else labels should say, such as how an option was chosen that the study leaves open.
        replacement: gives, for the delta of a certificate, what all releases of a private run together tell of one
            client, by its ledger; None without one.
        history: clients that ever took part.
        folder: of the run, where its state was read from one: there requests of certificates are counted.
        fell_back: newer rounds that were damaged, and which round was used in their place.
        errors: their shape around predicted means.
    """

    study: Study
    method: AnyMethod
    state: FederationState
    groups: Mapping[str, ScaledGroup]
    dataset: tables.Dataset
    bound_rows: ClientBatch | None = None
    rounds: tuple[RoundRecord, ...] = ()
    notes: JsonMapping = field(default_factory=dict)
    replacement: Callable[[float], Replacement | None] = field(default=lambda _: None)
    history: TrainingHistory = field(default_factory=TrainingHistory)
    folder: Path | None = None
    fell_back: Sequence[str] = ()
    errors: residuals.ErrorShape = residuals.GAUSSIAN

    def __repr__(self) -> str:
        """What was trained, on how many clients, in one line."""
        counts = " and ".join(f"{group.train.clients} {name}" for name, group in self.groups.items())
        what = printable(f"{self.study.method.name} on {self.study.name}")
        return f"Trained({what}, round {self.round}, {counts} clients)"

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


def run(
    study: Study,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    *,
    method: AnyMethod | None = None,
    model: Model | None = None,
    data: tables.Dataset | Mapping[str, Sequence[object]] | None = None,
    metrics: Sequence[Metric] = (),
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run a study: train, personalise, score; with a folder, write everything there.

    Args:
        study: what to run.
        out: run folder; nothing is written when None.
        resume: go on from the folder's last intact checkpoint.
        on_round: called after every round with its record, and before the first with one of round 0 for each candidate
            of an option that the study leaves open.
        method: an instance of any subclass of `Method`, in place of the study's [method] and [model].
        model: a prior or a network, in place of the study's [model].
        data: a data set, or by name the rows (x [m, d], y [m]) of every client, in place of the study's [data] source.
        metrics: records `Metric`, beside the study's [report] metrics; see `Study.with_instances` for all four.
        callbacks: told of every round with its scores; each can end the run, such as `EarlyStop`.

    Returns:
        The result, also in the folder.

    Example:
        >>> import torch, pacbayes_fl as fl
        >>> x = torch.linspace(-1, 1, 12).unsqueeze(1)
        >>> clients = {f"house_{k}": (x, (k + 1) * x[:, 0]) for k in range(3)}
        >>> network = fl.BayesianMLP((1, 4, 1), fl.Gaussian(), torch.float64)
        >>> study = fl.Study.from_table({"federation": {"rounds": 2}})
        >>> result = fl.run(study, method=fl.FedAvg(network), data=clients)
        >>> result.method, len(result.column("existing", "rsmse"))
        ('instance:FedAvg', 3)

    Raises:
        StudyError: when the folder holds a run already and `resume` is not asked for, or has finished more rounds than
            the study asks for, or is a release.
        PrivacyError: when the study asks for a guarantee that it cannot have.
        CheckpointError: when the folder is in use, belongs to another study, or holds no intact round.
        DataError: when rows of a client that the run knows have changed.
        KeyboardInterrupt: after SIGTERM, SIGHUP or Ctrl-C, when the state has been saved.
    """
    if method is not None or model is not None or data is not None or metrics:
        study = study.with_instances(method=method, model=model, data=data, metrics=metrics)
    folder = folder_of(out)
    with _threads(study.federation.threads), folder.lock():
        trained = train(study, folder.path, resume, on_round, callbacks)
        result = report(trained)
        folder.finish(result)
    return result


def train(
    study: Study,
    folder: Path | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    callbacks: Sequence[Callback] = (),
) -> Trained:
    """Run a study's rounds.

    Args:
        study: what to run.
        folder: run folder, locked by the caller; nothing is written when None.
        resume: go on from the folder's last intact checkpoint.
        on_round: as `run`.
        callbacks: as `run`.

    Returns:
        The federation after its last round.

    Raises:
        StudyError, CheckpointError, KeyboardInterrupt: as `run`.
    """
    privacy.check(study, folder)
    check_callbacks(callbacks)
    return _trained(study, folder_of(folder), resume, on_round or _unheard, Told(callbacks))


def _unheard(record: RoundRecord) -> None:
    """What becomes of a record that nobody asked to hear of."""


class _Federation(NamedTuple):
    """A study that is ready to go on: its method, its clients and their state."""

    settled: Settled
    method: AnyMethod
    groups: Mapping[str, ScaledGroup]
    state: FederationState

    @property
    def clients(self) -> ClientBatch:
        """The rows that the training sees."""
        return self.groups["existing"].train

    def errors(
        self, state: FederationState, folder: Folder, aggregator: PrivateAggregator | None = None
    ) -> residuals.ErrorShape:
        """The shape of errors after the last round; a private run pays for it, and one that is opened does not."""
        method, existing = federation_state.at_rates(self.method, state), self.groups["existing"]
        return residuals.recall(self.settled.study, folder.path, method, state, existing, aggregator)

    def trained(self, state: FederationState, folder: Folder, **more: Any) -> Trained:
        """The state after the last round, at the final learning rates."""
        settled, method = self.settled, federation_state.at_rates(self.method, state)
        return Trained(
            settled.study,
            method,
            state,
            self.groups,
            settled.dataset,
            settled.division.bound_rows,
            history=settled.history,
            folder=folder.path,
            fell_back=folder.fell_back,
            **more,
        )


def _assembled(
    study: Study,
    notes: JsonMapping,
    dataset: tables.Dataset,
    folder: Folder,
    on_trial: OnRound = _unheard,
    releases: Releases | None = None,
) -> _Federation:
    """Divide the rows, check them, settle what is left open, build the method, and give clients their states.

    So a run begins, one that was interrupted goes on, and one that is to be predicted with is opened.
    """
    regression.metrics_of(study, _task(dataset))  # refused before anything is trained
    coverage.check(study, dataset)
    division = held_rows.divide(study, dataset)  # before anything looks at the rows
    history = folder.history().extended(study, dataset, division.dataset)
    folder.check_rows(division)
    if study.held_out:
        study, notes = held_out.choose(study, held_rows.rows_for_tuning(study, division), on_trial)
    folds = history.fold_of(dataset.groups["existing"].train)
    method, groups = prepare(study, division.dataset, folds, folder.scaling(dataset), releases or Rehearsal())
    state = folder.restore(method, groups["existing"].train, study)
    settled = Settled(study, notes, dataset, division, history, groups["existing"].shared)
    return _Federation(settled, method, groups, state)


def _trained(study: Study, folder: Folder, resume: bool, on_round: OnRound, callbacks: Told) -> Trained:
    study, notes = folder.recall(study, resume)
    dataset = folder.dataset(study)
    begun = _assembled(study, notes, dataset, folder, on_round)
    study = begun.settled.study
    saved_rows.check(study, begun.method)
    engine.check(begun.method, begun.clients, study.plan, begun.state)
    message = scaling.outside(study, dataset)
    opening = (begun.method, begun.state, begun.clients, folder.path, folder.released)
    aggregator = privacy.open_private(study, *opening, 0 if message is None else message.coordinates)
    if aggregator is not None and message is not None and folder.scaling(dataset) is None:  # until here, a rehearsal
        begun = _assembled(study, notes, dataset, folder, releases=aggregator.outside)
    duration.announce(study, begun.method, begun.clients, begun.state.round)
    if begun.state.round == 0 and choices.ROUNDS.key not in begun.settled.notes:  # once, and not where rows chose it
        overfitting.announce(study, begun.settled.division)
    records = folder.open(begun.settled, begun.state.round)  # only now that nothing can be refused any more
    callbacks.on_start(tuple(records))

    def scored(record: RoundRecord, state: FederationState, last: bool) -> RoundRecord:
        return _scored(begun, state, record, aggregator, last)

    every, listeners = privacy.checkpoint_every(study), Listeners(scored, on_round, callbacks)
    going = Training(study, begun.clients, folder, aggregator, every, begun.state, records, listeners)
    with going.open() as taken:
        for record, after in engine.rounds(begun.method, begun.clients, study.plan, begun.state, aggregator):
            if taken(record, after):
                break
    state = going.state
    if records and state.round < study.plan.rounds:  # a budget ended it: this is the last round, and is scored as such
        records[-1] = _scored(begun, state, records[-1], aggregator, last=True)
    overfitting.look_back(study, records, begun.groups["existing"].validation, begun.method.objective)
    errors = begun.errors(state, folder, aggregator)
    residuals.keep(folder.path, errors, state.round)
    notes = {**begun.settled.notes, **privacy.labels(study, aggregator, state.round), **state.watch.labels()}
    notes |= callbacks.notes(state.round, study.plan.rounds) | residuals.labels(study)
    return begun.trained(state, folder, rounds=tuple(records), notes=notes, errors=errors)


def _scored(
    begun: _Federation, state: FederationState, record: RoundRecord, aggregator: PrivateAggregator | None, last: bool
) -> RoundRecord:
    """Add scores, what privacy was spent, and how uncertain classifiers are, to the rounds that are to have them."""
    study, group, method = begun.settled.study, begun.groups["existing"], federation_state.at_rates(begun.method, state)
    every = study.report.evaluate_every or max(1, study.plan.rounds // 10)
    classes = not group.train.y.is_floating_point()
    if study.recipe.rounds and (last or record.round % every == 0):
        scores = (classification.curve if classes else regression.curve)(method, state, group, study.plan)
        record = replace(record, values={**record.values, **scores, **privacy.epsilon_spent(aggregator)})
    if classes and (last or record.round in study.report.uncertainty_rounds):
        record = replace(record, histograms=classification.histograms(method, state, group, study.plan))
    return record


def report(trained: Trained) -> Result:
    """Score a trained federation on every group of clients.

    Args:
        trained: after its last round.

    Returns:
        The result: a row per client and group, predictions, and the record of the rounds.
    """
    study, task = trained.study, _task(trained.dataset)
    of_numbers = partial(regression.evaluate, errors=trained.errors, by=coverage.column(study, trained.dataset))
    evaluate = of_numbers if task == "regression" else classification.evaluate
    metrics = regression.metrics_of(study, task)
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
        saved_rows.shown(study, {name: tensor.cpu() for one in reports for name, tensor in one.predictions.items()}),
        _labels(trained, rows) | {**trained.notes},
    )


def _task(dataset: tables.Dataset) -> str:
    return "regression" if dataset.classes is None else "classification"


_DESCRIBED = 64  # clients whose states are looked at together


def _described(trained: Trained, rows: Sequence[ClientRow]) -> list[ClientRow]:
    """Add what the method says of every client's state to the rows of those clients."""
    kept = Kept.of(trained.state.kept, len(rows))
    said: dict[str, list[float]] = {}
    for at in range(0, len(rows), _DESCRIBED):
        described = trained.method.describe(kept.select(range(at, min(at + _DESCRIBED, len(rows)))))
        for name, values in described.items():
            said.setdefault(name, []).extend(values.tolist())
    return [
        replace(row, metrics={**row.metrics, **{name: values[k] for name, values in said.items()}})
        for k, row in enumerate(rows)
    ]


def _labels(trained: Trained, rows: Sequence[ClientRow]) -> JsonTable:
    study, dataset = trained.study, trained.dataset
    metrics = regression.metrics_of(study, _task(dataset))
    differences: JsonTable = {
        "differs_from_paper": {key: list(pair) for key, pair in study.differences().items()},
        "round": trained.state.round,
        "files": leaving(study.privacy.epsilon is not None and study.privacy.randomness == "system"),
        **({} if trained.method.raw_units else scaling.labels(trained.groups["existing"].shared, dataset)),
    }
    if trained.fell_back:
        differences["fell_back"] = list(trained.fell_back)
    if "test_rows" in dataset.provenance:
        differences["test_rows"] = dataset.provenance["test_rows"]
    if dataset.classes is not None:
        labels = classification.labels(trained.method, rows, trained.rounds, metrics)
        return {"classes": dataset.classes, "target_name": dataset.target.name} | labels | differences
    options = study.table()["method"]
    labels = (
        regression.labels(study.method.name, options, dataset.features, dataset.target, metrics)
        | trained.method.about()
        | coverage.labels(study, dataset)
    )
    return labels | differences


def open_run(
    folder: Path | str,
    *,
    method: AnyMethod | None = None,
    model: Model | None = None,
    data: tables.Dataset | None = None,
    metrics: Sequence[Metric] = (),
) -> Trained:
    """Open a run folder to predict with it: its study, its data and its last intact round, from the folder alone.

    Args:
        folder: the run folder.
        method: the instance that `run` was given, if any; no file holds it.
        model: likewise.
        data: likewise, of a run that keeps no rows; one that does needs none.
        metrics: likewise.

    Returns:
        The federation as it was saved.

    Example:
        >>> import pacbayes_fl as fl
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> _ = fl.run(study, "my_run")
        >>> trained = fl.open_run("my_run")
        >>> trained.round, sorted(trained.groups)
        (2, ['existing', 'new'])

    Raises:
        CheckpointError: when there is no intact round, or a link stands in place of a file.
        StudyError: when the folder is not a run's.
        DataError: when the images of its study are not where they were, or not what they were, or the rows that it
            keeps are not those that it was run with.
    """
    place = RunFolder(Path(folder), Instances(method, model, data, tuple(metrics)))
    study, dataset, released = place.load()
    begun = _assembled(study, {}, dataset, place)
    spent = partial(privacy.replacement, study, place.path, released)
    errors, records = begun.errors(begun.state, place), place.rounds(begun.state.round)
    return begun.trained(begun.state, place, rounds=records, replacement=spent, errors=errors)
