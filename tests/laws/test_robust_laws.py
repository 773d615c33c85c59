"""Laws of robust aggregates, for every method that takes steps: one client's update decides nothing for the others."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import NumericalError, StudyError
from pacbayes_fl.federation import engine, federation_state, personalisation
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.baselines.mtl import MTL
from pacbayes_fl.methods.pac_pfl.folds import CrossFitted
from pacbayes_fl.methods.tempered import Tempered
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.options import options_of
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.server.aggregations import AGGREGATIONS, AggregationRule, Rule
from tests.laws.cases import (
    VARIATIONAL,
    Case,
    assert_close,
    bits,
    federation,
    from_recipe,
    identified,
    labels_only,
    scene,
)

pytestmark = pytest.mark.law

CLIENTS, WHO, ROUNDS = 8, 3, 6
FACTOR = 1.5
"""Of the clean run's error, that honest clients' error stays within under every robust choice."""

OWN = "tests.user_objects:WITHOUT_FARTHEST"
ROBUST = (*(name for name, rule in AGGREGATIONS.known.items() if rule.robust), OWN)
QUICK: dict[str, Any] = {"steps": 8, "rate": 0.05, "prior_rate": 0.05, "minibatch": 10, "particles": 2}


def case_of(name: str, **options: Any) -> Case:
    """Return a method of the table with options under which any aggregate may join its steps."""
    recipe = METHODS[name]
    own: dict[str, Any] = {"weighting": "uniform"} if recipe.model == "weights" and name != "pac-pfl-bnn" else {}
    own |= {"start": "random", "clusters": 1} if "start" in options_of(recipe.options) else {}
    build = partial(from_recipe, recipe, options=own | options)
    return Case(f"{name}{options or ''}", build, labelled=labels_only(recipe))


def quick(name: str, **options: Any) -> Case:
    """Return it with a network that learns much in few rounds."""
    more = {"steps": 24} if name.startswith("fed") or name == "pbb" else {}  # cheap steps, and narrow first posteriors
    more |= {"rate": 0.01} if name == "fedem" else {}  # plain descent: at a larger one a wrong centre throws all
    case = case_of(name, **QUICK | more | options)
    model = wide if METHODS[name].model == "weights" else None
    return Case(f"{name}{options or ''}", partial(case.build, model=model))


def wide(d: int) -> BayesianMLP:
    return BayesianMLP((d, 8, 1), Gaussian(), torch.float64)


def cross_fitted(clients: int, d: int) -> CrossFitted:
    ids = ClientBatch.pad([(torch.zeros(1, d), torch.zeros(1))] * clients).ids
    return CrossFitted(quick("pac-pfl").build(d), 3, {client: k % 3 for k, client in enumerate(ids)})


def steps(name: str) -> bool:
    """Say whether a method of the table has steps to join."""
    try:
        case_of(name).build(1).check_robust(AGGREGATIONS["median"])
    except StudyError:
        return False
    return True


STEPPING = tuple(filter(steps, METHODS))
ATTACKED = (
    *(quick(name) for name in STEPPING if not labels_only(METHODS[name])),  # the clients below have numbers
    quick("pac-pfl", optimiser="ascent", rate=1e-3),
    quick("bpfed", aggregation="tracked-moments"),
    quick("fedsi", upload="curvature"),
    quick("cfedbayes", clusters=2),
    Case("cross-fitted", partial(cross_fitted, CLIENTS)),
)
CASES = (
    *map(case_of, STEPPING),
    case_of("pac-pfl", cohort_scale="mean", minibatch=4, optimiser="ascent"),
    *(case_of(name, aggregation="moments", beta=0.8) for name in VARIATIONAL),
    case_of("sfedbayes", inclusion=0.31, threshold=0.3),
    case_of("sfedbayes", slab_average="uniform", aggregation="moments"),
    case_of("bpfed", upload="tracked"),
    case_of("fedsi", upload="curvature"),
    case_of("cfedbayes", clusters=2),
    Case("cross-fitted", partial(cross_fitted, 5)),
)


EVERY_RULE = ("pac-pfl", "pac-pfl-bnn", "pfedbayes", "fedsi", "fedavg", "cross-fitted")
"""One form of each kind of step meets every rule; the others, whose steps are of one of these kinds, one in turn."""


def under(cases: tuple[Case, ...], rules: Sequence[Any], turns: Sequence[Any] | None = None) -> list[tuple[Case, Any]]:
    pairs = []
    for i, case in enumerate(cases):
        turn = (turns or rules)[i % len(turns or rules)]
        pairs += [(case, rule) for rule in (rules if case.name in EVERY_RULE else (turn,))]
    return pairs


# which methods there are -------------------------------------------------------------------------------------------


def test_every_method_has_steps_to_join_or_is_refused_by_name() -> None:
    assert {"pac-pfl", "pac-pfl-bnn", "pfedbayes", "cfedbayes", "bpfed", "fedsi", "fedavg"} < set(STEPPING)
    refused = {}
    for name in METHODS.keys() - set(STEPPING):
        method = Case(name, partial(from_recipe, METHODS[name])).build(1)
        with pytest.raises(StudyError, match=r"'median' joins clients' steps, and those of \w+ send") as caught:
            next(engine.rounds(method, federation(1), plan_of("median")))
        refused[name] = "their rows" in str(caught.value)
    assert refused == {name: not METHODS[name].federated for name in refused} and len(refused) >= 6


@pytest.mark.parametrize("kind", [name for name, rule in AGGREGATIONS.known.items() if not rule.weighted])
@pytest.mark.parametrize("name", ["fedavg", "pfedbayes", "sfedbayes", "cfedbayes", "bpfed", "fedsi"])
def test_rules_without_weights_ask_for_clients_that_weigh_alike(kind: str, name: str) -> None:
    method = case_of(name, weighting="rows").build(1)
    with pytest.raises(StudyError, match=r"counts every client once, and weighting = 'rows'.*method.weighting"):
        method.check_robust(AGGREGATIONS[kind])
    method.check_robust(AGGREGATIONS["clipped"])
    method.check_robust(AGGREGATIONS["geometric-median"])


def test_clusters_that_single_clients_found_are_refused() -> None:
    method = case_of("cfedbayes", start="uploads").build(1)
    with pytest.raises(StudyError, match=r"start = 'uploads' lets one client found a cluster.*method.start = 'random'"):
        next(engine.rounds(method, federation(1), plan_of("clipped")))


# what the rules are applied to --------------------------------------------------------------------------------------


class Plain(Rule):
    """The mean in the place of a rule."""

    def __call__(self, steps: Any, weight: Tensor) -> Any:
        return tensors.weighted_mean(steps, weight)


@pytest.mark.parametrize(
    "case",
    [*CASES, *(case_of(name, weighting="rows") for name in ("pfedbayes", "sfedbayes", "cfedbayes", "fedsi", "fedavg"))],
    ids=str,
)
def test_with_the_mean_for_a_rule_a_round_is_the_plain_one_and_tells_the_same(case: Case) -> None:
    s = scene(case, 1)
    update, _ = s.method.client(s.message, s.clients, s.batch, s.noise(s.batch.ids))
    joined = s.method.aggregated(s.message, update, Plain(AGGREGATIONS["median"], 0))
    plain = s.method.server(s.server, update, s.batch.clients)
    server = s.method.server(s.server, joined, s.batch.clients)
    assert_close(identified(s.method, server), identified(s.method, plain), 1e-9)
    told, expected = s.method.report(server, joined), s.method.report(plain, update)
    assert {n: float(v) for n, v in told.items()} == pytest.approx({n: float(v) for n, v in expected.items()}, rel=1e-9)


@pytest.mark.parametrize(("case", "kind"), under(CASES, ("clipped", "trimmed", "multi-krum")), ids=str)
def test_neither_chunks_nor_the_order_of_clients_nor_a_temperature_change_a_round(case: Case, kind: str) -> None:
    s = scene(case, 1)
    plan = FederationPlan(rounds=3, seed=s.plan.seed, aggregate=kind)

    def third(method: Any, batch: ClientBatch, clients: Any, plan: FederationPlan) -> tuple[RoundRecord, Any]:
        ((record, after),) = engine.rounds(method, batch, plan, FederationState(s.server, clients, 2))
        return record, identified(s.method, after.server)

    if s.method.fewest_joined(5) < AGGREGATIONS[kind].needs(1):
        with pytest.raises(StudyError, match="faulty needs 5 clients in a round, got 3"):
            third(s.method, s.batch, s.clients, plan)
        return
    record, server = third(s.method, s.batch, s.clients, plan)
    order = torch.tensor([3, 0, 4, 2, 1])
    others = [
        third(s.method, s.batch, s.clients, replace(plan, chunk=1)),
        third(s.method, s.batch.select(order), tensors.select(s.clients, order), plan),
        third(Tempered(s.method, 2.0), s.batch, s.clients, plan),
    ]
    for told, other in others:
        assert_close(other, server, 1e-8)
        assert record.steps is not None and told.steps is not None and told.steps.whose == record.steps.whose
        assert told.values.get("clipped") == record.values.get("clipped")


# one client against the others --------------------------------------------------------------------------------------


OFFSETS = 0.4 * torch.randn(CLIENTS, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def true(x: Tensor, k: int) -> Tensor:
    """Return what a client is to learn: a line for all, a little higher or lower."""
    return 1.5 * x - 0.5 + OFFSETS[k]


def neighbours() -> ClientBatch:
    random = np.random.default_rng(5)
    rows = []
    for k in range(CLIENTS):
        x = torch.tensor(random.uniform(-1.5, 1.5, size=10))
        rows.append((x.unsqueeze(1), true(x, k) + torch.tensor(0.3 * random.normal(size=10))))
    return ClientBatch.pad(rows)


BATCH = neighbours()
OFFENDER = BATCH.names[WHO]
HONEST = [k for k in range(CLIENTS) if k != WHO]


def multiplied(factor: float) -> Callable[[str, Tensor], Tensor]:
    """Return what makes a client send numbers times a factor, of its right weight."""

    def sent(name: str, leaf: Tensor) -> Tensor:
        own = name.split(".")[-1] in ("weight", "clients") or not leaf.is_floating_point()
        return leaf if own else factor * leaf

    return sent


def weighing(weight: float) -> Callable[[str, Tensor], Tensor]:
    return lambda name, leaf: torch.full_like(leaf, weight) if name.split(".")[-1] == "weight" else leaf


FAULTS: dict[str, Callable[[str, Tensor], Tensor]] = {
    "times 1e6": multiplied(1e6),
    "times -100": multiplied(-100.0),
    "NaN": multiplied(math.nan),
    "weight 1e12": weighing(1e12),
    "weight -1": weighing(-1.0),
}
HUGE, DROPPED = ("times 1e6", "times -100"), ("NaN", "weight 1e12", "weight -1")


@dataclass(frozen=True)
class Hostile:
    """A method one of whose clients sends something else than it has computed."""

    inner: Any
    fault: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def client(self, message: Any, state: Any, batch: ClientBatch, noise: Any) -> Any:
        update, after = self.inner.client(message, state, batch, noise)
        his = torch.tensor([client == BATCH.ids[WHO] for client in batch.ids])
        flat = tensors.leaves(update)
        lies = tensors.unleaves(update, {name: FAULTS[self.fault](name, leaf) for name, leaf in flat.items()})
        return tensors.where(his, lies, update), after


def plan_of(kind: str, rounds: int = ROUNDS) -> FederationPlan:
    return FederationPlan(rounds=rounds, seed=1, aggregate=kind)


def play(case: Case, kind: str, fault: str | None, rounds: int = ROUNDS) -> list[tuple[RoundRecord, Any]]:
    """Train with a client that sends something else, or without."""
    playing: Any = case.build(1) if fault is None else Hostile(case.build(1), fault)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(engine.rounds(playing, BATCH, plan_of(kind, rounds)))


def error(case: Case, state: FederationState) -> float:
    """Measure the honest clients' root mean squared error on a grid, on average."""
    x, result = torch.linspace(-1.4, 1.4, 40, dtype=torch.float64), [math.nan] * CLIENTS
    for index, posterior in personalisation.personalise(case.build(1), state, BATCH, plan_of("mean")):
        predicted: Any = posterior.predict(x.view(1, -1, 1).expand(len(index), -1, -1))
        means = predicted.mean
        for k, mean in zip(index.tolist(), means, strict=True):
            result[k] = float((mean - true(x, k)).square().mean().sqrt())
    return float(np.mean([result[k] for k in HONEST]))


