"""sFedBayes against plain torch: rounds, what is dropped, what is sent, and what predictions use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.variational.pfedbayes import Fit, PriorTracking
from pacbayes_fl.methods.variational.sfedbayes import Server, SFedBayes, SparseUpload, Update, sparse_bytes
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.spike_slab import SpikeSlab
from pacbayes_fl.server.moments import Moments
from tests.methods import by_hand, refining
from tests.methods.by_hand import MODEL, SIZES, D, K, clients, close, randn

LOCAL = LocalInference(steps=2, inner=2, minibatch=4, draws=2, rate=0.03, zeta=0.7)
RATE, THRESHOLD = 0.05, 0.4


def method(tracking: dict[str, Any] | None = None, local: LocalInference = LOCAL, **options: Any) -> SFedBayes:
    options = {"threshold": THRESHOLD, "temperature": 0.3, "draws": 3, "join_passes": 1} | options
    return SFedBayes(MODEL, local, PriorTracking(RATE, **(tracking or {})), **options)


def server(seed: int = 20) -> Server:
    """Return a global distribution with inclusion probabilities on both sides of the threshold."""
    return Server(SpikeSlab(0.5 * randn(seed, D), 0.1 * randn(seed + 1, D) - 2.0, randn(seed + 2, D)))


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "moments anew, beta 0.5, by rows": {"tracking": {"keep_moments": False}, "beta": 0.5, "weighting": "rows"},
    "temperature 2": {"temperature": 2.0},
    "as printed": {"threshold": 0.0, "slab_average": "uniform"},
}


@pytest.mark.law
@pytest.mark.quick
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("noise", ["philox", "generators"])
def test_two_rounds_are_the_algorithm_box_in_plain_torch(form: str, noise: Any) -> None:
    algorithm, batch, state = method(**FORMS[form]), clients(*SIZES), server()
    kept = algorithm.init_clients(server(40), batch)  # q is not w: where all slopes vanish Adam follows rounding
    v = list(state.w)
    expected = [by_hand.Client(server(40).w, v, (0.03, RATE)) for _ in range(K)]
    weight = torch.tensor(SIZES if algorithm.weighting == "rows" else (1,) * K, dtype=torch.float64)
    dropped = 0
    for t in (1, 2):
        update, kept = algorithm.client(algorithm.broadcast(state), kept, batch, Noise(3, t, batch.ids, engine=noise))
        state = algorithm.server(state, algorithm.reduce(update), K)
        shares, inclusion = torch.zeros(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)
        slab = [torch.zeros(D, dtype=torch.float64) for _ in range(2)]
        for k, (one, m) in enumerate(zip(expected, SIZES, strict=True)):
            one.get(v)
            if not algorithm.tracking.keep_moments:
                one.rest()
            alone = Noise(3, t, batch.ids[k : k + 1], engine=noise)
            fit, kl = one.play(LOCAL, batch.x[k, :m], batch.y[k, :m], alone, algorithm.temperature)
            close([leaf[k] for leaf in kept.q], one.q)
            assert update.fit.log_likelihood[k].item() == pytest.approx(fit, rel=1e-9)
            assert update.fit.kl[k].item() == pytest.approx(kl, rel=1e-8)
            loc, rho, logit = (leaf.detach() for leaf in one.w)
            gone = torch.sigmoid(logit) < algorithm.threshold
            dropped += int(gone.sum())
            sent = [
                torch.where(gone, v[0], loc),
                torch.where(gone, v[1], rho),
                torch.where(gone, 0.0, torch.sigmoid(logit)),
            ]
            close([leaf[k] for leaf in (*update.w.slab, update.w.inclusion)], sent)
            assert update.sent[k].item() == pytest.approx(1 - gone.double().mean().item(), rel=1e-12)
            inside = torch.sigmoid(one.q[2])
            inside = torch.where(inside >= algorithm.threshold, inside, 0.0)
            assert update.kept[k].item() == pytest.approx(inside.mean().item(), rel=1e-9)
            share = weight[k] * (sent[2] if algorithm.slab_average == "inclusion" else torch.ones_like(sent[2]))
            shares, inclusion = shares + share, inclusion + weight[k] / weight.sum() * sent[2]
            slab = [mean + share * leaf for mean, leaf in zip(slab, sent[:2], strict=True)]
        means = [torch.where(shares > 0, mean / shares, old) for mean, old in zip(slab, v[:2], strict=True)]
        old = [v[0], v[1], torch.sigmoid(v[2])]
        new = [(1 - algorithm.beta) * a + algorithm.beta * b for a, b in zip(old, [*means, inclusion], strict=True)]
        v = [new[0], new[1], torch.logit(new[2].clamp(0, 1)).clamp(-15, 15)]
        close(state.w, v)
    assert (0 < dropped < 2 * K * D) == (form != "as printed")


def test_a_restart_begins_at_the_global_distribution_whatever_a_client_had() -> None:
    """As Algorithm 2 is printed."""
    algorithm, plain, batch = method({"restart": True}), method(), clients(*SIZES)
    here, elsewhere = (algorithm.init_clients(start, batch) for start in (server(), server(40)))
    results = [
        one.client(server(), kept, batch, Noise(3, 1, batch.ids))
        for one, kept in ((algorithm, here), (algorithm, elsewhere), (plain, here), (plain, elsewhere))
    ]
    flat = [torch.cat([leaf.double().flatten() for leaf in tensors.leaves(result[1].q).values()]) for result in results]
    assert torch.equal(flat[0], flat[1]) and torch.equal(flat[0], flat[2])
    assert not torch.equal(flat[0], flat[3])


def test_the_temperature_reaches_the_gradient() -> None:
    batch, local = clients(*SIZES), LocalInference(steps=1, inner=1, minibatch=50, zeta=0.7)
    slopes = {}
    for temperature in (0.3, 2.0):
        algorithm = method(temperature=temperature, local=local)
        _, new = algorithm.client(server(), algorithm.init_clients(server(40), batch), batch, Noise(3, 1, batch.ids))
        start = [leaf[0] for leaf in algorithm.init_clients(server(40), batch).q]
        one = by_hand.Client(start, server().w, (1e-3, RATE))
        one.play(local, batch.x[0, :5], batch.y[0, :5], Noise(3, 1, batch.ids[:1]), temperature)
        close([leaf[0] for leaf in new.adam_q.first], [0.1 * p.grad for p in one.q if p.grad is not None], 1e-10)
        slopes[temperature] = new.adam_q.first
    assert torch.equal(slopes[0.3].loc, slopes[2.0].loc) and torch.equal(slopes[0.3].rho, slopes[2.0].rho)
    assert (slopes[0.3].logit - slopes[2.0].logit).abs().max() > 1e-2


# what is dropped ------------------------------------------------------------------------------------------------


def sent(*inclusion: float, loc: float = 2.0, rho: float = -3.0) -> Update:
    """Return what clients send of one weight: mu, rho and lambda, or the server's own slab of one that was dropped."""
    lam = torch.tensor(inclusion, dtype=torch.float64).view(-1, 1)
    slab = MeanField(*(torch.where(lam > 0, value, value * 0) for value in (lam * 0 + loc, lam * 0 + rho)))
    one = torch.ones(len(inclusion), dtype=torch.float64)
    return Update(SparseUpload(slab, lam), one, one, Fit(one, one, one), one, one)


