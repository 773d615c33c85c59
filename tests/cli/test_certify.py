"""The command `certify` prints and keeps a line a client, and refuses what it cannot certify."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import pacbayes_fl as fl
from tests.cli.answers import Answer, Call, assert_one_line
from tests.tiny import rows, write_csv
from tests.tiny_images import tiny_images, write_root


@pytest.mark.slow
def test_certify_prints_a_line_a_client_and_keeps_the_table(call: Call, tmp_path: Path) -> None:
    call("run", "tiny.toml", "--set", "report.certify.scheme=split", "--out", "run", "--quiet")
    code, out, err = call("certify", "run")
    assert (code, err.splitlines()[-1].strip()) == (0, "certify clients: 6/6")
    assert call("certify", "run", "--quiet") == Answer(0, out, "")
    table = json.loads((tmp_path / "run/certificates/seeger.json").read_text())
    for client in table["clients"]:
        (line,) = [line.split() for line in out.splitlines() if line.split()[0] == client["name"]]
        assert line[1:4] == [str(client["rows"]), f"{client['risk']:.4f}", f"{client['kl']:.3f}"]
        assert float(line[4]) >= client["bound"]
    assert out.count("test risk not above it") == 2 and "valid = false" not in out
    assert json.loads(call("certify", "run", "--bound", "catoni", "--beta", "rows", "--json").out)["bound"] == "catoni"
    assert "average over the clients' rows: at most" in out
    at_beta = call("certify", "run", "--bound", "catoni", "--beta", "rows", "--quiet").out
    assert "average over the clients' rows: none, as the bound 'catoni' is on each client on its own" in at_beta
    written = call("plot", "run").out
    assert all(f"certificates-{name}.png" in written for name in ("seeger", "catoni-beta-rows"))
    assert_one_line(call("certify", "run", "--bound", "catoni"), "needs a beta")
    assert_one_line(call("certify", "run", "--loss", "nlpd"), "unbounded")
    assert_one_line(call("certify", "run", "--loss", "0-1"), "not for real targets")


@pytest.mark.slow
def test_certificates_of_an_earlier_round_are_neither_shown_nor_drawn(call: Call, tmp_path: Path) -> None:
    sets = ("--set", "report.certify.scheme=split", "--out", "run", "--quiet")
    call("run", "tiny.toml", "--rounds", 2, *sets)
    _, out, _ = call("certify", "run")
    assert "round 2" in out and "below the bound of the trivial predictor at the same n" in out
    assert call("show", "run").out.endswith(out.split("file: ")[0]) and "certificates-seeger" in call("plot", "run").out
    call("run", "tiny.toml", "--rounds", 3, "--resume", *sets)
    for command in ("show", "plot"):
        code, out, err = call(command, "run")
        assert (code, "bound" in out, "certificates-seeger" in out) == (0, False, False)
        assert "seeger.json is stale: it is of round 2, and the run is at round 3; certify again" in err
    assert list((tmp_path / "run/figures").glob("certificates-*")) == []
    assert "request 2 for certificates of these rows: delta is shared as among 6" in call("certify", "run").out


def test_ship_writes_a_folder_for_every_line(call: Call, tmp_path: Path) -> None:
    sets = ("report.certify.scheme=split", "federation.rounds=1", "method.zeta=1.0")
    sets = (*sets, "data.options.train=10", "data.options.test=2")
    fl.run(tiny_images(write_root(tmp_path / "root"), *sets), tmp_path / "run")
    assert_one_line(call("certify", "run", "--ship", "out"), "(--bound one-draw)")
    assert not (tmp_path / "out").exists()
    code, out, _ = call("certify", "run", "--bound", "one-draw", "--ship", "out")
    made = {one.client for one in map(fl.load_network, (tmp_path / "out").iterdir())}
    assert code == 0 and f"networks of {len(made)} clients: out" in out
    table = json.loads((tmp_path / "run/certificates/one-draw.json").read_text())
    assert made == {line["name"] for line in table["clients"]}


def test_an_edited_bound_is_refused_by_name(call: Call, tmp_path: Path) -> None:
    call("run", "tiny.toml", "--set", "report.certify.scheme=split", "--out", "run", "--quiet", "--rounds", 2)
    call("certify", "run", "--quiet")
    path = tmp_path / "run/certificates/seeger.json"
    path.write_text(path.read_text().replace('"bound": 0.9', '"bound": 0.1', 1))
    for command in ("show", "plot"):
        code, _, err = call(command, "run")
        assert code == 1 and "seeger.json cannot be read as certificates" in err


def test_retrain_says_what_is_wrong_before_it_trains(call: Call, tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", rows())
    call("run", "tiny.toml", "--set", "data={source='rows.csv'}", "--out", "run", "--quiet", "--rounds", 2)
    code, out, err = call("certify", "run", "--retrain", "--bound", "new-clients")
    assert (code, out) == (1, "") and not (tmp_path / "run-certify").exists()
    assert "report.certify.independent = true" in err and "report.certify.drawn_clients = true" in err


def test_certify_refuses_a_run_that_kept_nothing_and_makes_it_again(call: Call, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    code, out, _ = call("certify", "run")
    assert code == 0
    assert "existing: valid = false: the prior saw the rows of the bound" in out
    assert "new_poly_00" in out and "\npoly_00" not in out
    code, out, _ = call("certify", "run", "--retrain", "--quiet")
    assert code == 0
    assert "\npoly_00" in out and "valid = false" not in out
    before = (tmp_path / "run-certify/rounds.jsonl").read_bytes()
    assert call("certify", "run", "--retrain").out == out
    assert (tmp_path / "run-certify/rounds.jsonl").read_bytes() == before
