"""Free energies of clients: inputs of bounds on averages, and their common terms."""

from __future__ import annotations

import torch
from torch import Tensor

from pacbayes_fl.bounds.certificate import Terms
from pacbayes_fl.bounds.checks import Number, as_numbers, checked
from pacbayes_fl.bounds.costs import monte_carlo_risk
from pacbayes_fl.bounds.premises import Premises, as_premises
from pacbayes_fl.errors import AssumptionError, ShapeError

GIBBS_ONLY = "the free energies must be those of the exact Gibbs posterior of the same loss, beta and rows"
"""Reason of a certificate whose proof needs exact Gibbs posteriors."""

_IN_RANGE = (
    "a free energy must never leave the loss's range, as that of the exact Gibbs posterior and of one that gives way to"
    " the prior where it is worse never does (posterior = 'exact Gibbs' or 'no worse than the prior')"
)


def free_energies(free_energy: Number, premises: Premises, *, bounded: bool = False) -> Tensor:
    """Take free energies [*, K] as float64: at least a, and at most b for posteriors that are no worse than the prior.

    Raises:
        AssumptionError: when one is outside of that range or not finite.
        ShapeError: when they are not one a client.
    """
    loss = as_premises(premises).loss
    high = loss.high if bounded or premises.posterior != "any" else float("inf")
    numbers = checked("free_energy", free_energy, loss.low, high)
    if numbers.dim() == 0 or numbers.shape[-1] == 0:
        raise ShapeError(f"free_energy must be one number a client [*, K], got {list(numbers.shape)}")
    return numbers


def by_client(name: str, value: Number, clients: Tensor, low: float, *, strict: bool = False) -> Tensor:
    """Take one number, or one a client, of at least `low`.

    Args:
        name: for the error.
        value: [] or [K].
        clients: any numbers of the clients [*, K].
        low: smallest value.
        strict: whether the smallest value itself is refused.

    Returns:
        [K], float64.

    Raises:
        AssumptionError: when one is too small or not finite.
        ShapeError: when they are neither one number nor one a client.
    """
    numbers, count = checked(name, value, low, strict=strict), clients.shape[-1]
    if numbers.dim() > 1 or (numbers.dim() == 1 and len(numbers) != count):
        raise ShapeError(f"{name} must be one number [] or one a client [{count}], got {list(numbers.shape)}")
    return numbers.to(clients.device).expand(count)


def one_beta(beta: Number, clients: Tensor) -> Tensor:
    """Take the beta [] that all clients have.

    Args:
        beta: [] or [K].
        clients: any numbers of the clients [*, K].

    Returns:
        [], float64.

    Raises:
        AssumptionError: when they have several.
        ShapeError: when they are neither one number nor one a client.
    """
    numbers = by_client("beta", beta, clients, 0.0, strict=True)
    if bool((numbers != numbers[0]).any()):
        raise AssumptionError(
            f"beta must be the same for all clients, got {numbers.min().item():g} to {numbers.max().item():g}",
            hint="one number for all clients",
        )
    return numbers[0]


def finite_divergence(kl: Number) -> Tensor:
    """Take the divergence [*] of a hyper-posterior, in nats.

    Raises:
        AssumptionError: when it is negative or infinite.
    """
    if bool(as_numbers("kl", kl).isposinf().any()):
        raise AssumptionError(
            "kl must be finite, got inf: the divergence of atoms, such as SVGD's particles, from a density",
            hint="blur them: posteriors.hyper_posterior.SmoothedHyperPosterior",
        )
    return checked("kl", kl, 0.0)


def gibbs_only(premises: Premises) -> tuple[str, ...]:
    """Reason against a bound on exact Gibbs posteriors, if there is one."""
    return () if premises.posterior == "exact Gibbs" else (GIBBS_ONLY,)


def in_range(premises: Premises) -> tuple[str, ...]:
    """Reason against a bound whose free energies must lie in the loss's range, if there is one."""
    return () if premises.posterior != "any" else (_IN_RANGE,)


def drawn_alike(premises: Premises) -> tuple[str, ...]:
    """Reason against a bound on new clients, if there is one."""
    if premises.drawn_clients:
        return ()
    return ("clients, seen and new, were not declared independent draws of one distribution (drawn_clients)",)


def average_energy(terms: Terms, weights: Tensor | float) -> Tensor:
    """Average free energy plus the cost of its estimation: it lies in [a, b] for every prior drawn.

    Args:
        terms: of a certificate, with "free_energy" [*, K].
        weights: of the clients [K], which sum to 1, or one for all.

    Returns:
        [*], in the unit of the loss.
    """
    mean = (weights * terms["free_energy"]).sum(-1)
    if "mc_draws" not in terms:
        return mean
    width = terms["high"] - terms["low"]
    unit = ((mean - terms["low"]) / width).clamp(0.0, 1.0)
    return terms["low"] + width * monte_carlo_risk(unit, terms["mc_draws"], terms["mc_delta"])


def n_clients(terms: Terms) -> int:
    """Count the clients behind the free energies."""
    return terms["free_energy"].shape[-1]


def eighth(terms: Terms) -> Tensor:
    """R^2 / 8 of Hoeffding's lemma []."""
    return (terms["high"] - terms["low"]).square() / 8.0


def catoni_inverse(energy: Tensor, rate: Tensor, terms: Terms) -> Tensor:
    """Take C_r^-1 in the unit of the loss: the risk that a free energy allows.

    a + R (1 - e^(-r x)) / (1 - e^-r),  x = (energy - a) / R,  r = R rate

    Args:
        energy: [*], in the unit of the loss.
        rate: beta / m [] or [*], in 1 / unit of the loss.
        terms: with "low" and "high" of the loss.

    Returns:
        [*], in the unit of the loss; b where the energy is above, which says nothing, however few the rows are.
    """
    width = terms["high"] - terms["low"]
    inside = torch.minimum(energy, terms["high"]) - terms["low"]
    return terms["low"] + width * torch.expm1(-rate * inside) / torch.expm1(-rate * width)
