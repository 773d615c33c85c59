"""BPFed against plain torch: shared and personal parts, priors that go on, and what leaves a client."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import messages
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.variational.bpfed import BPFed, Server
from pacbayes_fl.methods.variational.pfedbayes import PriorTracking
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from tests.methods import by_hand, refining
from tests.methods.by_hand import MODEL, SHARED, SIZES, D, K, clients, close, randn

LOCAL = LocalInference(steps=2, inner=2, minibatch=4, draws=2, rate=0.03, zeta=0.7)
RATE = 0.05


def method(tracking: dict[str, Any] | None = None, local: LocalInference = LOCAL, **options: Any) -> BPFed:
    return BPFed(MODEL, local, PriorTracking(RATE, **(tracking or {})), **({"draws": 3, "join_passes": 1} | options))


def server(seed: int = 20) -> Server:
    return Server(MeanField(by_hand.alive(0.5 * randn(seed, D)), 0.1 * randn(seed + 1, D) - 2.0))


FORMS: dict[str, dict[str, Any]] = {
    "paper": {},
    "public code": {"upload": "tracked", "local": {"divergence": "reverse", "data_scale": "mean", "noise_std": 1e-3}},
    "moments anew, by rows": {"tracking": {"keep_moments": False}, "weighting": "rows"},
    "divide": {"prior": "divide"},
    "divide, tracked": {"prior": "divide", "upload": "tracked"},
}


@pytest.mark.law
@pytest.mark.quick
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("noise", ["philox", "generators"])
def test_three_rounds_are_the_algorithm_box_in_plain_torch(form: str, noise: Any) -> None:
    options = dict(FORMS[form])
    values = {name: getattr(LOCAL, name) for name in LocalInference.__dataclass_fields__} | options.pop("local", {})
    local = LocalInference(**values)
    algorithm, batch, state = method(local=local, **options), clients(*SIZES), server()
    first = [leaf.clone() for leaf in state.w]
    kept = algorithm.init_clients(algorithm.broadcast(state), batch)
    expected, v = [by_hand.Client(state.w, state.w, (0.03, RATE)) for _ in range(K)], list(state.w)
    weight = torch.tensor(SIZES if algorithm.weighting == "rows" else (1,) * K, dtype=torch.float64)
    for t in (1, 2, 3):
        update, kept = algorithm.client(algorithm.broadcast(state), kept, batch, Noise(3, t, batch.ids, engine=noise))
        state = algorithm.server(state, algorithm.reduce(update), K)
        for k, (one, m) in enumerate(zip(expected, SIZES, strict=True)):
            # the prior: what the server knows of the shared part, and the client's last posterior of its own part
            prior = [torch.cat((new[:SHARED], own.detach()[SHARED:])) for new, own in zip(v, one.q, strict=True)]
            one.start(prior)
            one.get(prior if algorithm.prior == "cumulative" else v)  # what is left is the first prior, and stays
            one.held = slice(0) if algorithm.prior == "cumulative" else slice(SHARED, None)
            if not algorithm.tracking.keep_moments:
                one.rest()
            one.play(local, batch.x[k, :m], batch.y[k, :m], Noise(3, t, batch.ids[k : k + 1], engine=noise))
            close([leaf[k] for leaf in kept.personal], [leaf[SHARED:] for leaf in one.q])
            source = one.q if algorithm.upload == "posterior" else one.w
            close([leaf[k] for leaf in update.w], [leaf[:SHARED] for leaf in source])
        for at, old in enumerate(v):
            sources = [(one.q if algorithm.upload == "posterior" else one.w)[at].detach() for one in expected]
            mean = sum(float(weight[k]) * sources[k][:SHARED] for k in range(K)) / float(weight.sum())
            v[at] = torch.cat((mean, old[SHARED:]))
        close(state.w, v)
    for now, was in zip(state.w, first, strict=True):
        assert torch.equal(now[SHARED:], was[SHARED:]) and not torch.equal(now[:SHARED], was[:SHARED])


def test_the_personal_part_never_leaves() -> None:
    algorithm, batch = method(), clients(*SIZES)
    kept = algorithm.init_clients(server(), batch)
    assert algorithm.shared == SHARED and kept.personal.loc.shape == (K, D - SHARED)
    update, kept = algorithm.client(server(), kept, batch, Noise(3, 1, batch.ids))
    assert update.w.loc.shape == update.w.rho.shape == (K, SHARED)
    sent = torch.cat([leaf.double().flatten() for leaf in messages.flatten(update).values()])
    own = torch.cat([leaf.flatten() for leaf in kept.personal])
    assert not torch.isin(own, sent).any()
    assert {len(leaf) for leaf in messages.flatten(update).values()} == {K}


def test_predictions_join_the_server_s_shared_part_and_the_client_s_own() -> None:
    algorithm, batch = method(), clients(*SIZES)
    _, kept = algorithm.client(server(), algorithm.init_clients(server(), batch), batch, Noise(3, 1, batch.ids))
    newer, x = server(50), randn(70, K, 4, 2)
    posterior = algorithm.personalise(newer, kept, batch, Noise(3, 0, batch.ids))
    probs = posterior.predict(x).probs
    for k in range(K):
        parts = zip(newer.w, kept.personal, strict=True)
        own = [torch.cat((shared[:SHARED], personal[k])) for shared, personal in parts]
        close([leaf[k] for leaf in posterior.family], own, 0.0)
        noise = Noise(3, 0, batch.ids[k : k + 1])
        draws = [torch.softmax(by_hand.logits(by_hand.drawn(own, noise, 1.0, 0.5), x[k]), -1) for _ in range(3)]
        torch.testing.assert_close(probs[k], torch.stack(draws).mean(0), rtol=1e-11, atol=1e-13)
    assert algorithm.global_model(newer, kept, batch, Noise(3, 0, batch.ids)) is None  # the server has no whole model


def test_a_new_client_fits_its_own_part_alone() -> None:
    algorithm, batch = method(join_passes=3), clients(5, 2, 0)
    posterior = algorithm.personalise(server(), algorithm.init_clients(server(), batch), batch, Noise(3, 0, batch.ids))
    for leaf, start in zip(posterior.family, server().w, strict=True):
        assert torch.equal(leaf[:, :SHARED], start[:SHARED].expand(K, -1))
        assert (leaf[:2, SHARED:] != start[SHARED:]).any(1).all()
        assert torch.equal(leaf[2], start)  # without rows it keeps the prior
    trained = tensors.tree_map(torch.clone, algorithm.init_clients(server(), batch))
    trained.adam_q.steps.fill_(1)
    same = algorithm.personalise(server(), trained, batch, Noise(3, 0, batch.ids))
    assert torch.equal(same.family.loc, server().w.loc.expand(K, -1))


@pytest.mark.parametrize(("sites", "shared"), [(1, D - 3), (2, SHARED), (3, 6)])
def test_sites_from_the_end_are_personal(sites: int, shared: int) -> None:
    algorithm, batch = method(personal_sites=sites), clients(*SIZES)
    kept = algorithm.init_clients(server(), batch)
    assert algorithm.shared == shared and kept.personal.rho.shape == (K, D - shared)
    update, _ = algorithm.client(server(), kept, batch, Noise(3, 1, batch.ids))
    assert update.w.loc.shape == (K, shared)


@pytest.mark.parametrize("sites", [0, 4, 9, -1])
def test_both_parts_have_a_site(sites: int) -> None:
    with pytest.raises(StudyError, match=f"personal_sites must be (at least 1|between 1 and 3), got {sites}"):
        BPFed(MODEL, personal_sites=sites)


@pytest.mark.parametrize("name", ["init_std", "draws", "join_passes"])
def test_hyper_parameters_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(StudyError, match=r"must be (positive and finite|at least 1), got"):
        BPFed(MODEL, **{name: 0})  # type: ignore[arg-type]


def test_a_record_says_the_means_over_clients() -> None:
    algorithm, batch = method(), clients(*SIZES)
    update, _ = algorithm.client(server(), algorithm.init_clients(server(), batch), batch, Noise(3, 1, batch.ids))
    for form in (update, algorithm.reduce(update)):
        report = algorithm.report(server(), form)
        assert report["kl"].item() == pytest.approx(update.fit.kl.mean().item(), rel=1e-12)
        assert report["log_likelihood"].item() == pytest.approx(update.fit.log_likelihood.mean().item(), rel=1e-12)


def test_both_parts_are_fitted_to_more_rows() -> None:
    refined = refining.check(method(), server(), refining.gaussian_oracle)
    prior, _ = refining.priors(method(), server())
    for part in (slice(0, SHARED), slice(SHARED, D)):
        assert (refined.posterior.family.loc[:2, part] != prior.family.loc[:2, part]).any(1).all()  # type: ignore[attr-defined]


def test_what_is_known_of_a_client_without_rows_is_the_server_s_distribution() -> None:
    algorithm, batch = method(join_passes=5), clients(0, 0, 0)
    posterior = algorithm.personalise(server(), algorithm.init_clients(server(), batch), batch, Noise(3, 0, batch.ids))
    for leaf, shared in zip(posterior.family, server().w, strict=True):
        assert torch.equal(leaf, shared.expand(K, D))


def test_the_divergence_has_weight_1_from_python_too() -> None:
    assert BPFed(MODEL).local == LocalInference(zeta=1.0)  # eq. 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregation": "moments", "upload": "tracked"}, "upload = 'tracked' the prior"),
        ({"aggregation": "moments", "local": LocalInference(divergence="reverse")}, "divergence = 'reverse' is of"),
        ({"aggregation": "mean"}, "aggregation must be one of 'tracked', 'moments', 'tracked-moments', got 'mean'"),
        ({"prior": "mine"}, "prior must be one of 'cumulative', 'divide', got 'mine'"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        BPFed(MODEL, **options)
