"""A prior says whether its rows are known through inducing points; later rows keep to it."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.bounds.divergence import gp_posterior_kl
from pacbayes_fl.posteriors.functions import pivoted
from pacbayes_fl.posteriors.functions.conditioning import condition, function_kl, refined
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior
from pacbayes_fl.posteriors.functions.inducing import InducingPosterior
from tests.inference.test_evidence import SIZES, clients, models, particles

MODEL = models()["all of it"]
THETA = particles(MODEL, len(SIZES), 2)


def test_the_prior_says_by_which_way() -> None:
    exact, sparse = (condition(model, THETA, clients(), "equal") for model in (MODEL, MODEL.with_inducing(3)))
    assert isinstance(exact, GPPosterior) and isinstance(sparse, InducingPosterior)
    assert sparse.inducing.shape[2] == 3 and exact.weighting == sparse.weighting == "equal"
    with pytest.raises(TypeError, match="no divergence"):
        function_kl(sparse, exact, clients())


@pytest.mark.quick
def test_refined_posteriors_with_all_rows_as_points_are_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pivoted, "SLACK", 0.0)
    batch = clients()
    early, late = (batch.rows(torch.arange(*span).expand(batch.clients, -1)) for span in ((0, 2), (2, 5)))
    results = [
        refined(condition(model, THETA, early), early, late) for model in (MODEL, MODEL.with_inducing(len(SIZES) * 12))
    ]
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-8, atol=1e-8)
    means = [result[0].predict(batch.x).mean for result in results]
    torch.testing.assert_close(means[1], means[0], rtol=1e-8, atol=1e-8)


def test_from_no_rows_the_refined_divergence_is_that_of_the_certificates() -> None:
    batch, model = clients(), MODEL.with_inducing(3)
    none = batch.rows(torch.zeros(batch.clients, 0, dtype=torch.long))
    posterior, kl = refined(condition(model, THETA, none, "equal"), none, batch, "equal")
    torch.testing.assert_close(kl, gp_posterior_kl(posterior), rtol=1e-10, atol=1e-10)  # type: ignore[arg-type]
