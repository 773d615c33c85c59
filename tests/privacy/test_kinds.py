"""Kinds of noise: numbers far in the tails, and a record as all that a kind needs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.privacy import kinds
from pacbayes_fl.privacy.accounting import Budget, delta, epsilon, noise_multiplier
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.kinds import MECHANISMS, Claim, MechanismKind
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism, clip, noise
from pacbayes_fl.study import run
from pacbayes_fl.study.file import Study
from tests.tiny import tiny


def rng(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_uniform_numbers_are_fine_near_zero() -> None:
    zero, one = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
    assert 0 < float(kinds._fraction(zero, zero)) < 2.0**-90
    assert float(kinds._fraction(zero, one)) == 1.5 * 2.0**-104
    assert float(kinds._fraction(one, zero)) == pytest.approx(2.0**-52, rel=1e-15)
    top = torch.tensor([2**52 - 1])
    assert float(kinds._fraction(top, top)) == 1.0 and -math.log(kinds._fraction(top, zero)) >= 0


@pytest.mark.parametrize("scales", [1, 20, 30, 36, 37, 40])
def test_the_gaps_of_laplace_noise_are_below_the_grid_of_what_is_released(scales: int) -> None:
    whole = int(math.exp(-scales) * 2**104)
    words = [(at >> 52, at & (2**52 - 1)) for at in (whole, whole + 1)]
    near, far = (-kinds._fraction(torch.tensor(high), torch.tensor(low)).log() for high, low in words)
    assert float(near) == pytest.approx(scales, rel=1e-6) and 0 <= float(near - far) < 2.0**-20


@pytest.mark.parametrize("generator", [rng(3), None], ids=["seeded", "system"])
def test_signs_do_not_depend_on_how_far_noise_goes(generator: torch.Generator | None) -> None:
    uniform, sign = kinds._uniform(1, 100_000, generator)
    assert stats.kstest(uniform[0].numpy(), "uniform").pvalue > 1e-6
    assert sign.abs().eq(1).all() and abs(float(sign.mean())) < 0.02
    assert abs(float(stats.spearmanr(uniform[0], sign[0]).statistic)) < 0.02


def tripled_noise(draws: int, coordinates: int, generator: torch.Generator | None) -> torch.Tensor:
    """Draw Laplace noise and triple it: a mechanism that is nobody's."""
    return 3.0 * MECHANISMS["laplace"].draw(draws, coordinates, generator)


@pytest.fixture
def tripled(monkeypatch: pytest.MonkeyPatch) -> MechanismKind:
    record = MechanismKind("tripled", "three times Laplace noise", 1, tripled_noise, "pure", growth=lambda d: 1 / 3)
    monkeypatch.setattr(kinds, "_BUILT_IN", {**MECHANISMS, "tripled": record})
    return record


def test_a_record_is_all_that_a_mechanism_needs(tripled: MechanismKind, tmp_path: Path) -> None:
    cohorts, ours = Cohorts(4), Mechanism("tripled", 0.5, 2.0)
    plain = noise(Mechanism("laplace", 0.5, 2.0), 6, torch.Generator().manual_seed(1))
    torch.testing.assert_close(noise(ours, 6, torch.Generator().manual_seed(1)), 3 * plain)
    clipped = clip({"u": torch.full((1, 4), 9.0)}, ours)["u"]
    assert float(clipped.abs().sum()) == pytest.approx(0.5)  # the norm of the record
    charges, known = [Charge("tripled", 2.0, 6, cohorts)] * 5, [Charge("knorm", 6.0, 6, cohorts)] * 5
    assert epsilon(charges, 0.0) == pytest.approx(epsilon(known, 0.0)) == pytest.approx(5 / 6)
    assert delta(charges, 0.1, "pld") == pytest.approx(delta(known, 0.1, "pld"), rel=1e-6)
    third = noise_multiplier("knorm", Budget(1.0, 0.0), 5, cohorts) / 3
    assert noise_multiplier("tripled", Budget(1.0, 0.0), 5, cohorts) == pytest.approx(third)
    asked = tiny("privacy.epsilon_if_noise_were_secret=10", "privacy.mechanism=tripled", "federation.rounds=3")
    told = run.run(asked, tmp_path / "run").labels["privacy"]
    assert (told["mechanism"], told["delta"]) == ("tripled", 0.0)
    assert told["multiplier"] == pytest.approx(3 / 10 / 3) and told["pure_if_noise_were_secret"] == pytest.approx(10)
    assert run.open_run(tmp_path / "run").study == asked


