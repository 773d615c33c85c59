"""Inputs of bounds on single clients: risks, divergences and normalisers of a run's posteriors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from pacbayes_fl import bounds
from pacbayes_fl.bounds import BoundedLoss, Premises
from pacbayes_fl.bounds.losses import squared
from pacbayes_fl.bounds.risk import (
    drawn_by_row,
    drawn_losses,
    finite_losses,
    finite_risks,
    gibbs_losses,
    gibbs_risk,
    in_parts,
    predicted_losses,
)
from pacbayes_fl.certificates.choice import PILOT, Candidate, candidates, choose, merged, refine, unwrapped
from pacbayes_fl.certificates.drawn import draw, networks_of
from pacbayes_fl.certificates.repeats import largest_variance
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.certificates.rows import BoundRows
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.federation import personalisation
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions.conditioning import sharing_prior
from pacbayes_fl.posteriors.predictive import FinitePosterior, FunctionPosterior, SampledPosterior
from pacbayes_fl.study.run import Trained

OnClients = Callable[[int], None]
Made = TypeVar("Made")

_STREAMS = (2**32 - 4, 2**32 - 3, 2**32 - 2)  # rounds of noise that refines, draws and chooses: no run gets there

SHIPPED: Final = 2**32 - 5
"""Round of the noise that draws the one network of a bound on one draw."""

_NUMBERS = 8  # columns with one for each client

_FAR = 1e9  # nats, of what is no candidate

_TEST_DRAWS = 10  # of a risk that is shown and bounds nothing

_ENOUGH = 200  # rows with hypotheses of their own, of each draw that is asked for: .002 of a risk of .05
_PILOTED: Final = 4  # of many rows one in so many, each with as many more draws, chooses among candidates
_LOOKED_AT: Final = 50  # rows that one network is tried on, so that multiplying takes no longer than drawing it


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
        risks: empirical ones of every draw [K, M], each on a part of many rows, if any that did not count row by row.
        losses: of the predictor that was fixed before the rows [K, N]: of n rows that count, then of those that may.
        doubtful: how many may [K].
        share: how far each posterior is on the way from the prior, 0, to the refined one, 1 [K].
        variance: of the losses over rows, averaged over hypotheses, or an upper bound of it [K], R^2 / 4 where draws
            have a hypothesis for every row; NaN where no bound asks for it, as `log_ratio`.
        log_ratio: ln dQ/dP at the network that was drawn [K], in nats; the risks are then those of this network.
        trials: independent losses behind the risk [K], where rows have hypotheses of their own and all of them count;
            None elsewhere.
        variances: of every draw's losses [K, M], if any.
        network: weights of that network [K, D].
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
    variance: Tensor
    log_ratio: Tensor
    trials: Tensor | None
    variances: Tensor | None
    network: Tensor | None

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
    """What is measured of the clients of a call: [k], then for each of them [k, M] twice, [k, D] and [k, N]."""

    risk: Tensor
    kl: Tensor
    test_risk: Tensor
    log_z: Tensor
    share: Tensor
    variance: Tensor
    log_ratio: Tensor
    trials: Tensor
    risks: Tensor | None = None
    variances: Tensor | None = None
    network: Tensor | None = None
    losses: Tensor | None = None


class _Risk(NamedTuple):
    """Empirical risk and variance of a posterior [k], and of every draw [k, M] where some had to be drawn.

    Where rows had hypotheses of their own, and all count, there are the trials [k] instead of these; else NaN.
    """

    risk: Tensor
    variance: Tensor
    trials: Tensor
    risks: Tensor | None = None
    variances: Tensor | None = None


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
    columns = [torch.full((clients,), math.nan, dtype=torch.float64, device=device) for _ in range(_NUMBERS)]
    losses = torch.zeros(group.rows.mask.shape, dtype=torch.float64, device=device)
    each: list[list[Tensor]] = [[torch.empty(0)] * clients for _ in range(_NUMBERS, len(_Columns._fields) - 1)]
    fixed, beside = request.record.fixed, request.shares[1] > 0
    sizes = group.rows.size[group.rows.size > 0]
    least = 0 if bool(group.repeats.left_out.any()) or not len(sizes) else int(sizes.min())

    def work(prior: object, subset: BoundRows) -> _Columns:
        prior = sharing_prior(prior)
        refining, drawing, choosing = (
            Noise(plan.seed, stream, subset.rows.ids, subset.rows.x.device, plan.noise) for stream in _STREAMS
        )
        own = predicted_losses(prior, subset.rows, loss) if fixed or (beside and group.deployed is None) else None
        if fixed:
            return _of_predictor(prior, subset, loss, own)
        if request.record.posterior == "exact Gibbs":
            made = _exact_gibbs(prior, subset, loss, request)
            nothing = torch.full_like(made[0], math.nan)
            numbers = (*made, torch.ones_like(made[0]), nothing, nothing, nothing)
            return _Columns._make((*numbers, None, None, None, own))
        refined = refine(trained.method, prior, subset, refining.copy())
        personalisation.warn_of(refined.posterior)
        among = [refined]
        if request.posterior == "best" and request.record.chooses:
            among = candidates(trained.method, prior, refined, subset, refining)
        if "log_ratio" in request.record.needs:
            shipped = Noise(plan.seed, SHIPPED, subset.rows.ids, subset.rows.x.device, plan.noise)
            return _one_drawn(among, prior, subset, loss, request, (shipped, choosing))._replace(losses=own)
        return _best(among, subset, loss, request, (drawing, choosing), least)._replace(losses=own)

    deployed = group if group.deployed is None else group._replace(state=group.deployed[0], seen=group.deployed[1])
    for index, made in with_priors(trained, deployed if fixed else group, work):
        for column, value in zip(columns, made[:_NUMBERS], strict=True):
            column[index] = cast(Tensor, value).double()
        for several, values in zip(each, made[_NUMBERS:-1], strict=True):
            for row, k in enumerate(index.tolist()):
                several[k] = torch.empty(0) if values is None else values[row].cpu()
        if made.losses is not None:
            losses[index, : made.losses.shape[1]] = made.losses
        on_clients(len(index))
    if beside and group.deployed is not None:
        for index, own in with_priors(trained, deployed, lambda prior, part: predicted_losses(prior, part.rows, loss)):
            losses[index, : own.shape[1]] = own
    risk, kl, test_risk, log_z, share, *more, trials = (column.cpu() for column in columns)
    risks, *others = (torch.stack(several) if all(len(one) for one in several) else None for several in each)
    by_row = bool(trials.isfinite().any())
    trials = trials.nan_to_num(request.draws)  # of whoever has one network for all rows, or no rows
    draws = request.draws if risks is not None else _fewer(request.draws, least) if by_row else None
    exact = log_z if request.record.posterior == "exact Gibbs" else None
    ordered, doubtful = (one.cpu() for one in group.repeats.ordered(losses))
    counts = group.repeats.n, group.test.size.cpu()
    rows = group.rows.size.cpu()
    first = risk, kl, counts[0], test_risk, counts[1], exact, draws, rows, risks, ordered, doubtful, share
    return Measured._make((*first, *more, trials if by_row else None, *others))


def _best(
    among: list[Candidate],
    subset: BoundRows,
    loss: BoundedLoss,
    request: Request,
    noise: tuple[Noise, Noise],
    least: int,
) -> _Columns:
    """Choose a posterior for every client, and estimate its risk by draws that had no part in the choice."""
    drawing, choosing = noise
    which, exact = _chosen(among, subset, loss, request, choosing, least)
    found: dict[str, Tensor] = {}
    for whose, one in merged(among, which):
        made = exact.get(id(one.posterior)) or _risks([one.posterior], subset, loss, request, drawing, least)[0]
        tests = min(request.draws, _TEST_DRAWS)
        on_test = gibbs_risk(one.posterior, subset.test, loss, tests, drawing, by_row=True).risk
        known = {name: value for name, value in made._asdict().items() if value is not None}
        for name, value in {**known, "kl": one.kl, "test_risk": on_test}.items():
            own = whose if value.dim() == 1 else whose.unsqueeze(1)
            found[name] = torch.where(own, value, found.get(name, torch.nan))
    nothing = torch.full_like(found["risk"], math.nan)
    return _Columns(**found, log_z=nothing, share=_shares(among, which), log_ratio=nothing)


def _one_drawn(
    among: list[Candidate],
    prior: Any,
    subset: BoundRows,
    loss: BoundedLoss,
    request: Request,
    noise: tuple[Noise, Noise],
) -> _Columns:
    """Choose a posterior for every client, draw one network from it, once, and take the risk and ln dQ/dP of that."""
    drawing, choosing = noise
    networks_of(prior, request.record.name)  # refuses what has no weights before it is tried
    which, _ = _chosen(among, subset, loss, request, choosing)
    drawn = draw(among, which, prior, request.record.name, drawing)
    risk = subset.repeats.risk(gibbs_losses(drawn.network, subset.rows, loss, 1, drawing).rows)
    on_test = gibbs_risk(drawn.network, subset.test, loss, 1, drawing).risk
    nothing = torch.full_like(risk, math.nan)
    numbers = (risk, drawn.kl, on_test, nothing, _shares(among, which), nothing, drawn.log_ratio, nothing)
    return _Columns(*numbers, network=drawn.weights)


def _shares(among: list[Candidate], which: Tensor) -> Tensor:
    return torch.tensor([one.share for one in among], dtype=torch.float64, device=which.device)[which]


def _chosen(
    among: list[Candidate], subset: BoundRows, loss: BoundedLoss, request: Request, choosing: Noise, least: int = 0
) -> tuple[Tensor, dict[int, _Risk]]:
    """Positions [k] of the candidates with the smallest bounds, by a few draws, and risks that need none, by `id`."""
    pilot = replace(request, draws=min(PILOT, request.draws))
    premises = Premises(subset.prior, True, request.premised(loss), tried=request.tried)
    own_rows = subset.repeats.n, subset.rows.size
    n, every = (count.to(among[0].kl.device).clamp_min(1) for count in own_rows)

    if len(among) == 1:
        return torch.zeros_like(n, dtype=torch.int64), {}
    posteriors = [one.posterior for one in among]
    if least >= _PILOTED * _ENOUGH and all(drawn_by_row(one, subset.rows, choosing) for one in posteriors):
        subset = subset._replace(rows=in_parts(subset.rows, _PILOTED)[0][0])  # whose moments take the time, not draws
        least //= _PILOTED
    tried = _risks(posteriors, subset, loss, pilot, choosing, least)
    risks = {id(one): made for one, made in zip(posteriors, tried, strict=True)}

    def bound(ones: Sequence[Candidate]) -> Tensor:  # at once, as if each were of further clients
        of_each = [risks[id(one.posterior)] for one in ones]
        risk, variance = (
            torch.cat(each) for each in zip(*((made.risk, made.variance) for made in of_each), strict=True)
        )
        kl = torch.cat([one.kl for one in ones]).nan_to_num(_FAR, _FAR)
        known = {
            "risk": risk.nan_to_num(loss.high if request.ranged else _FAR),
            "kl": kl,
            "log_ratio": kl,
        }  # which is the mean of it
        known |= {"variance": torch.minimum(variance, largest_variance(risk, loss)).nan_to_num(0.0)}
        known |= {"n": n.repeat(len(ones)), "beta": request.beta_for(every.double()).repeat(len(ones))}
        known |= request.stated(risk)
        value = request.record.certify(known, request.delta * request.shares[0], premises).value
        return value.view(len(ones), -1)

    exact = {id(one): risks[id(one)] for one in posteriors if _in_closed_form(one)}
    return choose(among, bound), exact


def _fewer(draws: int, least: int) -> int:
    """Draws of as many rows, at least, with hypotheses of their own: the more rows a client has the fewer."""
    return min(draws, -(-_ENOUGH * draws // max(1, least)))


def _parts(draws: int, least: int) -> int:
    """Parts of the rows for as many draws each, where one hypothesis serves all rows: the more rows the more parts."""
    return max((parts for parts in range(1, draws + 1) if not draws % parts and parts * _LOOKED_AT <= least), default=1)


def _risks(
    posteriors: Sequence[object],
    subset: BoundRows,
    loss: BoundedLoss,
    request: Request,
    drawing: Noise,
    least: int = 0,
) -> list[_Risk]:
    """Empirical Gibbs risks [k] on the rows that count, and variances where the bound needs them, by the same draws.

    `least` is the smallest number of rows of any client of the group where all rows of all count, else 0.
    """
    if any(_in_closed_form(one) for one in posteriors):
        return [_risk(one, subset, loss, request, drawing) for one in posteriors]
    repeats, rows, spread = subset.repeats, subset.rows, "variance" in request.record.needs
    plain, size = not bool(repeats.left_out.any()), _size(rows)
    if least and not spread and all(drawn_by_row(one, rows, drawing) for one in posteriors):
        draws = _fewer(request.draws, least)
        means = [gibbs_risk(one, rows, loss, draws, drawing, by_row=True).risk for one in posteriors]
        return [_Risk(risk, torch.full_like(risk, math.nan), draws * size) for risk in means]
    risks: list[list[Tensor]] = [[] for _ in posteriors]
    variances: list[list[Tensor]] = [[] for _ in posteriors]
    parts = 1 if spread else _parts(request.draws, least)
    for ones, weights in _each_draw(posteriors, rows, loss, request.draws, drawing, parts, by_row=not spread):
        for place, one in enumerate(ones):
            risks[place].append((one * weights).sum(1) if plain else repeats.risk(one))
            if spread:
                mean = risks[place][-1]
                squares = torch.where(rows.mask, one - mean.unsqueeze(1), 0.0).square().sum(1) / size
                variances[place].append(squares if plain else largest_variance(mean, loss))
    result = []
    for posterior, known, varied in zip(posteriors, risks, variances, strict=True):
        own = torch.stack(known, 1)
        nothing = torch.full_like(own[:, 0], math.nan)
        apart = bool(getattr(unwrapped(posterior), "rows_apart", False))  # no draw is a hypothesis that varies
        beside = torch.stack(varied, 1) if spread and not apart else None
        largest = torch.full_like(nothing, 0.25 * (loss.high - loss.low) ** 2) if spread else nothing
        result.append(_Risk(own.mean(1), largest if beside is None else beside.mean(1), nothing, own, beside))
    return result


def _each_draw(
    posteriors: Sequence[object],
    rows: ClientBatch,
    loss: BoundedLoss,
    draws: int,
    drawing: Noise,
    parts: int,
    by_row: bool,
) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
    """Yield losses of every draw, one tensor a posterior by the same noise, and weights of the rows it looks at.

    Every client is estimated by draws that are independent of each other; that clients have the same costs no bound
    anything, since those of several hold by a union or are of a draw's risk averaged over clients.
    """
    common = drawing.common()
    for place, (part, weights) in enumerate(in_parts(rows, parts)):
        noise = (common.fork(place) if parts > 1 else common).shared()
        each = [
            drawn_losses(cast(SampledPosterior, one), part, loss, draws // parts, noise.copy(), by_row)
            for one in posteriors
        ]
        yield from ((ones, weights) for ones in zip(*each, strict=True))


def _in_closed_form(posterior: object) -> bool:
    listed = isinstance(posterior, FunctionPosterior | FinitePosterior)
    return listed or not isinstance(posterior, SampledPosterior)


def _size(rows: ClientBatch) -> Tensor:
    return torch.where(rows.size > 0, rows.size, torch.nan).to(rows.x.device)


def _risk(posterior: object, subset: BoundRows, loss: BoundedLoss, request: Request, drawing: Noise) -> _Risk:
    """Exact Gibbs risk [k] on the rows that count, and its variance or more where the bound needs it."""
    repeats, rows = subset.repeats, subset.rows
    risk = repeats.risk(gibbs_losses(posterior, rows, loss, request.draws, drawing).rows)
    if "variance" not in request.record.needs:
        return _Risk(risk, *[torch.full_like(risk, math.nan)] * 2)
    largest = largest_variance(risk, loss)  # E_Q of a variance is at most E_Q of the mean square less L^(Q)^2
    squares = gibbs_losses(posterior, rows, squared(loss), request.draws, drawing).rows.sum(1) / _size(rows)
    plain = not bool(repeats.left_out.any())
    variance = torch.minimum(largest, (squares - risk.square()).clamp_min(0.0)) if plain else largest
    return _Risk(risk, variance, torch.full_like(risk, math.nan))


def _of_predictor(prior: Any, subset: BoundRows, loss: BoundedLoss, own: Tensor | None) -> _Columns:
    """Risks of the prior's predictions alone; what has no posterior can be measured too."""
    rows, test = subset.rows, subset.test
    if own is None:
        own = predicted_losses(prior, rows, loss)
    on_test = predicted_losses(prior, test, loss).sum(1) / torch.where(test.size > 0, test.size, torch.nan).to(own)
    nothing = torch.zeros_like(on_test)
    numbers = (subset.repeats.risk(own), nothing, on_test, nothing, nothing, nothing, nothing)
    return _Columns(*numbers, trials=torch.full_like(on_test, math.nan), losses=own)


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
