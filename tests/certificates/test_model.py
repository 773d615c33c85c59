"""Certificates without a federation, against formulas in numpy and scipy, of every kind of model that is taken."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from pyro import distributions
from scipy import sparse, stats
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pacbayes_fl import certify_model
from pacbayes_fl.bounds import (
    BOUNDS,
    ClippedNLL,
    MonteCarlo,
    Premises,
    Provenance,
    SaturatingSquare,
    ZeroOne,
    from_record,
    holdout_betting,
    holdout_for,
    seeger,
    to_record,
)
from pacbayes_fl.bounds.divergence import discrete_kl
from pacbayes_fl.errors import AssumptionError, PacBayesFLError, ShapeError

FINE: dict[str, Any] = {"source": "split", "independent": True}
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "certify-your-model.md"


def data(n: int, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    return x, (x[:, 0] + 0.5 * random.normal(size=n) > 0).astype(int)


@pytest.mark.slow
def test_the_example_of_ten_lines_certifies(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    exec(compile(block, "certify-your-model.md", "exec"), {})
    assert "risk at most 0." in capsys.readouterr().out


@pytest.mark.parametrize("kind", [LogisticRegression, RidgeClassifier])
def test_a_fixed_classifier_has_the_binomial_bound_whatever_its_labels_are_called(kind: Any) -> None:
    names = np.array(["no", "yes"])
    (x, y), (more, z) = data(60), data(80, 1)
    fitted = kind().fit(x, names[y])
    errors = int((fitted.predict(more) != names[z]).sum())
    certificate = certify_model(fitted, rows=(more, names[z]), **FINE)
    assert certificate.valid
    assert certificate.value.item() == pytest.approx(stats.beta.ppf(0.95, errors + 1, 80 - errors), rel=1e-9)
    strange = certify_model(fitted, rows=(more, np.array(["else"] * 80)), **FINE)
    assert strange.value.item() == 1.0


def test_a_list_of_predictors_is_exact() -> None:
    (x, y), (more, z) = data(60), data(90, 2)
    trees = [DecisionTreeClassifier(max_depth=d, random_state=0).fit(x, y) for d in (1, 2, 5)]
    weights, prior = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])
    risk = sum(w * (tree.predict(more) != z).mean() for w, tree in zip(weights, trees, strict=True))
    kl = discrete_kl(torch.from_numpy(weights), torch.from_numpy(prior))
    got = certify_model(trees, prior, (more, z), weights=weights, **FINE)
    assert got.value.item() == pytest.approx(
        seeger(risk, kl, 90, 0.05, Premises(Provenance("split"), independent=True)).value.item(), rel=1e-10
    )
    assert certify_model(trees, None, (more, z), **FINE).terms["kl"].item() == 0.0


class Noisy(nn.Module):
    """A module that draws whenever it is called, as probabilistic layers do."""

    def forward(self, x: Tensor) -> Tensor:
        w = 3.0 + 0.1 * torch.randn(())
        return torch.stack([-w * x[:, 0], w * x[:, 0]], 1)


def test_any_module_with_a_sampler_and_a_divergence_will_do() -> None:
    x, y = (torch.from_numpy(each) for each in data(60, 8))
    before = torch.random.get_rng_state()
    got = certify_model(Noisy(), None, (x, y), ClippedNLL(1e-3), kl=1.5, draws=100, **FINE)
    assert torch.equal(torch.random.get_rng_state(), before) and got.valid and got.terms["kl"].item() == 1.5
    same = certify_model(Noisy(), None, (x, y), ClippedNLL(1e-3), kl=1.5, draws=100, **FINE)
    other = certify_model(Noisy(), None, (x, y), ClippedNLL(1e-3), kl=1.5, draws=100, seed=1, **FINE)
    assert torch.equal(got.value, same.value) and not torch.equal(got.value, other.value)
    logits, most = torch.stack([-3 * x[:, 0], 3 * x[:, 0]], 1), -np.log(1e-3)
    clipped = nn.functional.cross_entropy(logits, y, reduction="none").clamp_max(most)
    assert got.terms["risk"].item() == pytest.approx(clipped.mean().item() / most, abs=0.01)

    def drawn(generator: torch.Generator) -> Any:
        sign = 1.0 if torch.rand((), generator=generator) < 0.9 else -1.0
        return lambda x: torch.stack([-sign * x[:, 0], sign * x[:, 0]], 1)

    mixed = certify_model("named", "prior", (x, y), sample=drawn, kl=lambda q, p: len(q + p), draws=1000, **FINE)
    wrong = ((x[:, 0] > 0).long() != y).double().mean().item()
    assert mixed.terms["kl"].item() == 10.0
    assert mixed.terms["risk"].item() == pytest.approx(0.9 * wrong + 0.1 * (1 - wrong), abs=0.04)


def test_a_module_takes_arrays_as_tensors_of_its_own_type() -> None:
    x, y = data(80, 5)
    linear = nn.Linear(2, 2)
    dropout = nn.Sequential(nn.Dropout(0.9), linear)  # of float32, and rows of float64
    fixed = certify_model(dropout, rows=(x, y), **FINE)
    wrong = (linear(torch.from_numpy(x).float()).argmax(1).numpy() != y).mean()
    assert fixed.terms["risk"].item() == pytest.approx(wrong, abs=1e-6) and dropout.training
    dropout[1].eval()  # as who freezes a layer does
    certify_model(dropout, rows=(x, y), **FINE)
    assert [each.training for each in dropout.modules()] == [True, True, False]
    words, places = nn.Embedding(80, 2), np.arange(80)
    told = certify_model(words, rows=(places, y), **FINE)
    assert told.terms["risk"].item() == pytest.approx((words.weight.argmax(1)[places].numpy() != y).mean())
    assert certify_model(Noisy(), None, (x, y), kl=1.5, draws=20, **FINE).valid


def test_equal_rows_count_once_and_more_often_only_where_they_err() -> None:
    x, y = data(40, 9)
    model = LogisticRegression().fit(*data(50))
    once, thrice = (certify_model(model, rows=rows, **FINE) for rows in ((x, y), (np.tile(x, (3, 1)), np.tile(y, 3))))
    errors = int((model.predict(x) != y).sum())
    assert errors > 0 and thrice.terms["n"].item() == 40 + 2 * errors
    assert thrice.value.item() == pytest.approx(stats.beta.ppf(0.95, 3 * errors + 1, 40 - errors), rel=1e-9)
    assert thrice.value.item() > once.value.item()
    record = to_record(thrice)
    assert record["formula"] == holdout_for(ZeroOne()).name and from_record(record).value.item() == thrice.value.item()


@pytest.mark.parametrize("labels", [True, False])
def test_a_fixed_predictor_under_another_loss_bets_and_is_written_and_read(labels: bool) -> None:
    x, y = data(60, 3)
    model: Any = LogisticRegression().fit(x, y) if labels else LinearRegression().fit(x, y + 0.0)
    more, z = data(70, 4)
    loss: Any = ClippedNLL(1e-2) if labels else SaturatingSquare()
    got = certify_model(model, rows=(more, z if labels else z + 0.0), loss=loss, **FINE)
    said = model.predict_log_proba(more)[np.arange(70), z] if labels else model.predict(more) - z
    losses = np.minimum(-said, -np.log(1e-2)) / -np.log(1e-2) if labels else 1 - np.exp(-(said**2))
    unit = holdout_betting(torch.from_numpy(losses), 0.05, Premises(Provenance("split"), independent=True, loss=loss))
    assert got.valid and got.value.item() == pytest.approx(unit.value.item(), rel=1e-6)
    assert from_record(to_record(got)).value.item() == got.value.item()


def test_without_premises_it_says_why_it_is_no_certificate() -> None:
    model = LogisticRegression().fit(*data(50))
    reasons = certify_model(model, rows=data(40, 1)).reasons
    assert len(reasons) == 2 and "nobody said where the prior came from" in reasons[0]
    assert not certify_model(model, rows=data(40, 1), source="saw the rows", independent=True).valid
    assert not certify_model(model, rows=data(40, 1), tried=None, **FINE).valid


DATASET = TensorDataset(torch.zeros(9, 2), torch.zeros(9))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: certify_model(m, **FINE), AssumptionError, "rows must be given"),
        (lambda m: certify_model(m, rows=(*data(5), np.ones(5)), **FINE), AssumptionError, "rows must be two, .* 3 of"),
        (lambda m: certify_model(m, rows=DATASET, **FINE), AssumptionError, "rows must be two, .* a TensorDataset"),
        (lambda m: certify_model(m, rows=(data(5)[0], [0]), **FINE), ShapeError, "as many inputs as targets"),
        (lambda m: certify_model(m, rows=(np.zeros((0, 2)), []), **FINE), ShapeError, "as many inputs"),
        (
            lambda m: certify_model(m, deepcopy(m), data(9), **FINE),
            AssumptionError,
            "how a LogisticRegression is drawn from",
        ),
        (lambda m: certify_model(m, rows=data(9), loss="nll", **FINE), AssumptionError, "unbounded"),
        (lambda m: certify_model(m, rows=data(9), loss="saturating-square", **FINE), AssumptionError, "not for labels"),
        (lambda m: certify_model([m, m], None, data(9), weights=[1.0, 1.0], **FINE), AssumptionError, "sum to 1"),
        (lambda m: certify_model(m, None, data(9), weights=[1.0], **FINE), AssumptionError, "of a list of predictors"),
        *(
            (
                partial(
                    lambda m, bound: certify_model([m, m], [0, 1], data(9), weights=[0.9, 0.1], bound=bound), bound=b
                ),
                AssumptionError,
                said,
            )
            for b, said in (
                (None, "draws what its prior never does: their KL divergence is infinite"),
                ("seeger", "their KL divergence is infinite"),
                ("one-draw", "the prior never draws the predictor that was drawn: ln dQ/dP is infinite"),
            )
        ),
        (lambda m: certify_model(m, rows=data(9), sample=lambda g: m, **FINE), AssumptionError, "without a divergence"),
        (lambda m: certify_model(3, rows=data(9), **FINE), AssumptionError, "int predicts nothing"),
        (lambda m: certify_model([], rows=data(9), **FINE), AssumptionError, "must have one at least"),
        (lambda m: certify_model(m, rows=data(9), loss="square", **FINE), AssumptionError, "is unbounded|must be NAME"),
        (lambda m: certify_model([m, len], rows=data(9), **FINE), AssumptionError, "and some are not"),
        (lambda m: certify_model([m], None, data(9), kl=np.inf, **FINE), AssumptionError, "kl must be finite"),
        (lambda m: certify_model(lambda x: x[:, 0], rows=data(9), **FINE), ShapeError, "scores of labels must be"),
        (lambda m: certify_model(lambda x: x[:3], rows=data(9), **FINE), ShapeError, "3 predictions of 9 rows"),
    ],
)
def test_what_cannot_be_certified_is_refused(call: Any, error: type[PacBayesFLError], message: str) -> None:
    with pytest.raises(error, match=message):
        call(LogisticRegression().fit(*data(50)))


def program(x: Any) -> Any:
    weight = pyro.sample("weight", distributions.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(x)):
        return pyro.sample("label", distributions.Bernoulli(logits=torch.as_tensor(x).float() @ weight))


def guide(x: Any) -> None:
    pyro.sample("weight", distributions.Normal(torch.ones(2), 0.5).to_event(1))


def as_floats(n: int) -> tuple[Any, Any]:
    x, y = data(n)
    return x, y.astype(float)


def nought(x: Any) -> Any:
    return np.zeros(len(x))


def net() -> nn.Module:
    return nn.Linear(2, 1)


def refused(*given: Any, **more: Any) -> Any:
    """Certify the fitted classifier that comes, or another model, on nine rows unless others are given."""
    return lambda m: certify_model(*(given or (m,)), **({"rows": data(9), **FINE} | more))


def sequences(x: Any) -> Any:
    """Give the scores of a sequence of one step, which compared with [n] labels are those of every pair of rows."""
    return np.zeros((len(x), 1, 2))


X, Y = data(9)
SCORES = r"scores of labels must be \[n, C\], and labels \[n\], got {}"
UNKNOWN = r"how a Linear is drawn from, .*, are not known \(give sample and kl; or leave the prior out"
ONE_LOGIT = r"scores of labels must be \[n, C\], got one number a row, such as .* \(of one logit a row give two scores"
FLOATS = r"got targets of type float64 \(floats are .*: rows=\(inputs, targets.astype\(int\)\)"
UNFITTED = r"the model must be fitted before .*: This LogisticRegression instance is not fitted yet \(fit it on"
SPARSE = r"the inputs in rows must be an array, a tensor or a list with a row each, got a {} \(inputs.toarray\(\)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (refused(rows=as_floats(9)), rf"is a classifier, whose labels are \[0, 1\], {FLOATS}"),
        (refused(rows=as_floats(9), loss="0-1"), rf"0-1 loss is not for real targets, {FLOATS}"),
        (refused(np.atleast_2d, rows=as_floats(9)), r"real targets must be \[n\], got \[9, 2\] \(floats are numbers"),
        (refused(sequences), SCORES.format(r"\[9, 1, 2\]")),
        (refused([sequences, sequences]), SCORES.format(r"\[9, 1, 2\]")),
        (refused(sequences, bound="holdout-kl"), SCORES.format(r"\[9, 1, 2\]")),
        (refused(sequences, rows=as_floats(9)), r"real targets must be \[n\], got \[9, 1, 2\]"),
        (refused(lambda x: 1.0), SCORES.format(r"\[\]")),
        (refused(guide, program, draws=3), ONE_LOGIT),
        (refused(net()), ONE_LOGIT),
        (
            refused(lambda x: 0.5 + x[:, 0]),
            r"got one number a row, .*; of numbers to be predicted targets.astype\(float",
        ),
        (refused(nought, rows=(X, Y / Y)), r"targets must be numbers, got NaN in \d of 9 rows, row \d first \(leave"),
        (refused(LogisticRegression()), UNFITTED),
        (refused([LogisticRegression()]), UNFITTED),
        (refused(sample=lambda g: LogisticRegression(), kl=1.0), UNFITTED),
        (refused(net(), net()), UNKNOWN),
        (refused(net(), net(), rows=(torch.zeros(9, 2), Y)), UNKNOWN),
        (refused(rows=(sparse.csr_matrix(X), Y)), SPARSE.format("csr_matrix")),
        (refused(rows=(sparse.csr_array(X), Y)), SPARSE.format("csr_array")),
        (refused(rows=(iter([1.0]), [0])), SPARSE.format("list_iterator")),
        (refused(draws=1.5), "draws must be at least 1 and a whole number, got 1.5"),
        (refused(kl=lambda q, p: None), r"kl must be a number of nats, .*, got None \("),
        (refused(kl=True), r"kl must be a number of nats, .*, got True \("),
        (refused(kl=lambda q, p: torch.tensor(True)), r"kl must be a number of nats, "),
        (refused(sample=lambda: nought, kl=1.0), r"sample must be a function of a torch.Generator .*, got .*generator"),
        (refused(sample=nought(X), kl=1.0), r"sample must be a function of a torch.Generator"),
        (refused(independent="no"), r"independent must be True or False, got 'no' \("),
    ],
)
def test_what_is_refused_is_told_what_to_do(call: Any, message: str) -> None:
    with pytest.raises(PacBayesFLError, match=message):
        call(LogisticRegression().fit(*data(50)))


class Declared:
    """A loss of numbers that is declared in [0, 1], whatever it gives."""

    name, low, high, convex = "cost", 0.0, 1.0, False

    def __init__(self, most: float) -> None:
        self.most = most

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        return self.most * ((prediction - y).abs() > 2.5).double()


class OfLabels:
    """A cost of labels, in [0, 5]."""

    name, low, high, convex = "cost", 0.0, 5.0, False

    def __call__(self, scores: Tensor, y: Tensor) -> Tensor:
        return 5.0 * (scores.argmax(-1) != y).double()


def near_nought(generator: torch.Generator) -> Any:
    level = 1e-3 * torch.rand((), generator=generator).item()
    return lambda x: np.full(len(x), level)


@pytest.mark.parametrize("kind", ["one", "listed", "drawn"])
def test_a_loss_that_leaves_its_declared_range_is_refused_though_its_mean_does_not(kind: str) -> None:
    x = np.arange(100.0)[:, None]
    y = np.where(x[:, 0] == 7, 3.0, 0.0)  # 50 on one of a hundred rows, .5 on average

    def certified(loss: Any) -> Any:
        if kind == "drawn":
            return certify_model(nought, None, (x, y), loss, sample=near_nought, kl=1.0, draws=9, **FINE)
        return certify_model([nought] * (1 if kind == "one" else 2), None, (x, y), loss, **FINE)

    assert certified(Declared(1.0)).terms["risk"].item() == pytest.approx(0.01)
    with pytest.raises(AssumptionError, match=r"'cost' \(Declared\) must lie in the range .*, \[0, 1\], got 50"):
        certified(Declared(50.0))


def test_a_loss_of_scores_is_not_taken_for_errors_of_a_model_that_gives_labels_alone() -> None:
    x, y = data(60)
    fitted = RidgeClassifier().fit(x, y)
    scores = certify_model(lambda x: np.eye(2)[fitted.predict(x)], rows=(x, y), loss=OfLabels(), **FINE)
    assert scores.terms["risk"].item() == pytest.approx(5 * (fitted.predict(x) != y).mean())
    with pytest.raises(AssumptionError, match="cost needs probabilities, and the model gives labels alone"):
        certify_model(fitted, rows=(x, y), loss=OfLabels(), **FINE)


@pytest.mark.parametrize("kind", ["one", "listed", "drawn"])
@pytest.mark.parametrize("said", ["scores", "one score", "infinities", "labels", "numbers"])
def test_predictions_that_are_no_numbers_are_refused(kind: str, said: str) -> None:
    x, y = data(60)
    targets = y + 0.0 if said == "numbers" else y

    def model(x: Any) -> Any:
        result = np.zeros(len(x)) if said in ("labels", "numbers") else np.zeros((len(x), 2))
        if said == "one score":
            result[7, 1] = np.nan
        else:
            result[7] = np.inf if said == "infinities" else np.nan
        return result

    with pytest.raises(AssumptionError, match="predictions must be numbers, got NaN in 1 of 60 rows, row 7 first"):
        if kind == "drawn":
            certify_model(model, None, (x, targets), sample=lambda g: model, kl=1.0, draws=9, **FINE)
        else:
            certify_model([model] * (1 if kind == "one" else 2), None, (x, targets), **FINE)


PREMISES = Premises(Provenance("split"), independent=True)


@pytest.mark.parametrize("kind", [np.float64, np.float32, object])
def test_rows_that_differ_by_the_sign_of_a_nought_are_one_row(kind: Any) -> None:
    x, y = data(40, 9)
    model = lambda x: np.stack([-x[:, 0], x[:, 0]], 1).astype(float)  # noqa: E731
    signed = (np.c_[x, np.full(40, nought)].astype(kind) for nought in (0.0, -0.0))
    once, twice = (
        certify_model(model, rows=rows, **FINE)
        for rows in ((np.c_[x, np.zeros(40)], y), (np.concatenate([*signed]), np.tile(y, 2)))
    )
    errors = int(((x[:, 0] > 0) != y).sum())
    assert once.terms["n"].item() == 40 and errors and twice.terms["n"].item() == 40 + errors


@pytest.mark.parametrize("kind", ["cells", "arrays", "ragged"])
def test_long_rows_are_told_apart_wherever_they_differ(kind: str) -> None:
    cells = np.zeros((30, 1201), dtype=object)
    cells[:, 600] = np.arange(30.0) % 20
    rows: Any = cells
    if kind != "cells":
        rows = [row.astype(float)[: 1201 - (kind == "ragged") * int(row[600])] for row in cells]
        rows = rows if kind == "ragged" else np.array([*rows, None], dtype=object)[:-1]
    got = certify_model(lambda x: np.zeros(len(x), dtype=int), rows=(rows, np.zeros(30, dtype=int)), **FINE)
    assert got.valid and got.terms["n"].item() == 20


def test_numbers_of_several_types_are_equal_where_their_values_are() -> None:
    model, right = lambda x: np.zeros(len(x), dtype=int), np.zeros(4, dtype=int)
    mixed = [[1, "a", np.nan], [1.0, "a", float("nan")], [np.float32(1), np.str_("a"), np.nan], [True, "b", 0]]
    for rows in (np.array(mixed, dtype=object), [[1, 2.0], [1.0, 2], [1, 2], [1, 3]], [[1], [1.0], [1], [1, 2]]):
        assert certify_model(model, rows=(rows, right), **FINE).terms["n"].item() == 2


class Costly(ZeroOne):
    """Errors on the second class cost tenfold."""

    name, high = "cost", 10.0

    def __call__(self, log_probs: Tensor, y: Tensor) -> Tensor:
        return super().__call__(log_probs, y) * torch.where(y == 1, 10.0, 1.0)


def test_a_loss_that_is_made_of_the_0_1_loss_is_taken_as_it_says() -> None:
    (x, y), model = data(60, 4), LogisticRegression().fit(*data(50))
    wrong = model.predict(x) != y
    costs = torch.from_numpy(np.where(wrong, np.where(y == 1, 10.0, 1.0), 0.0))
    expected = holdout_betting(costs, 0.05, Premises(Provenance("split"), independent=True, loss=Costly()))
    got = certify_model(model, rows=(x, y), loss=Costly(), **FINE)
    assert got.theorem == expected.theorem and got.value.item() == pytest.approx(expected.value.item(), rel=1e-9)
    with pytest.raises(AssumptionError, match="cost needs probabilities, and the model gives labels alone"):
        certify_model(model.predict, rows=(x, y), loss=Costly(), **FINE)


@pytest.mark.parametrize("kind", ["one", "list"])
def test_a_prior_that_was_private_in_rows_pays_for_copies_that_change_together(kind: str) -> None:
    (x, _), right = data(40, 9), lambda x: np.zeros(len(x), dtype=int)
    model, bound = (right, "holdout-kl") if kind == "one" else ([right, right], "seeger")

    def certified(times: int, epsilon: float, seen: int | None = None) -> Any:
        own = Provenance("row-level DP", epsilon, rows=seen)
        rows = np.tile(x, (times, 1)), np.zeros(40 * times, dtype=int)
        result = certify_model(model, None, rows, bound=bound, source=own, independent=True)
        assert result.valid and result.terms["n"].item() == 40
        return result

    for epsilon in (0.001, 0.02, 0.1):  # what is private in rows is so thrice less in draws that stand there thrice
        assert certified(3, epsilon).value >= certified(1, 3 * epsilon).value - 1e-12
    assert certified(1, 0.02).prior.rows is None and certified(1, 0.02, 60).prior.rows == 60
    assert certified(3, 0.02, 150).prior.rows == 150 - 120 + 40 * 3**2


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", ["holdout-chernoff", "holdout-kl", "holdout-hoeffding", "holdout-betting"])
def test_a_predictor_has_the_bound_that_was_asked_for(name: str, times: int) -> None:
    (x, y), model = data(60, 4), LogisticRegression().fit(*data(50))
    wrong = model.predict(x) != y
    got = certify_model(model, rows=(np.tile(x, (times, 1)), np.tile(y, times)), bound=name, **FINE)
    risk, n = times * wrong.sum() / (60 + (times - 1) * wrong.sum()), 60  # copies of errors count in the risk alone
    if name == "holdout-betting":
        doubtful = torch.from_numpy(np.sort(wrong.astype(float))[::-1].copy()).repeat(times)
        expected = holdout_betting(doubtful, 0.05, PREMISES, rows=60, doubtful=60 * (times - 1))
    else:
        expected = BOUNDS[name].certify({"risk": risk, "n": n}, 0.05, PREMISES)
    assert got.theorem == expected.theorem and got.valid
    assert got.value.item() == pytest.approx(expected.value.item(), rel=1e-12)
    assert from_record(to_record(got)).value.item() == got.value.item()


def table_of(errors: Tensor) -> list[Any]:
    """Predictors of labels that are 0, each of which errs on the rows [J, n] that it is told by their numbers."""
    return [lambda x, own=own: own[torch.as_tensor(x).long().flatten()].long() for own in errors]


def test_a_list_s_vote_is_bounded_by_all_pairs_of_its_predictors() -> None:
    random, rows = torch.Generator().manual_seed(0), 40
    errors = torch.rand(5, rows, generator=random) < torch.tensor([0.05, 0.1, 0.2, 0.3, 0.5]).unsqueeze(1)
    q, p = [0.4, 0.3, 0.2, 0.1, 0.0], [0.1, 0.2, 0.3, 0.2, 0.2]
    x, y = np.arange(rows)[:, None], np.zeros(rows, dtype=int)
    got = certify_model(table_of(errors), p, (x, y), weights=q, bound="tandem", **FINE)
    pairs = sum(q[i] * q[j] * (errors[i] & errors[j]).double().mean().item() for i in range(5) for j in range(5))
    kl = sum(a * np.log(a / b) for a, b in zip(q, p, strict=True) if a)
    expected = BOUNDS["tandem"].certify({"tandem_risk": pairs, "kl": kl, "n": rows}, 0.05, PREMISES)
    assert got.valid and got.value.item() == pytest.approx(expected.value.item(), rel=1e-12)
    assert "majority vote" in str(got) and from_record(to_record(got)).value.item() == got.value.item()
    twice = np.tile(x, (2, 1)), np.tile(y, 2)
    copied = certify_model(table_of(errors), p, twice, weights=q, bound="tandem", **FINE)
    assert copied.value > got.value and copied.terms["n"].item() == rows  # copies count in the risk alone


def test_the_vote_of_a_list_is_covered_exactly_where_it_is_level_on_every_row_that_is_hard() -> None:
    """Of two predictors one errs on every hard row, each on half of them: the vote is lost there, T = k / 4n."""
    n, rows = 100, (np.arange(100)[:, None], np.zeros(100, dtype=int))
    values = []
    for k in range(n + 1):
        hard, odd = torch.arange(n) < k, torch.arange(n) % 2 == 1
        models = table_of(torch.stack((hard & odd, hard & ~odd)))
        values.append(certify_model(models, None, rows, bound="tandem", **FINE).value.item())
    for chance in (0.3, 0.6, 0.9):
        pmf, value = stats.binom.pmf(np.arange(n + 1), n, chance), np.array(values)
        assert pmf[value < chance].sum() <= 0.05
    assert pmf[0.5 * value < chance].sum() > 0.05  # mutant: the factor 2 of a Gibbs predictor


def test_a_vote_has_labels_and_a_list() -> None:
    models = table_of(torch.zeros(2, 9).bool())
    with pytest.raises(AssumptionError, match=r"'tandem' is on a vote, which has errors, and 1 - exp.* is no 0-1 loss"):
        certify_model([LinearRegression()] * 2, None, (data(9)[0], data(9)[0][:, 0]), bound="tandem", **FINE)
    with pytest.raises(AssumptionError, match="'tandem' is on a posterior, and the model is one predictor"):
        certify_model(models[:1], None, (np.arange(9)[:, None], np.zeros(9, dtype=int)), bound="tandem", **FINE)


@pytest.mark.parametrize(
    ("bound", "posterior", "message"),
    [
        ("seeger", False, r"'seeger' is on a posterior, and the model is one predictor .*one of holdout-binomial, "),
        (
            "holdout-kl",
            True,
            r"'holdout-kl' is on one predictor that is fixed, and the model is a posterior .*seeger",
        ),
        (
            "one-draw",
            True,
            r"'one-draw' needs log_ratio, .*, log_ratio=lambda h: ln q\(h\) - ln p\(h\); or .*empirical-bernstein",
        ),
        ("gibbs", True, "'gibbs' needs log_z, which certify_model does not know"),
        ("server", True, "'server' needs free_energy, m, which certify_model does not know"),
        ("tandem", True, "'tandem' needs tandem_risk, which certify_model does not know"),
    ],
)
def test_a_bound_for_other_models_is_refused_before_a_draw(bound: str, posterior: bool, message: str) -> None:
    def drawn(generator: torch.Generator) -> Any:
        raise AssertionError

    def call() -> Any:
        if posterior:
            return certify_model(None, None, data(30), bound=bound, sample=drawn, kl=1.0, **FINE)
        return certify_model(LogisticRegression().fit(*data(50)), rows=data(30), bound=bound, **FINE)

    with pytest.raises(AssumptionError, match=message):
        call()
    if posterior and bound not in ("tandem", "one-draw"):  # of a list all pairs and weights are known
        with pytest.raises(AssumptionError, match=message):
            certify_model([nought] * 2, None, data(30), bound=bound, **FINE)


def linear(generator: torch.Generator) -> Any:
    slope = 0.1 * torch.randn((), generator=generator).item()
    return lambda x: slope * x[:, 0]


@pytest.mark.parametrize("times", [1, 2])
def test_draws_are_paid_for_by_betting_on_their_risks(times: int) -> None:
    x = data(50, 6)[0]
    y = 0.3 * x[:, 1]
    rows = np.tile(x, (times, 1)), np.tile(y, times)
    got = certify_model(None, None, rows, sample=linear, kl=1.0, draws=100, **FINE)
    generator = torch.Generator().manual_seed(0)
    losses = np.stack([1 - np.exp(-((linear(generator)(x) - y) ** 2)) for _ in range(100)])
    ordered = np.sort(losses)[:, ::-1]  # copies count where they are above the mean: the largest over how many do
    sums, counts = losses.sum(1, keepdims=True) + np.cumsum(np.c_[np.zeros(100), ordered], 1), 50 + np.arange(51)
    risks = torch.from_numpy(losses.mean(1) if times == 1 else (sums / counts).max(1))
    drawn = MonteCarlo(100, 0.01, risks)
    expected = seeger(risks.mean(), 1.0, 50, 0.05, PREMISES, monte_carlo=drawn).value.item()
    assert got.valid and got.value.item() == pytest.approx(expected, rel=1e-10)
    assert got.value.item() < seeger(risks.mean(), 1.0, 50, 0.05, PREMISES, monte_carlo=MonteCarlo(100, 0.01)).value
    assert from_record(to_record(got)).value.item() == got.value.item()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("listed", [True, False])
def test_the_variance_of_the_losses_is_measured_for_the_bound_that_needs_it(listed: bool, times: int) -> None:
    x = data(400, 6)[0]
    y = 0.3 * x[:, 1]
    rows = np.tile(x, (times, 1)), np.tile(y, times)
    generator = torch.Generator().manual_seed(0)
    ones = [linear(generator) for _ in range(100)]
    more: Any = {"sample": linear, "kl": 0.0, "draws": 100}
    got, other = (
        certify_model([*ones] if listed else None, None, rows, bound=name, **({} if listed else more), **FINE)
        for name in ("empirical-bernstein", "seeger")
    )
    losses = np.stack([1 - np.exp(-((one(x) - y) ** 2)) for one in ones])
    largest = got.terms["risk"].item() * (1 - got.terms["risk"].item())
    variance = got.terms["variance"].item()
    assert got.valid and from_record(to_record(got)).value.item() == got.value.item()
    if times == 1:
        assert variance == pytest.approx(losses.var(1).mean()) and variance < 0.2 * largest
        assert got.terms["risk"].item() < got.value.item() < other.value.item()
        numbers = {"risk": losses.mean(), "variance": losses.var(1).mean(), "kl": 0.0, "n": 400}
        drawn = [torch.from_numpy(each(losses, axis=1)) for each in (np.mean, np.var)]
        estimate = None if listed else MonteCarlo(100, 0.01, *drawn)
        expected = BOUNDS["empirical-bernstein"].certify(numbers, 0.05, PREMISES, estimate).value.item()
        assert got.value.item() == pytest.approx(expected, rel=1e-9)
    else:  # no rows that hold one of every pair vary more
        assert losses.var(1).mean() < 0.99 * largest < variance <= largest + 1e-12


@pytest.mark.parametrize("kind", ["listed", "drawn", "tensors"])
def test_hypotheses_that_change_the_inputs_of_those_after_them_are_refused(kind: str) -> None:
    """The first predictor that is asked sees the rows of the bound, and all others what it has made of them."""
    x, y = data(30)
    scaled = make_pipeline(StandardScaler(copy=False), LogisticRegression()).fit(5.0 + x.copy(), y)

    def halved(x: Any) -> Any:
        x *= 0.5
        return np.asarray(x)

    said = r"a hypothesis changed the inputs that it was given, which those after it were given too \(.*copy"
    with pytest.raises(AssumptionError, match=said):
        if kind == "listed":
            certify_model([scaled, scaled], rows=(x.copy(), y), **FINE)
        if kind == "drawn":
            certify_model(None, sample=lambda g: scaled, kl=1.0, draws=2, rows=(x.copy(), y), **FINE)
        certify_model([halved, halved], rows=(torch.from_numpy(x.copy()), y), **FINE)
    assert certify_model(scaled, rows=(x.copy(), y), **FINE).valid  # of one there is none after it


class Ranked(SaturatingSquare):
    """Errors by their rank among those of the call."""

    def __call__(self, prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (prediction - y).abs().argsort(descending=True).argsort().double() / len(y)


def test_a_loss_that_looks_at_other_rows_is_refused() -> None:
    """Its values are no independent draws, whatever the rows are."""
    x = np.arange(50.0)
    for y in (x - 0.01 * x[::-1], x - 0.01 * x):
        with pytest.raises(AssumptionError, match=r"\(Ranked\) of a row must not depend on the others, got 0.98 amo"):
            certify_model(lambda x: x[:, 0], rows=(x[:, None], y), loss=Ranked(), **FINE)


class Quiet(nn.Module):
    """Weights N(mu, 1) in training, and their means in evaluation, as many layers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = (nn.Parameter(0.1 * torch.randn(shape)) for shape in ((512, 100), (2, 512)))

    def forward(self, x: Tensor) -> Tensor:
        inner, outer = (each + torch.randn_like(each) * self.training for each in (self.inner, self.outer))
        return torch.relu(x @ inner.T) @ outer.T


