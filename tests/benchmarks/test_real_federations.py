"""Real federations: what their clients are, that no row is lost, and a table of one of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks import real_federations
from benchmarks.panels import half_width
from benchmarks.real_federations import FEDERATIONS, dealt, main


@pytest.mark.parametrize(("name", "clients", "rows"), [("cancer", 8, 569), ("wine", 6, 178)])
def test_a_federation_has_all_rows_of_its_table(name: str, clients: int, rows: int) -> None:
    read, task = FEDERATIONS[name]
    check(read(), task, clients, rows)


def check(known: pd.DataFrame, task: str, clients: int, rows: int) -> None:
    table = dealt(known, 0, task)
    assert len(table) == rows and table["client"].nunique() == clients and not table.isna().to_numpy().any()
    assert table[table["group"] == "new"]["client"].nunique() == max(1, clients // 6)
    assert table.groupby("client")["split"].nunique().eq(2).all()
    assert not dealt(known, 1, task).equals(table)


def test_the_weather_of_tomorrow_is_the_days_after() -> None:
    pytest.importorskip("pvlib", reason="needs the extra pv")
    table = real_federations.weather()
    check(table, "regression", 36, 1059)
    may = table[table["client"] == "miami_05"]
    np.testing.assert_array_equal(may["y"].to_numpy()[:-1], may["irradiation"].to_numpy()[1:])
    assert len(may) == 30 and 3 < may["irradiation"].mean() < 8 and 20 < may["temperature"].mean() < 30


def test_intervals_over_few_clients_are_by_student_s_t() -> None:
    known = np.array([0.1, 0.3, -0.05, 0.2])
    assert real_federations._paired(np.append(known, np.nan)) == f"{known.mean():+.3f} ± {half_width(known):.3f}"
    assert real_federations._paired(known[:1]) == "-"


def test_the_table_has_a_line_for_every_method_and_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_federations, "METHODS", {"classification": ("local", "fedavg")})
    own = real_federations.fl.Study.from_table
    monkeypatch.setattr(
        real_federations.fl.Study,
        "from_table",
        lambda table: own(table, sets=["federation.rounds=1", "method.steps=1"]),
    )
    main(["wine", "--seeds", "0", "1"])
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1:3] for line in lines] == [
        [group, method] for group in ("existing", "new") for method in ("local", "fedavg")
    ]
    assert len({line.count("|") for line in (head, *lines)}) == 1 and all("±" in line for line in lines[1::2])
