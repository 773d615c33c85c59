"""Correlated noise: its factors against matrices, its cost against all patterns of participation, its law by games."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.federation import cohort
from pacbayes_fl.privacy import audit, correlated, mechanisms
from pacbayes_fl.privacy.accounting import Budget, epsilon, noise_multiplier
from pacbayes_fl.privacy.charges import Charge, checked, zcdp
from pacbayes_fl.privacy.correlated import band, sensitivity
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism


def order(clients: int, size: int, **more: Any) -> Cohorts:
    return Cohorts(clients, size, "in-order", **more)


def factor(rounds: int, width: int) -> Tensor:
    """Build C [T, T]."""
    c, matrix = band(width), torch.zeros(rounds, rounds, dtype=torch.float64)
    for i, j in itertools.product(range(rounds), repeat=2):
        matrix[i, j] = c[i - j] if 0 <= i - j < width else 0.0
    return matrix


def sums(rounds: int) -> Tensor:
    return torch.ones(rounds, rounds, dtype=torch.float64).tril()


def stream(folder: Path, cohorts: Cohorts, mechanism: Mechanism, fresh: Tensor, first: int = 0) -> Tensor:
    """Draw the noise of a row of releases from fresh noise [T, D], and keep its file."""
    rows = []
    for i, each in enumerate(fresh):
        noise, files = correlated.draw(folder, mechanism, cohorts, first + i, i, each.unsqueeze(0))
        for name, data in files.items():
            (folder / name).write_bytes(data)
        rows.append(noise[0])
    return torch.stack(rows)


def drawn(rounds: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(rounds, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# factors ---------------------------------------------------------------------------------------------------------


def test_coefficients_are_those_of_the_square_root_of_prefix_sums() -> None:
    for k, c in enumerate(band(30).tolist()):
        assert c == pytest.approx(math.comb(2 * k, k) / 4**k, rel=1e-14)
    root = factor(30, 30)
    torch.testing.assert_close(root @ root, sums(30), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("clients", "size"), [(6, 3), (20, 4), (7, 2), (9, 1)])
def test_the_noise_is_that_of_the_inverse_factor_and_cancels_in_sums(clients: int, size: int, tmp_path: Path) -> None:
    cohorts, mechanism, fresh = order(clients, size), Mechanism("dp-ftrl", 0.5, 3.0), drawn(25, 4)
    noise, width = stream(tmp_path, cohorts, mechanism, fresh), clients // size
    c = factor(25, width)
    torch.testing.assert_close(noise, sensitivity(cohorts) * torch.linalg.solve(c, fresh), rtol=0, atol=1e-12)
    left = torch.linalg.solve(c.T, sums(25).T).T  # B = A C^-1
    torch.testing.assert_close(left @ c, sums(25), rtol=0, atol=1e-12)
    torch.testing.assert_close(noise.cumsum(0), sensitivity(cohorts) * left @ fresh, rtol=0, atol=1e-11)
    if width >= 5:
        last = sensitivity(cohorts) * left[-1].norm()
        assert last < 0.75 * 5.0, "a sum of 25 independent noises has sqrt(25)"


def test_the_covariance_of_what_sums_of_releases_carry_is_that_of_b(tmp_path: Path) -> None:
    cohorts, d = order(12, 3), 40_000
    noise = stream(tmp_path, cohorts, Mechanism("dp-ftrl", 1.0, 1.0), drawn(6, d)).cumsum(0)
    b = sensitivity(cohorts) * sums(6) @ torch.linalg.inv(factor(6, 4))
    torch.testing.assert_close(noise @ noise.T / d, b @ b.T, rtol=0.05, atol=0.05)


# cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "width", "apart"), [(8, 2, 2), (9, 3, 3), (9, 3, 4), (7, 1, 1)])
def test_no_pattern_of_participation_costs_more_than_is_paid_for(rounds: int, width: int, apart: int) -> None:
    """All sets of rounds at least `apart` apart, and the worst messages of them; whoever comes early attains it."""
    gram, norm = factor(rounds, width).T @ factor(rounds, width), float(band(width).norm())
    attained = dict[int, float]()
    for many in range(1, rounds + 1):
        for rows in itertools.combinations(range(rounds), many):
            if all(b - a >= apart for a, b in itertools.pairwise(rows)):
                part = gram[list(rows)][:, list(rows)]
                moved = math.sqrt(float(part.abs().sum()))  # the largest over all signs and directions of the messages
                assert moved <= math.sqrt(many) * norm * (1 + 1e-12)
                attained[many] = max(attained.get(many, 0.0), moved)
    assert attained[1] == pytest.approx(norm) and len(attained) == -(-rounds // apart)
    if apart > 1 and width > 1:
        pair = [0, apart - 1]  # one round too close
        assert math.sqrt(float(gram[pair][:, pair].sum())) > math.sqrt(2) * norm or width < apart


@pytest.mark.parametrize(("clients", "size"), [(6, 2), (7, 3), (5, 5), (8, 3), (9, 1), (10, 7)])
def test_clients_in_order_take_part_as_often_as_is_paid_for_and_as_far_apart(clients: int, size: int) -> None:
    ids, cohorts = [17 * k + 3 for k in range(clients)], order(clients, size)
    came = [cohort.in_order(4, p, ids, size).tolist() for p in range(40)]
    assert all(len(set(each)) == size and sorted(each) == each for each in came)
    for n in range(1, 41):
        paid = len(checked([Charge("dp-ftrl", 2.0, 3, cohorts)] * n))
        assert paid == math.ceil(n * size / clients)
        assert max(sum(k in each for each in came[:n]) for k in range(clients)) == paid
    for k in range(clients):
        own = [p for p, each in enumerate(came) if k in each]
        assert min(b - a for a, b in itertools.pairwise(own)) >= cohorts.separation
    turned = [ids[k] for k in cohort.in_order(4, 3, ids[::-1], size).tolist()]
    assert {ids[::-1][k] for k in cohort.in_order(4, 3, ids[::-1], size).tolist()} == {ids[k] for k in came[3]}
    assert len(turned) == size and cohort.order_name(4, ids) == cohort.order_name(4, ids[::-1])
    assert cohort.order_name(5, ids) != cohort.order_name(4, ids) != cohort.order_name(4, ids[1:])


def test_rows_of_other_orders_or_noise_are_counted_by_themselves() -> None:
    one, other = Charge("gaussian", 2.0, 3, order(6, 2, order="a")), Charge("gaussian", 2.0, 3, order(6, 2, order="b"))
    known = Charge("gaussian", 2.0, 3, Cohorts(6))
    assert len(checked([one] * 4)) == 2 and len(checked([one] * 3 + [other] * 3)) == 2
    assert len(checked([one] * 2 + [other] + [one])) == 3
    assert len(checked([one, known, one, known])) == 4
    assert zcdp([one] * 3) == zcdp([known]) and epsilon([one] * 9, 1e-3) == epsilon([known] * 3, 1e-3)


def test_the_account_is_that_of_one_gaussian_release_of_the_whole_stream() -> None:
    """By dp-accounting: of the norm |c| sqrt(p) that the participations of one client have together."""
    from dp_accounting.pld import privacy_loss_distribution

    cohorts, mechanism = order(12, 3), Mechanism("dp-ftrl", 0.7, 5.0)
    moved = sensitivity(cohorts) * 0.7 * math.sqrt(5)
    whole = privacy_loss_distribution.from_gaussian_mechanism(sensitivity(cohorts) * mechanism.scale, sensitivity=moved)
    spent = epsilon([Charge.of(mechanism, cohorts, 9)] * 20, 1e-4)
    assert spent == pytest.approx(whole.get_epsilon_for_delta(1e-4), rel=1e-3)


def test_a_budget_finds_the_noise_of_as_many_releases_as_a_client_takes_part_in() -> None:
    budget = Budget(1.0, 1e-4)
    assert noise_multiplier("dp-ftrl", budget, 20, order(12, 3)) == noise_multiplier("gaussian", budget, 5, Cohorts(12))
    pure = Budget(1.0, 0.0)
    assert noise_multiplier("laplace", pure, 20, order(12, 3)) == noise_multiplier("laplace", pure, 5, Cohorts(12))


@pytest.mark.parametrize("cohorts", [Cohorts(10), Cohorts(10, 5, "poisson"), order(10, 6)])
def test_cohorts_that_gain_nothing_are_refused(cohorts: Cohorts) -> None:
    with pytest.raises(PrivacyError, match=r"in which no client takes part twice.*privacy.cohort = 'in-order'"):
        correlated.check(cohorts)
    correlated.check(order(10, 5))
    with pytest.raises(PrivacyError, match="in-order must be a whole number"):
        Cohorts(10, 2.5, "in-order")


# what can be told ------------------------------------------------------------------------------------------------


def audited(folder: Path, less: float = 1.0, games: int = 40_000) -> tuple[float, float]:
    """Bound epsilon of 7 rounds by games with one client of rounds 0, 3 and 6, or with none, beside the report."""
    cohorts, mechanism = order(6, 2), Mechanism("dp-ftrl", 1.0, 2.0)
    client = torch.zeros(7, 1, dtype=torch.float64).index_fill(0, torch.tensor([0, 3, 6]), 1.0)
    c = factor(7, 3)

    def scores(sent: Tensor, seed: int) -> Tensor:
        fresh = less * mechanism.scale * drawn(7, games, seed)  # every coordinate is a game
        released = sent + stream(folder, cohorts, mechanism, fresh)
        return (c @ client).T @ (c @ released)

    p, q = scores(client, 1).squeeze(), scores(0 * client, 2).squeeze()
    lower = audit._best(p, q, lambda low, high: audit._of_gaussian(low, high, 1e-3), 0.999)
    return lower, epsilon([Charge.of(mechanism, cohorts, 1)] * 7, 1e-3)


def test_an_audit_of_the_stream_stays_below_its_report_and_sees_less_noise(tmp_path: Path) -> None:
    lower, reported = audited(tmp_path)
    assert 0.8 * reported < lower <= reported
    assert audited(tmp_path, 0.5)[0] > reported
    norm = sensitivity(order(6, 2))
    assert audited(tmp_path, 1 / norm)[0] > reported, "noise whose correlation nobody has paid for"


# files -----------------------------------------------------------------------------------------------------------


def test_noise_of_a_release_that_never_came_out_is_drawn_anew(tmp_path: Path) -> None:
    cohorts, mechanism, fresh = order(8, 2), Mechanism("dp-ftrl", 1.0, 1.0), drawn(7, 3)
    stream(tmp_path, cohorts, mechanism, fresh[:6], first=5)
    for row in (fresh[6], fresh[5]):  # killed twice before the sixth was paid for
        noise, files = correlated.draw(tmp_path, mechanism, cohorts, 10, 5, row.unsqueeze(0))
        (tmp_path / correlated.NAME).write_bytes(files[correlated.NAME])
    noise, _ = correlated.draw(tmp_path, mechanism, cohorts, 11, 6, fresh[6:])
    expected = sensitivity(cohorts) * torch.linalg.solve(factor(7, 4), fresh)
    torch.testing.assert_close(noise[0], expected[6], rtol=0, atol=1e-12)


@pytest.mark.parametrize("damage", ["gone", "cut", "changed", "older", "other message"])
def test_noise_that_was_lost_or_damaged_ends_the_run(damage: str, tmp_path: Path) -> None:
    cohorts, mechanism, fresh = order(8, 2), Mechanism("dp-ftrl", 1.0, 1.0), drawn(7, 3)
    stream(tmp_path, cohorts, mechanism, fresh[:5])
    path, serial = tmp_path / correlated.NAME, 5
    good = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "older":
        serial = 7
    elif damage != "other message":
        path.write_bytes(good[:-9] if damage == "cut" else good[:-1] + bytes([good[-1] ^ 1]))
    row = drawn(1, 4 if damage == "other message" else 3)
    with pytest.raises(PrivacyError, match=r"does not hold the noise of the last releases.*\(restore the file"):
        correlated.draw(tmp_path, mechanism, cohorts, serial, serial, row)


def test_a_first_release_has_the_noise_of_its_sensitivity_alone(tmp_path: Path) -> None:
    mechanism, cohorts = Mechanism("dp-ftrl", 2.0, 3.0), order(8, 2)
    fresh = mechanisms.noise(mechanism, 5, torch.Generator().manual_seed(1))
    noise, _ = correlated.draw(tmp_path, mechanism, cohorts, 3, 0, fresh)
    torch.testing.assert_close(noise, math.sqrt(1 + 0.25 + 0.375**2 + 0.3125**2) * fresh)
