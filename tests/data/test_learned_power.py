"""Powers by maximum likelihood against scikit-learn, however rows are dealt to clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.preprocessing import PowerTransformer

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.learned_power import learned_power, power_sums


def dealt(y: np.ndarray, sizes: list[int]) -> ClientBatch:
    """Give rows to clients of these sizes, and to the last one what is left."""
    parts = np.split(y, np.cumsum(sizes))
    rows = [(torch.zeros(len(part), 1, dtype=torch.float64), torch.tensor(part)) for part in parts]
    return ClientBatch.stack(rows, [f"c{k}" for k in range(len(parts))], [*range(len(parts))])


RANDOM = np.random.default_rng(0)
INSIDE = {
    "normal": RANDOM.normal(size=300),
    "positive": 3.0 * np.abs(RANDOM.normal(size=200)),
    "skewed": RANDOM.gamma(6.0, size=200),
    "mirrored": -RANDOM.gamma(6.0, size=200),
    "heavy tails": 10.0 * RANDOM.laplace(size=400),
    "large units": 1e6 * np.exp(0.2 * RANDOM.normal(size=200)),
    "small units": 1e-3 * RANDOM.normal(size=200),
    "few": 1.0 + 2.0 * RANDOM.normal(size=5),
}


@pytest.mark.parametrize("name", INSIDE)
def test_it_is_that_of_scikit_learn_on_the_rows_of_all(name: str) -> None:
    y = INSIDE[name]
    (known,) = PowerTransformer(standardize=False).fit(y[:, None]).lambdas_
    known = min(max(known, 0.0), 2.0)
    for sizes in ([], [2], [1, 0, 3]):
        assert learned_power(power_sums(dealt(y, sizes))) == pytest.approx(known, abs=1e-3)


@pytest.mark.parametrize(("sign", "end"), [(1.0, 0.0), (-1.0, 2.0)])
def test_beyond_the_ends_it_is_the_end(sign: float, end: float) -> None:
    y = sign * np.exp(RANDOM.normal(size=300))
    (known,) = PowerTransformer(standardize=False).fit(y[:, None]).lambdas_
    assert not 0 <= known <= 2 and learned_power(power_sums(dealt(y, [100]))) == end


@pytest.mark.parametrize("y", [[3.3] * 7, [2.0], [0.0, 0.0], [], [1e300, -1e300], [1e-300, 2e-300]], ids=str)
def test_rows_that_say_nothing_give_none(y: list[float]) -> None:
    assert learned_power(power_sums(dealt(np.array(y, dtype=float), [1] if y else []))) is None


def test_padding_and_order_of_clients_do_not_count() -> None:
    batch = dealt(INSIDE["skewed"], [3, 150])
    whole = learned_power(power_sums(batch))
    other = learned_power(power_sums(batch.select(torch.tensor([2, 0, 1]))))
    assert whole is not None and other == pytest.approx(whole, abs=1e-9)
    padded = replace(batch, y=torch.where(batch.mask, batch.y, torch.nan))
    assert learned_power(power_sums(padded)) == whole
