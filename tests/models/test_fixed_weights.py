"""Known weights of a Pyro program, and what it observes."""

from __future__ import annotations

import pyro
import torch
from pyro import poutine
from pyro.distributions import Normal

from pacbayes_fl.models.fixed_weights import FixedWeights, observed


def test_known_weights_are_point_masses() -> None:
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(2.0)}
    for name, event in (("a", (3,)), ("b", ())):
        site = FixedWeights(weights).site(name)
        assert site.batch_shape == (2,) and site.event_shape == event and torch.equal(site.sample(), weights[name])


def test_what_is_computed_is_no_observation() -> None:
    def program() -> None:
        level = pyro.sample("level", Normal(0.0, 1.0))
        pyro.deterministic("twice", 2 * level)
        pyro.sample("y", Normal(level, 1.0), obs=torch.zeros(()))

    assert [name for name, _ in observed(poutine.trace(program).get_trace())] == ["y"]
