"""Laws of every rule that joins clients' steps, for the tests of rules of one's own: `check_aggregation`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import kinds_checked
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.server import robust
from pacbayes_fl.server.aggregations import MULTIPLE, AggregationRule, Rule
from pacbayes_fl.testing import laws
from pacbayes_fl.testing.check import require_kept, require_known
from pacbayes_fl.testing.scene import Scene, assert_close, played, require, strangers_of

_CLOSE: Final = 1e-9
_SIZES: Final = ((1, 1), (2, 3), (3, 1), (4, 5), (7, 2), (12, 4))  # clients and coordinates
_FAR: Final = (1e6, 1e12)
_MOST: Final = 100.0  # times the longest honest step, by which no bounded rule moves

AggregationLaw = Callable[[AggregationRule], None]


@kinds_checked
def check_aggregation(rule: AggregationRule, *, without: Collection[str] = ()) -> None:
    """Check that a rule which joins clients' steps keeps all laws: call it in a test of your own.

    It gives a step of the server, finite, of however few clients ("step"), whatever their order ("permutation") and
    what it was called with before ("repeats"), and by the weights' proportions alone ("weights"). Where its record says
    that it is robust, f clients move it by no more than a bounded amount ("faulty"). A federation that uses it is
    repeatable, goes on as if never interrupted, and does not depend on how clients are called ("rounds"); over a
    network it is the same bit by bit ("remote").

    Args:
        rule: the record, of the table or of one's own.
        without: names of laws that the rule does not claim to keep.

    Raises:
        LawError: naming every law that is broken, and how; an AssertionError.
        StudyError: when a name in `without` is no law.

    Example:
        >>> from pacbayes_fl.server.aggregations import AggregationRule
        >>> from pacbayes_fl.testing import check_aggregation
        >>> def half(steps, weight, faulty):
        ...     return 0.5 * (weight / weight.sum()) @ steps
        >>> check_aggregation(AggregationRule("half", "half of the mean", half))
    """
    require_known(without, AGGREGATION_LAWS)
    require_kept(rule.name, rule, AGGREGATION_LAWS, without)


def _steps(clients: int, coordinates: int, seed: int = 0) -> Tensor:
    """Draw steps [n, D] about one that is not 0."""
    random = np.random.default_rng((seed, clients, coordinates))
    return torch.from_numpy(random.normal(size=(clients, coordinates)) + 2.0)


def _weights(rule: AggregationRule, clients: int) -> Tensor:
    """Give weights that the rule may be called with [n]."""
    alike = torch.ones(clients, dtype=torch.float64)
    return 1.0 + torch.arange(clients, dtype=torch.float64) if rule.weighted else alike


def _cases(rule: AggregationRule) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield steps [n, D] and weights [n]: any, such as are all alike, and none but zeros."""
    for clients, coordinates in _SIZES:
        any_steps, weight = _steps(clients, coordinates), _weights(rule, clients)
        yield from ((any_steps, weight), (any_steps[:1].expand(clients, -1), weight), (0.0 * any_steps, weight))


def _joined(rule: AggregationRule, steps: Tensor, weight: Tensor, faulty: int, known: tuple[float, ...] = ()) -> Tensor:
    """Join steps [n, D] as a round does: checked to be a step [D] of finite numbers."""
    applied = Rule.of(rule, faulty if rule.robust else 0, MULTIPLE, steps, weight, known)
    result: Tensor = applied(steps, weight)
    return result


def _same(one: Tensor, other: Tensor, what: str) -> None:
    """Compare steps [D]: 1e-9, relative and absolute."""
    alike = torch.allclose(one, other, rtol=_CLOSE, atol=_CLOSE)
    require(alike, f"{what}, {one.tolist()} and not {other.tolist()}")


def step(rule: AggregationRule) -> None:
    """Check that a step of the server comes of any clients: as many numbers as theirs have, finite.

    Args:
        rule: any.
    """
    for steps, weight in _cases(rule):
        for faulty in (0, 1, 2):
            result = _joined(rule, steps, weight, faulty)
            require(bool(result.isfinite().all()), f"of {len(steps)} clients come numbers that are not finite")


def permutation(rule: AggregationRule) -> None:
    """Check that the order of clients changes nothing: 1e-9, relative.

    Args:
        rule: any.
    """
    for steps, weight in _cases(rule):
        expected = _joined(rule, steps, weight, 1)
        for seed in range(3):
            order = torch.from_numpy(np.random.default_rng(seed).permutation(len(steps)))
            moved = _joined(rule, steps[order], weight[order], 1)
            _same(moved, expected, f"in the order {order.tolist()} {len(steps)} clients come to another step")


