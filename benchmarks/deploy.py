"""Seconds and bytes of a round with 4 nodes on the loopback address, beside Flower's own FedAvg app on the same model.

    python -m benchmarks.deploy [ROUNDS] [METHOD ...]

writes the table of RESULTS_DEPLOY.md to the standard output. Both sides run in the same processes of Flower, with TLS
and node keys, on the same rows: 4 clients, one a node. Times of a loaded machine say little, so that processor
seconds of all processes stand beside them, and the load.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pacbayes_fl.federation import mail
from pacbayes_fl.federation.flower import commands, processes
from pacbayes_fl.federation.flower.keys import write_keys
from pacbayes_fl.federation.flower.processes import HOST, Processes
from pacbayes_fl.federation.node import InMemory
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment.deploy import deploy
from pacbayes_fl.study.deployment.node import StudyNode
from pacbayes_fl.study.deployment.server import serve
from pacbayes_fl.study.file import Study

NODES = 4
ROWS, FEATURES, WIDTH = 60, 8, 64
PORT = 19500
METHODS = ("pac-pfl", "pfedbayes", "sfedbayes", "fedsi", "fedavg")
SETS = {
    "pac-pfl": ["model.residuals=gaussian", "model.linear=zero"],
    "pfedbayes": ["method.zeta=1"],
    "sfedbayes": ["method.zeta=1"],
    "fedsi": ["method.alpha=1", "method.personal_alpha=1"],
}
_TICK = os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """Of a round: seconds by the clock, processor seconds of all processes, and bytes down to a node and up again."""

    clock: float
    work: float
    down: int
    up: int


def write_rows(path: Path) -> None:
    """Write a table of 4 clients, the same at every call."""
    random = np.random.default_rng(0)
    lines = ["client,split," + ",".join(f"x{j}" for j in range(FEATURES)) + ",y"]
    for k in range(NODES):
        x = random.normal(size=(ROWS, FEATURES))
        y = np.sin(x.sum(1)) + 0.1 * k * x[:, 0] + 0.05 * random.normal(size=ROWS)
        for m, row in enumerate(x):
            part = "test" if m % 4 == 3 else "train"
            lines.append(f"c{k},{part}," + ",".join(f"{v:.6f}" for v in row) + f",{y[m]:.6f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def study_of(method: str, rows: Path, rounds: int) -> Study:
    """Give the study of a method on these rows."""
    model = [] if method == "pac-pfl" else [f"model.widths=[{WIDTH}]"]
    sets = [f"method.name={method}", f"federation.rounds={rounds}", "data.scale=client", "federation.device=cpu"]
    sets += ["federation.cohort=none", "report.evaluate_every=1000", *model, *SETS.get(method, [])]
    table = {"name": method, "data": {"source": str(rows), "client": "client", "target": "y"}}
    return Study.from_table(table, "benchmark", sets)


def descendants(parent: int) -> set[int]:
    """Give a process and all that it has started, by their sessions' parents."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    known, left = set[int](), [parent]
    while left:
        one = left.pop()
        known.add(one)
        left += children.get(one, [])
    return known


def worked() -> float:
    """Processor seconds of this process, of all below it and of those of them that have ended and were waited for."""
    total = 0.0
    for pid in descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15]) / _TICK
    return total


def bytes_of(study: Study) -> tuple[int, int]:
    """Count the bytes of one round's message to a node and of its answer, in memory: they are those of the network."""
    dataset, sizes = load(study), dict[str, tuple[int, int]]()
    nodes = {k: StudyNode(study, dataset, InMemory(), [f"c{k}"]) for k in range(NODES)}

    def answer(node: StudyNode, letter: bytes) -> bytes:
        result = node.answer(letter)
        if b'"kind": "train"' in letter[:64]:
            sizes["train"] = len(letter), len(result)
        return result

    folder = Path(tempfile.mkdtemp())
    reached = {k: (lambda letter, node=node: answer(node, letter)) for k, node in nodes.items()}
    serve(study, folder / "run", mail.InMemory(reached))
    shutil.rmtree(folder)
    return sizes["train"]


def ours(study: Study, folder: Path) -> Measured:
    """Deploy a study, and give the median round but for the first."""
    marks = [(time.monotonic(), worked())]

    def on_round(record: RoundRecord) -> None:
        marks.append((time.monotonic(), worked()))

    deploy(study, folder / study.name, NODES, on_round=on_round, port=PORT)
    down, up = bytes_of(study)
    return _median(marks[1:], down, up)


def _median(marks: Sequence[tuple[float, float]], down: int, up: int) -> Measured:
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks)]
    return Measured(statistics.median(s for s, _ in steps), statistics.median(w for _, w in steps), down, up)


