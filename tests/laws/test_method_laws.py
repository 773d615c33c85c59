"""Laws of every method: a client's part depends on that client alone, and nothing is left behind or changed."""

from __future__ import annotations

import io
import math
import random
import statistics
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gpytorch
import linear_operator
import numpy as np
import pyro
import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.certificates.choice import Candidate, candidates, unwrapped
from pacbayes_fl.certificates.rows import none_of
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError, StudyError
from pacbayes_fl.federation import cohort, engine, federation_state, messages, personalisation
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.baselines.bnfed import BNFed
from pacbayes_fl.methods.baselines.clustered import Clustered
from pacbayes_fl.methods.baselines.fedamp import FedAMP
from pacbayes_fl.methods.baselines.fedcfl import FedCFL
from pacbayes_fl.methods.baselines.local import LocalOnly
from pacbayes_fl.methods.baselines.local_method import LocalMethod
from pacbayes_fl.methods.baselines.vanilla_bnn import VanillaBNN
from pacbayes_fl.methods.variational.cfedbayes import CFedBayes
from pacbayes_fl.noise import Noise
from pacbayes_fl.plots import learning_curve
from pacbayes_fl.posteriors.predictive import SampledPosterior
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.results.recorded import RECORDED
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.testing import laws
from pacbayes_fl.testing.scene import ARRANGEMENTS, Arrangement, Part
from tests.laws.cases import (
    ALL,
    BY_EPOCHS,
    FEDERATED,
    FEDERATED_LABELLED,
    LABELLED,
    Case,
    assert_close,
    bits,
    identified,
    numbers,
    scene,
)

pytestmark = pytest.mark.law

SEED_OF_STRANGERS = 5


def pairs(cases: tuple[Case, ...]) -> pytest.MarkDecorator:
    every = [pytest.param(case, d, id=f"{case}-{d}") for case in cases for d in case.dimensions]
    return pytest.mark.parametrize(("case", "d"), every)


every_federated, every_method = pairs(FEDERATED + FEDERATED_LABELLED), pairs(ALL + LABELLED)


def arrangements(case: Case, d: int) -> dict[str, Arrangement]:
    """Give the calls that `test_one_law_of_every_method` does not make."""
    quick = case in FEDERATED and d == case.dimensions[0]
    return {name: one for name, one in ARRANGEMENTS.items() if not (quick and name == "permuted")}


@every_federated
def test_a_round_does_not_depend_on_how_clients_are_called(case: Case, d: int) -> None:
    laws.round_keeps(scene(case, d), arrangements(case, d))


@every_method
def test_personalisation_does_not_depend_on_how_clients_are_called(case: Case, d: int) -> None:
    laws.personalisation_keeps(scene(case, d), arrangements(case, d))


@pytest.mark.parametrize("case", BY_EPOCHS, ids=str)
def test_clients_of_many_rows_draw_no_longer_for_those_of_few(case: Case) -> None:
    s, alone = scene(case, 3), {"one by one": ARRANGEMENTS["one by one"]}
    if s.method.federated:
        laws.round_keeps(s, alone)
    laws.personalisation_keeps(s, alone)


@every_federated
def test_clients_that_trained_and_clients_that_did_not_do_not_depend_on_each_other(case: Case, d: int) -> None:
    """As where rounds draw cohorts: some clients of a call are new, and what they need moves nobody's numbers."""
    s = scene(case, d)
    trained = torch.arange(s.batch.clients) % 2 == 0
    mixed = tensors.where(trained, s.clients, s.method.init_clients(s.message, s.batch))
    laws.personalisation_keeps(s, {"one by one": ARRANGEMENTS["one by one"]}, mixed)


@pairs(tuple(case for case in ALL + LABELLED if case not in FEDERATED + LABELLED))
def test_the_same_seed_gives_the_same_run_bit_by_bit(case: Case, d: int) -> None:
    """Of the others a run that goes on ends, bit by bit, where another run of that seed has ended."""
    laws.seed(scene(case, d))


