"""Records of generators: everything that names one follows from its record."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType

import pytest

import data_gen
from data_gen import Generator, generators
from data_gen.__main__ import main
from data_gen.polynomial import PolynomialConfig, generate


@dataclass(frozen=True)
class LineConfig(PolynomialConfig):
    """Options of lines.

    Attributes:
        clients: lines.
        new_clients: more lines.
        samples: rows of a line.
        test_samples: test rows
            of a line.
        modes: kinds of lines, 100 % of them.
        seed: of all draws.
        lengthscales: of the kernel.
        outputscale: of the kernel.
        noise_std: of the noise.
    """


def test_every_option_that_is_free_has_a_line() -> None:
    for name, known in generators.GENERATORS.items():
        assert name == known.name and known.title and "\n" not in known.title
        assert list(known.meanings()) == [one.name for one in fields(known.config) if one.name != "kind"]
        assert all(line.endswith(".") and "`" not in line for line in known.meanings().values())
    assert generators.GENERATORS["polynomial"].meanings()["seed"] == "at least 0; fixes every draw."
    assert "kind" not in generators.GENERATORS["pv-s"].options


def test_rows_of_series_are_not_independent() -> None:
    independent = {name: known.rows_independent for name, known in generators.GENERATORS.items()}
    assert independent | {"polynomial": True, "pv-ew": False, "pv-s": False} == independent


def test_a_record_is_all_that_a_generator_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Generator("lines", "straight lines", LineConfig, generate, True, MappingProxyType({"modes": 1}))
    monkeypatch.setattr(generators, "GENERATORS", {**generators.GENERATORS, made.name: made})
    assert data_gen.names()[-1] == "lines"
    dataset = data_gen.generate("lines", clients=2, new_clients=0, samples=3)
    assert dataset.sha256 == data_gen.generate("polynomial", modes=1, clients=2, new_clients=0, samples=3).sha256
    with pytest.raises(data_gen.DataGenError, match="lines has no option 'modes'"):
        data_gen.generate("lines", modes=2)
    given = ["lines", "--clients", "2", "--new-clients", "0", "--samples", "3", "--lengthscales", "0.2", "0.5"]
    assert main([*given, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip().endswith(dataset.sha256)
    with pytest.raises(SystemExit):
        main(["lines", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "straight lines" in shown and "test rows of a line (100)" in shown and "of the kernel (0.2 0.5)" in shown
