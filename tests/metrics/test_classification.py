"""Accuracy, likelihood, Brier score and calibration errors against known numbers, scikit-learn and plain loops."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torch import Tensor

from pacbayes_fl.errors import DataError, ShapeError, StudyError
from pacbayes_fl.metrics import accuracy, brier, ece, mce, nll, reliability
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.results.metrics import of_task

METRICS = of_task("classification")
H1 = (
    (0.9, 0.05, 0.05),
    (0.6, 0.3, 0.1),
    (0.2, 0.7, 0.1),
    (0.35, 0.4, 0.25),
    (0.1, 0.1, 0.8),
    (0.5, 0.45, 0.05),
)
H2 = (0.91, 0.62, 0.58, 0.73, 0.77, 0.56, 0.97, 0.66)


def of(probs: object) -> ClassMixture:
    """Make the predictive of one client."""
    return ClassMixture(torch.tensor(probs, dtype=torch.float64).log().unsqueeze(0))


@dataclass(frozen=True)
class Given:
    """A predictive that is no `ClassMixture` and states its probabilities to the last bit."""

    probs: Tensor

    @property
    def entropy(self) -> Tensor:
        raise NotImplementedError

    def log_prob(self, y: Tensor) -> Tensor:
        return self.probs.gather(-1, y.unsqueeze(-1)).squeeze(-1).log()


def all_rows(*labels: int) -> tuple[Tensor, Tensor]:
    return torch.tensor([labels]), torch.ones(1, len(labels), dtype=torch.bool)


def drawn(clients: int = 3, rows: int = 40, classes: int = 5) -> tuple[ClassMixture, Tensor]:
    generator = torch.Generator().manual_seed(2)
    y = torch.randint(classes, (clients, rows), generator=generator)
    logits = torch.randn(clients, rows, classes, generator=generator, dtype=torch.float64)
    return ClassMixture(torch.log_softmax(1.5 * logits + torch.nn.functional.one_hot(y, classes), -1)), y


@pytest.mark.quick
def test_three_classes_by_hand() -> None:
    predictive, rows = Given(torch.tensor([H1], dtype=torch.float64)), all_rows(0, 1, 1, 2, 2, 0)
    assert accuracy(predictive, *rows).item() == pytest.approx(2 / 3, abs=1e-15)
    assert nll(predictive, *rows).item() == pytest.approx(0.6614322261527568, abs=1e-14)
    assert brier(predictive, *rows).item() == pytest.approx(0.3958333333333333, abs=1e-14)
    assert brier(predictive, *rows, per_class=True).item() == pytest.approx(0.13194444444444445, abs=1e-14)
    for bins in (10, 15, 20):
        assert ece(predictive, *rows, bins=bins).item() == pytest.approx(0.35, abs=1e-14)
        assert mce(predictive, *rows, bins=bins).item() == pytest.approx(0.6, abs=1e-14)
    twice = ClassMixture(torch.log_softmax(predictive.probs, -1))
    _, _, confidence = reliability(twice, *rows, bins=1)
    assert confidence.item() == pytest.approx(0.4454532678, abs=1e-10)  # what a second softmax would make of 0.65


@pytest.mark.parametrize(
    ("bins", "expected"), [(5, (0.22, 0.43)), (10, (0.22, 0.43)), (15, (0.2875, 0.77)), (20, (0.3725, 0.77))]
)
def test_calibration_errors_depend_on_the_bins(bins: int, expected: tuple[float, float]) -> None:
    predictive = of([[confidence, 1 - confidence] for confidence in H2])
    rows = all_rows(*(1 - hit for hit in (1, 0, 1, 1, 0, 1, 1, 1)))
    got = ece(predictive, *rows, bins=bins).item(), mce(predictive, *rows, bins=bins).item()
    assert got == pytest.approx(expected, abs=1e-14)


@pytest.mark.quick
def test_scikit_learn_agrees() -> None:
    predictive, y = drawn()
    mask = torch.ones_like(y, dtype=torch.bool)
    got = {name: metric(predictive, y, mask) for name, metric in METRICS.items()}
    for k in range(3):
        probs, labels = predictive.probs[k].numpy(), y[k].numpy()
        probs = probs / probs.sum(1, keepdims=True)
        assert got["accuracy"][k].item() == pytest.approx(accuracy_score(labels, probs.argmax(1)), abs=1e-15)
        assert got["nll"][k].item() == pytest.approx(log_loss(labels, probs, labels=range(5)), rel=1e-12)
        # the binary score of every class against the rest, summed over the classes
        score = sum(brier_score_loss(labels == c, probs[:, c]) for c in range(5))
        assert got["brier"][k].item() == pytest.approx(score, rel=1e-12)


@pytest.mark.parametrize("bins", [1, 4, 10, 33])
def test_bins_are_those_of_a_loop_over_rows(bins: int) -> None:
    predictive, y = drawn()
    mask = torch.arange(40) < torch.tensor([[40], [7], [23]])
    count, right, sure = reliability(predictive, y, mask, bins)
    assert count.dtype == torch.int64 and right.dtype == sure.dtype == torch.float64
    for k in range(3):
        rows: list[list[tuple[float, float]]] = [[] for _ in range(bins)]
        for j in range(40):
            if mask[k, j]:
                probs = predictive.probs[k, j].tolist()
                top = max(range(5), key=probs.__getitem__)
                (place,) = [h for h in range(bins) if h / bins < probs[top] <= (h + 1) / bins]
                rows[place].append((float(top == y[k, j].item()), probs[top]))
        assert count[k].tolist() == [len(each) for each in rows]
        means = np.array([np.mean(each, 0) if each else (math.nan, math.nan) for each in rows])
        np.testing.assert_allclose(right[k].numpy(), means[:, 0], atol=1e-14)
        np.testing.assert_allclose(sure[k].numpy(), means[:, 1], atol=1e-14)
        filled = [np.mean(each, 0) @ (1, -1) for each in rows if each]
        share = np.array([len(each) for each in rows if each]) / int(mask[k].sum())
        assert ece(predictive, y, mask, bins)[k].item() == pytest.approx(share @ np.abs(filled), abs=1e-14)
        assert ece(predictive, y, mask, bins, "l2")[k].item() == pytest.approx(
            math.sqrt(share @ np.square(filled)), abs=1e-14
        )
        assert mce(predictive, y, mask, bins)[k].item() == pytest.approx(np.abs(filled).max(), abs=1e-14)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below() -> None:
    edges = torch.tensor([[[h / 10, *[(1 - h / 10) / 9] * 9] for h in range(2, 11)]], dtype=torch.float64)
    assert reliability(Given(edges), *all_rows(*[0] * 9))[0][0].tolist() == [0, *[1] * 9]


def test_ties_go_to_the_lower_class_and_the_impossible_costs_infinitely() -> None:
    predictive = of([[0.4, 0.4, 0.2], [0.5, 0.0, 0.5]])
    assert accuracy(predictive, *all_rows(0, 0)).item() == 1.0
    assert accuracy(predictive, *all_rows(1, 2)).item() == 0.0
    assert nll(predictive, *all_rows(0, 1)).item() == math.inf
    assert brier(of([[0.0, 1.0]]), *all_rows(0)).item() == 2.0


def test_what_is_not_a_number_is_not_hidden() -> None:
    probs = torch.full((1, 2, 2), 0.5, dtype=torch.float64)
    probs[0, 0] = math.nan
    for metric in (nll, brier, ece, mce):
        assert metric(ClassMixture(probs.log()), *all_rows(0, 0)).isnan().all()


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("garbage", [-1e6, math.nan, math.inf])
def test_padding_has_no_influence(name: str, garbage: float) -> None:
    predictive, y = drawn(3, 6)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1], [0, 0, 0, 1, 1, 1]], dtype=torch.bool)
    spoilt = ClassMixture(predictive.log_probs.masked_fill(~mask.unsqueeze(-1), garbage))
    metric = METRICS[name]
    got = metric(spoilt, y.masked_fill(~mask, -7), mask)
    torch.testing.assert_close(got, metric(predictive, y, mask), rtol=0, atol=0)
    alone = ClassMixture(predictive.log_probs[2:, 3:])
    torch.testing.assert_close(got[2:], metric(alone, y[2:, 3:], mask[2:, 3:]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_a_client_without_rows_gets_nan_and_disturbs_nobody(name: str) -> None:
    predictive, y = drawn(2, 5)
    mask = torch.stack([torch.zeros(5, dtype=torch.bool), torch.ones(5, dtype=torch.bool)])
    got = METRICS[name](predictive, y, mask)
    assert got[0].isnan() and got[1].isfinite()
    none = ClassMixture(predictive.log_probs[:, :0])
    assert METRICS[name](none, y[:, :0], mask[:, :0]).isnan().all()


@pytest.mark.parametrize("name", METRICS)
def test_single_precision_predictions_are_scored_in_double(name: str) -> None:
    predictive, y = drawn()
    mask = torch.ones_like(y, dtype=torch.bool)
    got = METRICS[name](ClassMixture(predictive.log_probs.float()), y, mask)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, METRICS[name](predictive, y, mask), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_what_does_not_fit_is_refused(name: str) -> None:
    predictive, rows = of(H1), all_rows(0, 1, 1, 2, 2, 0)
    with pytest.raises(ShapeError, match=r"predictive\.probs"):
        METRICS[name](predictive, rows[0][:, :4], rows[1][:, :4])
    with pytest.raises(ShapeError, match="integer"):
        METRICS[name](predictive, rows[0].double(), rows[1])
    with pytest.raises(DataError, match="labels 0 to 2, got 3"):
        METRICS[name](predictive, rows[0] + 1, rows[1])


def test_bins_and_norms_are_checked() -> None:
    predictive, rows = of(H1), all_rows(0, 1, 1, 2, 2, 0)
    with pytest.raises(StudyError, match="bins must be at least 1, got 0"):
        mce(predictive, *rows, bins=0)
    with pytest.raises(StudyError, match="norm must be one of l1, l2, got 'max'"):
        ece(predictive, *rows, norm="max")


def test_the_table_has_every_metric_in_the_order_of_result_files() -> None:
    assert list(METRICS) == ["accuracy", "nll", "brier", "ece", "mce"]


def test_a_row_without_probabilities_is_no_hit() -> None:
    """The first of the NaNs would be the most probable: a network that has diverged would be right in class 0."""
    probs = torch.tensor([[H1[0], H1[1]], [H1[0], (math.nan,) * 3], [H1[0], (math.nan,) * 3]], dtype=torch.float64)
    y, mask = torch.tensor([[0, 0]] * 3), torch.tensor([[True, True], [True, True], [True, False]])
    scores = [metric(ClassMixture(probs.log()), y, mask) for metric in METRICS.values()]
    for values in [accuracy(ClassMixture(probs.log()), y, mask), *scores]:
        assert values.isfinite().tolist() == [True, False, True]
