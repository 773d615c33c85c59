"""Releases outside of rounds: what they cost, what they tell, and that none is ever made twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy import ledger as ledgers
from pacbayes_fl.privacy import mechanisms
from pacbayes_fl.privacy.accounting import Budget, epsilon, noise_multiplier
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism
from pacbayes_fl.privacy.outside import Outside, charge
from tests.distinguishing import lower_bound

TEN = Cohorts(10)
BUDGETS = {"gaussian": Budget(4.0, 1e-3), "laplace": Budget(4.0, 0.0), "knorm": Budget(4.0, 0.0)}
LONGEST = (2.0, 1.5)


def outside(folder: Path, kind: str = "laplace", seed: int | None = 0, cohorts: Cohorts = TEN) -> Outside:
    ledger, size = Ledger(folder, BUDGETS[kind]), 6
    costs = {"residuals": charge(kind, ledger.budget, 0.25, cohorts, "residuals", size)}
    ledger.reserve(tuple(costs.values()))
    return Outside(ledger, costs, seed)


@pytest.mark.parametrize(
    ("kind", "cohorts"),
    [
        *(("gaussian", cohorts) for cohorts in (TEN, Cohorts(10, neighbours="replace"))),
        *(("laplace", cohorts) for cohorts in (TEN, Cohorts(10, 4, "poisson"), Cohorts(10, 4, "fixed", "replace"))),
        ("knorm", TEN),
    ],
    ids=str,
)
def test_a_message_and_the_rounds_beside_it_cost_what_was_asked_for(kind: str, cohorts: Cohorts) -> None:
    """The message alone costs its share, of a client in every one of them; all together the whole and little less."""
    budget = BUDGETS[kind]
    one = charge(kind, budget, 0.25, cohorts, "residuals", 6)
    assert epsilon([one], budget.delta) == pytest.approx(1.0, rel=2e-3)
    assert epsilon([one], budget.delta) <= 1.0 + 1e-9
    multiplier = noise_multiplier(kind, budget, 20, cohorts, beside=[one])
    every = [one, *[Charge(kind, multiplier, 6, cohorts)] * 20]
    assert 0.99 * budget.epsilon < epsilon(every, budget.delta) <= budget.epsilon * (1 + 1e-9)
    assert multiplier > noise_multiplier(kind, budget, 20, cohorts)


def test_noise_that_a_paper_prints_pays_for_rounds_alone() -> None:
    with pytest.raises(PrivacyError, match="pays for rounds alone, and not for a message on scaling"):
        charge("paper_algorithm_3", Budget(1.0, 1e-3), 0.1, TEN, "scaling", 3)


def test_nothing_is_left_for_rounds_where_a_message_takes_all() -> None:
    all_of_it = charge("laplace", Budget(4.0, 0.0), 1.0, TEN, "residuals", 6)
    with pytest.raises(PrivacyError, match="leave none for rounds"):
        noise_multiplier("laplace", BUDGETS["laplace"], 5, TEN, beside=[all_of_it, all_of_it])


@pytest.mark.parametrize("kind", BUDGETS)
def test_what_is_released_is_the_mean_of_clipped_messages_with_that_noise(tmp_path: Path, kind: str) -> None:
    one = outside(tmp_path, kind)
    rows = torch.randn(10, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    norm = mechanisms.kinds.MECHANISMS[kind].norm
    rows[0] *= 1e12
    rows[1] = torch.nan
    lengths = rows.norm(norm, dim=1, keepdim=True)
    clipped = torch.where(rows.isfinite(), rows * (LONGEST[norm - 1] / lengths).clamp_max(1.0), 0.0)
    released = one.mean("residuals", rows, LONGEST, 3)
    noise = mechanisms.noise(
        one.mechanism("residuals", LONGEST), 6, mechanisms.source(0, 0, one.mechanism("residuals", LONGEST), 6)
    )
    torch.testing.assert_close(released, (clipped.sum(0) + noise[0]) / 10, rtol=0, atol=1e-5)
    std = one.noise_std("residuals", LONGEST) * 10
    many = mechanisms.noise(one.mechanism("residuals", LONGEST), 6, torch.Generator().manual_seed(9), 20_000)
    assert std == pytest.approx(float(many.square().mean().sqrt()), rel=0.1)


@pytest.mark.parametrize("cohorts", [TEN, Cohorts(10, neighbours="replace")], ids=["add-or-remove", "replace"])
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_neighbours_are_told_apart_no_better_than_was_claimed(tmp_path: Path, kind: str, cohorts: Cohorts) -> None:
    """The distinguishing game of `test_audit`; with half of the noise, as a slip of the norm gives, it is lost."""
    one = outside(tmp_path, kind, cohorts=cohorts)
    mechanism, delta = one.mechanism("residuals", (1.0, 1.0)), BUDGETS[kind].delta
    alone = Cohorts(1, neighbours=cohorts.neighbours)
    direction = torch.eye(6, dtype=torch.float64)[0]
    assert lower_bound(mechanism, alone, direction, delta, 20_000) <= 1.0
    wrong = replace(mechanism, multiplier=mechanism.multiplier / (2 if kind == "laplace" else 4))
    assert lower_bound(wrong, alone, direction, delta, 20_000) > 1.0


def test_a_message_is_paid_for_once_and_is_the_same_ever_after(tmp_path: Path) -> None:
    one = outside(tmp_path, seed=None)
    first = one.mean("residuals", torch.ones(10, 6), LONGEST, 3, "of these")
    assert len(one.ledger) == 1
    again = outside(tmp_path, seed=None)
    assert torch.equal(again.mean("residuals", torch.zeros(10, 6), LONGEST, 4, "of these"), first)
    assert len(again.ledger) == 1 and torch.equal(
        one.mean("residuals", torch.ones(10, 6), LONGEST, 3, "of these"), first
    )
    assert not torch.equal(again.mean("residuals", torch.ones(10, 6), LONGEST, 3, "of others"), first)
    assert len(again.ledger) == len(outside(tmp_path).ledger) == 2


@pytest.mark.parametrize("at", [0, 1])
def test_a_crash_costs_nothing_or_keeps_what_was_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Before anything is on disk, and between the release and its count."""
    from pacbayes_fl.results import manifest

    real = manifest.write_atomic

    def crashing(path: Path, data: bytes) -> None:
        if path.name == ("release_residuals.safetensors", ledgers.NAME)[at]:
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(manifest, "write_atomic", crashing)
    with pytest.raises(KeyboardInterrupt):
        outside(tmp_path, seed=None).mean("residuals", torch.ones(10, 6), LONGEST, 3)
    monkeypatch.setattr(manifest, "write_atomic", real)
    again = outside(tmp_path, seed=None)
    assert len(again.ledger) == at
    drawn = list[Any]()
    draw = mechanisms.noise
    monkeypatch.setattr(mechanisms, "noise", lambda *given: drawn.append(given) or draw(*given))
    again.mean("residuals", torch.ones(10, 6), LONGEST, 3)
    assert len(again.ledger) == 1 and len(drawn) == 1 - at


