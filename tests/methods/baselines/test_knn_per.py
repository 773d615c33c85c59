"""kNN-Per trains as FedAvg, is FedAvg without neighbours, and looks at nothing but a client's own rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import AssumptionError, PrivacyError, StudyError
from pacbayes_fl.federation import engine, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.knn_per import KNNPer
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from tests.methods.by_hand import MODEL, SIZES, clients
from tests.worlds import Quadratic

BATCH, LOCAL, PLAN = clients(*SIZES), LocalDescent(3, 4, 0.05), FederationPlan(rounds=2, seed=1)


def predicted(method: Any, share_of: Any = BATCH, batch: Any = BATCH) -> Any:
    server = engine.run_rounds(method, batch, PLAN).server
    message, noise = method.broadcast(server), Noise(0, 0, share_of.ids)
    return server, method.personalise(message, Nothing(), share_of, noise).predict(share_of.x)


def test_it_trains_as_fedavg_and_is_fedavg_without_neighbours_bit_by_bit() -> None:
    own, averaged = predicted(KNNPer(MODEL, LOCAL, share=0.0)), predicted(FedAvg(MODEL, LOCAL))
    assert torch.equal(own[0].theta, averaged[0].theta)
    assert torch.equal(own[1].log_probs, averaged[1].log_probs)
    mixed = predicted(KNNPer(MODEL, LOCAL))
    assert torch.equal(mixed[0].theta, averaged[0].theta) and not torch.equal(mixed[1].probs, averaged[1].probs)


def test_without_neighbours_means_and_variances_are_fedavg_s_too() -> None:
    batch = replace(BATCH, y=BATCH.y.double())
    lines = BayesianMLP((2, 3, 1), Gaussian(), torch.float64)
    own, averaged = (predicted(one, batch, batch)[1] for one in (KNNPer(lines, LOCAL, share=0.0), FedAvg(lines, LOCAL)))
    assert torch.equal(own.mean, averaged.mean) and torch.equal(own.variance, averaged.variance)


def test_one_neighbour_knows_the_labels_of_the_rows_themselves() -> None:
    _, result = predicted(KNNPer(MODEL, LOCAL, share=1.0, neighbours=1, scale=1e-6))
    assert bool((result.probs.argmax(-1) == BATCH.y)[BATCH.mask].float().mean() > 0.6)  # some hidden units are alike


def test_a_new_client_has_its_own_neighbours() -> None:
    method = KNNPer(MODEL, LOCAL, share=1.0)
    server = engine.run_rounds(method, BATCH, PLAN).server
    result = personalisation.join(method, server, clients(4), seed=1).predict(clients(4).x)
    there = set(clients(4).y[0].tolist())
    outside = [c for c in range(3) if c not in there]
    assert not result.probs[..., outside].any() and torch.allclose(result.probs.sum(-1), torch.ones(1, 4).double())


def test_what_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(StudyError, match="kNN-Per embeds rows by a network's last layer, and Quadratic has no layers"):
        KNNPer(Quadratic())  # type: ignore[arg-type]
    method, noise = KNNPer(MODEL), Noise(0, 0, BATCH.ids)
    with pytest.raises(PrivacyError, match="weighting = 'rows'"):
        method.check_private()
    KNNPer(MODEL, weighting="uniform").check_private()  # what is sent is FedAvg's
    with pytest.raises(AssumptionError, match="KNNPer has no posterior over hypotheses"):
        method.refine(None, BATCH, BATCH, noise)