def faults_of(pairs: list[tuple[Case, Any]]) -> list[tuple[Case, Any, tuple[str, ...]]]:
    """Add the faults: both to one form of each kind of step, to the others one in turn, two pairs with each."""
    return [
        (case, kind, HUGE if case.name in EVERY_RULE else HUGE[i // 2 % 2 :][:1])
        for i, (case, kind) in enumerate(pairs)
    ]


@pytest.mark.parametrize(("case", "kind", "faults"), faults_of(under(ATTACKED, ROBUST, ("clipped", "median"))), ids=str)
def test_no_client_decides_for_the_others_and_the_one_that_tries_is_named(
    case: Case, kind: str, faults: tuple[str, ...]
) -> None:
    clean = error(case, play(case, kind, None)[-1][1])
    assert clean <= 0.85 * error(case, federation_state.start(case.build(1), BATCH, plan_of(kind))), "nothing to lose"
    for fault in faults:
        played = play(case, kind, fault)
        assert error(case, played[-1][1]) <= FACTOR * clean, fault
        assert [record.steps and record.steps.whose for record, _ in played] == [OFFENDER] * ROUNDS
        told = [value for record, _ in played for name, value in record.values.items() if name != "seconds"]
        assert max(map(abs, told)) < 1e5, "what it says of itself does not count either"


@pytest.mark.parametrize(("case", "kind"), under(ATTACKED, ("mean", "clipped", "multi-krum")), ids=str)
def test_who_sends_no_numbers_or_a_weight_that_it_does_not_have_is_left_out_and_named(case: Case, kind: str) -> None:
    result = []
    for fault in DROPPED:
        ((record, state),) = play(case, kind, fault, 1)
        assert record.dropped == (OFFENDER,) and record.clients == CLIENTS - 1
        result.append(bits(state.server))
    assert result[0] == result[1] == result[2]
    assert all(leaf.isfinite().all() for leaf in tensors.leaves(state.server).values())


@pytest.mark.parametrize(("case", "faults"), under(ATTACKED, [HUGE], [HUGE[1:]]), ids=str)
def test_under_the_mean_the_guard_stops_the_run_and_names_the_offender(case: Case, faults: tuple[str, ...]) -> None:
    """Adam makes scores steps of one length: what they do to the server tells nobody, and their own length does.

    Where clients go on from weights of their own, a wrong centre need not spoil a fit: a warning names who sent it.
    """
    for fault in faults:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                list(engine.rounds(Hostile(case.build(1), fault), BATCH, plan_of("mean", ROUNDS)))
            except NumericalError as stopped:
                assert re.search(r"sent a step|without its step|ha(ve|s) come to", str(stopped))
                assert stopped.client == OFFENDER, (fault, stopped)
                continue
        assert isinstance(case.build(1), MTL) and fault == "times -100"
        assert any(f"client {OFFENDER!r} sent a step" in str(one.message) for one in said)


def test_a_rule_that_promises_nothing_is_guarded_as_the_mean_is() -> None:
    half = AggregationRule("half", "half of the mean", lambda steps, weight, _: 0.5 * (weight / weight.sum()) @ steps)
    playing: Any = Hostile(quick("fedavg").build(1), "times 1e6")
    for rule, guarded in ((half, True), (replace(half, robust=True), False)):
        plan = FederationPlan(rounds=2, seed=1, aggregate=rule, diverges_at=1e30 if rule.robust else 1e3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not guarded:
                assert list(engine.rounds(playing, BATCH, plan))[-1][0].steps.whose == OFFENDER  # type: ignore[union-attr]
                continue
            with pytest.raises(NumericalError, match=r"sent a step .* long") as stopped:
                list(engine.rounds(playing, BATCH, plan))
            assert stopped.value.client == OFFENDER
