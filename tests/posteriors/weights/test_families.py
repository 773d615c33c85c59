"""Families by name and from a distribution, as a method takes them."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import torch
from torch.distributions import Laplace

from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods.variational import pfedbayes
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.posteriors.weights.families import Family
from pacbayes_fl.posteriors.weights.family import check_families
from pacbayes_fl.posteriors.weights.full_rank import FullRank
from pacbayes_fl.posteriors.weights.low_rank import LowRank
from pacbayes_fl.posteriors.weights.mean_field import Diagonal

MODEL = BayesianMLP((2, 3, 1), Gaussian(), torch.float64)
BUILT_IN = MappingProxyType({"mean-field": Diagonal(), "full-rank": FullRank(), "low-rank": LowRank(3)})


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_families_have_names(name: str) -> None:
    result = Family.named(name, 3)  # type: ignore[arg-type]
    assert result == BUILT_IN[name]
    result.check(MODEL)
    check_families(pfedbayes.Server(result.initial(MODEL, 0.1, -2.0, torch.Generator().manual_seed(0))))


def test_a_rank_is_looked_at_by_the_family_that_has_one() -> None:
    assert Family.named("full-rank", 0) == FullRank()
    with pytest.raises(StudyError, match="rank must be at least 1, got 0"):
        Family.named("low-rank", 0)


def test_a_name_that_no_family_has_is_refused() -> None:
    with pytest.raises(StudyError, match="family must be one of mean-field, full-rank, low-rank, got 'full'"):
        Family.named("full", 3)  # type: ignore[arg-type]


def test_a_distribution_makes_one() -> None:
    family = Family.from_distribution(Laplace, name="Sharp")
    one = family.initial(MODEL, 0.1, -2.0, torch.Generator().manual_seed(0))
    assert str(family) == "Sharp" and type(one).__name__ == "Sharp" and one._fields == ("loc", "raw_scale")
    check_families(pfedbayes.Server(one))
