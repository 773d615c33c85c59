"""Laws of private rounds, for every method that has them: only what is released moves the server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.federation import engine, personalisation, private
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.baselines.clustered import Clustered
from pacbayes_fl.methods.pac_pfl.gp import FederatedSVGD
from pacbayes_fl.methods.variational.cfedbayes import CFedBayes
from pacbayes_fl.options import options_of
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism
from tests.laws.cases import (
    VARIATIONAL,
    Case,
    Scene,
    assert_close,
    bits,
    from_recipe,
    identified,
    labels_only,
    numbers,
    scene,
)
from tests.private import HUGE, Free

pytestmark = pytest.mark.law


def case_of(name: str, **options: Any) -> Case:
    """Return a method of the table with options under which it may be private."""
    recipe = METHODS[name]
    own: dict[str, Any] = {"weighting": "uniform"} if recipe.model == "weights" and name != "pac-pfl-bnn" else {}
    own |= {"start": "random"} if "start" in options_of(recipe.options) else {}
    build = partial(from_recipe, recipe, options=own | options)
    return Case(f"{name}{options or ''}", build, labelled=labels_only(recipe))


def _released(name: str) -> bool:
    """Whether a method of the table lets its clients' steps leave, under options that allow it."""
    try:
        case_of(name).build(1).check_private()
    except PrivacyError:
        return False
    return True


RELEASED = tuple(filter(_released, METHODS))

CASES = (
    *map(case_of, RELEASED),
    case_of("pac-pfl", cohort_scale="mean", minibatch=4, optimiser="ascent"),
    case_of("pac-pfl-bnn", cohort_scale="mean", optimiser="ascent"),
    case_of("pfedbayes", beta=1.7, noise_std=0.5),
    case_of("sfedbayes", inclusion=0.31, threshold=0.3, beta=0.6),
    case_of("sfedbayes", slab_average="uniform", aggregation="moments"),
    *(case_of(name, aggregation="moments", beta=0.8) for name in VARIATIONAL),
    case_of("pfedbayes", aggregation="tracked-moments"),
    case_of("bpfed", upload="tracked"),
    case_of("fedsi", alpha=3.0, subnetwork="random", fraction=0.3),
)
COORDINATES = {
    **{"pac-pfl": 3 * 25, "pfedgp": 25, "pac-pfl-bnn": 3 * 2 * 13},  # particles times parameters of a prior
    **{"pfedbayes": 2 * 13, "sfedbayes": 3 * 13, "cfedbayes": 2 * 2 * 13},  # of 13 weights; cfedbayes has two clusters
    **{"bpfed": 2 * 8, "fedsi": 2 * 8, "fedsi-fac": 2 * 8, "fedavg": 13, "fedavg-ft": 13},  # 8 are the representation's
}
"""Numbers that a client releases, by hand; of a method that is not here what its steps hold."""
every_released = pytest.mark.parametrize("case", CASES, ids=str)


def aggregator_of(
    s: Scene, mechanism: Mechanism = HUGE, cohorts: Cohorts | None = None, seed: int | None = 5
) -> PrivateAggregator:
    cohorts = cohorts or Cohorts(s.batch.clients)
    return private.open_private(s.method, s.server, s.batch, s.plan, mechanism, cohorts, Free(), seed)


def third(s: Scene, aggregator: PrivateAggregator | None, **plan: Any) -> tuple[Any, FederationState]:
    """Play the scene's third round."""
    state = FederationState(s.server, s.clients, 2)
    ((record, after),) = engine.rounds(s.method, s.batch, replace(s.plan, rounds=3, **plan), state, aggregator)
    return record, after


def test_the_methods_with_and_without_a_release_are_the_table() -> None:
    refused = {}
    for name in METHODS.keys() - set(RELEASED):
        case = Case(name, partial(from_recipe, METHODS[name]))
        with pytest.raises(PrivacyError, match="has no private release: its clients send") as caught:
            aggregator_of(scene(case, 1))
        refused[name] = "their rows" in str(caught.value)
    assert refused == {name: not METHODS[name].federated for name in refused} and len(refused) >= 6


@every_released
@pytest.mark.parametrize("chunk", [1, 2**20])
def test_without_clip_and_noise_a_private_round_is_a_plain_one(case: Case, chunk: int) -> None:
    s = scene(case, 1)
    record, plain = third(s, None)
    told, state = third(s, aggregator_of(s), chunk=chunk)
    assert_close(state.clients, plain.clients, 1e-12)
    if isinstance(s.method, CFedBayes | Clustered):  # which divides by a public number instead: below
        assert bits(state.server) != bits(plain.server)
    else:
        assert_close(identified(s.method, state.server), identified(s.method, plain.server), 1e-9)
        same = (told.values.keys() & record.values.keys()) - {"uncertain"}  # any noise at all makes a variance of 0 one
        assert {n: told.values[n] for n in same} == pytest.approx({n: record.values[n] for n in same}, rel=1e-9)
    withheld = {"seconds", "log_evidence", "log_likelihood", "kl", "elbo", "loss", "jittered"}
    withheld |= {
        "effective_samples",
        "sent",
        "kept",
        "bytes_dense",
        "bytes_sparse",
        "moved",
        "occupied",
        "without_curvature",
    }
    assert (told.clients, told.dropped) == (s.batch.clients, ()) and not withheld & told.values.keys()


