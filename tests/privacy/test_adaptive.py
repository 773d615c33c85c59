"""A clip that follows a quantile: its cost against composition, its sensitivity against corners, its law by audits."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import pytest
import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy import accounting, audit, mechanisms
from pacbayes_fl.privacy.adaptive import AdaptiveClip, check
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism

KINDS: tuple[Any, ...] = ("gaussian", "laplace", "knorm")
TEN = Cohorts(10)
EVERY = torch.ones(1, dtype=torch.bool)


def rule(part: float = 0.3, quantile: float = 0.5) -> AdaptiveClip:
    return AdaptiveClip(quantile, 0.2, part)


def here(clients: int) -> Tensor:
    return torch.ones(clients, dtype=torch.bool)


def flat(joint: Any) -> Tensor:
    """Messages [K, D + 1]."""
    return torch.cat([leaf.reshape(len(leaf), -1) for leaf in tensors.leaves(joint).values()], 1)


# what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.01, 0.3, 0.9])
def test_sum_and_count_cost_together_what_one_release_costs(part: float) -> None:
    """Two releases as dp-accounting composes them; of Laplace noise the same pure epsilon."""
    import dp_accounting as dp

    for z in (0.8, 7.0):
        gaussian = Mechanism("gaussian", 3.0, z)
        update, count = rule(part).multiplier(gaussian), rule(part).count_noise(gaussian)
        both, one = dp.rdp.RdpAccountant(), dp.rdp.RdpAccountant()
        both.compose(dp.GaussianDpEvent(update)).compose(dp.GaussianDpEvent(count / 0.5))
        one.compose(dp.GaussianDpEvent(z))
        assert both.get_epsilon(1e-5) == pytest.approx(one.get_epsilon(1e-5), rel=1e-12)
        assert update == pytest.approx((z**-2 - (2 * count) ** -2) ** -0.5, rel=1e-12)  # Theorem 1
        laplace = Mechanism("laplace", 3.0, z)
        assert 1 / rule(part).multiplier(laplace) + 0.5 / rule(part).count_noise(laplace) == pytest.approx(1 / z)


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_change_of_a_client_moves_the_joint_sum_by_more_than_is_paid_for(
    kind: Any, neighbours: Literal["add-or-remove", "replace"]
) -> None:
    """All pairs of corners: long and short updates either way, failed and absent ones; the farthest is reached."""
    mechanism, cohorts = Mechanism(kind, 0.7, 2.0), Cohorts(10, neighbours=neighbours)
    axes = torch.cat([torch.eye(3), -torch.eye(3), torch.ones(1, 3), -torch.ones(1, 3)]).double()
    length = torch.linalg.vector_norm(axes, mechanism.norm, dim=1, keepdim=True)
    lengths = (0.0, 0.3, 0.7, 0.7 * (1 - 1e-12), 0.7001, 1e9, math.nan, math.inf)
    corners = torch.cat([axes / length * scale for scale in lengths])
    messages = flat(rule().join({"u": corners}, mechanism, here(len(corners))))
    nobody = torch.zeros(1, 4, dtype=torch.float64)
    others = messages if neighbours == "replace" else nobody
    moved = torch.linalg.vector_norm(messages.unsqueeze(1) - others, mechanism.norm, dim=2).max()
    paid = cohorts.sensitivity * rule().joint(mechanism).clip
    assert float(moved) == pytest.approx(paid, rel=1e-12)
    assert rule().joint(mechanism).scale == pytest.approx(rule().multiplier(mechanism) * 0.7, rel=1e-12)


def test_the_default_noise_of_a_count_is_the_papers_or_what_a_tenth_pays_for() -> None:
    little, much = Mechanism("gaussian", 1.0, 1.0), Mechanism("gaussian", 1.0, 30.0)
    assert AdaptiveClip.of(little, Cohorts(120), 0.5).count_noise(little) == pytest.approx(6.0)  # m / 20
    dear = AdaptiveClip.of(much, Cohorts(120), 0.5)
    assert (30 / dear.multiplier(much)) ** 2 == pytest.approx(0.9)
    pure = Mechanism("laplace", 1.0, 30.0)
    assert 30 / AdaptiveClip.of(pure, Cohorts(120), 0.5).multiplier(pure) == pytest.approx(0.9)
    assert AdaptiveClip.of(much, Cohorts(120), 0.5, noise=0.2).count_noise(much) == pytest.approx(24.0)
    with pytest.raises(PrivacyError, match=r"costs more than the whole release \(give more than 0.125, or none"):
        AdaptiveClip.of(much, Cohorts(120), 0.5, noise=0.125)


@pytest.mark.parametrize(
    ("kind", "why"), [("exponential", "which chooses"), ("paper_algorithm_3", "noise that a paper prints")]
)
def test_mechanisms_without_norms_to_follow_are_refused(kind: str, why: str) -> None:
    with pytest.raises(PrivacyError, match=f"clip_quantile is not for {kind}, .*{why}"):
        check(kind)
    with pytest.raises(PrivacyError, match=f"clip_quantile is not for {kind}"):
        AdaptiveClip.of(Mechanism(kind, 1.0, 1.0), TEN, 0.5)


@pytest.mark.parametrize(
    ("values", "name"), [((0.0, 1.0, 0.1), "quantile"), ((0.5, math.nan, 0.1), "rate"), ((0.5, 1.0, 1.0), "part")]
)
def test_numbers_out_of_range_are_refused(values: tuple[float, float, float], name: str) -> None:
    with pytest.raises(PrivacyError, match=f"{name} of an adaptive clip must be above 0 and below"):
        AdaptiveClip(*values)


# what it says ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_is_that_of_a_loop_where_nothing_is_noised(kind: Any) -> None:
    """Clients that are absent from a cohort of chance, or failed, count as a half."""
    mechanism = Mechanism(kind, 0.9, 2.0)
    update = {"a": torch.randn(40, 2, 2, generator=torch.Generator().manual_seed(0)), "b": torch.rand(40)}
    update["b"][3] = math.nan
    good = here(40).index_fill(0, torch.tensor([5, 6]), False)
    joint = rule().join(update, mechanism, good)
    half = 0.0
    for k in range(40):
        numbers = [*map(float, update["a"][k].flatten()), float(update["b"][k])]
        norm = sum(map(abs, numbers)) if kind == "laplace" else math.hypot(*numbers)
        half += 0.0 if k in (3, 5, 6) else 0.5 if norm <= 0.9 else -0.5
    assert abs(half) > 2
    for divisor in (40.0, 25.0):
        assert rule().share(joint["below"].sum(0) / divisor, mechanism) == pytest.approx(0.5 + half / divisor)
    expected = mechanisms.clip(update, mechanism, good)
    assert all(torch.equal(joint["update"][name], expected[name]) for name in update)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_noise_of_sum_and_count_is_what_is_said(kind: Any) -> None:
    mechanism, cohorts = Mechanism(kind, 0.5, 3.0), Cohorts(10, 4.0)
    joint = rule().join({"u": torch.zeros(1, 1)}, mechanism, EVERY)
    drawn = mechanisms.noisy_mean(joint, rule().joint(mechanism), cohorts, torch.Generator().manual_seed(1), 20_000)
    shares = torch.tensor([rule().share(each, mechanism) for each in drawn["below"]])
    law = stats.norm if kind == "gaussian" else stats.laplace
    share = law(0.5 + 0.5 / 4, rule().count_noise(mechanism) / 4)
    update = law(0.0, rule().multiplier(mechanism) * 0.5 / 4)
    assert stats.kstest(shares.numpy(), share.cdf).pvalue > 1e-4
    assert stats.kstest(drawn["update"]["u"][:, 0].numpy(), update.cdf).pvalue > 1e-4
    assert stats.kstest(1.1 * drawn["update"]["u"][:, 0].numpy(), update.cdf).pvalue < 1e-4, "the test would see it"


def test_a_clip_follows_the_published_formula_and_comes_to_its_quantile() -> None:
    assert rule().following(1.0, 0.8, 1.0) == pytest.approx(0.941764533584, abs=1e-12)
    assert rule().following(1.0, -3.0, 1.0) == pytest.approx(math.exp(0.2 * 3.5))
    norms = torch.randn(400, generator=torch.Generator().manual_seed(3), dtype=torch.float64).mul(1.5).exp()
    for quantile, start in itertools.product((0.2, 0.9), (1e-3, 1e3)):
        clip = start
        for _ in range(400):
            clip = rule(quantile=quantile).following(clip, float((norms <= clip).double().mean()), start)
        low, high = torch.quantile(norms, torch.tensor([quantile - 0.05, quantile + 0.05]).double()).tolist()
        assert low < clip < high


def test_noise_of_any_size_leaves_a_clip_that_is_positive_and_finite() -> None:
    for below in (1e6, -1e6):
        clip = 2.0
        for _ in range(50):
            clip = rule().following(clip, below, 2.0)
        assert clip == pytest.approx(2.0 * 10 ** math.copysign(12, -below)) and math.isfinite(clip)


# what can be told ------------------------------------------------------------------------------------------------


def audited(kind: str, noise: float, games: int = 60_000) -> tuple[float, float]:
    """Bound epsilon of one joint release by games, beside the report: one client, as long as it may be, or none."""
    mechanism, own = Mechanism(kind, 1.0, 1.0), rule(0.6)
    joint = own.joint(mechanism)
    charge = Charge.of(joint, Cohorts(1), 2)
    sent = own.join({"u": torch.ones(1, 1)}, mechanism, EVERY)
    nobody = own.join({"u": torch.ones(1, 1)}, mechanism, ~EVERY)
    u, v = flat(sent), flat(nobody)
    generator = torch.Generator().manual_seed(2)

    def scores(messages: Any) -> Tensor:
        less = Mechanism(kind, joint.clip, joint.multiplier * noise)
        drawn = mechanisms.noisy_mean(messages, less, Cohorts(1), generator, games)
        return audit._ratio(flat(drawn), u, v, joint, 1.0).mul(1e9).round()

    delta = 1e-3 if kind == "gaussian" else 0.0

    def bound(low: float, high: float) -> float:
        if kind == "gaussian":
            return audit._of_gaussian(low, high, delta)
        return math.log(low / high) if low > 0 else 0.0

    lower = audit._best(scores(sent), scores(nobody), bound, 0.999)
    return lower, accounting.epsilon([charge], delta)


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "knorm"])
def test_an_audit_of_the_joint_release_stays_below_its_report_and_sees_less_noise(kind: Any) -> None:
    lower, reported = audited(kind, 1.0)
    assert lower <= reported
    assert lower > (0.9 if kind == "gaussian" else 0.5) * reported
    assert audited(kind, 0.5)[0] > reported
    if kind == "gaussian":  # noise of z C: an update whose count nobody has paid for
        assert audited(kind, 1 / rule(0.6).joint(Mechanism(kind, 1.0, 1.0)).clip)[0] > reported
