"""Trees of classes: splits against all splits, probabilities that add up, and posteriors against dense Gaussians."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pacbayes_fl.bounds import full_gaussian_kl
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions import class_tree, polya_gamma
from pacbayes_fl.posteriors.functions.class_tree import ClassTree, SphereKernel, TreePosterior

CLASSES, UNSEEN, UPDATES = 5, 1e-4, 60
KERNEL = SphereKernel()


def embed(x: Tensor) -> Tensor:
    return normalize(x, dim=-1)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows(sizes: tuple[int, ...] = (14, 6), classes: int = CLASSES, seed: int = 0) -> ClientBatch:
    """Return rows near a direction of their class; the second client has two of the classes alone."""
    centres, clients = randn(seed, classes, 3), []
    for k, m in enumerate(sizes):
        y = torch.arange(m) % classes if k == 0 else 1 + 2 * (torch.arange(m) % 2)
        clients.append((centres[y] + 0.4 * randn(seed + k + 1, m, 3), y))
    return ClientBatch.pad(clients, classes=classes, allow_empty=True)


def tree_of(batch: ClientBatch, classes: int = CLASSES) -> ClassTree:
    return class_tree.grow(*class_tree.class_means(embed(batch.x), batch, classes))


def posterior_of(batch: ClientBatch, tree: ClassTree | None = None, unseen: float = UNSEEN) -> TreePosterior:
    return class_tree.condition(embed, KERNEL, tree or tree_of(batch), batch, UPDATES, unseen)


BATCH = rows()
AT = randn(9, 2, 7, 3)


def spread_of(points: Tensor, part: list[int]) -> float:
    own = points[part]
    return float((own - own.mean(0)).square().sum())


@pytest.mark.parametrize("seed", range(8))
def test_a_split_in_two_is_the_best_of_all(seed: int) -> None:
    points, node = randn(seed, 1, 7, 2), torch.tensor([[True, True, False, True, True, True, True]])
    distances = (points.unsqueeze(2) - points.unsqueeze(1)).square().sum(-1)
    right = class_tree.two_means(distances, node)[0]
    own = node[0].nonzero().flatten().tolist()
    result = [[c for c in own if bool(right[c]) == side] for side in (False, True)]
    assert own[0] in result[0] and all(result) and not right[2]
    others = (
        spread_of(points[0], [*part]) + spread_of(points[0], [c for c in own if c not in part])
        for size in range(1, len(own))
        for part in itertools.combinations(own, size)
    )
    assert sum(spread_of(points[0], part) for part in result) == pytest.approx(min(others), rel=1e-12)


@pytest.mark.parametrize("members", [[], [1], [0, 2]])
def test_few_classes_or_classes_at_one_point_are_split_all_the_same(members: list[int]) -> None:
    node = torch.zeros(1, 4, dtype=torch.bool)
    node[0, members] = True
    right = class_tree.two_means(torch.zeros(1, 4, 4, dtype=torch.float64), node)
    assert right[0].nonzero().flatten().tolist() == members[1:]


def test_every_class_of_a_client_is_a_leaf_of_its_tree_and_no_other_one() -> None:
    tree = tree_of(BATCH)
    assert tree.present.tolist() == [[True] * 5, [False, True, False, True, False]]
    assert tree.members.any(-1).sum(-1).tolist() == [4, 1]
    for k in range(2):
        assert torch.equal(tree.members[k, 0], tree.present[k])
        for p in range(4):
            node, right = tree.members[k, p], tree.right[k, p]
            assert not (right & ~node).any()
            if node.any():
                parts = [part for part in (right, node & ~right) if part.sum() > 1]
                assert right.any() and (node & ~right).any()
                assert all(any(torch.equal(part, other) for other in tree.members[k, p + 1 :]) for part in parts)


def test_probabilities_add_up_and_a_class_without_rows_is_all_but_impossible() -> None:
    probs = posterior_of(BATCH).predict(AT).probs
    torch.testing.assert_close(probs.sum(-1), torch.ones(2, 7, dtype=torch.float64), rtol=0, atol=1e-13)
    torch.testing.assert_close(probs[1, :, [0, 2, 4]], torch.full((7, 3), UNSEEN / CLASSES, dtype=torch.float64))
    at_mean = posterior_of(BATCH).predict_at_mean(AT).probs
    assert (at_mean[1].amax(-1) > probs[1].amax(-1)).all(), "certain of one function, it is surer of two classes"


def test_a_client_of_one_class_is_certain_and_one_without_rows_knows_nothing() -> None:
    lone, nobody = (BATCH.x[0, :3], torch.full((3,), 2)), (BATCH.x[0, :0], torch.zeros(0))
    batch = ClientBatch.pad([lone, nobody], classes=CLASSES, allow_empty=True)
    posterior = posterior_of(batch)
    probs = posterior.predict(AT).probs
    assert probs[0, :, 2] == pytest.approx(1 - UNSEEN + UNSEEN / CLASSES, abs=1e-15)
    assert probs[1] == pytest.approx(1 / CLASSES, abs=1e-15) and posterior.kl().tolist() == [0.0, 0.0]


def test_two_classes_are_one_gaussian_process() -> None:
    """Against the inverses of Wenzel et al.'s formulas, and quadrature at the end."""
    batch = rows((9,), classes=2)
    z, at = embed(batch.x)[0], embed(AT[0])
    gram = 8.0 * torch.exp(-0.5 * torch.cdist(z, z).square())
    cross = 8.0 * torch.exp(-0.5 * torch.cdist(z, at).square())
    kappa, c = batch.y[0].double() - 0.5, torch.zeros(9, dtype=torch.float64)
    for _ in range(UPDATES):
        sigma = torch.linalg.inv(torch.linalg.inv(gram) + torch.diag(polya_gamma.mean(c)))
        c = (sigma.diagonal() + (sigma @ kappa).square()).sqrt()
    noisy = torch.linalg.inv(gram + torch.diag(1 / polya_gamma.mean(c)))
    mean = cross.T @ noisy @ (kappa / polya_gamma.mean(c))
    variance = 8.0 - (cross * (noisy @ cross)).sum(0)
    posterior = class_tree.condition(embed, KERNEL, tree_of(batch, 2), batch, UPDATES, 1e-12)
    torch.testing.assert_close(posterior.marginals(AT[:1])[0][0, 0], mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(posterior.marginals(AT[:1])[1][0, 0], variance, rtol=1e-8, atol=1e-8)
    expected = polya_gamma.log_probability(mean, variance).exp()
    torch.testing.assert_close(posterior.predict(AT[:1]).probs[0, :, 1], expected, rtol=1e-9, atol=1e-9)


def test_other_names_of_the_classes_are_other_names_of_the_predictions() -> None:
    order = torch.tensor([3, 0, 4, 1, 2])
    renamed = replace(BATCH, y=order[BATCH.y])
    mine, other = (posterior_of(batch).predict(AT).log_probs for batch in (BATCH, renamed))
    torch.testing.assert_close(other[..., order], mine, rtol=1e-10, atol=1e-10)


def test_functions_that_are_drawn_predict_as_their_average() -> None:
    posterior, noise = posterior_of(BATCH), Noise(3, 0, BATCH.ids)
    draws = [one.probs for one in posterior.sample_hypotheses(AT, 250, noise)]
    mean, spread = torch.stack(draws).mean(0), torch.stack(draws).std(0)
    assert ((mean - posterior.predict(AT).probs).abs() <= 5 * spread / 250**0.5 + 1e-12).all()
    alone = TreePosterior(*(getattr(posterior, name) for name in TreePosterior.__dataclass_fields__))
    again = next(iter(alone.sample_hypotheses(AT[:, :4], 1, noise))).probs
    torch.testing.assert_close(again, draws[0][:, :4], rtol=0, atol=1e-12)


@pytest.mark.parametrize("seen", [0, 5])
def test_the_divergence_from_a_posterior_of_fewer_rows_is_that_of_their_gaussians(seen: int) -> None:
    """At all rows and some other points: over functions it is the one at the rows."""
    batch, tree = rows((12, 8)), tree_of(BATCH)
    early = replace(batch, mask=batch.mask & (torch.arange(12) < seen))
    p, q = posterior_of(early, tree), posterior_of(batch, tree)
    z = torch.cat((embed(batch.x), embed(AT[:, :2])), 1)
    gram = KERNEL(z, z) + 1e-9 * torch.eye(14, dtype=torch.float64)
    expected = torch.zeros(2, dtype=torch.float64)
    for k, node in itertools.product(range(2), range(4)):
        moments = []
        for one in (q, p):
            omega, kappa = (
                torch.nn.functional.pad(leaf[k, node], (0, 2)) for leaf in (one.conditioned.root, one.kappa)
            )
            sigma = torch.linalg.inv(torch.linalg.inv(gram[k]) + torch.diag(omega.square()))
            moments += [sigma @ kappa, sigma]
        expected[k] += full_gaussian_kl(*moments)
    torch.testing.assert_close(q.kl_from(p), expected, rtol=1e-4, atol=1e-5)
    assert (expected > 0.1).all()
    if not seen:
        torch.testing.assert_close(q.kl_from(p), q.kl(), rtol=1e-10, atol=1e-10)
    assert q.kl_from(q).abs().max() < 1e-9


def test_who_has_no_classes_gets_all_of_them_and_nobody_else_another_tree() -> None:
    batch = rows((14, 0))
    tree = tree_of(batch)
    result = class_tree.with_leaves(tree)
    assert torch.equal(result.members[0, :4], tree.members[0]) and result.present.all()
    assert result.members[1].any(-1).all(), "four nodes have five leaves"
    for node, right in zip(result.members[1].tolist(), result.right[1].tolist(), strict=True):
        parts = [[c for c in range(CLASSES) if node[c] and right[c] == side] for side in (False, True)]
        assert max(parts[0]) < min(parts[1]), "neighbours stay together"
    assert math.isclose(float(posterior_of(batch, result).predict(AT).probs[1].sum(-1)[0]), 1.0)
