"""One bound for the pooled rows of clients that are not alike, each with a posterior and a prior of its own."""

from __future__ import annotations

from dataclasses import replace

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo
from pacbayes_fl.bounds.checks import Number, checked, require_alike, whole
from pacbayes_fl.bounds.client import SEEGER
from pacbayes_fl.bounds.premises import Premises, as_premises
from pacbayes_fl.errors import AssumptionError, ShapeError


def size_weighted(
    risk: Number,
    kl: Number,
    n: Number,
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
        risk: empirical risks [] or [K], in the unit of the loss; one number is that of each of the K clients.
        kl: of each client from its own prior [] or [K], in nats.
        n: rows of each client [] or [K].
        delta: probability with which it may fail, [] or [K].
        premises: of every client.
        bound: one that is `poolable`.
        monte_carlo: how the risks were estimated, if they were.

    Returns:
        The certificate of the average, [].

    Raises:
        AssumptionError: when the bound does not hold at pooled rows, or no number can be formed.
        ShapeError: when none of risk, kl and n says how many clients there are, two disagree, or the draws are those of
            clients.

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
    loss = as_premises(premises).loss
    each = {"risk": checked("risk", risk, loss.low, loss.high), "kl": checked("kl", kl, 0.0), "n": whole("n", n)}
    clients = require_alike(each)
    if len(clients) != 1:
        what = f"risk, kl and n must be of K clients, at least one of them [K], got {list(clients)}"
        raise ShapeError(what, hint="one client's bound is the function itself, such as `seeger`")
    if monte_carlo is not None and monte_carlo.risks is not None and monte_carlo.risks.dim() > 1:
        what = f"the risks of draws must be those of the average [M], got {list(monte_carlo.risks.shape)}"
        raise ShapeError(what, hint="average every draw over the clients by their rows")
    rows, divergence = each["n"].expand(clients), each["kl"].expand(clients).sum()
    average = (each["risk"] * rows).sum() / rows.sum()
    together = replace(premises, average="size-weighted clients")
    numbers = {"risk": average, "kl": divergence, "n": rows.sum()}
    return bound.certify(numbers, delta, together, monte_carlo)
