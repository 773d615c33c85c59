"""From the [data] table to batches: where rows come from, what is refused, and units there and back."""

from __future__ import annotations

import csv
import re
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import data_gen
from pacbayes_fl.data import class_labels, tables
from pacbayes_fl.data.archives import read_npz
from pacbayes_fl.data.scaling import settle, untouched
from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.study.data import (
    ScaledGroup,
    check_saved,
    load,
    load_saved,
    provenance,
    scale,
    to_saved,
)
from pacbayes_fl.study.file import Study
from tests.data.small_photos import write_clients
from tests.tiny import on_csv, rows, tiny, write_csv
from tests.tiny_images import tiny_images, write_root

CPU = torch.device("cpu")


def scaled(path: Path, raw_units: bool = False) -> tuple[ScaledGroup, tables.Group]:
    dataset = load(on_csv(write_csv(path / "rows.csv", rows())))
    shared = untouched(2) if raw_units else settle(dataset.groups["existing"].train, [None, None, "client"])
    return scale(dataset.groups["existing"], shared, CPU), dataset.groups["existing"]


def test_a_generator_is_given_its_options() -> None:
    dataset = load(tiny("data.options.seed=5"))
    made = data_gen.generate("polynomial", clients=4, new_clients=2, samples=7, test_samples=8, seed=5)
    assert {name: group.train.clients for name, group in dataset.groups.items()} == {"existing": 4, "new": 2}
    existing = dataset.groups["existing"]
    assert existing.train.size.tolist() == [7.0] * 4 and existing.test.size.tolist() == [8.0] * 4
    assert np.array_equal(existing.train.x[0, :, 0].numpy(), made.x[:7, 0])
    assert np.array_equal(existing.test.y[1].numpy(), made.y[15 + 7 : 30])
    assert dataset.provenance["arguments"]["seed"] == 5


def test_the_data_follow_the_seed_only_when_asked() -> None:
    def y(*sets: str) -> torch.Tensor:
        return load(tiny(*sets)).groups["existing"].train.y

    assert torch.equal(y("seed=1"), y("seed=2"))
    assert not torch.equal(y("seed=1", "data.follow_seed=true"), y("seed=2", "data.follow_seed=true"))
    assert torch.equal(y("seed=2", "data.follow_seed=true"), y("data.options.seed=2"))
    chosen = ("data.follow_seed=true", "data.options.seed=4")  # a seed of the data's own wins
    assert torch.equal(y("seed=1", *chosen), y("seed=2", *chosen))


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        (["data.options.client=3"], "[data] polynomial: polynomial has no option 'client'; nearest is 'clients'"),
        (["data.options.clients=0"], "[data] polynomial: clients must be a whole number of at least 1, is 0"),
        (
            ["data.source=polynomail"],
            "[data] source must be one of polynomial, pv-ew, pv-s, mnist, fashion-mnist, cifar10, femnist, emnist, "
            "a file or a folder of images, got 'polynomail' (did you mean 'polynomial'?",
        ),
        (
            ["data.source=rows.csv", "data.options.samples=3"],
            "[data] options are for generators, not for the file rows.csv",
        ),
        (["data.options.weather=$NO_SUCH_VARIABLE/a.csv"], "[data] the environment variable NO_SUCH_VARIABLE is not"),
        (["data.source=${NO_SUCH_VARIABLE}/a.csv"], "[data] the environment variable NO_SUCH_VARIABLE is not set"),
    ],
)
def test_what_cannot_be_loaded_is_refused(sets: list[str], text: str) -> None:
    with pytest.raises(StudyError) as caught:
        load(tiny(*sets))
    assert str(caught.value).startswith(text)


