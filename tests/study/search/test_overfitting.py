"""A warning for federations that overfit, none for those that do not, and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import run
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import held_rows
from pacbayes_fl.study.search import overfitting
from pacbayes_fl.study.search.path import Path as Along
from tests.tiny import tiny

FALLS = Along({2: -1.0, 4: -1.5}, {2: -20.0, 4: -15.0}, "log_evidence")


def federation(noise: float, features: int) -> Mapping[str, Any]:
    """Twelve clients with twelve training rows of a linear function and eight test rows."""
    draws = torch.Generator().manual_seed(1)
    weight = torch.randn(features, generator=draws, dtype=torch.float64) / features**0.5
    x = torch.randn(12, 20, features, generator=draws, dtype=torch.float64)
    y = x @ weight + noise * torch.randn(12, 20, generator=draws, dtype=torch.float64)
    return {f"c{k}": (x[k], y[k]) for k in range(12)}


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "features", "overfits"), [(1.0, 8, True), (0.1, 1, False)])
def test_a_number_of_rounds_that_overfits_is_told_with_the_best(noise: float, features: int, overfits: bool) -> None:
    """The usual networks, hyper-prior and rate, of which 400 rounds are known to be too many for twelve noisy rows."""
    table = {
        "seed": 0,
        "data": {"scale": "client", "test": {"share": 0.4}},
        "federation": {"rounds": 200, "device": "cpu"},
    }
    method = {"name": "pac-pfl", "particles": 1, "hyper_prior_std": 0.3}
    study = Study.from_table(table | {"model": {"linear": "none", "noise_widths": "constant"}, "method": method})
    study = study.with_instances(data=federation(noise, features))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        overfitting.announce(study, held_rows.divide(study, load(study)))
    said = [str(one.message) for one in caught if "overfits" in str(one.message)]
    assert len(said) == overfits
    if overfits:
        assert "from round 25 to round 50 the mean log evidence" in said[0]
        assert "federation.rounds = 25 instead of 200, or federation.rounds = 'held-out'" in said[0]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Let every trial show a fall, and list its marks, of sixteen rounds 2 and 4, and which fifth was held out."""
    result: list[tuple[int, ...]] = []

    def follow(study: Study, dataset: object, marks: list[int], parts: tuple[int]) -> Along:
        result.append((*marks, *parts))
        return FALLS

    monkeypatch.setattr(overfitting, "MARKS", (2, 4, 8))
    monkeypatch.setattr(overfitting, "follow", follow)
    return result


def test_a_run_is_told_once_and_not_when_it_goes_on(asked: list[tuple[int, ...]], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="become less likely.*federation.rounds = 2 instead of 16"):
        run.run(tiny("federation.rounds=16"), tmp_path / "run")
    assert asked == [(2, 4, 0), (2, 4, 1)], "a quarter of the rounds, without the one fifth and the other"
    run.run(tiny("federation.rounds=18"), tmp_path / "run", resume=True)
    run.open_run(tmp_path / "run")
    assert len(asked) == 2


@pytest.mark.parametrize(
    "sets",
    [
        ("federation.rounds=15",),
        ("federation.rounds=16", "federation.overfitting_trial=false"),
        ("federation.rounds=16", "method.name=vanilla-gp"),
        ("federation.rounds=16", "method.name=fedavg"),
        ("federation.rounds=16", "report.certify.scheme=folds"),
        ("federation.rounds=16", "privacy.epsilon=5", "privacy.delta=1e-3", "privacy.mechanism=gaussian"),
    ],
    ids=str,
)
def test_nothing_is_tried_where_it_may_not_or_cannot_be(asked: list[tuple[int, ...]], sets: tuple[str, ...]) -> None:
    study = tiny(*sets)
    overfitting.announce(study, held_rows.divide(study, load(study)))
    assert asked == []


def own_rows(rounds: int, rows: int = 8, clients: int = 12) -> Study:
    """A study on rows that a program has, of which half a client's train."""
    data = {"test": {"share": 0.5}}
    study = Study.from_table({"data": data, "federation": {"rounds": rounds, "device": "cpu"}}, "own")
    x = torch.linspace(-1, 1, 2 * rows, dtype=torch.float64).unsqueeze(1)
    return study.with_instances(data={f"c{k}": (x + k, x.sin()[:, 0] + k) for k in range(clients)})


