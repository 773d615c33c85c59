"""Deep ensembles: members by plain torch, what stops them by hand, and the moments of their mixture."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError, PrivacyError
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.ensemble import PooledEnsemble, Server
from pacbayes_fl.models.likelihoods import HeteroscedasticGaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.study.file import Study
from tests.methods.by_hand import MODEL, clients, randn
from tests.worlds import Quadratic

NETWORK = BayesianMLP((2, 3, 2), HeteroscedasticGaussian(0.5), torch.float64)
BATCH = ClientBatch.pad([(randn(k, m, 2), randn(10 + k, m)) for k, m in enumerate((6, 4, 10))])
HELD = [torch.tensor([row * 2 // m == half for m in (6, 4, 10) for row in range(m)]) for half in (0, 1)]
"""Which of the pooled rows an even member leaves out, and which an odd one."""

X = torch.cat([x[real] for x, real in zip(BATCH.x, BATCH.mask, strict=True)])
Y = torch.cat([y[real] for y, real in zip(BATCH.y, BATCH.mask, strict=True)])


def loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Mean Gaussian negative log likelihood of a network 2-3-2 in plain torch."""
    first, bias, second, last = theta.split([6, 3, 6, 2])
    mean, raw = (torch.relu(x @ first.view(2, 3) + bias) @ second.view(3, 2) + last).unbind(-1)
    return -Normal(mean, 0.5 * (4 * torch.tanh(raw / 8)).exp()).log_prob(y).mean()


def played(method: PooledEnsemble, rounds: int, batch: ClientBatch = BATCH) -> list[Server]:
    states = [method.init_server(torch.Generator().manual_seed(1))]
    for t in range(rounds):
        update, _ = method.client(states[-1], Nothing(), batch, Noise(0, t + 1, batch.ids))
        states.append(method.server(states[-1], update, batch.clients))
    return states


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_members_descend_their_own_rows_as_torch_does(optimiser: Any) -> None:
    name = "sgd" if optimiser is torch.optim.SGD else "adam"
    method = PooledEnsemble(NETWORK, LocalDescent(3, 100, 0.05, name), members=3, folds=2)
    start, *later = played(method, 2)
    for m in range(3):
        weights = torch.nn.Parameter(start.theta[m].clone())
        descent, kept, best = optimiser([weights], lr=0.05), ~HELD[m % 2], math.inf
        for state in later:
            losses = []
            for _ in range(3):
                descent.zero_grad()
                losses.append(loss(weights, X[kept], Y[kept]))
                losses[-1].backward()
                descent.step()
            torch.testing.assert_close(state.theta[m], weights.detach(), rtol=1e-10, atol=1e-12)
            assert state.loss[m].item() == pytest.approx(torch.stack(losses).mean().item())
            best = min(best, loss(weights, X[~kept], Y[~kept]).item())
            assert state.held_out[m].item() == pytest.approx(best)
    assert len({tuple(one.tolist()) for one in start.theta}) == 3, "the starts are independent"
    assert method.report(later[-1], None)["loss"] == later[-1].loss.mean()  # type: ignore[arg-type]


def test_a_member_predicts_by_the_weights_that_liked_its_held_out_rows_best() -> None:
    """Rows of y = x x 3 to learn, and one held out at y = 1: from 0 on, descent passes it in the third round."""
    x, y = torch.ones(4, 1).double(), torch.tensor([3.0, 3.0, 1.0, 1.0]).double()
    batch = ClientBatch.pad([(x, y)])
    method = PooledEnsemble(Quadratic(), LocalDescent(1, 10, 0.2, "sgd"), members=2, folds=2, init_std=1e-12)
    states = played(method, 4, batch)
    learned = [3 * (1 - 0.8**t) for t in range(5)]  # of member 1, who leaves the last rows out
    assert [state.theta[1].item() for state in states] == pytest.approx(learned)
    assert [state.best[1].item() for state in states[1:]] == pytest.approx([learned[1], *[learned[2]] * 3])
    rising = [state.best[0].item() for state in states[1:]]  # of member 0, who learns 1 and holds 3 out
    assert rising == pytest.approx([1 - 0.8**t for t in range(1, 5)])
    predicted = method.personalise(states[-1], Nothing(), batch, Noise(0, 0, batch.ids)).predict(x[None])
    assert predicted.mean[0, 0].item() == pytest.approx((learned[2] + rising[-1]) / 2)


