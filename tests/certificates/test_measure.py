"""Numbers of clients that bounds are made of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pacbayes_fl import bounds, tensors
from pacbayes_fl.bounds import ClippedNLL, ClippedSquare, Premises, Provenance, SaturatingSquare, ZeroOne
from pacbayes_fl.bounds.losses import squared
from pacbayes_fl.bounds.risk import drawn_losses
from pacbayes_fl.certificates import measure as study_certify_measure
from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.certificates.measure import SHIPPED, Measured, measure, with_priors
from pacbayes_fl.certificates.repeats import Repeats
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.certificates.rows import bound_rows_of
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions import class_tree
from pacbayes_fl.posteriors.functions.class_tree import SphereKernel
from pacbayes_fl.posteriors.tempered import tempered
from pacbayes_fl.study.run import Trained, train
from tests.tiny import tiny
from tests.tiny_images import tiny_images, write_root


def test_every_client_is_measured_once_and_those_wanted_are_taken() -> None:
    trained = train(tiny("report.certify.scheme=split", "federation.rounds=1"))
    group = bound_rows_of(trained, "existing", trained.groups["existing"], 0.05)
    assert group is not None
    seen: list[int] = []
    for index, some in with_priors(trained, group, lambda prior, some: some):
        assert some.rows.names == tuple(group.rows.names[k] for k in index.tolist())
        seen += index.tolist()
    assert sorted(seen) == list(range(group.rows.clients))
    told: list[int] = []
    result = measure(trained, group, SaturatingSquare(), Request(), told.append)
    assert sum(told) == len(result.risk) == group.rows.clients and result.log_z is None and result.draws is None
    assert torch.equal(result.n, group.repeats.n) and bool((result.kl >= 0).all())
    wanted = torch.arange(group.rows.clients) % 2 == 0
    for whole, part in zip(result, result.select(wanted), strict=True):
        if isinstance(whole, torch.Tensor) and isinstance(part, torch.Tensor):
            torch.testing.assert_close(whole[wanted], part, rtol=0, atol=0, equal_nan=True)
        else:
            assert whole is part is None
    assert isinstance(result, Measured)


def test_losses_that_need_the_memory_are_taken_of_fewer_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = train(tiny("report.certify.scheme=split", "federation.rounds=1"))
    group = bound_rows_of(trained, "existing", trained.groups["existing"], 0.05)
    assert group is not None
    whole, real = (
        measure(trained, group, SaturatingSquare(), Request(), lambda _: None),
        study_certify_measure.gibbs_losses,
    )

    def failing(posterior: Any, rows: Any, *rest: Any) -> Any:
        if rows.clients > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(posterior, rows, *rest)

    monkeypatch.setattr(study_certify_measure, "gibbs_losses", failing)
    told: list[int] = []
    with pytest.warns(UserWarning, match="GPU memory exhausted by"):
        short = measure(trained, group, SaturatingSquare(), Request(), told.append)
    assert told == [1] * group.rows.clients
    for mine, theirs in zip(short.select(whole.n > 0), whole.select(whole.n > 0), strict=True):
        if isinstance(mine, torch.Tensor):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = write_root(tmp_path_factory.mktemp("images"))
    more = ["data.options.train=10", "data.options.test=2", "federation.rounds=2", "method.zeta=1.0"]
    return train(tiny_images(root, "report.certify.scheme=split", *more))


def ends(images: Trained) -> tuple[Any, Any]:
    """Prior and refined posterior of the existing clients, by the calls of the method alone."""
    held, seen, plan = images.bound_rows, images.groups["existing"].train, images.study.plan
    assert held is not None
    noises = [Noise(plan.seed, at, held.ids, None, plan.noise) for at in (0, 2**32 - 4)]
    prior = images.method.personalise(
        images.method.broadcast(images.state.server), images.state.clients, seen, noises[0]
    )
    return prior, images.method.refine(prior, seen, held, noises[1]).posterior


def test_one_network_is_drawn_once_and_its_line_is_made_of_its_own_risk_and_density(images: Trained) -> None:
    table = certify(images, Request("one-draw", posterior="refined", holdout=0.0))
    held, plan = images.bound_rows, images.study.plan
    assert held is not None and table.reasons == {"existing": [], "new": []}
    prior, posterior = ends(images)
    q, p, drawing = posterior.family, prior.family, Noise(plan.seed, SHIPPED, held.ids, None, plan.noise)
    theta = q.weights(q.draw(drawing)).double()
    ratio = sum(
        sign * torch.distributions.Normal(one.loc.double(), one.scale.double()).log_prob(theta).sum(1)
        for sign, one in ((1, q), (-1, p))
    )
    wrong = []
    for k in range(len(theta)):
        row = held.select(torch.tensor([k]))
        logits = prior.model.observation(theta[k : k + 1].float(), row, None).logits
        wrong.append((logits.argmax(-1) != row.y).double().mean().item())
    lines = [line for line in table.clients if line.group == "existing"]
    assert [line.kl for line in lines] == pytest.approx(ratio.tolist(), rel=1e-4)
    assert [line.risk for line in lines] == pytest.approx(wrong, abs=1e-9)
    premises = Premises(Provenance("split"), independent=True)
    expected = bounds.one_draw(torch.tensor(wrong), ratio, 25, 0.05, premises).value
    assert [line.bound for line in lines] == pytest.approx(expected.tolist(), rel=1e-4)
    again = certify(images, Request("one-draw", posterior="refined", holdout=0.0))
    assert [line.risk for line in again.clients] == [line.risk for line in table.clients]  # the network is the same one
    best = certify(images, Request("one-draw", holdout=0.0))
    assert {line.share for line in best.clients} <= {0.0, 0.1, 0.25, 0.5, 0.75, 1.0}
    with pytest.raises(AssumptionError, match="one network, drawn from a posterior over weights, got a"):
        certify(train(tiny("report.certify.scheme=split", "federation.rounds=1")), Request("one-draw"))


def test_the_variance_of_drawn_networks_is_that_of_a_loop_over_draws(images: Trained) -> None:
    group = bound_rows_of(images, "existing", images.groups["existing"], 0.05)
    assert group is not None
    loss = ClippedNLL(1e-3)
    made = measure(images, group, loss, Request("empirical-bernstein", loss=loss, draws=7, posterior="refined"), print)
    assert made.variances is not None and made.risks is not None and made.variances.shape == (4, 7)
    held, plan = group.rows, images.study.plan
    drawing = Noise(plan.seed, 2**32 - 3, held.ids, None, plan.noise)
    each = [loss(one.logits, held.y) for one in ends(images)[1].sample_hypotheses(held.x, 7, drawing.common())]
    by_hand = torch.stack([one.var(1, correction=0) for one in each], 1)
    torch.testing.assert_close(made.variances, by_hand, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(made.variance, by_hand.mean(1), rtol=1e-4, atol=1e-9)


def test_the_variance_of_functions_that_are_drawn_row_by_row_is_never_below_that_of_one_function() -> None:
    """Every function errs at one of two equal rows with other labels: each has the variance 1 / 4, whatever it is."""
    z = torch.nn.functional.normalize(torch.randn(10, 3, generator=torch.Generator().manual_seed(0)), dim=-1).double()
    rows = ClientBatch.pad([(torch.cat((z, z)), torch.arange(20) // 10)], ["a"], classes=2)
    tree = class_tree.grow(torch.tensor([[[0.0], [1.0]]]).double(), torch.ones(1, 2, dtype=torch.bool))
    posterior = class_tree.condition(lambda x: x, SphereKernel(), tree, rows, 10, 1e-3)
    subset: Any = SimpleNamespace(rows=rows, repeats=Repeats(torch.arange(20).unsqueeze(0), False))
    request, noise = Request("empirical-bernstein", draws=200), Noise(0, 7, (0,))
    for one in (posterior, tempered(posterior, 2.0)):
        (made,) = study_certify_measure._risks([one], subset, ZeroOne(), request, noise)
        assert made.variance.item() == 0.25 and made.variances is None and made.risks is not None
        estimate = request.estimate(200, 0.05, made.risks, made.variances, None)
        numbers = {"risk": made.risk, "variance": made.variance, "kl": posterior.kl(), "n": torch.tensor([20.0])}
        certificate = request.record.certify(numbers, 0.05, Premises(Provenance("split"), True), estimate)
        assert certificate.valid and 0.45 < made.risk.item() < 0.55 < certificate.value.item()


def test_the_variance_of_functions_is_never_below_that_of_their_draws() -> None:
    """A Gaussian prediction for each of two rows: E_Q of the variance over rows by draws, and its bound by moments."""
    mean, variance, y = (torch.tensor(one, dtype=torch.float64) for one in ([0.1, 0.9], [0.04, 0.3], [0.0, 0.2]))
    normals = mean + variance.sqrt() * torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0)).double()
    for loss, exact in ((SaturatingSquare(0.7), True), (ClippedSquare(1.5), False)):
        each = loss(normals, y)
        square = squared(loss).expected(mean, variance, y)  # type: ignore[attr-defined]
        if exact:
            torch.testing.assert_close(square, each.square().mean(0), rtol=0.01, atol=0)
        assert bool((square >= each.square().mean(0) - 5e-3).all())
        upper = square.mean() - loss.expected(mean, variance, y).mean().square()
        assert upper >= each.var(1, correction=0).mean() - 5e-3
    labels, log_probs = torch.tensor([0, 1]), torch.tensor([[0.7, 0.3], [0.9, 0.1]]).log()
    torch.testing.assert_close(squared(ClippedNLL())(log_probs, labels), ClippedNLL()(log_probs, labels) ** 2)  # type: ignore[operator]


def test_candidates_are_compared_by_the_same_draws_each_made_once(
    images: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = bound_rows_of(images, "existing", images.groups["existing"], 0.05)
    assert group is not None
    prior, posterior = ends(images)
    noise = Noise(1, 2, group.rows.ids, None, images.study.plan.noise)
    by_row = study_certify_measure._risks([prior, posterior], group, ZeroOne(), Request(draws=9), noise)
    for one, own in zip((prior, posterior), by_row, strict=True):
        each = drawn_losses(one, group.rows, ZeroOne(), 9, noise.common(), by_row=True)
        assert own.risks is not None
        torch.testing.assert_close(own.risks, torch.stack([losses.mean(1) for losses in each], 1), rtol=1e-12, atol=0)
    request = Request("empirical-bernstein", draws=9)  # whose draws are networks that serve all rows
    alone = [study_certify_measure._risks([one], group, ZeroOne(), request, noise)[0] for one in (prior, posterior)]
    made, real = [], Noise._weights

    def counted(self: Noise, like: torch.Tensor, kind: Any) -> torch.Tensor:
        made.append(self._draw)
        return real(self, like, kind)

    monkeypatch.setattr(Noise, "_weights", counted)
    both = study_certify_measure._risks([prior, posterior], group, ZeroOne(), request, noise)
    for one, other in zip(both, alone, strict=True):
        assert one.risks is not None and other.risks is not None and torch.equal(one.risks, other.risks)
    assert made == list(range(9))
    assert both[0].risks is not None and both[1].risks is not None and not torch.equal(both[0].risks, both[1].risks)


def test_a_client_is_estimated_by_the_same_draws_in_any_company(images: Trained) -> None:
    group = bound_rows_of(images, "existing", images.groups["existing"], 0.05)
    assert group is not None
    some, posterior = torch.tensor([2, 0]), ends(images)[1]
    rows = group.rows.select(some)
    part = group._replace(rows=rows, repeats=group.repeats.select(some, rows.mask.shape[1]))
    family = tensors.tree_map(lambda leaf: leaf[some], posterior.family)
    request, found = Request("empirical-bernstein", draws=9), []
    for one, own in ((posterior, group), (replace(posterior, family=family, reference=None), part)):
        noise = Noise(1, 2, own.rows.ids, None, images.study.plan.noise)
        (made,) = study_certify_measure._risks([one], own, ZeroOne(), request, noise)
        found.append(made.risks)
    torch.testing.assert_close(found[0][some], found[1], rtol=1e-12, atol=0)


def test_functions_are_certified_by_their_variance() -> None:
    trained = train(tiny("report.certify.scheme=split", "federation.rounds=1"))
    table = certify(trained, Request("empirical-bernstein"))
    assert table.reasons == {"existing": [], "new": []} and all(line.risk < line.bound <= 1 for line in table.clients)
    terms = table.certificates["existing"]["terms"]
    assert all(0 <= v <= r * (1 - r) + 1e-12 for v, r in zip(terms["variance"], terms["risk"], strict=True))