def test_rounds_leave_what_a_message_to_come_costs(tmp_path: Path) -> None:
    """Without the reserve the rounds would take all; once the message is paid for, it is counted and not reserved."""
    one = outside(tmp_path)  # a quarter of 4
    of_round = Charge("laplace", 2.0, 6, TEN)
    assert one.ledger.room(of_round) == 6 and Ledger(tmp_path, BUDGETS["laplace"]).room(of_round) == 8
    one.mean("residuals", torch.ones(10, 6), LONGEST, 0)
    assert one.ledger.room(of_round) == 6 == outside(tmp_path).ledger.room(of_round)
    for _ in range(6):
        one.ledger.spend(of_round)
    with pytest.raises(PrivacyError, match="one more release would exceed"):
        one.mean("residuals", torch.ones(10, 6), LONGEST, 0, "another")


def test_a_message_of_other_clients_or_numbers_is_refused(tmp_path: Path) -> None:
    one = outside(tmp_path)
    for shape in ((9, 6), (10, 5)):
        with pytest.raises(PrivacyError, match=r"a message on residuals is of 10 clients and 6 numbers, got \["):
            one.mean("residuals", torch.ones(shape), LONGEST, 0)
    assert len(one.ledger) == 0


def test_a_release_that_is_damaged_counts_and_a_lost_ledger_ends_the_run(tmp_path: Path) -> None:
    one = outside(tmp_path)
    one.mean("residuals", torch.ones(10, 6), LONGEST, 0)
    path = tmp_path / ledgers.file_of("residuals")
    good = path.read_bytes()
    path.write_bytes(good[:-3])
    with pytest.warns(UserWarning, match="counted as one more release"):
        assert len(Ledger(tmp_path, BUDGETS["laplace"])) == 2
    path.write_bytes(good)
    (tmp_path / ledgers.NAME).unlink()
    assert len(Ledger(tmp_path, BUDGETS["laplace"])) == 1, "its release says what it cost"


def test_noise_is_that_of_the_mechanism(tmp_path: Path) -> None:
    cohorts = Cohorts(1)
    cost = charge("gaussian", Budget(4.0, 1e-3), 0.25, cohorts, "residuals", 20_000)
    one = Outside(Ledger(tmp_path, Budget(4.0, 1e-3)), {"residuals": cost}, None)
    rest = one.mean("residuals", torch.zeros(1, 20_000), (1.0, 1.0), 0) / cost.multiplier
    assert stats.kstest(rest.numpy(), "norm").pvalue > 1e-6
    assert isinstance(one.mechanism("residuals", LONGEST), Mechanism)
