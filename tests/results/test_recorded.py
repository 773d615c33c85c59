"""The table of what a run records beside scores; that it is whole, a law shows (tests/laws/test_recorded_laws.py)."""

from __future__ import annotations

import pytest

from pacbayes_fl.results.metrics import METRICS
from pacbayes_fl.results.recorded import RECORDED, in_progress, listing, with_unit
from pacbayes_fl.results.records import SIMULATED_EPSILON


def test_the_table_is_read_only_and_shares_no_name_with_metrics() -> None:
    with pytest.raises(TypeError):
        RECORDED["own"] = RECORDED["kl"]  # type: ignore[index]
    assert not RECORDED.keys() & METRICS.keys()
    assert SIMULATED_EPSILON in RECORDED
    for name, one in RECORDED.items():
        assert one.name == name and one.title and one.label and one.of
        assert not (one.learning or one.objective or one.progress) or "rounds" in one.of


def test_progress_tells_what_a_method_climbs_or_descends() -> None:
    assert in_progress() == ("log_evidence", "log_likelihood", "loss")


def test_a_line_says_of_what_a_number_is_and_in_what_unit() -> None:
    assert dict(listing())["kept"] == "of rounds and clients: weights kept, share of weights"
    assert dict(listing())["kl"] == "of rounds: divergence from the prior, mean KL divergence (nats)"
    assert with_unit("x", "1") == with_unit("x", "") == "x"
