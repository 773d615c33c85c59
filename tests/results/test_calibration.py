"""Histograms of F(y) and coverage by parts of rows, against scipy and against what was simulated."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from pacbayes_fl.posteriors.censored import CensoredMixture
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.results import calibration
from pacbayes_fl.results.client_rows import GROUPS, ClientRow
from pacbayes_fl.results.records import Result

K, M = 6, 400
Z = stats.norm.ppf(0.975)


def simulated(std: float = 1.0, seed: int = 0, by: bool = True) -> Result:
    """Make targets of N(x, 1), predicted with the mean x and a standard deviation; two thirds of the rows are real."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(K, M, 1)))
    y = x[..., 0] + torch.from_numpy(rng.normal(size=(K, M)))
    mask = torch.arange(M) < torch.linspace(M // 3, M, K).unsqueeze(1)
    mean, nan = x[..., 0], torch.nan
    tensors = {"x_test": x, "y_test": torch.where(mask, y, 0.0), "mask_test": mask}
    named = {"mean": mean, "lower": mean - Z * std, "upper": mean + Z * std}
    named["pit"] = torch.special.ndtr((y - mean) / std)
    named |= {"coverage_by": torch.arange(M).remainder(24).expand(K, M).double()} if by else {}
    tensors |= {name: torch.where(mask, values, nan) for name, values in named.items()}
    rows = tuple(ClientRow(k, f"client_{k}", "existing", 5, {"rsmse": 1.0}) for k in range(K))
    labels = {"coverage_by": {"name": "hour of day", "unit": "h"}} if by else {}
    return Result("s", "m", 0, "regression", (), rows, {f"existing.{n}": t for n, t in tensors.items()}, labels)


RIGHT, NARROW = simulated(), simulated(std=0.5)


def test_quantiles_of_the_binomial_are_scipys() -> None:
    rows = np.array([1, 2, 7, 30, 1000, 54321])
    for level in (1e-6, 0.025, 0.3, 0.5, 0.975, 1 - 1e-6):
        for probability in (0.05, 0.31, 0.95):
            expected = stats.binom.ppf(level, rows, probability)
            np.testing.assert_array_equal(calibration._binomial_quantile(level, rows, probability), expected)


def test_bands_hold_all_parts_at_once_as_often_as_they_say() -> None:
    rng, rows = np.random.default_rng(3), np.full(20, 200)
    low, high = calibration.band(rows, 0.05)
    shares = rng.multinomial(200, np.full(20, 0.05), size=4000) / 200
    held = ((low <= shares) & (shares <= high)).all(1).mean()
    assert 0.94 < held < 0.995  # conservative, as counts are whole and Bonferroni's inequality is one


def test_the_true_model_has_uniform_probabilities_and_stays_in_its_band() -> None:
    one = calibration.pit_histogram(RIGHT, "existing")
    assert one is not None and calibration.pit_histogram(RIGHT, "new") is None
    pit = RIGHT.predictions["existing.pit"][RIGHT.predictions["existing.mask_test"]].numpy()
    assert stats.kstest(pit, "uniform").pvalue > 0.05
    np.testing.assert_allclose(one.share * pit.size, np.histogram(pit, 20, (0, 1))[0])
    assert one.rows.tolist() == [pit.size] * 20 and one.share.sum() == pytest.approx(1.0)
    assert ((one.band[0] <= one.share) & (one.share <= one.band[1])).all()
    narrow = calibration.pit_histogram(NARROW, "existing")
    assert narrow is not None and (narrow.share[[0, -1]] > narrow.band[1, [0, -1]]).all()
    of_narrow = NARROW.predictions["existing.pit"][NARROW.predictions["existing.mask_test"]].numpy()
    assert stats.kstest(of_narrow, "uniform").pvalue < 1e-6


def test_jumps_are_spread_evenly_over_what_they_jump() -> None:
    generator = torch.Generator().manual_seed(1)
    latent = 0.5 + torch.randn(1, 5000, generator=generator, dtype=torch.float64)
    y = latent.clamp_min(0.0)  # a third of the rows lie at the bound
    inner = NormalMixture(torch.zeros(1, 1), torch.full((1, 1, 5000), 0.5), torch.ones(1, 1, 5000))
    predictive = CensoredMixture(inner, torch.zeros(1), torch.full((1,), torch.inf))
    tensors = {"pit": predictive.cdf(y), "pit_below": predictive.below(y), "mask_test": torch.ones_like(y).bool()}
    rows = (ClientRow(0, "a", "existing", 5),)
    result = Result("s", "m", 0, "regression", (), rows, {f"existing.{n}": t for n, t in tensors.items()})
    one = calibration.pit_histogram(result, "existing", 10)
    assert one is not None and ((one.band[0] <= one.share) & (one.share <= one.band[1])).all()
    del tensors["pit_below"]
    wrong = calibration.pit_histogram(
        replace(result, predictions={f"existing.{n}": t for n, t in tensors.items()}), "existing", 10
    )
    assert wrong is not None and (wrong.share > wrong.band[1]).any()


def test_coverage_is_counted_by_column_and_by_client() -> None:
    tensors = {name: tensor.numpy() for name, tensor in NARROW.predictions.items()}
    inside = (tensors["existing.lower"] <= tensors["existing.y_test"]) & (
        tensors["existing.y_test"] <= tensors["existing.upper"]
    )
    mask, hours = tensors["existing.mask_test"], tensors["existing.coverage_by"]
    one = calibration.coverage_by(NARROW, "existing")
    assert one is not None and one.low.tolist() == one.high.tolist() == list(range(24))
    for hour in range(24):
        there = mask & (hours == hour)
        assert one.rows[hour] == there.sum() and one.share[hour] == pytest.approx(inside[there].mean())
    clients = calibration.coverage_by_client(NARROW, "existing")
    assert clients is not None and clients.names == tuple(f"client_{k}" for k in range(K))
    for k in range(K):
        assert clients.share[k] == pytest.approx(inside[k][mask[k]].mean()) and clients.rows[k] == mask[k].sum()
    assert (clients.share < clients.band[0]).all()
    right = calibration.coverage_by_client(RIGHT, "existing")
    assert right is not None and ((right.band[0] <= right.share) & (right.share <= right.band[1])).all()
    assert calibration.coverage_by(simulated(by=False), "existing") is None


@pytest.mark.parametrize("values", ["normal", "constant", "ties"])
def test_a_column_of_many_values_is_cut_into_parts_that_hold_every_row_once(values: str) -> None:
    mask = RIGHT.predictions["existing.mask_test"]
    x = RIGHT.predictions["existing.x_test"][..., 0]
    column = {"normal": x, "constant": torch.full_like(x, 3.0), "ties": x.clamp_min(1.0)}[values]
    column = torch.where(mask, column, torch.nan)
    one = calibration.coverage_by(
        replace(RIGHT, predictions={**RIGHT.predictions, "existing.coverage_by": column}), "existing"
    )
    assert one is not None and one.rows.sum() == mask.sum() and (one.rows > 0).all()
    assert (one.low <= one.high).all() and (one.high[:-1] < one.low[1:]).all()
    assert len(one.rows) == {"normal": 10, "constant": 1, "ties": 3}[values]


def test_a_client_without_rows_has_no_share() -> None:
    mask = RIGHT.predictions["existing.mask_test"].clone()
    mask[2] = False
    one = calibration.coverage_by_client(
        replace(RIGHT, predictions={**RIGHT.predictions, "existing.mask_test": mask}), "existing"
    )
    assert one is not None and np.isnan(one.share[2]) and np.isfinite(one.share).sum() == K - 1


def test_the_table_holds_what_the_functions_give() -> None:
    file = io.BytesIO()
    calibration.write_csv(file, calibration.every_table(RIGHT, GROUPS))
    lines = list(csv.DictReader(io.StringIO(file.getvalue().decode())))
    assert [line["by"] for line in lines] == ["pit"] * 20 + ["hour of day"] * 24 + ["client"] * K
    pit, client = calibration.pit_histogram(RIGHT, "existing"), lines[-1]
    assert pit is not None and [float(line["share"]) for line in lines[:20]] == pit.share.tolist()
    assert (client["client"], client["low"], client["rows"]) == ("client_5", "", str(M))
    assert calibration.every_table(replace(RIGHT, predictions={}), GROUPS) == []


@pytest.mark.parametrize(("shares", "said"), [((0.5, 0.9, math.nan), "70%"), ((0.8, 0.95, 0.9), ""), ((), "")])
@pytest.mark.parametrize("seeds", [1, 2])
def test_intervals_that_hold_too_seldom_are_told(seeds: int, shares: tuple[float, ...], said: str) -> None:
    rows = [ClientRow(k, f"c{k}", "new", 3, {"rsmse": 1.0, "coverage_95": one}) for k, one in enumerate(shares)]
    rows.append(ClientRow(9, "other", "existing", 3, {"rsmse": 1.0}))
    expected = f"95 % intervals of ridge hold for {said} of the test rows of new clients, in the mean over clients"
    results = [Result("s", "ridge", seed, "regression", clients=tuple(rows)) for seed in range(seeds)]
    assert calibration.too_seldom(results) == ([expected] if said else [])
