from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data_gen
from data_gen import DataGenError
from data_gen.polynomial import CHEBYSHEV, PolynomialConfig, coefficients, generate, mean, mode_of


def test_default_sizes_and_names() -> None:
    data = generate()
    assert data.x.shape == (48 * 110, 1)
    assert data.client_name[[0, 23, 24, 47]].tolist() == ["poly_00", "poly_23", "new_poly_00", "new_poly_23"]
    assert [len(data.rows(c, test=False)) for c in range(48)] == [10] * 48
    assert list(data.manifest["modes"].values()) == ([0] * 12 + [1] * 12) * 2
    assert data.manifest["coefficients"] == [list(row) for row in CHEBYSHEV]
    assert "Our choice" in data.manifest["assumptions"]
    assert np.abs(data.x).max() <= 1
    first = np.flatnonzero(data.client == 0)
    np.testing.assert_array_equal(data.test[first], np.arange(110) >= 10)


def test_same_seed_same_data_other_seed_other_data() -> None:
    assert generate().sha256 == data_gen.generate("polynomial", seed=0).sha256
    assert generate().sha256 != data_gen.generate("polynomial", seed=1).sha256


def test_a_client_draws_the_same_however_many_there_are() -> None:
    few, many = generate(PolynomialConfig(clients=2)), generate(PolynomialConfig(clients=8))
    np.testing.assert_array_equal(few.y[few.rows(0, test=True)], many.y[many.rows(0, test=True)])


def test_moments_over_many_clients() -> None:
    data = generate(PolynomialConfig(clients=2000, new_clients=0, samples=3, test_samples=1, seed=5))
    for mode in (0, 1):
        rows = np.isin(data.client, np.arange(1000) + 1000 * mode)
        residual = data.y[rows] - mean(data.x[rows, 0], mode)
        # Rows of a client are correlated, so one row of each counts for the standard errors.
        one = residual.reshape(1000, 4)[:, 0]
        variance = 0.02 + 0.05**2
        assert abs(one.mean()) < 4 * np.sqrt(variance / 1000)
        assert abs(one.var() - variance) < 4 * variance * np.sqrt(2 / 1000)
    assert data.latent is not None
    noise = data.y - data.latent
    assert abs(noise.std() - 0.05) < 4 * 0.05 / np.sqrt(2 * len(noise))


def test_neighbours_follow_the_lengthscale() -> None:
    data = generate(PolynomialConfig(clients=2, new_clients=0, samples=1, test_samples=400, noise_std=0.0))
    slopes = []
    for client, mode in ((0, 0), (1, 1)):
        rows = data.rows(client, test=True)
        order = np.argsort(data.x[rows, 0])
        x = data.x[rows, 0][order]
        residual = data.y[rows][order] - mean(x, mode)
        step = np.diff(x)
        slopes.append(np.sqrt(np.mean((np.diff(residual)[step > 1e-3] / step[step > 1e-3]) ** 2)))
    # The slope of an SE process has variance outputscale / lengthscale^2.
    assert 0.4 < slopes[0] * 0.2 / np.sqrt(0.02) < 1.8
    assert 0.3 < slopes[1] * 0.5 / np.sqrt(0.02) < 2.2


def test_mean_is_a_polynomial_of_order_seven() -> None:
    x = np.linspace(-1, 1, 50)
    for mode in range(3):
        fit = np.polynomial.Polynomial.fit(x, mean(x, mode), 7)
        np.testing.assert_allclose(fit(x), mean(x, mode), atol=1e-10)
        assert coefficients(mode)[7] != 0
        assert np.abs(mean(x, mode)).max() <= np.abs(coefficients(mode)).sum()


def test_more_modes_have_fixed_coefficients() -> None:
    one, two = (generate(PolynomialConfig(modes=4, seed=seed)) for seed in (0, 1))
    assert one.manifest["coefficients"] == two.manifest["coefficients"]
    assert len({tuple(row) for row in one.manifest["coefficients"]}) == 4
    assert [mode_of(i, 10, 4) for i in range(10)] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]


@pytest.mark.parametrize(
    "options",
    [
        {"clients": 0},
        {"samples": 1.5},
        {"modes": 0},
        {"seed": -1},
        {"noise_std": -0.1},
        {"outputscale": 0.0},
        {"lengthscales": (0.2, 0.0)},
        {"lengthscales": ()},
        {"lengthscales": 0.2},
    ],
)
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(DataGenError, match=next(iter(options))):
        PolynomialConfig(**options)
    with pytest.raises(DataGenError, match="mode"):
        coefficients(-1)


def test_works_without_pandas_and_pvlib() -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('pandas', 'pvlib', 'torch', 'pacbayes_fl')))\n"
        "import data_gen\n"
        "print(data_gen.generate('polynomial', clients=2).sha256)\n"
        "try:\n    data_gen.generate('pv-ew', weather='clearsky')\n"
        "except data_gen.DataGenError as error:\n    print(error)\n"
    )
    root = Path(data_gen.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.splitlines() == [
        generate(PolynomialConfig(clients=2)).sha256,
        "the PV data need pvlib: pip install 'pacbayes_fl[pv]'",
    ]