def test_none_is_none_for_a_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def generate(name: str, **options: Any) -> Any:
        given.append(options)
        return polynomial(clients=4, samples=7)

    polynomial = partial(data_gen.generate, "polynomial")
    monkeypatch.setattr(data_gen, "generate", generate)
    path = tmp_path / "pv.toml"
    path.write_text('[data]\nsource = "pv-s"\noptions = { samples = "none", seed = 4 }\n')
    for study in (Study.from_toml(path), Study.from_toml("pv-s-150", ["data.options.samples=none"])):
        load(study)
        assert Study.from_table(study.table()) == study
    assert given[0] == {"samples": None, "seed": 4} and given[1]["samples"] is None
    monkeypatch.undo()
    with pytest.raises(StudyError, match="samples must be a whole number of at least 1, is None"):
        load(tiny("data.options.samples=none"))


@pytest.mark.parametrize("name", ["pv-ew-150-bern", "pv-s-150-bern"])
def test_the_bern_studies_say_which_variable_they_need(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACBAYES_FL_DATA", raising=False)
    with pytest.raises(StudyError, match=r"PACBAYES_FL_DATA is not set.*export PACBAYES_FL_DATA="):
        load(Study.from_toml(name))


def test_a_file_is_found_through_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(tmp_path / "rows.csv", rows())
    monkeypatch.setenv("TINY_DATA", str(tmp_path))
    dataset = load(on_csv(Path("$TINY_DATA/rows.csv")))
    assert [column.name for column in dataset.features] == ["lag_1", "wind"]
    assert dataset.groups["existing"].train.size.tolist() == [6.0, 9.0, 5.0, 7.0]
    assert dataset.groups["new"].test.names == ("new_0", "new_1")
    with pytest.raises(DataError, match="there is no file"):
        load(on_csv(Path("$TINY_DATA/other.csv")))


def test_the_study_names_the_columns_and_the_share(tmp_path: Path) -> None:
    table = [
        {"house": row["client"], "lag_1": row["lag_1"], "wind": row["wind"], "power": row["y"]}
        for row in rows(sizes=(8, 12), new=())
    ]
    study = on_csv(
        write_csv(tmp_path / "rows.csv", table), "data.client=house", "data.target=power", "data.test.share=0.5"
    )
    dataset = load(study)
    assert dataset.target.name == "power"
    assert dataset.groups["existing"].test.size.tolist() == [4.0, 6.0]
    with pytest.raises(DataError, match="has no column 'client'"):
        load(on_csv(tmp_path / "rows.csv"))


def test_a_test_row_that_is_a_training_row_is_refused(tmp_path: Path) -> None:
    table = rows()
    table.append(table[0] | {"split": "test"})
    path = write_csv(tmp_path / "rows.csv", table)
    with pytest.raises(DataError, match="client 'existing_0': test row 3 is also a training row"):
        load(on_csv(path))
    assert load(on_csv(path, "data.duplicate_rows=allow")).groups["existing"].test.size.tolist() == [4.0, 3.0, 3.0, 3.0]


def test_scaling_is_by_each_clients_training_rows(tmp_path: Path) -> None:
    group, raw = scaled(tmp_path)
    for k, m in enumerate([6, 9, 5, 7]):
        x, y = raw.train.x[k, :m], raw.train.y[k, :m]
        torch.testing.assert_close(group.units.y_std[k], y.std(correction=0))
        torch.testing.assert_close(group.train.y[k, :m], (y - y.mean()) / y.std(correction=0))
        torch.testing.assert_close(group.train.x[k, :m], (x - x.mean(0)) / x.std(0, correction=0))
        torch.testing.assert_close(group.test.y[k], (raw.test.y[k] - y.mean()) / y.std(correction=0))
        torch.testing.assert_close(group.test.x[k], (raw.test.x[k] - x.mean(0)) / x.std(0, correction=0))
    assert not group.train.y[~group.train.mask].any() and not group.train.x[~group.train.mask].any()
    assert group.raw.train is not group.train and torch.equal(group.raw.test.y, raw.test.y)


def test_a_method_in_the_datas_own_units_gets_them_and_the_metrics_units_stay(tmp_path: Path) -> None:
    own, raw = scaled(tmp_path, raw_units=True)
    standard, _ = scaled(tmp_path)
    assert torch.equal(own.train.x, raw.train.x) and torch.equal(own.test.y, raw.test.y)
    assert torch.equal(own.units.y_std, standard.units.y_std) and torch.equal(own.units.x_mean, standard.units.x_mean)


def test_a_group_can_be_cut_to_some_clients(tmp_path: Path) -> None:
    group, _ = scaled(tmp_path)
    part = group.select(torch.tensor([2, 0]))
    assert part.train.names == part.test.names == part.raw.train.names == ("existing_2", "existing_0")
    assert part.train.x.shape == (2, 6, 2)
    assert torch.equal(part.train.y[1], group.train.y[0, :6])
    assert part.units.y_std.tolist() == [group.units.y_std[2].item(), group.units.y_std[0].item()]
    assert torch.equal(part.units.x_mean[0], group.units.x_mean[2])


def test_provenance_tells_one_split_from_another(tmp_path: Path) -> None:
    table = rows()
    path = write_csv(tmp_path / "rows.csv", table)
    before = provenance(load(on_csv(path)))
    assert (
        before.keys() == {"source", "cut", "test_rows", "file_sha256", "split_sha256"}
        and before["source"] == "rows.csv"
    )
    assert before["cut"] == {"by": "split", "column": "split", "last": None} and before["test_rows"] == "column split"
    assert provenance(load(on_csv(path))) == before
    with path.open(newline="") as file:
        assert len(list(csv.reader(file))) == len(table) + 1
    table[0]["split"] = "test"
    assert provenance(load(on_csv(write_csv(path, table))))["split_sha256"] != before["split_sha256"]
    assert len(provenance(load(tiny()))["sha256"]) == len(before["split_sha256"]) == 64


# labels and images ----------------------------------------------------------------------------------------------


def test_images_follow_the_seed_and_are_positions(tmp_path: Path) -> None:
    root = write_root(tmp_path)
    one, other = load(tiny_images(root)), load(tiny_images(root, "seed=4"))
    assert one.rows is not None and one.provenance["options"]["seed"] == 3
    assert provenance(one) == provenance(load(tiny_images(root)))
    assert provenance(one)["split_sha256"] != provenance(other)["split_sha256"]
    assert provenance(one)["sha256"] == provenance(other)["sha256"]
    fixed = [load(tiny_images(root, f"seed={seed}", "data.options.seed=8")) for seed in (1, 2)]
    assert provenance(fixed[0]) == provenance(fixed[1])


def test_an_excluded_client_of_ones_own_images_is_not_read(tmp_path: Path) -> None:
    write_clients(tmp_path / "photos", ("anna", "bob", "carl"))
    table = {"data": {"source": str(tmp_path / "photos"), "exclude_clients": ["bob"]}, "method": {"name": "fedavg"}}
    assert load(Study.from_table(table)).groups["existing"].train.names == ("anna", "carl")
    with pytest.raises(StudyError, match="exclude_clients is for the columns of a table, and 'mnist' is none"):
        load(Study.from_table({**table, "data": {"source": "mnist", "exclude_clients": ["bob"]}}))


def test_what_a_run_keeps_of_its_data_is_checked(tmp_path: Path) -> None:
    root = write_root(tmp_path)
    dataset = load(tiny_images(root))
    np.savez(tmp_path / "images.npz", **to_saved(dataset))  # type: ignore[arg-type]
    check_saved(tmp_path / "images.npz", dataset)
    with pytest.raises(DataError, match="client 'client_00': its rows are not those"):
        check_saved(tmp_path / "images.npz", load(tiny_images(root, "seed=4")))
    rows_ = load(tiny())
    np.savez(tmp_path / "rows.npz", **to_saved(rows_))  # type: ignore[arg-type]
    check_saved(tmp_path / "rows.npz", rows_)
    with pytest.raises(DataError, match=r"rows\.npz is not of a run on images"):
        check_saved(tmp_path / "rows.npz", dataset)
    assert load_saved(tiny(), tmp_path / "rows.npz").features == rows_.features
    with pytest.raises(DataError, match="there is no file"):
        read_npz(tmp_path / "none.npz")


def test_labels_stay_and_features_are_standardised(tmp_path: Path) -> None:
    table = [row | {"y": i % 3} for i, row in enumerate(rows())]
    study = Study.from_table(
        {
            "data": {"source": str(write_csv(tmp_path / "rows.csv", table)), "task": "classification"},
            "method": {"name": "fedavg"},
        }
    )
    dataset = load(study)
    assert dataset.classes == 3
    shared = settle(dataset.groups["existing"].train, [None, None, None])
    group = scale(dataset.groups["existing"], shared, CPU, torch.float32)
    assert torch.equal(group.train.y, dataset.groups["existing"].train.y) and group.train.y.dtype == torch.int64
    assert group.train.x.dtype == torch.float32
    x = dataset.groups["existing"].train.x[1, :9]
    expected = ((x - x.mean(0)) / x.std(0, correction=0)).float()
    torch.testing.assert_close(group.train.x[1, :9], expected)
    assert (group.units.y_mean == 0).all() and (group.units.y_std == 1).all()
    table.append(table[0] | {"split": "test"})
    write_csv(tmp_path / "rows.csv", table)
    with pytest.raises(DataError, match="client 'existing_0': test row 3 is also a training row"):
        load(study)


def test_a_validation_row_that_is_a_training_row_is_refused(tmp_path: Path) -> None:
    dataset = load(tiny())
    train = dataset.groups["existing"].train
    group = tables.Group(train, dataset.groups["existing"].test, train)
    np.savez(tmp_path / "a.npz", **tables.to_arrays(replace(dataset, groups={"existing": group})))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="client 'poly_00': validation row 0 is also a training row"):
        load(on_csv(tmp_path / "a.npz"))


