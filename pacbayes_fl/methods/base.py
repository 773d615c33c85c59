"""Interface of a method: init, broadcast, client, server and personalise, pure functions of a frozen dataclass."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError, PrivacyError, StudyError
from pacbayes_fl.files import JsonTable
from pacbayes_fl.models.base import default
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import LearnedPriors, Posterior
from pacbayes_fl.server import average
from pacbayes_fl.server.aggregations import AggregationRule, Rule
from pacbayes_fl.tensors import AnyTree

Server = TypeVar("Server")
Message = TypeVar("Message")
Client = TypeVar("Client")
Update = TypeVar("Update")
Value = TypeVar("Value")


RATE: Mapping[str, object] = MappingProxyType({"learning_rate": True})
"""Metadata of an option that is a learning rate under another name than `rate`, for `slowed`."""

_RANGES = MappingProxyType({"variance": (0.0, math.inf), "inclusion": (0.0, 1.0)})


class Nothing(NamedTuple):
    """State of a client or server that keeps nothing between rounds."""


class RefinedPosterior(NamedTuple):
    """A posterior conditioned on more rows, and its divergence from the earlier one.

    Args:
        posterior: Q of the K clients, over the same hypotheses as the earlier posterior P.
        kl: KL(Q || P), or an upper bound of it [K], in nats, float64.
    """

    posterior: Posterior
    kl: Tensor


class Method(ABC, Generic[Server, Message, Client, Update]):
    """One paper's algorithm. Final subclasses are frozen dataclasses whose fields are its hyper-parameters.

    States, messages and updates are trees of tensors (`tensors`); leaves of clients' states and updates begin with K.
    An update has a leaf `weight` [K], 0 for a client to be left out. Fields called `rate`, also of nested options, and
    those with the metadata `RATE` are learning rates, which are halved where a round has diverged.

    Example:
        >>> import torch
        >>> from pacbayes_fl import BayesianMLP, ClientBatch, FedAvg, Gaussian
        >>> from pacbayes_fl.noise import Noise
        >>> x, method = torch.linspace(-1, 1, 8).unsqueeze(1), FedAvg(BayesianMLP((1, 4, 1), Gaussian()))
        >>> batch = ClientBatch.pad([(x, x[:, 0]), (x, -x[:, 0])], ["up", "down"])
        >>> server = method.init_server(torch.Generator().manual_seed(0))
        >>> message = method.broadcast(server)  # one round, of which `run_rounds` plays many
        >>> state = method.init_clients(message, batch)
        >>> update, state = method.client(message, state, batch, Noise(seed=0, round=1, ids=batch.ids))
        >>> method.server(server, update, n_clients=2).theta.shape
        torch.Size([13])
    """

    federated: ClassVar[bool] = True
    """False for a baseline that sends its rows to the server."""

    raw_units: ClassVar[bool] = False
    """True for a method that needs the data's own units instead of standardised ones."""

    host_bound: ClassVar[str | None] = None
    """Why a round or a personalisation must read numbers on the CPU, in words for people; None where it need not."""

    leaves_rows_out: ClassVar[bool] = True
    """False where models over functions predict no training row from all others (`posteriors.residuals.LeaveOneOut`):
    neither shapes of errors nor conformal intervals can be learned from these."""

    server_holds: ClassVar[str | None] = None
    """What the server holds of single clients, for the error of a release; None where it holds no such thing."""

    personal_model: ClassVar[str] = "personal models as the clients' last local steps left them"
    """What `personalise` gives a client that took part, in words for people."""

    released_whole: ClassVar[str | None] = None
    """What of `to_release` is no step from the message, in words; None where zeros leave the server as it was."""

    objective: ClassVar[str | None] = None
    """Number of `report` that says how well clients fit: a "loss" in nats per row, or, under another name, what is the
    better the larger it is, in nats per client; None where nothing is fitted in rounds."""

    @abstractmethod
    def init_server(self, generator: torch.Generator) -> Server:
        """State of the server before the first round, drawn from a CPU generator."""

    @abstractmethod
    def init_clients(self, message: Message, batch: ClientBatch) -> Client:
        """Initial state of the clients, leaves [K, *]."""

    @abstractmethod
    def broadcast(self, server: Server) -> Message:
        """The message that the server sends to the clients of a round."""

    @abstractmethod
    def client(self, message: Message, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """The clients' half of a round: their updates (uploads) and their new states, leaves [K, *]."""

    @abstractmethod
    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """The server's half of a round, from updates with leaves [K, *], for a federation of n_clients."""

    @abstractmethod
    def personalise(self, message: Message, state: Client, batch: ClientBatch, noise: Noise) -> Posterior:
        """Each client's own posterior from its rows, also for clients that never took part."""

    @default
    def personalise_again(
        self, posterior: Posterior, message: Message, state: Client, batch: ClientBatch, noise: Noise
    ) -> Posterior:
        """As `personalise`, given the posterior of the same arguments under other options for after the rounds.

        A method that shares work between such options overrides it; see `HeldOutChoice.after`.
        """
        return self.personalise(message, state, batch, noise)

    @default
    def is_new(self, state: Client) -> Tensor | None:
        """Which clients never took part, bool [K], where `personalise` trains these first; None where it does not."""
        return None

    @default
    def personalise_trained(self, message: Message, state: Client, batch: ClientBatch, noise: Noise) -> Posterior:
        """As `personalise`, for clients that have all been trained: no client is fitted first.

        On a device `personalise` fits all clients and selects the new ones, since asking for them would stop the
        device; the evaluation asks once per call, and then calls this.
        """
        return self.personalise(message, state, batch, noise)

    @property
    @default
    def row_by_row(self) -> bool:
        """Whether the prediction of a row depends on that row alone, also for a client without training rows."""
        return bool(getattr(getattr(self, "model", None), "row_by_row", True))

    @default
    def refine(self, prior: Any, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> RefinedPosterior:
        """Update each client's posterior with more rows and return the KL from the old one, for certificates.

        `prior` is the result of `personalise` on the rows `seen`, possibly none; it does not depend on `rows`.
        """
        raise AssumptionError(
            f"{type(self).__name__} has no posterior over hypotheses that a bound could measure against a prior",
            hint="a method whose models are uncertain; or --bound holdout-betting, on its predictions",
        )

    @default
    def refined_from(self, prior: Any, seen: ClientBatch) -> Any:
        """P of `refine`, over the hypotheses of Q: `prior` itself, unless these are drawn up for rows that come later.

        Bounds at KL = 0 are of this posterior, and not of one that merely predicts alike.
        """
        return prior

    @default
    def absorb(self, message: Message, state: Client, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Client:
        """State of trained clients after rows that came later, such that `personalise` on all rows learns from them.

        Where `personalise` makes the posterior from its rows, that is the state itself: `rows` join those `seen`.
        """
        raise no_later_rows(self)

    @default
    def learned_priors(self, server: Server) -> LearnedPriors | None:
        """The hyper-posterior over priors of functions, for bounds on averages; None for other methods."""
        return None

    @property
    @default
    def finite_posterior(self) -> bool:
        """Whether posteriors are over finitely many hypotheses, whose exact Gibbs posterior a bound can measure."""
        return False

    @default
    def prior_groups(self, ids: Sequence[int]) -> Sequence[int]:
        """Group clients by their priors: a client's prior depends on the rows of all clients of other groups."""
        return range(len(ids))

    @default
    def client_deltas(self, message: Message, update: Update) -> AnyTree:
        """The part of the update whose mean is the server's step; private rounds clip it: floating leaves [K, *].

        Where clients send weights it is their difference from the message, so that a bound on their norms bounds the
        server's step. A tree without leaves where the server has no such step.
        """
        return Nothing()

    @default
    def position(self, message: Message) -> AnyTree:
        """The trained part of a message, watched for divergence: floating leaves [*], normally of the order of 1."""
        return {name: leaf for name, leaf in tensors.leaves(message).items() if leaf.is_floating_point()}

    @default
    def check_private(self) -> None:
        """Raise PrivacyError where the clients' deltas cannot be released with any noise."""
        raise PrivacyError(f"{type(self).__name__} has no private release", hint="train it without [privacy]")

    @default
    def to_release(self, message: Message, update: Update) -> AnyTree:
        """The part of the update that is clipped and released: floating leaves [K, *]."""
        self.check_private()
        return self.client_deltas(message, update)

    @default
    def from_release(self, message: Message, mean: AnyTree, clients: float) -> Update:
        """Build the update [1, *] from the released mean [1, *] over `clients`; NaN where nothing is released."""
        raise PrivacyError(f"{type(self).__name__} has no private release", hint="train it without [privacy]")

    @default
    def global_model(self, message: Message, state: Client, batch: ClientBatch, noise: Noise) -> Posterior | None:
        """The server's own model for these clients, reported beside the personal models."""
        return None

    @default
    def describe(self, state: Client) -> Mapping[str, Tensor]:
        """Numbers [K] of each client's state for tables, such as its cluster."""
        return {}

    @default
    def about(self) -> JsonTable:
        """Entries of `labels.json` on inference and prediction, such as the number of draws."""
        return {}

    @default
    def weight(self, rows: Tensor) -> Tensor:
        """Weights [K] of clients with `rows` [K] in the server's average: the leaf `weight` of their updates."""
        return torch.ones_like(rows)

    @default
    def possible(self, update: Update) -> Tensor:
        """Which updates hold values in the range of `client`: bool [K], to check those of remote clients."""
        return in_range(update)

    @default
    def registered(self, update: Update, rows: Tensor, ids: Sequence[int]) -> Update:
        """Let clients count as the server knows them, by rows [K] and ids, whatever their updates say."""
        own: Any = update
        known = {"clients": torch.ones_like(own.clients)} if "clients" in own._fields else {}
        if "ids" in own._fields:
            known["ids"] = own.ids.new_tensor(ids)
        counted: Update = own._replace(weight=self.weight(rows), **known)
        return counted

    @default
    def check_robust(self, rule: AggregationRule) -> None:
        """Raise StudyError where no mean of clients' steps moves the server that this rule could stand for."""
        if type(self).client_deltas is Method.client_deltas:
            what = "send no steps" if self.federated else "send their rows"
            raise StudyError(
                f"aggregate = {rule.name!r} joins clients' steps, and those of {type(self).__name__} {what}",
                hint="federation.aggregate = 'mean'",
            )
        one, two = self.weight(torch.tensor([1.0, 2.0])).tolist()
        average.check_robust("uniform" if one == two else "rows", rule)
        self.check_rule(rule)

    @default
    def check_rule(self, rule: AggregationRule) -> None:
        """Raise StudyError where a rule that joins steps does not bound what one client can do."""

    @default
    def check_average(self) -> None:
        """Raise StudyError where the mean of the server's states of several rounds, leaf by leaf, is none of a server.

        Particles, components and slots of a server have a mean each, where the k-th of a round is that of the next.
        """
        if type(self).client_deltas is Method.client_deltas:
            raise no_average(
                self, "no mean of clients' steps moves it" if self.federated else "it trains on their rows"
            )

    @default
    def fewest_joined(self, clients: int) -> int:
        """The smallest number of steps, of that many clients in a round, that the server joins to one."""
        return clients

    @default
    def aggregated(self, message: Message, update: Update, rule: Rule) -> Update:
        """An update of one row for `server` from those of all clients [K, *], whose steps a rule joins."""
        steps, weight = self.client_deltas(message, update), cast(Any, update).weight
        mean = tensors.expand(rule(steps, weight), 1)
        return rule.filled(self.from_release(message, mean, float((weight > 0).sum())), update, weight)

    @default
    def reduce(self, update: Update) -> Update:
        """Shrink the updates of a chunk of clients to the few rows that `server` needs, such as their sum or mean."""
        return update

    @default
    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Scalars [] of a round for its record, left on the device."""
        return {}

    @default
    def remark(self, values: Mapping[str, float]) -> str | None:
        """A remark on the numbers of a round's record, None without one; equal remarks have equal text."""
        return None

    @default
    def footprint(self, rows: int) -> int:
        """Numbers that the hot loop holds per client of `rows` rows; the engine sizes its chunks by it."""
        return 1


def no_average(method: object, why: str) -> StudyError:
    """Say that the mean of the server's states of several rounds is no state of a method.

    Args:
        method: the algorithm.
        why: a clause on that server.

    Returns:
        The error.
    """
    what = f"average_last takes the mean of the server's states, and that of {type(method).__name__} has none: {why}"
    return StudyError(what, hint="federation.average_last = 0")


def no_later_rows(method: AnyMethod, option: str = "") -> StudyError:
    """Say that a method's personal models do not learn from rows that come after the training.

    Args:
        method: the algorithm.
        option: of the method that would make them, if there is one.

    Returns:
        The error.
    """
    what = f"{type(method).__name__} does not learn from later rows: {method.personal_model}"
    anew = "run the study anew with all rows"
    return StudyError(what, hint=f"{option} lets them learn; or {anew}" if option else anew)


def in_range(update: AnyTree) -> Tensor:
    """Say which updates hold no value outside of its leaf's range: variances >= 0, inclusions in [0, 1].

    Args:
        update: of clients, leaves [K, *].

    Returns:
        bool [K].
    """
    flat = tensors.leaves(update)
    result = torch.ones_like(flat["weight"], dtype=torch.bool)
    for name, leaf in flat.items():
        lowest, highest = _RANGES.get(name.split(".")[-1], (-math.inf, math.inf))
        result = result & ((leaf >= lowest) & (leaf <= highest)).flatten(1).all(1) if leaf.dim() > 1 else result
    return result


AnyMethod = Method[Any, Any, Any, Any]
"""A method where nobody looks into its states, messages and updates."""


def unwrapped(method: AnyMethod) -> AnyMethod:
    """Take off what is around a method, such as a temperature or folds: methods whose `inner` is another one.

    Args:
        method: any.

    Returns:
        The innermost method.
    """
    inner = getattr(method, "inner", None)
    return unwrapped(inner) if isinstance(inner, Method) else method


def slowed(method: Value, factor: float) -> Value:
    """Scale every learning rate of a method: fields called `rate` or marked by `RATE`, also of nested options.

    Args:
        method: a frozen dataclass of hyper-parameters.
        factor: of the rates; powers of two change no other digit.

    Returns:
        The method with these rates; the very same value where it has none.
    """
    changes: dict[str, object] = {}
    whole: Any = method
    for field in fields(whole):
        old = getattr(method, field.name)
        if (field.name == "rate" or RATE.items() <= field.metadata.items()) and old is not None:
            changes[field.name] = old * factor
        elif is_dataclass(old) and not isinstance(old, type) and (new := slowed(old, factor)) is not old:
            changes[field.name] = new
    slower: Value = replace(whole, **changes) if changes else method
    return slower
