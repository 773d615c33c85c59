import json
import math
import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len

from pacbayes_fl.cli import output
from pacbayes_fl.cli.layout import number
from pacbayes_fl.cli.output import (
    give_forecast,
    print_cells,
    print_certificates,
    print_comparison,
    print_metric_settings,
    print_rows,
    print_table,
    print_too_seldom,
)
from pacbayes_fl.names import shortened
from pacbayes_fl.results.certificates import CertifiedClient, CertifiedRun
from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.comparison import Cell
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.serving.forecast import Forecast
from tests.hostile import NAMES

Captured = pytest.CaptureFixture[str]


def test_predictions_are_csv_or_json_or_a_file(capsys: Captured, tmp_path: Path) -> None:
    forecast = Forecast(
        {"client": ["a,b", "a,b"], "hour": [6, 7]}, ["a,b", "a,b"], {"mean": torch.tensor([1.5, math.nan])}, 12
    )
    lines = 'client,hour,mean,round\n"a,b",6,1.5,12\n"a,b",7,,12\n'
    give_forecast(forecast, Namespace(json=False, out=None))
    assert capsys.readouterr() == (lines, "")
    give_forecast(forecast, Namespace(json=True, out=tmp_path / "f.csv"))
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"a,b": {"mean": [1.5, None], "round": 12}}
    assert captured.err == f"{tmp_path / 'f.csv'}: 2 rows of 1 client\n"
    assert (tmp_path / "f.csv").read_text() == lines


def test_a_table_shows_mean_interval_median_and_the_worst_client(capsys: Captured) -> None:
    values = ({"rsmse": 1.0, "ce": math.nan}, {"rsmse": 2.0, "ce": math.nan}, {"rsmse": 6.0, "ce": math.nan})
    rows = tuple(ClientRow(k, f"c{k}", "existing", 3, one) for k, one in enumerate(values))
    print_table(Result("s", "ridge", 4, "regression", clients=rows))
    title, names, group, row, empty, odd = capsys.readouterr().out.splitlines()
    assert title == "s, ridge, seed 4, round 0" and group == "existing, 3 clients"
    assert names.split() == ["over", "clients", "mean", "[95", "%", "interval]", "median", "worst", "client"]
    assert row.split() == ["rsmse", "3.000", "[1.000,", "6.000]", "2.000", "c2", "6.000"]
    assert empty.split() == ["ce", "-", "[-,", "-]", "-"]
    assert odd == "existing ce: mean over 0 of 3 clients; c0: nan, c1: nan, c2: nan"
    print_table(Result("s", "ridge", 4, "regression", clients=rows, labels={"group_sizes": {"existing": 5}}))
    assert capsys.readouterr().out.splitlines()[2] == "existing, 3 of 5 clients"


def test_methods_stand_below_each_other_by_metric_and_group(capsys: Captured) -> None:
    cells = [
        Cell("a", "new", "rsmse", 0.5, 0.25, 0.75, 0.5, 3, round="12", worst=0.9, worst_client="c7"),
        Cell("a", "new", "ce", math.nan, 0.0, 0.0, 0.0, 3),
        Cell("b", "new", "rsmse", 0.125, 0.0, 1.0, 0.0, 3, worst=0.2, worst_client="c1"),
    ]
    print_cells(cells)
    said, _, rsmse, a, b, ce, empty, rounds = capsys.readouterr().out.splitlines()
    assert said == "over clients and 3 seeds, intervals by the bootstrap"
    assert (rsmse, ce) == ("rsmse, new clients", "ce, new clients")
    assert a.split() == ["a", "0.500", "[0.250,", "0.750]", "0.500", "c7", "0.900"] and b.split()[0] == "b"
    assert rounds == "scored at round: a 12"
    assert empty.split() == ["a", "-", "[0.000,", "0.000]", "0.000"]


def test_a_table_says_from_which_damaged_rounds_it_fell_back(capsys: Captured) -> None:
    labels = {"round": 8, "fell_back": ["state.json of round 12 is damaged; using round 8"]}
    print_table(Result("s", "ridge", 4, "regression", (RoundRecord(12, 3),), labels=labels))
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "s, ridge, seed 4, round 8"
    assert out[-1] == "fell back: state.json of round 12 is damaged; using round 8"


def test_a_table_of_classifiers_says_what_other_rules_would_choose(capsys: Captured) -> None:
    metrics = {"pm.accuracy": 0.5, "pm.mean_weights.accuracy": 0.6, "gm.ece": 0.125}
    rows = tuple(ClientRow(k, f"c{k}", "existing", 3, metrics) for k in range(2))
    chosen = {"pm": {"best_validation": {"round": 20, "accuracy": 0.75, "rule": "by validation rows"}}}
    result = Result("s", "bpfed", 4, "classification", clients=rows, labels={"selections": chosen})
    print_table(result)
    _, _, _, accuracy, ece, rule = capsys.readouterr().out.splitlines()
    assert accuracy.split()[:2] == ["pm.accuracy", "0.500"] and ece.split()[:2] == ["gm.ece", "0.125"]
    assert rule == "pm.best_validation: accuracy 0.7500 at round 20, mean weights (by validation rows)"


