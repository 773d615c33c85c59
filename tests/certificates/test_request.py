"""Requests of certificates, and what a command line may call a loss and a beta."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl import bounds
from pacbayes_fl.bounds import ClippedNLL, ClippedSquare, NormalNLL, SaturatingSquare, ZeroOne
from pacbayes_fl.certificates.request import Request, beta_of, loss_of
from pacbayes_fl.errors import AssumptionError, StudyError
from tests.user_objects import LOSS, write


@pytest.mark.parametrize(
    ("bound", "more", "words"),
    [
        ("segger", {}, "bound must be one of seeger"),
        ("recursive", {}, "needs risk, shares, .*, which no run has all of.*corrects more errors of its prior than nu"),
        ("catoni", {}, "needs a beta that was fixed before"),
        ("gibbs", {}, "needs a beta"),
        ("seeger", {"beta": "rows"}, "has no beta"),
        ("seeger", {"smooth": 0.1}, "no use for smooth"),
        (
            "sub-gamma",
            {"beta": 1.0},
            r"needs variance_factor and scale, which you state: .*\(certify RUN --bound sub-gamma",
        ),
        ("sub-gamma", {"beta": 1.0, "scale": 0.0}, r"'sub-gamma' needs variance_factor, which .*--loss normal-nll=STD"),
        ("sub-gamma", {"variance_factor": 1.0, "scale": 0.0}, "needs a beta that was fixed before"),
        (
            "sub-gamma",
            {"beta": 1.0, "variance_factor": 0.0, "scale": 0.0},
            "variance_factor must be .*above 0|> 0|positive",
        ),
        ("seeger", {"scale": 0.0}, "'seeger' has no use for scale"),
        (
            "seeger",
            {"loss": NormalNLL(0.5)},
            r"has no range, which the bound 'seeger' needs \(certify RUN --bound sub-g",
        ),
        ("seeger", {"draws": 0}, "draws must be at least 1"),
        ("seeger", {"draws_delta": 1.0}, "strictly between 0 and 1"),
    ],
)
def test_what_cannot_be_certified_is_refused(bound: str, more: dict[str, object], words: str) -> None:
    with pytest.raises(AssumptionError, match=words):
        Request(bound, **more)  # type: ignore[arg-type]


def test_a_loss_without_a_range_has_no_hold_out_bound_and_constants_name_the_file() -> None:
    asked = Request("sub-gamma", loss=NormalNLL(0.5), beta="root", variance_factor=9e3, scale=0.0)
    assert asked.shares == (1.0, 0.0) and not asked.ranged and asked.premised(NormalNLL(0.5)).high == float("inf")
    assert asked.asked.startswith("sub-gamma-beta-root-factor-9000") and "scale-0" in asked.asked
    assert {name: each.tolist() for name, each in asked.stated(torch.zeros(2)).items()} == {
        "variance_factor": [9e3, 9e3],
        "scale": [0.0, 0.0],
    }
    plain = Request("sub-gamma", beta="root", variance_factor=0.25, scale=0.0)
    assert plain.shares == (0.5, 0.5) and plain.ranged and Request().stated(torch.zeros(2)) == {}


@pytest.mark.parametrize("tried", [0, -5])
def test_fewer_settings_than_one_are_refused(tried: int) -> None:
    with pytest.raises(AssumptionError, match=f"tried must be at least 1 and a whole number, got {tried}"):
        Request(tried=tried)


@pytest.mark.parametrize(("beta", "expected"), [(2.5, [2.5, 2.5]), ("rows", [9.0, 16.0]), ("root", [3.0, 4.0])])
def test_beta_by_client(beta: float, expected: list[float]) -> None:
    assert Request("catoni", beta=beta).beta_for(torch.tensor([9.0, 16.0])).tolist() == expected


def test_a_server_bound_takes_rows_for_beta() -> None:
    assert Request("server").beta_for(torch.tensor([9.0, 16.0])).tolist() == [9.0, 16.0]
    assert Request("server", beta=3.0).beta_for(torch.tensor([9.0])).tolist() == [3.0]


def test_an_exact_risk_costs_nothing_and_an_estimate_its_share() -> None:
    assert Request().estimate(None, 0.05) is None
    result = Request(draws_delta=0.4).estimate(70, 0.05)
    assert result is not None
    assert (result.draws, result.delta) == (70, pytest.approx(0.02))


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        (None, None),
        ("0-1", ZeroOne()),
        ("clipped-nll", ClippedNLL()),
        ("clipped-nll=1e-3", ClippedNLL(1e-3)),
        ("clipped-square=4", ClippedSquare(4.0)),
        ("saturating-square=0.5", SaturatingSquare(0.5)),
    ],
)
def test_losses_by_name(text: str | None, loss: object) -> None:
    assert loss_of(text) == loss


@pytest.mark.parametrize("text", ["nll", "squared", "clipped-square", "clipped-square=", "0-1=3", "clipped-nll=much"])
def test_other_losses_are_refused(text: str) -> None:
    with pytest.raises(AssumptionError, match="loss"):
        loss_of(text)


def test_losses_of_ones_own_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may hold an equals sign; the first setting of a class is given behind one."""
    (tmp_path / "a=b").mkdir()
    path = write(tmp_path / "a=b", "mine.py", LOSS)
    monkeypatch.chdir(path.parent)
    made = {text: loss_of(text) for text in ("mine.py:CappedAbsolute", "mine.py:CappedAbsolute=3", "mine.py:NARROW")}
    assert [one is not None and one.name.rpartition(" ")[2] for one in made.values()] == ["2", "3", "0.5"]
    assert loss_of(f"{path}:CappedAbsolute=3") == made["mine.py:CappedAbsolute=3"]
    for text in ("mine.py:NARROW=3", "mine.py:CappedAbsolute=much", "mine.py:CappedAbsolute="):
        with pytest.raises(AssumptionError, match="must be NAME or NAME=NUMBER"):
            loss_of(text)
    with pytest.raises(StudyError, match=r"--loss: there is no file .*b/none.py"):
        loss_of("none.py:Loss=3")