def test_a_posterior_that_is_not_drawn_from_is_refused() -> None:
    """Its KL is that of noise that nobody drew: .19 was certified at a KL of .0004 of a network that guesses.

    The signs of a network's scores stay when its weights shrink, and with them their divergence from N(0, 1).
    """
    torch.manual_seed(0)
    x, y = torch.randn(150, 100), torch.randint(2, (150,))
    network = Quiet().eval()
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimiser.step()
    with torch.no_grad():
        _ = [each.mul_(1e-3) for each in network.parameters()]
    kl = 0.5 * sum(each.square().sum().item() for each in network.parameters())
    assert kl < 0.01 and (network(x).argmax(1) == y).double().mean() > 0.99  # of labels that are coins
    told: dict[str, Any] = {"rows": (x, y), "kl": kl, "draws": 50, "source": "data-free", "independent": True}
    said = "all 50 draws of the model predict the same to the last digit .*need module.train().*leave sample and kl out"
    with pytest.raises(AssumptionError, match=said):
        certify_model(network, **told)
    with pytest.raises(AssumptionError, match=said):
        certify_model(None, sample=lambda g: network, **told)
    drawn = certify_model(network.train(), **told)
    assert drawn.valid and drawn.terms["risk"].item() > 0.45
    assert certify_model([network, network], **{**told, "kl": None}).valid  # a list is weighed, not drawn


