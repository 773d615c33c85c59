"""Directions of public tasks: orthonormal, the same for one seed, and of data that no private run of it has."""

from __future__ import annotations

import torch

from benchmarks import public_directions
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study

SMALL = ("data.options.clients=5", "data.options.new_clients=2", "federation.rounds=8", "model.mean_widths=[4]")
SMALL += ("model.kernel_widths=[4]",)


def test_scores_of_public_clients_are_decomposed() -> None:
    shares, rows = public_directions.scores(3, SMALL)
    torch.testing.assert_close(rows @ rows.T, torch.eye(len(shares), dtype=torch.float64), rtol=0, atol=1e-9)
    assert abs(float(shares.sum()) - 1) < 1e-9
    assert (shares.diff() >= -1e-12).all() and float(shares[-8:].sum()) > 0.5
    again, other = (public_directions.scores(seed, SMALL)[0] for seed in (3, 4))
    assert torch.equal(again, shares) and not torch.allclose(other, shares)


def test_public_tasks_are_of_another_seed_than_those_of_the_run() -> None:
    sets = ["privacy.epsilon=none", "seed=3", *SMALL]
    private = load(Study.from_toml(public_directions.STUDY, sets)).groups["existing"].train
    public = load(Study.from_toml(public_directions.STUDY, [*sets, "data.follow_seed=false", "data.options.seed=1003"]))
    assert not torch.isclose(private.y, public.groups["existing"].train.y).any()
