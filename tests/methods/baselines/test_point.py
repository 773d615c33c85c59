"""Tests of the base of methods that train networks without uncertainty."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.baselines.point import POINT_ESTIMATE, PointEstimate, initial_weights, mean_loss
from pacbayes_fl.posteriors.point import PointMass
from tests.laws.cases import federation, from_recipe, network

POINTS = tuple(name for name in METHODS if isinstance(from_recipe(METHODS[name], 1), PointEstimate))


def test_the_baselines_on_networks_are_point_estimates() -> None:
    assert {"fedavg", "local", "fedper", "ifca", "fedcfl", "fedamp", "scaffold", "ditto"} <= set(POINTS)


@pytest.mark.parametrize("name", POINTS)
def test_labels_say_that_the_weights_are_known_and_predictions_rest_on_those_that_are_given(name: str) -> None:
    method, batch = from_recipe(METHODS[name], 1), federation(1)
    assert isinstance(method, PointEstimate)
    if type(method).about is PointEstimate.about:  # others mix networks, or neighbours with one
        assert POINT_ESTIMATE.items() <= method.about().items()
    theta = torch.randn(batch.clients, method.model.dim, generator=torch.Generator().manual_seed(1)).double()
    posterior = method.posterior(theta, batch, None)  # type: ignore[arg-type]
    assert isinstance(posterior.family, PointMass) and torch.equal(posterior.family.loc, theta)


def test_the_record_of_a_round_has_the_mean_loss_over_clients() -> None:
    class Sums(NamedTuple):
        loss: torch.Tensor
        clients: torch.Tensor

    update = Sums(torch.tensor([6.0, 3.0]), torch.tensor([2.0, 1.0]))  # a row of two clients and one of one
    for name in ("fedavg", "local", "fedamp", "scaffold", "fedper", "bnfed"):
        method = from_recipe(METHODS[name], 1)
        assert method.report(None, update)["loss"] == 3.0
        assert method.report(None, Sums(*(torch.zeros(1) for _ in range(2))))["loss"] == 0.0  # of a round of nobody
    assert {name: float(value) for name, value in mean_loss(update).items()} == {"loss": 3.0}


def test_initial_weights_spread_around_the_centre_of_the_model() -> None:
    model = network(1)
    drawn = initial_weights(model, 0.1, torch.Generator().manual_seed(3))
    again = initial_weights(model, 0.2, torch.Generator().manual_seed(3))
    torch.testing.assert_close(again - model.centre(), 2 * (drawn - model.centre()))
