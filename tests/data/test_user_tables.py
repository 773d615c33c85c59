"""Tables of users: what is read, and what is refused and where."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pacbayes_fl.data import user_tables
from pacbayes_fl.data.layout import Layout, Missing
from pacbayes_fl.errors import DataError
from tests.data.small_tables import CSV, LABELLED, without, write


def test_labels_may_be_blank_only_where_they_are_to_be_predicted(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(LABELLED + "b,4.5,\n")
    y = user_tables.read_table(path, task="classification").clients["b"][1]
    assert y[:2].tolist() == [1, 0] and y[2].isnan() and y.dtype == torch.float64


def test_columns_have_the_names_and_the_order_asked_for(tmp_path: Path) -> None:
    text = without(CSV, "split", "group").replace("client,", "house,").replace(",y,", ",power,")
    table = user_tables.read_table(write(tmp_path, text), Layout("house", "power"), ["wind", "sun"])
    assert table.features == ("wind", "sun") and table.clients["b"][0].tolist() == [[0.25, 2.0], [6.0, 5.0]]
    assert table.split is None and table.new == ()
    some = user_tables.read_table(write(tmp_path, text), Layout("house", "power"), ["wind"])
    assert some.clients["b"][0].tolist() == [[0.25], [6.0]]


def test_a_table_to_predict_on_needs_no_target_and_no_client(tmp_path: Path) -> None:
    path = write(tmp_path, without(CSV, "y", "client", "split", "group"))
    table = user_tables.read_table(path, need_target=False, default_client="house_07")
    assert list(table.clients) == ["house_07"]
    x, y = table.clients["house_07"]
    assert x.shape == (6, 2) and y.isnan().all()
    with pytest.raises(DataError, match=r"has no column 'y' \(it has sun, wind, client\)"):
        user_tables.read_table(path, default_client="house_07")


def test_a_blank_target_is_one_to_predict(tmp_path: Path) -> None:
    _, y = user_tables.read_table(write(tmp_path, CSV.replace("3.0,30", "3.0,"))).clients["a"]
    assert y[0] == 10 and y[1].isnan() and y[2] == 60
    _, y = user_tables.read_table(write(tmp_path, CSV.replace("3.0,30", "3.0,nan"))).clients["a"]
    assert y.isnan().tolist() == [False, True, False]
    with pytest.raises(DataError, match=r"client 'a': .*table\.csv line 4, column 'y': inf is not a finite number"):
        user_tables.read_table(write(tmp_path, CSV.replace("3.0,30", "3.0,inf")))


def test_a_column_without_a_name_is_missed_like_any_other(tmp_path: Path) -> None:
    path = write(tmp_path, "client,x,y\na,1,2\n")
    with pytest.raises(DataError, match=r"table\.csv has no column '' \(it has client, x, y\)"):
        user_tables.read_table(path, made=["", "x"], need_target=False)


def test_columns_that_mark_rows_and_clients_may_have_other_names_or_be_none(tmp_path: Path) -> None:
    path = write(tmp_path, CSV.replace("split", "fold").replace("group", "kind"))
    renamed = user_tables.read_table(path, Layout(split="fold", group="kind"))
    usual = user_tables.read_table(write(tmp_path, CSV))
    assert renamed.features == usual.features and renamed.new == usual.new == ("late",)
    assert renamed.split is not None and renamed.split["a"].tolist() == [False, True, False]
    plain = CSV.replace("existing", "1").replace("new", "2").replace("train", "3").replace("test", "4")
    path = write(tmp_path, plain)
    table = user_tables.read_table(path, Layout(split=None, group=None))
    assert table.features == ("sun", "wind", "split", "group") and table.split is None and table.new == ()
    for key, other in (("split", Layout(group=None)), ("group", Layout(split=None))):
        with pytest.raises(DataError, match=rf"{key} must be .*, got '\d' \(data\.{key} = 'none' where it is a column"):
            user_tables.read_table(path, other)


def test_client_names_are_words_even_when_they_look_like_numbers(tmp_path: Path) -> None:
    table = user_tables.read_table(write(tmp_path, 'client,x,y\n007,1,2\n"7",1,2\n"a,b",1,2\n'))
    assert list(table.clients) == ["007", "7", "a,b"]


@pytest.mark.parametrize("missing", ["refuse", "drop", "median"])
def test_a_column_without_any_value_is_no_feature_and_costs_no_row(tmp_path: Path, missing: Missing) -> None:
    """Unless the study names it: then it was wanted, and every row lacks it."""
    path = tmp_path / "rows.csv"
    path.write_text("client,wind,remark,y\n" + "".join(f"a,{k},{'-' if k else ''},{2 * k}\n" for k in range(6)))
    with pytest.warns(UserWarning, match="no row has a value of remark, which becomes no feature"):
        table = user_tables.read_table(path, Layout(missing=missing))
    assert table.features == ("wind",)
    assert len(user_tables.without_gaps(table, Layout(missing=missing)).clients["a"][1]) == 6
    if missing == "drop":
        named = Layout(missing=missing, features=("wind", "remark"))
        with pytest.warns(UserWarning, match=r"6 of 6 rows lack a value and are left out: a 6 \(remark\)"):
            user_tables.without_gaps(user_tables.read_table(path, named), named)


def test_a_column_of_remarks_is_told_from_one_with_gaps(tmp_path: Path) -> None:
    """Nobody is led to drop the rows that have no remark, and who drops them is told which column costs them."""
    path = tmp_path / "rows.csv"
    path.write_text("client,wind,remark,y\n" + "".join(f"a,{k},{'new pump' if k == 4 else ''},{k}\n" for k in range(6)))
    for missing in ("refuse", "drop"):
        with pytest.raises(DataError, match=r"column 'remark': .* is not a number \(data\.categorical names"):
            user_tables.read_table(path, Layout(missing=missing))
    named = Layout(missing="drop", categorical=("remark",))
    with pytest.warns(UserWarning, match=r"5 of 6 rows .*; remark alone costs 5: data\.features names"):
        user_tables.without_gaps(user_tables.read_table(path, named), named)
    path.write_text("client,wind,y\na,,1\na,2,1\na,3,1\n")
    with pytest.raises(DataError, match=r"column 'wind': '' is not a number \(data\.missing = 'drop'"):
        user_tables.read_table(path, Layout())


def test_targets_that_are_words_are_refused_with_how_labels_are_written(tmp_path: Path) -> None:
    path = tmp_path / "words.csv"
    path.write_text(
        "client,x,y\n" + "".join(f"c{k},{i},{'good' if i % 2 else 'bad'}\n" for k in range(2) for i in range(6))
    )
    with pytest.raises(
        DataError,
        match=r"'bad' is not a number \(classes are .* in the table: 0 for 'bad', 1 for 'good', as pandas.*pfedbayes",
    ):
        user_tables.read_table(path, Layout())
