"""Paths that are followed once, of some of many clients, and that go on where an earlier one stopped."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.data import tables
from pacbayes_fl.study.config.choices import ROUNDS, candidates
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.search import held_out, paths
from pacbayes_fl.study.search.held_out import choose
from pacbayes_fl.study.search.path import Path as Along
from pacbayes_fl.study.search.path import _Trial, follow
from tests.tiny import quick, rows, tiny, write_csv


@pytest.mark.parametrize("name", ["pfedbayes", "cfedbayes", "bpfed"])
def test_a_path_that_goes_on_is_that_of_another_start(name: str, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "rows.csv", rows(sizes=(12,) * 6, new=()))
    given = [*quick(name), f"data.source={source}", "federation.rounds=4", "model.noise_std=held-out"]
    averaged = () if name == "cfedbayes" else ("federation.average_last=0.75",)
    study = Study.from_table({"seed": 1}, "tiny.toml", [*given, *averaged])
    data = load(study)
    short = follow(study, data, (2,), until=4)
    assert short == follow(study, data, (2,)) and short.federations and not follow(study, data, (2,)).federations
    whole = follow(study, data, (4,))
    assert follow(study, data, (4,), after=short) == whole and len(whole.noise[4]) > 1


def test_the_noise_is_chosen_on_the_federations_that_chose_the_weight(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Four weights after 2 rounds in two federations, then 2 rounds more; as if all began anew."""
    source = write_csv(tmp_path / "rows.csv", rows(sizes=(12,) * 6, new=()))
    held = ("method.zeta=held-out", "model.noise_std=held-out", "federation.rounds=4", "method.trial_rounds=2")
    study = Study.from_table({"seed": 1}, "tiny.toml", [*quick("pfedbayes"), f"data.source={source}", *held])
    data, advance, trained = load(study), _Trial.advance, list[int]()

    def counted(self: _Trial, mark: int) -> Any:
        trained.append(mark - self._state.round)
        return advance(self, mark)

    monkeypatch.setattr(_Trial, "advance", counted)
    chosen, notes = choose(study, data)
    assert trained == [2] * 10
    trained.clear()
    monkeypatch.setattr(paths, "follow", lambda *args, **more: follow(*args, **{**more, "until": 0, "after": None}))
    assert choose(study, data) == (chosen, notes) and trained == [2] * 8 + [4] * 2


@pytest.mark.slow
def test_paths_are_of_some_of_many_clients_of_those_first_that_have_a_row_to_spare(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which ones depends on the seed alone; a run trains on all, and says how many chose."""
    table_rows = [
        {"client": f"c{k}", "split": part, "x": at + k / 8 + (part == "test") / 2, "y": math.sin(at * (k + 1))}
        for k in range(12)
        for part, count in (("train", 1 if k < 4 else 6), ("test", 2))
        for at in range(count)
    ]
    monkeypatch.setattr(held_out, "candidates", lambda one, asks: (2, 4) if asks is ROUNDS else candidates(one, asks))
    table = {**tiny().table(), "data": {"source": str(write_csv(tmp_path / "rows.csv", table_rows))}}
    table["federation"] = {"device": "cpu", "threads": 1}
    seen: list[tuple[str, ...]] = []

    def watched(study: Study, dataset: tables.Dataset, *rest: Any, **more: Any) -> Along:
        seen.append(tuple(dataset.groups["existing"].train.names))
        return follow(study, dataset, *rest, **more)

    monkeypatch.setattr(paths, "follow", watched)
    monkeypatch.setattr(paths, "_CLIENTS", 6)
    for seed in (0, 0, 1):
        study = Study.from_table({**table, "seed": seed}, "own.toml")
        with pytest.warns(UserWarning, match="all training rows are one"):
            _, notes = choose(study, load(study))
        assert notes["federation.rounds"]["rule"].endswith("; by 6 of the 12 clients")
    drawn = sorted(set(seen), key=seen.index)
    assert len(drawn) == 2 and all(list(one) == sorted(one, key=lambda name: int(name[1:])) for one in drawn)
    assert all(len(one) == 6 and not {"c0", "c1", "c2", "c3"} & {*one} for one in drawn)
    monkeypatch.setattr(paths, "_CLIENTS", 12)
    with pytest.warns(UserWarning, match="all training rows are one"):
        _, notes = choose(study, load(study))
    assert len(seen[-1]) == 12 and "of the 12 clients" not in notes["federation.rounds"]["rule"]


def test_which_of_many_clients_choose_does_not_depend_on_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_CLIENTS", 2)
    given = load(tiny())
    group = given.groups["existing"]
    turned = group.select(torch.arange(group.train.clients - 1, -1, -1))
    drawn = [
        {*paths.fewer(replace(given, groups={"existing": one}), seed).groups["existing"].train.names}
        for seed in range(5)
        for one in (group, turned)
    ]
    assert drawn[::2] == drawn[1::2] and len({*map(frozenset, drawn)}) > 1
