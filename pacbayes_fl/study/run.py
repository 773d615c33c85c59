"""Running a study: data, model, method and federation come together here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError, kinds_checked
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.federation.ranks import Ranks
from pacbayes_fl.federation.shards import whole
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.names import printable
from pacbayes_fl.privacy.guarantees import Replacement
from pacbayes_fl.privacy.outside import Rehearsal, Releases
from pacbayes_fl.results.client_rows import ClientRows, members
from pacbayes_fl.results.metrics import Metric
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.records import load as result_of
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.results.run_warnings import heard
from pacbayes_fl.study import duration, privacy, residuals, uncertifiable
from pacbayes_fl.study.callbacks import Callback, Told
from pacbayes_fl.study.callbacks import check as check_callbacks
from pacbayes_fl.study.config import choices
from pacbayes_fl.study.config.instances import Instances, Model
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate import classification, coverage, described, points, regression, shards
from pacbayes_fl.study.evaluate.report import Report, metrics_of, state_of
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.method_names import as_named
from pacbayes_fl.study.prepare import device_of, prepare
from pacbayes_fl.study.rows import held_rows, saved_rows, scaling
from pacbayes_fl.study.rows.held_rows import TrainingHistory
from pacbayes_fl.study.search import choice_file, held_out, overfitting
from pacbayes_fl.study.storage.rank_folder import AnyFolder, folder_for
from pacbayes_fl.study.storage.run_folder import RunFolder, Settled
from pacbayes_fl.study.threads import threads
from pacbayes_fl.study.training import Listeners, Training

__all__ = ["Study", "Trained", "device_of", "open_run", "prepare", "report", "run", "train"]

OnRound = Callable[[RoundRecord], None]


@dataclass(frozen=True, repr=False)
class Trained:
    """A federation after its last round, with everything that a prediction needs.

    Args:
        study: what was run.
        method: the algorithm.
        state: after the last round; the server of a run that averages is the mean of its last ones.
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
        counts = members({name: group.train.clients for name, group in self.groups.items()})
        what = printable(f"{self.study.method.name} on {self.study.name}")
        return f"Trained({what}, round {self.round}, {counts})"

    @property
    def result(self) -> Result:
        """Scores and predictions of a finished run, as `run` gave them.

        Raises:
            StudyError: when the run is in no folder, or has not been finished.
        """
        if self.folder is None:
            raise StudyError("the scores of a run are in its folder, and this one has none", hint="run(study, folder)")
        return result_of(self.folder)

    @property
    def round(self) -> int:
        """Rounds finished."""
        return self.state.round


@kinds_checked
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
    ranks: Ranks | None = None,
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
        ranks: the processes that run the study together, from `federation.ranks.opened`; every one calls this.

    Returns:
        The result, also in the folder; without clients in a process that is not the first.

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
    folder = folder_for(out, ranks)
    with threads(study.federation.threads), folder.lock(), heard() as said, as_named(study):
        trained = train(study, folder.path, resume, on_round, callbacks, ranks)
        result = report(trained, ranks)
        folder.finish(result, study.report.page, said)
    return result


def train(
    study: Study,
    folder: Path | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    callbacks: Sequence[Callback] = (),
    ranks: Ranks | None = None,
) -> Trained:
    """Run a study's rounds.

    Args:
        study: what to run.
        folder: run folder, locked by the caller; nothing is written when None.
        resume: go on from the folder's last intact checkpoint.
        on_round: as `run`.
        callbacks: as `run`.
        ranks: as `run`.

    Returns:
        The federation after its last round.

    Raises:
        StudyError, CheckpointError, KeyboardInterrupt: as `run`.
    """
    privacy.check(study, folder)
    check_callbacks(callbacks)
    study.differences()  # of which the report tells: what the method's preset cannot have is refused before it trains
    return _trained(study, folder_for(folder, ranks), resume, on_round or _unheard, Told(callbacks), ranks)


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
        self, state: FederationState, folder: AnyFolder, aggregator: PrivateAggregator | None = None
    ) -> residuals.ErrorShape:
        """The shape of errors after the last round; a private run pays for it, and one that is opened does not."""
        method, existing = federation_state.at_rates(self.method, state), self.groups["existing"]
        held = choice_file.errors_of(self.settled.notes)
        return residuals.recall(self.settled.study, folder.path, method, state, existing, aggregator, held)

    def trained(self, state: FederationState, folder: AnyFolder, **more: Any) -> Trained:
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
    folder: AnyFolder,
    on_trial: OnRound = _unheard,
    releases: Releases | None = None,
) -> _Federation:
    """Divide the rows, check them, settle what is left open, build the method, and give clients their states.

    So a run begins, one that was interrupted goes on, and one that is to be predicted with is opened.
    """
    metrics_of(study, dataset.task)  # refused before anything is trained
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


