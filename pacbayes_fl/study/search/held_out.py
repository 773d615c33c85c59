"""Choice of open options by the likelihood of rows that are held out: validation rows, or some of the training rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.data import split, tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, NumericalError, StudyError, caller_stacklevel
from pacbayes_fl.federation import engine, federation_state, personalisation
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods import HeldOutChoice
from pacbayes_fl.noise import Noise
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import residuals
from pacbayes_fl.study.config.choices import NOISE, ROUNDS, TEMPERATURE, candidates, with_value
from pacbayes_fl.study.config.gp_model import GPModel
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.search.leakage import told
from pacbayes_fl.study.search.path import MARKS
from pacbayes_fl.study.search.path import Path as Along
from pacbayes_fl.study.search.paths import Paths
from pacbayes_fl.study.search.scores import HeldOutScore

_FOLDS = 5
_MARGINS = MappingProxyType(
    {
        "mean": "",
        "most": "another than the first has to be better for more than half of the clients too",
        "clearly": "another than the first has to be better by two standard errors over clients",
    }
)

_SETTLED: Final = 80
"""Rounds after which errors are about as large as they stay; a longer run than twice that is followed half-way."""

_WEIGHT: Final = "zeta"  # of a divergence, which counts in units of the noise
_FEW = 0.25  # of the clients: where more are below chance, it is the models that are wrong

_NO_ROWS: Final = "no client has two training rows, so that none can be held out"
_NO_SCORE: Final = "the likelihood of held-out rows is not finite; check the columns of all clients for outliers"
_FIFTH = "held-out training row", "the other four fifths, in nats; the run trains on all"


class _Spared(NamedTuple):
    """Data whose test rows are those to choose by.

    Args:
        dataset: the existing clients alone.
        row: what such a row is called.
        trained: what the others are called, on which trials train.
    """

    dataset: tables.Dataset
    row: str
    trained: str


class _Scored(NamedTuple):
    """Score of one combination of values: mean log likelihood of held-out rows, under the best temperature."""

    values: JsonMapping
    score: float
    temperature: float
    untempered: float


def choose(
    study: Study, dataset: tables.Dataset, on_trial: Callable[[RoundRecord], None] | None = None
) -> tuple[Study, JsonTable]:
    """Choose by validation rows, or by a fifth of the training rows, predicted by federations that never saw them.

    The score is the mean over clients of the log likelihood of such a row under the personal model, averaged over draws
    of the weights. Where every client has validation rows, trials train on all training rows and are judged by these;
    elsewhere on four fifths of them, and models of fewer rows are surer of what they do not know, so that they ask for
    wider priors and higher temperatures than the run's own. Test rows are not looked at. An option on which training
    depends takes a federation of `trial_rounds` rounds for each candidate, with the first candidates of the others. The
    number of rounds is chosen along the path of one more, and where it is open the others are judged by the best round
    of theirs; there, and for options that say so, a fifth of clients and training rows is held out (`path.deal`). Those
    that only `personalise` reads, and the temperature, are chosen together on one more federation, of as many rounds as
    the run: how sure models are changes with every round.

    Args:
        study: one that leaves something open.
        dataset: its data.
        on_trial: called after every candidate with a record of round 0, whose one value is the score, such as
            "clusters=2"; and with "rounds", when their number has been chosen.

    Returns:
        The study with the best candidates, the first of equals, and what labels should say of the choice.

    Raises:
        StudyError: when the study leaves nothing open, or every candidate fails.
    """
    if not study.held_out:
        raise StudyError(f"{study.method.name} leaves nothing to be chosen", hint="run the study as it is")
    train, spared = dataset.groups["existing"].train, _spared(study, dataset)

    def tell(name: str, score: float) -> None:
        if on_trial is not None:
            on_trial(RoundRecord(0, train.clients, values={name: score}))

    notes, paths = JsonTable(), Paths(dataset, study.seed)
    if NOISE in study.held_out and not train.y.is_floating_point():
        usual = candidates(study, NOISE)[0]
        study = with_value(study, NOISE, usual)
        notes[NOISE.key] = {"chosen": usual, "scores": {}, "rule": "targets are labels, which have none"}
    of_noise = [one for one in study.held_out if one.table == "method" and not one.after and one.option != _WEIGHT]
    if NOISE in study.held_out and of_noise:
        study, more = _rounds(study, paths, tell, [NOISE])  # variances of priors, for one, count in its units
        notes |= more
    for asked in study.held_out:
        if asked in (ROUNDS, NOISE):
            continue
        if asked.clients:
            study, notes[asked.key] = _along_paths(study, asked, paths, tell)
        elif not asked.after:
            study, notes[asked.key] = _by_training(study, asked, spared, tell)
    if left := [one for one in (ROUNDS, NOISE) if one in study.held_out]:
        study, more = _rounds(study, paths, tell, left)
        notes |= more
        if NOISE in left and _WEIGHT in notes:
            study, notes[_WEIGHT] = _in_units_of_noise(study, notes[_WEIGHT])
    if study.held_out:
        study, more = _after_training(study, spared, tell)
        notes |= more
    return study, notes


def _in_units_of_noise(study: Study, note: JsonTable) -> tuple[Study, JsonTable]:
    """Give the weight of a divergence the value that it has under the noise that was chosen after it.

    With Gaussian noise sigma^2 (E_q[-ln p] + zeta KL) depends on sigma^2 zeta alone but for a constant: the posteriors
    of trials, whose noise is the first candidate, are those of zeta sigma_1^2 / sigma^2 under another.
    """
    trained, weight = float(candidates(study, NOISE)[0]), float(note["chosen"])
    noise = float(getattr(study.model, NOISE.option))
    if noise == trained:
        return study, note
    scaled = float(f"{weight * (trained / noise) ** 2:.3g}")
    same = f"{weight:g} with a noise of {trained:g}, as in the trials, fits as {scaled:g} does with {noise:g}"
    options = replace(study.method.options, **{_WEIGHT: scaled})
    return replace(study, method=replace(study.method, options=options)), note | {
        "chosen": scaled,
        "rule": f"{note['rule']}; {same}",
    }


def first(study: Study, but: Sequence[HeldOutChoice] = ()) -> Study:
    """Take the first candidate of everything that a study leaves open, without any trial.

    Args:
        study: any.
        but: what stays open.

    Returns:
        The study, with which everything can be checked that does not depend on the choice.
    """
    for asked in study.held_out:
        if asked not in but:
            study = with_value(study, asked, candidates(study, asked)[0])
    return study


def _spared(study: Study, dataset: tables.Dataset) -> _Spared | None:
    """Take validation rows for test rows where all have them, else a fifth of each client's training rows.

    Of fewer than five training rows one is taken, and of a single one none.
    """
    group = dataset.groups["existing"]
    if group.validation is not None and bool(group.validation.mask.any(1).all()):
        own = replace(dataset, groups={"existing": tables.Group(group.train, group.validation)})
        return _Spared(own, "validation row", "all training rows, in nats")
    rest, held = split.held_out(group.train, _FOLDS, told(dataset, study.data))
    if not held.mask.any():
        return None
    own = replace(dataset, groups={"existing": tables.Group(rest, held)})
    return _Spared(own, *_FIFTH)


def _along_paths(
    study: Study, asked: HeldOutChoice, paths: Paths, tell: Callable[[str, float], None]
) -> tuple[Study, JsonTable]:
    """Train short federations for every candidate, without some clients and rows; each counts by its best round."""
    usual, *_ = every_one = candidates(study, asked)
    rounds = min(asked.rounds or study.method.options.trial_rounds, study.plan.rounds)
    some = (*(mark for mark in MARKS if mark < rounds), rounds) if ROUNDS in study.held_out else (rounds,)
    whole = ROUNDS in study.held_out and asked.whole
    marks = _from_start(study, candidates(study, ROUNDS) if whole else some)
    left_behind = asked.early or asked.better == "clearly"
    until = _settled_after(study) if NOISE in study.held_out and ROUNDS not in study.held_out else 0
    scores, known, causes = {}, dict[object, Along](), list[str]()
    for candidate in every_one:
        trial = first(with_value(study, asked, candidate), but=(ROUNDS, NOISE, TEMPERATURE))
        rival = known.get(usual) if left_behind else None
        path = known[candidate] = paths(trial, marks, rival=rival, final=whole, until=until)
        scores[candidate] = math.nan if path.best is None else path.scores[path.best]
        causes += [] if path.failure is None else [path.failure]
        tell(f"{asked.key}={candidate}", scores[candidate])
    if not causes and not any(map(math.isfinite, scores.values())):
        return _unchosen(study, asked, usual, _why(*known.values()))
    margin = _MARGINS[asked.better]
    rule = "; ".join(filter(None, (_words_of_path(None if whole else rounds) + paths.whose, margin)))
    chosen, note = _chosen(asked.key, scores, rule, causes)
    if chosen != usual and math.isfinite(scores[usual]) and not known[chosen].ahead_of(known[usual], asked.better):
        chosen, note = usual, note | {"chosen": usual, "unless": margin}
    return with_value(study, asked, chosen), note


def _from_start(study: Study, marks: Sequence[int]) -> Sequence[int]:
    """Look at the start too where that is a model already, and the number of rounds is open: a linear regression."""
    linear = isinstance(study.model, GPModel) and study.model.linear == "ridge"
    return (0, *marks) if linear and ROUNDS in study.held_out else marks


def _rounds(
    study: Study, paths: Paths, tell: Callable[[str, float], None], asked: Sequence[HeldOutChoice]
) -> tuple[Study, JsonTable]:
    """Choose the number of rounds, or the noise, or both along one path, with the first candidates of what is open."""
    trial = first(study, but=(ROUNDS, NOISE, TEMPERATURE))
    marks = _from_start(study, candidates(study, ROUNDS)) if ROUNDS in study.held_out else (_settled_after(study),)
    path = paths(trial, marks, lambda mark, score: tell(f"{ROUNDS.key}={mark}", score))
    if path.best is None:
        if path.failure is not None:
            raise StudyError(f"{' and '.join(one.key for one in asked)} could not be chosen: {path.failure}")
        notes: JsonTable = {}
        for one in asked:
            usual = type(study.federation)().rounds if one is ROUNDS else candidates(study, NOISE)[0]
            study, notes[one.key] = _unchosen(study, one, usual, _why(path))
        return study, notes
    rule = _words_of_path(None) + paths.whose
    notes = {ROUNDS.key: {"chosen": path.best, "scores": _finite(path.scores), "rule": rule}}
    if NOISE in asked:
        by_noise = path.noise[path.best]
        likeliest, usual = max(by_noise, key=lambda std: by_noise[std]), candidates(study, NOISE)[0]
        after = f"{rule}, after {path.best} rounds with {usual}; without a tenth of the clients at either end"
        notes[NOISE.key] = {"chosen": likeliest, "scores": _finite(by_noise), "rule": after}
    remark = path.remark() if ROUNDS in asked else None
    if remark is not None:
        warnings.warn(f"{remark}; {path.best} are taken", stacklevel=caller_stacklevel())
        notes[ROUNDS.key]["remark"] = remark
    if path.best in path.errors:
        notes[ROUNDS.key]["errors"] = [*path.errors[path.best]]
    for one in asked:
        study = with_value(study, one, notes[one.key]["chosen"])
        tell(one.option, notes[one.key]["chosen"])
    return study, {one.key: notes[one.key] for one in asked}


def _settled_after(study: Study) -> int:
    """After how many rounds of a run of known length its noise is chosen."""
    return min(study.plan.rounds, max(_SETTLED, study.plan.rounds // 2))


def _finite(scores: Mapping[Any, float]) -> dict[str, float | None]:
    """Scores by candidate as JSON has them."""
    return {str(one): score if math.isfinite(score) else None for one, score in scores.items()}


def _why(*paths: Along) -> str:
    """Say why paths have no finite score: nobody has rows to choose by, or their likelihood is no number."""
    return _NO_SCORE if any(path.scores for path in paths) else _NO_ROWS


def _unchosen(study: Study, asked: HeldOutChoice, value: object, why: str = _NO_ROWS) -> tuple[Study, JsonTable]:
    """Take the usual value where there is nothing to choose by."""
    warnings.warn(f"{asked.key} = {settings.to_value(value)}, as usual: {why}", stacklevel=caller_stacklevel())
    return with_value(study, asked, value), {"chosen": value, "scores": {}, "rule": why}


def _by_training(
    study: Study, asked: HeldOutChoice, spared: _Spared | None, tell: Callable[[str, float], None]
) -> tuple[Study, JsonTable]:
    """Train a short federation for every candidate, with the first candidates of what is open after the rounds."""
    if spared is None:
        return _unchosen(study, asked, candidates(study, asked)[0])
    rounds, scores, causes = min(study.method.options.trial_rounds, study.plan.rounds), {}, list[str]()
    later = {one.option: candidates(study, one)[:1] for one in _later(study)}
    for candidate in candidates(study, asked):
        try:
            (one,), _ = _trial(with_value(study, asked, candidate), spared.dataset, rounds, later)
            scores[candidate] = one.score
        except (ClientError, NumericalError) as error:  # score NaN, the search continues
            scores[candidate] = math.nan
            causes.append(str(error))
        tell(f"{asked.key}={candidate}", scores[candidate])
    chosen, note = _chosen(asked.key, scores, _words(rounds, spared), causes)
    return with_value(study, asked, chosen), note


def _after_training(
    study: Study, spared: _Spared | None, tell: Callable[[str, float], None]
) -> tuple[Study, JsonTable]:
    """Train one federation, and choose among all combinations of what its rounds do not depend on."""
    notes: JsonTable = {}
    if spared is None:
        for asked in study.held_out:
            study, notes[asked.key] = _unchosen(study, asked, candidates(study, asked)[0])
        return study, notes
    wanted = {one.option: candidates(study, one) for one in _later(study)}
    result, below_chance = _trial(study, spared.dataset, study.plan.rounds, wanted)
    rule = _words(study.plan.rounds, spared)
    for one in result:
        tell(
            ", ".join(f"{name}={value}" for name, value in one.values.items()) or f"temperature={one.temperature:.3g}",
            one.score,
        )
    _doubt(below_chance, spared)
    known = [one for one in result if math.isfinite(one.score)]
    best = max(known, key=lambda one: one.score, default=None)
    for asked in study.held_out:
        if asked is TEMPERATURE:
            if best is not None:
                scores = {"1.0": best.untempered} | {str(best.temperature): best.score}
                note = {"chosen": best.temperature, "scores": scores, "rule": rule}
                study, notes[asked.key] = with_value(study, asked, best.temperature), note
            continue
        by_value: dict[Any, float] = {one.values[asked.option]: math.nan for one in result}
        for one in known:
            before = by_value[one.values[asked.option]]
            by_value[one.values[asked.option]] = one.score if math.isnan(before) else max(before, one.score)
        chosen, notes[asked.key] = _chosen(asked.key, by_value, rule)
        study = with_value(study, asked, chosen)
    if best is None:
        raise StudyError("no temperature could be chosen: the likelihood of held-out rows is not finite")
    return study, notes


def _doubt(below_chance: Mapping[str, float], spared: _Spared) -> None:
    """Name few clients whose rows their own models deny: mislabelled ones move what is chosen for all."""
    clients = spared.dataset.groups["existing"].train.clients
    if not 0 < len(below_chance) <= clients * _FEW:
        return
    named = ", ".join(f"{name!r} ({score:.2f} nats)" for name, score in below_chance.items())
    what = f"the {spared.row}s of {named} are less likely than by chance under the model of that client"
    advice = "are they mislabelled, or unlike its training rows? They have their share in what is chosen for all"
    warnings.warn(f"{what}: {advice}", stacklevel=caller_stacklevel())


def _chosen(
    option: str, scores: Mapping[object, float], rule: str, causes: Sequence[str] = ()
) -> tuple[object, JsonTable]:
    """Take the candidate of the highest score, the first of equals, and say how."""
    known = {candidate: score for candidate, score in scores.items() if math.isfinite(score)}
    if not known:
        why = f"; the first failed so: {causes[0]}" if causes else ""
        raise StudyError(f"no candidate of {option} could be trained: {', '.join(map(str, scores))}{why}")
    best = max(known, key=lambda candidate: known[candidate])
    shown = {str(candidate): score if candidate in known else None for candidate, score in scores.items()}
    return best, {"chosen": best, "scores": shown, "rule": rule}


def _words(rounds: int, spared: _Spared) -> str:
    return f"mean log likelihood per {spared.row} after {rounds} rounds on {spared.trained}"


def _words_of_path(rounds: int | None) -> str:
    row, trained = _FIFTH
    reached = "" if rounds is None else f" in up to {rounds} rounds"
    return f"mean log likelihood per {row}, also of clients that did not train,{reached} on {trained}"


def _later(study: Study) -> list[HeldOutChoice]:
    """Options that are open and on which no round depends."""
    return [one for one in study.held_out if one.after and one is not TEMPERATURE]


def _trial(
    study: Study, part: tables.Dataset, rounds: int, wanted: Mapping[str, Sequence[object]]
) -> tuple[list[_Scored], dict[str, float]]:
    """Train one federation; score every combination of wanted values on the rows that it was not given.

    And give the clients whose own rows are less likely than by chance under the first, with their mean log likelihood.

    Options with these values are read by `personalise` alone, so that one training serves them all.
    """
    combinations = [dict(zip(wanted, values, strict=True)) for values in product(*wanted.values())]
    studies = [_settled(study, _later(study), values) for values in combinations]
    (method, groups), *others = [prepare(one, part) for one in studies]
    group, plan = groups["existing"], replace(study.plan, rounds=min(rounds, study.plan.rounds))
    state, sums = engine.run_rounds(method, group.train, plan), [HeldOutScore(group) for _ in studies]
    method, *rest = (federation_state.at_rates(one, state) for one in (method, *(other for other, _ in others)))

    shapes = [residuals.learn(one, method, state, group) for one in studies]

    def scored(index: Tensor, message: object, clients: object, rows: ClientBatch, noise: Noise) -> list[Tensor]:
        first = personalisation.posteriors(method, message, clients, rows, noise.copy())
        others = (one.personalise_again(first, message, clients, rows, noise.copy()) for one in rest)
        every = zip(shapes, chain((first,), others), sums, strict=True)
        return [held.log_prob(errors.around(one), index) for errors, one, held in every]

    for index, result in personalisation.personal_calls(method, state, group.train, plan, scored):
        for log_prob, held in zip(result, sums, strict=True):
            held.add(log_prob, index)
    tempering = TEMPERATURE in study.held_out
    each = [_Scored(values, *held.score(tempering)) for values, held in zip(combinations, sums, strict=True)]
    return each, sums[0].below_chance()


def _settled(study: Study, asked: Sequence[HeldOutChoice], values: JsonMapping) -> Study:
    for one in asked:
        study = with_value(study, one, values[one.option])
    return study
