"""Updates of a round that meet before they are joined."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.federation import engine, federation_state, messages, reduction
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.messages import Kept
from pacbayes_fl.federation.node import Memory
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.player import RoundPlayer
from pacbayes_fl.federation.reduction import RobustAccumulator, UpdateAccumulator
from pacbayes_fl.methods import METHODS
from pacbayes_fl.server import robust
from tests.laws.cases import Scene, assert_close, from_recipe, scene
from tests.laws.test_robust_laws import ROBUST, case_of
from tests.remote import network, player


def one() -> Scene:
    return scene(case_of("fedavg"), 1)


def updates(s: Scene) -> Any:
    update, _ = s.method.client(s.message, s.clients, s.batch, s.noise(s.batch.ids))
    return update


def met(plan: FederationPlan, known: tuple[float, ...] = ()) -> tuple[RobustAccumulator, torch.Tensor]:
    """Return the accumulator and the step that the server makes of it."""
    s = one()
    result = RobustAccumulator(s.method, s.message, plan, known)
    update, good = updates(s), torch.ones(5, dtype=torch.bool)
    for part in (torch.tensor([0, 1]), torch.tensor([2, 3, 4])):
        result.add(tensors.select(update, part), good[part])
    return result, s.method.server(s.server, result.release(), 5).theta - s.server.theta


def test_the_rule_of_the_plan_is_applied_to_steps() -> None:
    s = one()
    steps, w = updates(s).theta - s.server.theta, torch.ones(5, dtype=torch.float64)
    for kind, expected in {
        "median": robust.median(steps, w),
        "trimmed": robust.trimmed(steps, w, 2),
        "geometric-median": robust.geometric_median(steps, w),
    }.items():
        torch.testing.assert_close(met(FederationPlan(aggregate=kind, faulty=2))[1], expected, rtol=1e-9, atol=1e-12)  # type: ignore[arg-type]
    krum = robust.multi_krum(steps, w, 1)
    torch.testing.assert_close(met(FederationPlan(aggregate="multi-krum"))[1], krum, rtol=1e-9, atol=1e-12)


def test_steps_end_at_a_multiple_of_the_running_median() -> None:
    s = one()
    steps, w = updates(s).theta - s.server.theta, torch.ones(5, dtype=torch.float64)
    lengths = steps.norm(dim=1)
    plan = FederationPlan(aggregate="clipped", clip_multiple=0.9)
    for known in ((), (0.05,), (1e-3, 1e-3)):
        bound = 0.9 * robust.running_median(known, lengths)
        result, step = met(plan, known)
        torch.testing.assert_close(step, robust.clipped(steps, w, bound), rtol=1e-9, atol=1e-12)
        assert int(result.numbers["clipped"]) == int((lengths > bound).sum()) > 0


def test_numbers_of_the_record_are_those_of_clients_within_the_next_ones() -> None:
    s = one()
    loss = updates(s).loss.clone()
    result = RobustAccumulator(s.method, s.message, FederationPlan(aggregate="median", faulty=1), ())
    lies = updates(s)._replace(loss=torch.cat((torch.tensor([1e30], dtype=torch.float64), loss[1:])))
    result.add(lies, torch.ones(5, dtype=torch.bool))
    ordered = torch.cat((torch.tensor([1e30], dtype=torch.float64), loss[1:])).sort().values
    expected = ordered.clamp(ordered[1], ordered[3]).mean()
    assert float(s.method.report(s.server, result.release())["loss"]) == pytest.approx(float(expected), rel=1e-12)


def test_the_mean_is_never_refused_and_a_device_has_memory() -> None:
    s = one()
    reduction.check(s.method, s.message, 1, FederationPlan())
    reduction.check_private(FederationPlan())
    assert reduction._memory(torch.device("cpu")) > 1e8


def test_a_cohort_is_what_a_rule_has_to_do_with() -> None:
    s = one()
    reduction.check(s.method, s.message, 9, FederationPlan(aggregate="median", cohort=3))
    reduction.check(s.method, s.message, 3, FederationPlan(aggregate="median", cohort=9))
    reduction.check(s.method, s.message, 1, FederationPlan(aggregate="clipped"))
    for clients, cohort in ((9, 2), (2, None), (2, 9)):
        with pytest.raises(ValueError, match="needs 3 clients in a round, got 2"):
            reduction.check(s.method, s.message, clients, FederationPlan(aggregate="median", cohort=cohort))


def test_no_rule_holds_against_half_of_the_clients_and_none_is_named_for_it() -> None:
    s = one()
    for clients, faulty in ((10, 5), (2, 1), (10, 9)):
        plan = FederationPlan(aggregate="clipped", faulty=faulty)
        with pytest.raises(ValueError, match=rf"'clipped' with {faulty} faulty needs {2 * faulty + 1} clients, got"):
            reduction.check(s.method, s.message, clients, plan)
    reduction.check(s.method, s.message, 11, FederationPlan(aggregate="clipped", faulty=5, cohort=1))
    for clients, other in ((4, ""), (5, ", or take federation.aggregate = 'clipped'")):
        plan = FederationPlan(aggregate="median", faulty=2, cohort=3)
        with pytest.raises(ValueError, match=re.escape(f"(lower federation.faulty{other})")):
            reduction.check(s.method, s.message, clients, plan)


@pytest.mark.parametrize(
    ("kind", "faulty", "clients", "expected"),
    [
        ("trimmed", None, 3, ("trimmed", None)),
        ("trimmed", None, 2, ("trimmed", 0)),
        ("trimmed", 2, 4, ("trimmed", 1)),
        ("multi-krum", None, 2, ("mean", None)),
        ("clipped", None, 1, ("clipped", None)),
        ("clipped", 2, 4, ("clipped", 1)),
        ("mean", None, 1, ("mean", None)),
    ],
)
def test_federations_of_trials_tolerate_as_many_as_they_can(
    kind: str, faulty: int | None, clients: int, expected: tuple[str, int | None]
) -> None:
    """They lack a fifth of the clients: of three with one faulty the trial was refused, and with it the run."""
    s = one()
    plan = reduction.affordable(s.method, clients, FederationPlan(aggregate=kind, faulty=faulty))
    reduction.check(s.method, s.message, clients, plan)
    assert (plan.aggregate, plan.faulty) == expected


@pytest.mark.law
@pytest.mark.parametrize("kind", ROBUST)
def test_a_round_over_a_network_is_joined_as_on_one_device(kind: robust.Aggregate) -> None:
    s = one()
    plan = FederationPlan(rounds=3, seed=s.plan.seed, aggregate=kind)
    watch = federation_state.start(s.method, s.batch, plan).watch._replace(medians=(0.01, 0.02))
    ((record, state),) = engine.rounds(s.method, s.batch, plan, FederationState(s.server, s.clients, 2, watch))
    reached = network(s.method, s.batch)
    for k, (name, node) in enumerate(zip(s.batch.names, reached.nodes, strict=True)):
        kept = Kept("run", 2, messages.flatten(tensors.select(s.clients, torch.tensor([k]))))
        node.memories.save(name, Memory("run", 0, kept))
    begun = FederationState(s.server, None, 2, watch)
    ((told, there),) = engine.play(player(s.method, s.batch, plan, reached), begun)
    assert_close(there.server, state.server)
    assert told.values.get("clipped") == record.values.get("clipped")


def test_methods_of_the_table_join_by_the_mean_by_default() -> None:
    method = from_recipe(METHODS["fedavg"], 1)
    assert FederationPlan().aggregate == "mean" and not isinstance(
        RoundPlayer(method, one().batch, FederationPlan(), None)._reduction(
            one().message, federation_state.start(method, one().batch, FederationPlan())
        ),
        RobustAccumulator,
    )


@pytest.mark.parametrize("robust_rule", [False, True])
def test_only_updates_of_clients_that_failed_are_written_anew(
    robust_rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = list[int]()
    where = tensors.where

    def counted(keep: torch.Tensor, *trees: Any) -> Any:
        copies.append(len(keep))
        return where(keep, *trees)

    monkeypatch.setattr(tensors, "where", counted)
    s = one()
    update = updates(s)
    for failed in ((), (1, 3)):
        good = torch.tensor([k not in failed for k in range(5)])
        plan = FederationPlan(aggregate="median")
        made = RobustAccumulator(s.method, s.message, plan, ()) if robust_rule else UpdateAccumulator(s.method)
        made.add(update, good)
        zeroed = tensors.tree_map(torch.clone, update)
        for leaf in tensors.leaves(zeroed).values():
            leaf[list(failed)] = 0
        expected = zeroed if robust_rule else s.method.reduce(zeroed)
        kept = made._updates[0]
        assert all(map(torch.equal, tensors.leaves(kept).values(), tensors.leaves(expected).values()))
    assert copies == [5]