def _trained(
    study: Study, folder: AnyFolder, resume: bool, on_round: OnRound, callbacks: Told, ranks: Ranks | None
) -> Trained:
    study, notes = folder.recall(study, resume)
    dataset = folder.dataset(study)
    begun = _assembled(study, notes, dataset, folder, on_round)
    study = begun.settled.study
    saved_rows.check(study, begun.method)
    engine.check(begun.method, begun.clients, study.plan, begun.state)
    shards.check_description(begun.method, begun.state, begun.clients.clients, metrics_of(study, dataset.task))
    message = scaling.outside(study, dataset)
    opening = (begun.method, begun.state, begun.clients, folder.path, folder.released)
    aggregator = privacy.open_private(study, *opening, 0 if message is None else message.coordinates)
    privacy.share_ledger(study, aggregator, dataset, begun.state.round)
    if aggregator is not None and message is not None and folder.scaling(dataset) is None:  # until here, a rehearsal
        folder.begin(begun.settled)  # a kill after the release leaves a run, which goes on with the rows that it has
        begun = _assembled(study, notes, dataset, folder, releases=aggregator.outside)
    uncertifiable.announce(study, begun.method)
    duration.announce(study, begun.method, begun.clients, begun.state.round)
    if begun.state.round == 0 and choices.ROUNDS.key not in begun.settled.notes:  # once, and not where rows chose it
        overfitting.announce(study, begun.settled.division)
    records = folder.open(begun.settled, begun.state.round)  # only now that nothing can be refused any more
    callbacks.on_start(tuple(records))

    def scored(record: RoundRecord, state: FederationState, last: bool) -> RoundRecord:
        return _scored(begun, state, record, aggregator, last, ranks)

    every, listeners = privacy.checkpoint_every(study), Listeners(scored, on_round, callbacks)
    going = Training(study, begun.clients, folder, aggregator, every, begun.state, records, listeners)
    with going.open() as taken:
        for record, after in engine.rounds(begun.method, begun.clients, study.plan, begun.state, aggregator, ranks):
            if taken(record, after):
                break
    state, averaged = going.state.used, going.state.labels()
    if records and state.round < study.plan.rounds:  # a budget ended it: this is the last round, and is scored as such
        records[-1] = _scored(begun, state, records[-1], aggregator, True, ranks)
    overfitting.look_back(study, records, begun.groups["existing"].validation, begun.method.objective)
    known = state if ranks is None or not residuals.learned(study) else whole(state, begun.clients, ranks)
    errors = begun.errors(known, folder, aggregator)
    if ranks is None or ranks.first:
        residuals.keep(folder.path, errors, state.round)
    together = None if aggregator is None else aggregator.ledger.settle()
    notes = {**begun.settled.notes, **privacy.labels(study, aggregator, state.round, together), **state.watch.labels()}
    notes |= callbacks.notes(state.round, study.plan.rounds) | averaged
    notes |= residuals.labels(study, choice_file.errors_of(begun.settled.notes) is not None)
    return begun.trained(state, folder, rounds=tuple(records), notes=notes, errors=errors)


def _scored(
    begun: _Federation,
    state: FederationState,
    record: RoundRecord,
    aggregator: PrivateAggregator | None,
    last: bool,
    ranks: Ranks | None,
) -> RoundRecord:
    """Add scores, what privacy was spent, and how uncertain classifiers are, to the rounds that are to have them."""
    study, group, method = begun.settled.study, begun.groups["existing"], federation_state.at_rates(begun.method, state)
    classes = not group.train.y.is_floating_point()
    if study.recipe.rounds and (last or points.is_due(study, record.round)):
        scores = shards.point(method, state, group, study.plan, ranks)
        record = replace(record, values={**record.values, **scores, **privacy.epsilon_spent(aggregator)})
    if classes and (last or record.round in study.report.uncertainty_rounds):
        record = replace(record, histograms=shards.histograms(method, state, group, study.plan, ranks))
    return record


def report(trained: Trained, ranks: Ranks | None = None) -> Result:
    """Score a trained federation on every group of clients.

    Args:
        trained: after its last round.
        ranks: the processes that have trained it together, if there are several.

    Returns:
        The result: a row per client and group, predictions, and the record of the rounds.
    """
    study, task = trained.study, trained.dataset.task
    metrics, column = metrics_of(study, task), coverage.column(study, trained.dataset)
    reports = []
    for name, group in trained.groups.items():

        def scored(state: FederationState, part: ScaledGroup, at: Tensor, name: str = name) -> Report:
            given = trained.method, state, name, part, study.plan, metrics
            if task == "regression":
                values = column(name)
                one = regression.evaluate(*given, trained.errors, None if values is None else values[at])
            else:
                one = classification.evaluate(*given)
            return shards.described(trained.method, state, one) if name == "existing" else one

        own = state_of(trained.method, trained.state, name, group)
        reports.append(shards.report(scored, own, group, ranks))
    rows = ClientRows.joined([one.rows for one in reports])
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


def _labels(trained: Trained, rows: ClientRows) -> JsonTable:
    about = trained.study, trained.method, trained.state.round, trained.dataset, trained.groups["existing"].shared
    fell_back = {"fell_back": list(trained.fell_back)} if trained.fell_back else {}
    return described.labels(*about, rows, trained.rounds, trained.notes) | fell_back


@kinds_checked
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
    begun = _assembled(study, choice_file.kept(place.path), dataset, place)
    spent = partial(privacy.replacement, study, place.path, released)
    state = begun.state.used
    errors, records = begun.errors(state, place), place.rounds(state.round)
    return begun.trained(state, place, rounds=records, replacement=spent, errors=errors)