def test_a_request_takes_a_loss_and_no_name_of_one() -> None:
    with pytest.raises(AssumptionError, match=r"loss must be a loss, got '0-1' \(bounds.loss_named makes one"):
        Request(loss="0-1")  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "beta"), [(None, None), ("rows", "rows"), ("root", "root"), ("2.5", 2.5)])
def test_betas(text: str | None, beta: object) -> None:
    assert beta_of(text) == beta


@pytest.mark.parametrize("text", ["0", "-1", "row", "nan", ""])
def test_other_betas_are_refused(text: str) -> None:
    with pytest.raises(AssumptionError, match="beta must be a positive number"):
        beta_of(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"delta": "0.05"}, "delta must be a number, got '0.05'"),
        ({"delta": 1}, "delta must lie strictly between 0 and 1, got 1"),
        ({"draws": 1.5}, "draws must be at least 1 and a whole number, got 1.5"),
        ({"draws": True}, "draws must be at least 1 and a whole number, got True"),
        ({"tried": 2.5}, "tried must be at least 1 and a whole number, got 2.5"),
        ({"tried": 0}, "tried must be at least 1"),
        ({"jointly": "no"}, "jointly must be True or False, got 'no'"),
        ({"holdout": None}, "holdout must be a number, got None"),
        ({"bound": "catoni", "beta": "all"}, "beta must be a number, 'rows' or 'root', got 'all'"),
        ({"bound": "catoni", "beta": -1.0}, "beta must be finite, above 0, got -1"),
        ({"bound": "server", "smooth": 0.0}, "smooth must be finite, above 0, got 0"),
    ],
)
def test_what_is_no_number_of_its_kind_is_refused_before_anything_is_measured(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(AssumptionError, match=re.escape(message)):
        Request(**given)


def test_any_whole_number_of_tries_is_counted() -> None:
    assert Request(tried=10**30).tried == 10**30
    premises = bounds.Premises(bounds.Provenance("split"), independent=True, tried=10**30)
    assert bounds.seeger(0.1, 1.0, 10**6, 0.05, premises).terms["delta"].item() == pytest.approx(5e-32)
