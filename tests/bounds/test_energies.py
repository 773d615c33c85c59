"""What bounds on averages ask of free energies, and what they have in common."""

from __future__ import annotations

import math

import pytest
import torch

from pacbayes_fl.bounds.energies import average_energy, by_client, finite_divergence, free_energies, one_beta
from pacbayes_fl.bounds.premises import Premises
from pacbayes_fl.errors import AssumptionError, ShapeError

SAFE = Premises(posterior="no worse than the prior")


def test_free_energies_lie_in_the_range_unless_any_posterior_may_have_them() -> None:
    energy = torch.tensor([0.2, 1.7])
    assert free_energies(energy, Premises()).dtype == torch.float64
    for premises, bounded in ((SAFE, False), (Premises(), True)):
        with pytest.raises(AssumptionError, match="free_energy must be finite, at least 0 and at most 1"):
            free_energies(energy, premises, bounded=bounded)
    with pytest.raises(ShapeError, match="one number a client"):
        free_energies(0.2, SAFE)


def test_numbers_are_one_or_one_a_client() -> None:
    energy = torch.zeros(4, 3)
    assert by_client("m", 5.0, energy, 1.0).tolist() == [5.0, 5.0, 5.0]
    with pytest.raises(ShapeError, match=r"m must be one number \[\] or one a client \[3\], got \[2\]"):
        by_client("m", torch.ones(2), energy, 1.0)
    assert one_beta(torch.tensor([2.0, 2.0]), torch.zeros(2)).item() == 2.0
    with pytest.raises(AssumptionError, match="the same for all clients, got 2 to 3"):
        one_beta(torch.tensor([2.0, 3.0]), torch.zeros(2))
    with pytest.raises(AssumptionError, match="the divergence of atoms"):
        finite_divergence(math.inf)


def test_an_average_is_weighed_and_pays_for_its_draws() -> None:
    terms = {name: torch.tensor(value).double() for name, value in (("low", 0.0), ("high", 2.0))}
    terms["free_energy"] = torch.tensor([0.4, 0.8]).double()
    assert average_energy(terms, torch.tensor([0.25, 0.75])).item() == pytest.approx(0.7)
    drawn = {**terms, "mc_draws": torch.tensor(200.0).double(), "mc_delta": torch.tensor(0.02).double()}
    assert 0.7 < average_energy(drawn, torch.tensor([0.25, 0.75])).item() < 1.1
