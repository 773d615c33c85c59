"""Certificates from numbers alone."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch

from pacbayes_fl import bounds
from pacbayes_fl.bounds import BOUNDS, from_record, table
from pacbayes_fl.bounds.moment import log_moment
from pacbayes_fl.certificates.from_numbers import Numbers, assumptions_text, certificate, formula_text, to_record
from pacbayes_fl.errors import AssumptionError
from tests.bounds.own import REFINED_PINSKER

SAID: dict[str, Any] = {"prior": "data-free", "independent": True}


def test_the_oracle_of_pac_bayes_with_backprop() -> None:
    """Theirs has 2 sqrt n for xi(n), and ln(2 / delta) for one side of an estimate."""
    delta = 0.025 * math.exp(log_moment(torch.tensor(30_000)).item()) / (2 * math.sqrt(30_000))
    numbers = Numbers(30_000, delta, risk=0.03, kl=500, **SAID)
    values = {name: float(certificate(name, numbers).value) for name in ("seeger", "mcallester", "pbb-quadratic")}
    assert values == pytest.approx(
        {"seeger": 0.07249532731061159, "mcallester": 0.12215354062333471, "pbb-quadratic": 0.08314458256549129},
        rel=1e-12,
    )
    estimated = Numbers(30_000, delta + 0.005, risk=0.03, kl=500, draws=1000, draws_delta=0.005, **SAID)
    assert float(certificate("seeger", estimated).value) == pytest.approx(0.10180273085790097, rel=1e-12)


def test_bounds_with_a_beta_or_a_normaliser() -> None:
    numbers = Numbers(20, 0.05, risk=0.0903864590943621, kl=0.23500118812818943, beta=10, **SAID)
    assert float(certificate("alquier", numbers).value) == pytest.approx(0.47595980526258014, rel=1e-12)
    private = replace(numbers, prior="row-level DP", epsilon=0.1)
    assert float(certificate("theorem-3.2", private).value) == pytest.approx(0.6214714011503417, rel=1e-12)
    gibbs = Numbers(20, 0.05, log_z=math.log(0.32018197303860707), beta=10, **SAID)
    clients = replace(numbers, prior="client-level DP", epsilon=0.3, prior_delta=0.01)
    less = replace(numbers, delta=0.04 * math.exp(-0.3))
    assert float(certificate("alquier", clients).value) == pytest.approx(float(certificate("alquier", less).value))
    result = certificate("gibbs", gibbs)
    assert result.valid
    assert float(result.value) == pytest.approx(0.47595980526258014, rel=1e-12)


def test_another_range_rescales() -> None:
    small = certificate("seeger", Numbers(100, 0.05, risk=0.2, kl=3.0))
    large = certificate("seeger", Numbers(100, 0.05, risk=6.0, kl=3.0, low=4.0, high=14.0))
    assert float(large.value) == pytest.approx(4.0 + 10.0 * float(small.value), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "numbers", "words"),
    [
        ("seger", Numbers(10, 0.05), "bound must be one of"),
        ("seeger", Numbers(10, 0.05, risk=0.1), "needs kl"),
        ("catoni", Numbers(10, 0.05, risk=0.1, kl=1.0), "needs beta"),
        ("recursive", Numbers(10, 0.05, risk=0.1), r"needs shares, .*kls, .* be given in Python alone, to recursive\)"),
        ("holdout-betting", Numbers(10, 0.05), r"losses \(losses can be given in Python alone, to holdout_betting\)"),
        ("seeger", Numbers(10, 0.05, risk=0.1, kl=1.0, beta=2.0), "has no use for beta"),
        ("gibbs", Numbers(10, 0.05, risk=0.1, log_z=-1.0, beta=2.0), "has no use for risk"),
        ("seeger", Numbers(10, 0.05, risk=0.1, kl=math.inf), "kl must be finite"),
        ("seeger", Numbers(10, 0.05, risk=1.1, kl=1.0), "risk must be finite, at least 0 and at most 1"),
        ("seeger", Numbers(10, 0.05, risk=0.1, kl=1.0, high=math.inf), "must be bounded"),
        ("theorem-3.2", Numbers(10, 0.05, risk=0.1, kl=1.0, beta=1.0), "needs the epsilon"),
        ("seeger", Numbers(10, 0.05, risk=0.1, kl=1.0, epsilon=0.5), "epsilon is of a private prior, got 0.5 with a"),
        ("seeger", Numbers(10, 0.05, risk=0.1, kl=1.0, draws_delta=0.01), "draws_delta is .* got 0.01 without draws"),
        ("seeger", Numbers(10, 0.05, risk=0.1, kl=1.0, prior_delta=0.5), "delta is of a private prior, got 0.5 with a"),
        (
            "seeger",
            Numbers(10, 0.05, risk=0.1, kl=1.0, loss="0-1", high=2.0),
            "the 0-1 loss lies in .* got low = 0 and",
        ),
        (
            "seeger",
            Numbers(10, 0.05, risk=0.1, kl=1.0, loss="square"),
            "loss must be 0-1, convex or unbounded",
        ),  # type: ignore[arg-type]
        ("seeger", Numbers(10.5, 0.05, risk=0.1, kl=1.0), "n must be at least 1 and a whole number, got 10.5"),
        ("gibbs", Numbers(10, 0.05, log_z=-1.0, beta=2.0, draws=5), "the bound 'gibbs' has no use for draws"),
    ],
)
def test_numbers_that_make_no_bound_are_refused(name: str, numbers: Numbers, words: str) -> None:
    with pytest.raises(AssumptionError, match=words):
        certificate(name, numbers)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"independent": False}, "not declared independent"),
        ({"prior": "saw the rows"}, "the prior saw the rows"),
        ({"prior": "unknown"}, "nobody said where the prior came from"),
        ({"predictor": "point estimate"}, "not on a point estimate"),
    ],
)
def test_a_broken_premise_shows_its_reason_and_no_number(more: dict[str, object], words: str) -> None:
    result = certificate("seeger", Numbers(100, 0.05, risk=0.2, kl=3.0, **SAID | more))
    assert not result.valid
    assert words in str(result)
    assert f"{float(result.value):.3f}" not in str(result)


def test_records_and_words() -> None:
    numbers = Numbers(100, 0.05, risk=0.2, kl=3.0, **SAID)
    result = to_record(certificate("seeger", numbers))
    assert float(from_record(result).recompute()) == result["value"]
    assert "the rows are independent draws; the prior is data-free; 1 configuration" in assumptions_text(numbers)


def test_nothing_said_is_no_certificate_from_a_command_either() -> None:
    """As in Python: what is not said of the prior and the rows counts as broken."""
    numbers = Numbers(100, 0.05, risk=0.2, kl=3.0)
    assert certificate("seeger", numbers).reasons == bounds.seeger(0.2, 3.0, 100, 0.05, bounds.Premises()).reasons
    assert "the rows are not said to be independent; the prior is unknown" in assumptions_text(numbers)


@pytest.mark.parametrize(
    ("predictor", "loss", "factor"), [("majority vote", "0-1", 2.0), ("averaged prediction", "convex", 1.0)]
)
def test_other_predictors_have_certificates_for_their_losses(predictor: Any, loss: Any, factor: float) -> None:
    numbers = Numbers(100, 0.05, risk=0.2, kl=3.0, predictor=predictor, loss=loss, **SAID)
    result, gibbs = certificate("seeger", numbers), certificate("seeger", Numbers(100, 0.05, risk=0.2, kl=3.0, **SAID))
    assert result.valid and float(result.value) == pytest.approx(factor * float(gibbs.value), rel=1e-12)
    assert not certificate("seeger", replace(numbers, loss=None)).valid


def test_a_bound_that_joins_the_table_is_listed_and_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = Numbers(100, 0.05, risk=0.2, kl=3.0, **SAID)
    given = certificate(REFINED_PINSKER, numbers)
    expected = 0.2 + math.sqrt(2 * 0.2 * (share := (3 + math.log(20) + log_moment(torch.tensor(100)).item()) / 100))
    assert given.valid and given.value.item() == pytest.approx(expected + 2 * share, rel=1e-12)
    with pytest.raises(AssumptionError, match=r"bound must be one of seeger, .*, got 'refined-pinsker'"):
        certificate("refined-pinsker", numbers)
    joined = MappingProxyType({**BOUNDS, "refined-pinsker": REFINED_PINSKER})
    for module in (bounds, table):
        monkeypatch.setattr(module, "BOUNDS", joined)
    assert certificate("refined-pinsker", numbers).value.item() == given.value.item()
    assert formula_text("refined-pinsker").startswith("L <= L^ + sqrt(2 L^ B) + 2 B")
    assert "where the rows of a client are independent draws" in formula_text("refined-pinsker")
    assert dict(table.listing())["refined-pinsker"] == "Bound the risk by the refined Pinsker inequality."
    assert from_record(to_record(given)).recompute().item() == given.value.item()
