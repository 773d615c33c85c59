"""Classes as leaves of a binary tree with a Gaussian-process classifier at every inner node (GP-Tree, ICML 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from pyro.distributions import Categorical
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot, pad

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.prior_values import squared_exponential
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.functions import polya_gamma
from pacbayes_fl.posteriors.functions.polya_gamma import Conditioned

_STARTS, _MOVES, _BLOCK = 32, 10, 512  # pairs of classes that 2-means starts from, its steps, rows predicted at once

Embed = Callable[[Tensor], Tensor]


class ClassTree(NamedTuple):
    """Binary trees over the classes of K clients: P <= C - 1 inner nodes, of which a client with c classes has c - 1.

    Args:
        present: classes that are leaves, bool [K, C].
        members: classes under a node, bool [K, P, C]; none where a client has no such node. The root is the first one,
            and nodes that no client of the call has may be left out.
        right: those of them whose label at the node is 1, bool [K, P, C].
    """

    present: Tensor
    members: Tensor
    right: Tensor

    def kappa(self, y: Tensor, mask: Tensor) -> Tensor:
        """Labels at the nodes.

        Args:
            y: labels [K, N].
            mask: real rows, bool [K, N].

        Returns:
            +1/2 and -1/2 for the rows of a node's classes, 0 for all others [K, P, N], float64.
        """
        at = y.unsqueeze(1).expand(-1, self.members.shape[1], -1)
        inside = self.members.gather(-1, at) & mask.unsqueeze(1)
        return torch.where(inside, self.right.gather(-1, at).double() - 0.5, 0.0)

    def log_probs(self, one: Tensor, zero: Tensor) -> Tensor:
        """Log probabilities of the classes: sums over the nodes on the way to a leaf.

        Args:
            one: log probability of label 1 at every node [K, P, M].
            zero: of label 0 [K, P, M].

        Returns:
            [K, M, C] in nats; minus infinity for a class that is no leaf, and ln(1 / C) where no class is.
        """
        left = self.members & ~self.right
        path = one.mT @ self.right.to(one) + zero.mT @ left.to(one)
        leaves = self.present.unsqueeze(1)
        alike = torch.full_like(path, -math.log(leaves.shape[-1]))
        return torch.where(leaves, path, torch.where(leaves.any(-1, keepdim=True), -math.inf, alike))


def class_means(z: Tensor, batch: ClientBatch, classes: int) -> tuple[Tensor, Tensor]:
    """Mean embedding of every class.

    Args:
        z: embeddings [K, N, F].
        batch: their labels.
        classes: C.

    Returns:
        Means [K, C, F], 0 for a class without rows, and which classes have rows, bool [K, C].
    """
    at = batch.y.unsqueeze(-1) == torch.arange(classes, device=z.device)
    share = (at & batch.mask.unsqueeze(-1)).to(z)
    count = share.sum(1)
    means = (share.mT @ torch.where(batch.mask.unsqueeze(-1), z, 0.0)) / count.clamp_min(1.0).unsqueeze(-1)
    return means, count > 0


def grow(points: Tensor, present: Tensor) -> ClassTree:
    """Split classes in two by 2-means on their points, and every part again, until each class is alone.

    Which of two parts is the right one depends on the order of the classes, and nothing else does.

    Args:
        points: of the classes [K, C, F].
        present: classes to be leaves, bool [K, C].

    Returns:
        The trees; the same for a client whoever else is in the call.
    """
    clients, classes = present.shape
    distances = (points.unsqueeze(2) - points.unsqueeze(1)).square().sum(-1)
    slots = torch.arange(max(classes - 1, 1), device=points.device)
    members = (slots == 0).view(1, -1, 1) & present.unsqueeze(1) & (present.sum(-1) > 1).view(-1, 1, 1)
    right, used = torch.zeros_like(members), torch.ones(clients, dtype=torch.int64, device=points.device)
    for slot in range(len(slots)):
        node = members[:, slot]
        if slot and tensors.known_false(node):
            return ClassTree(present, members[:, :slot], right[:, :slot])
        one = two_means(distances, node)
        right = torch.where((slots == slot).view(1, -1, 1), one.unsqueeze(1), right)
        for child in (node & ~one, one):
            splits = child.sum(-1) > 1
            at = splits.unsqueeze(1) & (slots == used.unsqueeze(1))
            members = members | (at.unsqueeze(-1) & child.unsqueeze(1))
            used = used + splits
    return ClassTree(present, members, right)


def two_means(distances: Tensor, members: Tensor) -> Tensor:
    """Split points in two by Lloyd's algorithm from their farthest pairs: the split of least spread within its parts.

    Centroids enter by distances alone: |x - centroid of A|^2 = mean_A |x - a|^2 - mean_AA |a - a'|^2 / 2.

    Args:
        distances: squared, between all points [K, C, C].
        members: points to be split, bool [K, C].

    Returns:
        bool [K, C], one part, without the first of the members; none where fewer than two are to be split.
    """
    classes = members.shape[-1]
    first, second = torch.triu_indices(classes, classes, 1, device=members.device)
    usable = members[:, first] & members[:, second]
    far = torch.where(usable, distances[:, first, second], -1.0).topk(min(_STARTS, len(first)), -1).indices  # [K, S]
    ends = [one_hot(pair[far], classes).bool() for pair in (first, second)]
    nearer = distances.gather(1, _rows(second[far], classes)) < distances.gather(1, _rows(first[far], classes))
    everyone = members.unsqueeze(1)
    side = ((nearer | ends[1]) & ~ends[0]) & everyone  # [K, S, C]
    for _ in range(_MOVES):
        to_one, to_zero = _to_centroid(distances, side), _to_centroid(distances, everyone & ~side)
        side = torch.where(to_one == to_zero, side, to_one < to_zero) & everyone
    to_one, to_zero = _to_centroid(distances, side), _to_centroid(distances, everyone & ~side)
    spread = torch.where(everyone, torch.where(side, to_one, to_zero), 0.0).sum(-1)
    best = torch.where(usable.gather(1, far), spread, torch.inf).argmin(-1)
    part = side.gather(1, best.view(-1, 1, 1).expand(-1, 1, classes)).squeeze(1)
    lowest = one_hot(members.int().argmax(-1), classes).bool()
    part = torch.where((part & lowest).any(-1, keepdim=True), members & ~part, part)
    return part & (members.sum(-1, keepdim=True) > 1)


def _rows(index: Tensor, width: int) -> Tensor:
    """Index [K, S] for a gather of whole rows [K, S, width]."""
    return index.unsqueeze(-1).expand(-1, -1, width)


def _to_centroid(distances: Tensor, part: Tensor) -> Tensor:
    """Squared distances of all points from the centroids of parts, bool [K, S, C]: [K, S, C]."""
    share = part.to(distances)
    share = share / share.sum(-1, keepdim=True).clamp_min(1.0)
    mean = share @ distances
    return mean - 0.5 * (mean * share).sum(-1, keepdim=True)


def with_leaves(tree: ClassTree) -> ClassTree:
    """Give all C classes to clients without any: split by their numbers, as nothing is known of such a client's rows.

    Args:
        tree: of K clients.

    Returns:
        The same trees but for these.
    """
    clients, classes = tree.present.shape
    points = torch.arange(float(classes), dtype=torch.float64, device=tree.present.device).view(1, -1, 1)
    whole = grow(points, torch.ones_like(tree.present[:1]))
    more = whole.members.shape[1] - tree.members.shape[1]
    padded = tree._replace(members=pad(tree.members, (0, 0, 0, more)), right=pad(tree.right, (0, 0, 0, more)))
    return tensors.where(
        tree.present.any(-1), padded, tensors.tree_map(lambda one: one.expand(clients, *one.shape[1:]), whole)
    )


@dataclass(frozen=True)
class SphereKernel:
    """Squared-exponential covariance of embeddings of length 1 (pFedGP's public code: 8 and 1, never learned).

    k(z, z') = outputscale exp(-|z - z'|^2 / (2 lengthscale^2))

    Args:
        outputscale: prior variance of a function's value.
        lengthscale: in units of the sphere's radius.
    """

    outputscale: float = option(8.0, above=0)
    lengthscale: float = option(1.0, above=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def __call__(self, z: Tensor, other: Tensor) -> Tensor:
        """Covariance of embeddings.

        Args:
            z: of length 1 [*, N, F].
            other: of length 1 [*, M, F].

        Returns:
            [*, N, M].
        """
        return self.outputscale * squared_exponential(z / self.lengthscale, other / self.lengthscale)


@dataclass(frozen=True, eq=False)
class TreePosterior:
    """Posteriors of the classifiers at the nodes of K clients' trees: hypotheses are their P functions.

    Args:
        embed: features of length 1 of inputs, [K, M, *feature] to [K, M, F], float64.
        kernel: of the functions' prior.
        tree: of the classes.
        z: features of the training rows [K, N, F].
        kappa: their labels at the nodes [K, P, N].
        conditioned: the posteriors at these rows.
        unseen: probability that is spread over all C classes, so that one without rows is not impossible.
    """

    embed: Embed
    kernel: SphereKernel
    tree: ClassTree
    z: Tensor
    kappa: Tensor
    conditioned: Conditioned
    unseen: float

    @property
    def uncertain(self) -> bool:
        """Whether predictions average over several functions."""
        return True

    @property
    def rows_apart(self) -> bool:
        """Whether a draw is a hypothesis for every row: single functions would take their covariance at all rows."""
        return True

    def marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution of the functions' values, node by node.

        Args:
            x: inputs [K, M, *feature].

        Returns:
            Means and variances [K, P, M].
        """
        means, variances = [], []
        with torch.no_grad():
            for part in self.embed(x).split(_BLOCK, 1):  # whitened cross-covariances are the largest numbers here
                own = part.new_full((len(part), 1, part.shape[1]), self.kernel.outputscale)
                mean, variance = self.conditioned.marginals(self.kernel(self.z, part).unsqueeze(1), own)
                means.append(mean)
                variances.append(variance)
        return torch.cat(means, -1), torch.cat(variances, -1)

    def predict(self, x: Tensor) -> ClassMixture:
        """Average over the functions: a class has the product of E[sigma(f)] or E[sigma(-f)] on the way to its leaf.

        Args:
            x: inputs [K, M, *feature].

        Returns:
            Probabilities of the C classes.
        """
        mean, variance = self.marginals(x)
        probabilities = [polya_gamma.log_probability(sign * mean, variance) for sign in (1.0, -1.0)]
        return ClassMixture(self._smoothed(self.tree.log_probs(*probabilities)))

    def predict_at_mean(self, x: Tensor) -> ClassMixture:
        """Predict with the mean functions alone.

        Args:
            x: inputs [K, M, *feature].

        Returns:
            As `predict`.
        """
        return ClassMixture(self._of_values(self.marginals(x)[0]))

    def sample_hypotheses(self, x: Tensor, draws: int, noise: Noise) -> Iterator[Categorical]:
        """Draw values of the functions, each row and node on its own: a mean over rows needs no more.

        The mean over rows of a draw has the expectation of a function's, and draws are independent of one another. Not
        so their variance over rows, which may be smaller than any function's: `rows_apart`.

        Args:
            x: inputs [K, M, *feature].
            draws: S.
            noise: the clients' streams, left as they are.

        Yields:
            p(y | f_s(x)), batch shape [K, M].
        """
        noise = noise.copy()
        mean, variance = self.marginals(x)
        nodes, classes = self.tree.members.shape[1:]
        like = mean.new_empty(*x.shape[:2], classes - 1)  # rows first, all nodes: padding then moves no number
        for _ in range(draws):
            values = mean + variance.sqrt() * noise.normal(like)[..., :nodes].mT
            yield Categorical(logits=self._of_values(values), validate_args=False)

    def kl(self) -> Tensor:
        """KL divergence from the prior, over the functions of all nodes [K], in nats."""
        return self.conditioned.kl().sum(-1)

    def kl_from(self, prior: TreePosterior) -> Tensor:
        """KL divergence from a posterior on the same trees that saw some of the rows, over functions.

        KL(Q || P) = KL(Q || P_0) - E_Q[kappa^T f - f^T Omega f / 2] + ln E_{P_0}[exp(kappa^T f - f^T Omega f / 2)]

        with kappa and Omega of P, at the rows that it saw, and P_0 the prior before any rows: exact for any Omega.

        Args:
            prior: P.

        Returns:
            [K], in nats, float64.
        """
        own = self.z.new_full((len(prior.z), 1, prior.z.shape[1]), self.kernel.outputscale)
        mean, variance = self.conditioned.marginals(self.kernel(self.z, prior.z).unsqueeze(1), own)
        squares = prior.conditioned.root.square() * (mean.square() + variance)
        expected = (prior.kappa * mean - 0.5 * squares).sum(-1)
        each = self.conditioned.kl() - expected + prior.conditioned.log_normaliser(prior.kappa)
        return each.sum(-1).clamp_min(0.0)

    def _of_values(self, values: Tensor) -> Tensor:
        """Log probabilities [K, M, C] of the classes, given the functions' values [K, P, M]."""
        return self._smoothed(self.tree.log_probs(logsigmoid(values), logsigmoid(-values)))

    def _smoothed(self, log_probs: Tensor) -> Tensor:
        least = torch.full_like(log_probs, math.log(self.unseen / log_probs.shape[-1]))
        return torch.logaddexp(log_probs + math.log1p(-self.unseen), least)


def condition(
    embed: Embed, kernel: SphereKernel, tree: ClassTree, batch: ClientBatch, updates: int, unseen: float
) -> TreePosterior:
    """Condition the classifiers of every client's tree on its rows.

    Args:
        embed: features of length 1 of inputs, [K, N, *feature] to [K, N, F], float64.
        kernel: of the functions' prior.
        tree: of the classes; rows of a class that is no leaf count nowhere.
        batch: the rows.
        updates: of the mean field, see `polya_gamma.fit`.
        unseen: probability that is spread over all C classes.

    Returns:
        The posterior.
    """
    with torch.no_grad():
        z, kappa = embed(batch.x), tree.kappa(batch.y, batch.mask)
        gram = kernel(z, z).unsqueeze(1)
        conditioned = polya_gamma.given(gram, kappa, polya_gamma.fit(gram, kappa, updates))
    return TreePosterior(embed, kernel, tree, z, kappa, conditioned, unseen)
