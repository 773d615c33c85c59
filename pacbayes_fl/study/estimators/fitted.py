"""A federation that an estimator has fitted: trained by the engine of `run`, and asked by client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.data import cells, tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import federation_state
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.files import JsonTable
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.config.instances import Instances
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import build
from pacbayes_fl.study.residuals import ErrorShape
from pacbayes_fl.study.rows.held_rows import TrainingHistory
from pacbayes_fl.study.run import Trained, train
from pacbayes_fl.study.serving.arrivals import members_of
from pacbayes_fl.study.serving.predict import answers, newcomer, newcomer_state, probabilities
from pacbayes_fl.study.serving.release import Served, served

_EXISTING: Final = "existing"
_Asked = Callable[[Served, FederationState, ScaledGroup, ClientBatch], Iterator[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class Rows:
    """Rows of several clients.

    Args:
        x: [R, d], float64.
        y: targets [R], float64; labels 0..C-1 of a classification.
        owners: name of the client of each row [R].
    """

    x: Tensor
    y: Tensor
    owners: Sequence[str]

    def by_client(self) -> dict[str, Tensor]:
        """Positions of the rows of each client, in the order of first appearance."""
        at: dict[str, list[int]] = {}
        for row, owner in enumerate(self.owners):
            at.setdefault(owner, []).append(row)
        return {owner: torch.tensor(rows) for owner, rows in at.items()}


@dataclass(frozen=True)
class Fitted:
    """A trained federation.

    Args:
        trained: as `study.run.train` gives it.
        others: clients that have joined after the training, with their rows.
    """

    trained: Trained
    others: Mapping[str, ScaledGroup] = field(default_factory=dict)

    @classmethod
    def train(cls, study: Study, rows: Rows, columns: Sequence[str], classes: int | None) -> Fitted:
        """Train a federation on all rows.

        Args:
            study: what to run.
            rows: of all clients.
            columns: names of the features.
            classes: number of classes C; None of a regression.

        Returns:
            The federation after its last round.

        Raises:
            PacBayesFLError: as `run`.
        """
        data = _dataset(rows, columns, classes)
        return cls(train(study.with_instances(data=data)))

    @property
    def clients(self) -> tuple[str, ...]:
        """Clients that took part in the training, and those that have joined."""
        return (*self.trained.groups[_EXISTING].train.names, *self.others)

    def join(self, rows: Rows) -> Fitted:
        """Let clients personalise that never trained.

        Args:
            rows: of theirs.

        Returns:
            The federation that knows them too; rows of a client that has joined before are replaced.

        Raises:
            DataError: of rows that cannot be used.
        """
        known = served(self.trained)
        new = {name: newcomer(known, name, rows.x[at], rows.y[at])[0] for name, at in rows.by_client().items()}
        return replace(self, others={**self.others, **new})

    def predict(self, rows: Rows, levels: Sequence[float] = ()) -> Tensor:
        """Predict targets.

        Args:
            rows: x and owners; y is not looked at. A client that is not known has the prior's prediction.
            levels: of quantiles, L numbers in (0, 1).

        Returns:
            [2 + L, R]: mean, standard deviation with observation noise, and quantiles.
        """

        def ask(
            known: Served, state: FederationState, group: ScaledGroup, asked: ClientBatch
        ) -> Iterator[tuple[Tensor, Tensor]]:
            for index, values in answers(known, state, group, asked, levels):
                yield index, torch.stack(values, -1)

        return self._asked(rows, ask).T

    def interval(self, rows: Rows, level: float) -> Tensor:
        """Predict central intervals of the kind that the study asks for.

        Args:
            rows: as `predict`.
            level: share of targets that they should cover, in (0, 1).

        Returns:
            [R, 3]: mean, lower and upper end.
        """
        errors = replace(self.trained.errors, alpha=1.0 - level)
        ends = ((1.0 - level) / 2, (1.0 + level) / 2)
        found = replace(self, trained=replace(self.trained, errors=errors)).predict(rows, ends)
        return found[[0, 2, 3]].T

    def probabilities(self, rows: Rows) -> Tensor:
        """Predict labels.

        Args:
            rows: as `predict`.

        Returns:
            Probabilities [R, C], averaged over draws of the weights.
        """
        return self._asked(rows, probabilities)

    def _asked(self, rows: Rows, ask: _Asked) -> Tensor:
        """Ask all clients that trained at once, and every other one by itself: [R, *]."""
        known, at = served(self.trained), rows.by_client()
        there = set(self.trained.groups[_EXISTING].train.names)
        own = [name for name in at if name in there]
        calls = [(own, *members_of(self.trained, _EXISTING, own))] if own else []
        calls += [([name], *self._newcomer(known, name)) for name in at if name not in there]
        parts: list[Tensor] = []
        places: list[Tensor] = []
        for names, group, state in calls:
            pairs = [(rows.x[at[name]], torch.zeros(len(at[name]), dtype=torch.float64)) for name in names]
            asked = ClientBatch.pad(pairs, names, dtype=known.raw, classes=known.schema.classes)
            for index, values in ask(known, state, group, asked):
                for i, k in enumerate(index.tolist()):
                    places.append(at[names[k]])
                    parts.append(values[i, : len(places[-1])].double())
        return torch.cat(parts)[torch.cat(places).argsort()]

    def _newcomer(self, known: Served, name: str) -> tuple[ScaledGroup, FederationState]:
        """Take a client that has joined, or the prior for one without rows."""
        if name in self.others:
            return self.others[name], newcomer_state(known, self.others[name])
        width = len(known.schema.features)
        nothing = torch.zeros(0, width, dtype=torch.float64)
        return newcomer(known, name, nothing, nothing[:, 0])

    def __getstate__(self) -> JsonTable:
        """Take the federation apart as run folders do: what the study says, rows, and tensors."""
        one = self.trained
        state = one.state._replace(kept=Kept.of(one.state.kept, one.groups[_EXISTING].train.clients).together())
        kept = {
            "dataset": one.dataset,
            "groups": dict(one.groups),
            "history": one.history,
            "rounds": [*map(_thawed, one.rounds)],
        }
        return {"study": one.study.table(), "state": state, "errors": one.errors, "others": dict(self.others), **kept}

    def __setstate__(self, saved: JsonTable) -> None:
        """Put it together again."""
        study = Study.from_table(saved["study"], instances=Instances(data=saved["dataset"]))
        state: FederationState = saved["state"]
        method, _ = build(study, saved["dataset"])
        errors: ErrorShape = saved["errors"]
        history: TrainingHistory = saved["history"]
        rounds: tuple[RoundRecord, ...] = tuple(saved["rounds"])
        method, groups, data = federation_state.at_rates(method, state), saved["groups"], saved["dataset"]
        trained = Trained(study, method, state, groups, data, rounds=rounds, history=history, errors=errors)
        object.__setattr__(self, "trained", trained)
        object.__setattr__(self, "others", saved["others"])


def _thawed(record: RoundRecord) -> RoundRecord:
    """Take the tables of a round out of views that cannot be pickled."""
    values, histograms, reasons = dict(record.values), dict(record.histograms), dict(record.reasons)
    return replace(record, values=values, histograms=histograms, reasons=reasons)


def _dataset(rows: Rows, columns: Sequence[str], classes: int | None) -> tables.Dataset:
    """Make a data set of training rows alone."""
    at = rows.by_client()
    names = [*at]
    cells.check_names(names)
    train = [(rows.x[own], rows.y[own]) for own in at.values()]
    test = [(x[:0], y[:0]) for x, y in train]
    group = tables.Group(
        ClientBatch.pad(train, names, classes=classes), ClientBatch.pad(test, names, classes=classes, allow_empty=True)
    )
    features = tuple(map(tables.Column, columns))
    return tables.Dataset({_EXISTING: group}, features, tables.Column("y"), {"source": "an estimator"}, classes)
