"""Paired comparisons: against scipy's tests and ranks, and by enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.paired import by_client, holm, paired, ranks, sign_flip
from pacbayes_fl.results.records import Result


def made(method: str, values: list[float], seed: int = 0, metric: str = "rsmse") -> Result:
    rows = tuple(ClientRow(k, f"c{k}", "existing", 5, {metric: value}) for k, value in enumerate(values))
    return Result("s", method, seed, "regression", (), rows)


@pytest.mark.parametrize("count", [2, 7, 12])
def test_few_differences_are_tested_by_all_signs_as_scipy_does(count: int) -> None:
    d = np.random.default_rng(count).normal(0.4, 1.0, count)
    expected = stats.permutation_test(
        (d,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert sign_flip(d) == pytest.approx(expected.pvalue, abs=1e-12)


def test_many_are_tested_by_draws_near_the_exact_value() -> None:
    d = np.random.default_rng(0).normal(0.3, 1.0, 16)
    signs = 1 - 2 * ((np.arange(2**16)[:, None] >> np.arange(16)) & 1)
    exact = (np.abs(signs @ d) >= abs(d.sum()) * (1 - 1e-12)).mean()
    assert sign_flip(d) == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 9999))
    assert sign_flip(d) == sign_flip(d) != sign_flip(d, seed=1)


def test_the_test_keeps_its_level() -> None:
    """Under no difference p <= .05 in at most 5 % of experiments, up to chance."""
    random = np.random.default_rng(1)
    rejected = sum(sign_flip(random.standard_t(3, 9)) <= 0.05 for _ in range(400))
    assert rejected <= stats.binom.ppf(0.999, 400, 0.05)


def test_no_difference_and_one_client() -> None:
    assert sign_flip(np.zeros(5)) == 1.0 and sign_flip(np.zeros(30)) == 1.0 and math.isnan(sign_flip(np.ones(1)))


def test_holm_is_that_of_the_book() -> None:
    """Holm (1979): .01, .04, .03, .005 become .03, .06, .06, .02."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, math.nan, 0.9])[::2] == [1.0, 1.0] and math.isnan(holm([math.nan])[0])


def test_differences_are_of_the_same_clients_and_means_over_seeds() -> None:
    runs = [made("a", [1.0, 2.0, 3.0]), made("a", [3.0, 2.0, 1.0], 1), made("b", [1.0, 4.0, math.nan, 9.0])]
    assert by_client(runs, "existing", "rsmse")["a"] == {"c0": 2.0, "c1": 2.0, "c2": 2.0}
    (one,) = paired(runs, "a", "existing", "rsmse")
    assert (one.method, one.mean, one.lower, one.higher, one.clients) == ("b", 0.5, 1, 1, 2)
    assert one.low == -1.0 and one.high == 2.0 and one.p == one.adjusted == 1.0
    assert paired(runs, "absent", "existing", "rsmse") == [] == paired(runs, "a", "new", "rsmse")


def test_ranks_are_those_of_scipy() -> None:
    table = np.array([[1.0, 5.0, 2.0], [1.0, 4.0, 3.0], [0.5, 4.0, 1.0]])
    runs = [made(f"m{k}", row.tolist()) for k, row in enumerate(table)]
    expected = stats.rankdata(table, axis=0).mean(1)
    assert [*ranks(runs, "existing", "rsmse", "lower").values()] == pytest.approx(expected.tolist())
    expected = stats.rankdata(-table, axis=0).mean(1)
    assert [*ranks(runs, "existing", "rsmse", "higher").values()] == pytest.approx(expected.tolist())
    assert (
        ranks(runs, "existing", "rsmse", "")
        == {}
        == ranks(runs, "new", "rsmse", "lower")
        == ranks([], "new", "x", "lower")
    )