@every_released
def test_a_cohort_is_divided_by_what_was_expected_of_it(case: Case) -> None:
    """Fixed cohorts, so that the plain round knows as many."""
    s = scene(case, 1)
    s = s._replace(plan=replace(s.plan, train="all"))  # else clients' states would tell who was drawn
    if isinstance(s.method, CFedBayes | Clustered):
        return
    aggregator = aggregator_of(s, cohorts=Cohorts(s.batch.clients, 3, "fixed", "replace"), seed=s.plan.seed)
    (
        aggregator.ledger.spend(aggregator.charge),
        aggregator.ledger.spend(aggregator.charge),
    )  # those of rounds 1 and 2: the same cohort then
    _, plain = third(s, None, cohort=3)
    told, state = third(s, aggregator)
    assert told.clients == 3
    assert_close(identified(s.method, state.server), identified(s.method, plain.server), 1e-9)
    assert_close(state.clients, plain.clients, 1e-12)


def test_clusters_move_by_the_sum_of_their_members_over_a_public_number() -> None:
    s = scene(case_of("cfedbayes", clusters=3), 1)
    update, _ = s.method.client(s.message, s.clients, s.batch, s.noise(s.batch.ids))
    _, state = third(s, aggregator_of(s))
    assert len(set(update.cluster.tolist())) > 1, "the scene must have members in several clusters"
    for name, leaf in tensors.leaves(state.server.w).items():
        sent, old = tensors.leaves(update.w)[name], tensors.leaves(s.server.w)[name]
        for j in range(3):
            step = sum((sent[k] - old[j] for k in range(5) if update.cluster[k] == j), torch.zeros_like(old[j]))
            torch.testing.assert_close(leaf[j], old[j] + step * 3 / 5, rtol=1e-9, atol=1e-9)
    assert state.server.rounds == s.server.rounds + 1


@every_released
def test_a_client_that_fails_adds_zeros_and_moves_nobody_else(case: Case) -> None:
    s = scene(case, 1)
    x = s.batch.x.clone()
    x[2, 0] = torch.nan
    hurt = s._replace(batch=replace(s.batch, x=x))
    update, _ = s.method.client(s.message, s.clients, hurt.batch, s.noise(s.batch.ids))
    if tensors.finite(update).all():  # its minibatch has missed the row
        x[2] = torch.nan
        update, _ = s.method.client(s.message, s.clients, hurt.batch, s.noise(s.batch.ids))
    assert tensors.finite(update).tolist() == [True, True, False, True, True]
    payload = s.method.to_release(s.message, update)
    rest = torch.tensor([0, 1, 3, 4])
    mean = tensors.tree_map(lambda leaf: leaf[rest].sum(0, keepdim=True) / 5, payload)  # of five, one of them zeros
    expected = s.method.server(s.server, s.method.from_release(s.message, mean, 5.0), 5)
    _, state = third(hurt, aggregator_of(hurt))
    assert_close(identified(s.method, state.server), identified(s.method, expected), 1e-9)
    assert bits(tensors.select(state.clients, torch.tensor([2]))) == bits(tensors.select(s.clients, torch.tensor([2])))


@dataclass(frozen=True)
class Elsewhere:
    """A method whose updates differ in everything but what is released of them."""

    _method: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def client(self, *arguments: Any) -> Any:
        update, after = self._method.client(*arguments)
        message = arguments[0]
        kept = {id(leaf) for leaf in self._source(update)}

        def disturbed(leaf: torch.Tensor) -> torch.Tensor:
            if id(leaf) in kept or not leaf.is_floating_point():
                return leaf
            return 7.0 * leaf - 3.0

        other = tensors.tree_map(disturbed, update)
        assert bits(self._method.to_release(message, other)) == bits(self._method.to_release(message, update))
        assert bits(other) != bits(update)
        return other, after

    def _source(self, update: Any) -> list[torch.Tensor]:
        """Return the leaves that the payload is made of."""
        for name in ("score", "w", "moments", "theta", "pair", "sent"):
            if hasattr(update, name):
                return list(tensors.leaves(getattr(update, name)).values())
        raise AssertionError("what is released of it?")


@every_released
def test_the_server_depends_on_what_is_released_and_on_nothing_else(case: Case) -> None:
    s = scene(case, 1)
    mechanism = Mechanism("gaussian", 0.5, 2.0)
    told, state = third(s, aggregator_of(s, mechanism))
    elsewhere = s._replace(method=Elsewhere(s.method))  # type: ignore[arg-type]
    again, other = third(elsewhere, aggregator_of(elsewhere, mechanism))
    assert bits(other.server) == bits(state.server) and again == told
    assert bits(third(s, aggregator_of(s, mechanism, seed=6))[1].server) != bits(state.server)


