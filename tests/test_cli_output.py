import json
import math

import pytest
import torch

from pacbayes_fl.cli_output import print_bins, print_cells, print_predictions, print_table, progress
from pacbayes_fl.results import ClientRow, Result, RoundRecord
from pacbayes_fl.study_compare import Cell
from pacbayes_fl.study_predict import ClassPrediction, Prediction

Captured = pytest.CaptureFixture[str]


def prediction(client: str) -> Prediction:
    return Prediction(client, *(torch.tensor([base, base + 0.5]) for base in (1.0, 2.0, 3.0, 4.0)))


def test_predictions_are_csv_or_json(capsys: Captured) -> None:
    print_predictions([prediction("a,b")], as_json=False, round=12)
    assert capsys.readouterr().out == (
        'client,row,mean,std,lower,upper,round\n"a,b",0,1,2,3,4,12\n"a,b",1,1.5,2.5,3.5,4.5,12\n'
    )
    print_predictions([prediction("c")], as_json=True, round=12)
    expected = {"mean": [1.0, 1.5], "std": [2.0, 2.5], "lower": [3.0, 3.5], "upper": [4.0, 4.5]}
    assert json.loads(capsys.readouterr().out) == {"c": {**expected, "round": 12}}


def test_a_table_shows_mean_interval_and_median_and_a_dash_for_what_is_missing(capsys: Captured) -> None:
    rows = tuple(ClientRow(k, f"c{k}", "existing", 3, {"rsmse": v, "ce": math.nan}) for k, v in enumerate((1.0, 1.0)))
    print_table(Result("s", "ridge", 4, "regression", clients=rows))
    header, names, row, odd = capsys.readouterr().out.splitlines()
    assert odd == "existing ce: mean over 0 of 2 clients; c0: nan, c1: nan"
    assert header.startswith("s, ridge, seed 4, round 0: mean") and names.split() == ["group", "clients", "rsmse", "ce"]
    assert row.split() == ["existing", "2", "1.000", "[1.000,", "1.000]", "1.000", "-"]


def test_cells_stand_by_method_and_group(capsys: Captured) -> None:
    cells = [
        Cell("a", "new", "rsmse", 0.5, 0.25, 0.75, 0.5, 3, round="12"),
        Cell("b", "new", "ce", math.nan, 0.0, 0.0, 0.0, 3),
    ]
    print_cells(cells)
    said, names, a, b = capsys.readouterr().out.splitlines()
    assert "3 seeds" in said and names.split() == ["method", "group", "round", "rsmse", "ce"]
    assert a.split() == ["a", "new", "12", "0.500", "[0.250,", "0.750]", "0.500", "-"] and b.split()[:3] == [
        "b",
        "new",
        "-",
    ]


def test_a_table_says_from_which_damaged_rounds_it_fell_back(capsys: Captured) -> None:
    labels = {"round": 8, "fell_back": ["state.json of round 12 is damaged; using round 8"]}
    print_table(Result("s", "ridge", 4, "regression", (RoundRecord(12, 3),), labels=labels))
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("s, ridge, seed 4, round 8: mean")
    assert out[2] == "fell back: state.json of round 12 is damaged; using round 8"


def test_away_from_a_terminal_progress_is_a_line_now_and_then(capsys: Captured) -> None:
    with progress("work", 20, quiet=False) as told:
        for t in range(1, 21):
            told(RoundRecord(t, 2, ("bad",) if t == 3 else (), {"rsmse": 0.5}))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == [f"{t}/20" for t in (2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20)]
    assert lines[1] == "work: 3/20 rsmse 0.5 dropped bad"
    with progress("work", 20, quiet=True) as told:
        told(RoundRecord(20, 2))
    assert capsys.readouterr() == ("", "")


def test_labels_are_printed_with_probability_and_entropy(capsys: Captured) -> None:
    one = ClassPrediction("c", torch.tensor([7, 2]), torch.tensor([0.5, 1.0]), torch.tensor([1.25, 0.0]))
    print_predictions([one], as_json=False, round=12)
    assert capsys.readouterr().out == "client,row,label,probability,entropy,round\nc,0,7,0.5,1.25,12\nc,1,2,1,0,12\n"
    print_predictions([one], as_json=True, round=12)
    expected = {"label": [7, 2], "probability": [0.5, 1.0], "entropy": [1.25, 0.0]}
    assert json.loads(capsys.readouterr().out) == {"c": {**expected, "round": 12}}


