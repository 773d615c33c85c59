"""Empirical Gibbs risks against loops over rows and hypotheses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from pyro.distributions import Categorical, Normal, Poisson, StudentT, TorchDistribution
from torch import Tensor

from pacbayes_fl.bounds import ClippedNLL, ClippedSquare, SaturatingSquare, ZeroOne
from pacbayes_fl.bounds import risk as module
from pacbayes_fl.bounds.risk import (
    drawn_by_row,
    drawn_losses,
    finite_risks,
    function_risks,
    gibbs_losses,
    gibbs_risk,
    in_parts,
    predicted_losses,
)
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import NormalMixture

NAMES = ("a", "b", "c")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labelled(sizes: tuple[int, ...] = (5, 3, 4)) -> ClientBatch:
    clients = [(random(m, 2, seed=m), torch.arange(m) % 3) for m in sizes]
    return ClientBatch.pad(clients, NAMES, classes=3)


def real(sizes: tuple[int, ...] = (5, 3, 4)) -> ClientBatch:
    return ClientBatch.pad([(random(m, 2, seed=m), random(m, seed=m + 9)) for m in sizes], NAMES)


def noise(batch: ClientBatch) -> Noise:
    return Noise(1, 2, batch.ids)


@dataclass(frozen=True)
class Linear:
    """Hypotheses theta [K, J, 2, C], to be listed with weights [K, J]."""

    theta: Tensor
    weights: Tensor

    def enumerate_hypotheses(self, x: Tensor) -> Iterator[tuple[Tensor, TorchDistribution]]:
        for j in range(self.theta.shape[1]):
            yield self.weights[:, j].log(), Categorical(logits=x @ self.theta[:, j])


@dataclass(frozen=True)
class Drawn:
    """theta ~ N(loc, 1), for classes or for real targets."""

    loc: Tensor
    classes: bool = True

    def sample_hypotheses(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution]:
        for _ in range(draws):
            out = x @ (self.loc + noise.normal(self.loc))
            yield Categorical(logits=out) if self.classes else Normal(out[..., 0], 7.0)


@dataclass(frozen=True)
class Functions:
    found: NormalMixture

    @property
    def log_weights(self) -> Tensor:
        return self.found.log_weights

    def function(self, x: Tensor) -> NormalMixture:
        return self.found


def by_hand(theta: Tensor, weights: Tensor, batch: ClientBatch, loss: ZeroOne | ClippedNLL) -> list[float]:
    out = []
    for k in range(batch.clients):
        total = 0.0
        for j in range(theta.shape[1]):
            for i in range(int(batch.size[k])):
                scores = (batch.x[k, i] @ theta[k, j]).log_softmax(-1)
                total += float(weights[k, j] * loss(scores, batch.y[k, i])) / float(batch.size[k])
        out.append(total)
    return out


@pytest.mark.parametrize("loss", [ZeroOne(), ClippedNLL(1e-2)])
def test_a_list_is_averaged_exactly(loss: ZeroOne | ClippedNLL) -> None:
    batch, theta = labelled(), random(3, 4, 2, 3)
    weights = torch.softmax(random(3, 4, seed=5), 1)
    result = gibbs_risk(Linear(theta, weights), batch, loss, 9, noise(batch))
    assert result.draws is None
    assert result.risk.tolist() == pytest.approx(by_hand(theta, weights, batch, loss), abs=1e-12)
    each, risks = finite_risks(Linear(theta, weights), batch, loss)
    assert torch.allclose(each, weights)
    assert torch.allclose((each * risks).sum(1), result.risk)


@pytest.mark.parametrize("loss", [ZeroOne(), ClippedNLL(1e-2)])
def test_draws_are_averaged_over_rows_and_hypotheses(loss: ZeroOne | ClippedNLL) -> None:
    batch, loc = labelled(), random(3, 2, 3)
    result = gibbs_risk(Drawn(loc), batch, loss, 6, noise(batch))
    streams = noise(batch)
    theta = torch.stack([loc + streams.normal(loc) for _ in range(6)], 1)
    alike = torch.full((3, 6), 1 / 6, dtype=torch.float64)
    assert result.draws == 6
    assert result.risk.tolist() == pytest.approx(by_hand(theta, alike, batch, loss), abs=1e-12)


def test_blocks_of_rows_see_the_same_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, loc, theta = labelled(), random(3, 2, 3), random(3, 4, 2, 3)
    weights = torch.full((3, 4), 0.25, dtype=torch.float64)
    whole = gibbs_risk(Drawn(loc), batch, ClippedNLL(), 6, noise(batch)).risk
    listed = finite_risks(Linear(theta, weights), batch, ClippedNLL())
    monkeypatch.setattr(module, "_NUMBERS", 12)
    assert torch.allclose(gibbs_risk(Drawn(loc), batch, ClippedNLL(), 6, noise(batch)).risk, whole, atol=1e-12)
    again = finite_risks(Linear(theta, weights), batch, ClippedNLL())
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(again, listed, strict=True))


def test_real_targets_are_compared_with_the_function_and_not_with_its_noise() -> None:
    batch, loc = real(), random(3, 2, 1)
    result = gibbs_risk(Drawn(loc, classes=False), batch, SaturatingSquare(), 4, noise(batch))
    streams, expected = noise(batch), torch.zeros(3, dtype=torch.float64)
    for _ in range(4):
        error = (batch.x @ (loc + streams.normal(loc)))[..., 0] - batch.y
        expected += torch.where(batch.mask, -torch.expm1(-error.square()), 0.0).sum(1) / batch.size / 4
    assert torch.allclose(result.risk, expected)


@pytest.mark.parametrize("loss", [SaturatingSquare(0.7), ClippedSquare(1.3)])
def test_functions_are_averaged_in_closed_form(loss: SaturatingSquare | ClippedSquare) -> None:
    batch = real()
    weights = torch.softmax(random(3, 2, seed=3), 1)
    mixture = NormalMixture(weights.log(), random(3, 2, 5, seed=4), random(3, 2, 5, seed=6).exp())
    result = gibbs_risk(Functions(mixture), batch, loss, 1, noise(batch))
    draws = mixture.means + mixture.stds * random(20_000, 3, 2, 5, seed=8)
    sampled = torch.where(batch.mask.unsqueeze(1), loss(draws, batch.y.unsqueeze(1)), 0.0).sum(-1).mean(0)
    expected = (weights * sampled / batch.size.unsqueeze(1)).sum(1)
    assert result.draws is None
    assert torch.allclose(result.risk, expected, atol=0.01)
    assert function_risks(Functions(mixture), batch, loss).shape == (3, 2)


class Meanless(Normal):  # type: ignore[misc]
    """Numbers of which nobody says the mean."""

    @property
    def mean(self) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Other:
    """Hypotheses of normal posteriors whose targets are of another kind."""

    of: Drawn
    kind: type

    def sample_hypotheses(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution]:
        for one in self.of.sample_hypotheses(x, draws, noise):
            if self.kind is Poisson:
                yield Poisson(one.mean.exp())
            else:
                yield StudentT(4.0, one.mean, 7.0) if self.kind is StudentT else self.kind(one.mean, 7.0)


def test_a_number_is_predicted_by_the_mean_of_whatever_kind_of_distribution() -> None:
    batch, normal, loss = real(), Drawn(random(3, 2, 1), classes=False), SaturatingSquare()
    expected = gibbs_risk(normal, batch, loss, 2, noise(batch)).risk
    close = gibbs_risk(Other(normal, StudentT), batch, loss, 2, noise(batch)).risk
    torch.testing.assert_close(close, expected)
    rates = gibbs_risk(Other(normal, Poisson), batch, loss, 1, noise(batch)).risk
    (one,) = normal.sample_hypotheses(batch.x, 1, noise(batch))
    by_hand = torch.where(batch.mask, loss(one.mean.exp(), batch.y), 0.0).sum(1) / batch.size
    torch.testing.assert_close(rates, by_hand)


def test_a_mean_that_does_not_exist_is_no_number() -> None:
    batch = real()

    class Cauchy(Other):
        def sample_hypotheses(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution]:
            for one in self.of.sample_hypotheses(x, draws, noise):
                yield StudentT(torch.tensor([[1.0], [4.0], [4.0]]), one.mean, 7.0)

    posterior = Cauchy(Drawn(random(3, 2, 1), classes=False), StudentT)
    risk = gibbs_risk(posterior, batch, SaturatingSquare(), 2, noise(batch)).risk
    assert risk.isnan().tolist() == [True, False, False]


def test_a_client_without_rows_has_no_risk() -> None:
    batch = real((5, 3, 4))
    batch.mask[1] = False
    result = gibbs_risk(Drawn(random(3, 2, 1), classes=False), batch, SaturatingSquare(), 2, noise(batch)).risk
    assert result.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("posterior", "batch", "loss", "words"),
    [
        (object(), labelled(), ZeroOne(), "no hypotheses"),
        (Drawn(random(3, 2, 3)), labelled(), SaturatingSquare(), "not for labels"),
        (Drawn(random(3, 2, 1), classes=False), real(), ZeroOne(), "not for real targets"),
        (Drawn(random(3, 2, 3)), real(), SaturatingSquare(), "cannot be taken of Categorical"),
        (Other(Drawn(random(3, 2, 1), classes=False), StudentT), labelled(), ZeroOne(), "labels are predicted by Cat"),
        (Other(Drawn(random(3, 2, 1), classes=False), Meanless), real(), SaturatingSquare(), "give Meanless a `mean`"),
        (Functions(NormalMixture(*[torch.ones(3, 1, 5)] * 3)), real(), ZeroOne(), "not for real targets"),
    ],
)
def test_what_does_not_fit_is_refused(posterior: object, batch: ClientBatch, loss: ZeroOne, words: str) -> None:
    with pytest.raises(AssumptionError, match=words):
        gibbs_risk(posterior, batch, loss, 2, noise(batch))


@dataclass(frozen=True)
class DrawnByRow(Drawn):
    """The same hypotheses, one for every row."""

    def sample_by_row(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution]:
        for _ in range(draws):
            own = self.loc.unsqueeze(1) + noise.normal(x.new_empty(*x.shape[:2], *self.loc.shape[1:]))
            yield Categorical(logits=(x.unsqueeze(-2) @ own).squeeze(-2))


@pytest.mark.slow
def test_hypotheses_by_row_have_the_same_risk() -> None:
    batch, draws = labelled((40, 30, 35)), 4000
    posterior = DrawnByRow(random(3, 2, 3))
    whole, rows = (
        torch.stack(
            [one.sum(1) / batch.size for one in drawn_losses(posterior, batch, ZeroOne(), draws, noise(batch), by)]
        )
        for by in (False, True)
    )
    spread = 5 * ((whole.var(0) + rows.var(0)) / draws).sqrt()
    assert ((whole.mean(0) - rows.mean(0)).abs() <= spread).all()
    risk = gibbs_risk(posterior, batch, ZeroOne(), draws, noise(batch), by_row=True).risk
    torch.testing.assert_close(risk, rows.mean(0), rtol=1e-12, atol=0)


def test_rows_of_every_block_have_hypotheses_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are alike and stand in two blocks err apart, so that all losses of a draw are independent."""
    row = random(1, 2, seed=7)
    batch = ClientBatch.pad([(row.expand(12, 2).clone(), torch.zeros(12, dtype=torch.int64))], ("a",), classes=3)
    posterior = DrawnByRow(torch.zeros(1, 2, 3, dtype=torch.float64))
    monkeypatch.setattr(module, "_NUMBERS", 12)
    draws = torch.cat([*drawn_losses(posterior, batch, ZeroOne(), 400, noise(batch), by_row=True)])
    assert len(module._blocks(batch)) == 2
    pairs = torch.corrcoef(draws.T)
    assert bool((pairs - torch.eye(12)).abs().max() < 5 / 400**0.5)
    summed = gibbs_losses(posterior, batch, ZeroOne(), 400, noise(batch), by_row=True).rows[0]
    assert bool((summed[:6] != summed[6:]).any())


