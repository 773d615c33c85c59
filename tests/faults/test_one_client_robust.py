"""One client that would ruin a federation, and aggregates that it cannot steer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, NumericalError, PrivacyError, StudyError
from pacbayes_fl.federation import checkpoint, engine, federation_state, private, reduction
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.privacy.mechanisms import Cohorts
from pacbayes_fl.results import rounds
from pacbayes_fl.server import robust
from pacbayes_fl.server.aggregations import AGGREGATIONS
from pacbayes_fl.study import run
from tests.laws.cases import bits, federation, from_recipe
from tests.private import HUGE, Free
from tests.tiny import quick, state, tiny

ROBUST = tuple(name for name, rule in AGGREGATIONS.known.items() if rule.robust)


@dataclass(frozen=True)
class Lying:
    """A method of which one client multiplies a leaf of its updates."""

    inner: Any
    client_id: int
    leaf: str
    factor: float

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def client(self, message: Any, state: Any, batch: ClientBatch, noise: Any) -> tuple[Any, Any]:
        update, after = self.inner.client(message, state, batch, noise)
        his = torch.tensor([one == self.client_id for one in batch.ids])
        told = getattr(update, self.leaf)
        return update._replace(**{self.leaf: tensors.where(his, self.factor * told, told)}), after


@contextmanager
def silently() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_clipping_goes_on_bit_by_bit_after_a_stop(tmp_path: Path) -> None:
    """Its bound is of the rounds before too: without them a resumed run would be another one."""
    sets = (*quick("fedavg"), "federation.aggregate=clipped", "federation.clip_multiple=0.7", "federation.cohort=2")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run.run(tiny(*sets, "federation.rounds=9"), whole)
    run.run(tiny(*sets, "federation.rounds=5"), parts)
    run.run(tiny(*sets, "federation.rounds=9"), parts, resume=True)
    assert bits(state(whole)) == bits(state(parts))
    for name in ("clients.csv", "predictions.safetensors"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    records = rounds.read_rounds(whole)
    assert sum(record.values["clipped"] for record in records[5:]) > 0, "the bound never mattered"
    saved = checkpoint.load(parts)
    assert saved is not None
    assert saved.meta["watch"]["medians"] == [record.steps.median for record in records if record.steps is not None]


def test_a_cohort_of_one_hostile_client_is_outvoted_by_the_rounds_before() -> None:
    """Cohorts of one: the median of a round is what its client says, and that of ten rounds is not."""
    batch, plan = federation(1), FederationPlan(rounds=12, cohort=1, aggregate="clipped", seed=4)
    method: Any = from_recipe(METHODS["fedavg"], 1, {"weighting": "uniform"})
    lying: Any = Lying(method, batch.ids[0], "theta", 1e6)
    result = list(engine.rounds(lying, batch, plan))
    hostile = [k for k, (record, _) in enumerate(result) if record.steps and record.steps.whose == batch.names[0]]
    usual = max(record.steps.median for k, (record, _) in enumerate(result) if record.steps and k not in hostile)
    assert hostile and min(hostile) > 0, "take another seed: it must come after others"
    for k in hostile:
        went = (result[k][1].server.theta - result[k - 1][1].server.theta).norm()
        assert result[k][0].values["clipped"] == 1 and float(went) <= 2.0 * usual * (1 + 1e-9)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["aggregate=krum"], r"aggregate must be one of 'clipped', 'mean', 'median'"),
        (["aggregate=trimmed", "faulty=2"], r"'trimmed' with 2 faulty needs 5 clients in a round, got 4.*lower fed"),
        (["aggregate=median", "faulty=2"], r"'median' with 2 faulty needs 5 clients"),
        (["aggregate=geometric-median", "cohort=2"], r"with 1 faulty needs 3 clients in a round, got 2"),
        (["aggregate=multi-krum"], r"'multi-krum' with 1 faulty needs 5 clients in a round, got 4"),
        (["faulty=1"], r"faulty = 1 clients can take the mean anywhere.*aggregate = 'clipped'"),
        (["aggregate=median", "clip_multiple=3"], r"clip_multiple = 3 is of aggregate = 'clipped'"),
        (["clip_multiple=3"], r"clip_multiple = 3 is of aggregate = 'clipped'"),
        (["aggregate=clipped", "clip_multiple=0"], r"clip_multiple must be positive and finite, got 0"),
    ],
)
def test_an_aggregate_that_a_federation_cannot_have_is_refused_and_leaves_nothing(
    sets: list[str], message: str, tmp_path: Path
) -> None:
    given = [*quick("fedavg"), "method.weighting=uniform", *(f"federation.{one}" for one in sets)]
    with pytest.raises(StudyError, match=message):
        run.run(tiny(*given), tmp_path / "run")
    assert not (tmp_path / "run" / "study.toml").exists()


@pytest.mark.parametrize("kind", ROBUST)
def test_a_private_study_has_no_robust_aggregate(kind: str, tmp_path: Path) -> None:
    sets = ["privacy.epsilon=5", "privacy.delta=1e-3", f"federation.aggregate={kind}"]
    with pytest.raises(PrivacyError, match=rf"aggregate = '{kind}' is no sum .*federation.aggregate = 'mean'"):
        run.run(tiny(*sets), tmp_path / "run")
    batch = federation(1)
    method = from_recipe(METHODS["pac-pfl"], 1)
    with pytest.raises(PrivacyError, match=rf"aggregate = '{kind}' is no sum"):
        private.open_private(
            method,
            federation_state.start(method, batch, FederationPlan()).server,
            batch,
            FederationPlan(aggregate=kind),  # type: ignore[arg-type]
            HUGE,
            Cohorts(batch.clients),
            Free(),
            5,
        )


def test_steps_that_do_not_fit_into_memory_are_refused_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction, "_memory", lambda device: 1000)
    with pytest.raises(
        StudyError, match=r"keeps the steps of all 5 clients .* federation.chunk does not divide .*cohort"
    ):
        next(engine.rounds(from_recipe(METHODS["pac-pfl"], 1), federation(1), FederationPlan(aggregate="clipped")))


@pytest.mark.parametrize("kind", ROBUST)
def test_a_client_that_fails_leaves_a_rule_what_it_can_do(kind: robust.Aggregate) -> None:
    """Two of five are not finite: what is left has no aggregator for the fault that was asked for, and goes on."""
    batch = federation(1)
    x = batch.x.clone()
    x[1:3, 0] = torch.nan
    method, plan = from_recipe(METHODS["pac-pfl"], 1), FederationPlan(rounds=2, aggregate=kind)
    with silently():
        result = list(engine.rounds(method, replace(batch, x=x), plan))
    assert all(record.dropped == (batch.names[1], batch.names[2]) for record, _ in result)
    assert all(leaf.isfinite().all() for leaf in tensors.leaves(result[-1][1].server).values())


def test_nobody_left_changes_nothing_under_a_robust_aggregate() -> None:
    batch = federation(1)
    method, plan = from_recipe(METHODS["pac-pfl"], 1), FederationPlan(rounds=2, aggregate="clipped")
    with pytest.raises((ClientError, NumericalError), match="0 of 5 clients"), silently():
        list(engine.rounds(method, replace(batch, x=torch.full_like(batch.x, torch.nan)), plan))


def test_a_weight_that_is_not_the_clients_stops_a_run_that_stops_for_bad_clients() -> None:
    batch, plan = federation(1), FederationPlan(rounds=2, on_bad_client="stop")
    method: Any = from_recipe(METHODS["pac-pfl"], 1)
    lying: Any = Lying(method, batch.ids[2], "weight", 1e12)
    with pytest.raises(NumericalError, match=r"client 'client_02'.*not weighed by its rows"):
        list(engine.rounds(lying, batch, plan))
