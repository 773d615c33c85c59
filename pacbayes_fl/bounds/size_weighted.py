"""One bound for the pooled rows of clients that are not alike, each with a posterior and a prior of its own."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo
from pacbayes_fl.bounds.checks import Number, checked, whole
from pacbayes_fl.bounds.client import SEEGER
from pacbayes_fl.bounds.premises import Premises
from pacbayes_fl.errors import AssumptionError


def size_weighted(
    risk: Tensor,
    kl: Tensor,
    n: Tensor,
    delta: Number,
    premises: Premises,
    *,
    bound: Bound = SEEGER,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Bound the risk averaged over clients by their rows, each with a posterior and a prior of its own.

    L = sum_i n_i L^_i / N,  KL = sum_i KL(Q_i || P_i),  N = sum_i n_i

    The hypothesis is the tuple of the clients' hypotheses, its posterior and its prior are products, and its empirical
    risk is an average of N independent losses that are not alike: these have no larger E exp(N kl(L^ || L)) than N
    that are (Hoeffding 1956, Theorem 3). One draw of the tuple, a hypothesis a client, is one draw of `monte_carlo`;
    where every row has one of its own, the trials of all clients together are its trials.

    Args:
        risk: empirical risks [K], in the unit of the loss.
        kl: [K], in nats.
        n: rows [K].
        delta: probability with which it may fail, [] or [K].
        premises: of every client.
        bound: one that is `poolable`.
        monte_carlo: how the risks were estimated, if they were.

    Returns:
        The certificate of the average, [].

    Raises:
        AssumptionError: when the bound does not hold at pooled rows, or no number can be formed.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import Premises, Provenance, size_weighted
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> risk, kl, n = torch.tensor([0.1, 0.2]), torch.tensor([3.0, 5.0]), torch.tensor([200.0, 400.0])
        >>> round(size_weighted(risk, kl, n, 0.05, premises).value.item(), 4)
        0.2583
    """
    if not bound.poolable:
        what = f"the bound {bound.name!r} does not hold at pooled rows of clients that are not alike"
        raise AssumptionError(what, hint="one whose record says poolable, such as 'seeger'")
    loss, rows = premises.loss, whole("n", n)
    average = (checked("risk", risk, loss.low, loss.high) * rows).sum() / rows.sum()
    divergence = checked("kl", kl, 0.0).sum()
    together = replace(premises, average="size-weighted clients")
    numbers = {"risk": average, "kl": divergence, "n": rows.sum()}
    return bound.certify(numbers, delta, together, monte_carlo)
