"""The table of many methods: intervals, paired differences and ranks, of seeds that not every method has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

from benchmarks import ranking, tables
from pacbayes_fl.results.bootstrap import nested_bootstrap
from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.records import Result

ACCURACY = {
    ("local", 0): [0.80, 0.90, 0.70],
    ("local", 1): [0.82, 0.90, 0.74],
    ("fedavg-ft", 0): [0.90, 0.90, 0.80],
    ("fedavg-ft", 1): [0.92, 0.88, 0.90],
    ("late", 1): [0.95, 0.91, 0.93],
}


def run(method: str, seed: int) -> Result:
    """Losses and errors of calibration in the order of the inaccuracies; one method has a global model."""
    rows = []
    for k, value in enumerate(ACCURACY[method, seed]):
        numbers = {"pm.accuracy": value, "pm.nll": 2 - value, "pm.ece": (1 - value) / 10}
        more = {"gm.accuracy": value - 0.1} if method == "fedavg-ft" else {}
        rows.append(ClientRow(k, f"c{k}", "existing", 9, numbers | more))
    return Result("made", method, seed, "classification", clients=tuple(rows))


RUNS = [run(*key) for key in ACCURACY]


def lines(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {row[0]: row[1:] for row in cells}


def test_ranks_are_those_of_scipy_among_the_methods_of_a_seed() -> None:
    for metric, better in ranking.PERSONAL.items():
        got = ranking.mean_ranks(RUNS, metric, better)
        first = rankdata([[-v for v in ACCURACY[m, 0]] for m in ("local", "fedavg-ft")], axis=0).mean(1)
        then = rankdata([[-v for v in ACCURACY[m, 1]] for m in ("local", "fedavg-ft", "late")], axis=0).mean(1)
        assert got["local"] == pytest.approx((first[0] + then[0]) / 2)
        assert got["fedavg-ft"] == pytest.approx((first[1] + then[1]) / 2) and got["late"] == then[2] == 1


def test_a_line_has_means_intervals_and_differences_of_the_same_clients_and_seeds() -> None:
    table = lines(ranking.markdown(RUNS))
    assert list(table)[2:] == ["late", "fedavg-ft", "local"]  # by accuracy
    mean, low, high = nested_bootstrap([ACCURACY["local", 0], ACCURACY["local", 1]])
    assert table["local"][0] == f"{100 * mean:.2f} [{100 * low:.2f}, {100 * high:.2f}]"
    assert table["late"][2].startswith("+3.00 [") and table["late"][-1] == "1"  # against its own seed
    assert table["fedavg-ft"][2] == "+0.00 [+0.00, +0.00]" and table["fedavg-ft"][3] == "78.33"
    assert table["local"][3] == "-" and table["local"][-1] == "0, 1"
    difference = np.mean([np.subtract(ACCURACY["local", s], ACCURACY["fedavg-ft", s]).mean() for s in (0, 1)])
    assert table["local"][2].startswith(f"{100 * difference:+.2f} [")
    assert lines(ranking.markdown(RUNS, "nobody"))["local"][2] == "-"


def test_papers_numbers_stand_beside_ours_and_odd_ones_are_explained() -> None:
    named = [replace(one, study="mnist-small", method={"late": "pfedme"}.get(one.method, one.method)) for one in RUNS]
    text = ranking.markdown(named)
    table = lines(text)
    columns = dict(zip(table["method"], table["pfedme"], strict=True))
    paper = tables.published_classifier(tables.classifiers(), "mnist-small", "pfedme")
    assert columns["paper PM"] == f"{paper['pm'][0]:.2f} ± {paper['pm'][1]:.2f}" and columns["paper ECE"] == "-"
    assert table["fedavg-ft"][1].endswith("*") and "which does not say of which model" in text
    assert "The paper's pfedme: " in text and paper["remarks"][0] in text
    assert lines(ranking.markdown(RUNS))["local"][1] == "-"  # of a study that no paper has


def test_it_reads_run_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / str(at) for at, _ in enumerate(RUNS)]
    for result, folder in zip(RUNS, folders, strict=True):
        result.save(folder)
    ranking.main([*map(str, folders), "--reference", "local"])
    out = capsys.readouterr().out
    assert out.strip() == ranking.markdown(RUNS, "local") and "against local" in out
