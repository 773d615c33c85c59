"""Curvature of many clients by every route, against dense Jacobians and inverses of one client at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pacbayes_fl import bounds
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import curvature
from pacbayes_fl.inference.curvature import SubnetworkPrecision
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.models.weights.convolutional import BayesianCNN, BayesianVGG
from tests import laplace
from tests.laplace import NoisyCurve, Program, TanhNetwork, float64, randn

LABELS, NUMBERS = Categorical(3), Gaussian(0.3)
SIZES = (6, 2, 1)
K = len(SIZES)
MODELS: dict[str, tuple[WeightModel, tuple[int, ...]]] = {
    "1 layer": (BayesianMLP((2, 3), LABELS, torch.float64), (2,)),
    "2 layers": (BayesianMLP((2, 9, 3), LABELS, torch.float64), (2,)),
    "2 layers, numbers": (BayesianMLP((2, 9, 1), NUMBERS, torch.float64), (2,)),
    "3 layers": (BayesianMLP((2, 6, 5, 3), LABELS, torch.float64), (2,)),
    "3 layers, numbers": (BayesianMLP((2, 6, 5, 1), NUMBERS, torch.float64), (2,)),
    "program": (Program(TanhNetwork((2, 9, 3), LABELS)), (2,)),
    "program, numbers": (NoisyCurve(), (1,)),
    "cnn": (BayesianCNN((1, 16, 16), LABELS, torch.float64), (1, 16, 16)),
    "cnn, numbers": (BayesianCNN((1, 16, 16), NUMBERS, torch.float64), (1, 16, 16)),
    "vgg": (BayesianVGG((1, 16, 16), LABELS, torch.float64), (1, 16, 16)),
}
SMALL = [name for name in MODELS if name != "vgg"]


def close(mine: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10 * float(theirs.abs().max()))


def scene(name: str) -> tuple[WeightModel, Tensor, ClientBatch, Tensor]:
    """Return a model, weights, ragged clients and prior variances."""
    model, feature = MODELS[name]
    sizes = SIZES if name in SMALL else (2, 1)
    theta = model.centre() + (0.2 if len(feature) == 3 else 0.7) * randn(3, len(sizes), model.dim)
    prior = 0.05 + randn(4, len(sizes), model.dim).square()
    return model, theta, laplace.clients(model, *sizes, feature=feature), prior


def subnetwork(model: WeightModel, size: int) -> Tensor:
    """Draw weights of layers, other ones for every client, in no order."""
    inside = torch.cat([torch.arange(model.dim)[model.span(n)] for n in model.shapes if n[:4] not in ("gamm", "beta")])
    draws = [torch.randperm(len(inside), generator=torch.Generator().manual_seed(k))[:size] for k in range(K)]
    return torch.stack([inside[draw] for draw in draws])


@pytest.fixture(params=["all rows", "chunks of rows"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "chunks of rows":
        monkeypatch.setattr(curvature, "NUMBERS", 400)  # a row or two
    return bool(request.param == "chunks of rows")


def exact_variance(model: WeightModel, theta: Tensor, batch: ClientBatch, index: Tensor, prior: Tensor) -> Tensor:
    rows = [laplace.own(batch, k)[0] for k in range(batch.clients)]
    result = [laplace.posterior(model, theta[k], x, prior[k], index[k]).diagonal() for k, x in enumerate(rows)]
    return torch.stack(result)


# the diagonal -----------------------------------------------------------------------------------------------------


@pytest.mark.law
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.usefixtures("chunks")
def test_the_diagonal_is_the_definition_s(name: str) -> None:
    model, theta, batch, _ = scene(name)
    result = curvature.diagonal_ggn(model, theta, batch)
    for k in range(K):
        close(result[k], laplace.ggn_diagonal(model, theta[k], laplace.own(batch, k)[0]))


def test_the_diagonal_of_a_vgg_leaves_out_its_batch_norms() -> None:
    model, theta, batch, _ = scene("vgg")
    result = curvature.diagonal_ggn(model, theta, batch)
    norms = torch.cat([torch.arange(model.dim)[model.span(n)] for n in model.shapes if n[:4] in ("gamm", "beta")])
    for k in range(2):
        exact = laplace.ggn_diagonal(model, theta[k], laplace.own(batch, k)[0])
        assert exact[norms].any() and not result[k, norms].any()
        close(result[k], exact.index_fill(0, norms, 0.0))


def test_the_diagonal_is_the_hessian_s_where_outputs_are_linear() -> None:
    model, theta, batch, _ = scene("1 layer")
    result = curvature.diagonal_ggn(model, theta, batch)
    for k in range(K):
        x, y = laplace.own(batch, k)

        def loss(at: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return cross_entropy(x @ at[:6].view(2, 3) + at[6:], y, reduction="sum")

        close(result[k], torch.func.hessian(loss)(theta[k]).diagonal())


# posterior variances ----------------------------------------------------------------------------------------------


@pytest.mark.law
@pytest.mark.parametrize("size", [3, 25], ids=["fewer weights than outputs", "more weights than outputs"])
@pytest.mark.parametrize("name", SMALL)
def test_variances_are_the_inverse_s_by_every_route(name: str, size: int, chunks: bool) -> None:
    model, theta, batch, prior = scene(name)
    index = subnetwork(model, min(size, model.dim))
    result = curvature.marginal_variance(model, theta, batch, index, prior)
    close(result, exact_variance(model, theta, batch, index, prior))


@pytest.mark.law
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.usefixtures("chunks")
def test_a_precision_is_the_definition_s(name: str) -> None:
    model, theta, batch, prior = scene(name)
    index = subnetwork(model, 8)
    arranged, factor = curvature.precision(model, theta, batch, index, prior)
    assert torch.equal(arranged.sort(1).values, index.sort(1).values)
    assert not factor.triu(1).any()
    for k in range(K):
        x, _ = laplace.own(batch, k)
        exact = laplace.ggn(model, theta[k], x, arranged[k]) + torch.diag(1.0 / prior[k, arranged[k]])
        close(factor[k] @ factor[k].T, exact)


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 25])
def test_variances_of_a_vgg(size: int) -> None:
    model, theta, batch, prior = scene("vgg")
    index = subnetwork(model, size)[:2]
    result = curvature.marginal_variance(model, theta, batch, index, prior)
    close(result, exact_variance(model, theta, batch, index, prior))


def test_chunks_of_rows_share_the_statistics_that_normalise_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, theta, batch, _ = scene("vgg")
    whole, plain = curvature.diagonal_ggn(model, theta, batch), BayesianVGG.images
    lengths = list[int]()
    monkeypatch.setattr(BayesianVGG, "images", lambda own, rows: lengths.append(rows.mask.shape[1]) or plain(own, rows))  # type: ignore[func-returns-value]
    monkeypatch.setattr(curvature, "NUMBERS", 1)
    close(curvature.diagonal_ggn(model, theta, batch), whole)
    n = batch.mask.shape[1]
    assert n > 1 and lengths == [n, *[1] * (1 + n)]  # the statistics, what a row costs, and row by row


ROUTES = {
    "structured, primal": ("2 layers", 10, "_add_by_units"),
    "structured, dual": ("2 layers", 40, "_dual_by_units"),
    "dense, primal": ("program", 10, "precision"),
    "dense, dual": ("program", 40, "_dual"),
    "many units, one output": ("2 layers, numbers", 25, "_dual"),
}


@pytest.mark.parametrize("route", ROUTES)
def test_the_cheaper_route_is_taken(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above see all four: as many outputs as 6 rows have, and fewer or more weights."""
    name, size, function = ROUTES[route]
    taken = []

    def spied(one: str, real: Any) -> Any:
        def called(*given: Any) -> Any:
            taken.append(one)
            return real(*given)

        return called

    for one in ("_add_by_units", "_dual_by_units", "_dual", "precision"):
        monkeypatch.setattr(curvature, one, spied(one, getattr(curvature, one)))
    model, theta, batch, prior = scene(name)
    curvature.marginal_variance(model, theta, batch, subnetwork(model, size), prior)
    assert set(taken) == {function} | ({"precision"} if size == 10 else set())