SERVER = f"""
import json, time
from pathlib import Path
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from relay.model import network

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    marks = []
    class Marked(FedAvg):
        def aggregate_train(self, server_round, replies):
            result = super().aggregate_train(server_round, replies)
            marks.append(time.monotonic())
            Path(context.run_config["out"]).write_text(json.dumps(marks))
            return result
    while len(list(grid.get_node_ids())) < {NODES}:
        time.sleep(0.2)
    strategy = Marked(fraction_evaluate=0.0, min_train_nodes={NODES}, min_available_nodes={NODES})
    strategy.start(grid=grid, initial_arrays=ArrayRecord(network().state_dict()),
                   num_rounds=int(context.run_config["rounds"]))
    Path(context.run_config["out"] + ".done").write_text("")
"""
CLIENT = """
import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from relay.model import network

app = ClientApp()

@app.train()
def train(message: Message, context: Context) -> Message:
    rows = np.loadtxt(context.node_config["rows"], delimiter=",", dtype=str, skiprows=1)
    rows = rows[(rows[:, 0] == context.node_config["client"]) & (rows[:, 1] == "train")][:, 2:].astype("float32")
    x, y = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, -1:])
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(content), reply_to=message)
"""
MODEL = f"""
import torch

def network():
    return torch.nn.Sequential(torch.nn.Linear({FEATURES}, {WIDTH}), torch.nn.ReLU(), torch.nn.Linear({WIDTH}, 1))
"""
APP = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "fedavg"
version = "0.1.0"
description = "FedAvg"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "benchmark"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "relay.server:app"
clientapp = "relay.client:app"
[tool.flwr.app.config]
out = ""
rounds = 1
"""


@contextmanager
def flower(folder: Path, rows: Path, environment: dict[str, str]) -> Iterator[Processes]:
    """Start a SuperLink and SuperNodes as `deploy` does, without workers."""
    keys, home, address = folder / "keys", folder / "flwr", f"{HOST}:{PORT}"
    write_keys(keys, [f"node_{k}" for k in range(NODES)], days=1)
    commands.write_home(home, address, keys / "ca.pem")
    with Processes(folder / "logs", {**environment, "FLWR_HOME": str(home)}) as running:
        running.start("superlink", commands.of_link(keys, HOST, PORT))
        running.wait(180.0, lambda: processes.answers(HOST, PORT), "the SuperLink does not answer")
        for k in range(NODES):
            commands.register(running, keys / f"node_{k}" / "node.pub")
            settings = {"rows": str(rows), "client": f"c{k}"}
            running.start(f"node_{k}", commands.of_node(keys / f"node_{k}", address, PORT + 1 + k, settings))
        yield running


def theirs(folder: Path, rows: Path, rounds: int, as_ours: bool) -> Measured:
    """Run Flower's FedAvg app, with its own settings or with the short waits of ours."""
    environment = dict(commands.ENVIRONMENT)
    if not as_ours:
        del environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]
    app, out = folder / "app", folder / "marks.json"
    (app / "relay").mkdir(parents=True)
    files = {"pyproject.toml": APP, "LICENSE": "", "relay/__init__.py": "", "relay/server.py": SERVER}
    for name, text in {**files, "relay/client.py": CLIENT, "relay/model.py": MODEL}.items():
        (app / name).write_text(text, encoding="utf-8")
    with flower(folder, rows, environment) as running:
        config = f"out={json.dumps(str(out))} rounds={rounds}"
        running.call(["flwr", "run", str(app), "deploy", "--run-config", config], 180.0)
        marks, seen = list[tuple[float, float]](), 0
        until = time.monotonic() + 900
        while not Path(f"{out}.done").exists() and time.monotonic() < until:
            known = json.loads(out.read_text() or "[]") if out.exists() else []
            marks += [(mark, worked()) for mark in known[seen:]]
            seen = len(known)
            time.sleep(0.1)
    size = 4 * ((FEATURES + 1) * WIDTH + WIDTH + 1)
    return _median(marks, size, size)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    rounds, methods = int((arguments or ["6"])[0]), tuple(arguments[1:]) or METHODS
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the start, median of {rounds - 1} rounds")
    columns = ("app", "seconds a round", "processor seconds", "bytes down", "bytes up", "load")
    print(f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}", sep="\n")

    def say(name: str, one: Measured) -> None:
        load_now = f"{os.getloadavg()[0]:.1f}"
        print(f"| {name} | {one.clock:.1f} | {one.work:.1f} | {one.down} | {one.up} | {load_now} |", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="deploy-"))
    try:
        write_rows(folder / "rows.csv")
        for which, as_ours in (("Flower's FedAvg app", False), ("Flower's FedAvg app, polls of ours", True)):
            say(which, theirs(folder / f"theirs{as_ours}", folder / "rows.csv", rounds, as_ours))
        for method in methods:
            say(method, ours(study_of(method, folder / "rows.csv", rounds), folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
