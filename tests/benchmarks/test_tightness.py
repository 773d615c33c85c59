"""Bounds beside those of peers: never looser than theirs, and the formula of theirs as the paper's code has it."""

from __future__ import annotations

import pytest

from benchmarks import tightness


@pytest.mark.parametrize("case", tightness.CASES, ids=lambda case: case.name)
def test_the_default_bound_is_no_looser_than_the_peers_and_a_test_set_is_tighter(case: tightness.Case) -> None:
    theirs, ours, exact = tightness.peers(case), tightness.ours(case), tightness.ours(case, None)
    assert case.risk < exact["seeger"] < ours["seeger"] < theirs
    assert ours["seeger"] <= min(ours["pbb-quadratic"], ours["mcallester"]) + 1e-12
    assert ours["pbb-lambda"] == pytest.approx(ours["pbb-quadratic"], rel=1e-9)  # at the best lambda
    assert tightness.binomial(case) < exact["seeger"]


def test_published_digits_of_the_peers_formula() -> None:
    assert tightness.peers(tightness.Case("", 0.092, 1.4, 125)) == pytest.approx(0.269, abs=5e-4)
    assert tightness.peers(tightness.Case("", 0.03, 500.0, 30000)) == pytest.approx(0.102, abs=5e-4)
    assert len(tightness.table()) == 2 + len(tightness.CASES)
