"""Private aggregation: only a noisy mean of clipped updates leaves a round, and only after its cost is recorded.

Nothing else of a private round depends on the clients: neither participation nor failures, no loss and no
time. Scores of test rows are no part of a round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError, ShapeError
from pacbayes_fl.federation import cohort, reduction
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.noise import Noise
from pacbayes_fl.privacy import correlated, kinds, mechanisms, subspace
from pacbayes_fl.privacy.adaptive import AdaptiveClip
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism
from pacbayes_fl.privacy.outside import Outside
from pacbayes_fl.privacy.release_file import Release
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.tensors import AnyTree

CLIP: Final = "clip"
BELOW: Final = "below_clip"
"""Numbers of a round's record where the clip adapts: it, and the noisy share of clients that it does not shorten."""


@dataclass(frozen=True)
class PrivateAggregator:
    """How the rounds of a federation are made private; `open_private` checks and makes one.

    Args:
        mechanism: the clip and the noise.
        cohorts: number of clients, sampling of cohorts, and the neighbouring relation of the guarantee.
        ledger: pays for every release before it happens.
        seed: of cohorts and noise in a simulation; None for randomness from the operating system, without which
            nothing is private.
        empty: a payload of no clients, leaves [0, *] of the dtypes and on the device of the method's payloads.
        outside: makes the releases outside of rounds, which the same ledger pays for; None where there are none.
        adaptive: how the clip follows the clients' norms from that of the mechanism on; None where it stays.
        order: seed of the public order of cohorts that are in order.
        subspace: in which messages are clipped and noised; None where all their numbers are.
    """

    mechanism: Mechanism
    cohorts: Cohorts
    ledger: Ledger
    seed: int | None
    empty: AnyTree
    outside: Outside | None = None
    adaptive: AdaptiveClip | None = None
    order: int = 0
    subspace: subspace.Subspace | None = None

    @property
    def released(self) -> AnyTree:
        """What is noised in a round, of no clients: payloads, or what they are in the subspace.

        Where the clip adapts there are the counts beside them.
        """
        sent = self.empty if self.subspace is None else self.subspace.released
        if self.adaptive is None:
            return sent
        device = next(iter(tensors.leaves(self.empty).values())).device
        return {"update": sent, "below": torch.zeros(0, dtype=torch.float64, device=device)}

    @property
    def charge(self) -> Charge:
        """Privacy cost of a round."""
        return Charge.of(self.mechanism, self.cohorts, mechanisms.coordinates(self.released))

    @property
    def draws(self) -> bool:
        """Whether some clients may be left out of a round."""
        return self.cohorts.kind == "poisson" or self.cohorts.divisor < self.cohorts.clients

    def halved(self, t: int) -> int:
        """Number of halvings of the learning rates in a round that a crash has interrupted after its release.

        Its undone releases are not paid for again: the run continues from their result.

        Args:
            t: number of the round.

        Returns:
            The number; 0 where the round is still to be paid for.
        """
        kept = self.ledger.kept(t)
        return 0 if kept is None else kept.halved

    def undone(self, t: int) -> tuple[str, ...]:
        """Why releases of a round were undone before a crash interrupted it.

        Args:
            t: number of the round.

        Returns:
            The reasons; none where the round is still to be paid for.
        """
        kept = self.ledger.kept(t)
        return () if kept is None else kept.undone

    def uncounted(self, t: int) -> frozenset[int] | None:
        """Ids of the clients whose answers are not in the release of a round that a crash has interrupted after it.

        Clients that keep their own states go on from the one whose answer counted. Who answers after the crash says
        nothing of that, and is not asked.

        Args:
            t: number of the round.

        Returns:
            The ids; None where the round is still to be paid for, or its release does not say.
        """
        kept = self.ledger.kept(t)
        return None if kept is None or kept.uncounted is None else frozenset(kept.uncounted)

    def draw(self, ids: Sequence[int], t: int, halved: int = 0, undone: Sequence[str] = ()) -> Tensor:
        """Draw the cohort of the next release.

        It depends on the number of the release and not on that of the round: a round that is repeated after a crash
        draws anew, or goes on in the order of cohorts, as its account takes it. Where the release of the round was paid
        for before the crash, it is used, and those take part who did then.

        Args:
            ids: of all clients.
            t: number of the round, for the error.
            halved: how often its learning rates have been halved.
            undone: why earlier releases of it were undone.

        Returns:
            Sorted positions [*], int64, on the CPU; possibly none.

        Raises:
            PrivacyError: when the budget does not allow another release.
        """
        kept = self.ledger.kept(t)
        if kept is not None:
            came = set(kept.cohort)
            return torch.tensor([k for k, client in enumerate(ids) if client in came], dtype=torch.int64)
        self.ledger.check_budget(self.charge, t)
        serial = len(self.ledger) + 1
        if self.cohorts.kind == "in-order":
            drawn = cohort.in_order(self.order, self.ledger.position(self.charge), ids, int(self.cohorts.divisor))
        elif self.cohorts.kind == "poisson":
            drawn = cohort.draw_poisson(self.seed, serial, ids, self.cohorts.share)
        else:
            drawn = cohort.draw(self.seed, serial, ids, int(self.cohorts.divisor))
        self.ledger.invite([ids[k] for k in drawn.tolist()], halved, undone)
        return drawn

    def record(self, t: int, values: Mapping[str, float]) -> RoundRecord:
        """Record of a round: functions of its release only.

        Args:
            t: number of the round.
            values: numbers of the method; NaN where they depend on values that are not released.

        Returns:
            The record, with the number of clients that were to be expected.
        """
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        return RoundRecord(t, round(self.cohorts.divisor), values=finite)

    def following(self, values: Mapping[str, float]) -> float | None:
        """Clip of the next round.

        Args:
            values: numbers of this one.

        Returns:
            The clip; None where it stays as it is.
        """
        if self.adaptive is None:
            return None
        return self.adaptive.following(values[CLIP], values[BELOW], self.mechanism.clip)

    def noisy_sum(self, method: AnyMethod, message: AnyTree, t: int, clip: float | None = None) -> NoisySum:
        """Start the sum of a round's clipped updates.

        Args:
            method: the algorithm.
            message: of the server.
            t: number of the round.
            clip: that the rounds before have come to; None is the first.

        Returns:
            The empty sum.
        """
        return NoisySum(self, method, message, t, self.mechanism.clip if clip is None else clip)


