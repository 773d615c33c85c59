"""Choosing a posterior: what stands between, that the best is taken, and that the choice is not paid for twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pacbayes_fl.certificates import measure as certify_measure
from pacbayes_fl.certificates.choice import POWERS, SHARES, Candidate, candidates, choose, merged, refine
from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.certificates.rows import bound_rows_of
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions.powers import partly_refined
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.study.run import Trained, train
from tests.tiny import tiny
from tests.tiny_images import tiny_images, write_root

SPLIT = "report.certify.scheme=split"


class Refining:
    """A method whose posteriors are refined as they are."""

    def refined_from(self, prior: Any, seen: Any) -> Any:
        return prior


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train(tiny(SPLIT, "federation.rounds=2"))


def test_the_smallest_bound_of_each_client_is_taken_and_what_has_no_divergence_is_none() -> None:
    kls = ([4.0, 1.0, float("inf")], [0.5, 3.0, 2.0], [0.0, 0.0, float("nan")])
    among = [Candidate(share, None, torch.tensor(kl)) for share, kl in zip((1.0, 0.5, 0.0), kls, strict=True)]
    values = {1.0: [0.3, 0.2, 0.1], 0.5: [0.2, 0.2, 0.9], 0.0: [float("nan"), 0.4, 0.1]}
    assert choose(among, lambda ones: torch.tensor([values[one.share] for one in ones])).tolist() == [1, 0, 1]


def test_between_prior_and_posterior_the_divergence_grows_and_each_client_gets_its_own() -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = (MeanField(torch.randn(2, 5, generator=generator), torch.randn(2, 5, generator=generator)) for _ in range(2))
    noise = Noise(0, 0, (1, 2))
    posteriors = [WeightPosterior(None, family, 1, noise) for family in (p, q)]  # type: ignore[arg-type]
    refined = Candidate(1.0, posteriors[1], q.kl(p))
    among = candidates(Refining(), posteriors[0], refined, SimpleNamespace(seen=None), noise)  # type: ignore[arg-type]
    assert [one.share for one in among] == [1.0, *SHARES, 0.0]
    assert bool((torch.stack([one.kl for one in among]).diff(dim=0) < 0).all())
    half = among[1 + SHARES.index(0.5)]
    torch.testing.assert_close(half.kl, half.posterior.family.kl(p))
    torch.testing.assert_close(half.posterior.family.loc, 0.5 * (p.loc + q.loc))
    ((whose, one),) = merged(among, torch.tensor([0, len(among) - 1]))
    assert whose.all() and torch.equal(one.posterior.family.loc, torch.stack((q.loc[0], p.loc[1])))
    assert one.kl.tolist() == [pytest.approx(refined.kl[0].item()), 0.0]


class Answering:
    """A method of somebody's own: what its refine makes of the prior, and what it says of the divergence."""

    def __init__(self, answer: Callable[[MeanField, MeanField], object]) -> None:
        self.answer = answer

    def refine(self, prior: Any, seen: Any, rows: Any, noise: Any) -> Any:
        p = prior.family
        q = MeanField(p.loc + 0.5, p.rho.clone())
        return replace(prior, family=q), self.answer(q, p)


def refined(answer: Callable[[MeanField, MeanField], object]) -> Candidate:
    """Let a method refine two clients' weights."""
    generator, noise = torch.Generator().manual_seed(0), Noise(0, 0, (1, 2))
    p = MeanField(torch.randn(2, 5, generator=generator), torch.randn(2, 5, generator=generator))
    subset: Any = SimpleNamespace(seen=None, rows=SimpleNamespace(clients=2, names=("a", "b")))
    method, prior = Answering(answer), WeightPosterior(None, p, 1, noise)  # type: ignore[arg-type]
    return refine(method, prior, subset, noise)  # type: ignore[arg-type]


