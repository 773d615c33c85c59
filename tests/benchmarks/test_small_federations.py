"""Federations beside which defaults are measured: what they are named for, and a table of two of them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.small_federations import KINDS, NEW, TEST, diabetes, made, main


@pytest.mark.parametrize("name", KINDS)
def test_a_federation_has_the_clients_and_rows_that_it_says(name: str) -> None:
    kind, table = KINDS[name], made(name, 0)
    counts = table.groupby(["group", "client", "split"]).size()
    assert len(counts["existing"]) == 2 * kind.clients and len(counts["new"]) == 2 * NEW
    assert set(counts[:, :, "train"]) == {kind.rows} and set(counts[:, :, "test"]) == {TEST}
    assert table.equals(made(name, 0)) and not table.equals(made(name, 1))
    constant = table.groupby("client")["y"].nunique() == 1
    assert constant.sum() == (name == "constant")


def test_diabetes_is_dealt_out_whole() -> None:
    table = diabetes(0)
    assert len(table) == 442 and table["client"].nunique() == 16
    assert table[table["group"] == "new"]["client"].nunique() == 4
    share = (table["split"] == "train").groupby(table["client"]).mean()
    assert np.all(np.abs(share - 0.5) < 0.05)


def test_the_table_has_a_line_for_every_group_of_all_draws(capsys: pytest.CaptureFixture[str]) -> None:
    main(["linear-few", "--rounds", "3", "--seeds", "0", "1", "--method", "pfedgp", "--set", "federation.rounds=2"])
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in lines] == [["| linear-few", "existing"], ["| linear-few", "new"]]
    assert "pfedgp" in head and all("±" in line and line.endswith("| 2, 2 |") for line in lines)
    assert len({line.count("|") for line in (head, *lines)}) == 1