@pytest.mark.parametrize(
    ("rounds", "marks"), [(24, ()), (25, (10, 25)), (49, (10, 25)), (99, (10, 25, 50)), (400, (10, 25, 50, 100))]
)
def test_the_first_rounds_of_few_are_tried_on_rows_of_ones_own(
    rounds: int, marks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(overfitting, "follow", lambda _, __, marks, parts: tried.extend(marks) or Along())
    study = own_rows(rounds)
    overfitting.announce(study, held_rows.divide(study, load(study)))
    assert tuple(tried) == marks


@pytest.mark.parametrize(("rows", "clients"), [(900, 3), (4, 300)])
def test_the_first_rounds_of_few_are_not_tried_where_they_take_long(
    rows: int, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(overfitting, "follow", lambda _, __, marks, parts: tried.extend(marks) or Along())
    for rounds, marks in ((99, ()), (100, (10, 25))):  # of which a quarter is tried, as before
        study = own_rows(rounds, rows, clients)
        overfitting.announce(study, held_rows.divide(study, load(study)))
        assert tuple(tried) == marks


def test_rounds_that_rows_have_chosen_are_not_tried_again(
    asked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = (tiny("federation.rounds=16"), {"federation.rounds": {"chosen": 16, "scores": {}, "rule": ""}})
    monkeypatch.setattr(run.held_out, "choose", lambda *_: chosen)
    run.run(tiny("federation.rounds=held-out"))
    assert asked == []


def test_the_run_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    study = tiny("federation.rounds=16")
    monkeypatch.setattr(overfitting, "MARKS", (2, 4))
    before = torch.get_rng_state()
    one = run.run(study)
    assert torch.equal(torch.get_rng_state(), before)
    monkeypatch.setattr(overfitting, "announce", lambda *_: None)
    other = run.run(study)
    assert one.clients == other.clients
    for name, values in one.predictions.items():
        torch.testing.assert_close(values, other.predictions[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("other", "said"), [({}, False), ({2: -1.0, 4: -0.6}, False), ({2: -1.0, 4: -0.8}, True)])
def test_the_mean_of_two_federations_decides(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, other: dict[int, float], said: bool
) -> None:
    second = replace(FALLS, scores=other, objectives={mark: FALLS.objectives[mark] for mark in other})
    monkeypatch.setattr(overfitting, "follow", lambda *_, parts: FALLS if parts == (0,) else second)
    study = tiny("federation.rounds=100")
    overfitting.announce(study, held_rows.divide(study, load(study)))
    found = [str(one.message) for one in recwarn if "overfits" in str(one.message)]
    assert len(found) == said and all("-1 to -1.15 nats per row" in text for text in found)


def test_a_federation_too_small_for_a_trial_says_nothing() -> None:
    study = tiny("federation.rounds=100")
    whole = load(study)
    single = replace(whole.groups["existing"], train=whole.groups["existing"].train.select(torch.tensor([0])))
    overfitting.announce(study, held_rows.divide(study, replace(whole, groups={"existing": single})))


def curve(*accuracies: float) -> list[RoundRecord]:
    """Records of a loss that falls, with the accuracy on validation rows."""
    key = "validation.pm.accuracy"
    return [RoundRecord(t, 3, values={key: one, "loss": 1.0 / t}) for t, one in enumerate(accuracies, 1)]


def test_classifiers_are_told_by_their_validation_rows() -> None:
    rows = [(torch.zeros(200, 1), torch.zeros(200, dtype=torch.int64)) for _ in range(2)]
    batch, study = ClientBatch.stack(rows, ["a", "b"], [0, 1]), tiny("federation.rounds=3")
    with pytest.warns(UserWarning, match=r"round 2 to round 3 .*loss.* validation rows from 0.9 to 0.8; .*= 2 instead"):
        overfitting.look_back(study, curve(0.7, 0.9, 0.8), batch, "loss")
    private = tiny("federation.rounds=3", "privacy.epsilon=5", "privacy.delta=1e-3", "privacy.mechanism=gaussian")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        overfitting.look_back(study, curve(0.7, 0.9, 0.86), batch, "loss")  # within three standard errors
        overfitting.look_back(study, curve(0.7, 0.9, 0.8), batch.select(torch.tensor([])[:0].long()), None)
        overfitting.look_back(study, curve(0.7, 0.9, 0.8), None, "loss")
        overfitting.look_back(study, curve(0.7, 0.9, 0.8)[::-1], batch, "loss")  # the loss has risen too
        overfitting.look_back(private, curve(0.7, 0.9, 0.8), batch, "loss")
        overfitting.look_back(study, [], batch, "loss")