def in_place(q: MeanField, p: MeanField) -> torch.Tensor:
    """Train on the prior's own storage, as an optimiser would that was given no copy."""
    p.loc.copy_(q.loc)
    return q.kl(p)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (in_place, "refine of Answering has changed loc of its prior, which then knows the rows of the bound"),
        (
            lambda q, p: 0.0 * q.kl(p),
            r"client 'a': .* a divergence of 0 nats, less than that of its weights .* 3\.35",
        ),
        (lambda q, p: q.kl(p) * torch.tensor([1.0, 0.5]), "client 'b': .* less than that of its weights"),
        (lambda q, p: -q.kl(p), "client 'a': .* a divergence of -"),
        (lambda q, p: q.kl(p).sum(), r"must give kl \[K=2\], a number in nats for every client, got \[\]"),
        (lambda q, p: q.kl(p).unsqueeze(1), r"got \[2, 1\]"),
        (lambda q, p: 0.0, "got float"),
    ],
)
def test_what_a_method_says_of_its_divergence_is_compared_with_that_of_its_weights(
    answer: Callable[[MeanField, MeanField], object], message: str
) -> None:
    with pytest.raises(AssumptionError, match=message):
        refined(answer)


def test_a_divergence_may_be_an_upper_bound_or_of_a_client_that_has_none() -> None:
    def answer(q: MeanField, p: MeanField) -> torch.Tensor:
        return q.kl(p) * torch.tensor([2.0, torch.nan])

    first, second = refined(answer).kl.tolist()
    assert first == pytest.approx(2.0 * refined(lambda q, p: q.kl(p)).kl[0].item()) and second != second


def test_a_method_keeps_the_family_of_its_prior_and_no_divergence_of_any_kind_is_negative() -> None:
    noise, rows = Noise(0, 0, (1, 2)), SimpleNamespace(clients=2, names=("a", "b"))
    prior = WeightPosterior(None, MeanField(torch.zeros(2, 3), torch.zeros(2, 3)), 1, noise)  # type: ignore[arg-type]
    subset: Any = SimpleNamespace(seen=None, rows=rows)
    point: Any = SimpleNamespace(
        refine=lambda *_: (replace(prior, family=PointMass(torch.zeros(2, 3))), torch.zeros(2))
    )
    with pytest.raises(AssumptionError, match="must keep the family of its prior, got PointMass from MeanField"):
        refine(point, prior, subset, noise)
    trees: Any = SimpleNamespace(refine=lambda *_: (None, torch.tensor([0.0, -1.0])))
    with pytest.raises(AssumptionError, match=r"client 'b': .* -1 nats, which no divergence is"):
        refine(trees, None, subset, noise)


