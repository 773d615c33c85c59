"""A result made by hand, with all that figures read."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord

Z = 1.959963984540054
VARIATIONAL = ("pfedbayes", "pbb", "sfedbayes", "cfedbayes", "bpfed", "vanilla-bnn", "pooled-bnn")
UNITS = {
    "feature_name": ["time of day", "lag 1"],
    "feature_unit": ["h", "kW"],
    "target_name": "power",
    "target_unit": "kW",
}


@pytest.fixture(autouse=True)
def _drawn(request: pytest.FixtureRequest) -> None:
    """Figures are what is tested here, but for tests of which files there are."""
    if "names_only" not in request.fixturenames:
        request.getfixturevalue("rendered")


@pytest.fixture
def names_only() -> None:
    """Write figures as their texts, as other tests do: each is made, and neither laid out nor rendered."""


def _group(count: int, d: int, generator: torch.Generator) -> dict[str, Tensor]:
    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    x_train, x_test = 24 * rand(count, 12, d), 24 * rand(count, 240, d)
    phase = rand(count, 1)

    def truth(x: Tensor) -> Tensor:
        return 3 + 2 * torch.sin(x[..., 0] / 4 + 6 * phase)

    def noise(like: Tensor) -> Tensor:
        return 0.5 * torch.randn(like.shape, generator=generator, dtype=torch.float64)

    if d > 1:
        x_test[..., 0] = torch.arange(240, dtype=torch.float64)
    y_train, y_test = truth(x_train), truth(x_test)
    y_train, y_test = y_train + noise(y_train), y_test + noise(y_test)
    mask_train, mask_test = (torch.ones(count, rows, dtype=torch.bool) for rows in (12, 240))
    mask_train[1:, 9:] = False
    mask_test[1:, 180:] = False
    mean, std = truth(x_test) + 0.1, 0.45 + 0.01 * x_test[..., 0] % 0.4
    return {
        "x_train": x_train.masked_fill(~mask_train.unsqueeze(-1), 0.0),
        "y_train": y_train.masked_fill(~mask_train, 0.0),
        "mask_train": mask_train,
        "x_test": x_test.masked_fill(~mask_test.unsqueeze(-1), 0.0),
        "y_test": y_test.masked_fill(~mask_test, 0.0),
        "mask_test": mask_test,
        "mean": mean,
        "std": std,
        "lower": mean - Z * std,
        "upper": mean + Z * std,
        "pit": torch.special.ndtr((y_test - mean) / std),
    }


def make_result(
    method: str = "pac_pfl",
    seed: int = 1,
    study: str = "polynomial",
    particles: int = 4,
    d: int = 1,
    existing: int = 12,
    new: int = 6,
    level: float = 0.4,
) -> Result:
    """Make a result whose numbers depend on the arguments alone."""
    generator = torch.Generator().manual_seed(100 * seed + particles + len(method))
    rounds = []
    for number in range(1, 121):
        values = {"log_evidence": -60 * math.exp(-number / 20) - 20 + math.sin(number), "seconds": 0.1}
        values["spread"] = 2.0 - 1.2 * (1 - math.exp(-number / 30))
        if number % 20 == 0:
            values["rsmse"] = level + 0.5 * math.exp(-number / 40)
        dropped = {37: ("client_03",), 80: ("client_03", "client_07")}.get(number, ())
        rounds.append(RoundRecord(number, existing - len(dropped), dropped, values))
    rows, predictions = [], {}
    for group, count in (("existing", existing), ("new", new)):
        if not count:
            continue
        spread = torch.rand(2, count, generator=generator, dtype=torch.float64)
        for k in range(count):
            metrics = {"rsmse": level + 0.3 * spread[0, k].item(), "ce": 0.03 + 0.1 * spread[1, k].item()}
            metrics["rmse_raw"] = 2 * metrics["rsmse"]
            number = k if group == "existing" else existing + k
            rows.append(ClientRow(number, f"client_{number:02d}", group, 12 if k == 0 else 9, metrics))
        for name, tensor in _group(count, d, generator).items():
            predictions[f"{group}.{name}"] = tensor
    labels = {**UNITS, "particles": particles}
    return Result(study, method, seed, "regression", tuple(rounds), tuple(rows), predictions, labels)


def _probs(count: int, generator: torch.Generator, classes: int = 4) -> dict[str, Tensor]:
    """Make labels, a mask that leaves clients different numbers of rows, and probabilities of both models."""
    y = torch.randint(classes, (count, 60), generator=generator)
    mask = torch.arange(60) < torch.arange(60, 60 - 7 * count, -7).clamp(min=5).unsqueeze(1)
    logits = 1.5 * torch.nn.functional.one_hot(y, classes) + torch.randn(count, 60, classes, generator=generator)
    return {
        "y_test": y.masked_fill(~mask, 0),
        "mask_test": mask,
        "pm.probs": torch.softmax(2 * logits, -1),
        "gm.probs": torch.softmax(0.5 * logits, -1),
    }


def make_classes(
    method: str = "pfedbayes",
    seed: int = 1,
    study: str = "mnist-small",
    kept: float | None = None,
    existing: int = 6,
    new: int = 2,
    level: float = 0.7,
) -> Result:
    """Make a result of a classifier whose numbers depend on the arguments alone."""
    generator = torch.Generator().manual_seed(100 * seed + len(method))
    names = {"existing": existing, "new": new}
    clients = [f"client.{k:02d}" for k in range(existing + new)]
    rounds = []
    for number in range(31):
        fit = 2.0 * math.exp(-number / 9)
        gains = "elbo" if method in VARIATIONAL else "log_evidence" if method == "pac-pfl-bnn" else ""
        values = {gains: -fit} if gains else {"loss": fit}
        values |= {"kept": 0.401, "bytes_dense": 80.0} if method == "sfedbayes" else {}
        values["seconds"] = 0.2
        if number % 5 == 0:
            values["pm.accuracy"] = level + 0.01 * seed - 0.5 * math.exp(-number / 5)
            values["gm.accuracy"] = values["pm.accuracy"] - 0.1
        histograms = {}
        if number in (0, 1, 10):
            shares = torch.rand(len(clients), 20, generator=generator)
            shares = shares / shares.sum(1, keepdim=True)
            histograms = {f"entropy.{name}": tuple(row.tolist()) for name, row in zip(clients, shares, strict=True)}
        rounds.append(RoundRecord(number, existing, (), values, histograms))
    rows: list[ClientRow] = []
    predictions: dict[str, Tensor] = {}
    for group, count in names.items():
        for _ in range(count):
            metrics = dict[str, float]()
            for model, lower in (("pm", 0.0), ("gm", 0.1)):
                accuracy = level - lower + 0.1 * torch.rand((), generator=generator).item()
                metrics |= {f"{model}.accuracy": accuracy, f"{model}.nll": 1 - accuracy, f"{model}.ece": 0.1 * accuracy}
            rows.append(ClientRow(len(rows), clients[len(rows)], group, 20, metrics))
        if count:
            predictions |= {f"{group}.{name}": tensor for name, tensor in _probs(count, generator).items()}
    labels = {} if kept is None else {"kept": kept}
    return Result(study, method, seed, "classification", tuple(rounds), tuple(rows), predictions, labels)


@pytest.fixture(scope="session")
def classes() -> Callable[..., Result]:
    """Give tests the maker of results of classifiers."""
    return make_classes


@pytest.fixture(scope="session")
def made() -> Callable[..., Result]:
    """Give tests the maker of results."""
    return make_result


@pytest.fixture(scope="session")
def result() -> Result:
    """Give a result with one input feature."""
    return make_result()
