"""Inputs of bounds on single clients: risks, divergences and normalisers of a run's posteriors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pacbayes_fl import bounds
from pacbayes_fl.bounds import BoundedLoss
from pacbayes_fl.bounds.risk import finite_losses, finite_risks, gibbs_losses, gibbs_risk
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.certificates.rows import BoundRows
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.federation import personalisation
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import FinitePosterior
from pacbayes_fl.study.run import Trained

OnClients = Callable[[int], None]
Made = TypeVar("Made")


_STREAMS = (2**32 - 4, 2**32 - 3)  # rounds of the noise that refines posteriors, and draws from them: no run gets there

_TEST_DRAWS = 30  # of a risk that is shown and bounds nothing


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
    """

    risk: Tensor
    kl: Tensor
    n: Tensor
    test_risk: Tensor
    test_rows: Tensor
    log_z: Tensor | None
    draws: int | None
    rows: Tensor

    def select(self, wanted: Tensor) -> Measured:
        """Take some clients.

        Args:
            wanted: bool [K].

        Returns:
            Their numbers.
        """
        return Measured(
            self.risk[wanted],
            self.kl[wanted],
            self.n[wanted],
            self.test_risk[wanted],
            self.test_rows[wanted],
            None if self.log_z is None else self.log_z[wanted],
            self.draws,
            self.rows[wanted],
        )


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


def measure(trained: Trained, group: BoundRows, loss: BoundedLoss, request: Request, on_clients: OnClients) -> Measured:
    """Compute the inputs of a bound.

    Args:
        trained: the run.
        group: rows of the clients.
        loss: whose risk is bounded.
        request: gives the draws, and beta of an exact Gibbs posterior.
        on_clients: called with the number of clients that were done in one go.

    Returns:
        The numbers of all clients, in their order.
    """
    plan, clients = trained.study.plan, group.rows.clients
    exact = request.record.posterior == "exact Gibbs"
    columns = [torch.full((clients,), math.nan, dtype=torch.float64, device=group.rows.x.device) for _ in range(4)]
    draws: int | None = None
    rows = group.rows.size.to(group.rows.x.device)

    def work(prior: object, subset: BoundRows) -> tuple[tuple[Tensor, ...], int | None]:
        refining, drawing = (
            Noise(plan.seed, stream, subset.rows.ids, subset.rows.x.device, plan.noise) for stream in _STREAMS
        )
        if exact:
            return _exact_gibbs(prior, subset, loss, request), None
        posterior, kl = trained.method.refine(prior, subset.seen, subset.rows, refining)
        personalisation.warn_of(posterior)
        on_rows = gibbs_losses(posterior, subset.rows, loss, request.draws, drawing)
        on_test = gibbs_risk(posterior, subset.test, loss, min(request.draws, _TEST_DRAWS), drawing)
        values = subset.repeats.risk(on_rows.rows), kl, on_test.risk, torch.full_like(kl, math.nan)
        return values, on_rows.draws

    for index, (values, draws_of) in with_priors(trained, group, work):
        draws = draws_of
        for column, value in zip(columns, values, strict=True):
            column[index] = value.double()
        on_clients(len(index))
    risk, kl, test_risk, log_z = (column.cpu() for column in columns)
    counts = group.repeats.n, group.test.size.cpu()
    return Measured(risk, kl, counts[0], test_risk, counts[1], log_z if exact else None, draws, rows.cpu())


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