def test_certify_takes_no_divergence_unseen(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(trained.method)
    real = kind.refine

    def refine_badly(self: Any, prior: Any, seen: Any, rows: Any, noise: Any) -> Any:
        made = real(self, prior, seen, rows, noise)
        return made._replace(kl=-made.kl)

    monkeypatch.setattr(kind, "refine", refine_badly)
    with pytest.raises(AssumptionError, match="refine of pac-pfl gave a divergence of -"):
        certify(trained, "seeger")


def test_no_bound_is_larger_than_that_of_the_refined_posterior_and_all_are_of_one_client_s_candidates(
    trained: Trained,
) -> None:
    refined, best = (certify(trained, Request("seeger", posterior=which)) for which in ("refined", "best"))  # type: ignore[arg-type]
    assert all(mine.bound <= other.bound for mine, other in zip(best.clients, refined.clients, strict=True))
    assert any(mine.bound < other.bound for mine, other in zip(best.clients, refined.clients, strict=True))
    assert {line.share for line in refined.clients} == {1.0}
    assert {line.share for line in best.clients} <= {1.0, *POWERS, 0.0}
    prior = [line for line in best.clients if line.share == 0.0]
    assert all(line.kl == 0.0 for line in prior)
    with pytest.raises(AssumptionError, match="posterior must be one of best, refined"):
        Request(posterior="prior")  # type: ignore[arg-type]


def test_a_part_of_the_rows_is_a_posterior_of_that_part(trained: Trained) -> None:
    group = bound_rows_of(trained, "existing", trained.groups["existing"], 0.05)
    assert group is not None
    seen: list[list[int]] = []

    class Counting(Refining):
        def refine(self, prior: Any, before: Any, rows: Any, noise: Any) -> Any:
            seen.append(rows.size.tolist())
            return prior, torch.zeros(rows.clients)

    class Functions:
        def function(self, x: Any) -> Any:
            """Stand for a posterior over functions."""

    candidates(Counting(), Functions(), Candidate(1.0, Functions(), torch.zeros(4)), group, Noise(0, 0, (1,)))  # type: ignore[arg-type]
    assert seen == [[3] * 4, [2] * 4, [1] * 4, [1] * 4]  # of three rows: at least one, rounded up


def test_of_exact_functions_powers_of_the_likelihood_stand_between(trained: Trained) -> None:
    """All of the likelihood gives the refined posterior, and less of it is nearer to the prior."""
    group = bound_rows_of(trained, "existing", trained.groups["existing"], 0.05)
    assert group is not None
    method, noise = trained.method, Noise(0, 0, group.rows.ids)
    prior = method.personalise(method.broadcast(trained.state.server), trained.state.clients, group.seen, noise)
    refined = Candidate(1.0, *method.refine(prior, group.seen, group.rows, noise))
    among = candidates(method, prior, refined, group, noise)
    assert [one.share for one in among] == [1.0, *POWERS, 0.0]
    assert bool((torch.stack([one.kl for one in among]).diff(dim=0) < 0).all())
    ((_, whole),) = partly_refined(prior, refined.posterior, group.rows, [1.0])
    torch.testing.assert_close(whole, refined.kl, rtol=1e-12, atol=0.0)


def test_the_draws_that_choose_are_not_those_that_estimate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same network is drawn twice only if the streams are one: their rounds differ."""
    assert len(set(certify_measure._STREAMS)) == 3
    drawn: list[tuple[int, int]] = []
    real = certify_measure._risks

    def watched(posteriors: Any, subset: Any, loss: Any, request: Request, noise: Noise, least: int) -> Any:
        drawn.append((noise.round, request.draws))
        return real(posteriors, subset, loss, request, noise, least)

    monkeypatch.setattr(certify_measure, "_risks", watched)
    certify(replace(train(tiny(SPLIT, "federation.rounds=1")), folder=None), Request("seeger", draws=90))
    assert {draws for _, draws in drawn} == {40}  # a risk that needs no draws is taken once
    more = ["data.options.train=10", "data.options.test=2", "federation.rounds=1"]
    images = train(tiny_images(write_root(tmp_path), SPLIT, *more))
    certify(replace(images, folder=None), Request("seeger", draws=90))
    pilot, final = {entry for entry in drawn if entry[1] == 40}, {entry for entry in drawn if entry[1] == 90}
    assert {stream for stream, _ in pilot}.isdisjoint({stream for stream, _ in final}) and pilot and final


def test_of_many_rows_with_networks_of_their_own_a_part_chooses_and_all_estimate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    more = ["data.options.train=10", "data.options.test=2", "federation.rounds=1"]
    images = replace(train(tiny_images(write_root(tmp_path), SPLIT, *more)), folder=None)
    monkeypatch.setattr(certify_measure, "_ENOUGH", 5)
    looked: dict[int, set[int]] = {}
    real = certify_measure._risks

    def watched(posteriors: Any, subset: Any, loss: Any, request: Request, noise: Noise, least: int) -> Any:
        looked.setdefault(request.draws, set()).add(subset.rows.mask.shape[1])
        return real(posteriors, subset, loss, request, noise, least)

    monkeypatch.setattr(certify_measure, "_risks", watched)
    table = certify(images, Request("seeger", draws=90))
    rows = {line.rows for line in table.clients if line.group == "existing"}
    assert max(looked[40]) < max(rows) and rows <= looked[90] and all(line.risk <= line.bound for line in table.clients)