def test_methods_that_advice_on_labels_names_learn_them() -> None:
    named = re.findall(r"'(\w+)'", class_labels.LEARN_LABELS)
    assert named and all("classification" in METHODS[name].learns for name in named)


def labelled_table(path: Path, values: list[float]) -> Study:
    rows = [{"client": f"c{at % 2}", "x": at + 0.5, "y": value} for at, value in enumerate(values)]
    return Study.from_table({"data": {"source": str(write_csv(path, rows)), "test": {"share": 0.5}}})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.0, 1, 2, 2, 1, 0, 1, 1], r"whole numbers 0 to 2, and .*numbers: data\.task = 'classification'"),
        ([1.0, 2, 3, 3, 1, 1, 2, 2], r"whole numbers 1 to 3, and .* where the table numbers them 0 to 2, data\.task"),
        ([-1.0, 1, 1, 1, -1, 1, -1, 1], r"-1 and 1 alone, and .* where the table numbers them 0 to 1, data\.task"),
    ],
)
def test_whole_numbers_that_look_like_classes_are_learned_as_numbers_with_a_warning(
    tmp_path: Path, values: list[float], words: str
) -> None:
    study = labelled_table(tmp_path / "digits.csv", values)
    with pytest.warns(UserWarning, match=f"column 'y' holds {words}"):
        assert load(study).classes is None


@pytest.mark.parametrize(
    ("values", "task"),
    [([0.0, 1, 2, 2, 1, 0, 1, 1], "regression"), ([0.0, 1, 2, 2, 1, 0, 1, 1], "classification")]
    + [(values, "auto") for values in ([0.0, 1, 2, 3, 4, 5, 6, 0], [0.5, 1, 2, 2, 1, 0, 1, 1], [2.0, 4, 6, 2, 4, 6])],
)
def test_other_numbers_and_those_that_are_meant_are_taken_in_silence(
    tmp_path: Path, values: list[float], task: Any
) -> None:
    study = labelled_table(tmp_path / "numbers.csv", values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", ".*in the order of the file for that of time|.*one and the same|.*extrapolation"
        )
        load(replace(study, data=replace(study.data, task=task)))
