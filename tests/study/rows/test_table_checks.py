"""Features that tell of rows which a guarantee keeps apart are refused before anything is trained."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.division import Cut
from pacbayes_fl.errors import DataError, PrivacyError, StudyError
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment import roster
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows.table_checks import (
    beyond_training,
    copied_clients,
    copied_target,
    order_of_file,
    single_rows,
)
from pacbayes_fl.study.run import run
from pacbayes_fl.study.search.path import deal
from tests.study.analyst import data, houses

ROOFS = {"roof": ["flat", "south", "west"]}
PLAIN: dict[str, Any] = {"features": ["cloud"], "client_features": [], "horizon": "none"}


def study(folder: Path, sets: tuple[str, ...] = (), **more: Any) -> Study:
    path = folder / "houses.csv"
    houses(3).to_csv(path, index=False)
    return Study.from_table({"data": data(path, **more)}, "houses", sets)


def test_a_private_run_is_told_its_categories(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="categories of roof would be the words of all clients' rows"):
        load(study(tmp_path, ("privacy.epsilon=5",), **PLAIN))
    with pytest.warns(UserWarning, match="lack a value"):
        dataset = load(study(tmp_path, ("privacy.epsilon=5",), **PLAIN, categories=ROOFS))
    assert [column.name for column in dataset.features][1:] == ["roof=flat", "roof=south", "roof=west"]


PRIVATE = ("privacy.epsilon=5", "privacy.clip=1", "privacy.randomness=simulation", "privacy.delta=1e-3")


def labelled(folder: Path, largest: int, *sets: str, **more: Any) -> Study:
    """Write labels 0 and 1, of which the last of the last client is another."""
    lines = [f"c{k},{k + i / 8},{i % 2}" for k in range(4) for i in range(8)]
    path = folder / "labels.csv"
    path.write_text("\n".join(["client,x,y", *lines[:-1], f"{lines[-1][:-1]}{largest}"]) + "\n")
    about = {"source": str(path), "task": "classification", **more}
    parts = {"method": {"name": "fedavg", "weighting": "uniform"}, "federation": {"rounds": 1, "device": "cpu"}}
    return Study.from_table({"data": about, **parts}, "labels", sets)


def test_a_private_run_is_told_its_classes(tmp_path: Path) -> None:
    """Two federations that differ in one client's labels have one number of them, in the folder too."""
    for largest in (1, 2):
        with pytest.raises(PrivacyError, match=r"classes = 'none' counts .*no epsilon covers \(.*data\.classes = 10"):
            load(labelled(tmp_path, largest, *PRIVATE))
        with pytest.raises(PrivacyError, match=r"classes = 'none' counts"):
            roster.check(labelled(tmp_path, largest, *PRIVATE))
        out = tmp_path / str(largest)
        run(labelled(tmp_path, largest, *PRIVATE, classes=5), out)
        assert tables.read(out / "data.npz").classes == load(labelled(tmp_path, largest, classes=5)).classes == 5
        assert load(labelled(tmp_path, largest)).classes == largest + 1
    with pytest.raises(DataError, match=r"client 'c3': label 2 is none of the 2 classes .* states \(state as many"):
        load(labelled(tmp_path, 2, classes=2))
    with pytest.raises(StudyError, match=r"classes = 3 is of labels, and task = 'auto' learns numbers"):
        load(labelled(tmp_path, 2, classes=3, task="auto"))
    with pytest.raises(StudyError, match=r"classes is for the columns of a table, and 'polynomial' is none"):
        load(labelled(tmp_path, 2, classes=3, source="polynomial"))
    for wrong in (1, 0, -1, 2.5, 2**16 + 1, True, "many"):
        with pytest.raises(StudyError, match=r"\[data\] classes must be"):
            labelled(tmp_path, 2, classes=wrong)


def test_so_is_one_on_rows_of_a_program(tmp_path: Path) -> None:
    rows = {name: (torch.rand(8, 1), torch.arange(8.0) % 2) for name in ("a", "b")}
    with pytest.raises(PrivacyError, match=r"classes = 'none' counts"):
        load(labelled(tmp_path, 1, *PRIVATE).with_instances(data=rows))
    stated = labelled(tmp_path, 1, *PRIVATE, classes=4)
    assert load(stated.with_instances(data=rows)).classes == 4
    with pytest.raises(DataError, match=r"classes = 4, and the data set that was given has 2"):
        load(stated.with_instances(data=tables.of_clients(rows, task="classification")))


@pytest.mark.parametrize(
    ("more", "fragment"),
    [
        (PLAIN, "categories of roof are the words of all training rows, also of those that a certificate needs"),
        ({"categories": ROOFS}, "features has 'lag:24h': rows are made of each other"),
        (PLAIN | {"categories": ROOFS, "missing": "median"}, "missing = 'median': rows are made of each other"),
    ],
)
def test_rows_of_a_bound_are_made_of_nothing_else(tmp_path: Path, more: dict[str, Any], fragment: str) -> None:
    with pytest.raises(StudyError, match=fragment):
        load(study(tmp_path, ("report.certify.scheme=split",), **more))