def test_a_dropped_weight_shrinks_the_inclusion_alone() -> None:
    """Slabs are averaged over those that sent them, by lambda: E theta of the average is the average of E theta."""
    algorithm = SFedBayes(MODEL, threshold=0.1)
    old = Server(SpikeSlab(*(torch.zeros(1, dtype=torch.float64) for _ in range(3))))
    some = algorithm.server(old, sent(0.9, 0.0, 0.6), 3).w
    assert (some.loc.item(), some.rho.item()) == pytest.approx((2.0, -3.0), rel=1e-14)
    assert some.inclusion.item() == pytest.approx(0.5, rel=1e-12)
    both = algorithm.server(old, sent(0.9, 0.0, loc=1.0), 2).w
    assert (both.inclusion.item(), both.mean().item()) == pytest.approx((0.45, 0.45), rel=1e-12)
    unlike = sent(0.9, 0.3)
    unlike = unlike._replace(
        w=unlike.w._replace(slab=MeanField(*(leaf * leaf.new_tensor([[1.0], [3.0]]) for leaf in unlike.w.slab)))
    )
    slab = algorithm.server(old, unlike, 2).w
    assert (slab.loc.item(), slab.rho.item()) == pytest.approx((3.0, -4.5), rel=1e-14)  # (.9 2 + .3 6) / 1.2
    printed = SFedBayes(MODEL, slab_average="uniform").server(old, unlike, 2).w
    assert (printed.loc.item(), printed.rho.item()) == pytest.approx((4.0, -6.0), rel=1e-14)
    before = Server(SpikeSlab(*(torch.full((1,), value, dtype=torch.float64) for value in (0.7, -1.0, 0.0))))
    none = algorithm.server(before, sent(0.0, 0.0), 2).w  # the slab stays, and the logit of 0 is kept in its range
    assert (none.loc.item(), none.rho.item(), none.logit.item()) == (0.7, -1.0, -15)
    beyond = SFedBayes(MODEL, beta=3.0).server(old, sent(0.9, 0.9), 2).w  # 0.5 + 3 (0.9 - 0.5) is no probability
    assert beyond.logit.item() == 15


