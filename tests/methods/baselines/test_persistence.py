"""Persistence: the mean is the lag column as it is, the variance the mean squared change."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import personalisation
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.persistence import Persistence
from tests.laws.cases import deep, federation

BATCH = federation(3)


NAMES = ("a", "b", "c")


@pytest.mark.parametrize("column", [0, 2])
def test_tomorrow_is_like_today(column: int) -> None:
    predictive = personalisation.join(Persistence(NAMES, NAMES[column]), Nothing(), BATCH, 0).predict(BATCH.x)
    assert torch.equal(predictive.mean, BATCH.x[..., column])
    for k in range(BATCH.clients):
        real = BATCH.mask[k]
        change = BATCH.y[k][real] - BATCH.x[k][real][:, column]
        assert predictive.variance[k, 0].item() == pytest.approx(change.square().mean().item(), rel=1e-12)
        assert torch.equal(predictive.variance[k], predictive.variance[k, :1].expand(9))


def test_a_series_that_never_changes_keeps_some_variance() -> None:
    x = torch.ones(5, 1, dtype=torch.float64)
    batch = ClientBatch.pad([(x, x[:, 0])])
    predictive = personalisation.join(Persistence(("a",), "a"), Nothing(), batch, 0).predict(batch.x)
    assert predictive.variance.eq(1e-8).all() and predictive.log_prob(batch.y).isfinite().all()


def test_it_wants_the_data_in_their_own_units() -> None:
    assert Persistence(("a",), "a").raw_units
    assert [name for name, recipe in METHODS.items() if recipe.method.raw_units] == ["persistence"]


def test_the_column_is_found_by_name() -> None:
    recipe = METHODS["persistence"]
    assert recipe.build(recipe.options(column="b"), deep(3), ("a", "b", "c")) == Persistence(("a", "b", "c"), "b")
    with pytest.raises(StudyError, match="needs a feature 'lag_1', the data have a, b"):
        recipe.build(recipe.options(), deep(3), ("a", "b"))