def test_the_order_of_the_file_is_said_where_it_decides() -> None:
    said = order_of_file("t.csv", Cut(by="file", column=None, last="0.25"))
    assert said is not None and "data.time names a column of times" in said
    for cut in (Cut(by="split", column="split", last=None), Cut(by="time", column="order of the file", last="0.25")):
        assert order_of_file("t.csv", cut) is None
    assert order_of_file("t.npz", None) is None


def test_a_client_that_has_one_row_or_repeats_one_is_named(tmp_path: Path) -> None:
    """By what is left to train on: their test rows differ, and tell their federation nothing."""
    path = tmp_path / "rows.csv"
    rows = [f"many,{k},{k % 3},{'test' if k == 5 else 'train'}" for k in range(6)]
    rows += [
        "one,1,2,train",
        *["again,3,1,train"] * 4,
        *(f"{name},2,{k},test" for k, name in enumerate(("one", "again"))),
    ]
    path.write_text("client,x,y,split\n" + "\n".join(rows) + "\n", encoding="utf-8")
    part = {"source": str(path), "task": "regression"}
    with pytest.warns(UserWarning, match="one, again: all training rows are one and the same, or there is but one"):
        dataset = load(Study.from_table({"data": part}, "rows"))
    assert single_rows(dataset) is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pacbayes_fl.study.rows.table_checks.one_row", lambda batch: batch.size > 6)
        assert single_rows(dataset) is None


def test_a_run_is_told_which_clients_are_copies_and_how_to_leave_them_out(tmp_path: Path) -> None:
    random, path = np.random.default_rng(0), tmp_path / "rows.csv"
    table = pd.DataFrame({"client": np.repeat(["a", "b"], 8), "x": random.normal(size=16), "y": random.normal(size=16)})
    copy = table[table.client == "a"].assign(client="c").sample(frac=1.0, random_state=0)
    pd.concat((table, copy)).to_csv(path, index=False)
    one = Study.from_table({"data": {"source": str(path), "task": "regression"}}, "rows")
    with pytest.warns(UserWarning, match=r"a and c: the same rows under several names.*exclude_clients = \['c'\]"):
        dataset = load(one)
    assert copied_clients(dataset) is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        left = load(Study.from_table({"data": {"source": str(path), "exclude_clients": ["c"]}}, "rows"))
    assert copied_clients(left) is None and not [one for one in caught if "several names" in str(one.message)]


@pytest.mark.parametrize(("first", "said"), [(0, None), (10, None), (14, "'day' (67%)"), (-40, "'day' (100%)")])
def test_features_in_which_most_test_rows_lie_beyond_all_training_rows_are_named(
    first: int, said: str | None, tmp_path: Path
) -> None:
    """Training rows are of days 0 to 9 and 10 to 16, and nine test rows of each client begin at another one."""
    random, path, table = np.random.default_rng(0), tmp_path / "days.csv", []
    for client, days in (("a", range(10)), ("b", range(10, 17))):
        for split, numbers in (("train", days), ("test", range(first, first + 9))):
            table += [
                {"client": client, "split": split, "day": day, "x": random.uniform(-1, 1) / (2 - (split == "train"))}
                for day in numbers
            ]
    pd.DataFrame(table).assign(y=lambda rows: random.normal(size=len(rows))).to_csv(path, index=False)
    one = Study.from_table({"data": {"source": str(path), "features": ["day", "x"]}}, "days")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        remark = beyond_training(load(one))
    assert (remark is None) == (said is None)
    if remark is not None and said is not None:
        assert said in remark and "'x'" not in remark and remark in [str(one.message) for one in caught]


def test_a_table_without_test_rows_has_none_beyond(tmp_path: Path) -> None:
    path = tmp_path / "days.csv"
    pd.DataFrame({"client": ["a"] * 9 + ["b"] * 9, "day": [*range(9)] * 2, "y": range(18)}).assign(x=1.0).to_csv(path)
    dataset = load(Study.from_table({"data": {"source": str(path), "time": "day"}}, "days"))
    group = dataset.groups["existing"]
    nothing = ClientBatch.stack(
        [(x[:0], y[:0]) for x, y in zip(group.test.x, group.test.y, strict=True)], ["a", "b"], group.test.ids
    )
    times = tables.Times(group.times.train, group.times.test[:, :0]) if group.times is not None else None
    bare = replace(dataset, groups={"existing": tables.Group(group.train, nothing, times=times)}, provenance={})
    assert beyond_training(bare) is None and deal(bare, 0, 1) is not None


def test_a_run_is_told_which_feature_is_its_target(tmp_path: Path) -> None:
    random, path = np.random.default_rng(0), tmp_path / "rows.csv"
    table = pd.DataFrame({"client": ["a", "b"] * 15, "x": random.normal(size=30), "y": random.normal(size=30)})
    table.assign(wh=1000 * table.y).to_csv(path, index=False)
    with pytest.warns(UserWarning, match="'wh' gives the target 'y' of every row exactly.*: what is known only with"):
        copied = load(Study.from_table({"data": {"source": str(path), "task": "regression"}}, "rows"))
    assert copied_target(copied) is not None
    left = Study.from_table({"data": {"source": str(path), "task": "regression", "features": ["x"]}}, "rows")
    assert copied_target(load(left)) is None
