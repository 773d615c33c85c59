"""Notebooks show short lines and tables with headers, in which names are text; data frames hold the same numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

import pacbayes_fl as fl
from pacbayes_fl.certificates.from_numbers import Numbers, certificate
from pacbayes_fl.errors import PacBayesFLError, StudyError
from pacbayes_fl.names import as_html
from pacbayes_fl.results import comparison
from pacbayes_fl.results.certificates import CertifiedClient, CertifiedRun
from pacbayes_fl.results.frames import frame
from tests.tiny import on_csv, rows, tiny, write_csv

HOSTILE = "<script>alert('x')</script>\x1b[2J & \"Zürich\""


class Cells(HTMLParser):
    """The tags and the texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.scopes: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.scopes += [value for name, value in attrs if name == "scope"]

    def handle_data(self, data: str) -> None:
        self.texts += [data] if data.strip() else []


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, object]:
    """Everything that a notebook shows, of a run whose clients' names are hostile."""
    root, table = tmp_path_factory.mktemp("shown"), rows()
    for row in table:
        row["client"] = f"{row['client']}{HOSTILE}" if row["client"] == "existing_1" else row["client"]
    study = on_csv(write_csv(root / "rows.csv", table))
    result = fl.run(study, root / "run")
    (root / "rows.csv").rename(root / "gone.csv")  # a saved run needs nothing but its folder
    trained = fl.open_run(root / "run")
    ask = [{name: row[name] for name in ("client", "lag_1", "wind")} for row in table]
    ridge = replace(result, method="ridge", clients=tuple(replace(row, metrics={}) for row in result.clients))
    lines = (CertifiedClient(f"house{HOSTILE}", "existing", 5, 0.1, 2.0, 0.9, 0.2, 4),)
    about = ("tiny", "pac-pfl", 0, "seeger", "Seeger's bound", "Gibbs risk", 0.0, 1.0, 0.05)
    return {
        "Result": result,
        "Comparison": comparison.Comparison([result, ridge]),
        "Trained": trained,
        "Forecast": fl.forecast(trained, write_csv(root / "ask.csv", ask)),
        "ClientBatch": trained.groups["existing"].train,
        "CertifiedRun": CertifiedRun(*about, lines, {"existing": []}),
        "Certificate": certificate(
            "seeger", Numbers(n=100, delta=0.05, risk=0.1, kl=3.0, prior="split", independent=True)
        ),
    }


NAMES = ("Result", "Comparison", "Trained", "Forecast", "ClientBatch", "CertifiedRun", "Certificate")


@pytest.mark.parametrize("name", NAMES)
def test_an_object_is_one_short_line(shown: Mapping[str, object], name: str) -> None:
    text = repr(shown[name])
    assert len(text) < 500 and text.isprintable()
    assert name == "Certificate" or text.startswith(f"{name}(")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "Trained"])
def test_a_notebook_shows_a_table_with_headers_in_which_names_are_text(shown: Mapping[str, object], name: str) -> None:
    text = shown[name]._repr_html_()  # type: ignore[attr-defined]
    page = Cells(text)
    assert set(page.tags) <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert page.tags.count("caption") == 1 and {"col", "row"} == set(page.scopes)
    assert "<script" not in text and "\x1b" not in text and len(text) < 20_000
    hostile = name in ("Forecast", "ClientBatch", "CertifiedRun")
    assert any("<script>alert('x')</script>" in one for one in page.texts) == hostile


def test_a_long_table_says_how_long_it_is() -> None:
    text = as_html("t", ("name", "x"), [[f"c{k}", float(k)] for k in range(40)], most=3)
    page = Cells(text)
    assert page.tags.count("tr") == 4 and "t (the first 3 of 40 rows)" in page.texts
    assert page.texts[-6:] == ["c0", "0", "c1", "1", "c2", "2"]


def test_numbers_that_are_none_are_dashes() -> None:
    assert Cells(as_html("t", ("a", "b", "c"), [["x", math.nan, None]])).texts[-3:] == ["x", "-", "-"]


def test_data_frames_hold_what_the_objects_hold(shown: Mapping[str, object]) -> None:
    pandas = pytest.importorskip("pandas", reason="needs the extra tables")
    result = shown["Result"]
    assert isinstance(result, fl.Result)
    clients = result.to_pandas()
    for group in ("existing", "new"):
        own = clients[clients["group"] == group]
        pandas.testing.assert_series_equal(
            own["rsmse"].reset_index(drop=True), pandas.Series(result.column(group, "rsmse"), name="rsmse")
        )
    rounds = result.to_pandas("rounds")
    assert rounds["round"].tolist() == [record.round for record in result.rounds]
    assert rounds["log_evidence"].tolist() == [record.values["log_evidence"] for record in result.rounds]
    assert rounds["rsmse"].isna().sum() == sum("rsmse" not in record.values for record in result.rounds)
    runs = shown["Comparison"]
    assert isinstance(runs, comparison.Comparison)
    cells, table = comparison.table(runs, ["rsmse"]), runs.to_pandas()
    assert table[table["metric"] == "rsmse"]["mean"].tolist() == [cell.mean for cell in cells]
    forecast = shown["Forecast"]
    assert isinstance(forecast, fl.Forecast)
    assert forecast.to_pandas()["mean"].tolist() == forecast.predicted["mean"].tolist()
    certified = shown["CertifiedRun"]
    assert isinstance(certified, CertifiedRun)
    assert certified.to_pandas()[["bound", "valid"]].to_numpy().tolist() == [[0.9, True]]
    with pytest.raises(StudyError, match="'clients' or 'rounds', got 'row'"):
        result.to_pandas("row")  # type: ignore[arg-type]


def test_without_pandas_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PacBayesFLError, match=r"pip install pandas"):
        frame({"a": [1]})


def test_compare_gives_a_comparison_of_its_runs_and_an_empty_one_is_a_line() -> None:
    runs = fl.compare([tiny("federation.rounds=1"), tiny("method.name=ridge")], seeds=2)
    assert repr(runs) == "Comparison(tiny: pac-pfl, ridge; 4 runs, 2 seeds)"
    assert len(runs) == 4 and "ridge" in runs._repr_html_()
    assert repr(comparison.Comparison()) == "Comparison()" and "no runs" in comparison.Comparison()._repr_html_()
    assert torch.tensor(runs.to_pandas()["seeds"].tolist()).eq(2).all()
