"""Directions of a private run from public tasks: principal ones of clients' scores on synthetic polynomials."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.noise import Noise
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare

STUDY: Final = Path(__file__).parent / "studies" / "polynomial-120.toml"
_APART: Final = 1000  # seeds of public tasks are those of private ones and so much more
_EVERY: Final = 4  # rounds


def basis(coordinates: int, dimension: int, seed: int) -> Tensor:
    """Find the directions along which most of the scores of public clients lie, from the start of a run of one seed.

    PAC-PFL trains in the clear on tasks of another seed; of every fourth round the scores of all clients, each of
    length 1, are taken together. The start is that of the private run, as its seed is public: what a coordinate of a
    deep kernel means depends on it.

    Args:
        coordinates: D, numbers of a prior, which the study's model has.
        dimension: k.
        seed: of the private run.

    Returns:
        The k first eigenvectors of the sum of their outer products [k, D], float64, the largest first.
    """
    return scores(seed)[1][-dimension:].flip(0)


def scores(seed: int, sets: tuple[str, ...] = ()) -> tuple[Tensor, Tensor]:
    """Decompose the scores of public clients.

    Args:
        seed: of the private run.
        sets: assignments to values of the study.

    Returns:
        Shares of the sum of squares [D], ascending, and the directions that have them, one a row [D, D].
    """
    public = ("privacy.epsilon=none", "data.follow_seed=false", f"data.options.seed={_APART + seed}", f"seed={seed}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a table [privacy] without a budget
        study = Study.from_toml(STUDY, [*public, *sets])
        method, groups = prepare(study, load(study))
        train, sums = groups["existing"].train, list[Tensor]()
        state = federation_state.start(method, train, study.plan)
        for t, one in enumerate([state, *(after for _, after in engine.rounds(method, train, study.plan, state))]):
            if t % _EVERY == 0:
                noise = Noise(seed, t + 1, train.ids, train.x.device, study.plan.noise)
                update, _ = method.client(method.broadcast(one.server), Nothing(), train, noise)
                rows = torch.nn.functional.normalize(update.score.double().flatten(1))
                sums = [rows.T @ rows + sum(sums)]
    values, vectors = torch.linalg.eigh(sums[0])
    return values / values.sum(), vectors.T
