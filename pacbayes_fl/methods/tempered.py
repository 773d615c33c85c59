"""Any method of classification with one temperature for the predictions of the whole federation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.files import JsonTable
from pacbayes_fl.methods.base import AnyMethod, Client, Message, Method, RefinedPosterior, Server, Update
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import LearnedPriors, Posterior
from pacbayes_fl.posteriors.tempered import TemperedPosterior, tempered
from pacbayes_fl.server.aggregations import AggregationRule, Rule
from pacbayes_fl.tensors import AnyTree


@final
@dataclass(frozen=True)
class Tempered(Method[Server, Message, Client, Update]):
    """A method whose models predict p^(1/T) / Z; its rounds, states and posteriors are those of the method itself.

    Bounds are on the Gibbs predictor that draws a network and predicts with its tempered probabilities:
    a T that was fixed without the rows of the bound is a part of every hypothesis.

    Args:
        inner: the wrapped method.
        temperature: T.
    """

    inner: Method[Server, Message, Client, Update]
    temperature: float

    def __post_init__(self) -> None:
        """Check that the temperature is positive and finite."""
        if not 0 < self.temperature < math.inf:
            raise StudyError(f"temperature must be positive and finite, got {self.temperature!r}")

    @property
    def federated(self) -> bool:  # type: ignore[override]
        """As in the wrapped method."""
        return self.inner.federated

    @property
    def raw_units(self) -> bool:  # type: ignore[override]
        """As in the wrapped method."""
        return self.inner.raw_units

    @property
    def host_bound(self) -> str | None:  # type: ignore[override]
        """As in the wrapped method."""
        return self.inner.host_bound

    @property
    def objective(self) -> str | None:  # type: ignore[override]
        """As in the wrapped method."""
        return self.inner.objective

    @property
    def leaves_rows_out(self) -> bool:  # type: ignore[override]
        """As of the method."""
        return self.inner.leaves_rows_out

    @property
    def server_holds(self) -> str | None:  # type: ignore[override]
        """As of the method."""
        return self.inner.server_holds

    @property
    def released_whole(self) -> str | None:  # type: ignore[override]
        """As in the wrapped method."""
        return self.inner.released_whole

    @property
    def personal_model(self) -> str:  # type: ignore[override]
        """As in the wrapped method."""
        return self.inner.personal_model

    @property
    def row_by_row(self) -> bool:
        """As in the wrapped method."""
        return self.inner.row_by_row

    def init_server(self, generator: torch.Generator) -> Server:
        """As in the wrapped method."""
        return self.inner.init_server(generator)

    def init_clients(self, message: Message, batch: ClientBatch) -> Client:
        """As in the wrapped method."""
        return self.inner.init_clients(message, batch)

    def broadcast(self, server: Server) -> Message:
        """As in the wrapped method."""
        return self.inner.broadcast(server)

    def client(self, message: Message, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """As in the wrapped method."""
        return self.inner.client(message, state, batch, noise)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """As in the wrapped method."""
        return self.inner.server(server, update, n_clients)

    def personalise(self, message: Message, state: Client, batch: ClientBatch, noise: Noise) -> TemperedPosterior:
        """Temper each client's own posterior."""
        return tempered(self.inner.personalise(message, state, batch, noise), self.temperature)

    def is_new(self, state: Client) -> Tensor | None:
        """As the method itself: bool [K]."""
        return self.inner.is_new(state)

    def personalise_trained(
        self, message: Message, state: Client, batch: ClientBatch, noise: Noise
    ) -> TemperedPosterior:
        """Temper each client's own posterior."""
        return tempered(self.inner.personalise_trained(message, state, batch, noise), self.temperature)

    def personalise_again(
        self, posterior: Posterior, message: Message, state: Client, batch: ClientBatch, noise: Noise
    ) -> TemperedPosterior:
        """As `personalise`."""
        known = posterior.inner if isinstance(posterior, TemperedPosterior) else posterior
        return tempered(self.inner.personalise_again(known, message, state, batch, noise), self.temperature)

    def absorb(self, message: Message, state: Client, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Client:
        """As in the wrapped method."""
        return self.inner.absorb(message, state, seen, rows, noise)

    def refine(self, prior: TemperedPosterior, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> RefinedPosterior:
        """Refine the wrapped posterior: the divergence is between weights and does not depend on T."""
        result = self.inner.refine(prior.inner, seen, rows, noise)
        return result._replace(posterior=tempered(result.posterior, self.temperature))

    def refined_from(self, prior: TemperedPosterior, seen: ClientBatch) -> TemperedPosterior:
        """As in the wrapped method, tempered."""
        return tempered(self.inner.refined_from(prior.inner, seen), self.temperature)

    def global_model(self, message: Message, state: Client, batch: ClientBatch, noise: Noise) -> Posterior | None:
        """The tempered global model."""
        result = self.inner.global_model(message, state, batch, noise)
        return None if result is None else tempered(result, self.temperature)

    def client_deltas(self, message: Message, update: Update) -> AnyTree:
        """As in the wrapped method."""
        return self.inner.client_deltas(message, update)

    def position(self, message: Message) -> AnyTree:
        """As in the wrapped method."""
        return self.inner.position(message)

    def check_private(self) -> None:
        """As in the wrapped method."""
        self.inner.check_private()

    def to_release(self, message: Message, update: Update) -> AnyTree:
        """As in the wrapped method."""
        return self.inner.to_release(message, update)

    def from_release(self, message: Message, mean: AnyTree, clients: float) -> Update:
        """As in the wrapped method."""
        return self.inner.from_release(message, mean, clients)

    def describe(self, state: Client) -> Mapping[str, Tensor]:
        """As in the wrapped method."""
        return self.inner.describe(state)

    def about(self) -> JsonTable:
        """Labels of the wrapped method, and the temperature."""
        return self.inner.about() | {"temperature": self.temperature}

    def weight(self, rows: Tensor) -> Tensor:
        """As the method itself, of rows [K]: [K]."""
        return self.inner.weight(rows)

    def possible(self, update: Update) -> Tensor:
        """As the method itself: bool [K]."""
        return self.inner.possible(update)

    def registered(self, update: Update, rows: Tensor, ids: Sequence[int]) -> Update:
        """As the method itself, by rows [K]."""
        return self.inner.registered(update, rows, ids)

    def check_robust(self, rule: AggregationRule) -> None:
        """As in the wrapped method."""
        self.inner.check_robust(rule)

    def check_rule(self, rule: AggregationRule) -> None:
        """As the method itself."""
        self.inner.check_rule(rule)

    def check_average(self) -> None:
        """As in the wrapped method."""
        self.inner.check_average()

    def fewest_joined(self, clients: int) -> int:
        """As in the wrapped method."""
        return self.inner.fewest_joined(clients)

    def aggregated(self, message: Message, update: Update, rule: Rule) -> Update:
        """As in the wrapped method."""
        return self.inner.aggregated(message, update, rule)

    def reduce(self, update: Update) -> Update:
        """As in the wrapped method."""
        return self.inner.reduce(update)

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """As in the wrapped method."""
        return self.inner.report(server, update)

    def remark(self, values: Mapping[str, float]) -> str | None:
        """As in the wrapped method."""
        return self.inner.remark(values)

    def learned_priors(self, server: Server) -> LearnedPriors | None:
        """As in the wrapped method."""
        return self.inner.learned_priors(server)

    @property
    def finite_posterior(self) -> bool:
        """As in the wrapped method."""
        return self.inner.finite_posterior

    def prior_groups(self, ids: Sequence[int]) -> Sequence[int]:
        """As in the wrapped method."""
        return self.inner.prior_groups(ids)

    def footprint(self, rows: int) -> int:
        """As in the wrapped method."""
        return self.inner.footprint(rows)


def untempered(method: AnyMethod) -> AnyMethod:
    """Give the method itself, whatever temperature its predictions have.

    Args:
        method: any method.

    Returns:
        The method inside a `Tempered`; every other method itself.
    """
    return method.inner if isinstance(method, Tempered) else method
