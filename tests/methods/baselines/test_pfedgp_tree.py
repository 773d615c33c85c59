"""pFedGP for classes: a round against a loop over dense GPs under autograd, certificates, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.averaging import Server
from pacbayes_fl.methods.baselines.pfedgp_tree import PFedGPTree
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions.class_tree import ClassTree
from pacbayes_fl.posteriors.functions.polya_gamma import log_probability, mean
from tests.methods.by_hand import CLASSES, MODEL, alive, clients, logits
from tests.worlds import Quadratic

BATCH = clients(9, 1, 7)
MESSAGE = Server(alive(0.7 * torch.randn(MODEL.dim, generator=torch.Generator().manual_seed(4), dtype=torch.float64)))
RATE, STEPS = 0.05, 3
ONE = LocalDescent(1, 20, RATE, "sgd")


def method(**options: Any) -> PFedGPTree:
    return PFedGPTree(MODEL, **{"local": replace(ONE, steps=STEPS), "updates": 12, "personal_updates": 40} | options)


def noise(batch: ClientBatch = BATCH) -> Noise:
    return Noise(3, 1, batch.ids)


def kernel(theta: Tensor, x: Tensor) -> Tensor:
    z = normalize(logits(theta, x), dim=-1)
    return 8.0 * torch.exp(-0.5 * (z.unsqueeze(0) - z.unsqueeze(1)).square().sum(-1))


def tree_of(algorithm: PFedGPTree, batch: ClientBatch = BATCH) -> ClassTree:
    return algorithm.personalise(MESSAGE, Nothing(), batch, noise(batch)).tree


def nodes(tree: ClassTree, y: Tensor, k: int) -> list[tuple[Tensor, Tensor]]:
    """Rows of every node of a client, and their labels there."""
    pairs = [(members[y], right[y]) for members, right in zip(tree.members[k], tree.right[k], strict=True)]
    return [(inside, right[inside].double() - 0.5) for inside, right in pairs if inside.any()]


def mean_field(gram: Tensor, kappa: Tensor, updates: int) -> Tensor:
    c = torch.zeros_like(kappa)
    for _ in range(updates):
        sigma = torch.linalg.inv(torch.linalg.inv(gram) + torch.diag(mean(c)))
        c = (sigma.diagonal() + (sigma @ kappa).square()).sqrt()
    return c


def bound(theta: Tensor, x: Tensor, kappa: Tensor, updates: int) -> Tensor:
    """The lower bound of a node with inverses, c without autograd."""
    gram = kernel(theta, x)
    c = mean_field(gram.detach(), kappa, updates)
    omega = mean(c)
    sigma = torch.linalg.inv(torch.linalg.inv(gram) + torch.diag(omega))
    determinant = torch.logdet(torch.eye(len(x), dtype=torch.float64) + gram @ torch.diag(omega))
    constant = (0.5 * omega * c.square() - (2 * torch.cosh(0.5 * c)).log()).sum()
    return 0.5 * kappa @ sigma @ kappa - 0.5 * determinant + constant


@pytest.mark.parametrize("scale", ["rows", "nodes"])
def test_a_client_descends_the_bounds_of_its_nodes(scale: Any) -> None:
    algorithm = method(node_scale=scale)
    update, state = algorithm.client(MESSAGE, Nothing(), BATCH, noise())
    assert state == Nothing() and update.weight.tolist() == [1.0] * 3
    assert torch.equal(update.theta[1], MESSAGE.theta) and update.loss[1] == 0.0, "a single class teaches nothing"
    tree = tree_of(algorithm)
    for k in (0, 2):
        x, y = BATCH.x[k][BATCH.mask[k]], BATCH.y[k][BATCH.mask[k]]
        theta, losses = MESSAGE.theta.clone(), []
        for _ in range(STEPS):
            leaf = theta.requires_grad_(True)
            loss = torch.zeros((), dtype=torch.float64)
            for inside, kappa in nodes(tree, y, k):
                loss = loss - bound(leaf, x[inside], kappa, 12) / (len(kappa) if scale == "nodes" else len(x))
            (slope,) = torch.autograd.grad(loss, leaf)
            theta = (leaf - RATE * slope).detach()
            losses.append(loss.detach())
        torch.testing.assert_close(update.theta[k], theta, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(update.loss[k], torch.stack(losses).mean(), rtol=1e-8, atol=1e-8)


def test_or_it_predicts_one_half_of_its_rows_from_the_other() -> None:
    algorithm = method(criterion="predictive", local=ONE)
    update, _ = algorithm.client(MESSAGE, Nothing(), BATCH, noise())
    tree, marked = tree_of(algorithm), algorithm._halved(BATCH, noise().fork()).y >= CLASSES
    assert marked.sum(1).tolist() == [4, 0, 3] and not (marked & ~BATCH.mask).any()
    for k in (0, 2):
        x, y, asked = (leaf[k][BATCH.mask[k]] for leaf in (BATCH.x, BATCH.y, marked))
        leaf = MESSAGE.theta.clone().requires_grad_(True)
        loss = torch.zeros((), dtype=torch.float64)
        for inside, kappa in nodes(tree, y, k):
            own, told = asked[inside], ~asked[inside]
            gram = kernel(leaf, x[inside])
            cross, block = gram[told][:, own], gram[told][:, told]
            omega = mean(mean_field(block.detach(), kappa[told], 12))
            solve = torch.linalg.inv(block + torch.diag(1 / omega))
            mu = cross.T @ solve @ (kappa[told] / omega)
            variance = 8.0 - (cross * (solve @ cross)).sum(0)
            loss = loss - log_probability(2 * kappa[own] * mu, variance).sum() / int(asked.sum())
        (slope,) = torch.autograd.grad(loss, leaf)
        torch.testing.assert_close(update.loss[k], loss.detach(), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(update.theta[k], MESSAGE.theta - RATE * slope, rtol=1e-8, atol=1e-9)


def test_the_server_takes_the_plain_mean_and_has_no_model_of_its_own() -> None:
    algorithm = method()
    update, _ = algorithm.client(MESSAGE, Nothing(), BATCH, noise())
    server = algorithm.server(MESSAGE, algorithm.reduce(update), 3)
    torch.testing.assert_close(server.theta, update.theta.mean(0), rtol=0, atol=1e-14)
    assert algorithm.global_model(MESSAGE, Nothing(), BATCH, noise()) is None  # type: ignore[func-returns-value]
    with pytest.raises(PrivacyError, match="weighting = 'rows' needs every client's number of rows"):
        method(weighting="rows").check_private()


def test_other_names_of_the_classes_change_no_weight_and_rename_predictions() -> None:
    order = torch.tensor([2, 0, 1])
    renamed = replace(BATCH, y=torch.where(BATCH.mask, order[BATCH.y], 0))
    for criterion in ("bound", "predictive"):
        algorithm = method(criterion=criterion)
        mine, other = (algorithm.client(MESSAGE, Nothing(), batch, noise())[0] for batch in (BATCH, renamed))
        torch.testing.assert_close(other.theta, mine.theta, rtol=1e-9, atol=1e-10)
    mine, other = (
        algorithm.personalise(MESSAGE, Nothing(), batch, noise()).predict(BATCH.x[:, :4]).log_probs
        for batch in (BATCH, renamed)
    )
    torch.testing.assert_close(other[..., order], mine, rtol=1e-9, atol=1e-9)


def test_the_evidence_rises() -> None:
    algorithm = method(local=LocalDescent(40, 20, 0.01))
    first = method(local=ONE).client(MESSAGE, Nothing(), BATCH, noise())[0]
    update, _ = algorithm.client(MESSAGE, Nothing(), BATCH, noise())
    for k in (0, 2):
        again = method(local=ONE).client(Server(update.theta[k]), Nothing(), BATCH, noise())[0]
        assert again.loss[k] < first.loss[k] - 0.02


def test_more_rows_refine_the_classifiers_of_the_tree_that_was_there() -> None:
    """Exact divergences; who was not seen has all classes, and rows of classes that are no leaves count nowhere."""
    algorithm, ids = method(), ["a", "b", "c"]
    x, y = BATCH.x[0, :9], BATCH.y[0, :9]
    few = y < 2
    seen = ClientBatch.pad([(x[:4], y[:4]), (x[few], y[few]), (x[:0], y[:0])], ids, classes=3, allow_empty=True)
    rows = ClientBatch.pad([(x[4:], y[4:]), (x[~few], y[~few]), (x, y)], ids, classes=3)
    prior = algorithm.personalise(MESSAGE, Nothing(), seen, noise(seen))
    refined = algorithm.refine(prior, seen, rows, noise(seen))
    posterior: Any = refined.posterior
    assert refined.kl.dtype == torch.float64 and refined.kl[0] > 1e-3 and refined.kl[1] == pytest.approx(0.0, abs=1e-12)
    assert refined.kl[2] == pytest.approx(float(posterior.kl()[2]), rel=1e-9), "nothing was known of it"
    assert posterior.tree.present.tolist() == [[*prior.tree.present[0].tolist()], [True, True, False], [True] * 3]
    alone = torch.tensor([0])
    own = algorithm.personalise(MESSAGE, Nothing(), seen.select(alone), noise(seen).select([0]))
    again = algorithm.refine(own, seen.select(alone).trim(), rows.select(alone).trim(), noise(seen).select([0]))
    torch.testing.assert_close(again.kl, refined.kl[:1], rtol=1e-9, atol=1e-10)
    known = posterior.predict(x.expand(3, -1, -1)).log_prob(y.expand(3, -1))[0]
    before = prior.predict(x.expand(3, -1, -1)).log_prob(y.expand(3, -1))[0]
    leaves = prior.tree.present[0][y]
    assert known[leaves].sum() > before[leaves].sum()


@pytest.mark.parametrize(
    "model", [BayesianMLP((2, 3, 1), Gaussian()), Quadratic(), BayesianMLP((2, 1), Categorical(1))]
)
def test_numbers_and_a_single_class_are_refused(model: Any) -> None:
    with pytest.raises(StudyError, match=r"at least two classes, got .*method.name = 'pfedgp'"):
        PFedGPTree(model)


def test_a_gaussian_process_has_no_draws() -> None:
    about = method().about()
    assert about["draws"] == 1 and "Polya-Gamma mean field" in str(about["inference"])
    x, q = BATCH.x, method().personalise(MESSAGE, Nothing(), BATCH, noise())
    other = method().personalise(MESSAGE, Nothing(), BATCH, Noise(99, 0, BATCH.ids))
    assert torch.equal(q.predict(x).log_probs, other.predict(x).log_probs) and q.uncertain
