"""Threads of torch while something runs, and what each of several processes has of the processors."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.study.threads import shared, threads


def test_the_number_is_the_callers_again_after_an_error_too() -> None:
    before = torch.get_num_threads()
    with threads(None):
        assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), threads(before + 2):
        assert torch.get_num_threads() == before + 2
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def test_a_share_is_of_the_processors_that_a_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(8)}, raising=False)
    assert [shared(nodes) for nodes in (1, 3, 8, 20)] == [8, 2, 1, 1]
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert shared(3) == 1
