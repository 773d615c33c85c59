"""Values of a prior that are kept beside those that are computed anew."""

from __future__ import annotations

from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch import Tensor

from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.functions import remembered
from pacbayes_fl.models.functions.remembered import Remembered
from tests.inference.test_evidence import SIZES, clients, models, particles
from tests.methods.by_hand import randn

NAMED = sorted(models())


def every_value(model: FunctionModel, theta: Tensor, x: Tensor, other: Tensor) -> list[Any]:
    mean, _ = model.bind(theta)(x)
    return [
        *(getattr(model, name)(theta, x) for name in ("noise", "mean", "covariance", "variance", "embedding")),
        model.linear_features(theta, x),
        *(model.outputscale(theta), model.degrees_of_freedom(theta)),
        *(model.covariance(theta, x, other), model.covariance(theta, x, x), mean),
    ]


@pytest.mark.quick
@pytest.mark.parametrize("name", NAMED)
def test_values_are_those_of_the_prior_and_computed_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = models()[name]
    theta, x = particles(inner, len(SIZES), 2), clients().x
    other = randn(0, len(SIZES), 3, x.shape[-1])
    known = Remembered(inner)
    expected, first = every_value(inner, theta, x, other), every_value(known, theta, x, other)
    for one, value in zip(first, expected, strict=True):
        assert (one is None) == (value is None)
        if one is not None:
            torch.testing.assert_close(one, value, rtol=1e-13, atol=1e-14)  # a kernel's from its features

    for part in ("noise", "mean", "covariance", "variance", "embedding", "linear_features", "bind"):
        refusing = create_autospec(getattr(type(inner), part), side_effect=AssertionError("computed again"))
        monkeypatch.setattr(type(inner), part, refusing)
    assert known.bind(theta)(x)[1] is None  # so that posteriors ask for covariances, which are kept
    again = every_value(known, theta, x, other)
    assert all(one is value for one, value in zip(again, first, strict=True))
    assert first[2] is first[9]  # rows with themselves, said or not
    with pytest.raises(AssertionError, match="again"):
        known.mean(theta, x.clone())
    with pytest.raises(AssertionError, match="again"):
        known.mean(theta.clone(), x)


def test_it_is_the_prior_in_all_else() -> None:
    inner = models()["all of it"]
    known = Remembered(inner)
    theta, x = particles(inner, len(SIZES), 2), clients().x
    assert (known.dim, known.input_dim, known.inducing, known.footprint(9)) == (
        inner.dim,
        inner.input_dim,
        inner.inducing,
        inner.footprint(9),
    )
    assert torch.equal(known.location(), inner.location()) and str(known.spreads()) == str(inner.spreads())
    values, expected = known.with_vjp(theta, x)[0], inner.with_vjp(theta, x)[0]
    assert torch.equal(values.mean, expected.mean)


def test_large_values_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = models()["all of it"]
    theta, x = particles(inner, len(SIZES), 2), clients().x
    monkeypatch.setattr(remembered, "_MOST", inner.mean(theta, x).numel())
    known = Remembered(inner)
    assert known.mean(theta, x) is known.mean(theta, x)
    assert known.covariance(theta, x) is not known.covariance(theta, x)
