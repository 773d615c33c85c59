"""The likelihood of held-out rows, against densities by hand."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.scaling import untouched
from pacbayes_fl.posteriors.censored import CensoredMixture
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.study.data import scale
from pacbayes_fl.study.search.scores import HeldOutScore, with_noise


class Known:
    """A standard normal prediction of every row, in the method's units."""

    def predict(self, x: torch.Tensor) -> NormalMixture:
        """Predict rows [K, N, d]."""
        zero = torch.zeros(len(x), 1, x.shape[1], dtype=torch.float64)
        return NormalMixture(zero[..., 0], zero, torch.ones_like(zero))


def test_every_client_counts_once_whatever_its_rows_and_its_unit() -> None:
    columns = [torch.tensor(rows, dtype=torch.float64) for rows in ([0.0, 2.0], [1.0, 9.0])]
    train = ClientBatch.stack([(y.unsqueeze(-1), y) for y in columns], ("a", "b"), (0, 1))
    asked = [torch.tensor(rows, dtype=torch.float64) for rows in ([1.0, 3.0, 2.0], [7.0])]
    test = ClientBatch.stack([(y.unsqueeze(-1), y) for y in asked], ("a", "b"), (0, 1))
    group = scale(tables.Group(train, test), untouched(1), torch.device("cpu"))
    held = HeldOutScore(group)
    for index in (torch.tensor([0]), torch.tensor([1])):
        held.add(held.log_prob(Known(), index), index)
    standard = torch.distributions.Normal(0.0, 1.0)
    used, units = group.used, group.units
    expected = [
        (standard.log_prob((y - used.y_mean[k]) / used.y_std[k]) - used.y_std[k].log() + units.y_std[k].log()).mean()
        for k, y in enumerate(asked)
    ]
    assert held.score(tempering=False)[0] == pytest.approx(float(sum(expected) / 2), rel=1e-9)


def test_a_row_that_every_candidate_has_wrong_does_not_decide_for_all() -> None:
    train = ClientBatch.stack(
        [(torch.zeros(2, 1).double(), torch.tensor([-1.0, 1.0]).double())] * 2, ("a", "b"), (0, 1)
    )
    for wrong in (1e6, torch.inf):
        asked = [torch.zeros(1).double(), torch.tensor([0.0, wrong]).double()]
        test = ClientBatch.stack([(torch.zeros(len(y), 1).double(), y) for y in asked], ("a", "b"), (0, 1))
        held = HeldOutScore(scale(tables.Group(train, test), untouched(1), torch.device("cpu")))
        held.add(held.log_prob(Known(), torch.arange(2)), torch.arange(2))
        right = float(held.by_client()[0])
        assert held.by_client().tolist() == pytest.approx([right, (right - 50.0) / 2])
        assert held.score(tempering=False)[0] == pytest.approx(float(held.by_client().mean()))


class Certain:
    """Probabilities of three labels, the same for every row of all clients."""

    def predict(self, x: torch.Tensor) -> ClassMixture:
        """Predict rows [K, N, d]."""
        return ClassMixture(torch.tensor([0.8, 0.15, 0.05]).double().log().expand(*x.shape[:2], 3))


class Broken(Certain):
    """The same, but no number for rows of the client whose inputs are 1."""

    def predict(self, x: torch.Tensor) -> ClassMixture:
        """Predict rows [K, N, d]."""
        whole = super().predict(x).log_probs
        return ClassMixture(torch.where(x[..., :1] == 1, torch.nan, whole))


@pytest.mark.parametrize("tempering", [False, True])
def test_a_client_whose_likelihood_is_no_number_does_not_take_the_choice_from_all(tempering: bool) -> None:
    labels = torch.tensor([0] * 14 + [1] * 6)

    def held(broken: tuple[float, ...]) -> HeldOutScore:
        names, ids = tuple(f"c{k}" for k in range(len(broken))), tuple(range(len(broken)))
        parts = [(torch.full((20, 1), one), labels) for one in broken]
        rows = ClientBatch.pad(parts, names, ids, classes=3)
        result = HeldOutScore(scale(tables.Group(rows, rows), untouched(1), torch.device("cpu")))
        result.add(result.log_prob(Broken(), torch.tensor(ids)), torch.tensor(ids))
        return result

    alone, beside, all_of_them = held((0.0,)), held((0.0, 1.0)), held((1.0, 1.0))
    best, temperature, plain = alone.score(tempering)
    assert (temperature > 1.0) == tempering
    expected = ((best - 50.0) / 2, temperature, (plain - 50.0) / 2)
    assert beside.score(tempering) == pytest.approx(expected)
    assert beside.by_client().tolist() == pytest.approx([plain, -50.0]) and [*beside.below_chance()] == ["c1"]
    assert math.isnan(all_of_them.score(tempering)[0]) and bool(all_of_them.by_client().isnan().all())


def test_labels_below_chance_are_those_of_clients_by_name() -> None:
    names, labels = ("a", "b", "c"), ([0, 0, 1], [2, 2], [1, 0])
    rows = ClientBatch.pad([(torch.zeros(len(y), 1), torch.tensor(y)) for y in labels], names, classes=3)
    held = HeldOutScore(scale(tables.Group(rows, rows), untouched(1), torch.device("cpu")))
    for index in (torch.tensor([2, 0]), torch.tensor([1])):
        held.add(held.log_prob(Certain(), index), index)
    assert held.below_chance() == {"b": pytest.approx(math.log(0.05))}


@pytest.mark.parametrize(("wrong", "lowered"), [(0, False), (9, False), (10, True)])
def test_without_errors_nothing_says_how_sure_to_be(wrong: int, lowered: bool) -> None:
    """Of the likeliest label .8 was said; nine tenths and more are right, so that the best temperature is below 1."""
    labels = torch.tensor([1] * wrong + [0] * (100 - wrong))
    rows = ClientBatch.pad([(torch.zeros(100, 1), labels)], ("a",), classes=3)
    held = HeldOutScore(scale(tables.Group(rows, rows), untouched(1), torch.device("cpu")))
    held.add(held.log_prob(Certain(), torch.tensor([0])), torch.tensor([0]))
    best, temperature, plain = held.score(tempering=True)
    assert (temperature < 1.0, best > plain) == (lowered, lowered) and (lowered or temperature == 1.0)


def test_another_noise_takes_the_place_of_that_of_training_and_of_nothing_else() -> None:
    """N(m_s, v_s + 0.3^2) by scipy where the model was trained with 0.4."""
    means, rest = torch.tensor([[[0.0], [2.0]]]).double(), torch.tensor([[[0.0], [0.5]]]).double()
    trained = NormalMixture(torch.full((1, 2), math.log(0.5), dtype=torch.float64), means, rest + 0.4**2)
    y = torch.tensor([[0.7]], dtype=torch.float64)
    expected = 0.5 * sum(stats.norm(m, math.sqrt(v + 0.09)).pdf(0.7) for m, v in ((0.0, 0.0), (2.0, 0.5)))
    assert float(with_noise(trained, 0.4, 0.3).log_prob(y).exp()) == pytest.approx(expected, rel=1e-9)
    other = CensoredMixture(trained, torch.zeros(1), torch.ones(1))
    assert with_noise(other, 0.4, 0.3) is other