def test_draws_that_agree_in_their_labels_are_draws() -> None:
    x, y = data(40)

    def drawn(generator: torch.Generator) -> Any:
        at = 1e-9 * torch.rand((), generator=generator).item()
        return lambda x: (x[:, 0] > at).astype(int)

    assert certify_model(None, sample=drawn, kl=1.0, draws=20, rows=(x, y), **FINE).valid


@pytest.mark.parametrize("kind", ["numbers", "scores", "labels"])
@pytest.mark.parametrize("how", ["one", "listed", "drawn", "network"])
def test_a_predictor_that_looks_at_other_rows_is_refused(kind: str, how: str) -> None:
    """It has no risk of a row that comes alone, of which this one says 0 whatever it is."""
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 2))
    norm = nn.BatchNorm1d(2, dtype=torch.float64)
    targets = x[:, 0] if kind == "numbers" else (x[:, 0] > 0).astype(int)

    def answered(x: Any) -> Any:
        first = np.asarray(x)[:, 0]
        return {"numbers": first, "scores": np.stack([-first, first], 1), "labels": (first > 0).astype(int)}[kind]

    def within(x: Any) -> Any:
        return answered(StandardScaler().fit_transform(x))

    def normed(x: Any) -> Any:
        with torch.no_grad():
            return answered(norm(torch.as_tensor(x)))

    def certified(one: Any) -> Any:
        if how == "drawn":
            parts = iter([one, lambda x: 2 * one(x), *[one] * 7])
            given: dict[str, Any] = {"model": None, "sample": lambda g: next(parts), "kl": 1.0, "draws": 9}
        else:
            given = {"model": [one, one] if how == "listed" else one}
        return certify_model(**given, rows=(x, targets), **FINE)

    with pytest.raises(AssumptionError, match=r"must answer a row by itself.*transform in place of fit_transform"):
        certified(normed if how == "network" else within)
    norm.eval()
    assert certified(normed if how == "network" else answered).valid


