"""Names that a study can use; nothing is imported here that computes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from pacbayes_fl.methods import METHODS
from pacbayes_fl.results import metrics, recorded
from pacbayes_fl.results.metrics import Metric
from pacbayes_fl.study.config import plugins


class Titled(Protocol):
    """A record with a line for people."""

    @property
    def title(self) -> str:
        """What it is."""
        ...


BUNDLED = Path(__file__).parents[1] / "bundled"


def listing(what: str) -> list[tuple[str, str]]:
    """List the names that a study can use.

    Args:
        what: "methods", "models", "families", "data", "partitions", "studies", "metrics", "mechanisms",
            "aggregations", or "recorded", what runs record beside metrics.

    Returns:
        Names, each with a line on what it is.

    Example:
        >>> from pacbayes_fl.study.config.listing import listing
        >>> dict(listing("mechanisms")).keys()
        dict_keys(['gaussian', 'dp-ftrl', 'laplace', 'knorm', 'exponential', 'paper_algorithm_3'])
    """
    if what == "methods":
        return [*METHODS.titles().items(), *plugins.METHODS.listing()]
    if what == "data":
        from pacbayes_fl.study.config import sources

        return sources.listing()
    if what in ("models", "families", "partitions", "mechanisms", "aggregations"):
        known, more = _records(what)
        return [*((name, one.title) for name, one in known.items()), *more]
    if what == "metrics":
        return [*((name, _metric(one)) for name, one in metrics.METRICS.items()), *plugins.METRICS.listing()]
    if what == "recorded":
        return recorded.listing()
    return [(file.stem, _comment(file)) for file in sorted(BUNDLED.glob("*.toml"), key=lambda file: file.stem)]


def _records(what: str) -> tuple[Mapping[str, Titled], list[tuple[str, str]]]:
    """Give the built-in records, and what installed packages add."""
    if what == "models":
        from pacbayes_fl.study.config import models

        return models.KINDS, models.MODEL_KINDS.listing()
    if what == "partitions":
        from pacbayes_fl.data import partitions
        from pacbayes_fl.study.config import sources

        return partitions.PARTITIONS, sources.OPEN_PARTITIONS.listing()
    if what == "families":
        from pacbayes_fl.posteriors.weights import families

        return families.FAMILIES.known, families.FAMILIES.listing()
    if what == "aggregations":
        from pacbayes_fl.server import aggregations

        return aggregations.AGGREGATIONS.known, aggregations.AGGREGATIONS.listing()
    from pacbayes_fl.privacy import kinds

    return kinds.MECHANISMS.known, kinds.MECHANISMS.listing()


def _comment(file: Path) -> str:
    lines = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def _metric(metric: Metric) -> str:
    better = f"; {metric.better} is better" if metric.better else ""
    settings = ", ".join(f"report.{option.setting}" for option in metric.options)
    return f"{' and '.join(metric.tasks)}: {metric.meaning}{better}{f'; set {settings}' if settings else ''}"
