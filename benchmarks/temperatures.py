"""One temperature for each finished run, by its validation rows: `python -m benchmarks.temperatures RUN...`.

The table says what is left between methods once each of them is as sure as its validation rows allow, by one number a
run, and whether a method is calibrated better than a temperature makes any other.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.ranking import Array, cell
from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import personalisation
from pacbayes_fl.metrics import ece, nll
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.tempered import temper
from pacbayes_fl.results import records
from pacbayes_fl.results.records import Result
from pacbayes_fl.study.run import Trained, open_run
from pacbayes_fl.study.search.scores import HeldOutScore


class Tempered(NamedTuple):
    """Scores of a run's personal models on test rows, as they are and under one temperature.

    Args:
        method: its name.
        seed: of the run.
        temperature: T.
        nll: of the clients [K], in nats per row.
        nll_tempered: under T [K].
        ece: [K], in [0, 1].
        ece_tempered: under T [K].
    """

    method: str
    seed: int
    temperature: float
    nll: Array
    nll_tempered: Array
    ece: Array
    ece_tempered: Array


def temperature_of(trained: Trained) -> float:
    """Find the temperature under which the labels of validation rows are most likely, on average over clients.

    Args:
        trained: a classifier after its last round.

    Returns:
        T, on top of one that the run has.

    Raises:
        StudyError: where clients have no validation rows.
    """
    group = trained.groups["existing"]
    if group.validation is None or group.raw.validation is None:
        raise StudyError(f"{trained.study.name} has no validation rows", hint="validation in [data.options]")
    held = HeldOutScore(replace(group, test=group.validation, raw=replace(group.raw, test=group.raw.validation)))
    plan = trained.study.plan
    for index, log_probs in personalisation.personalise(
        trained.method, trained.state, group.train, plan, lambda at, posterior: held.log_prob(posterior, at)
    ):
        held.add(log_probs, index)
    return held.score(tempering=True)[1]


def tempered(result: Result, temperature: float) -> Tempered:
    """Score the predictions of a run again, as they are and under a temperature.

    Args:
        result: of a classifier, with its predictions.
        temperature: T.

    Returns:
        Both scores of the existing clients.
    """
    probs, y, mask = (result.predictions[f"existing.{name}"] for name in ("pm.probs", "y_test", "mask_test"))
    log_probs = probs.double().clamp_min(torch.finfo(torch.float32).tiny).log()  # as files keep them, in 32 bits
    scores = []
    for own in (log_probs, temper(log_probs, temperature)):
        scores.append([metric(ClassMixture(own), y, mask.bool()).cpu().numpy() for metric in (nll, ece)])
    (before, error), (after, error_after) = scores
    return Tempered(result.method, result.seed, temperature, before, after, error, error_after)


def markdown(rows: Sequence[Tempered]) -> str:
    """Write the table, methods in the order of their tempered NLL.

    Args:
        rows: of one study.

    Returns:
        Lines of Markdown; calibration errors in per cent, intervals by bootstrap over seeds and clients.
    """
    own: dict[str, list[Tempered]] = {}
    for row in sorted(rows, key=lambda row: row.seed):
        own.setdefault(row.method, []).append(row)
    means = {method: np.mean([row.nll_tempered.mean() for row in each]) for method, each in own.items()}
    head = ("method", "T", "NLL [95 %]", "NLL under T [95 %]", "ECE % [95 %]", "ECE % under T [95 %]", "seeds")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for method in sorted(own, key=lambda name: means[name]):
        each = own[method]
        cells = (
            method,
            ", ".join(f"{row.temperature:.2f}" for row in each),
            cell([row.nll for row in each], 1, 3),
            cell([row.nll_tempered for row in each], 1, 3),
            cell([row.ece for row in each], 100, 2),
            cell([row.ece_tempered for row in each], 100, 2),
            ", ".join(str(row.seed) for row in each),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of some run folders.

    Args:
        arguments: of the command line; `sys.argv` when None.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    print(markdown([tempered(records.load(one), temperature_of(open_run(one))) for one in options.folder]))


if __name__ == "__main__":
    main()