class NoisySum:
    """Sum of the clipped updates of a round, call by call: the memory of one update, however many clients there are.

    Args:
        aggregator: mechanism, cohorts and ledger.
        method: the algorithm.
        message: of the server.
        t: number of the round.
        clip: of the round.
    """

    def __init__(self, aggregator: PrivateAggregator, method: AnyMethod, message: AnyTree, t: int, clip: float) -> None:
        """Start from an empty sum."""
        self._private, self._method, self._message, self._round = aggregator, method, message, t
        self._came, self._mechanism = 0, replace(aggregator.mechanism, clip=clip)
        self.numbers = dict[str, Tensor]()
        self._sum = tensors.total(tensors.tree_map(torch.Tensor.double, aggregator.released))

    def add(self, update: AnyTree, good: Tensor) -> None:
        """Clip the clients of a call and add them to the sum.

        Args:
            update: of k clients, leaves [k, *].
            good: bool [k], False for a client that failed: it adds zeros.

        Raises:
            PrivacyError: when more clients come than the account of a round takes.
        """
        most, came = self._private.cohorts.most, self._came + len(good)
        if came > most:
            what = f"a private round may have at most {most:g} clients, got {came}"
            raise PrivacyError(what, round=self._round, hint="take those that `draw` gives")
        payload = self._method.to_release(self._message, update)
        adaptive, mechanism, within = self._private.adaptive, self._mechanism, self._private.subspace
        payload = payload if within is None else within.project(payload)
        clipped = mechanisms.clip if adaptive is None else adaptive.join
        self._sum = tensors.tree_map(torch.add, self._sum, tensors.total(clipped(payload, mechanism, good)))
        self._came = came

    def release(self) -> AnyTree:
        """Return the noisy mean over a public number of clients, after its privacy cost has been recorded.

        Mean and payment get to the disk in one piece: a crash before costs nothing, and after one the mean is there.

        Returns:
            The update that the method makes of it.

        Raises:
            PrivacyError: when the budget does not allow it.
            CheckpointError: when the payment cannot be written; nothing is released then.
        """
        aggregator, adaptive = self._private, self._private.adaptive
        kept = aggregator.ledger.kept(self._round)
        if kept is not None:
            mean = self._again(kept)
        else:
            charge = aggregator.charge
            mechanism = self._mechanism if adaptive is None else adaptive.joint(self._mechanism)
            source = mechanisms.source(aggregator.seed, len(aggregator.ledger), mechanism, charge.coordinates)
            drawn, files = None, dict[str, bytes]()
            if kinds.MECHANISMS[mechanism.kind].correlated:
                fresh = mechanisms.noise(mechanism, charge.coordinates, source)
                place, at = aggregator.ledger.path.parent, aggregator.ledger.position(charge)
                cohorts, serial = aggregator.cohorts, len(aggregator.ledger)
                drawn, files = correlated.draw(place, mechanism, cohorts, serial, at, fresh)
            mean = mechanisms.noisy_mean(self._sum, mechanism, aggregator.cohorts, source, drawn=drawn)
            mean = tensors.tree_map(lambda leaf, like: leaf.to(like.dtype), mean, aggregator.released)
            aggregator.ledger.spend(charge, self._round, tensors.leaves(mean), first=files)
        if adaptive is not None:
            share = adaptive.share(mean["below"], self._mechanism)
            shown = {CLIP: self._mechanism.clip, BELOW: share}
            self.numbers |= {name: torch.tensor(each, dtype=torch.float64) for name, each in shown.items()}
            mean = mean["update"]
        mean = mean if aggregator.subspace is None else aggregator.subspace.lift(mean)
        return self._method.from_release(self._message, mean, aggregator.cohorts.divisor)

    def _again(self, kept: Release) -> AnyTree:
        """Return the release recorded before a crash; the clients' new updates are not used."""
        empty = self._private.released
        try:
            like = tensors.tree_map(lambda leaf: leaf.new_empty((1, *leaf.shape[1:])), empty)
            mean = tensors.unleaves(like, kept.mean)
        except ShapeError as error:
            what = f"the release of this round that the run folder keeps does not fit: {error}"
            raise PrivacyError(what, round=self._round, hint="restore the study, or start anew") from error
        self._private.ledger.take(kept)
        return tensors.tree_map(lambda leaf, like: leaf.to(like.device), mean, empty)


