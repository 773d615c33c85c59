"""The worked diffs of CONTRIBUTING.md are short, apply to the package as it is, and do what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pacbayes_fl import settings
from pacbayes_fl.bounds import BOUNDS, Premises, Provenance
from pacbayes_fl.cli import main
from pacbayes_fl.plugins.references import load_file
from pacbayes_fl.results.records import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import run
from tests import tiny_images

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIFFS = re.findall(r"```diff\n(.*?)```", TEXT, re.DOTALL)
(MINE,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
(WAVES,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)

USED = """
import math, torch, tempfile
from pacbayes_fl import METHODS, ClientBatch, FederationPlan, Study, run, run_rounds
from pacbayes_fl.bounds import BOUNDS, Premises, Provenance
from pacbayes_fl.data.image_sets import IMAGE_SETS
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl import metrics
from pacbayes_fl.metrics import METRICS
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
assert all(callable(getattr(metrics, metric.function.partition(":")[2])) for metric in METRICS.values())
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


def test_the_files_that_the_diffs_change_stay_short(changed: Path) -> None:
    for name in re.findall(r"^\+\+\+ b/(.*)", "\n".join(DIFFS), re.MULTILINE):
        assert len((changed / name).read_text(encoding="utf-8").splitlines()) <= 450, name


@pytest.mark.slow
def test_what_the_diffs_add_works(changed: Path) -> None:
    done = subprocess.run([sys.executable, "-c", USED], cwd=changed, capture_output=True, text=True, timeout=200)
    assert done.stdout.strip().endswith("used"), done.stderr


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a folder with the worked file and its study."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "waves.toml").write_text(WAVES, encoding="utf-8")
    return tmp_path


def test_the_worked_file_runs_and_its_metric_is_what_it_says(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(own / "waves.toml"), "--rounds", "2", "--quiet", "--out", str(own / "run")]) == 0
    assert "mean_absolute" in capsys.readouterr().out
    assert all(0 < row.metrics["mean_absolute"] <= row.metrics["rmse"] for row in load(own / "run").clients)
    study = str(own / "waves.toml")
    changed = [Study.from_toml(study, ["federation.rounds=2", f"method.std={std}"]) for std in (0.01, 100.0)]
    near, far = (run(one).rounds[-1].values["loss"] for one in changed)
    assert near > far  # a strong pull to the start keeps clients from learning


@pytest.mark.slow
def test_the_worked_bound_is_mcallester_s_and_certifies_a_run(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = load_file(own / "mine.py", "--bound").module.PINSKER
    premises = Premises(prior=Provenance("split"), independent=True)
    given = (0.03, torch.tensor([0.0, 500.0]), 30_000, 0.05, premises)
    torch.testing.assert_close(mine.function(*given).value, BOUNDS["mcallester"].function(*given).value)
    (own / "waves.toml").write_text(WAVES.replace('"mine.py:Pull"', '"pfedbayes"').replace("std = 0.5\n", ""))
    split = ["--set", "report.certify.scheme=split", "--set", "method.zeta=0.1", "--rounds", "1", "--quiet"]
    assert main(["run", str(own / "waves.toml"), *split, "--out", str(own / "split")]) == 0
    assert main(["certify", str(own / "split"), "--bound", f"{own}/mine.py:PINSKER", "--draws", "50", "--quiet"]) == 0
    assert "client_0" in capsys.readouterr().out


def test_the_worked_partition_deals_images(own: Path) -> None:
    table = tiny_images.table(tiny_images.write_root(own / "images"))
    kept = {key: value for key, value in table["data"]["options"].items() if key in ("root", "clients", "pool")}
    table["data"]["options"] = kept | {"partition": "mine.py:DEAL"}
    table["federation"]["rounds"] = 1
    (own / "dealt.toml").write_text(settings.to_toml(table), encoding="utf-8")
    result = run(Study.from_toml(own / "dealt.toml"))
    assert {row.m for row in result.clients} == {(tiny_images.TRAIN + tiny_images.TEST) // 4 - 20}


@pytest.mark.parametrize("name", ["Pull", "PINSKER", "MAE", "WAVES", "DEAL"])
def test_what_the_worked_file_holds_can_be_described(own: Path, name: str) -> None:
    from pacbayes_fl.study.describe import describe

    (one,) = describe(f"{own}/mine.py:{name}")
    assert one.title and one.family != "hyper-prior"