def test_a_table_of_classifiers_says_what_other_rules_would_choose(capsys: Captured) -> None:
    metrics = {"pm.accuracy": 0.5, "pm.mean_weights.accuracy": 0.6, "gm.ece": 0.125}
    rows = tuple(ClientRow(k, f"c{k}", "existing", 3, metrics) for k in range(2))
    chosen = {"pm": {"best_validation": {"round": 20, "accuracy": 0.75, "rule": "by validation rows"}}}
    result = Result("s", "bpfed", 4, "classification", clients=rows, labels={"selections": chosen})
    print_table(result)
    _, names, row, rule = capsys.readouterr().out.splitlines()
    assert names.split() == ["group", "clients", "pm.accuracy", "gm.ece"]
    assert row.split()[2] == "0.500" and row.split()[6] == "0.125"
    assert rule == "pm.best_validation: accuracy 0.7500 at round 20, mean weights (by validation rows)"


def test_progress_shows_what_classifiers_record(capsys: Captured) -> None:
    values = {"kl": 1.0, "loss": 0.25, "log_likelihood": -3.0, "pm.accuracy": 0.875, "validation.pm.accuracy": 0.5}
    with progress("work", 1, quiet=False) as told:
        told(RoundRecord(1, 2, (), values))
    assert capsys.readouterr().err == "work: 1/1 pm.accuracy 0.875 log_likelihood -3 loss 0.25\n"


def test_what_was_tried_before_the_first_round_is_told_with_its_score(capsys: Captured) -> None:
    with progress("work", 100, quiet=False) as told:
        told(RoundRecord(0, 4, values={"clusters=2": -0.36}))
        told(RoundRecord(0, 0))
    assert capsys.readouterr().err == "work: 0/100 clusters=2 -0.36\nwork: 0/100 \n"


def test_a_long_name_moves_the_columns_of_a_comparison(capsys: Captured) -> None:
    long = "fedsi fraction=0.03"
    print_cells([Cell(name, "new", "ce", 0.5, 0.25, 0.75, 0.5, 3) for name in ("a", long)])
    _, names, a, b = capsys.readouterr().out.splitlines()
    assert b.startswith(f"{long}  new ") and a.index("new") == b.index("new") == names.index("group")


def test_tables_of_classifiers_say_how_many_bins(capsys: Captured) -> None:
    rows = (ClientRow(0, "c", "existing", 3, {"pm.ece": 0.125}),)
    runs = [Result("s", "a", 4, "classification", clients=rows, labels={"calibration_bins": b}) for b in (20, 10, 20)]
    print_table(runs[0])
    assert capsys.readouterr().out.splitlines()[-1] == "ece and mce: 20 bins of confidence"
    print_bins(runs)
    assert capsys.readouterr().out == "ece and mce: 10 or 20 bins of confidence\n"
    print_bins([Result("s", "ridge", 4, "regression")])
    assert not capsys.readouterr().out


def test_whom_a_mean_leaves_out_is_said_once_for_metrics_that_agree_and_shortened(capsys: Captured) -> None:
    rows = [ClientRow(k, f"c{k}", "existing", 3, {"rsmse": math.nan, "ce": math.nan, "nlpd": 1.0}) for k in range(8)]
    rows.append(ClientRow(9, "c9", "existing", 3, {"rsmse": 1.0, "ce": 2.0, "nlpd": math.inf}))
    print_table(Result("s", "ridge", 4, "regression", clients=tuple(rows)))
    assert capsys.readouterr().out.splitlines()[3:] == [
        "existing rsmse, ce: mean over 1 of 9 clients; c0: nan, c1: nan, c2: nan, c3: nan, c4: nan and 3 more",
        "existing nlpd: mean over 9 of 9 clients; c9: inf",
    ]


def test_a_table_says_which_rows_are_test_rows_and_what_is_scaled_in_another_way(capsys: Captured) -> None:
    rows = (ClientRow(0, "c", "existing", 3, {"rsmse": 0.125}),)
    labels = {"test_rows": "column split", "scaling": {"across clients": "cap", "own units": "y"}}
    print_table(Result("s", "a", 4, "regression", clients=rows, labels=labels))
    said = ["test rows: column split", "scaled across clients: cap", "not scaled: y"]
    assert capsys.readouterr().out.splitlines()[3:] == said