def test_tables_of_classifiers_say_how_many_bins(capsys: Captured) -> None:
    rows = (ClientRow(0, "c", "existing", 3, {"pm.ece": 0.125}),)
    runs = [Result("s", "a", 4, "classification", clients=rows, labels={"calibration_bins": b}) for b in (20, 10, 20)]
    print_table(runs[0])
    assert capsys.readouterr().out.splitlines()[-1] == "ece and mce: 20 bins of confidence"
    print_metric_settings(runs)
    assert capsys.readouterr().out == "ece and mce: 10 or 20 bins of confidence\n"
    print_metric_settings([Result("s", "ridge", 4, "regression")])
    assert not capsys.readouterr().out


def test_intervals_that_hold_too_seldom_are_told_below_a_table_and_not_as_settings(capsys: Captured) -> None:
    rows = (ClientRow(0, "c", "existing", 3, {"rsmse": 0.125, "coverage_95": 0.5}),)
    results = [Result("s", "ridge", 4, "regression", clients=rows)]
    print_metric_settings(results)
    assert not capsys.readouterr().out
    print_too_seldom(results)
    said = capsys.readouterr().out
    assert said.startswith("95 % intervals of ridge hold for 50%")
    for print_all in (lambda: print_table(results[0]), lambda: print_comparison(results)):
        print_all()
        assert capsys.readouterr().out.endswith(said)


def test_whom_a_mean_leaves_out_is_said_once_for_metrics_that_agree_and_shortened(capsys: Captured) -> None:
    rows = [ClientRow(k, f"c{k}", "existing", 3, {"rsmse": math.nan, "ce": math.nan, "nlpd": 1.0}) for k in range(8)]
    rows.append(ClientRow(9, "c9", "existing", 3, {"rsmse": 1.0, "ce": 2.0, "nlpd": math.inf}))
    print_table(Result("s", "ridge", 4, "regression", clients=tuple(rows)))
    assert capsys.readouterr().out.splitlines()[6:] == [
        "existing rsmse, ce: mean over 1 of 9 clients; c0: nan, c1: nan, c2: nan, c3: nan, c4: nan and 3 more",
        "existing nlpd: mean over 9 of 9 clients; c9: inf",
    ]


def test_a_table_says_which_rows_are_test_rows_and_what_is_scaled_in_another_way(capsys: Captured) -> None:
    rows = (ClientRow(0, "c", "existing", 3, {"rsmse": 0.125}),)
    labels = {"test_rows": "column split", "scaling": {"across clients": "cap", "own units": "y"}}
    print_table(Result("s", "a", 4, "regression", clients=rows, labels=labels))
    said = ["test rows: column split", "scaled across clients: cap", "not scaled: y"]
    assert capsys.readouterr().out.splitlines()[4:] == said


def test_a_comparison_says_in_which_runs_columns_are_scaled_in_another_way(capsys: Captured) -> None:
    """Where all scale them alike no run is named, as below the table of one; seeds where those of a method differ."""
    runs = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    for whose, said in (
        (runs, ""),
        (runs[:2], ", in a"),
        ([*runs[:2], runs[3]], ", in a, b seed 1"),
        ([runs[0]], ", in a seed 0"),
    ):
        scaled = {True: {"scaling": {"across clients": "cap"}}, False: {}}
        print_rows([Result("s", *run, "regression", labels=scaled[run in whose]) for run in runs])
        assert capsys.readouterr().out == f"scaled across clients{said}: cap\n"
    many = [Result("s", f"m{k}", 0, "regression", labels=scaled[k > 0]) for k in range(9)]
    print_rows(many)
    assert capsys.readouterr().out == "scaled across clients, in m1, m2, m3, m4, m5 and 3 more: cap\n"


# on a terminal --------------------------------------------------------------------------------------------------


