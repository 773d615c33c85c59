"""Rows that the training never sees: which they are, that nothing looks at them, and that a run remembers them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pacbayes_fl.data import tables, twins
from pacbayes_fl.errors import CheckpointError, DataError, StudyError
from pacbayes_fl.results.manifest import adopt
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import held_rows
from pacbayes_fl.study.run import open_run, run
from pacbayes_fl.study.search import held_out
from tests.tiny import TABLE, on_csv, rows, state, tiny, write_csv
from tests.tiny_images import tiny_images, write_root

SPLIT = "report.certify.scheme=split"
CSV = TABLE | {"method": {"name": "pac-pfl", "particles": 2}}


def divided(*sets: str) -> tuple[tables.Dataset, held_rows.CertificateSplit]:
    study = tiny(SPLIT, *sets)
    dataset = load(study)
    return dataset, held_rows.divide(study, dataset)


def sorted_rows(batch: object, k: int) -> list[list[float]]:
    x, y, mask = batch.x[k], batch.y[k], batch.mask[k]  # type: ignore[attr-defined]
    return sorted(torch.cat((x[mask], y[mask].unsqueeze(1)), 1).tolist())


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_both_parts_together_are_the_training_rows_and_no_row_is_in_both(share: float) -> None:
    dataset, division = divided(f"report.certify.share={share}")
    whole, known = dataset.groups["existing"].train, division.dataset.groups["existing"].train
    assert division.bound_rows is not None
    assert division.bound_rows.names == known.names == whole.names
    for k in range(whole.clients):
        assert sorted(sorted_rows(known, k) + sorted_rows(division.bound_rows, k)) == sorted_rows(whole, k)
        assert int(known.size[k]) == round(share * int(whole.size[k]))
    for name in ("test",):
        assert torch.equal(getattr(division.dataset.groups["existing"], name).x, dataset.groups["existing"].test.x)
    assert division.dataset.groups["new"] is dataset.groups["new"]


@pytest.mark.slow
def test_every_row_is_as_likely_to_be_held_wherever_it_stands() -> None:
    dataset = load(tiny())
    counts = torch.zeros_like(dataset.groups["existing"].train.mask, dtype=torch.float64)
    for seed in range(400):
        position = held_rows.divide(replace(tiny(SPLIT), seed=seed), dataset).bound_row_mask
        assert position is not None
        counts += position
    share = counts / 400
    assert float(share.mean()) == pytest.approx(3 / 7, abs=1e-12)  # of 7 rows round(3.5) = 4 are seen
    assert float((share - 3 / 7).abs().max()) < 4.5 * (3 / 7 * 4 / 7 / 400) ** 0.5


def test_what_is_held_does_not_depend_on_values_or_on_other_clients(tmp_path: Path) -> None:
    table = rows()
    study = on_csv(write_csv(tmp_path / "rows.csv", table), SPLIT)
    before = held_rows.divide(study, load(study))
    other = [row | {"y": row["y"] + 7.0, "wind": -row["wind"]} for row in table if row["client"] != "existing_1"]
    study = on_csv(write_csv(tmp_path / "rows.csv", other), SPLIT)
    after = held_rows.divide(study, load(study))
    assert before.bound_row_mask is not None and after.bound_row_mask is not None and before.bound_rows is not None
    assert after.bound_rows is not None
    for name in after.bound_rows.names:
        mine, theirs = (
            np.flatnonzero(one.bound_row_mask[one.bound_rows.names.index(name)].numpy()).tolist()  # type: ignore[index,union-attr]
            for one in (before, after)
        )
        assert mine == theirs


@pytest.mark.parametrize("scheme", ["none", "folds"])
def test_other_schemes_hold_nothing(scheme: str) -> None:
    study = tiny(f"report.certify.scheme={scheme}")
    dataset = load(study)
    division = held_rows.divide(study, dataset)
    assert division.dataset is dataset
    assert division.bound_rows is None


def test_a_client_with_too_few_rows_is_named() -> None:
    with pytest.raises(DataError, match=r"has 7 training rows, of which a share of 0\.01 leaves one part empty"):
        divided("report.certify.share=0.01")


@pytest.mark.parametrize("sets", [("share=1.0",), ("share=0.0",), ("folds=1",)])
def test_numbers_out_of_range_are_refused(sets: tuple[str]) -> None:
    with pytest.raises(StudyError, match=r"\[report\.certify\]"):
        tiny(*(f"report.certify.{one}" for one in sets))


def test_the_training_is_that_on_the_other_rows_alone(tmp_path: Path) -> None:
    table = rows()
    path = write_csv(tmp_path / "rows.csv", table)
    study = on_csv(path, SPLIT)
    division = held_rows.divide(study, load(study))
    run(study, tmp_path / "split")
    seen = division.dataset.groups["existing"].train
    kept = [
        row
        for row in table
        if row["group"] == "new"
        or row["split"] == "test"
        or [row["lag_1"], row["wind"], row["y"]] in sorted_rows(seen, seen.names.index(row["client"]))
    ]
    assert len(kept) < len(table)
    run(on_csv(write_csv(tmp_path / "kept.csv", kept)), tmp_path / "kept")
    mine, theirs = state(tmp_path / "split"), state(tmp_path / "kept")
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_an_open_option_is_chosen_without_a_look_at_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[torch.Tensor] = []

    def spy(study: Study, dataset: tables.Dataset, on_trial: object = None) -> tuple[Study, dict[str, object]]:
        looked_at.append(dataset.groups["existing"].train.size)
        return tiny(SPLIT), {}

    monkeypatch.setattr(held_out, "choose", spy)
    monkeypatch.setattr(Study, "held_out", property(lambda study: True))
    run(tiny(SPLIT))
    assert looked_at[0].tolist() == [4.0] * 4


def test_a_run_remembers_them(tmp_path: Path) -> None:
    run(tiny(SPLIT), tmp_path)
    _, division = divided()
    trained = open_run(tmp_path)
    assert trained.bound_rows is not None and division.bound_rows is not None
    assert torch.equal(trained.bound_rows.x, division.bound_rows.x)
    assert trained.groups["existing"].train.size.tolist() == [4.0] * 4
    with np.load(tmp_path / held_rows.FILE) as saved:
        positions = saved["held"]
        names = saved["client_name"]
    np.savez(tmp_path / held_rows.FILE, held=~positions, client_name=names)
    with pytest.raises(DataError, match=r"held_out\.npz is damaged or was edited"):
        open_run(tmp_path)
    adopt(tmp_path)
    with pytest.raises(DataError, match="kept from the training are not those"):
        open_run(tmp_path)
    with pytest.raises(DataError, match="kept from the training are not those"):
        run(tiny(SPLIT, "federation.rounds=14"), tmp_path, resume=True)


def test_a_run_does_not_change_its_scheme(tmp_path: Path) -> None:
    run(tiny(), tmp_path)
    with pytest.raises(CheckpointError, match=r"report\.certify\.scheme"):
        run(tiny(SPLIT, "federation.rounds=14"), tmp_path, resume=True)


def test_nothing_can_be_chosen_by_rows_that_are_all_certified() -> None:
    def left(*sets: str) -> list[float]:
        study = tiny(*sets)
        rows = held_rows.rows_for_tuning(study, held_rows.divide(study, load(study)))
        return list(rows.groups["existing"].train.size.tolist())

    with pytest.raises(StudyError, match="nothing can be chosen by them"):
        left("report.certify.scheme=folds")
    assert left() == [7.0] * 4
    assert left(SPLIT) == [4.0] * 4


def test_of_images_the_same_share_of_every_label_is_held(tmp_path: Path) -> None:
    study = tiny_images(write_root(tmp_path), SPLIT, "data.options.train=5")
    division = held_rows.divide(study, load(study))
    known = division.dataset.groups["existing"].train
    assert division.bound_rows is not None
    for k in range(known.clients):
        seen, held = (b.y[k][b.mask[k]].bincount(minlength=10) for b in (known, division.bound_rows))
        assert set((seen + held).tolist()) == {0, 5}
        assert int((seen - held).abs().max()) <= 1
        assert abs(int(seen.sum()) - int(held.sum())) <= 1


def test_labels_of_a_table_are_draws_and_are_not_counted_out(tmp_path: Path) -> None:
    table = [row | {"y": i % 2} for i, row in enumerate(rows())]
    path = write_csv(tmp_path / "rows.csv", table)
    sets = ("data.task=classification", "method.name=pfedbayes")
    counts = set()
    for seed in range(12):
        study = on_csv(path, SPLIT, *sets, f"seed={seed}")
        division = held_rows.divide(study, load(study))
        assert division.bound_rows is not None
        counts.add(int(division.bound_rows.y[1][division.bound_rows.mask[1]].sum()))
    assert len(counts) > 1


def test_a_row_on_both_sides_is_refused(tmp_path: Path) -> None:
    table = rows()
    twice = [row for row in table if row["client"] == "existing_1" and row["split"] == "train"]
    path = write_csv(tmp_path / "rows.csv", [*table, *twice])
    with pytest.raises(DataError, match=r"kept row \d+ is also a training row"):
        study = on_csv(path, SPLIT)
        held_rows.divide(study, load(study))
    study = on_csv(path, SPLIT, "data.duplicate_rows=allow")
    assert held_rows.divide(study, load(study)).bound_rows is not None


def test_a_damaged_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / held_rows.HISTORY).write_text('{"rows": 3}')
    with pytest.raises(DataError, match=r"trained\.json cannot be read"):
        held_rows.TrainingHistory.read(tmp_path)
    assert held_rows.TrainingHistory.read(None) == held_rows.TrainingHistory()


def test_a_history_of_an_earlier_version_is_compared_by_its_own_cells(tmp_path: Path) -> None:
    dataset = load(tiny())
    history = held_rows.TrainingHistory(grids=2).extended(tiny(), dataset, dataset)
    history.save(tmp_path)
    saved = json.loads((tmp_path / held_rows.HISTORY).read_text("utf-8"))
    assert saved.pop("grids") == 2
    (tmp_path / held_rows.HISTORY).write_text(json.dumps(saved), "utf-8")
    again = held_rows.TrainingHistory.read(tmp_path)
    assert again.grids == 2 and held_rows.TrainingHistory().grids == twins.GRIDS > 2
    rows, _ = twins.stacked(dataset.groups["existing"].train)
    known = np.concatenate([one.cells for one in again.clients.values()])
    assert np.isin(twins.cells(rows, np.array(again.width), again.salt, again.grids), known).all()
