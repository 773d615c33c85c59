"""How a study scales its columns: what is settled, what is refused, and what a run keeps of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.data import tables
from pacbayes_fl.data.scaling import FEDERATED, Shared
from pacbayes_fl.errors import DataError, PrivacyError, StudyError
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.rows import scaling
from pacbayes_fl.study.rows.scaling import FILE, labels, read, save, settle
from tests.tiny import Row, on_csv, rows, tiny, write_csv
from tests.tiny_images import tiny_images, write_root


def houses() -> list[Row]:
    """Rows with a capacity that is each client's own."""
    clients = list(dict.fromkeys(row["client"] for row in rows()))
    return [row | {"cap": 4.0 + clients.index(row["client"])} for row in rows()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "houses.csv", houses())


def settled(path: Path, *sets: str, **data: Any) -> tuple[Shared, tables.Dataset]:
    study = on_csv(path, *sets)
    study = replace(study, data=replace(study.data, **data))
    dataset = load(study)
    return settle(study, dataset), dataset


def test_columns_are_settled_by_default_by_one_word_and_by_name(path: Path) -> None:
    shared, dataset = settled(path)
    assert scaling.names(dataset) == ["lag_1", "wind", "cap", "y"]
    assert shared.kinds == ("client", "client", "pooled", "client")
    assert labels(shared, dataset) == {"scaling": {"across clients": "cap"}}
    assert settled(path, scale="pooled")[0].kinds == ("pooled",) * 4
    half, _ = settled(path, scale="shrunk")
    assert half.kinds == ("shrunk", "shrunk", "pooled", "shrunk")
    assert labels(half, dataset) == {"scaling": {"towards all clients": "lag_1, wind, y", "across clients": "cap"}}
    some = settled(path, scale="none", column_scale={"wind": "client", "y": "pooled"})
    assert some[0].kinds == ("none", "client", "none", "pooled")
    assert labels(*some) == {"scaling": {"across clients": "y", "own units": "lag_1, cap"}}
    assert settled(path, column_scale={"cap": "client"})[0].kinds == ("client",) * 4  # who asks for it gets it
    assert labels(*settled(path, column_scale={"cap": "client"})) == {}


def test_assignments_choose_columns_too(path: Path) -> None:
    shared, _ = settled(path, "data.column_scale.wind=pooled", "data.scale=none")
    assert shared.kinds == ("none", "pooled", "none", "none")


def test_new_clients_and_test_rows_do_not_move_what_is_shared(tmp_path: Path) -> None:
    shared = settled(write_csv(tmp_path / "a.csv", houses()))[0]
    moved = [
        row | {"cap": row["cap"] + 50, "wind": 9e3} if row["group"] == "new" or row["split"] == "test" else row
        for row in houses()
    ]
    again = settled(write_csv(tmp_path / "b.csv", moved))[0]
    assert again.kinds == shared.kinds and torch.equal(again.mean, shared.mean) and torch.equal(again.std, shared.std)


def test_slips_are_named(path: Path) -> None:
    with pytest.raises(StudyError, match=r"column_scale: no column 'capp' \(did you mean 'cap'\?\)"):
        settled(path, column_scale={"capp": "pooled"})
    with pytest.raises(
        StudyError, match="column_scale of 'cap' must be one of 'client', 'shrunk', 'pooled', 'none', got 'robust'"
    ):
        DataPart(column_scale={"cap": "robust"})
    with pytest.raises(
        StudyError, match="scale must be one of 'client', 'shrunk', 'pooled', 'none' or one of 'held-out', got 'all'"
    ):
        tiny("data.scale=all")
    with pytest.raises(StudyError, match="time must be a column of its own, got 'client'"):
        tiny("data.time=client")