def repeats(rule: AggregationRule) -> None:
    """Check that equal steps have the equal aggregate, whatever was joined between, and that nothing is drawn.

    Args:
        rule: any.
    """
    before = torch.random.get_rng_state()
    every = [*_cases(rule)]
    first = [_joined(rule, *one, 1) for one in every]
    again = [_joined(rule, *one, 1) for one in reversed(every)][::-1]
    for one, other in zip(first, again, strict=True):
        require(torch.equal(one, other), f"the same steps come to {one.tolist()} and then to {other.tolist()}")
    require(torch.equal(before, torch.random.get_rng_state()), "it draws from the global generator of torch")


def weights(rule: AggregationRule) -> None:
    """Check that a common factor of all weights changes nothing: they may count rows, or clients: 1e-9, relative.

    Args:
        rule: any.
    """
    for steps, weight in _cases(rule):
        expected = _joined(rule, steps, weight, 1)
        for factor in (1e-3, 250.0):
            moved = _joined(rule, steps, factor * weight, 1)
            _same(moved, expected, f"weights times {factor:g} come to another step")


def faulty(rule: AggregationRule) -> None:
    """Check that f clients move a robust rule by a bounded amount, however far they go; others promise nothing.

    Args:
        rule: any.
    """
    if not rule.robust:
        return
    for f in (1, 2):
        n = max(rule.needs(f), f + 1)
        honest = _steps(n - f, 3, seed=1)
        longest = float(robust.norms(honest).max())
        known = (float(robust.norms(honest).median()),) * robust.WINDOW  # of the rounds before, which were clean
        for far in _FAR:
            for way in (1.0, -1.0):
                lies = way * far * (1.0 + 0.01 * _steps(f, 3, seed=2))
                result = _joined(rule, torch.cat((lies, honest)), torch.ones(n, dtype=torch.float64), f, known)
                length = float(robust.norms(result.unsqueeze(0)))
                what = f"{f} of {n} clients with steps of {way * far:g} take it to {length:.3g}, where those of honest"
                require(length <= _MOST * longest, f"{what} clients are at most {longest:.3g} long")


def _scene(rule: AggregationRule) -> Scene:
    """Play two rounds of FedAvg under a rule, with as many clients as it needs, and none of them faulty."""
    clients = max(5, rule.needs(0))
    random = np.random.default_rng(clients)
    rows = [torch.from_numpy(random.normal(size=(3 + k % 5, 3))) for k in range(clients)]
    batch = ClientBatch.pad([(one[:, :2], torch.sin(one[:, 0]) + 0.3 * one[:, 2]) for one in rows])
    network = BayesianMLP((2, 3, 1), Gaussian(), torch.float64)
    method = FedAvg(network, weighting="rows" if rule.weighted else "uniform")
    plan = FederationPlan(rounds=2, seed=3, aggregate=rule, faulty=0 if rule.robust else None)
    return played(method, batch, strangers_of(batch), plan)


def rounds(rule: AggregationRule) -> None:
    """Check that a federation is repeatable, goes on after a stop, and is the same however clients are called.

    Args:
        rule: any.
    """
    s = _scene(rule)
    laws.seed(s)
    laws.resume(s)
    plan = replace(s.plan, rounds=3)

    def third(batch: ClientBatch, clients: object, plan: FederationPlan) -> object:
        ((_, state),) = engine.rounds(s.method, batch, plan, FederationState(s.server, clients, 2))
        return state.server

    expected = third(s.batch, s.clients, plan)
    order = torch.arange(s.batch.clients).flip(0)
    assert_close(third(s.batch, s.clients, replace(plan, chunk=1)), expected)
    assert_close(third(s.batch.select(order), tensors.select(s.clients, order), plan), expected)


def remote(rule: AggregationRule) -> None:
    """Check that rounds over a network, client by client, are those of one device bit by bit.

    Args:
        rule: any.
    """
    s = _scene(rule)
    fewest = max(3, rule.needs(0))
    laws.remote(s, clients=fewest, cohort=fewest)


AGGREGATION_LAWS: Final[Mapping[str, AggregationLaw]] = MappingProxyType(
    {law.__name__: law for law in (step, permutation, repeats, weights, faulty, rounds, remote)}
)
"""Every law of a rule by name; one is broken where it raises anything."""
