"""Laws of one temperature over every method of classification, and of what is predicted with it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from pacbayes_fl.bounds.losses import ClippedNLL, ZeroOne
from pacbayes_fl.bounds.risk import gibbs_risk
from pacbayes_fl.errors import AssumptionError, StudyError
from pacbayes_fl.federation import engine, federation_state, personalisation
from pacbayes_fl.methods.base import Method
from pacbayes_fl.methods.tempered import Tempered
from pacbayes_fl.posteriors.predictive import FinitePosterior, SampledPosterior
from tests.laws.cases import ALL, LABELLED, SEED, Case, Scene, assert_close, bits, scene

T = 1.7


def models(method: Any, known: Scene, case: Case) -> dict[str, Any]:
    """Return the posteriors of clients that trained, of clients that did not, and the global one, by name."""
    (d,) = case.dimensions
    (_, own), *_ = personalisation.personalise(method, _state(known), known.batch, known.plan)
    new = personalisation.join(method, known.server, case.strangers(d), SEED, engine=case.noise)
    result = {"own": (own, known.batch), "new": (new, case.strangers(d))}
    for _, shared in personalisation.global_models(method, _state(known), known.batch, known.plan):
        result["global"] = (shared, known.batch)
    return result


def _state(known: Scene) -> Any:
    return federation_state.FederationState(known.server, known.clients, known.plan.rounds)


@pytest.mark.law
@pytest.mark.parametrize("case", LABELLED, ids=str)
def test_a_temperature_moves_probabilities_and_neither_labels_nor_training(case: Case) -> None:
    (d,) = case.dimensions
    known = scene(case, d)
    tempered = Tempered(known.method, T)
    state = engine.run_rounds(tempered, known.batch, known.plan)
    assert bits(state.server) == bits(known.server) and bits(state.clients) == bits(known.clients)
    plain, same, moved = (models(one, known, case) for one in (known.method, Tempered(known.method, 1.0), tempered))
    assert plain.keys() == same.keys() == moved.keys()
    for name, (posterior, rows) in plain.items():
        for at_mean in ("predict", "predict_at_mean"):
            usual, one, other = (getattr(some[name][0], at_mean)(rows.x).log_probs for some in (plain, same, moved))
            assert torch.equal(one, usual), f"{name}: T = 1 changes nothing"
            assert torch.equal(other.argmax(-1), usual.argmax(-1))
            powers = usual.double().exp() ** (1 / T)
            torch.testing.assert_close(
                other.double().exp(), powers / powers.sum(-1, keepdim=True), rtol=1e-6, atol=1e-9
            )
        assert moved[name][0].uncertain == posterior.uncertain
        assert isinstance(moved[name][0], SampledPosterior) == isinstance(posterior, SampledPosterior)
        assert isinstance(moved[name][0], FinitePosterior) == isinstance(posterior, FinitePosterior)


@pytest.mark.law
@pytest.mark.parametrize("case", LABELLED, ids=str)
def test_divergences_and_mistakes_do_not_know_of_it_and_likelihoods_are_those_of_tempered_draws(case: Case) -> None:
    known, result = scene(case, case.dimensions[-1]), []
    for method in (known.method, Tempered(known.method, T)):
        index, prior = next(personalisation.personalise(method, _state(known), known.batch, known.plan))
        rows = known.batch.select(index)
        try:
            refined = method.refine(prior, rows, rows, known.noise(rows.ids, 5))
        except AssumptionError as error:
            result.append((str(error), torch.zeros(()), torch.zeros(())))
            continue
        noise = known.noise(rows.ids, 6)
        risks = [gibbs_risk(refined.posterior, rows, loss, 4, noise.copy()).risk for loss in (ZeroOne(), ClippedNLL())]
        result.append((refined.kl.tolist(), *risks))  # type: ignore[arg-type]
    (kl, mistakes, nll), (other_kl, other_mistakes, other_nll) = result
    assert kl == other_kl and torch.equal(mistakes, other_mistakes)
    assert isinstance(kl, str) or not torch.equal(nll, other_nll)


@pytest.mark.law
@pytest.mark.parametrize(
    ("case", "temperature"), [*((one, None) for one in (*ALL, *LABELLED)), *((one, T) for one in LABELLED)], ids=str
)
def test_personal_models_are_the_same_when_they_are_made_again(case: Case, temperature: float | None) -> None:
    known = scene(case, case.dimensions[-1])
    method: Any = known.method if temperature is None else Tempered(known.method, temperature)

    def predictions(_: Any, message: Any, state: Any, rows: Any, noise: Any) -> Any:
        first = method.personalise(message, state, rows, noise.copy())
        again = method.personalise_again(first, message, state, rows, noise.copy())
        return first.predict(rows.x), again.predict(rows.x)

    for _, predicted in personalisation.personal_calls(method, _state(known), known.batch, known.plan, predictions):
        mine, theirs = ({"p": p.log_probs} if case.labelled else {"mean": p.mean, "v": p.variance} for p in predicted)
        assert_close(mine, theirs, 1e-12)


def test_all_that_a_method_is_asked_is_asked_of_the_one_that_runs() -> None:
    public = {name for name in vars(Method) if not name.startswith("_")}
    assert public <= vars(Tempered).keys(), public - vars(Tempered).keys()
    assert inspect.signature(Tempered.client).parameters.keys() == inspect.signature(Method.client).parameters.keys()


@pytest.mark.parametrize("case", LABELLED[:3], ids=str)
def test_labels_say_it(case: Case) -> None:
    inner = scene(case, case.dimensions[-1]).method
    assert Tempered(inner, T).about() == inner.about() | {"temperature": T}
    assert Tempered(inner, T).personal_model == inner.personal_model
    for value in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(StudyError, match="temperature must be positive and finite"):
            Tempered(inner, value)
