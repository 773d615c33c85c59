"""A GP per client by its evidence: the optimum that scikit-learn finds, client by client."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern, WhiteKernel

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.ard_gp import ARDGP
from pacbayes_fl.noise import Noise
from tests.methods.by_hand import randn

FEATURES = ("lag", "idle")
METHOD = ARDGP(FEATURES)
START = METHOD.init_server(torch.Generator())


def rows(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of a curve in the first feature; the second is of no use."""
    x = randn(seed, count, 2)
    return x, (2 * x[:, 0]).sin() + 0.3 * x[:, 0] + 0.2 * randn(seed + 50, count)


BATCH = ClientBatch.pad([rows(1, 30), rows(2, 17)])


@pytest.mark.filterwarnings("ignore:The optimal value found")  # without the linear term
def test_the_steps_come_to_the_evidence_that_scikit_learn_finds() -> None:
    begun, usual, found = (
        ARDGP(FEATURES, steps=steps).personalise(START, Nothing(), BATCH, Noise(0, 0, BATCH.ids))
        for steps in (0, METHOD.steps, 300)
    )
    assert (usual.log_evidence > begun.log_evidence + 3).all() and (usual.log_evidence > found.log_evidence - 1).all()
    for k, real in enumerate(BATCH.mask):
        offset = DotProduct(math.sqrt(2), sigma_0_bounds="fixed")
        kernel = ConstantKernel(0.4) * Matern([1.4, 1.4], nu=2.5, length_scale_bounds=(1e-5, 1e9))
        kernel = kernel + ConstantKernel(0.2, (1e-9, 1e5)) * offset + WhiteKernel(0.16)
        best = GaussianProcessRegressor(kernel, alpha=0.0).fit(BATCH.x[k][real].numpy(), BATCH.y[k][real].numpy())
        assert found.log_evidence[k].item() == pytest.approx(best.log_marginal_likelihood_value_, abs=0.05)
    lengths = found.theta[:, 0, 3:]
    assert (lengths[:, 1] > lengths[:, 0] + 1).all(), "what is of no use has a long lengthscale"


def test_later_rows_are_conditioned_on_under_the_same_hyper_parameters() -> None:
    seen, more = BATCH, ClientBatch.pad([rows(5, 4), rows(6, 3)], BATCH.names)
    prior = METHOD.personalise(START, Nothing(), seen, Noise(0, 0, seen.ids))
    refined = METHOD.refine(prior, seen, more, Noise(0, 0, seen.ids))
    assert torch.equal(refined.posterior.theta, prior.theta)  # type: ignore[attr-defined]
    assert refined.kl.shape == (2,) and (refined.kl > 0).all()


@pytest.mark.parametrize("y", [[0.7], [0.7, 0.7], [1.0, 1.0, 1.0]])
def test_few_or_constant_targets_leave_a_finite_prediction(y: list[float]) -> None:
    x = torch.ones(len(y), 2, dtype=torch.float64)
    batch = ClientBatch.pad([(x, torch.tensor(y, dtype=torch.float64))])
    predicted = METHOD.personalise(START, Nothing(), batch, Noise(0, 0, batch.ids)).predict(batch.x)
    assert predicted.mean.isfinite().all() and (predicted.variance > 0).all()


def test_nothing_leaves_a_client() -> None:
    with pytest.raises(PrivacyError, match="ARDGP has no private release"):
        METHOD.check_private()
