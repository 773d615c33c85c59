"""The worked diffs of CONTRIBUTING.md are short, apply to the package as it is, and do what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIFFS = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)

USED = """
import math, torch, tempfile
from pacbayes_fl import METHODS, ClientBatch, FederationPlan, Study, run, run_rounds
from pacbayes_fl.bounds import BOUNDS, Premises, Provenance
from pacbayes_fl.data.image_sets import IMAGE_SETS
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.plots import FIGURES

x = torch.linspace(-1, 1, 8).unsqueeze(1)
batch = ClientBatch.pad([(x, x[:, 0] + k) for k in range(3)], dtype=torch.float32)
method = METHODS["fedavg-prior"].method(BayesianMLP((1, 4, 1), Gaussian()))
theta = run_rounds(method, batch, FederationPlan(rounds=2, seed=1)).server.theta
assert theta.isfinite().all()

premises = Premises(prior=Provenance("split"), independent=True)
budget, value = 500.0 + math.log(2 * math.sqrt(30_000) / 0.05), BOUNDS["refined-pinsker"].function
found = value(0.03, 500.0, 30_000, 0.05, premises).value.item()
exact = 0.03 + math.sqrt(2 * 0.03 * budget / 30_000) + 2 * budget / 30_000
assert exact * 0.99 < found <= exact  # xi(n) is a little below 2 sqrt(n)

result = run(Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=1"]))
assert all(value > 0 for value in result.column("existing", "mae"))
assert FIGURES["times"](result).axes[0].get_ylabel() == "seconds"
assert "KMNIST" in str(IMAGE_SETS["kmnist"].read)
print("used")
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package with every diff applied."""
    folder = tmp_path_factory.mktemp("changed")
    for package in ("pacbayes_fl", "data_gen"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for diff in DIFFS:
        apply = ["git", "apply", "--whitespace=error", "-"]
        outside = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}  # the copy is in no repository
        done = subprocess.run(apply, input=diff, text=True, capture_output=True, cwd=folder, env=outside)
        assert done.returncode == 0, f"{done.stderr}\n{diff}"
    return folder


@pytest.mark.parametrize("diff", DIFFS, ids=["method", "bound", "metric", "data set", "plot"])
def test_a_worked_diff_is_short(diff: str) -> None:
    assert sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in diff.splitlines()) < 50


def test_what_the_diffs_add_works(changed: Path) -> None:
    done = subprocess.run([sys.executable, "-c", USED], cwd=changed, capture_output=True, text=True, timeout=200)
    assert done.stdout.strip().endswith("used"), done.stderr