def in_subspace(
    aggregator: PrivateAggregator, method: AnyMethod, dimension: int, seed: int, directions: str = "random"
) -> PrivateAggregator:
    """Let clients be heard in a subspace only.

    All floating numbers of a message are one vector, means with spreads and particles with one another: what is left
    out of any of them stays at the server as it was.

    Args:
        aggregator: of `open_private`.
        method: the algorithm.
        dimension: k.
        seed: public.
        directions: a name of `subspace.DIRECTIONS`.

    Returns:
        The aggregator, whose releases have k numbers.

    Raises:
        PrivacyError: as `Subspace.of`; when the mechanism sums no messages, or the method sends numbers that are no
            steps, of which a subspace would keep a share.
    """
    subspace.check(aggregator.mechanism.kind)
    if method.released_whole is not None:
        what = f"{type(method).__name__} sends {method.released_whole} that are no steps from the server's"
        what = f"{what}, and a subspace leaves most of any message at 0"
        raise PrivacyError(what, hint="leave privacy.subspace out, or take another method")
    return replace(aggregator, subspace=subspace.Subspace.of(aggregator.empty, dimension, seed, directions))


def keeps_state(method: AnyMethod, server: AnyTree, batch: ClientBatch) -> bool:
    """Whether clients of a method keep anything between rounds.

    Args:
        method: the algorithm.
        server: its state.
        batch: rows of all clients, of which the first is asked.

    Returns:
        True where a client's state has any tensor.
    """
    one = batch.select(torch.zeros(1, dtype=torch.int64)).trim()
    return bool(tensors.leaves(method.init_clients(method.broadcast(server), one)))