def test_chunks_in_which_a_weight_is_dropped_join_to_the_average_of_all() -> None:
    whole = sent(0.9, 0.0, 0.6, 0.3)
    whole = whole._replace(w=whole.w._replace(slab=MeanField(randn(50, 4, 1), randn(51, 4, 1))))
    for options in ({"threshold": 0.1}, {"aggregation": "moments"}, {"slab_average": "uniform"}):
        algorithm = SFedBayes(MODEL, **options)  # type: ignore[arg-type]
        update = whole
        if options.get("aggregation"):
            update = whole._replace(
                w=SparseUpload(Moments(randn(50, 4, 1), randn(51, 4, 1).square()), whole.w.inclusion)
            )
        old = Server(SpikeSlab(*(torch.full((1,), value, dtype=torch.float64) for value in (0.7, -1.0, 0.0))))
        parts = [tensors.select(update, torch.tensor(part)) for part in ([1], [0, 3], [2])]
        joined = tensors.cat([algorithm.reduce(part) for part in parts])
        close(algorithm.server(old, joined, 4).w, algorithm.server(old, update, 4).w, 1e-12)


@pytest.mark.law
@pytest.mark.parametrize(
    "options", [{}, {"slab_average": "uniform"}, {"aggregation": "moments"}, {"restart": True}], ids=str
)
def test_a_small_inclusion_stays_where_nothing_speaks_against_it(options: dict[str, Any]) -> None:
    """Lambda 0.1 on every weight, as in the journal's Table 5; with a threshold of 0.1 it fell to 0.002 in six."""
    generator = torch.Generator().manual_seed(3)
    rows = [
        (torch.randn(30, 2, generator=generator).double(), torch.randint(3, (30,), generator=generator))
        for _ in range(5)
    ]
    tracking = PriorTracking(restart=options.get("restart", False))
    rest = {name: value for name, value in options.items() if name != "restart"}
    algorithm = SFedBayes(MODEL, LocalInference(zeta=10.0), tracking, inclusion=0.1, **rest)
    shares = []
    plan = FederationPlan(rounds=6)
    state = engine.run_rounds(
        algorithm, ClientBatch.pad(rows, classes=3), plan, lambda record: shares.append(record.values["sent"])
    )
    assert shares == [1.0] * 6
    assert 0.08 < state.server.w.inclusion.mean() < 0.12


def test_bytes_are_counted_dense_and_sparse() -> None:
    """Three float32 numbers a weight; or three a kept weight, and a bit a weight to say which."""
    kept = torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)
    dense, sparse = sparse_bytes(kept, 79_510, 4)
    assert dense.tolist() == [954_120.0] * 3
    assert sparse.tolist() == [9_939.0, 238_530.0 + 9_939.0, 954_120.0]  # never more than dense
    assert sparse_bytes(kept, 8, 8)[1].tolist() == [1.0, 49.0, 192.0]


def test_a_record_says_shares_and_bytes() -> None:
    algorithm, batch = method(), clients(*SIZES)
    update, _ = algorithm.client(server(), algorithm.init_clients(server(), batch), batch, Noise(3, 1, batch.ids))
    share = (update.w.inclusion > 0).double().mean(1)
    torch.testing.assert_close(update.sent, share, rtol=1e-14, atol=0)
    for form in (update, algorithm.reduce(update)):
        report = algorithm.report(server(), form)
        assert report["sent"].item() == pytest.approx(share.mean().item(), rel=1e-12)
        assert report["kept"].item() == pytest.approx(update.kept.mean().item(), rel=1e-12)
        assert report["bytes_dense"].item() == 3 * 8 * D
        assert report["bytes_sparse"].item() == pytest.approx(share.mean().item() * 24 * D + 3, rel=1e-12)


def posterior_of(name: str) -> tuple[SFedBayes, Any, Tensor, Any]:
    """Return a posterior, its weights that are gone, and the rows."""
    algorithm, batch = method(), clients(*SIZES)
    _, kept = algorithm.client(server(), algorithm.init_clients(server(), batch), batch, Noise(3, 1, batch.ids))
    family = kept.q if name == "personalise" else tensors.expand(server().w, K)
    posterior = getattr(algorithm, name)(server(), kept, batch, Noise(3, 0, batch.ids))
    return algorithm, posterior, family.inclusion < THRESHOLD, kept