def test_a_program_that_standardises_by_its_call_is_refused() -> None:
    def made(scale: Any) -> Any:
        def program(x: Tensor) -> None:
            w = pyro.sample("w", distributions.Normal(torch.zeros(2).double(), 1.0).to_event(1))
            with pyro.plate("rows", len(x)):
                pyro.sample("y", distributions.Normal(scale(x) @ w, 0.1))

        return program

    def guide(x: Tensor) -> None:
        pyro.sample("w", distributions.Normal(torch.ones(2).double(), 0.1).to_event(1))

    x = torch.from_numpy(data(200)[0])
    asked: dict[str, Any] = {"rows": (x, x.sum(1)), "draws": 20, **FINE}
    with pytest.raises(AssumptionError, match="must answer a row by itself"):
        certify_model(guide, made(lambda x: (x - x.mean(0)) / x.std(0)), **asked)
    assert certify_model(guide, made(lambda x: x / 2), **asked).valid


@pytest.mark.parametrize("kind", ["wide", "frame", "list"])
def test_predictors_of_single_rows_are_taken_whatever_they_are(kind: str) -> None:
    """Such as those that rounding moves with the number of rows."""
    x, y = data(200)
    fitted = LogisticRegression().fit(pd.DataFrame(x), y)
    wide = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
    model: Any = {"wide": wide, "frame": fitted, "list": lambda rows: np.stack(rows)[:, 0] > 0}[kind]
    inputs = {"frame": pd.DataFrame(x, index=np.linspace(0.0, 1.0, 200)), "list": [*x]}.get(kind, x)
    assert certify_model(model, rows=(inputs, y), **FINE).valid


