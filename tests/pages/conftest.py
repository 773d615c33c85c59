"""Results made by hand for every kind of page, and a browser where there is one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from pacbayes_fl.names import printable
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord, Steps
from tests.hostile import NAMES
from tests.plots.conftest import make_classes, make_result

HOSTILE = ("<script>alert(1)</script>", "\"quoted\" & 'so' </title></style>", "long " * 40, "x" * 200, *NAMES.values())


def renamed(result: Result) -> Result:
    """Call clients and the study what nobody should."""
    rows = [replace(row, name=HOSTILE[at] if at < len(HOSTILE) else row.name) for at, row in enumerate(result.clients)]
    return replace(result, clients=tuple(rows), study="<script>alert('study')</script>" + "s" * 200)


def timed(result: Result) -> Result:
    """Give rows times: hours from a spring day on, across the night in which clocks of Zurich go forward."""
    start = 1_711_700_000  # 29 March 2024, 08:13 UTC
    when = dict[str, torch.Tensor]()
    for group in ("existing", "new"):
        for part, shift in (("train", -12), ("test", 0)):
            y = result.predictions[f"{group}.y_{part}"]
            hours = torch.arange(y.shape[1]).expand(y.shape) + shift
            when[f"{group}.time_{part}"] = (start + 3600 * hours) * 1_000_000
    said = {"name": "when", "kind": "datetime with a time zone", "per_second": 1_000_000, "zone": "Europe/Zurich"}
    return replace(result, predictions={**result.predictions, **when}, labels={**result.labels, "time": said})


def stepped(result: Result) -> Result:
    """Give rounds the norms of steps, and one that was undone."""
    rounds = [replace(one, steps=Steps(1.0, 2.0 + one.round, "client_03")) for one in result.rounds]
    rounds[3] = replace(rounds[3], undone=("loss was not finite",), reasons={"client_03": "sent NaN"})
    return replace(result, rounds=tuple(rounds))


@pytest.fixture(scope="session")
def numbers() -> Result:
    """Give a run of regression with one feature."""
    return stepped(make_result())


@pytest.fixture(scope="session")
def series() -> Result:
    """Give a run of regression with times, hostile names and two features."""
    return renamed(timed(make_result(d=2)))


@pytest.fixture(scope="session")
def labelled() -> Result:
    """Give a run of classification with a privacy label."""
    said = {
        "statement": "(8, 1e-5)-DP for whole clients",
        "epsilon": 7.99341,
        "delta": 1e-5,
        "mechanism": "gaussian",
        "multiplier": 1.07,
        "clip": 1.0,
        "releases": 6,
        "remarks": ["delta is weak"],
    }
    result = make_classes()
    spent = [
        RoundRecord(one.round, one.clients, (), {**one.values, "epsilon": 1.0 + one.round}) for one in result.rounds
    ]
    return replace(result, labels={**result.labels, "privacy": said, "classes": 4}, rounds=tuple(spent))


@pytest.fixture(scope="session")
def compared() -> list[Result]:
    """Give three methods with two seeds each."""
    made = [("pac_pfl", 0.4), ("fedavg-with-a-long-name", 0.5), ("ridge", 0.7)]
    return [make_result(name, seed, level=level, existing=6, new=3) for name, level in made for seed in (1, 2)]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Give a headless Chromium; whoever asks for it is skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="pages are tested in a browser by selenium")
    binary, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if binary is None or driver is None:
        pytest.skip("pages are tested in Chromium: chromium and chromedriver are not installed")
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for flag in (
            *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"),
            *("disable-component-update", "disable-sync", "disable-dev-shm-usage", f"user-data-dir={profile}"),
        ):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        own = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        yield own
        own.quit()


def shown(name: str) -> str:
    """Return how a page writes a name."""
    return printable(name)