@pytest.fixture(params=[60, 80, 120])
def lines(
    request: pytest.FixtureRequest, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Give what was printed on a terminal of some columns, of which no line of a table is wider."""
    monkeypatch.setattr("pacbayes_fl.cli.output.room", lambda: request.param)

    def read(part: slice = slice(None)) -> list[str]:
        result = capsys.readouterr().out.splitlines()[part]
        assert all(cell_len(line) <= request.param for line in result), result
        return result

    return read


@pytest.mark.law
def test_a_runs_table_fits(lines: Callable[..., list[str]]) -> None:
    """With clients of any name and numbers of any size; every number is whole, and the worst client is named."""
    numbers = (0.5, -12345.678, 1e-9, 99999.9994, -3.2e123, 7.0)
    for client in NAMES.values():
        for value in numbers:
            metrics = {name: value for name in ("rsmse", "ce", "nlpd", "crps", "rmse_raw")}
            rows = (ClientRow(0, client, "existing", 3, metrics), ClientRow(1, "b", "existing", 3, {}))
            print_table(Result("s" * 90, "pac-pfl-bnn", 2**32 - 1, "regression", clients=rows))
            result = lines()
            assert result[0].endswith("pac-pfl-bnn, seed 4294967295, round 0") and result[0].startswith("sss")
            assert " ".join(result).count(number(value)) >= 5 * 3
            ends = shortened(client, 6)
            assert sum(ends[0] in line and line.endswith(number(value)) for line in result) >= 5


def test_a_comparisons_table_fits(lines: Callable[..., list[str]]) -> None:
    for method in (*NAMES.values(), "fedsi fraction=0.03"):
        for value in (0.5, -12345.678, 1e123):
            cells = [
                Cell(name, "new", metric, value, value, value, value, 3, worst=value, worst_client=method)
                for name in (method, "b")
                for metric in ("rsmse", "pm.accuracy")
            ]
            print_cells(cells)
            assert " ".join(lines()).count(number(value)) == 4 * 5


def test_a_table_of_certificates_fits(lines: Callable[..., list[str]]) -> None:
    for name in NAMES.values():
        line = CertifiedClient(name, "new", 123456, 0.12345, 123456.789, 0.98765, 0.99, 12345, 12, 0.5)
        labels = {"rows": {"new": "rows"}}
        run = CertifiedRun(name, "m", 0, "b", "t", "r", 0.0, 1.0, 0.05, (line,), {"new": []}, labels=labels)
        print_certificates(run)
        result = lines(slice(3, 6))
        assert any("123456.789" in one and "0.9877" in one for one in result)
        assert {"vacuous"} <= {word for one in result for word in one.split()}


def test_away_from_a_terminal_nothing_is_shortened(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    name = "house_" + "0" * 200 + "_east"
    rows = (ClientRow(0, name, "existing", 3, {"rsmse": 1.0}),)
    print_table(Result("s" * 300, "ridge", 4, "regression", clients=rows))
    print_cells([Cell("m" * 300, "new", "rsmse", 1.0, 1.0, 1.0, 1.0, 1, worst=1.0, worst_client=name)])
    out = capsys.readouterr().out
    assert out.count(name) == 2 and "s" * 300 in out and "m" * 300 in out


def test_every_line_is_said() -> None:
    """Through `say`, which escapes what steers a terminal; JSON and CSV escape for themselves."""
    allowed = {"print(printable(", "print(json.dumps(", 'print(path.read_text("utf-8"))'}
    allowed |= {'print(f"{parser.prog} {__version__}', 'print(text, end="")'}  # the version; a schema, which is JSON
    for module in sorted(Path(output.__file__).parent.glob("*.py")):
        for line in module.read_text("utf-8").splitlines():
            if re.search(r"(?<![\w.])print\(|stdout\.write|stderr\.write", line):
                assert any(start in line for start in allowed), f"{module.name}: {line.strip()}"


def test_a_choice_is_said_with_its_scores_and_with_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    note = {"chosen": 25, "scores": {"5": -1.5, "25": -1.25, "50": None}, "rule": "by rows", "remark": "it overfits"}
    near = {"chosen": 0.3, "scores": {"0.3": -1.5, "1.0": -1.49}, "rule": "by rows", "unless": "1 has to be better"}
    labels = {"federation.rounds": note, "rounds": "of test rows", "tau": note | {"scores": {}}, "std": near}
    output._say_choices(labels)
    assert capsys.readouterr().out.splitlines() == [
        "federation.rounds = 25 was chosen by held-out rows (5: -1.500, 25: -1.250)",
        "federation.rounds: it overfits",
        "tau = 25, as usual: by rows",
        "tau: it overfits",
        "std = 0.3 was chosen by held-out rows (0.3: -1.500, 1.0: -1.490; 1 has to be better)",
    ]


def test_methods_of_ones_own_are_shown_by_their_files_unless_two_are_called_alike(capsys: Captured) -> None:
    row = (ClientRow(0, "c0", "existing", 3, {"rsmse": 1.0}),)
    result = Result("s", "/home/me/mine.py:Mine", 0, "regression", clients=row)
    print_table(result)
    assert capsys.readouterr().out.startswith("s, mine.py:Mine, seed 0")
    other = replace(result, method="/home/you/mine.py:Mine")
    print_comparison([result, replace(result, method="ridge")])
    assert "\n  mine.py:Mine  1.000" in capsys.readouterr().out
    print_comparison([result, other])
    assert {"  /home/me/mine.py:Mine", "  /home/you/mine.py:Mine"} <= {
        line[: line.index("1.000")].rstrip() for line in capsys.readouterr().out.splitlines() if "1.000" in line
    }
