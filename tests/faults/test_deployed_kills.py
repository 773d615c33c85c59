"""kill -9 of the server, of nodes and of their SuperNodes at random moments; by hand, since each takes a minute."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from pacbayes_fl.results.rounds import read_rounds
from pacbayes_fl.study.run import run
from pacbayes_fl.testing.scene import assert_close
from tests.deployed import Owners, commands_in, free, needs_flower, rounds_in, server_of, study_of, until

KILLS = int(os.environ.get("PACBAYES_FL_KILLS", "0"))
SEED = int(os.environ.get("PACBAYES_FL_KILL_SEED", "0"))
ROUNDS = 3 + KILLS


@pytest.mark.deploy
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not KILLS, reason="takes up to a minute a kill: PACBAYES_FL_KILLS=10 make deploy-test")
def test_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    needs_flower()
    study, chance, app, port = study_of(ROUNDS, "deploy.deadline=40"), random.Random(SEED), tmp_path / "app", free(1)
    (tmp_path / "study.toml").write_text(study.to_toml())
    folder, killed = app / "run", list[str]()
    with Owners(tmp_path / "logs") as owners:
        owners.done(
            "export", f"pacbayes-fl deploy export study.toml app --nodes 2 --address localhost:{port}", tmp_path
        )
        keys, link, serve, resume, *nodes = commands_in((app / "README.md").read_text())
        owners.done("keys", keys, app)
        owners.type("link", link, app)
        until(lambda: "Uvicorn running" in owners.said("link"))
        lines = dict[str, tuple[str, Path]]()
        for k in range(2):
            mine = tmp_path / f"owner_{k}"
            shutil.copytree(app / "keys" / f"node_{k}", mine / "keys" / f"node_{k}")
            shutil.copy(app / "study.toml", mine)
            lines[f"node_{k}"] = nodes[2 * k + 1], mine

        def kept_up() -> None:
            """Start what has ended, as whoever owns it would."""
            for name, (line, where) in lines.items():
                if name not in owners.running or owners.running[name].poll() is not None:
                    owners.type(name, line, where)
            if "serve" not in owners.running or owners.running["serve"].poll() is not None:
                owners.type("serve", (resume if (folder / "nodes.json").exists() else serve), app)

        begun = time.monotonic()
        while rounds_in(folder) < ROUNDS or owners.running["serve"].poll() is None:
            kept_up() if rounds_in(folder) < ROUNDS else None
            if len(killed) < KILLS and rounds_in(folder) > len(killed):
                time.sleep(chance.uniform(0.0, 12.0))
                victim = chance.choice(["serve", "serve", "node_0", "node_1", "supernode"])
                if victim == "supernode":
                    found = subprocess.run(["pgrep", "-P", str(owners.running["node_1"].pid)], capture_output=True)
                    for pid in found.stdout.split():
                        os.kill(int(pid), signal.SIGKILL)
                else:
                    owners.kill(victim)
                killed.append(victim)
                print(f"{time.monotonic() - begun:.0f} s, round {rounds_in(folder)}: kill -9 of {victim}", flush=True)
            time.sleep(0.2)
            assert time.monotonic() - begun < 3000, owners.said("serve")
        owners.stop(*(name for name in ("node_0", "node_1", "link") if owners.running[name].poll() is None))
        said = {name: owners.said(name) for name in ("serve", "node_0", "node_1")}
    records = read_rounds(folder)
    assert [record.round for record in records] == [*range(1, ROUNDS + 1)]
    for record in records:
        print(record.round, record.clients, {record.reasons[name] for name in record.dropped})
        assert all(record.reasons.get(name) for name in record.dropped)
    state = server_of(folder)
    assert all(bool(torch.as_tensor(leaf).isfinite().all()) for leaf in state.values())
    assert not any("damaged" in text or "defect" in text for text in said.values()), said
    if not any(record.dropped for record in records):
        run(study, tmp_path / "here")
        assert_close(state, server_of(tmp_path / "here"), 1e-9)
