"""What becomes of rounds in their folder is the same wherever they are played; runs and deployments test the rest."""

from __future__ import annotations

from pacbayes_fl.study import run, training
from pacbayes_fl.study.deployment import server


def test_runs_and_deployments_go_through_one_loop() -> None:
    assert run.Training is server.Training is training.Training