def test_who_draws_by_row_says_so() -> None:
    batch = labelled()
    assert drawn_by_row(DrawnByRow(random(3, 2, 3)), batch, noise(batch))
    assert not drawn_by_row(Drawn(random(3, 2, 3)), batch, noise(batch)) and not drawn_by_row(
        object(), batch, noise(batch)
    )


def test_a_posterior_without_hypotheses_by_row_draws_them_for_all_rows() -> None:
    batch, posterior = labelled(), Drawn(random(3, 2, 3))
    either = [gibbs_losses(posterior, batch, ZeroOne(), 3, noise(batch), by_row=by).rows for by in (False, True)]
    assert torch.equal(*either)


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_parts_of_the_rows_have_the_mean_over_all_rows_as_their_mean(parts: int) -> None:
    sizes = (11, 5, 9)
    batch = ClientBatch.pad([(torch.arange(m).double().unsqueeze(1) + 100 * m, random(m)) for m in sizes], NAMES)
    made = in_parts(batch, parts)
    assert len(made) == parts
    means = torch.zeros(3, dtype=torch.float64)
    for rows, weights in made:
        assert torch.equal(rows.size, torch.tensor([m // parts + m % parts for m in sizes]).to(rows.size))
        torch.testing.assert_close(weights.sum(1), torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=0)
        assert torch.equal(rows.y[rows.mask], torch.cat([batch.y[k, x[x >= 0]] for k, x in enumerate(positions(rows))]))
        means += (weights * rows.x.squeeze(-1)).sum(1) / parts
    torch.testing.assert_close(means, torch.tensor([100 * m + (m - 1) / 2 for m in sizes]).double(), rtol=1e-12, atol=0)
    for k, m in enumerate(sizes):
        seen = torch.cat([positions(rows)[k] for rows, _ in made])
        assert set(seen[seen >= 0].tolist()) == set(range(m))


def positions(rows: ClientBatch) -> Tensor:
    """Place of each row among its client's, which the last test has written into x; -1 on padding."""
    return torch.where(rows.mask, rows.x.squeeze(-1).long() % 100, -1)


def test_a_client_without_rows_has_no_weights() -> None:
    batch = ClientBatch.pad([(random(0, 2), random(0)), (random(4, 2), random(4))], NAMES[:2], allow_empty=True)
    ((_, weights), _) = in_parts(batch, 2)
    assert weights[0].isnan().all() and weights[1].sum() == 1


@dataclass(frozen=True)
class Own:
    """A loss of one's own that is declared in [0, 1], of labels or of real targets: what a target of 1 costs."""

    most: float
    name: str = "cost"
    low: float = 0.0
    high: float = 1.0
    convex: bool = False

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        return self.most * (y == 1).float()


class OwnOfNumbers(Own):
    def expected(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return self(mean, y.expand_as(mean))


@pytest.mark.parametrize("kind", ["drawn", "listed", "functions", "predicted"])
def test_a_loss_that_leaves_the_range_it_declares_is_refused_wherever_it_is_taken(kind: str) -> None:
    labels = kind in ("listed", "predicted")
    loss, wrong = ((Own if labels else OwnOfNumbers)(most) for most in (1.0, 50.0))
    batch = labelled((4, 4, 4)) if labels else real((4, 4, 4))
    batch.y[:, 1] = 1
    weights = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    mixture = NormalMixture(torch.zeros(3, 1), random(3, 1, 4), random(3, 1, 4).square())
    posterior: object = {
        "drawn": Drawn(random(3, 2, 1), classes=False),
        "listed": Linear(random(3, 3, 2, 3), weights),
        "functions": Functions(mixture),
        "predicted": Predicting(random(3, 4, 3)),
    }[kind]

    def risk(loss: Own) -> Tensor:
        if kind == "predicted":
            return predicted_losses(posterior, batch, loss).mean(1)
        return gibbs_risk(posterior, batch, loss, 3, noise(batch)).risk

    assert risk(loss).tolist() == pytest.approx([0.25] * 3)
    with pytest.raises(AssumptionError, match=r"'cost' \(Own.*\) must lie in the range .*, \[0, 1\], got 50"):
        risk(wrong)


class Asymmetric(SaturatingSquare):
    """Forgives nothing below the target, which the average over functions that it inherits knows nothing of."""

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        return torch.where(prediction < y, 1.0, super().__call__(prediction, y))


class Averaged(Asymmetric):
    def expected(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return torch.where((mean < y) | (variance > 0), 1.0, super().expected(mean, variance, y))


def test_an_average_over_functions_is_that_of_the_loss_itself() -> None:
    batch = real((4, 4, 4))
    functions = Functions(NormalMixture(torch.zeros(3, 1), random(3, 1, 4), random(3, 1, 4).square()))
    with pytest.raises(AssumptionError, match=r"\(Asymmetric\) is 1 of a prediction of which its `expected`"):
        gibbs_risk(functions, batch, Asymmetric(), 1, noise(batch))
    assert gibbs_risk(functions, batch, Averaged(), 1, noise(batch)).risk.tolist() == pytest.approx([1.0] * 3)


@dataclass(frozen=True)
class Predicting:
    """A posterior of which the predictions are known."""

    log_probs: Tensor

    def predict(self, x: Tensor) -> Predicting:
        return self


@dataclass(frozen=True)
class Broken:
    """Another posterior, whose hypotheses predict NaN in the first row: in the score of one class, or a number."""

    of: object
    score: int

    def sample_hypotheses(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution]:
        yield from (self.broken(one) for one in self.of.sample_hypotheses(x, draws, noise))  # type: ignore[attr-defined]

    def broken(self, one: TorchDistribution) -> TorchDistribution:
        if isinstance(one, Normal):
            mean = one.mean.clone()
            mean[0, 0] = torch.nan
            return Normal(mean, 1.0, validate_args=False)
        logits = one.logits.clone()
        logits[0, 0, self.score] = torch.nan
        return Categorical(logits=logits, validate_args=False)


@pytest.mark.parametrize("score", range(3))
@pytest.mark.parametrize("loss", [ZeroOne(), ClippedNLL(), Own(1.0), SaturatingSquare(), OwnOfNumbers(1.0)])
def test_a_prediction_that_is_no_number_leaves_its_client_without_a_risk(score: int, loss: ZeroOne) -> None:
    labels = not hasattr(loss, "expected")
    batch = labelled() if labels else real()
    posterior = Broken(Drawn(random(3, 2, 3 if labels else 1), classes=labels), score)
    risk = gibbs_risk(posterior, batch, loss, 2, noise(batch)).risk
    assert risk.isnan().tolist() == [True, False, False]
    batch.mask[0, 0] = False  # padding
    assert gibbs_risk(posterior, batch, loss, 2, noise(batch)).risk.isfinite().all()


def test_a_variance_that_is_no_number_is_not_taken_for_none() -> None:
    batch = real()
    mixture = NormalMixture(torch.zeros(3, 1), random(3, 1, 5), torch.ones(3, 1, 5).double())
    mixture.variances[0, 0, 0] = torch.nan
    for loss in (SaturatingSquare(), ClippedSquare(1.0)):
        assert function_risks(Functions(mixture), batch, loss).isnan().flatten().tolist() == [True, False, False]


@pytest.mark.parametrize("score", range(3))
@pytest.mark.parametrize("loss", [ZeroOne(), ClippedNLL()])
def test_the_predictor_that_is_deployed_has_the_largest_loss_where_it_gives_no_number(
    score: int, loss: ZeroOne | ClippedNLL
) -> None:
    batch = labelled()
    log_probs = torch.full((3, 5, 3), -50.0)
    log_probs.scatter_(-1, batch.y.unsqueeze(-1), 0.0)
    log_probs[0, 0, score] = torch.nan
    expected = torch.zeros(3, 5, dtype=torch.float64)
    expected[0, 0] = 1.0
    assert torch.equal(predicted_losses(Predicting(log_probs), batch, loss), expected)