def check(
    method: AnyMethod, server: AnyTree, batch: ClientBatch, plan: FederationPlan, kind: str, cohorts: Cohorts
) -> None:
    """Refuse rounds that tell more than their releases, or of which no account holds, before any noise is looked for.

    Args:
        method: the algorithm.
        server: its state.
        batch: rows of all clients.
        plan: how the federation runs.
        kind: of the mechanism.
        cohorts: sampling of clients; instead of `plan.cohort`.

    Raises:
        PrivacyError: naming the option.
    """
    if plan.min_clients > 1:
        what = f"min_clients = {plan.min_clients} would tell how many clients failed, which a private round withholds"
        raise PrivacyError(what, hint="federation.min_clients = 1")
    reduction.check_private(plan)
    if plan.on_bad_client == "stop":
        what = "on_bad_client = 'stop' would tell who failed, which a private round withholds"
        raise PrivacyError(what, hint="federation.on_bad_client = 'drop'")
    if cohorts.clients != batch.clients:
        raise PrivacyError(f"cohorts are of {cohorts.clients} clients, and the federation has {batch.clients}")
    if cohorts.kind == "fixed" and cohorts.share < 1 and plan.train == "cohort" and keeps_state(method, server, batch):
        what = (
            "clients that keep something between rounds and train only when they are drawn remember who was drawn, and "
            "cohorts of a fixed size tie that to one another: their account does not hold"
        )
        hint = "privacy.cohort = 'poisson'; 'all', which gains nothing from chance; or federation.train = 'all'"
        raise PrivacyError(what, hint=hint)
    if kinds.MECHANISMS[kind].correlated:
        correlated.check(cohorts)


def open_private(
    method: AnyMethod,
    server: AnyTree,
    batch: ClientBatch,
    plan: FederationPlan,
    mechanism: Mechanism,
    cohorts: Cohorts,
    ledger: Ledger,
    seed: int | None,
) -> PrivateAggregator:
    """Check that a federation can be trained privately, before anything is trained.

    `to_release` of the first client is evaluated once for its shape; the numbers are not used.

    Chance in the cohorts counts as long as a client's message is a function of its rows and of earlier releases, apart
    from who is drawn now. That holds where clients keep nothing, and where all of them train in every round
    (`plan.train`). Where they train only when they are drawn, what they keep depends on earlier draws: independent ones
    with Poisson cohorts, so that, with the draws of all others known, a client's message is a mixture of vectors that
    are clipped alike, which no divergence tells apart better than the farthest of them; but not with fixed cohorts,
    where the draws of others say something of the client's own.

    Args:
        method: the algorithm.
        server: its state.
        batch: rows of all clients.
        plan: how the federation runs.
        mechanism: the clip and the noise.
        cohorts: sampling of clients; instead of `plan.cohort`.
        ledger: pays.
        seed: as `PrivateAggregator`.

    Returns:
        The aggregator.

    Raises:
        PrivacyError: when the method has no private release, the plan tells how many clients failed, the cohorts are
            of another federation, or of a fixed size while clients' states depend on earlier cohorts.
    """
    check(method, server, batch, plan, mechanism.kind, cohorts)
    message, one = method.broadcast(server), batch.select(torch.zeros(1, dtype=torch.int64)).trim()
    noise = Noise(plan.seed, 0, one.ids, one.x.device, plan.noise)
    state = method.init_clients(message, one)
    update, _ = method.client(message, state, one, noise)
    payload = method.to_release(message, update)
    empty = tensors.tree_map(lambda leaf: leaf[:0], payload)
    if cohorts.kind == "in-order":
        cohorts = replace(cohorts, order=cohort.order_name(plan.seed, batch.ids))
    return PrivateAggregator(mechanism, cohorts, ledger, seed, empty, order=plan.seed)