def by_chance(generator: torch.Generator) -> Any:
    """What scikit-learn's random_state gets where a generator is asked for its seed and not for a number."""
    sign = np.random.default_rng(generator.initial_seed()).choice([1, -1])
    return lambda x: (sign * x[:, 0] > 0).astype(int)


def test_a_sampler_that_leaves_its_generator_alone_is_refused_where_its_labels_agree() -> None:
    rows = data(100)
    with pytest.raises(AssumptionError, match=r"all 30 draws .* must draw by the generator, which it left alone"):
        certify_model(None, sample=by_chance, kl=0.0, rows=rows, draws=30, **FINE)
    given = iter([by_chance(torch.Generator().manual_seed(seed)) for seed in range(30)])
    assert certify_model(None, sample=lambda _: next(given), kl=0.0, rows=rows, draws=30, **FINE).valid


@pytest.mark.parametrize("how", ["listed", "weighed", "drawn"])
def test_every_hypothesis_is_asked_for_rows_alone(how: str) -> None:
    """It was the first one alone, whatever its weight."""
    x, y = data(200)
    harmless, scaled = (lambda x: np.zeros(len(x), int)), (lambda x: (x[:, 0] > x[:, 0].mean()).astype(int))
    given: dict[str, Any] = {"model": [harmless, scaled]}
    if how == "weighed":
        given["weights"] = [0.0, 1.0]
    if how == "drawn":
        every = iter([harmless, scaled] * 5)
        given = {"model": None, "sample": lambda _: next(every), "kl": 1.0, "draws": 10}
    with pytest.raises(AssumptionError, match="must answer a row by itself"):
        certify_model(**given, rows=(3 * x + 100, y), **FINE)
    if how == "weighed":  # of no weight it does not matter
        assert certify_model([harmless, scaled], weights=[1.0, 0.0], rows=(3 * x + 100, y), **FINE).valid