@every_released
def test_what_is_released_is_as_private_as_it_is_long(case: Case) -> None:
    """Whatever noise does to it, the server takes it: finite, and valid."""
    s = scene(case, 1)
    for kind in ("gaussian", "laplace", "knorm", "paper_algorithm_3"):
        aggregator = aggregator_of(s, Mechanism(kind, 1.0, 20.0), Cohorts(5, 2.0))
        _, state = third(s, aggregator)
        assert all(leaf.isfinite().all() for leaf in tensors.leaves(state.server).values())
        update, _ = s.method.client(s.message, s.clients, s.batch, s.noise(s.batch.ids))
        held = sum(leaf[0].numel() for leaf in tensors.leaves(s.method.client_deltas(s.message, update)).values())
        assert aggregator.charge.coordinates == held == COORDINATES.get(case.name.split("{")[0], held)
        x = s.batch.x
        for index, posterior in personalisation.personalise(s.method, state, s.batch, s.plan):
            assert all(number.isfinite().all() for number in numbers(posterior.predict(x[index])).values())


@every_released
def test_what_a_subspace_leaves_out_stays_at_the_server_as_it_was(case: Case) -> None:
    """A release of zeros is the message itself, or says by name what of it is no step."""
    s = scene(case, 1)
    opened = aggregator_of(s)
    if s.method.released_whole is not None:
        with pytest.raises(PrivacyError, match="sends variances that are no steps from the server's"):
            private.in_subspace(opened, s.method, 3, 0)
        return
    zeros = tensors.tree_map(lambda leaf: leaf.new_zeros(1, *leaf.shape[1:]), opened.empty)
    update = s.method.from_release(s.message, zeros, float(s.batch.clients))
    steps = s.method.client_deltas(s.message, update)
    assert all(not leaf.any() for leaf in tensors.leaves(steps).values())
    plain = s.method.server(s.server, update, s.batch.clients)
    if not isinstance(s.method, FederatedSVGD):  # which the prior moves
        after, before = tensors.leaves(s.method.broadcast(plain)), tensors.leaves(s.message)
        floating = [name for name, leaf in before.items() if leaf.is_floating_point()]  # rounds are counted
        assert_close({name: after[name] for name in floating}, {name: before[name] for name in floating}, 1e-9)
    within = private.in_subspace(aggregator_of(s, Mechanism("gaussian", 1.0, 2.0)), s.method, 3, 0)
    _, state = third(s, within)
    assert within.charge.coordinates == 3 and all(
        leaf.isfinite().all() for leaf in tensors.leaves(state.server).values()
    )


@every_released
def test_chance_in_fixed_cohorts_counts_where_clients_remember_nothing(case: Case) -> None:
    """Whether they do is what they would send after two rounds, beside what they would send afresh."""
    s = scene(case, 1)
    fresh = s.method.init_clients(s.message, s.batch)

    def sent(state: Any) -> dict[str, bytes]:
        update, _ = s.method.client(s.message, state, s.batch, s.noise(s.batch.ids))
        return bits(s.method.to_release(s.message, update))

    remember = sent(s.clients) != sent(fresh)
    assert remember <= bool(tensors.leaves(s.clients)), "what is not kept cannot be remembered"
    fixed = Cohorts(s.batch.clients, 2, "fixed", "replace")
    if tensors.leaves(s.clients):
        with pytest.raises(PrivacyError, match=r"keep something between rounds.*privacy.cohort = 'poisson'; 'all'"):
            aggregator_of(s, cohorts=fixed)
    else:
        assert aggregator_of(s, cohorts=fixed).charge.cohorts.share == 2 / 5
    for other in (Cohorts(5, 2, "poisson"), Cohorts(5, 2, "all", "replace")):
        charge = aggregator_of(s, cohorts=other).charge
        assert charge.cohorts.share == (1.0 if other.kind == "all" else 0.4)


@pytest.mark.parametrize("name", ["pfedbayes", "sfedbayes", "cfedbayes", "bpfed", "fedsi", "fedavg"])
def test_clients_that_weigh_by_their_rows_are_refused(name: str) -> None:
    with pytest.raises(PrivacyError, match="weighting = 'rows' needs every client's number of rows"):
        aggregator_of(scene(case_of(name, weighting="rows"), 1))


def test_curvatures_which_have_no_largest_value_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"upload = 'curvature' has no .*\(method.upload = 'variance'\)"):
        aggregator_of(scene(case_of("fedsi", upload="curvature"), 1))


@pytest.mark.parametrize("name", ["fedsi", "fedsi-fac"])
def test_noise_does_not_make_variances_larger_than_the_priors(name: str) -> None:
    s = scene(case_of(name), 1)
    _, state = third(s, aggregator_of(s, Mechanism("gaussian", 1.0, 1e4)), diverges_at=None)
    shared = s.method.shared
    result, prior = state.server.moments.variance[:shared], s.message.prior.variance[:shared]
    assert (result >= 0).all() and (result <= prior).all() and (result == prior).any() and (result == 0).any()


def test_clusters_that_the_server_finds_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"start = 'uploads' groups what single clients send.*start = 'random'"):
        aggregator_of(scene(case_of("cfedbayes", start="uploads"), 1))
