"""Paths of federations on the same data, each of which is followed once and no further than it has to be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from pacbayes_fl.data import split, tables
from pacbayes_fl.noise import generator_from_text
from pacbayes_fl.study.config.choices import ROUNDS
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.search.path import Path, follow

_CLIENTS: Final = 256
"""That paths are followed of: each costs the rounds of a run, and a mean over as many is exact enough."""


class Paths:
    """Paths on the same data.

    Args:
        dataset: the data of a study.
        seed: of the choice of some of many clients.
    """

    def __init__(self, dataset: tables.Dataset, seed: int) -> None:
        """Nothing is followed yet."""
        few, count = fewer(dataset, seed), dataset.groups["existing"].train.clients
        self.whose = "" if few is dataset else f"; by {_CLIENTS} of the {count} clients"
        self._dataset, self._known = few, list[tuple[Study, Sequence[int], Path]]()
        self._best: tuple[Study, int, Path] | None = None

    def __call__(
        self,
        study: Study,
        marks: Sequence[int],
        tell: Callable[[int, float], None] | None = None,
        rival: Path | None = None,
        final: bool = True,
        until: int = 0,
    ) -> Path:
        """Follow the path of a study, or give it again.

        Args:
            study: in which all but the number of rounds is settled.
            marks: numbers of rounds; 0 for the start.
            tell: called with every mark and its score.
            rival: path that may leave this one behind.
            final: whether the rounds of the run are chosen along it, where they are open.
            until: the one mark up to which the best of these paths will be followed later.

        Returns:
            The path.
        """
        for one, at, path in self._known:
            if one == study and at == marks:
                if tell is not None:
                    for mark, score in path.scores.items():
                        tell(mark, score)
                return path
        begun = self._begun(study, marks)
        final = final and ROUNDS in study.held_out
        path = follow(study, self._dataset, marks, tell, rival=rival, final=final, until=until, after=begun)
        if path.federations and (self._best is None or _highest(path) > _highest(self._best[2])):
            self._best = study, until, path
        path = replace(path, federations=())  # those of the best alone, however many are compared
        self._known.append((study, marks, path))
        return path

    def _begun(self, study: Study, marks: Sequence[int]) -> Path | None:
        """Give the best path, once, where it is of this study and was to be followed up to this mark."""
        if self._best is None or (study, [*marks]) != (self._best[0], [self._best[1]]):
            return None
        (_, _, path), self._best = self._best, None
        return path


def _highest(path: Path) -> float:
    return -math.inf if path.best is None else path.scores[path.best]


def fewer(dataset: tables.Dataset, seed: int) -> tables.Dataset:
    """Draw some of many clients that train, of those first that have a row to spare: the others would say the same.

    Args:
        dataset: the data of a study.
        seed: of the draw.

    Returns:
        The data with 256 existing clients; the data themselves where there are no more.
    """
    group = dataset.groups["existing"]
    if group.train.clients <= _CLIENTS:
        return dataset
    order = split.shuffled(group.train, generator_from_text(f"held-out clients/{seed}"))
    single = (group.train.size.cpu() < 2)[order]
    drawn = order[single.argsort(stable=True)][:_CLIENTS]
    return replace(dataset, groups={**dataset.groups, "existing": group.select(drawn.sort().values)})
