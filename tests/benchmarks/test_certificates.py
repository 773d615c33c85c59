"""The table of certificates, on a run that takes a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import certificates

SMALL = ("data.options.clients=4", "data.options.new_clients=0", "method.particles=2", "federation.rounds=2")


def test_all_rows_are_of_the_bound_where_folds_leave_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, sets = certificates.STUDIES["polynomial-10-folds"]
    monkeypatch.setattr(certificates, "STUDIES", {"polynomial-10-folds": (file, (*sets, *SMALL))})
    certificates.main(["--out", str(tmp_path), "--studies", "polynomial-10-folds", "--seeds", "3"])
    cells = [cell.strip() for cell in capsys.readouterr().out.strip().splitlines()[2].strip("|").split("|")]
    assert cells[:4] == ["polynomial-10-folds", "pac-pfl", "3", "10"] and cells[6] == "-"
    assert float(cells[5].split("**")[1]) <= float(cells[4]) <= 1


def test_a_row_has_what_was_and_what_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(certificates, "STUDIES", {"polynomial-10": ("polynomial", SMALL)})
    certificates.main(["--out", str(tmp_path), "--studies", "polynomial-10"])
    head, _, row = capsys.readouterr().out.strip().splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == head.count("|") - 1 and cells[:4] == ["polynomial-10", "pac-pfl", "0", "5"]
    assert 0 < float(cells[5].strip("*").split("*")[0]) <= 1 and float(cells[4]) <= 1
    certificates.main(["--out", str(tmp_path), "--studies", "polynomial-10"])
    assert capsys.readouterr().out.strip().splitlines()[2].split("|")[6:9] == row.split("|")[6:9]  # trained once