@pytest.mark.parametrize(
    ("asked", "error"), [("privacy.epsilon=1.0", PrivacyError), ("report.certify.scheme=folds", StudyError)]
)
def test_moments_of_all_clients_are_refused_where_nobody_may_know_them(path: Path, asked: str, error: type) -> None:
    for kind in FEDERATED:
        for data in ({"scale": kind}, {"column_scale": {"y": kind}}):
            message = rf"\[data\] scale = '{kind}' of '(lag_1|y)' takes moments of all clients' rows"
            if error is PrivacyError:
                message = r"moments of (lag_1, wind, cap, )?y are released within public ranges"
            with pytest.raises(error, match=message):
                settled(path, asked, **data)
    with pytest.warns(UserWarning, match="^cap: constant inside clients and different between them"):
        shared, _ = settled(path, asked)
    assert shared.kinds == ("client",) * 4
    assert settled(path, asked, column_scale={"cap": "none"})[0].kinds[2] == "none"


def test_images_are_left_as_they_are(tmp_path: Path) -> None:
    study = tiny_images(write_root(tmp_path))
    dataset = load(study)
    shared = settle(study, dataset)
    assert labels(shared, dataset) == {}
    save(tmp_path, shared, dataset)
    assert not (tmp_path / FILE).exists() and read(tmp_path, dataset).kinds == shared.kinds
    with pytest.raises(StudyError, match="scale is for columns, and images are left as they are"):
        settle(replace(study, data=replace(study.data, scale="pooled")), dataset)


@pytest.mark.parametrize("scale", ["client", "shrunk", "private"])
def test_what_is_kept_comes_back_to_the_last_bit(path: Path, tmp_path: Path, scale: str) -> None:
    private = scale == "private"
    sets = ["privacy.epsilon=3.0", "data.column_scale.cap=none"] if private else [f"data.scale={scale}"]
    study = on_csv(path, *sets)
    dataset = load(study)
    shared = prepare(study, dataset)[1]["existing"].shared
    save(tmp_path, shared, dataset)
    again = read(tmp_path, dataset)
    assert again.kinds == shared.kinds
    assert torch.equal(again.mean, shared.mean) and torch.equal(again.std, shared.std)
    for mine, theirs in ((shared.between, again.between), (shared.spread, again.spread)):
        if scale != "shrunk":
            assert mine is theirs is None
        else:
            assert mine is not None and theirs is not None and torch.equal(mine, theirs)
    assert (shared.average is None) == private == (again.average is None)  # nothing of others' rows
    assert (shared.linear is None) == private == (again.linear is None)
    if shared.linear is not None and again.linear is not None:
        assert torch.equal(shared.linear.weight, again.linear.weight) and shared.linear[1:] == again.linear[1:]
    if shared.average is not None and again.average is not None:
        assert all(torch.equal(a, b) for a, b in zip(shared.average, again.average, strict=True))
    assert str(dataset.groups["existing"].train.x[0, 0, 0].item()) not in (tmp_path / FILE).read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: None, "scaling.json is missing: it holds what the clients' units have in common"),
        (lambda found: found["columns"].pop(), "it is not of the columns lag_1, wind, cap, y"),
        (lambda found: found["columns"][2].update(std=0.0), "a standard deviation is not positive"),
        (lambda found: found["columns"][2].update(mean="many"), "cannot be read"),
        (lambda found: found["columns"][0].update(scale="robust"), "it is not of the columns"),
        (lambda found: found["columns"][1].update(spread=-1.0), "a standard deviation is negative"),
        (lambda found: found["columns"][1].pop("between"), "cannot be read: 'between'"),
        (lambda found: found["average"].pop("y_std"), "cannot be read: 'y_std'"),
        (lambda found: found["average"].update(x_mean=[1.0]), "a moment is not a finite number"),
        (lambda found: found.update(columns=3), "cannot be read"),
        (lambda found: found["linear"].update(noise_std=0.0), "a standard deviation is not positive"),
        (lambda found: found["linear"].update(weight=[1.0]), "a moment is not a finite number"),
        (lambda found: found["linear"].pop("bias"), "cannot be read: 'bias'"),
    ],
)
def test_damage_is_named(path: Path, tmp_path: Path, change: Any, message: str) -> None:
    study = on_csv(path, "data.column_scale.wind=shrunk")
    dataset = load(study)
    save(tmp_path, prepare(study, dataset)[1]["existing"].shared, dataset)
    found = json.loads((tmp_path / FILE).read_text())
    if change(found) is None and message.startswith(FILE):
        (tmp_path / FILE).unlink()
    else:
        (tmp_path / FILE).write_text(json.dumps(found))
    with pytest.raises(DataError, match=message):
        read(tmp_path, dataset)


