"""Personalisation after the rounds: every client's own posterior, also of new clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch, same_schema
from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation.client_calls import CallSplitter, cut_calls, parts, prepared
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.predictive import Posterior
from pacbayes_fl.tensors import AnyTree

Then = Callable[[Tensor, Posterior], Any]
Made = TypeVar("Made")


def personalise(
    method: AnyMethod, state: FederationState, batch: ClientBatch, plan: FederationPlan, then: Then | None = None
) -> Iterator[tuple[Tensor, Any]]:
    """Give every client of a federation its own posterior, a few at a time.

    Args:
        method: the algorithm.
        state: after the last round.
        batch: the clients' rows, in the order of `state.kept`.
        plan: gives chunk, waste and seed.
        then: what is made of the posteriors of some clients at once, from their positions [k] and these; predictions,
            which may need more memory than all else.

    Returns:
        Yields positions [k] of the clients and their posterior, or the result of `then`.
    """

    def work(index: Tensor, *call: Any) -> Any:
        posterior = posteriors(method, *call)
        return posterior if then is None else then(index, posterior)

    return personal_calls(method, state, batch, plan, work)


def posteriors(method: AnyMethod, message: AnyTree, state: AnyTree, batch: ClientBatch, noise: Noise) -> Posterior:
    """Let the clients of a call personalise; a device is asked once whether some of them never trained.

    Args:
        method: the algorithm.
        message: of the server.
        state: of the clients, leaves [K, *].
        batch: their rows.
        noise: their streams of round 0.

    Returns:
        The posterior of the K clients.
    """
    fresh = method.is_new(state)
    trained = fresh is not None and not bool(fresh.any())
    result = (method.personalise_trained if trained else method.personalise)(message, state, batch, noise)
    warn_of(result)
    return result


def warn_of(posterior: Posterior) -> None:
    """Warn of clients with few effective draws, where this is known on a device only.

    Args:
        posterior: of the clients of a call.
    """
    doubts = getattr(getattr(posterior, "inner", posterior), "doubts", None)
    if doubts is not None:
        doubts()


def tell_of(posterior: Posterior) -> None:
    """Warn of what a posterior has found while it predicted, where this is known on a device only.

    Args:
        posterior: of the clients of a call, after its predictions.
    """
    tell = getattr(getattr(posterior, "inner", posterior), "tell", None)
    if tell is not None:
        tell()


def global_models(
    method: AnyMethod, state: FederationState, batch: ClientBatch, plan: FederationPlan, then: Then | None = None
) -> Iterator[tuple[Tensor, Any]]:
    """Yield the global model for every client, a few clients at a time.

    Args:
        method: the algorithm.
        state: after some round.
        batch: the clients' rows, in the order of `state.kept`.
        plan: gives chunk, waste and seed.
        then: as `personalise` has it.

    Yields:
        Positions [k] of the clients and the global model's posterior for them, or the result of `then`; nothing
        where there is no global model.
    """

    def work(index: Tensor, *call: Any) -> tuple[Any] | None:
        posterior = method.global_model(*call)
        return None if posterior is None else (posterior if then is None else then(index, posterior),)

    for index, result in personal_calls(method, state, batch, plan, work):
        if result is None:
            return
        yield index, result[0]


def personal_calls(
    method: AnyMethod,
    state: FederationState,
    batch: ClientBatch,
    plan: FederationPlan,
    work: Callable[[Tensor, AnyTree, AnyTree, ClientBatch, Noise], Made],
    more: Sequence[int] | None = None,
) -> Iterator[tuple[Tensor, Made]]:
    """Cut clients into the calls that come after the rounds, such as `Method.personalise`, and make them.

    A call that exhausts a GPU's memory is made again, on fewer clients.

    Args:
        method: the algorithm.
        state: after some round.
        batch: the clients' rows, in the order of `state.kept`.
        plan: gives chunk, waste and seed.
        work: takes positions [k] of the clients, and message, state, rows and noise of round 0; it changes nothing.
        more: rows of every client that a call needs memory for beside those of the batch.

    Yields:
        Positions [k] of the clients, and the result of `work`.
    """
    batch = prepared(method, batch)
    sizes = [int(m) for m in batch.size.tolist()]
    message = method.broadcast(state.server)
    needed = sizes if more is None else [own + other for own, other in zip(sizes, more, strict=True)]
    kept = Kept.of(state.kept, batch.clients)
    splitter = CallSplitter()

    def called(positions: Sequence[int], rows: ClientBatch) -> tuple[Tensor, Made]:
        noise = Noise(plan.seed, 0, rows.ids, rows.x.device, plan.noise)
        index = torch.tensor(positions).to(batch.x.device)
        own = rows if more is None else rows.trim()
        return index, work(index, message, kept.select(positions), own, noise)

    for call in cut_calls(batch, needed, parts(method, needed, list(range(batch.clients)), plan, batch.x.device)):
        for *_, result in splitter.calls(*call, called):
            yield result


def join(
    method: AnyMethod,
    server: AnyTree,
    batch: ClientBatch,
    seed: int,
    like: ClientBatch | None = None,
    engine: Engine = "philox",
) -> Posterior:
    """Let clients personalise that never trained; the federation learns nothing from them.

    Args:
        method: the algorithm.
        server: its state after the last round.
        batch: the new clients' rows [K, N, *]; a client without rows gets the prior's prediction.
        seed: of the personalisation's random draws.
        like: a batch of the federation whose columns the new ones must match.
        engine: of the personalisation's random draws, as in the federation's plan.

    Returns:
        The posterior of the K clients.

    Raises:
        DataError: when the columns differ.
        ShapeError: when rows have other features than the model takes.
        StudyError: when a whole state stands for that of its server.

    Example:
        >>> import torch
        >>> from pacbayes_fl import ClientBatch, DeepKernelGP, FederationPlan, PacPFL, join, run_rounds
        >>> x = torch.linspace(-1, 1, 6, dtype=torch.float64).unsqueeze(1)
        >>> batch = ClientBatch.pad([(x, torch.sin(x[:, 0] + k)) for k in range(3)])
        >>> method = PacPFL(DeepKernelGP(1, (4,), (4,)), particles=2)
        >>> state = run_rounds(method, batch, FederationPlan(rounds=2))
        >>> new = ClientBatch.pad([(x[:2], x[:2, 0])], ['new'])
        >>> join(method, state.server, new, seed=1).predict(x.unsqueeze(0)).mean.shape
        torch.Size([1, 6])
    """
    if isinstance(server, FederationState):
        raise StudyError(
            "server must be what the server has learned, got the state of the federation", hint="state.server"
        )
    if like is not None:
        same_schema(like, batch)
    batch = prepared(method, batch)
    message = method.broadcast(server)
    noise = Noise(seed, 0, batch.ids, batch.x.device, engine)
    return posteriors(method, message, method.init_clients(message, batch), batch, noise)
