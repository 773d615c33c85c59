"""Rows of LaTeX tables."""

from __future__ import annotations

import pandas
import pytest
import torch

from pacbayes_fl.bounds import Premises, Provenance, gibbs, seeger
from pacbayes_fl.errors import AssumptionError

FINE = Premises(Provenance("split"), independent=True, posterior="exact Gibbs")
PAIR = torch.tensor([0.1, 0.2]), torch.tensor([1.0, 2.0]), 50


def test_a_row_for_every_client_and_bounds_are_rounded_up() -> None:
    certificate = seeger(*PAIR, 0.05, FINE)
    rows = certificate.to_latex(["a_b", "c&d"]).splitlines()
    assert rows[:2] == [r"client & risk & KL & $n$ & bound \\", r"\midrule"]
    assert [row.split(" & ")[:4] for row in rows[2:]] == [[r"a\_b", "0.1", "1", "50"], [r"c\&d", "0.2", "2", "50"]]
    printed = [float(row.split(" & ")[4].removesuffix(r" \\")) for row in rows[2:]]
    assert all(0 <= shown - value < 1e-3 for shown, value in zip(printed, certificate.value.tolist(), strict=True))
    assert certificate.to_latex(header=False).splitlines()[1].startswith("2 & 0.2")
    special = certificate.to_latex(["x^2", "~y"], header=False).splitlines()
    assert [row.split(" & ")[0] for row in special] == [r"x\textasciicircum{}2", r"\textasciitilde{}y"]


def test_clients_may_be_numbered_and_named_by_a_series() -> None:
    certificate = seeger(*PAIR, 0.05, FINE)
    numbered = certificate.to_latex([7, 10], header=False)  # type: ignore[list-item]
    assert [row.split(" & ")[0] for row in numbered.splitlines()] == ["7", "10"]
    named = certificate.to_latex(pandas.Series(["a", "b"], index=[5, 6]), header=False)  # type: ignore[arg-type]
    assert [row.split(" & ")[0] for row in named.splitlines()] == ["a", "b"]


def test_what_is_no_certificate_shows_reasons_and_no_number() -> None:
    text = seeger(0.1, 1.0, 50, 0.05, Premises()).to_latex()
    assert "no certificate: nobody said where" in text and "0." not in text.splitlines()[2]
    assert gibbs(torch.tensor(-3.0), 20, 10.0, 0.05, FINE).to_latex().splitlines()[0] == r"client & $n$ & bound \\"


def test_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AssumptionError, match="names must be one for each of 2 bounds, got 1"):
        seeger(*PAIR, 0.05, FINE).to_latex(["a"])
