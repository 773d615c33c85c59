"""PAC-PFL in folds of clients: every client gets its posterior under priors that its rows never touched.

A certificate of a client needs a prior that did not see the rows of the bound. One run on all clients gives none; F
runs do, each without the clients of its own fold, and no row of anybody is kept from training. They run as one
federation: every fold starts from the same particles, and a client works for all folds but its own in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.files import JsonTable
from pacbayes_fl.methods.base import Method, Nothing, RefinedPosterior
from pacbayes_fl.methods.pac_pfl.gp import FederatedSVGD, Message, Server
from pacbayes_fl.noise import Noise, keys
from pacbayes_fl.posteriors.predictive import Posterior
from pacbayes_fl.server.aggregations import AggregationRule, Rule
from pacbayes_fl.tensors import AnyTree


class Update(NamedTuple):
    """Updates of clients for every fold, or their sum.

    Args:
        by_fold: updates of the wrapped method, leaves [K, F, *], 0 for a client's own fold.
        weight: number of clients behind a row [K].
    """

    by_fold: Any
    weight: Tensor


def balanced_folds(
    ids: Sequence[int], folds: int, seed: int, known: Mapping[int, int] = MappingProxyType({})
) -> dict[int, int]:
    """Share clients out at random to folds whose sizes differ by at most one.

    A client that has a fold keeps it, whoever comes or goes: the other folds' priors have seen its rows. Those that
    come later go where the fewest are.

    Args:
        ids: of all clients of the federation; their order does not matter.
        folds: F.
        seed: of the experiment.
        known: folds of clients that have one.

    Returns:
        Fold of every client, from 0 to F - 1.

    Raises:
        StudyError: when there are fewer than 2 folds, or fewer clients than folds.
    """
    if not 2 <= folds <= len(ids):
        raise StudyError(f"folds must be between 2 and the number of clients, {len(ids)}, got {folds}")
    dealt = {client: known[client] for client in ids if client in known}
    sizes = [sum(fold == f for fold in dealt.values()) for f in range(folds)]
    for _, client in sorted(zip(keys(seed, 0, ids).tolist(), ids, strict=True)):
        if client not in dealt:
            dealt[client] = sizes.index(min(sizes))
            sizes[dealt[client]] += 1
    return dealt


@final
@dataclass(frozen=True)
class CrossFitted(Method[Server, Message, Nothing, Update]):
    """F runs of PAC-PFL, the f-th without the clients of fold f; states and messages have leaves [F, *].

    Args:
        inner: the wrapped method, for functions or for networks.
        folds: F.
        fold_of: fold of every client that trains, by id, from 0 to F - 1. Others, who never train, are in fold 0.
    """

    personal_model: ClassVar[str] = "personal models are posteriors under the last round's priors of the client's fold"

    inner: FederatedSVGD[Any, Any]
    folds: int
    fold_of: Mapping[int, int]

    def __post_init__(self) -> None:
        """Check the folds: at least 2, every client in one of them."""
        if self.folds < 2:
            raise StudyError(f"folds must be at least 2, got {self.folds}")
        if not all(0 <= fold < self.folds for fold in self.fold_of.values()):
            raise StudyError(f"fold_of must give folds from 0 to {self.folds - 1}, got {sorted(self.fold_of.values())}")
        if not self.inner.personal_messages:
            raise StudyError(f"{type(self.inner).__name__} cannot give clients of one call different priors")

    @property
    def objective(self) -> str | None:  # type: ignore[override]
        """As in the wrapped method."""
        return self.inner.objective

    def init_server(self, generator: torch.Generator) -> Server:
        """Start every fold from the same draw."""
        return tensors.tree_map(torch.clone, tensors.expand(self.inner.init_server(generator), self.folds))

    def init_clients(self, message: Message, batch: ClientBatch) -> Nothing:
        """No client state."""
        return Nothing()

    def broadcast(self, server: Server) -> Message:
        """Send the particles of all folds [F, P, D]."""
        return _stacked([self.inner.broadcast(one) for one in self._apart(server)])

    def client(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Update, Nothing]:
        """Evaluate all folds but the client's own in one call of K (F - 1) pairs, with common draws for all folds."""
        device = batch.x.device
        own_fold = self._folds(batch.ids)
        client, fold = (torch.arange(self.folds) != own_fold.unsqueeze(1)).nonzero().unbind(1)
        messages, pairs = tensors.select(message, fold.to(device)), batch.select(client)
        result, _ = self.inner.client(messages, state, pairs, noise.select(client.tolist()))
        result = self._apart_from_failures(result, client.to(device), batch.clients)

        def by_fold(leaf: Tensor) -> Tensor:
            spread = leaf.new_zeros(batch.clients, self.folds, *leaf.shape[1:])
            spread[client.to(device), fold.to(device)] = leaf
            return spread

        return Update(tensors.tree_map(by_fold, result), torch.ones_like(batch.size)), state

    def _apart_from_failures(self, update: object, client: Tensor, clients: int) -> Any:
        """Drop a (client, fold) pair whose update is not finite, so that a failure under one fold's priors stays there.

        A client that fails for all folds stays as it is, for the engine to see.
        """
        good = tensors.finite(update)
        worked = good.new_zeros(clients, dtype=torch.long).index_add(0, client, good.long()) > 0
        return tensors.where(good | ~worked[client], update, tensors.tree_map(torch.zeros_like, update))

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Apply the server's step to every fold separately, with the updates of its own clients.

        Args:
            server: leaves [F, *].
            update: leaves [K, F, *].
            n_clients: of the federation.

        Returns:
            Leaves [F, *].

        Raises:
            StudyError: when the federation is not the one for which the folds were drawn.
        """
        if n_clients != len(self.fold_of):
            raise StudyError(f"fold_of must name all {n_clients} clients of the federation, got {len(self.fold_of)}")
        own = [sum(fold == f for fold in self.fold_of.values()) for f in range(self.folds)]
        parts = zip(self._apart(server), self._updates(update), own, strict=True)
        return _stacked([self.inner.server(one, sent, n_clients - size) for one, sent, size in parts])

    def client_deltas(self, message: Message, update: Update) -> AnyTree:
        """The deltas of every fold [K, F, *]; 0 in the client's own."""
        parts = zip(self._apart(message), self._updates(update), strict=True)
        result = [self.inner.client_deltas(one, sent) for one, sent in parts]
        return tensors.tree_map(lambda *leaves: torch.stack(leaves, 1), *result)

    def personalise(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> Posterior:
        """Give each client its posterior under the priors of its fold."""
        return self.inner.personalise(self._own(message, batch), state, batch, noise)

    def absorb(self, message: Message, state: Nothing, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Nothing:
        """`personalise` conditions on all rows."""
        return state

    def refine(self, prior: Any, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> RefinedPosterior:
        """Delegate to the wrapped method; see there."""
        return self.inner.refine(prior, seen, rows, noise)

    def refined_from(self, prior: Any, seen: ClientBatch) -> Any:
        """As in the wrapped method."""
        return self.inner.refined_from(prior, seen)

    @property
    def finite_posterior(self) -> bool:
        """As in the wrapped method."""
        return self.inner.finite_posterior

    def prior_groups(self, ids: Sequence[int]) -> Sequence[int]:
        """Give the folds: the priors of a fold have seen the rows of all other folds."""
        return [self.fold_of[client] for client in ids]

    def global_model(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> Posterior | None:
        """The global model with the priors of the client's fold."""
        return self.inner.global_model(self._own(message, batch), state, batch, noise)

    def about(self) -> JsonTable:
        """Labels of the wrapped method, and the number of folds."""
        return self.inner.about() | {"folds": self.folds}

    def registered(self, update: Update, rows: Tensor, ids: Sequence[int]) -> Update:
        """Let nothing of a client reach its own fold, and let it count once, or not at all, in the others.

        Args:
            update: leaves [K, F, *].
            rows: of the clients [K].
            ids: of the clients.

        Returns:
            Leaves [K, F, *].
        """
        sent = update.by_fold.weight
        own = (self._folds(ids).unsqueeze(1) == torch.arange(self.folds)).to(sent.device)
        counts = torch.where(~own & (sent > 0), self.inner.weight(rows).unsqueeze(1), 0.0)

        def split(leaf: Tensor) -> Tensor:
            return torch.where(counts.view(*counts.shape, *[1] * (leaf.dim() - 2)) > 0, leaf, 0.0).to(leaf)

        by_fold = tensors.tree_map(split, update.by_fold)
        return Update(by_fold._replace(weight=counts.to(sent)), self.weight(rows))

    def check_robust(self, rule: AggregationRule) -> None:
        """As in the wrapped method."""
        self.inner.check_robust(rule)

    def check_average(self) -> None:
        """As in the wrapped method."""
        self.inner.check_average()

    def fewest_joined(self, clients: int) -> int:
        """Those of a round without the largest fold."""
        own = [sum(fold == f for fold in self.fold_of.values()) for f in range(self.folds)]
        return max(0, clients - max(own))

    def aggregated(self, message: Message, update: Update, rule: Rule) -> Update:
        """Join the steps of every fold's clients by themselves."""
        parts = zip(self._apart(message), self._updates(update), strict=True)
        result = [self.inner.aggregated(one, sent, rule) for one, sent in parts]
        by_fold = tensors.tree_map(lambda *leaves: torch.stack(leaves, 1), *result)
        return Update(by_fold, update.weight.sum().view(1))

    def reduce(self, update: Update) -> Update:
        """Sum the clients of a chunk, fold by fold."""
        return tensors.total(update)

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Means of the folds' reports."""
        parts = zip(self._apart(server), self._updates(update), strict=True)
        reports = [dict(self.inner.report(one, sent)) for one, sent in parts]
        return tensors.tree_map(lambda *values: torch.stack(values).double().mean(0), *reports)

    def remark(self, values: Mapping[str, float]) -> str | None:
        """The wrapped method's remark on the means over folds."""
        return self.inner.remark(values)

    @property
    def row_by_row(self) -> bool:
        """As in the wrapped method."""
        return self.inner.row_by_row

    def footprint(self, rows: int) -> int:
        """Numbers per client: as many times as there are folds to work for."""
        return (self.folds - 1) * self.inner.footprint(rows)

    def _folds(self, ids: Sequence[int]) -> Tensor:
        """Fold of every client [K], on the CPU."""
        return torch.tensor([self.fold_of.get(client, 0) for client in ids], dtype=torch.int64)

    def _own(self, message: Message, batch: ClientBatch) -> Message:
        """Give every client the message of its own fold: leaves [K, *]."""
        return tensors.select(message, self._folds(batch.ids).to(batch.x.device))

    def _apart(self, stacked: tensors.Tree) -> list[tensors.Tree]:
        return [tensors.tree_map(lambda leaf, f=f: leaf[f], stacked) for f in range(self.folds)]

    def _updates(self, update: Update) -> list[object]:
        return [tensors.tree_map(lambda leaf, f=f: leaf[:, f], update.by_fold) for f in range(self.folds)]


def _stacked(trees: Sequence[tensors.Tree]) -> tensors.Tree:
    return tensors.tree_map(lambda *leaves: torch.stack(leaves), *trees)
