"""A warning of too many rounds: held-out rows become less likely while the clients' objective gets better."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Final

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PacBayesFLError, caller_stacklevel
from pacbayes_fl.results.metrics import VALIDATION, headline
from pacbayes_fl.results.recorded import RECORDED
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.config import sources
from pacbayes_fl.study.config.choices import ROUNDS
from pacbayes_fl.study.duration import Work
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows.held_rows import CertificateSplit, rows_for_tuning
from pacbayes_fl.study.search.path import MARKS, Path, follow

_SHARE: Final = 4  # of the rounds, one in so many are tried
_FIRST: Final = 50  # of the rounds that are tried in any case, where nobody has chosen their number for these rows
_WORK: Final = 2.5e11  # for them at most, as `duration` counts it: some ten seconds
_LEAST: Final = 200  # rows of a client that take as long as its part of a round does beside the matrices
_MARKS: Final = 2  # between which something can fall
_ERRORS: Final = 3.0  # standard errors of an accuracy that are worth a warning


def announce(study: Study, division: CertificateSplit) -> None:
    """Warn, before the first round, of a number of rounds with which Gaussian processes overfit.

    A federation without a fifth of the clients and of everyone's rows is trained for a quarter of the rounds, which
    takes about a fifth of the run's time, and scored by what it was not given. Where that falls, another one, without
    another fifth, is trained too, and their mean decides. On rows of one's own, for which nobody has looked at the
    number, all of the first 50 rounds are tried if that takes no more than some ten seconds: of 99 rounds they are a
    third of the run's time, of 25 to 50 about two thirds. What falls later is not seen. Leave-one-out densities of the
    run's own clients would cost less and do not show a fall at all: a prior that was learned from a row knows it after
    the row has been left out. Nothing is tried for fewer than 25 rounds, which have two marks no longer (100, of a
    source that is built in, or of more rows); nor in a private run, whose budget pays for no other federation; nor
    where certificates by folds stand on every row; nor with `federation.overfitting_trial = false`.

    Args:
        study: in which everything is settled.
        division: of its data; rows that certificates stand on are not looked at.

    Warns:
        UserWarning: with the scores, the number of rounds of the best, and the key.
    """
    tried = max(study.plan.rounds // _SHARE, _first(study, division))
    marks = [mark for mark in MARKS if mark <= tried]
    by_rows = study.privacy.epsilon is None and study.report.certify.scheme != "folds"
    on_functions = study.recipe.rounds and study.recipe.model == "functions"
    if not (study.federation.overfitting_trial and len(marks) >= _MARKS and by_rows and on_functions):
        return
    try:
        path = follow(study, rows_for_tuning(study, division), marks, parts=(0,))
        if path.remark() is not None:
            path = _mean(path, follow(study, rows_for_tuning(study, division), marks, parts=(1,)))
    except PacBayesFLError:  # of too few clients, for instance: the run itself says what it cannot do
        return
    said = path.remark()
    if said is not None:
        _warn(f"{said}, in trials without a fifth of clients and rows", study, path.best)


def _first(study: Study, division: CertificateSplit) -> int:
    """Give the number of rounds that are tried however few there are: none of what is built in, or would take long."""
    if study.data.source in sources.every():
        return 0
    rounds = min(study.plan.rounds, _FIRST)
    sizes = (int(size) for size in division.dataset.groups["existing"].train.size.tolist())
    times = rounds * getattr(study.method.options, "particles", 1)
    work = Work(times, [max(size, _LEAST) for size in sizes], None)  # whoever has enough rows for points has too many
    return rounds if work.operations() <= _WORK else 0


def _mean(one: Path, other: Path) -> Path:
    """Average two federations' paths, as far as both went."""
    marks = [mark for mark in one.scores if mark in other.scores]
    scores = {mark: (one.scores[mark] + other.scores[mark]) / 2 for mark in marks}
    return Path(scores, {mark: (one.objectives[mark] + other.objectives[mark]) / 2 for mark in marks}, one.objective)


def look_back(
    study: Study, records: Sequence[RoundRecord], validation: ClientBatch | None, objective: str | None
) -> None:
    """Warn, after the last round, that classifiers of validation rows were better before.

    Args:
        study: that was run; of a private one nothing is said.
        records: of all rounds.
        validation: rows of the clients; None without any.
        objective: name of the clients' objective.

    Warns:
        UserWarning: where the accuracy has fallen by more than three standard errors while the objective got better.
    """
    if validation is None or objective is None or study.privacy.epsilon is not None:
        return
    key = f"{VALIDATION}.pm.{headline('classification').name}"
    scored = [one for one in records if math.isfinite(one.values.get(key, math.nan)) and objective in one.values]
    if not scored:
        return
    best, last = max(scored, key=lambda one: one.values[key]), scored[-1]  # the first of equals
    high, low = best.values[key], last.values[key]
    fitted = last.values[objective] - best.values[objective]
    spread = math.sqrt((high * (1.0 - high) + low * (1.0 - low)) / max(1.0, float(validation.size.sum())))
    if (fitted if objective != "loss" else -fitted) <= 0 or not low < high - _ERRORS * spread:
        return
    what = (
        f"the federation overfits: from round {best.round} to round {last.round} the {RECORDED[objective].label} of "
        f"the training rows goes from {best.values[objective]:.4g} to {last.values[objective]:.4g}, and the accuracy "
        f"on validation rows from {high:.4g} to {low:.4g}"
    )
    _warn(what, study, best.round)


def _warn(what: str, study: Study, best: int | None) -> None:
    key = ROUNDS.key
    hint = f"{key} = {best} instead of {study.plan.rounds}, or {key} = 'held-out', which looks for the best"
    warnings.warn(f"{what}; {hint}", stacklevel=caller_stacklevel())
