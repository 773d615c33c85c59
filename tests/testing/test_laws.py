"""Laws as functions: what they ask of a method is told apart by their names, and tests of the library call the same."""

from __future__ import annotations

import pytest

from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.baselines.ridge import LocalRidge
from pacbayes_fl.testing.laws import LAWS, host_bound, on_meta
from pacbayes_fl.testing.scene import federation, played, strangers_of
from tests.laws.cases import Toy, from_recipe


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_method_with_state_and_noise_keeps_every_law(law: object) -> None:
    batch = federation(3)
    assert callable(law)
    law(played(Toy(3), batch, strangers_of(batch), FederationPlan(rounds=2, seed=5)))


def test_a_method_that_is_bound_to_the_host_says_so() -> None:
    ridge = from_recipe(METHODS["ridge"], 3)
    assert isinstance(ridge, LocalRidge) and host_bound(ridge) is not None
    with pytest.raises((NotImplementedError, RuntimeError), match=r"[Mm]eta"):
        on_meta(ridge, federation(3), 0)
    assert host_bound(Toy(3)) is None and on_meta(Toy(3), federation(3), 0)["update"].value.device.type == "meta"
