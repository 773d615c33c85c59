"""Held-out likelihood along the rounds of one federation, with clients held out as well as rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data import split, tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.division import Cut
from pacbayes_fl.data.layout import Layout
from pacbayes_fl.errors import ClientError, NumericalError
from pacbayes_fl.federation import engine, federation_state, personalisation, reduction
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.methods.recipe import Margin
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.residuals import (
    BINS,
    OwnErrors,
    checked,
    held_out_errors,
    own_errors,
    pooled,
    pooled_without,
    reshaped,
    shape_of,
)
from pacbayes_fl.results.recorded import RECORDED
from pacbayes_fl.study import residuals
from pacbayes_fl.study.config.choices import NOISE, candidates
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate.report import state_of
from pacbayes_fl.study.evaluate.units import scored_rows
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.rows.table_checks import beyond_training
from pacbayes_fl.study.search.leakage import told
from pacbayes_fl.study.search.scores import HeldOutScore, with_noise

BLOCKS: Final = 5  # into which clients and their rows are dealt
MARKS: Final = (10, 25, 50, 100, 200)  # rounds after which a path is scored whose best round is not asked for
PARTS: Final = 2  # federations, each without another fifth
_WORSE: Final = 3  # marks in a row, after which a path ends that does not rise
_CLEAR: Final = 2.0  # standard errors of a difference, paired by client
_TRIM: Final = 0.1  # of the clients, at either end
_FALL: Final = 0.05  # nats per row that are worth a warning


@dataclass(frozen=True)
class Path:
    """What held-out rows and the clients' objective came to along the rounds.

    Args:
        scores: mean log likelihood of a held-out row, over clients and federations, by number of rounds, in nats.
        objectives: the mean objective of the clients that train, such as their log evidence.
        objective: its name; None where the method has none.
        failure: what ended the path.
        clients: scores of every client of every federation, as the mean has them.
        errors: histogram of the residuals of held-out rows [BINS], where errors are given their shape and the number of
            rounds is chosen along the path.
        noise: where that is still to be chosen, means over clients by standard deviation of the noise, a tenth of the
            clients left out at either end: in units of few rows some are far off, and would decide for all how sure to
            be. Then `scores` are those of the best, and `clients` are under it.
        federations: what it was followed of, where it is to go on later.
    """

    scores: Mapping[int, float] = field(default_factory=dict)
    objectives: Mapping[int, float] = field(default_factory=dict)
    objective: str | None = None
    failure: str | None = None
    clients: Mapping[int, Sequence[float]] = field(default_factory=dict)
    errors: Mapping[int, Sequence[float]] = field(default_factory=dict)
    noise: Mapping[int, Mapping[float, float]] = field(default_factory=dict)
    federations: Sequence[_Trial] = field(default=(), repr=False, compare=False)

    @property
    def trained(self) -> int | None:
        """The number of rounds, above 0, of the highest score, the least of equals; None where no score is finite."""
        known = {mark: score for mark, score in self.scores.items() if mark > 0 and math.isfinite(score)}
        return max(known, key=lambda mark: known[mark], default=None)

    @property
    def best(self) -> int | None:
        """That number; and 0 where the start is better by two standard errors over clients."""
        best = self.trained
        return 0 if best is not None and 0 in self.clients and _clearly(self.clients[0], self.clients[best]) else best

    def ahead_of(self, other: Path, how: Margin) -> bool:
        """Whether held-out rows are likelier than along another path, both at their best.

        Args:
            other: of federations of the same clients.
            how: in the mean over clients, for more than half of them, or by two standard errors over them.

        Returns:
            False where one of them has no score.
        """
        if self.best is None or other.best is None:
            return False
        ours, theirs = self.clients[self.best], other.clients[other.best]
        match how:
            case "mean":
                return self.scores[self.best] > other.scores[other.best]
            case "most":
                return 2 * sum(one > another for one, another in zip(ours, theirs, strict=True)) > len(ours)
            case "clearly":
                return _clearly(ours, theirs)

    def leaves_behind(self, mark: int, best: float, clients: Sequence[float]) -> bool:
        """Whether another path, which has come to a mark, need not be followed to overtake this one.

        Args:
            mark: its number of rounds.
            best: its highest score so far.
            clients: scores of every client at the mark, of federations of the same clients.

        Returns:
            True where this path was better by two standard errors after as many rounds; and where it had ended by then
            without a failure, and its best round is not worse.
        """
        if mark in self.clients and _clearly(self.clients[mark], clients):
            return True
        if self.best is None or self.failure is not None or mark < max(self.scores):
            return False
        return best <= self.scores[self.best]

    def remark(self) -> str | None:
        """Say that rows become less likely while the clients' objective goes on getting better, or from the start on.

        Returns:
            A sentence with numbers; None where that is not so.
        """
        best, last = self.best, max(self.scores, default=0)
        if best == 0 and self.trained is not None:
            return (
                "no round improves on the regression where learning starts: held-out rows are likelier there, "
                f"{self.scores[0]:.4g} nats per row and {self.scores[self.trained]:.4g} after {self.trained}"
            )
        if best is None or self.objective is None or not {best, last} <= self.objectives.keys():
            return None
        before, after = self.objectives[best], self.objectives[last]
        fitted = before - after if self.objective == "loss" else after - before
        if fitted <= 0 or not self.scores[last] < self.scores[best] - _FALL:
            return None
        known = RECORDED[self.objective]
        return (
            f"the federation overfits: from round {best} to round {last} the {known.label} of the training rows goes "
            f"from {before:.4g} to {after:.4g} {known.unit}, while held-out rows become less likely, "
            f"{self.scores[best]:.4g} to {self.scores[last]:.4g} nats per row"
        )


def deal(dataset: tables.Dataset, seed: int, part: int, layout: Layout | None = None) -> tables.Dataset | None:
    """Hold a fifth of the existing clients out, and of everyone's training rows a fifth, the last ones first.

    Of fewer than five clients or rows one is held out; of fewer than three clients, and of a single row, none is. Where
    test rows are the last ones of every client, rows behind the held-out ones are on neither side, unless there are no
    others: what comes next is to be predicted then, as from a rolling origin (Tashman 2000).

    Args:
        dataset: of a study; test and validation rows and new clients are not looked at.
        seed: of the order of the clients.
        part: which fifth, from 0.
        layout: of the table that the rows come from: rows that are told held-out targets by their lags and rolling
            means are on neither side.

    Returns:
        A data set whose test rows are the held-out rows, and whose new clients, if any, are the held-out clients; None
        where nobody has two rows.
    """
    train = dataset.groups["existing"].train
    count, labelled = train.clients, not train.y.is_floating_point()
    order = split.shuffled(train, torch.Generator().manual_seed(seed)).tolist()
    find = None if layout is None else told(dataset, layout)
    later = _test_rows_are_later(dataset)
    out = set(order[part % min(BLOCKS, count) :: BLOCKS]) if count > 2 else set()
    rest, held = [], []
    for k, size in enumerate(train.size.long().tolist()):
        if labelled:
            asked = split.held_labels(train.y[k, :size].cpu(), BLOCKS, BLOCKS - 1 - part, train.ids[k])
        else:
            asked = split.held_block(size, BLOCKS, -1 - part)
        asked = asked.to(train.x.device)
        left = ~asked if find is None else ~asked & ~find(k, asked)
        if later and not labelled:
            before = left & (asked.cumsum(0) == 0)
            left = before if before.any() else left
        if not left.any():
            asked, left = torch.zeros_like(asked), torch.ones_like(asked)
        x, y = train.x[k, :size], train.y[k, :size]
        rest.append((x[left], y[left]))
        held.append((x[asked], y[asked]))
    if not any(len(y) for _, y in held):
        return None
    seen, hidden = (ClientBatch.stack(rows, train.names, train.ids) for rows in (rest, held))
    whole = tables.Group(seen, hidden)
    groups = {"existing": whole.select(torch.tensor([k for k in range(count) if k not in out]))}
    if out:
        groups["new"] = whole.select(torch.tensor(sorted(out)))
    return replace(dataset, groups=groups)


def _test_rows_are_later(dataset: tables.Dataset) -> bool:
    """Whether all test rows are known to come after the training rows: by how the table was cut, or by its times."""
    cut: Cut | None = dataset.provenance.get("cut")
    if cut is not None and cut["by"] != "split":
        return True
    return all(group.times is not None and _later(group, *group.times) for group in dataset.groups.values())


def _later(group: tables.Group, train: Tensor, test: Tensor) -> bool:
    if not train.numel() or not test.numel():
        return True
    last = train.masked_fill(~group.train.mask.cpu(), train.min()).amax(1)
    first = test.masked_fill(~group.test.mask.cpu(), test.max()).amin(1)
    return bool((last < first).all())


def follow(
    study: Study,
    dataset: tables.Dataset,
    marks: Sequence[int],
    tell: Callable[[int, float], None] | None = None,
    parts: Sequence[int] = range(PARTS),
    rival: Path | None = None,
    final: bool = False,
    until: int = 0,
    after: Path | None = None,
) -> Path:
    """Train federations without some of the clients and rows, and score these after several numbers of rounds.

    The path ends where three marks in a row are worse than the best and it does not rise again, or only below a start
    that is better by two standard errors; where a rival leaves it behind, or a federation fails.

    Args:
        study: in which all but the number of rounds is settled.
        dataset: its data.
        marks: numbers of rounds; 0 for the start.
        tell: called with every mark and its score.
        parts: which fifths are held out, each of another federation.
        rival: path of federations of the same clients; none where the whole path is wanted.
        final: whether the rounds of the run are chosen along it, so that its errors have a shape that held-out rows
            say. Where most of these are an extrapolation, it is that of another distance, and rows are scored without.
        until: rounds up to which its federations may go on later; they are not kept where these are no more.
        after: path of the same study that was kept so, whose federations go on and are used up.

    Returns:
        The path; without any score where nobody has rows to hold out.
    """
    dealt = [deal(dataset, study.seed, part, study.data) for part in parts]
    if any(one is None for one in dealt):
        return Path()
    scores, clients, objectives = dict[int, float](), dict[int, list[float]](), dict[int, float]()
    errors, noise = dict[int, list[float]](), dict[int, dict[float, float]]()
    name, worse, best, last = None, 0, -math.inf, math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is odd about the data, the run itself will say
        try:
            counted = final and residuals.shared(study)
            shaped = counted and not any(map(beyond_training, filter(None, dealt)))
            known = [(_weighed(study, one, dataset), one) for one in dealt if one is not None]
            ends = *marks, until
            trials = after.federations if after is not None else [_Trial(*one, ends, counted, shaped) for one in known]
            name = trials[0].method.objective
            for mark in sorted(marks):
                reached = [trial.advance(mark) for trial in trials]
                typical = torch.stack([_typical(one.scores) for one in reached]).mean(0)
                likeliest = int(typical.nan_to_num(-math.inf).argmax())
                clients[mark] = torch.cat([one.scores[likeliest] for one in reached]).tolist()
                scores[mark] = float(typical[likeliest])
                if len(typical) > 1:
                    noise[mark] = dict(zip(trials[0].noises, typical.tolist(), strict=True))
                if reached[0].errors.numel():
                    errors[mark] = pooled(torch.cat([one.errors for one in reached])).tolist()
                if tell is not None:
                    tell(mark, scores[mark])
                if mark == 0:  # whether to train at all: no mark to be better or worse than
                    continue
                objectives[mark] = sum(one.objective for one in reached) / len(reached)
                worse = 0 if scores[mark] > best else worse + 1
                best = max(best, scores[mark]) if math.isfinite(scores[mark]) else best
                behind = rival is not None and rival.leaves_behind(mark, best, clients[mark])
                rises = scores[mark] > last and not (0 in clients and _clearly(clients[0], clients[mark]))
                if behind or (worse >= _WORSE and not rises):
                    break
                last = scores[mark]
        except (ClientError, NumericalError) as error:
            return Path(scores, objectives, name, str(error), clients, errors, noise)
    return Path(scores, objectives, name, None, clients, errors, noise, trials if until > max(marks) else ())


def _weighed(study: Study, part: tables.Dataset, whole: tables.Dataset) -> Study:
    """Let the evidence of fewer rows weigh as that of all against the hyper-prior: tau_part = tau rows / rows_part.

    Else functions that a run learns are held back in its trials, which then say nothing of how sure it comes to be.
    """
    options: Any = study.method.options
    if study.recipe.model != "functions" or getattr(options, "tau", None) is None:
        return study
    rows, fewer = (float(one.groups["existing"].train.size.sum()) for one in (whole, part))
    tau = options.tau * rows / fewer
    return replace(study, method=replace(study.method, options=replace(options, tau=tau)))


def _clearly(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether scores of clients are above others of the same clients by two standard errors; of one nobody knows."""
    ours, theirs = (torch.tensor(scores, dtype=torch.float64) for scores in (one, other))
    gains = ours - theirs
    return len(gains) > 1 and float(gains.mean()) > _CLEAR * float(gains.std()) / math.sqrt(len(gains))


