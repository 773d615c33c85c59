"""Records of bounds: what they state, and what they say when something is left out or does not fit."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from pacbayes_fl.bounds.bound import ARGUMENTS, Bound
from pacbayes_fl.bounds.certificate import MonteCarlo
from pacbayes_fl.bounds.client import GIBBS, SEEGER, THEOREM_3_2
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.printed import LEMMA_4_6, THEOREM_4_2
from pacbayes_fl.bounds.server import NEW_CLIENTS, SERVER
from pacbayes_fl.errors import AssumptionError
from tests.bounds.own import REFINED_PINSKER, refined_pinsker

FINE = Premises(Provenance("split"), independent=True)


def test_a_record_that_leaves_something_out_names_all_of_it_and_what_to_write() -> None:
    with pytest.raises(AssumptionError) as caught:
        Bound(name="mine", function=refined_pinsker, needs=("risk", "kl", "n"))
    assert "the bound 'mine' leaves out 3 of its attributes" in str(caught.value)
    for how in ("formula = what turns", "poolable = True where", "world = where its coverage is tested, one of fair"):
        assert how in str(caught.value)
    with pytest.raises(AssumptionError, match="a bound without a name leaves out 6 of its attributes"):
        Bound()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"needs": ("risk", "kl")}, "needs leaves out n, which the function cannot do without"),
        ({"needs": ("risk", "kl", "n", "beta")}, "the function has no argument beta"),
        ({"name": "My bound"}, "name must be of lower-case letters, digits, '-' and '.', got 'My bound'"),
        ({"world": "mine"}, "world must be one of fair coins, .*, got 'mine'"),
        ({"average": "clients by beta"}, "average must be one of client, .*, got 'clients by beta'"),
        ({"average": "clients on average"}, "poolable bounds are on a client and need risk, kl and n alone"),
        ({"function": lambda risk, kl, n, delta, premises: None}, "docstring of the function must be a line"),
        ({"function": lambda risk, kl, n: None}, "the function has no argument delta, premises"),
    ],
)
def test_a_record_that_does_not_fit_its_function_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(AssumptionError, match=f"the bound '.*' does not fit its function: .*{words}"):
        dataclasses.replace(REFINED_PINSKER, **change)


def test_what_is_shown_of_a_bound_is_its_docstring_and_its_attributes() -> None:
    assert REFINED_PINSKER.summary == "Bound the risk by the refined Pinsker inequality."
    assert REFINED_PINSKER.statement.startswith("L <= L^ + sqrt(2 L^ B) + 2 B, B = (KL + ln(xi(n) / delta)) / n")
    shown = dict(REFINED_PINSKER.described())
    assert shown["formula"] == REFINED_PINSKER.statement and shown["risk"] == ARGUMENTS["risk"]
    assert "pooled rows of clients" in shown["pooled"] and shown["coverage"].endswith("'fair coins'")
    assert any("exact Gibbs posterior" in text for text in GIBBS.assumptions)
    assert any("drawn with differential privacy" in text for text in THEOREM_3_2.assumptions)
    assert any("one distribution of clients" in text for text in NEW_CLIENTS.assumptions)
    assert any("conditions of the printed theorem" in text for text in THEOREM_4_2.assumptions)
    assert "new clients on average" in NEW_CLIENTS.pooling and "each client on its own" in GIBBS.pooling


def test_what_a_run_can_certify_follows_from_what_a_bound_needs() -> None:
    assert [each.certifiable for each in (SEEGER, GIBBS, SERVER, NEW_CLIENTS, THEOREM_4_2, LEMMA_4_6)] == [
        True, True, True, True, False, False
    ]  # fmt: skip
    assert [each.group for each in (SEEGER, SERVER, NEW_CLIENTS)] == [None, "existing", "new"]
    assert SEEGER.estimable and not GIBBS.estimable


def test_numbers_are_taken_by_name_and_missing_ones_are_named() -> None:
    numbers = {"risk": torch.tensor([0.1, 0.2]), "kl": 1.0, "n": 50, "beta": 3.0}
    direct = SEEGER.function(torch.tensor([0.1, 0.2]), 1.0, 50, 0.05, FINE, monte_carlo=MonteCarlo(9, 0.01))
    assert torch.equal(SEEGER.certify(numbers, 0.05, FINE, MonteCarlo(9, 0.01)).value, direct.value)
    with pytest.raises(AssumptionError, match=r"the bound 'gibbs' needs log_z$"):
        GIBBS.certify(numbers, 0.05, FINE)
    with pytest.raises(AssumptionError, match="'gibbs' has no use for draws: its function takes no monte_carlo"):
        GIBBS.certify({**numbers, "log_z": -1.0}, 0.05, FINE, MonteCarlo(9, 0.01))