def test_what_is_no_loss_is_refused_by_name() -> None:
    x, y = data(9)
    for loss, said in (
        (SaturatingSquare, r"loss must be a loss, got the class SaturatingSquare \(SaturatingSquare"),
        (lambda p, y: (p - y).abs(), "loss must have name, low, high, convex, and this function has no name, low"),
        (nn.L1Loss(), "this L1Loss has no name, low"),
    ):
        with pytest.raises(AssumptionError, match=said):
            certify_model(lambda x: x[:, 0], rows=(x, y.astype(float)), loss=loss, **FINE)


def test_rows_of_types_that_numpy_lacks_are_taken() -> None:
    x, y = (torch.from_numpy(each) for each in data(40))
    got = certify_model(lambda x: x[:, 0].float(), rows=(x.bfloat16(), y.bfloat16()), **FINE)
    assert got.valid and got.terms["n"] == 40
    asked = {"rows": (list(x.bfloat16()), y), "loss": "0-1"}
    assert certify_model(lambda x: torch.stack(x)[:, 0] > 0, **asked, **FINE).terms["n"] == 40


def test_numbers_that_rounding_or_numpy_has_made_are_taken() -> None:
    x, y = data(40)

    def sampled(generator: torch.Generator) -> Any:
        return partial(np.multiply, torch.randn((), generator=generator).item())

    def certified(**own: Any) -> Any:
        given = {"rows": (x[:, 0], y.astype(float)), "sample": sampled, "kl": 0.0, "draws": 20}
        return certify_model(None, **{**given, **own}, **FINE)

    assert certified(kl=torch.tensor(-3e-8, requires_grad=True)).terms["kl"] == 0.0
    with pytest.raises(AssumptionError, match=r"kl must be finite and at least 0, got -0\.1"):
        certified(kl=-0.1)
    assert torch.equal(certified(seed=np.int64(3)).value, certified(seed=3).value)


def test_a_loss_with_slopes_is_its_values() -> None:
    class Weighed(SaturatingSquare):
        def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
            return super().__call__(prediction, y) * torch.ones(1, requires_grad=True)

    x, y = data(40)
    got = certify_model(lambda x: x[:, 0], rows=(x, y.astype(float)), loss=Weighed(), **FINE)
    assert not got.value.requires_grad


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"delta": None}, "delta must be one number"),
        ({"delta": "x"}, "delta must be one number"),
        ({"draws_delta": None}, "draws_delta must be one number"),
        ({"seed": "a"}, "seed must be a whole number from 0, got 'a'"),
        ({"seed": 2**70}, "seed must be a whole number from 0, got 1180591620717411303424"),
        ({"seed": None}, "seed must be a whole number from 0, got None"),
    ],
)
def test_shares_and_seeds_that_are_no_numbers_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(AssumptionError, match=said):
        certify_model(nought, rows=data(10), **FINE, **given)
