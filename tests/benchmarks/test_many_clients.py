"""Memory of a study grows with its clients by less than an object of Python for each number of a client would take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import many_clients

SMALL = (
    *("method.particles=2", "model.mean_widths=[4]", "model.kernel_widths=[4]", "federation.cohort=20"),
    *("data.options.samples=3", "data.options.test_samples=4", "report.page=false", "federation.rounds=1"),
)
FEW, MANY = 1100, 4100
BYTES = 8192
"""Of peak memory that a further client may take: what is in blocks of a fixed size is among it at such sizes."""
KEPT = 4
"""Objects of Python that a further client may leave: its name and its id; a row of its scores would be 13 more."""
PROGRAM = """
import json, sys
from benchmarks.many_clients import measure
print(json.dumps([measure(clients, sys.argv[1:]) for clients in (30, 1100, 4100)][1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are told on Linux alone")
def test_memory_of_a_further_client_is_bounded() -> None:
    command = [sys.executable, "-c", PROGRAM, *SMALL]
    done = subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    few, many = json.loads(done.stdout.decode().splitlines()[-1])
    assert (few["clients"], many["clients"]) == (FEW, MANY) and min(many["seconds"].values()) > 0
    more = max(many["peak"].values()) - max(few["peak"].values())
    assert more / (MANY - FEW) < BYTES
    assert (many["kept"] - few["kept"]) / (MANY - FEW) < KEPT
    assert many["blocks"] > many["kept"] > 0
    line = many_clients.table([few, many]).splitlines()[-1]
    assert line.startswith(f"| 4,100 | {max(many['peak'].values()) / 2**20:.0f} |")