SUMMARIES = "data.client_inputs=summaries"


def test_summaries_of_a_client_s_training_rows_are_inputs_of_all_its_rows(path: Path) -> None:
    study = on_csv(path, SUMMARIES)
    dataset = load(study)
    groups = prepare(study, dataset)[1]
    plain = prepare(on_csv(path), dataset)[1]
    assert len(scaling.inputs(study, dataset)) == 3 + 5
    for name, group in groups.items():
        y = [one[mask] for one, mask in zip(group.raw.train.y, group.raw.train.mask, strict=True)]
        known = groups["existing"].shared.summaries
        assert known is not None and torch.equal(group.train.x[..., :3], plain[name].train.x)
        for k, own in enumerate(y):
            error, between = 0.5 / (len(own) - 1), known.between[0] ** 2
            scale = ((own.std(correction=0) / known.unit).log() - known.mean[0]) * between / (between + error)
            scale = scale / known.std[0]
            for batch in (group.train, group.test, group.bring(group.raw.test)):
                rows = batch.x[k, batch.mask[k], 3]
                torch.testing.assert_close(rows, scale.expand(len(rows)))
        chosen = group.select(torch.tensor([1]))
        assert torch.equal(chosen.bring(chosen.raw.test).x, group.test.select(torch.tensor([1])).x)
    assert labels(groups["existing"].shared, dataset)["scaling"]["client inputs"].startswith("log scale of y, level")


def test_summaries_come_back_and_damage_is_named(path: Path, tmp_path: Path) -> None:
    study = on_csv(path, SUMMARIES)
    dataset = load(study)
    shared = prepare(study, dataset)[1]["existing"].shared
    save(tmp_path, shared, dataset)
    again = read(tmp_path, dataset)
    assert shared.summaries is not None and again.summaries is not None and again.linear is not None
    assert all(torch.equal(a, b) for a, b in zip(shared.summaries, again.summaries, strict=True))
    assert len(again.linear.weight) == 8
    found = json.loads((tmp_path / FILE).read_text())
    found["summaries"]["std"][2] = 0.0
    (tmp_path / FILE).write_text(json.dumps(found))
    with pytest.raises(DataError, match="a scale is not positive"):
        read(tmp_path, dataset)


def test_summaries_are_refused_where_they_would_tell_of_rows_or_have_no_numbers(path: Path, tmp_path: Path) -> None:
    for asked, error in (("privacy.epsilon=1.0", PrivacyError), ("report.certify.scheme=folds", StudyError)):
        message = "client_inputs = 'summaries' are scaled by those of all clients, and"
        message = "moments of y are released within public ranges" if error is PrivacyError else message
        with pytest.raises(error, match=message):
            settled(path, asked, SUMMARIES, column_scale={"cap": "none"})
    table = write_csv(tmp_path / "labels.csv", [row | {"y": i % 3} for i, row in enumerate(houses())])
    study = on_csv(table, SUMMARIES, "data.task=classification", "method.name=fedavg")
    with pytest.raises(StudyError, match="are of targets that are numbers, not labels"):
        settle(study, load(study))


def test_a_labelled_table_scales_its_features_alone(tmp_path: Path) -> None:
    table = [row | {"y": i % 3} for i, row in enumerate(houses())]
    source = str(write_csv(tmp_path / "labels.csv", table))
    study = Study.from_table({"data": {"source": source, "task": "classification"}, "method": {"name": "fedavg"}})
    dataset = load(study)
    shared = settle(study, dataset)
    assert shared.kinds == ("client", "client", "pooled", "none")
    assert labels(shared, dataset) == {"scaling": {"across clients": "cap"}}


def test_moments_beyond_numbers_of_64_bits_are_refused(path: Path, tmp_path: Path) -> None:
    shared, dataset = settled(path, scale="shrunk")
    assert shared.mean is not None
    with pytest.raises(DataError, match=r"no numbers of 64 bits: clients' values are too far apart \(write all"):
        save(tmp_path, shared._replace(mean=shared.mean * torch.inf), dataset)
    assert not (tmp_path / FILE).exists()