def test_a_mechanism_without_a_record_is_named() -> None:
    text = "kind must be one of gaussian, dp-ftrl, laplace, knorm, exponential, paper_algorithm_3, got 'tripled'"
    with pytest.raises(PrivacyError, match=text):
        Mechanism("tripled", 1.0, 1.0)
    known = "'gaussian', 'dp-ftrl', 'laplace', 'knorm', 'exponential', 'paper_algorithm_3', got 'tripled'"
    with pytest.raises(PrivacyError, match=rf"\[privacy\] mechanism must be one of {known}"):
        Study.from_table({"privacy": {"epsilon": 1.0, "mechanism": "tripled"}})


def test_a_record_with_a_claim_has_the_noise_that_is_claimed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    claim = Claim("Somebody", lambda epsilon, rounds: 7 * rounds / epsilon)
    record = replace(MECHANISMS["laplace"], name="sevenfold", claim=claim)
    monkeypatch.setattr(kinds, "_BUILT_IN", {**MECHANISMS, "sevenfold": record})
    assert Mechanism.claimed("sevenfold", 0.5, 10.0, 3) == Mechanism("sevenfold", 0.5, 2.1)
    sets = ("privacy.epsilon_if_noise_were_secret=10", "privacy.mechanism=sevenfold", "federation.rounds=3")
    told = run.run(tiny(*sets), tmp_path / "run").labels["privacy"]
    assert (told["multiplier"], told["claimed"], told["releases"]) == (2.1, 10.0, 3)
    assert "Somebody claims epsilon_if_noise_were_secret = 10 for this noise" in told["statement"]
    with pytest.raises(PrivacyError, match="no paper claims an epsilon for the noise of 'laplace'"):
        Mechanism.claimed("laplace", 1.0, 1.0, 1)


def test_who_has_a_pure_epsilon_says_how_it_grows() -> None:
    pure = {name: Charge(name, 2.0, 16, Cohorts(10)).pure for name in MECHANISMS}
    assert pure == {
        **{"gaussian": math.inf, "dp-ftrl": math.inf, "laplace": 0.5},
        **{"knorm": 0.5, "exponential": 0.5, "paper_algorithm_3": 2.0},
    }
    assert {name: kind.norm for name, kind in MECHANISMS.items()} == {
        **{"gaussian": 2, "dp-ftrl": 2, "laplace": 1, "knorm": 2, "exponential": "range", "paper_algorithm_3": 2}
    }
    assert all(kind.name == name and kind.title for name, kind in MECHANISMS.items())


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        (
            "gaussian",
            {"account": "Gaussian"},
            "account must be one of 'gaussian', 'laplace', 'pure', 'zcdp', got 'Gaus",
        ),
        ("laplace", {"account": "laplacian"}, "account must be one of"),
        ("laplace", {"norm": 3}, "norm must be one of 1, 2, 'range', got 3"),
        ("laplace", {"norm": "1"}, "norm must be one of 1, 2, 'range', got '1'"),
        ("laplace", {"norm": True}, "norm must be one of"),
        ("laplace", {"norm": 2}, "accounted for by an L1 clip, norm=1, got 2"),
    ],
)
def test_an_account_that_nothing_knows_or_that_cannot_hold_guarantees_nothing(
    name: str, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(StudyError, match=f"^mechanism '{name}': .*{said}"):
        replace(MECHANISMS[name], **wrong)