@pairs(tuple(replace(case, dimensions=case.dimensions[:1]) for case in ALL + LABELLED))
def test_the_default_dtype_of_torch_changes_nothing(case: Case, d: int) -> None:
    """A program that sets it to float64, as many do who work with GPyTorch, has the same run."""

    def ended() -> dict[str, bytes]:
        s = scene.__wrapped__(case, d)  # played anew
        posterior = s.method.personalise(s.message, s.clients, s.batch, s.noise(s.batch.ids, 0))
        return bits({"server": s.server, "clients": s.clients, "predicted": numbers(posterior.predict(s.points))})

    usual, before = ended(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert ended() == usual
    finally:
        torch.set_default_dtype(before)


@every_method
def test_later_rows_are_learned_from_or_refused(case: Case, d: int) -> None:
    """Most clients' predictions change (weights may be pruned away), whoever else learns."""
    s = scene(case, d)
    later = s.batch.trim(2)
    later = replace(later, x=torch.where(later.mask.unsqueeze(-1), later.x + 0.3, 0), y=later.y.roll(1, 1))

    def predicted(at: torch.Tensor) -> Any:
        seen, rows, own = s.batch.select(at), later.select(at), tensors.select(s.clients, at)
        after = s.method.absorb(s.message, own, seen, rows, s.noise(rows.ids, 7))
        posterior = s.method.personalise(s.message, after, seen.extend(rows), s.noise(rows.ids, 0))
        return numbers(posterior.predict(s.points[at]))

    every = torch.arange(s.batch.clients)
    try:
        learned = predicted(every)
    except StudyError as error:
        assert "does not learn from later rows" in str(error)
        return
    before = numbers(s.method.personalise(s.message, s.clients, s.batch, s.noise(s.batch.ids, 0)).predict(s.points))
    changed = torch.stack([(one != learned[name]).flatten(1).any(1) for name, one in before.items()])
    assert float(changed.any(0).double().mean()) >= 0.5
    assert_close(predicted(every[1:2]), tensors.select(learned, every[1:2]))


@every_method
def test_a_bound_at_no_divergence_is_of_the_very_prior_that_divergences_are_from(case: Case, d: int) -> None:
    """Q of no further rows is P: the candidate that is certified at KL = 0 predicts and is drawn from as that is."""
    s = scene(case, d)
    for seen in (s.batch, none_of(s.batch)):
        noise = s.noise(s.batch.ids, 0)
        prior = s.method.personalise(s.message, s.clients, seen, noise.copy())
        try:
            same, nothing = s.method.refine(prior, seen, none_of(s.batch), noise.copy())
        except AssumptionError as error:
            assert "no posterior over hypotheses" in str(error) or "no bound holds of it" in str(error)
            return
        assert nothing.abs().max() <= 1e-9
        rows: Any = SimpleNamespace(seen=seen, rows=s.batch)
        refined = Candidate(1.0, *s.method.refine(prior, seen, s.batch, noise.copy()))
        *_, last = candidates(s.method, prior, refined, rows, noise.copy())
        assert last.share == 0.0 and not last.kl.any()
        if not isinstance(unwrapped(same), WeightPosterior):  # whose predictions average over draws of their own
            assert_close(numbers(last.posterior.predict(s.points)), numbers(same.predict(s.points)))
        if isinstance(same, SampledPosterior):
            draws = [[*one.sample_hypotheses(s.points, 3, noise.copy())] for one in (last.posterior, same)]
            for mine, theirs in zip(*draws, strict=True):
                torch.testing.assert_close(mine.mean, theirs.mean, equal_nan=True)


@every_method
def test_inputs_are_left_as_they_are(case: Case, d: int) -> None:
    laws.inputs(scene(case, d))


def world() -> dict[str, Any]:
    """Return what everybody in a process shares."""
    settings = {
        f"{module.__name__}.{name}.{key}": repr(value)
        for module in (gpytorch.settings, linear_operator.settings)
        for name, cls in vars(module).items()
        if isinstance(cls, type)
        for key, value in vars(cls).items()
        if key.startswith("_") and isinstance(value, bool | int | float | str | None)
    }
    assert any("debug" in name for name in settings)
    return settings | {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],  # noqa: NPY002
        "python": random.getstate(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "pyro": sorted(pyro.get_param_store().keys()),
    }


@every_method
def test_a_run_leaves_the_world_as_it_was(case: Case, d: int) -> None:
    s = scene(case, d)
    before = world()
    method = case.build(d)
    assert (
        tensors.leaves(federation_state.start(method, s.batch, s.plan).server).keys() == tensors.leaves(s.server).keys()
    )
    list(engine.rounds(method, s.batch, replace(s.plan, rounds=3), FederationState(s.server, s.clients, 2)))
    s.method.personalise(s.message, s.clients, s.batch, s.noise(s.batch.ids, 0)).predict(s.batch.x)
    personalisation.join(s.method, s.server, case.strangers(d), SEED_OF_STRANGERS).predict(case.strangers(d).x)
    assert world() == before
    assert not pyro.get_param_store().keys()


@every_method
def test_states_survive_being_laid_out_flat(case: Case, d: int) -> None:
    s = scene(case, d)
    start = federation_state.start(s.method, s.batch, s.plan)
    for tree in (s.server, s.clients, s.message, start.server, start.clients):
        back = tensors.unleaves(tree, messages.flatten(tree))
        assert type(back) is type(tree)
        assert bits(back) == bits(tree)
    if s.method.federated:  # a checkpoint is read back into the form of the start
        assert bits(tensors.unleaves(start.server, messages.flatten(s.server))) == bits(s.server)
        assert bits(tensors.unleaves(start.clients, messages.flatten(s.clients))) == bits(s.clients)


@pairs(tuple(case for case in ALL + LABELLED if "laplace" not in str(case)))  # whose family is made of functions
def test_what_a_federation_has_learned_can_be_kept_by_torch(case: Case, d: int) -> None:
    server, file = scene(case, d).server, io.BytesIO()
    torch.save(server, file)
    file.seek(0)
    assert bits(torch.load(file, weights_only=False)) == bits(server)


@every_method
def test_states_are_finite_from_the_start_and_leaves_of_clients_begin_with_them(case: Case, d: int) -> None:
    """So that a saved state that is not finite was altered."""
    laws.leaves(scene(case, d))


@every_federated
def test_a_run_that_goes_on_is_one_that_was_never_interrupted(case: Case, d: int) -> None:
    laws.resume(scene(case, d))


def _averages(case: Case, d: int) -> bool:
    try:
        scene(case, d).method.check_average()
    except StudyError:
        return False
    return True


def test_the_methods_whose_servers_have_no_mean_are_known() -> None:
    refused = {case.name for case in ALL + LABELLED if case.name in METHODS and not _averages(case, case.dimensions[0])}
    unmoved = {name for name, recipe in METHODS.items() if recipe.method in (LocalOnly, VanillaBNN)}
    unmoved |= {name for name, recipe in METHODS.items() if issubclass(recipe.method, LocalMethod)}
    central = {name for name, recipe in METHODS.items() if not recipe.method.federated}
    assert refused == unmoved | central | {"cfedbayes", "ifca", "fesem", "fedcfl", "fedamp", "heurfedamp", "bnfed"}


@every_federated
def test_clients_are_served_from_the_mean_of_the_servers_last_states(case: Case, d: int) -> None:
    """Each number by itself, whole ones as they are last; a run goes on from what was saved; or it is refused."""
    s = scene(case, d)
    plan = replace(s.plan, rounds=3, average_last=0.6)
    if not _averages(case, d):
        with pytest.raises(StudyError, match=r"average_last takes the mean .*\(federation.average_last = 0\)"):
            engine.run_rounds(s.method, s.batch, plan)
        return
    states = [state for _, state in engine.rounds(s.method, s.batch, plan)]
    assert [state.average is None for state in states] == [True, False, False]
    before, last, used = (tensors.leaves(tree) for tree in (states[1].server, states[2].server, states[2].used.server))
    for name, leaf in used.items():
        if leaf.is_floating_point():
            torch.testing.assert_close(leaf, (before[name] + last[name]) / 2, rtol=1e-6, atol=1e-6, msg=name)
        else:
            assert torch.equal(leaf, last[name]), name
    flat = {name: leaf.clone() for name, leaf in tensors.leaves(states[1].server_side).items()}
    server, average = federation_state.restored(s.server, flat)
    ((_, again),) = engine.rounds(s.method, s.batch, plan, states[1]._replace(server=server, average=average))
    assert bits(again.used.server) == bits(states[2].used.server)
    for index, posterior in personalisation.personalise(s.method, again.used, s.batch, plan):
        assert all(number.isfinite().all() for number in numbers(posterior.predict(s.batch.x[index])).values())


@every_federated
def test_one_client_that_fails_moves_nobody_else(case: Case, d: int) -> None:
    laws.failure(scene(case, d))


@every_method
def test_clients_that_never_trained_can_predict(case: Case, d: int) -> None:
    laws.newcomers(scene(case, d))


@every_method
def test_the_global_model_does_not_depend_on_how_clients_are_called(case: Case, d: int) -> None:
    laws.global_model_keeps(scene(case, d))


@every_method
def test_what_tables_show_of_clients_is_a_number_each(case: Case, d: int) -> None:
    s = scene(case, d)
    shown = s.method.describe(s.clients)
    assert all(leaf.shape == (s.batch.clients,) and leaf.isfinite().all() for leaf in shown.values())
    for k in range(s.batch.clients):
        at = torch.tensor([k])
        assert_close(dict(s.method.describe(tensors.select(s.clients, at))), tensors.select(dict(shown), at))


CUTS: tuple[dict[str, Any], ...] = ({"chunk": 1}, {"chunk": 2**40}, {"waste": 1.0})


@every_federated
def test_how_the_engine_cuts_clients_into_calls_changes_nothing(case: Case, d: int) -> None:
    s = scene(case, d)

    def third(cut: dict[str, Any]) -> tuple[RoundRecord, FederationState]:
        plan = replace(s.plan, rounds=3, **cut)
        (played,) = engine.rounds(s.method, s.batch, plan, FederationState(s.server, s.clients, 2))
        return played

    expected, whole = third({})
    for cut in (CUTS[0], CUTS[1 + len(str(case)) % 2]):  # one by one, and one of the two that differ less
        record, state = third(cut)
        assert_close(identified(s.method, state.server), identified(s.method, whole.server), 1e-12)
        assert_close(state.clients, whole.clients, 1e-12)
        assert (record.steps is None) == (expected.steps is None)
        if record.steps is not None and expected.steps is not None:
            assert record.steps[:2] == pytest.approx(expected.steps[:2], rel=1e-9)


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("case", [case for case in FEDERATED if case.name in ("toy", "pac-pfl", "fedavg")], ids=str)
def test_every_client_is_personalised_once_however_calls_are_cut(case: Case, cut: dict[str, Any]) -> None:
    s = scene(case, case.dimensions[0])
    state = FederationState(s.server, s.clients, 2)
    personal = personalisation.personalise(s.method, state, s.batch, replace(s.plan, **cut))
    assert sorted(torch.cat([index for index, _ in personal]).tolist()) == list(range(s.batch.clients))


@every_federated
def test_a_record_says_how_long_the_steps_are_and_whose_is_the_longest(case: Case, d: int) -> None:
    """Against every client alone; in all leaves together. The law above is that calls do not matter."""
    s = scene(case, d)
    norms = {}
    for k, name in enumerate(s.batch.names):
        update, _ = s.play(Part([k], ClientBatch.trim))
        leaves = tensors.leaves(s.method.client_deltas(s.message, update)).values()
        norms[name] = math.hypot(*(float(number) for leaf in leaves for number in leaf.double().flatten()))
        silent = not leaves
    state = FederationState(s.server, s.clients, 2)
    ((record, after),) = engine.rounds(s.method, s.batch, replace(s.plan, rounds=3), state)
    if silent:
        alone = LocalMethod | LocalOnly | VanillaBNN
        assert record.steps is None and isinstance(s.method, alone | FedCFL | FedAMP | BNFed)
        return
    assert record.steps is not None and record.steps == after.watch.steps
    assert record.steps.median == pytest.approx(statistics.median(norms.values()), rel=1e-9)
    assert record.steps.largest == pytest.approx(max(norms.values()), rel=1e-9)
    assert norms[record.steps.whose] == pytest.approx(max(norms.values()), rel=1e-9)


@every_federated
def test_the_mean_of_the_steps_is_what_moves_the_server(case: Case, d: int) -> None:
    s = scene(case, d)
    update, _ = s.play(s.whole)
    steps = s.method.client_deltas(s.message, update)
    if not tensors.leaves(steps) or isinstance(s.method, CFedBayes | Clustered):  # whose clusters have a mean each
        return
    mean = tensors.expand(tensors.weighted_mean(steps, update.weight), 1)
    result = s.method.server(s.server, s.method.from_release(s.message, mean, s.batch.clients), s.batch.clients)
    expected = s.method.server(s.server, update, s.batch.clients)
    assert_close(identified(s.method, result), identified(s.method, expected))


@every_method
def test_a_record_holds_what_the_method_climbs_or_descends_under_a_name_that_figures_draw(case: Case, d: int) -> None:
    if case.name in METHODS and not METHODS[case.name].rounds:
        return  # nothing is repeated, so that there is no curve
    s = scene(case, d)
    record, _ = next(iter(engine.rounds(s.method, s.batch, replace(s.plan, rounds=1))))
    objectives = {name for name in record.values if name in RECORDED and RECORDED[name].objective}
    assert len(objectives) == (case.name != "toy")
    assert objectives == ({s.method.objective} - {None}), "the guard watches what figures draw"
    if objectives and case.name in METHODS and d == case.dimensions[0]:
        study = Result("tiny", case.name, 0, "regression", (record,), (), {}, {})
        titles = [axis.get_title() for axis in learning_curve(study).axes]
        assert titles[0] == RECORDED[objectives.pop()].title


@every_method
def test_with_what_a_client_begins_depends_on_that_client_alone(case: Case, d: int) -> None:
    s = scene(case, d)
    whole = s.method.init_clients(s.message, s.batch)
    for positions in ([1], [2, 0]):
        index = torch.tensor(positions)
        assert bits(s.method.init_clients(s.message, s.batch.select(index))) == bits(tensors.select(whole, index))


@pytest.mark.parametrize("case", FEDERATED, ids=str)
def test_rounds_of_cohorts_are_those_of_a_table_of_states_that_is_copied_every_round(case: Case) -> None:
    """Bit by bit, client by client; and a state that was given stays as it was whatever rounds come after it."""
    s = scene(case, case.dimensions[0])
    method, batch, plan = s.method, s.batch, replace(s.plan, rounds=2, cohort=2, chunk=1)
    server = federation_state.start(method, batch, plan).server
    clients, given = method.init_clients(method.broadcast(server), batch), []
    for record, state in engine.rounds(method, batch, plan):
        message, clients = method.broadcast(server), tensors.tree_map(torch.clone, clients)
        for k in cohort.draw(plan.seed, record.round, batch.ids, 2).tolist():
            index = torch.tensor([k])
            rows = batch.select(index).trim()
            noise = Noise(plan.seed, record.round, rows.ids, engine=plan.noise)
            _, after = method.client(message, tensors.select(clients, index), rows, noise)
            tensors.tree_map(lambda leaf, own, at=index: leaf.index_copy_(0, at, own), clients, after)
        server = state.server
        assert bits(state.clients) == bits(clients)
        given.append((state, bits(state.clients), bits(state.server)))
    for state, known, theirs in given:
        assert bits(state.clients) == known and bits(state.server) == theirs


@pytest.mark.quick
@pytest.mark.parametrize("case", FEDERATED, ids=str)
def test_one_law_of_every_method(case: Case) -> None:
    """Clients in another order are the same clients: of all laws the one that finds most; `make quick` runs it."""
    d = case.dimensions[0]
    permuted = {"permuted": ARRANGEMENTS["permuted"]}
    laws.round_keeps(scene(case, d), permuted)
    laws.personalisation_keeps(scene(case, d), permuted)
