"""Losses by name and reference: settings, and the refusal of what bounds nothing or says too little of itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.bounds.loss_table import OWN_LOSSES, check_parts, listing, loss_named, settings_of, title_of
from pacbayes_fl.bounds.losses import LOSSES, SaturatingSquare, ZeroOne
from pacbayes_fl.bounds.normal_nll import UNBOUNDED
from pacbayes_fl.errors import AssumptionError, StudyError
from tests.user_objects import LOSS, write


@pytest.mark.parametrize("name", ["nll", "nlpd", "mse", "square"])
def test_unbounded_losses_are_refused_with_what_to_use(name: str) -> None:
    with pytest.raises(
        AssumptionError, match=r"unbounded: no bound holds \(use '(clipped|saturating)-[a-z]+'(\)$|; or normal-nll=STD)"
    ):
        loss_named(name)


@pytest.mark.parametrize("name", list(LOSSES))
def test_no_loss_takes_its_range_as_an_argument(name: str) -> None:
    own = {"limit": 2.0} if name == "clipped-square" else {}
    for entry, value in (("low", -1.0), ("high", 0.2), ("convex", True)):
        with pytest.raises(AssumptionError, match=f"the loss '{name}' has no setting {entry}"):
            loss_named(name, **own, **{entry: value})
        with pytest.raises(TypeError, match=entry):
            LOSSES[name](**own, **{entry: value})


def test_what_is_no_loss_is_refused_by_name() -> None:
    with pytest.raises(AssumptionError, match=r"loss must be one of 0-1, clipped-nll, .*got 'hinge'"):
        loss_named("hinge")
    with pytest.raises(AssumptionError, match=r"'clipped-square' needs limit \(such as clipped-square=4\)"):
        loss_named("clipped-square")


def test_a_reference_leads_to_a_loss_or_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "mine.py", LOSS)
    assert dict(settings_of(f"{path}:CappedAbsolute")) == {"limit": 2.0} and not settings_of(f"{path}:NARROW")
    made: Any = loss_named(f"{path}:CappedAbsolute", limit=4.0)
    assert (made.name, made.low, made.high) == ("absolute error capped at 4", 0.0, 1.0)
    assert made(torch.tensor([1.0, -9.0]), torch.zeros(2)).tolist() == [0.25, 1.0]
    monkeypatch.chdir(tmp_path)
    assert loss_named("mine.py:NARROW") is loss_named(f"{path}:NARROW"), "one object, wherever it is asked for from"
    assert title_of(made) == "Absolute error that stops growing, min(|e|, limit) / limit."
    with pytest.raises(AssumptionError, match=r"has no setting limit \(it is made already; a reference to its class"):
        loss_named("mine.py:NARROW", limit=3.0)
    with pytest.raises(AssumptionError, match=r"has no setting scale \(it has limit\)"):
        loss_named("mine.py:CappedAbsolute", scale=3.0)
    for wrong, said in (
        ("dataclass", "must be a bounded loss or its class, with name"),
        ("Capped", "has no 'Cap"),
    ):
        with pytest.raises(StudyError, match=f"--loss: .*{said}"):
            loss_named(f"mine.py:{wrong}")


@dataclass(frozen=True)
class Cost:
    """A loss of labels, whose parts a test replaces."""

    name: Any = "cost"
    low: Any = 0.0
    high: Any = 1.0
    convex: Any = False

    def __call__(self, log_probs: Tensor, y: Tensor) -> Tensor:
        """Return the probability of all other classes."""
        return 1.0 - log_probs.exp().gather(-1, y.unsqueeze(-1)).squeeze(-1)


class Renamed(SaturatingSquare):
    """A loss of the library that somebody has changed."""

    name = "renamed"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (Cost(name=""), "the name of the loss 'mine' must be a text, got ''"),
        (Cost(name=3), "the name of the loss 'mine' must be a text, got 3"),
        (Cost(low="0"), "low of the loss 'mine' must be a number, got '0'"),
        (Cost(high=True), "high of the loss 'mine' must be a number, got True"),
        (Cost(convex=1), "convex of the loss 'mine' must be True or False, got 1"),
        (Cost(high=math.inf), r"must be bounded, got the range \[0, inf\]"),
        (Cost(low=1.0), r"must have low < high, got \[1, 1\]"),
        (type("Sub", (SaturatingSquare,), {})(2.0), r"'mine' cannot be called '1 - exp.*as a loss of the library is"),
        (type("Sub", (ZeroOne,), {})(), r"'mine' cannot be called '0-1 loss'.*give Sub a name of its own"),
        (object(), r"'mine' must have name, low, high and convex, and has no name \(give object a name"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_a_loss_says_what_certificates_have_to_know_of_it(loss: object, said: str) -> None:
    with pytest.raises(AssumptionError, match=said):
        check_parts(loss, "mine")


def test_whole_losses_pass_and_those_of_the_library_are_themselves() -> None:
    for loss in (Cost(), Renamed(), SaturatingSquare(3.0), ZeroOne()):
        check_parts(loss, "mine")


def test_losses_are_listed_with_a_line() -> None:
    assert [name for name, _ in listing()] == [*LOSSES, *UNBOUNDED, *(name for name, _ in OWN_LOSSES.listing())]
    assert dict(listing())["0-1"] == "1 where the most probable class is not the label, else 0."
