"""Federations beside which defaults are measured: what they are named for, and a table of two of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.small_federations import KINDS, NEW, TEST, diabetes, excess, made, main, runs
from pacbayes_fl.methods import HeldOutChoice
from pacbayes_fl.results.records import Result
from pacbayes_fl.study.config import choices
from pacbayes_fl.study.search import held_out


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Result]]:
    """Return what trains on the first draw of a federation by default settings, each once; only to be read."""
    return cache(lambda name: runs(made(name, 0), "pac-pfl", (), tmp_path_factory.mktemp("usual")))


FEW_ROUNDS = 50
"""The most that the held-out choice visits on "many-rows", whose 300 rows would take it to 200."""


@pytest.mark.law
@pytest.mark.parametrize("name", KINDS)
def test_a_federation_has_the_clients_and_rows_that_it_says(name: str) -> None:
    kind, table = KINDS[name], made(name, 0)
    if name == "trend":
        assert set(table.groupby("client").size()) == {kind.rows * 4 // 3} and "split" not in table
        return
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


@pytest.mark.law
@pytest.mark.filterwarnings(
    "ignore:the federation overfits",
    "ignore:targets of client_0 do not vary",
    "ignore:rows.csv",
    "ignore:.* beyond the training rows",
)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "many-rows" else n for n in KINDS])
def test_defaults_are_never_worse_than_the_better_linear_model(
    name: str, usual: Callable[[str], dict[str, Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By more than their interval, for clients that trained and for new ones: a law of a study that names its source.

    One draw of each federation, the benchmark's first, fixed before any was looked at. All take about 40 seconds of one
    core; "many-rows" alone would take 44 instead of 11, so that no more than 50 rounds are among its choices.
    """
    if name == "many-rows":

        def fewer(study: choices.Tables, asked: HeldOutChoice) -> tuple[Any, ...]:
            values = choices.candidates(study, asked)
            return tuple(one for one in values if one <= FEW_ROUNDS) if asked is choices.ROUNDS else values

        monkeypatch.setattr(held_out, "candidates", fewer)
    draws = [usual(name)]
    for group in ("existing", "new"):
        mean, half = excess(draws, "pac-pfl", group)
        assert mean <= half, f"RSMSE of {group} clients is {mean:.3f} ± {half:.3f} above the better ridge regression's"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:rows.csv", "ignore:.* beyond the training rows")
def test_beyond_the_training_rows_nothing_is_learned_that_held_out_rows_deny(
    usual: Callable[[str], dict[str, Result]], tmp_path: Path
) -> None:
    """A trend with a cycle: what networks learn of the cycle in the first rounds goes on as they like."""
    table, networks = made("trend", 0), ("model.networks=true",)
    with pytest.warns(UserWarning, match="no round improves on the regression"):
        start = runs(table, "pac-pfl", networks, tmp_path)["pac-pfl"]
    trained = runs(table, "pac-pfl", (*networks, "federation.rounds=10"), tmp_path)["pac-pfl"]
    lines = usual("trend")["pac-pfl"]
    assert start.round == 0 and lines.labels["model.networks"]["chosen"] is False
    nlpd = [np.array(one.column("existing", "nlpd"), float) for one in (trained, start, lines)]
    for worse, better in pairwise(nlpd):
        gain = worse - better
        assert gain.mean() > 2 * gain.std() / len(gain) ** 0.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:rows.csv", "ignore:.* beyond the training rows")
def test_a_single_particle_has_no_networks_where_lines_do_better(tmp_path: Path) -> None:
    """Its random start is not averaged out, so that lines need no margin: a second draw, on which they are level."""
    draws = [runs(made("trend", 1), "pfedgp", (), tmp_path)]
    assert draws[0]["pfedgp"].labels["model.networks"]["chosen"] is False
    for group in ("existing", "new"):
        mean, half = excess(draws, "pfedgp", group)
        assert mean <= half


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the federation overfits")
def test_the_law_is_broken_without_the_linear_start_and_held_out_rounds(tmp_path: Path) -> None:
    draws = [runs(made("linear", 0), "pac-pfl", ("model.linear=none", "federation.rounds=100"), tmp_path)]
    for group in ("existing", "new"):
        mean, half = excess(draws, "pac-pfl", group)
        assert mean > half


def test_an_interval_of_few_clients_is_of_student_s_t(monkeypatch: pytest.MonkeyPatch) -> None:
    def column(_: object, method: str, *__: str) -> object:
        return np.array({"ridge": [3.0, 3, 3, np.nan], "pooled-ridge": [1.0, 2, 3, 1]}.get(method, [2.0, 2, 5, np.nan]))

    monkeypatch.setattr("benchmarks.small_federations.column", column)
    mean, half = excess([], "pac-pfl", "new")
    assert (mean, half) == pytest.approx((1.0, 4.302653 / 3**0.5))


@pytest.mark.slow
def test_the_table_has_a_line_for_every_group_of_all_draws(capsys: pytest.CaptureFixture[str]) -> None:
    main(["linear-few", "--rounds", "3", "--seeds", "0", "1", "--method", "pfedgp", "--set", "federation.rounds=2"])
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in lines] == [["| linear-few", "existing"], ["| linear-few", "new"]]
    assert "pfedgp" in head and all("±" in line and line.endswith("| 2, 2 |") for line in lines)
    assert len({line.count("|") for line in (head, *lines)}) == 1


def test_linear_models_may_choose_their_scale_as_the_methods_do(tmp_path: Path) -> None:
    """Three rows a client scale a client's columns badly: a pooled line that does not have to has half of the error."""
    table, scale = made("linear-few", 0), ("data.scale=held-out",)
    usual, chosen = (runs(table, "ridge", linear, tmp_path, linear)["pooled-ridge"] for linear in ((), scale))
    assert usual.labels.get("scale") is None and chosen.labels["data.scale"]["chosen"] != "client"
    before, after = (np.nanmean(np.array(one.column("existing", "rsmse"), float)) for one in (usual, chosen))
    assert after < 0.7 * before