def _typical(scores: Tensor) -> Tensor:
    """Mean over clients [G, K]; where noises are compared, without a tenth of the clients at either end."""
    noises, count = scores.shape
    if noises == 1:
        return scores.mean(1)
    out = int(_TRIM * count)
    return scores.sort(1).values[:, out : count - out].mean(1)


class _Reached(NamedTuple):
    """What a federation has come to after some rounds.

    Args:
        scores: of its clients with held-out rows [G, K], under each of G noises.
        objective: of those that train.
        errors: residuals of these rows by client [K, BINS]; no columns where errors are not given their shape, or the
            rounds are not chosen along the path.
    """

    scores: Tensor
    objective: float
    errors: Tensor


class _Look(NamedTuple):
    """Predictions of held-out rows of k clients, and what is known of their errors.

    Args:
        known: of these rows [k, P, M].
        own: leave-one-out residuals of training rows.
        errors: histogram of the residuals of held-out rows [k, BINS].
    """

    known: NormalMixture
    own: OwnErrors | None
    errors: Tensor


class _Trial:
    """A federation without a part, between two of its rounds."""

    def __init__(
        self, study: Study, part: tables.Dataset, marks: Sequence[int], counted: bool = False, shaped: bool = False
    ) -> None:
        self._study, self._counted, self._shaped = study, counted, shaped
        self.method, self._groups = prepare(study, part)
        self.noises: Sequence[float] = candidates(study, NOISE) if NOISE in study.held_out else (math.nan,)
        train, plan = self._groups["existing"].train, study.plan
        least = min(plan.min_clients, train.clients)
        cohort = None if plan.cohort is None else min(plan.cohort, train.clients)
        plan = replace(plan, rounds=max(marks), min_clients=least, cohort=cohort)
        self._plan = reduction.affordable(self.method, train.clients, plan)
        self._state = federation_state.start(self.method, train, self._plan)
        self._rounds = engine.rounds(self.method, train, self._plan, self._state)
        self._endings, self._used = federation_state.Endings(self._plan, marks), self._state
        self._objective = math.nan

    def advance(self, mark: int) -> _Reached:
        """Train up to a number of rounds, and look at the held-out rows."""
        while self._state.round < mark:
            record, self._state = next(self._rounds)
            self._used = self._endings.used(self._state)
            self._objective = record.values.get(self.method.objective or "", math.nan)
        method = federation_state.at_rates(self.method, self._state)
        shape = residuals.learn(self._study, method, self._used, self._groups["existing"])
        asked = {name: group for name, group in self._groups.items() if group.test.size.any()}
        if self._counted:
            return self._with_errors(method, shape, asked)
        scores = torch.cat([self._scored(method, shape, *one) for one in asked.items()], 1)
        return _Reached(scores, self._objective, torch.zeros(scores.shape[1], 0))

    def _with_errors(
        self, method: AnyMethod, shape: residuals.ErrorShape, asked: Mapping[str, ScaledGroup]
    ) -> _Reached:
        """Score held-out rows and count their residuals, which are half of the federation's when the run has ended.

        They are scored under the shape of errors of that run, where they say it: for each client those of the others.
        """
        found = {name: [*self._looked(method, name, group)] for name, group in asked.items()}
        errors = {name: torch.zeros(group.test.clients, BINS, dtype=torch.float64) for name, group in asked.items()}
        for name, looks in found.items():
            for index, look in looks:
                errors[name][index.cpu()] = look.errors.cpu()
        has = {name: group.test.size.cpu() > 0 for name, group in asked.items()}
        every = torch.cat([errors[name][has[name]] for name in asked])
        without = iter(pooled_without(every).split([int(one.sum()) for one in has.values()]))
        scores = []
        for name, group in asked.items():
            held, mine = HeldOutScore(group), errors[name].new_zeros(errors[name].shape)
            mine[has[name]] = next(without)
            for index, look in found[name]:
                others = shape.others
                if self._shaped or others is None:
                    others = residuals.beside_held(others, mine[index.cpu()].to(look.errors))
                known = reshaped(look.known, shape_of(look.own, others, shape.share))
                held.add(held.log_density(known, index), index)
            scores.append(held.by_client().cpu()[has[name]])
        return _Reached(torch.cat(scores).unsqueeze(0), self._objective, every)

    def _looked(self, method: AnyMethod, name: str, group: ScaledGroup) -> Iterator[tuple[Tensor, _Look]]:
        """Predict the held-out rows of a group's clients, and count their residuals and those of training rows."""

        def look(index: Tensor, posterior: Any) -> _Look:
            asked, rows = scored_rows(group, index), group.train.size[index.cpu()]
            known = checked(posterior).predict(asked.x)
            return _Look(known, own_errors(posterior), held_out_errors(known, asked.y, asked.mask, rows))

        state = state_of(method, self._used, name, group)
        return personalisation.personalise(method, state, group.train, self._plan, look)

    def _scored(self, method: AnyMethod, shape: residuals.ErrorShape, name: str, group: ScaledGroup) -> Tensor:
        """Score the held-out rows of a group's clients [G, k], of those that have some."""
        held, state = [HeldOutScore(group) for _ in self.noises], state_of(method, self._used, name, group)

        def look(index: Tensor, posterior: Any) -> list[Tensor]:
            if len(held) == 1:
                return [held[0].log_prob(shape.around(posterior), index)]
            predictive = posterior.predict(scored_rows(group, index).x)
            under = (with_noise(predictive, self.noises[0], noise) for noise in self.noises)
            return [one.log_density(other, index) for one, other in zip(held, under, strict=True)]

        for index, log_probs in personalisation.personalise(method, state, group.train, self._plan, look):
            for one, log_prob in zip(held, log_probs, strict=True):
                one.add(log_prob, index)
        has = group.test.size.cpu() > 0
        return torch.stack([one.by_client().cpu()[has] for one in held])
