"""Finished runs of one image study, several methods and seeds, in one table: `python -m benchmarks.ranking RUN...`.

Beside ours stand the papers' numbers, each of what its table calls by the method's name. Methods are in the order of
their accuracy. A rank is a client's, among the methods that have a run of its seed, on average over clients and over
the seeds that the method has.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import tables
from pacbayes_fl.results import records
from pacbayes_fl.results.bootstrap import nested_bootstrap
from pacbayes_fl.results.paired import ranks
from pacbayes_fl.results.records import Result

Array = NDArray[np.float64]
GROUP: Final = "existing"
PERSONAL: Final = MappingProxyType({"pm.accuracy": "higher", "pm.nll": "lower", "pm.ece": "lower"})
"""Scores of the personal models, and what is better."""
HEAD: Final = (
    "method",
    "PM accuracy % [95 %]",
    "paper PM",
    "against {reference}",
    "GM accuracy %",
    "paper GM",
    "NLL [95 %]",
    "ECE % [95 %]",
    "paper ECE",
    "rank: accuracy, NLL, ECE",
    "seeds",
)


def mean_ranks(results: Sequence[Result], metric: str, better: str) -> dict[str, float]:
    """Average the ranks of methods over the seeds that each has.

    Args:
        results: runs.
        metric: of the existing clients.
        better: "lower" or "higher".

    Returns:
        By method.
    """
    found: dict[str, list[float]] = {}
    for seed in sorted({result.seed for result in results}):
        for method, rank in ranks([one for one in results if one.seed == seed], GROUP, metric, better).items():
            found.setdefault(method, []).append(rank)
    return {method: float(np.mean(own)) for method, own in found.items()}


def markdown(results: Sequence[Result], reference: str = "fedavg-ft") -> str:
    """Write the table.

    Args:
        results: runs of one study.
        reference: the method from which differences are taken, client by client and seed by seed.

    Returns:
        Lines of Markdown; accuracy and calibration error in per cent, intervals by bootstrap over seeds and clients;
        below it remarks on numbers of papers that are of something else than their rows' names.
    """
    accuracy, nll, ece = (_by_seed(results, metric) for metric in PERSONAL)
    ranked = [mean_ranks(results, metric, better) for metric, better in PERSONAL.items()]
    means = {method: float(np.mean([own.mean() for own in seeds.values()])) for method, seeds in accuracy.items()}
    common, known, found = _by_seed(results, "gm.accuracy"), tables.classifiers(), dict[str, Mapping[str, Any]]()
    lines = ["| " + " | ".join(HEAD).format(reference=reference) + " |", "|---" * len(HEAD) + "|"]
    for method in sorted(means, key=lambda name: -means[name]):
        own, base = accuracy[method], accuracy.get(reference, {})
        theirs = found[method] = tables.published_classifier(known, results[0].study, method)
        differences = [own[seed] - base[seed] for seed in own if seed in base]
        cells = (
            method,
            cell([*own.values()], 100, 2),
            tables.theirs_cell(theirs, "pm"),
            cell(differences, 100, 2, "+") if differences else "-",
            f"{100 * np.mean([own.mean() for own in common[method].values()]):.2f}" if method in common else "-",
            tables.theirs_cell(theirs, "gm"),
            cell([*nll[method].values()], 1, 3),
            cell([*ece[method].values()], 100, 2),
            tables.theirs_cell(theirs, "ece"),
            ", ".join(f"{of[method]:.1f}" for of in ranked),
            ", ".join(map(str, sorted(own))),
        )
        lines.append("| " + " | ".join(cells) + " |")
    below = tables.footnotes(found)
    return "\n".join([*lines, *(["", *below] if below else [])])


def cell(by_seed: Sequence[Array], factor: float, digits: int, sign: str = "") -> str:
    """Write a mean with its 95 % interval by bootstrap over seeds and clients.

    Args:
        by_seed: scores of the clients [K] of every seed.
        factor: to the unit that is shown.
        digits: decimals.
        sign: "+" for differences.

    Returns:
        The cell.
    """
    mean, low, high = (factor * value for value in nested_bootstrap([values.tolist() for values in by_seed]))
    return f"{mean:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def _by_seed(results: Sequence[Result], metric: str) -> dict[str, dict[int, Array]]:
    """Collect a score by method and seed, of the existing clients [K]; nothing of methods that lack it."""
    table: dict[str, dict[int, Array]] = {}
    for result in results:
        if metric in result.metrics:
            table.setdefault(result.method, {})[result.seed] = np.array(result.column(GROUP, metric))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of some run folders.

    Args:
        arguments: of the command line; `sys.argv` when None.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument("--reference", default="fedavg-ft", help="method that the others are compared with")
    options = parser.parse_args(arguments)
    print(markdown([records.load(folder) for folder in options.folder], options.reference))


if __name__ == "__main__":
    main()