def test_the_mixture_has_the_moments_of_total_variance() -> None:
    method = PooledEnsemble(NETWORK, members=3)
    server = method.init_server(torch.Generator().manual_seed(1))
    server = server._replace(best=randn(5, *server.best.shape))
    posterior = method.personalise(server, Nothing(), BATCH, Noise(0, 0, BATCH.ids))
    predicted: Any = posterior.predict(BATCH.x)
    each = [NETWORK.observation(one.expand(3, -1), BATCH) for one in server.best]
    mean = torch.stack([one.mean for one in each]).mean(0)
    second = torch.stack([one.variance + one.mean.square() for one in each]).mean(0)
    torch.testing.assert_close(predicted.mean, mean, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(predicted.variance, second - mean.square(), rtol=1e-10, atol=1e-12)
    density = torch.stack([one.log_prob(BATCH.y).exp() for one in each]).mean(0).log()
    torch.testing.assert_close(predicted.log_prob(BATCH.y), density, rtol=1e-10, atol=1e-12)
    assert predicted.variance.std() > 0.01, "the noise depends on the input"


def test_labels_are_predicted_by_the_mean_of_softmaxes() -> None:
    batch = clients(5, 2, 7)
    method = PooledEnsemble(MODEL, LocalDescent(2, 4, 0.05), members=2)
    server = played(method, 2, batch)[-1]
    predicted: Any = method.global_model(server, Nothing(), batch, Noise(0, 0, batch.ids)).predict(batch.x)
    each = [MODEL.observation(one.expand(3, -1), batch).probs for one in server.best]
    torch.testing.assert_close(predicted.probs, (each[0] + each[1]) / 2, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sizes", [(1,), (1, 1), (2, 0, 1)])
def test_few_rows_leave_some_members_without_any_to_learn_or_to_hold_out(sizes: tuple[int, ...]) -> None:
    rows = [(randn(k, m, 2), randn(10 + k, m)) for k, m in enumerate(sizes)]
    batch = ClientBatch.pad(rows, allow_empty=True)
    method = PooledEnsemble(NETWORK, LocalDescent(2, 4, 0.05))
    start, *_, last = played(method, 2, batch)
    assert all(leaf.isfinite().all() for leaf in (last.theta, last.best, last.held_out, last.loss))
    assert torch.equal(last.theta[0] == start.theta[0], torch.ones(17, dtype=torch.bool)) == (max(sizes) == 1)
    predicted = method.personalise(last, Nothing(), batch, Noise(0, 0, batch.ids)).predict(batch.x)
    assert predicted.mean.isfinite().all()


def test_rows_of_clients_that_are_left_out_do_not_count() -> None:
    method = PooledEnsemble(NETWORK, LocalDescent(2, 4, 0.05))
    start = method.init_server(torch.Generator().manual_seed(1))
    update, _ = method.client(start, Nothing(), BATCH, Noise(0, 1, BATCH.ids))
    nobody = method.server(start, update._replace(weight=torch.zeros(3)), 3)
    assert torch.equal(nobody.theta, start.theta) and int(nobody.rounds) == 0
    two = method.server(start, update._replace(weight=torch.tensor([1.0, 0.0, 1.0])), 3)
    alone = BATCH.select(torch.tensor([0, 2]))
    same = method.server(start, method.client(start, Nothing(), alone, Noise(0, 1, alone.ids))[0], 2)
    assert torch.equal(two.theta, same.theta) and not torch.equal(two.theta, method.server(start, update, 3).theta)


def test_it_has_neither_a_private_release_nor_a_certificate() -> None:
    method = PooledEnsemble(NETWORK)
    assert not method.federated
    with pytest.raises(PrivacyError, match="PooledEnsemble has no private release: its clients send their rows"):
        method.check_private()
    with pytest.raises(AssumptionError, match="PooledEnsemble has no posterior over hypotheses"):
        method.refine(Nothing(), BATCH, BATCH, Noise(0, 0, BATCH.ids))


@pytest.mark.parametrize("name", ["pooled-ensemble", "fed-ensemble"])
def test_a_study_gives_members_a_noise_of_their_own(name: str) -> None:
    study = Study.from_table({"method": {"name": name}})
    network: Any = study.model.build((4,), None)  # type: ignore[call-arg]
    assert isinstance(network.likelihood, HeteroscedasticGaussian) and network.sizes == (4, 50, 50, 2)
    assert METHODS[name].make(network).members == 5  # type: ignore[attr-defined]
