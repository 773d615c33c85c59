"""What a prior is at some inputs: every number of it has a gradient."""

from __future__ import annotations

from pacbayes_fl.models.prior_values import PriorGradients, PriorValues


def test_every_number_of_a_prior_has_a_gradient_of_its_name() -> None:
    assert [name for name in PriorValues._fields if name != "embedded"] == [*PriorGradients._fields]
    assert (
        PriorValues._field_defaults
        == PriorGradients._field_defaults
        == {"outputscale": None, "linear": None, "dof": None}
    )