def test_a_factor_reads_the_lower_triangle_alone() -> None:
    """What `precision` relies on: matrices are filled from their diagonal downwards."""
    matrix = float64([[4.0, 99.0], [2.0, 5.0]])
    factor, failed = torch.linalg.cholesky_ex(matrix)
    close(factor, float64([[2.0, 0.0], [1.0, 2.0]]))
    assert not failed


def test_a_client_that_cannot_be_factored_spoils_no_other() -> None:
    model, theta, batch, prior = scene("2 layers")
    wrong = prior.clone()
    wrong[1] = -1e-9  # a precision that outweighs every curvature
    for size in (3, 25):
        index = subnetwork(model, size)
        result = curvature.marginal_variance(model, theta, batch, index, wrong)
        right = curvature.marginal_variance(model, theta, batch, index, prior)
        close(result[[0, 2]], right[[0, 2]])
        assert size == 25 or result[1].isnan().all()
    theta = theta.clone()
    theta[1] = torch.nan
    for size in (3, 25):
        result = curvature.marginal_variance(model, theta, batch, subnetwork(model, size), prior)
        assert result[1].isnan().all() and result[[0, 2]].isfinite().all()


@pytest.mark.parametrize("units", [True, False])
def test_a_precision_with_a_pivot_of_zero_is_nan_and_no_crash(units: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal rows under a prior so wide that float32 forgets the 1 beside them: what is left cannot be inverted."""
    if not units:
        monkeypatch.setattr(curvature, "_worth_units", lambda *call: False)
    model = BayesianMLP((2, 3), LABELS)
    rows = (torch.ones(2, 2), torch.tensor([0, 1]))
    batch = ClientBatch.pad([rows, rows], classes=3, dtype=torch.float32)
    prior, index = torch.ones(2, model.dim), torch.arange(model.dim).expand(2, -1)
    prior[1] = 1e12
    result = curvature.marginal_variance(model, torch.zeros(2, model.dim), batch, index, prior)
    alone = curvature.marginal_variance(
        model, torch.zeros(1, model.dim), batch.select(torch.tensor([0])), index[:1], prior[:1]
    )
    close(result[0], alone[0])
    assert result[1].isnan().all()


@pytest.mark.parametrize("name", ["2 layers", "program"])
def test_a_client_without_rows_has_the_prior(name: str) -> None:
    model, _ = MODELS[name]
    batch, theta, prior = laplace.clients(model, 3, 0), randn(3, 2, model.dim), 0.05 + randn(4, 2, model.dim).square()
    assert not curvature.diagonal_ggn(model, theta, batch)[1].any()
    for size in (2, 20):
        index = subnetwork(model, size)[:2]
        result = curvature.marginal_variance(model, theta, batch, index, prior)
        close(result[1], prior[1, index[1]])
        assert (result[0] < prior[0, index[0]]).any()


@pytest.mark.parametrize("rows", [1, 2])
def test_a_well_determined_weight_is_never_without_variance(rows: int) -> None:
    """In float32 1 - g H / (1 + g H) cancels: 0 would tell the server that the weight is not uncertain."""
    model = BayesianMLP((1, 1), Gaussian(1e-4))
    batch = ClientBatch.pad([(torch.ones(rows, 1), torch.ones(rows))], dtype=torch.float32)
    result = curvature.marginal_variance(model, torch.zeros(1, 2), batch, torch.tensor([[0]]), torch.ones(1, 2))
    assert 0.999e-8 / rows <= float(result) < 1e-6  # to the rounding of g = 1


def test_float32_is_float64_rounded() -> None:
    model, theta, batch, prior = scene("2 layers")
    single = BayesianMLP((2, 9, 3), LABELS)
    small = batch.__class__(batch.x.float(), batch.y, batch.mask, batch.ids, batch.names)
    for size in (3, 25):
        index = subnetwork(model, size)
        result = curvature.marginal_variance(single, theta.float(), small, index, prior.float())
        exact = curvature.marginal_variance(model, theta, batch, index, prior)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-6)


# published numbers ------------------------------------------------------------------------------------------------


def softmax_linear() -> tuple[BayesianMLP, Tensor, ClientBatch]:
    """Four rows and three classes, W = [[.2, -.1], [.4, .3], [-.5, .1]] and b = [.1, 0, -.2]."""
    model = BayesianMLP((2, 3), LABELS, torch.float64)
    theta = float64([[0.2, 0.4, -0.5, -0.1, 0.3, 0.1, 0.1, 0.0, -0.2]])  # [in, out], then the biases
    return model, theta, ClientBatch.pad([(float64(laplace.X), torch.tensor([0, 1, 2, 1]))], classes=3)


WRITTEN = [0, 3, 1, 4, 2, 5, 6, 7, 8]  # the published order is W row by row: where its weights stand here


@pytest.mark.quick
def test_logistic_regression() -> None:
    """Two classes with one logit held at 0: of the weights [in, out] those of the other logit, w = (.4, -.3)."""
    model = BayesianMLP((2, 2), Categorical(2), torch.float64)
    theta = float64([[0.0, 0.4, 0.0, -0.3, 0.0, 0.0]])
    batch = ClientBatch.pad([(float64(laplace.X), torch.tensor(laplace.LABELS))], classes=2)
    index, prior = torch.tensor([[1, 3]]), torch.full((1, 6), 1e12, dtype=torch.float64)
    _, factor = curvature.precision(model, theta, batch, index, prior)
    published = float64([[1.4046592511723173, 0.14875436438635325], [0.14875436438635325, 1.2022095139581543]])
    torch.testing.assert_close((factor @ factor.mT)[0], published, rtol=1e-10, atol=1e-10)
    diagonal = curvature.diagonal_ggn(model, theta, batch)[0, [1, 3]]
    torch.testing.assert_close(diagonal, published.diagonal(), rtol=1e-14, atol=0)


def test_softmax_regression() -> None:
    model, theta, batch = softmax_linear()
    diagonal = curvature.diagonal_ggn(model, theta, batch)[0]
    published = [1.270450745, 1.0445717686, 1.4337512281, 1.3000542165, 0.6466314667, 1.1754404062]
    published += [0.8546907595, 0.927484396, 0.6163269682]
    assert diagonal[WRITTEN].tolist() == pytest.approx(published, abs=6e-11)
    assert diagonal.sum().item() == pytest.approx(9.269401954933706, rel=1e-13)
    one, everything = torch.ones_like(theta), torch.arange(9)[None]
    _, factor = curvature.precision(model, theta, batch, everything, one)
    assert 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum().item() == pytest.approx(5.01617365644207, rel=1e-13)
    variances = [0.6111772410, 0.6226096562, 0.5844836869, 0.6012431062, 0.6959565592, 0.6222232480]
    variances += [0.6938200020, 0.6947296745, 0.7275325486]
    result = curvature.marginal_variance(model, theta, batch, everything, one)[0]
    assert result[WRITTEN].tolist() == pytest.approx(variances, abs=6e-11)


def two_units() -> tuple[TanhNetwork, Tensor, ClientBatch]:
    model = TanhNetwork((2, 2, 2), Categorical(2))
    batch = ClientBatch.pad([(float64(laplace.X), torch.tensor(laplace.LABELS))], classes=2)
    return model, float64([laplace.THETA])[:, list(laplace.OURS)], batch


@pytest.mark.quick
def test_a_network_of_two_units() -> None:
    model, theta, batch = two_units()
    order = list(laplace.OURS)[:6]  # of the representation, as published
    ggn = curvature.diagonal_ggn(model, theta, batch)[0, :6]
    published = [0.9296256971, 0.9665408139, 0.6310063502, 0.7108496784, 0.9454960502, 0.6051310385]
    assert (1 / (ggn + 1))[order].tolist() == pytest.approx(published, abs=6e-11)
    chosen = torch.tensor([[order[1], order[4]]])
    assert ggn[chosen[0]].tolist() == pytest.approx([0.034617, 0.057646], abs=5e-7)  # what the public code sends
    prior = torch.ones_like(theta)
    variance = curvature.marginal_variance(model, theta, batch, chosen, prior)[0]
    covariance = [[0.966759134068431, -0.01436897528787822], [-0.01436897528787822, 0.9457096168073899]]
    assert variance.tolist() == pytest.approx([covariance[0][0], covariance[1][1]], rel=1e-13)
    arranged, factor = curvature.precision(model, theta, batch, chosen, prior)
    back = [arranged[0].tolist().index(one) for one in chosen[0].tolist()]
    result = torch.cholesky_inverse(factor)[0][back][:, back]
    torch.testing.assert_close(result, float64(covariance), rtol=1e-13, atol=1e-15)


def test_the_paper_s_prior_drowns_four_rows() -> None:
    model, theta, batch = two_units()
    prior = torch.full_like(theta, 1e-4)
    result = curvature.marginal_variance(model, theta, batch, torch.arange(6)[None], prior)
    assert (result > 9.999e-5).all() and (result <= 1e-4).all()


# rows that come later ---------------------------------------------------------------------------------------------


def gaussian_before(model: WeightModel) -> tuple[SubnetworkPrecision, Tensor, Tensor]:
    """Return five correlated weights with their factor, two others, and these' variances."""
    index = subnetwork(model, 7)
    root = randn(9, K, 5, 5).tril(-1) + torch.diag_embed(1 + randn(10, K, 5).abs())
    return SubnetworkPrecision(index[:, :5], root), index[:, 5:], 0.05 + randn(11, K, model.dim).square()


def precision_before(known: SubnetworkPrecision, more: Tensor, variance: Tensor, k: int, order: Tensor) -> Tensor:
    """Return the precision of some weights of a client [B, B]."""
    new, old = (torch.tensor([order.tolist().index(w) for w in one[k].tolist()]) for one in (more, known.chosen))
    whole = torch.zeros(len(order), len(order), dtype=torch.float64)
    whole[new, new] = 1 / variance[k, more[k]]
    whole[old[:, None], old] = known.factor[k] @ known.factor[k].T
    return whole


@pytest.mark.law
@pytest.mark.parametrize("name", SMALL)
def test_more_rows_add_their_curvature_to_a_precision_and_the_divergence_is_the_oracle_s(
    name: str, chunks: bool
) -> None:
    model, theta, batch, _ = scene(name)
    known, more, variance = gaussian_before(model)
    kept = known.factor.clone()
    chosen, factor, kl = curvature.add_rows(model, theta, batch, known, more, variance)
    assert torch.equal(known.factor, kept) and kl.dtype == torch.float64
    for k in range(K):
        assert set(chosen[k].tolist()) == {*known.chosen[k].tolist(), *more[k].tolist()}
        before = precision_before(known, more, variance, k, chosen[k])
        after = before + laplace.ggn(model, theta[k], laplace.own(batch, k)[0], chosen[k])
        close(factor[k] @ factor[k].T, after)
        zero = torch.zeros(7, dtype=torch.float64)
        oracle = bounds.full_gaussian_kl(zero, torch.linalg.inv(after), zero, torch.linalg.inv(before))
        torch.testing.assert_close(kl[k], oracle, rtol=1e-8, atol=1e-11)
    assert kl.max() > 1e-3


def test_rows_that_are_not_there_leave_a_precision_as_it_is() -> None:
    model, theta, batch, _ = scene("2 layers")
    known, more, variance = gaussian_before(model)
    none = replace(batch, mask=torch.zeros_like(batch.mask))
    chosen, factor, kl = curvature.add_rows(model, theta, none, known, more, variance)
    assert (kl < 1e-12).all()
    for k in range(K):
        close(factor[k] @ factor[k].T, precision_before(known, more, variance, k, chosen[k]))


def test_a_precision_that_is_no_number_spoils_no_other_client() -> None:
    model, theta, batch, _ = scene("2 layers")
    known, more, variance = gaussian_before(model)
    known.factor[1] = torch.nan
    _, factor, kl = curvature.add_rows(model, theta, batch, known, more, variance)
    assert kl.isnan().tolist() == factor.isnan().all((1, 2)).tolist() == [False, True, False]
