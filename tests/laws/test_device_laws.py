"""Laws of every method on an accelerator: nothing waits for the host, and nothing is left on it.

The device "meta" has shapes and no numbers, so that whoever reads one fails; tensors of two devices must not meet
either. Reading is free on the CPU, and methods do: there they must find what they compute without.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.federation import personalisation
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions import polya_gamma
from pacbayes_fl.testing import laws
from pacbayes_fl.testing.laws import META, OneDevice, host_bound, on_meta
from tests.laws.cases import ALL, LABELLED, SEED, Case, assert_close, numbers, scene

pytestmark = pytest.mark.law

FORMS = (
    *("pac-pfl-gpytorch", "pac-pfl-rich", "pac-pfl-inducing", "pac-pfl-bnn-svgd", "fedsi-last-layer", "fedsi-divide"),
    *("pfedbayes-epochs", "pfedbayes-full-rank", "pfedbayes-low-rank", "pfedbayes-laplace"),
)
"""Forms of methods that go other ways than the table's."""

every_case = pytest.mark.parametrize(
    "case",
    [case for case in ALL + LABELLED if case.name in METHODS or (case.name in FORMS and not case.labelled)],
    ids=str,
)


@every_case
def test_no_step_of_a_method_asks_a_device_or_leaves_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polya_gamma, "NODES", 3)  # of a quadrature, each as the others
    s = scene(case, case.dimensions[0])
    if host_bound(s.method) is not None:
        with pytest.raises((NotImplementedError, RuntimeError), match=r"[Mm]eta"):  # or the word were untrue
            on_meta(s.method, s.batch, SEED)
        return
    laws.device(s)


def test_a_client_s_random_numbers_are_made_on_its_device() -> None:
    noise, like = Noise(SEED, 1, (3, 5), META), torch.empty(2, 4, device=META)
    mask = torch.ones_like(like, dtype=torch.bool)
    with OneDevice():
        drawn = noise.weights(like), noise.weights(like, "uniform"), noise.fork().rows(mask, 3)
    assert {leaf.device.type for leaf in drawn} == {"meta"}


def test_those_bound_to_the_host_are_few() -> None:
    """Centralised baselines, scikit-learn and scipy's matching; all other methods run on a device alone."""
    bound = {str(case) for case in ALL if host_bound(case.build(case.dimensions[0])) is not None}
    centralised = {name for name in METHODS if name.startswith("pooled-")}
    assert bound & METHODS.keys() == centralised | {"bnfed", "gbt", "ridge"}


@every_case
def test_what_is_read_on_the_cpu_changes_no_number(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device knows only how many rows it holds with padding, and does for all what some need."""
    d = case.dimensions[0]
    s = scene(case, d)
    mixed = s.clients
    if case.build(d).federated:
        fresh = s.method.init_clients(s.message, s.batch)
        mixed = tensors.where(torch.arange(s.batch.clients) % 2 == 0, s.clients, fresh)

    def found() -> dict[str, Any]:
        posterior = s.method.personalise(s.message, mixed, s.batch, s.noise(s.batch.ids, 0))
        predicted = numbers(posterior.predict(s.batch.x))
        update, clients = s.method.client(s.message, s.clients, s.batch, s.noise(s.batch.ids))
        return {"update": update, "clients": clients, "predicted": predicted}

    expected = found()
    monkeypatch.setattr(tensors, "on_host", lambda leaf: False)
    assert_close(found(), expected)


@pytest.mark.parametrize("case", [case for case in ALL + LABELLED if case.name in METHODS], ids=str)
def test_clients_that_all_trained_personalise_alike_without_the_work_for_newcomers(case: Case) -> None:
    d = case.dimensions[0]
    s = scene(case, d)
    call = s.message, s.clients, s.batch
    whole = s.method.personalise(*call, s.noise(s.batch.ids, 0)).predict(s.batch.x)
    trained = s.method.personalise_trained(*call, s.noise(s.batch.ids, 0)).predict(s.batch.x)
    assert_close(numbers(trained), numbers(whole), 0.0)


class Counting:
    """A method that counts which of the two the evaluation calls."""

    def __init__(self, inner: AnyMethod) -> None:
        self.inner, self.called = inner, list[str]()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("personalise"):
            self.called.append(name)
        return getattr(self.inner, name)


@pytest.mark.parametrize("name", ["pfedbayes", "sfedbayes", "cfedbayes", "bpfed", "local"])
def test_the_evaluation_asks_once_whether_somebody_never_trained(name: str) -> None:
    s = scene(next(case for case in ALL if str(case) == name), 3)
    counting: Any = Counting(s.method)
    fresh = s.method.init_clients(s.message, s.batch)
    one_new = tensors.where(torch.arange(s.batch.clients) > 0, s.clients, fresh)
    for state in (s.clients, one_new):
        personalisation.posteriors(counting, s.message, state, s.batch, s.noise(s.batch.ids, 0))
    assert counting.called == ["personalise_trained", "personalise"]
