"""A federated ensemble is FedAvg of every member, and mixes what it averages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError, PrivacyError
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.averaging import Server
from pacbayes_fl.methods.baselines.fed_ensemble import FedEnsemble
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.models.likelihoods import HeteroscedasticGaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.server.step import ServerStep
from pacbayes_fl.study.file import Study
from tests.methods.by_hand import MODEL, clients, randn

NETWORK = BayesianMLP((2, 3, 2), HeteroscedasticGaussian(0.5), torch.float64)
BATCH = ClientBatch.pad([(randn(k, m, 2), randn(10 + k, m)) for k, m in enumerate((6, 4, 10))])
LOCAL = LocalDescent(3, 4, 0.05)


def begun(method: FedEnsemble) -> Server:
    return method.init_server(torch.Generator().manual_seed(1))


def members(theta: Tensor) -> tuple[Tensor, ...]:
    return theta.unflatten(-1, (3, NETWORK.dim)).unbind(-2)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_one_round_of_one_client_is_the_local_training_of_every_member(optimiser: Any) -> None:
    local, alone = LocalDescent(3, 4, 0.05, optimiser), BATCH.select(torch.tensor([2]))
    method = FedEnsemble(NETWORK, local, members=3)
    start = begun(method)
    update, _ = method.client(start, Nothing(), alone, Noise(0, 1, alone.ids))
    after, losses = members(method.server(start, update, 1).theta), []
    for one, trained in zip(members(start.theta), after, strict=True):
        theirs, _ = FedAvg(NETWORK, local).client(Server(one), Nothing(), alone, Noise(0, 1, alone.ids))
        torch.testing.assert_close(trained, theirs.theta[0], rtol=1e-10, atol=1e-12)
        losses.append(theirs.loss)
    torch.testing.assert_close(update.loss, torch.stack(losses).mean(0), rtol=1e-10, atol=0)
    assert not torch.equal(after[0], after[1])


@pytest.mark.parametrize("step", [ServerStep(), ServerStep("adam", 0.1)], ids=["mean", "adam"])
def test_rounds_are_fedavg_s_of_every_member(step: ServerStep) -> None:
    method, fedavg = FedEnsemble(NETWORK, LOCAL, members=3, step=step), FedAvg(NETWORK, LOCAL, step=step)
    server = begun(method)
    apart = [Server(one, step.start(one)) for one in members(server.theta)]
    for t in (1, 2):
        update, _ = method.client(method.broadcast(server), Nothing(), BATCH, Noise(0, t, BATCH.ids))
        server = method.server(server, update, 3)
        for m, one in enumerate(apart):
            own, _ = fedavg.client(fedavg.broadcast(one), Nothing(), BATCH, Noise(0, t, BATCH.ids))
            apart[m] = fedavg.server(one, own, 3)
    for mine, theirs in zip(members(server.theta), apart, strict=True):
        torch.testing.assert_close(mine, theirs.theta, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("finetune", [0, 2])
def test_personal_models_mix_members_that_are_fine_tuned_one_by_one(finetune: int) -> None:
    method, fedavg = (
        FedEnsemble(NETWORK, LOCAL, members=3, finetune=finetune),
        FedAvg(NETWORK, LOCAL, finetune=finetune),
    )
    message = Server(0.5 * randn(7, 3 * NETWORK.dim))
    predicted: Any = method.personalise(message, Nothing(), BATCH, Noise(0, 0, BATCH.ids)).predict(BATCH.x)
    each: list[Any] = [
        fedavg.personalise(Server(one), Nothing(), BATCH, Noise(0, 0, BATCH.ids)).predict(BATCH.x)
        for one in members(message.theta)
    ]
    density = torch.stack([one.log_prob(BATCH.y).exp() for one in each]).mean(0).log()
    torch.testing.assert_close(predicted.log_prob(BATCH.y), density, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(predicted.mean, torch.stack([one.mean for one in each]).mean(0), rtol=1e-9, atol=1e-11)
    shared: Any = method.global_model(message, Nothing(), BATCH, Noise(0, 0, BATCH.ids)).predict(BATCH.x)
    assert torch.equal(shared.mean, predicted.mean) == (finetune == 0)


def test_probabilities_of_classes_are_averaged() -> None:
    batch, method = clients(5, 2, 7), FedEnsemble(MODEL, LOCAL, members=2)
    message = Server(randn(3, 2 * MODEL.dim))
    predicted: Any = method.personalise(message, Nothing(), batch, Noise(0, 0, batch.ids)).predict(batch.x)
    halves = message.theta.chunk(2)
    each = [MODEL.observation(one.expand(3, -1), batch).probs for one in halves]
    torch.testing.assert_close(predicted.probs, (each[0] + each[1]) / 2, rtol=1e-12, atol=1e-14)


def test_a_private_release_steps_by_the_mean_of_all_members_and_rows_are_no_weights_of_one() -> None:
    method = FedEnsemble(NETWORK, LOCAL, members=3, weighting="uniform")
    start = begun(method)
    update, _ = method.client(start, Nothing(), BATCH, Noise(0, 1, BATCH.ids))
    mean = Server(method.to_release(start, update).theta.mean(0, keepdim=True))
    released = method.server(start, method.from_release(start, mean, 3.0), 3)
    torch.testing.assert_close(released.theta, method.server(start, update, 3).theta, rtol=1e-12, atol=1e-14)
    with pytest.raises(PrivacyError, match="weighting = 'rows'"):
        FedEnsemble(NETWORK).check_private()


def test_it_has_no_certificate() -> None:
    with pytest.raises(AssumptionError, match="FedEnsemble has no posterior over hypotheses"):
        FedEnsemble(NETWORK).refine(Nothing(), BATCH, BATCH, Noise(0, 0, BATCH.ids))


def test_on_a_file_of_one_s_own_held_out_rows_say_when_to_stop() -> None:
    table = {"data": {"source": "houses.csv"}, "method": {"name": "fed-ensemble"}}
    assert Study.from_table(table).federation.rounds == "held-out"
    assert Study.from_table({"method": {"name": "fed-ensemble"}}).federation.rounds == 160
