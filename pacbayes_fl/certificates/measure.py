"""Inputs of bounds on single clients: risks, divergences and normalisers of a run's posteriors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pacbayes_fl import bounds
from pacbayes_fl.bounds import BoundedLoss, Premises
from pacbayes_fl.bounds.risk import (
    drawn_losses,
    finite_losses,
    finite_risks,
    gibbs_losses,
    gibbs_risk,
    predicted_losses,
)
from pacbayes_fl.certificates.choice import PILOT, Candidate, candidates, choose, merged
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.certificates.rows import BoundRows
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.federation import personalisation
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import FinitePosterior, FunctionPosterior, SampledPosterior
from pacbayes_fl.study.run import Trained

OnClients = Callable[[int], None]
Made = TypeVar("Made")


_STREAMS = (2**32 - 4, 2**32 - 3, 2**32 - 2)  # rounds of noise that refines, draws and chooses: no run gets there

_FAR = 1e9  # nats, of what is no candidate

_TEST_DRAWS = 10  # of a risk that is shown and bounds nothing


class Measured(NamedTuple):
    """Numbers of the clients of a group, float64.

    Args:
        risk: empirical [K].
        kl: [K], in nats.
        n: rows of the bound that count [K].
        test_risk: [K], NaN without test rows.
        test_rows: [K].
        log_z: ln Z of the exact Gibbs posterior [K], where that is certified.
        draws: hypotheses that were drawn, if any.
        rows: all rows of the bound [K], by which a beta is fixed: which of them count depends on their values.
        risks: empirical ones of every draw [K, M], if any.
        losses: of the predictor that was fixed before the rows [K, N]: of n rows that count, then of those that may.
        doubtful: how many may [K].
        share: how far each posterior is on the way from the prior, 0, to the refined one, 1 [K].
    """

    risk: Tensor
    kl: Tensor
    n: Tensor
    test_risk: Tensor
    test_rows: Tensor
    log_z: Tensor | None
    draws: int | None
    rows: Tensor
    risks: Tensor | None
    losses: Tensor
    doubtful: Tensor
    share: Tensor

    def select(self, wanted: Tensor) -> Measured:
        """Take some clients.

        Args:
            wanted: bool [K].

        Returns:
            Their numbers.
        """
        return Measured._make(each[wanted] if isinstance(each, Tensor) else each for each in self)


def with_priors(
    trained: Trained, group: BoundRows, work: Callable[[Any, BoundRows], Made]
) -> Iterator[tuple[Tensor, Made]]:
    """Give every client its prior, a few at a time, and do something with it, which may need the most memory of all.

    Args:
        trained: the run.
        group: rows of the clients.
        work: takes the prior and the rows of k clients.

    Yields:
        Positions [k] of the clients, and the result of the work.
    """
    more = [int(m) for m in group.rows.size.tolist()]

    def called(index: Tensor, *call: Any) -> Made:
        prior, seen = personalisation.posteriors(trained.method, *call), call[2]
        rows, test = (batch.select(index.cpu()).trim() for batch in (group.rows, group.test))
        subset = group._replace(repeats=group.repeats.select(index.cpu(), rows.mask.shape[1]))
        return work(prior, subset._replace(seen=seen, rows=rows, test=test))

    yield from personalisation.personal_calls(trained.method, group.state, group.seen, trained.study.plan, called, more)


class _Columns(NamedTuple):
    """What is measured of the clients of a call: [k], and [k, M] and [k, N] in the last two."""

    risk: Tensor
    kl: Tensor
    test_risk: Tensor
    log_z: Tensor
    share: Tensor
    risks: Tensor | None
    losses: Tensor | None


def measure(trained: Trained, group: BoundRows, loss: BoundedLoss, request: Request, on_clients: OnClients) -> Measured:
    """Compute the inputs of a bound, and of the hold-out bound beside it.

    Args:
        trained: the run.
        group: rows of the clients.
        loss: whose risk is bounded.
        request: gives the draws, and beta of an exact Gibbs posterior.
        on_clients: called with the number of clients that were done in one go.

    Returns:
        The numbers of all clients, in their order.
    """
    plan, clients, device = trained.study.plan, group.rows.clients, group.rows.x.device
    columns = [torch.full((clients,), math.nan, dtype=torch.float64, device=device) for _ in range(5)]
    losses = torch.zeros(group.rows.mask.shape, dtype=torch.float64, device=device)
    risks: list[Tensor] = [torch.empty(0)] * clients
    fixed, beside = request.record.fixed, request.shares[1] > 0

    def work(prior: object, subset: BoundRows) -> _Columns:
        refining, drawing, choosing = (
            Noise(plan.seed, stream, subset.rows.ids, subset.rows.x.device, plan.noise) for stream in _STREAMS
        )
        own = predicted_losses(prior, subset.rows, loss) if fixed or (beside and group.deployed is None) else None
        if fixed:
            return _of_predictor(prior, subset, loss, own)
        if request.record.posterior == "exact Gibbs":
            made = _exact_gibbs(prior, subset, loss, request)
            return _Columns._make((*made, torch.ones_like(made[0]), None, own))
        refined = Candidate(1.0, *trained.method.refine(prior, subset.seen, subset.rows, refining.copy()))
        personalisation.warn_of(refined.posterior)
        among = [refined]
        if request.posterior == "best" and request.record.chooses:
            among = candidates(trained.method, prior, refined, subset, refining)
        return _best(among, subset, loss, request, (drawing, choosing), own)

    deployed = group if group.deployed is None else group._replace(state=group.deployed[0], seen=group.deployed[1])
    for index, made in with_priors(trained, deployed if fixed else group, work):
        for column, value in zip(columns, made[:5], strict=True):
            column[index] = value.double()
        for row, k in enumerate(index.tolist()):
            risks[k] = torch.empty(0) if made.risks is None else made.risks[row].cpu()
        if made.losses is not None:
            losses[index, : made.losses.shape[1]] = made.losses
        on_clients(len(index))
    if beside and group.deployed is not None:
        for index, own in with_priors(trained, deployed, lambda prior, part: predicted_losses(prior, part.rows, loss)):
            losses[index, : own.shape[1]] = own
    risk, kl, test_risk, log_z, share = (column.cpu() for column in columns)
    each = torch.stack(risks) if all(len(one) for one in risks) else None
    draws = request.draws if each is not None else None
    exact = log_z if request.record.posterior == "exact Gibbs" else None
    ordered, doubtful = (each.cpu() for each in group.repeats.ordered(losses))
    counts = group.repeats.n, group.test.size.cpu()
    rows = group.rows.size.cpu()
    return Measured(risk, kl, counts[0], test_risk, counts[1], exact, draws, rows, each, ordered, doubtful, share)


def _best(
    among: list[Candidate],
    subset: BoundRows,
    loss: BoundedLoss,
    request: Request,
    noise: tuple[Noise, Noise],
    own: Tensor | None,
) -> _Columns:
    """Choose a posterior for every client, and estimate its risk by draws that had no part in the choice."""
    drawing, choosing = noise
    pilot = replace(request, draws=min(PILOT, request.draws))
    premises = Premises(subset.prior, True, loss, tried=request.tried)
    own_rows = subset.repeats.n, subset.rows.size
    n, every = (count.to(among[0].kl.device).clamp_min(1) for count in own_rows)
    numbers = {"n": n, "beta": request.beta_for(every.double())}

    def bound(one: Candidate) -> Tensor:
        risk = _risks(one.posterior, subset, loss, pilot, choosing)[0]
        known = {"risk": risk.nan_to_num(loss.high), "kl": one.kl.nan_to_num(_FAR, _FAR), **numbers}
        return request.record.certify(known, request.delta * request.shares[0], premises).value

    which = choose(among, bound) if len(among) > 1 else torch.zeros_like(n, dtype=torch.int64)
    columns = [torch.full_like(among[0].kl, math.nan) for _ in range(3)]
    each: Tensor | None = None
    for whose, one in merged(among, which):
        risk, draws = _risks(one.posterior, subset, loss, request, drawing)
        on_test = gibbs_risk(one.posterior, subset.test, loss, min(request.draws, _TEST_DRAWS), drawing).risk
        columns = [torch.where(whose, new, old) for new, old in zip((risk, one.kl, on_test), columns, strict=True)]
        if draws is not None:
            each = draws if each is None else torch.where(whose.unsqueeze(1), draws, each)
    share = torch.tensor([one.share for one in among], dtype=torch.float64, device=which.device)[which]
    return _Columns._make((*columns, torch.full_like(share, math.nan), share, each, own))


def _risks(
    posterior: object, subset: BoundRows, loss: BoundedLoss, request: Request, drawing: Noise
) -> tuple[Tensor, Tensor | None]:
    """Empirical Gibbs risk [k] on the rows that count, and that of every draw [k, M] where some had to be drawn."""
    repeats, rows = subset.repeats, subset.rows
    if isinstance(posterior, FunctionPosterior | FinitePosterior) or not isinstance(posterior, SampledPosterior):
        return repeats.risk(gibbs_losses(posterior, rows, loss, request.draws, drawing).rows), None
    plain = not bool(repeats.left_out.any())
    size = torch.where(rows.size > 0, rows.size, torch.nan).to(rows.x.device)
    drawn = drawn_losses(posterior, rows, loss, request.draws, drawing)
    each = torch.stack([one.sum(1) / size if plain else repeats.risk(one) for one in drawn], 1)
    return each.mean(1), each


def _of_predictor(prior: Any, subset: BoundRows, loss: BoundedLoss, own: Tensor | None) -> _Columns:
    """Risks of the prior's predictions alone; what has no posterior can be measured too."""
    rows, test = subset.rows, subset.test
    if own is None:
        own = predicted_losses(prior, rows, loss)
    on_test = predicted_losses(prior, test, loss).sum(1) / torch.where(test.size > 0, test.size, torch.nan).to(own)
    nothing = torch.zeros_like(on_test)
    return _Columns(subset.repeats.risk(own), nothing, on_test, nothing, nothing, None, own)


def _exact_gibbs(prior: object, subset: BoundRows, loss: BoundedLoss, request: Request) -> tuple[Tensor, ...]:
    """Weigh the hypotheses of a finite list by the Gibbs posterior of the loss itself (certificates of eq. 38)."""
    if not isinstance(prior, FinitePosterior):
        raise AssumptionError(
            f"the bound {request.record.name!r} is for exact Gibbs posteriors: those over a finite list of hypotheses",
            hint="pac-pfl-bnn with method.posterior = 'importance', or another bound",
        )
    beta = request.beta_for(subset.rows.size.to(subset.rows.x.device))
    before, risks = finite_risks(prior, subset.rows, loss)
    weights, log_z = bounds.gibbs_weights(risks, beta, before)
    _, on_test = finite_risks(prior, subset.test, loss)
    risk, kl = (weights * risks).sum(1), bounds.discrete_kl(weights, before)
    if bool(subset.repeats.left_out.any()):  # ln Z is -beta (L^(Q) + KL / beta), and L^(Q) may be larger on what counts
        risk = subset.repeats.risk(finite_losses(prior, subset.rows, loss, weights))
        log_z = torch.minimum(log_z, -(beta * risk + kl))
    return risk, kl, (weights * on_test).sum(1), log_z
