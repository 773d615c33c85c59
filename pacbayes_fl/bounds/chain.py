"""Recursive PAC-Bayes: a chain of posteriors, each the prior of the next, from which no rows are lost."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, Terms, certify
from pacbayes_fl.bounds.checks import ROUNDING, Number, checked, counts_errors, whole
from pacbayes_fl.bounds.client import confidence, in_units
from pacbayes_fl.bounds.costs import unit_of
from pacbayes_fl.bounds.kl_inverse import kl_inverse_upper
from pacbayes_fl.bounds.moment import log_moment
from pacbayes_fl.bounds.premises import Premises, as_premises, not_of_fixed
from pacbayes_fl.errors import AssumptionError, ShapeError

_SPLITS = 3
_INNER: Final = MappingProxyType({"shares": 2, "gammas": 1, "kls": 1, "counts": 1})


def recursive(
    risk: Number, shares: Tensor, gammas: Tensor, kls: Tensor, counts: Tensor, delta: Number, premises: Premises
) -> Certificate:
    """Bound the risk of the last of a chain of posteriors, each the prior of the next (Wu et al. 2024).

    L(Q_1) <= B_1 = kl^-1(L^(Q_1), (KL(Q_1 || P) + ln(T xi(n_1) / delta)) / n_1) for T posteriors,
    L(Q_t) <= B_t = gamma_t B_{t-1} - gamma_t + gamma_t k_1 + (1 - gamma_t) k_2 + gamma_t k_3,
    k_j = kl^-1(shares_tj, (KL(Q_t || Q_{t-1}) + ln(3 T xi(n_t) / delta)) / n_t)

    Rows come in T parts. Q_t has seen the first t of them, P none: n_1 counts all rows, and n_t those that Q_{t-1} has
    not seen, the parts t to T. What the first parts tell of Q_1 is not lost: it is in B_1. For every row that counts in
    step t one hypothesis h_i' is drawn from Q_{t-1}, once, whose error there is compared with those of h ~ Q_t.

    Why it holds: L(Q_t) = E [l(h, z) - gamma l(h', z)] + gamma L(Q_{t-1}) with independent h ~ Q_t and h' ~ Q_{t-1}.
    The excess F takes the values -gamma, 0, 1 - gamma and 1, so that E F = -gamma + gamma P[F >= 0] + (1 - gamma)
    P[F >= 1 - gamma] + gamma P[F >= 1]. Given the parts before t, Q_{t-1} is fixed and the pairs (z_i, h_i') are n_t
    independent draws, so that each probability has its own kl inverse with the prior Q_{t-1}. T bounds share delta, and
    within one of them three. (Split-kl of Wu and Seldin 2022, for discrete variables: Wu, Zhang, Cherief-Abdellatif and
    Seldin 2024, Recursive PAC-Bayes: a frequentist approach to sequential prior updates with no information loss.)

    When a step gains: B_t is linear in gamma_t, so that no gamma is better than the better one of 0, where it is k_2,
    Seeger's bound of Q_t alone with 3 T in the place of 1, and 1, where it is B_{t-1} + k_3 - (1 - k_1). As k_3 >= 1 -
    e^-nu, nu the nats over n_t, and 1 - k_1 <= s, the share of pairs that h has right and h_i' wrong, a step is below
    both B_{t-1} and k_2 only where s > 1 - e^-nu: where Q_t corrects more of the errors of Q_{t-1} than nu.

    Args:
        risk: empirical risk of Q_1 on all rows [] or [K].
        shares: of hypotheses h ~ Q_t and rows i with F >= 0, 1 - gamma, 1, for t = 2 to T [T - 1, 3] or [K, T - 1, 3]:
            all but h right and h_i' wrong; h wrong; h wrong and h_i' right.
        gammas: of t = 2 to T in [0, 1], fixed before the parts that count in their step [T - 1] or [K, T - 1].
        kls: KL(Q_t || Q_{t-1}), Q_0 = P [T] or [K, T], in nats.
        counts: n_t [T] or [K, T], which fall.
        delta: probability with which it may fail, [] or [K].
        premises: of the prior P, the rows and the loss, which is the 0-1 loss.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when a number is out of range, shares rise with the value that losses exceed, or a later
            posterior has more rows than one before.
        ShapeError: when the steps are not as many in all of them.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import Premises, Provenance, recursive, seeger
        >>> premises, kl = Premises(Provenance("data-free"), independent=True), torch.tensor([5.0])
        >>> chain = recursive(0.1, torch.zeros(0, 3), torch.zeros(0), kl, torch.tensor([1000.0]), 0.05, premises)
        >>> same = seeger(0.1, kl, 1000, 0.05, premises)  # of a chain of one posterior
        >>> round(chain.value.item(), 4), round(same.value.item(), 4)
        (0.152, 0.152)
    """
    if as_premises(premises).average != "client":
        raise AssumptionError(f"a chain is one client's, not one of {premises.average!r}")
    low, high = premises.loss.low, premises.loss.high
    terms = {
        "risk": checked("risk", risk, low, high),
        "shares": checked("shares", shares, 0.0, 1.0),
        "gammas": checked("gammas", gammas, 0.0, 1.0),
        "kls": checked("kls", kls, 0.0),
        "counts": whole("counts", counts),
    }
    steps = terms["kls"].shape[-1:]
    sizes = (terms["counts"].shape[-1:], terms["shares"].shape[-2:], terms["gammas"].shape[-1:])
    if not steps or sizes != (steps, (steps[0] - 1, _SPLITS), (steps[0] - 1,)):
        what = ", ".join(f"{name} {list(terms[name].shape)}" for name in ("kls", "counts", "shares", "gammas"))
        raise ShapeError(
            f"a chain of T posteriors has kls and counts [T], shares [T - 1, 3], gammas [T - 1], got {what}"
        )
    if bool((rises := (terms["shares"].diff(dim=-1) > ROUNDING).any(-1)).any()):
        got = terms["shares"][rises][0].tolist()
        what = f"shares must be those of F >= value by value, which cannot rise with it, got {got}"
        raise AssumptionError(what, hint="shares of F = value are added up from the last one")
    if bool((terms["counts"].diff(dim=-1) > 0).any()):
        raise AssumptionError(f"counts must not grow along the chain, got {terms['counts'].tolist()}")
    reasons = not_of_fixed(premises)
    if not counts_errors(premises.loss):
        reasons = (*reasons, f"errors are compared, and {premises.loss.name} is no 0-1 loss")
    return certify("recursive PAC-Bayes, split-kl", _recursive, terms, delta, premises, reasons=reasons, inner=_INNER)


def _recursive(terms: Terms) -> dict[str, Tensor]:
    kls, counts, gammas = terms["kls"], terms["counts"], terms["gammas"]
    sure = confidence({**terms, "n": counts[..., 0]}).unsqueeze(-1)
    nats = kls + log_moment(counts) + sure + torch.full_like(kls, float(kls.shape[-1])).log()
    bound = kl_inverse_upper(unit_of(terms["risk"], terms), nats[..., 0] / counts[..., 0])
    split = (nats[..., 1:] + torch.full_like(gammas, float(_SPLITS)).log()) / counts[..., 1:]
    tails = kl_inverse_upper(terms["shares"], split.unsqueeze(-1))
    steps = torch.stack((gammas, 1.0 - gammas, gammas), -1)
    excess = (steps * tails).sum(-1) - gammas
    for t in range(gammas.shape[-1]):
        bound = (gammas[..., t] * bound + excess[..., t]).clamp_max(1.0)
    return {"bound": in_units(bound, terms)}


RECURSIVE = Bound(
    name="recursive",
    function=recursive,
    formula=_recursive,
    needs=("risk", "shares", "gammas", "kls", "counts"),
    poolable=False,
    world="chains",
    unmeasured="it is below 'seeger' only where a posterior corrects more errors of its prior than nu = nats / n of all"
    " rows, which clients of a run do not have; of a chain of your own: bounds.recursive in Python",
)