@pytest.mark.parametrize("name", ["personalise", "global_model"])
def test_predictions_use_no_weight_under_the_threshold(name: str) -> None:
    algorithm, posterior, gone, kept = posterior_of(name)
    assert 0 < gone.sum() < gone.numel()
    noise, used = Noise(3, 0, posterior.noise.ids), []
    x = randn(70, K, 4, 2)
    probs = []
    for _ in range(3):
        family = kept.q if name == "personalise" else tensors.expand(server().w, K)
        theta = family.weights(family.draw(noise))
        used.append(torch.where(gone, 0.0, theta))  # as if those weights were not in the network
        probs.append(torch.stack([torch.softmax(by_hand.logits(used[-1][k], x[k]), -1) for k in range(K)]))
    torch.testing.assert_close(posterior.predict(x).probs, torch.stack(probs).mean(0), rtol=1e-11, atol=1e-13)
    assert not posterior.family.mean()[gone].any()
    if name == "personalise":
        shown = algorithm.describe(kept)["kept"]
        inside = torch.where(gone, 0.0, kept.q.inclusion).mean(1)
        torch.testing.assert_close(shown, inside, rtol=1e-14, atol=0)


def test_a_client_without_rows_keeps_the_prior() -> None:
    algorithm, batch = method(join_passes=5), clients(5, 0)
    posterior = algorithm.personalise(server(), algorithm.init_clients(server(), batch), batch, Noise(3, 0, batch.ids))
    for leaf, shared in zip(posterior.family, server().w.pruned(THRESHOLD), strict=True):
        assert torch.equal(leaf[1], shared) and not torch.equal(leaf[0], shared)
    x = randn(70, 2, 4, 2)
    prior = algorithm.global_model(server(), algorithm.init_clients(server(), batch), batch, Noise(3, 0, batch.ids))
    assert torch.equal(posterior.predict(x).probs[1], prior.predict(x).probs[1])


def test_more_rows_open_no_gate_that_was_pruned() -> None:
    algorithm = method()
    refined = refining.check(algorithm, server(), refining.pruned_oracle)
    prior, _ = refining.priors(algorithm, server())
    q, shut = refined.posterior.family, prior.family.inclusion == 0  # type: ignore[attr-defined]
    assert 0 < shut[:2].sum() < shut[:2].numel() and torch.equal(q.inclusion == 0, shut)
    assert not q.mean()[shut].any() and (q.logit[:2] != prior.family.logit[:2])[~shut[:2]].any()
    for _ in range(5):
        assert not q.weights(q.draw(Noise(5, 0, prior.noise.ids)))[shut].any()


def test_new_rows_become_likelier_without_the_pruned_weights() -> None:
    long = method(local=LocalInference(steps=100, minibatch=50, rate=0.03, zeta=0.01))
    prior, seen = refining.priors(method(), server())
    rows = refining.learnable(8, 20, 5)
    refined = long.refine(prior, seen, rows, Noise(3, 0, rows.ids))
    gained = refining.likelihoods(refined.posterior, rows) - refining.likelihoods(prior, rows)  # type: ignore[arg-type]
    assert (gained > 0.3).all() and refined.kl.isfinite().all() and (refined.kl > 1.0).all()


def test_a_fit_that_diverges_is_not_taken() -> None:
    algorithm = method()
    prior, seen = refining.priors(algorithm, server())
    rows = refining.more(4, 6, 5)
    rows.x[1] = torch.nan
    refined = algorithm.refine(prior, seen, rows, Noise(3, 0, rows.ids))
    for now, was in zip(refined.posterior.family, prior.family, strict=True):  # type: ignore[attr-defined]
        assert not now.isnan().any() and torch.equal(now[1], was[1]) and not torch.equal(now[0], was[0])
    assert refined.kl[1] == 0.0 and (refined.kl[[0, 2]] > 0).all()


def test_the_start_includes_every_weight_alike() -> None:
    start = SFedBayes(MODEL, inclusion=0.7, init_rho=-3.0).init_server(torch.Generator().manual_seed(0)).w
    torch.testing.assert_close(start.inclusion, torch.full((D,), 0.7, dtype=torch.float64), rtol=1e-12, atol=0)
    assert (start.rho == -3.0).all() and start.loc.std() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, "must be positive"),
        ({"init_std": -1.0}, "must be positive"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"join_passes": 0}, "join_passes must be at least 1, got 0"),
        ({"inclusion": 0.0}, "inclusion must be strictly between 0 and 1"),
        ({"inclusion": 1.0}, "inclusion must be strictly between 0 and 1"),
        ({"threshold": 1.0}, "threshold must be at least 0 and below 1"),
        ({"threshold": -0.1}, "threshold must be at least 0 and below 1"),
        ({"temperature": 0.0}, "temperature must be positive and finite"),
        ({"slab_average": "mine"}, "slab_average must be one of 'inclusion', 'uniform', got 'mine'"),
        ({"slab_average": "uniform", "threshold": 0.1}, "has no place for dropped weights, and threshold is 0.1"),
        ({"aggregation": "mine"}, "aggregation must be one of 'tracked', 'moments', 'tracked-moments', got 'mine'"),
        ({"local": LocalInference(noise_std=0.5)}, "noise_std must be 1 .* got 0.5"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        SFedBayes(MODEL, **options)
