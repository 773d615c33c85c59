"""A study that runs in a fraction of a second, its data as a table, and what to look at in its run folder."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pacbayes_fl import settings
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.methods import METHODS
from pacbayes_fl.study.config.choices import NOISE
from pacbayes_fl.study.file import Study

ROUNDS = 12
TABLE: dict[str, Any] = {
    "name": "tiny",
    "seed": 3,
    "data": {
        "source": "polynomial",
        "options": {"clients": 4, "new_clients": 2, "samples": 7, "test_samples": 8},
    },
    "model": {"mean_widths": [4], "kernel_widths": [4], "noise_widths": "constant"},
    "method": {"name": "pac-pfl", "particles": 2, "hyper_prior_std": 0.3},
    "federation": {"rounds": ROUNDS, "checkpoint_every": 4, "device": "cpu", "threads": 1},
}

Row = dict[str, Any]


def tiny(*sets: str) -> Study:
    """Return the study with some values changed."""
    return Study.from_table(TABLE, "tiny.toml", sets)


def quick(name: str) -> list[str]:
    """Return assignments that make a method of the table cheap, and choose what it leaves open."""
    return [*_quick(name)]


@cache  # which hundreds of tests ask for, and a study is made for it
def _quick(name: str) -> tuple[str, ...]:
    recipe = METHODS[name]
    values = {"steps": 2, "draws": 2, "personal_steps": 2, "importance_draws": 3, "finetune": 1, "trees": 2}
    known = {key: value for key, value in values.items() if key in recipe.options.__dataclass_fields__}
    usual = Study.from_table({"data": {"source": "mine.csv"}, "method": {"name": name}})
    known |= {one.option: one.candidates(usual.method.options)[0] for one in usual.held_out if one.table == "method"}
    noise = [f"{one.key}={one.candidates(None)[0]}" for one in usual.held_out if one is NOISE]
    return f"method.name={name}", *(f"method.{key}={value}" for key, value in known.items()), *noise


NUMBERS = tuple(name for name, recipe in METHODS.items() if "regression" in recipe.learns)
"""Methods of the table that learn numbers."""


def learnable(name: str, table: Iterable[Row]) -> tuple[list[str], list[Row]]:
    """Return rows that a method of the table can learn, and assignments that say so: labels if it learns no numbers."""
    if name in NUMBERS:
        return [], [*table]
    return ["data.task=classification"], [{**row, "y": at % 3} for at, row in enumerate(table)]


def write_study(folder: Path, table: Mapping[str, Any] = TABLE) -> Path:
    """Write the study where a command can read it."""
    path = folder / "tiny.toml"
    path.write_text(settings.to_toml(table), encoding="utf-8")
    return path


def rows(seed: int = 0, sizes: Iterable[int] = (9, 12, 8, 10), new: Iterable[int] = (7, 9)) -> list[Row]:
    """Draw a table of ragged clients with two features; the last three rows of each are test rows."""
    random = np.random.default_rng(seed)
    out = []
    for group, counts in (("existing", sizes), ("new", new)):
        for k, count in enumerate(counts):
            x = random.normal(50.0 * (k + 1), 4.0, size=(count, 2))
            y = 1000.0 + x[:, 0] * (k + 1) - 3.0 * x[:, 1] + random.normal(size=count)
            for i in range(count):
                split = "test" if i >= count - 3 else "train"
                fields = {"client": f"{group}_{k}", "lag_1": x[i, 0], "wind": x[i, 1], "y": y[i]}
                out.append(fields | {"split": split, "group": group})
    return out


def write_csv(path: Path, table: Iterable[Row]) -> Path:
    """Write rows as CSV, numbers to the last bit and NaN as an empty cell."""
    table = list(table)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table[0])
        for row in table:
            writer.writerow("" if isinstance(v, float) and math.isnan(v) else v for v in row.values())
    return path


def on_csv(path: Path, *sets: str) -> Study:
    """Return the study with a CSV as its data."""
    plain = {"data": {"source": str(path), "scale": "client"}, "model": TABLE["model"] | {"residuals": "gaussian"}}
    return Study.from_table(TABLE | plain, "tiny.toml", sets)


def state(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of the newest saved round."""
    saved = checkpoint.load(folder)
    assert saved is not None
    return dict(saved.tensors)


def spoiled(data: bytes) -> dict[str, bytes | None]:
    """Return what may become of a file: a bit flipped at three places, cut short, emptied, gone (None)."""

    def flipped(place: int) -> bytes:
        changed = bytearray(data)
        changed[place] ^= 4
        return bytes(changed)

    places = {"first": 0, "middle": len(data) // 2, "last": len(data) - 2}  # before the last line break
    bits = {f"{name} byte flipped": flipped(place) for name, place in places.items()}
    return {**bits, "cut short": data[: 2 * len(data) // 3], "emptied": b"", "gone": None}


def assert_same_state(one: Path, other: Path) -> None:
    """Check that the newest rounds of two folders are equal to the last bit."""
    mine, theirs = state(one), state(other)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype in (torch.float64, torch.int64), name
        assert torch.equal(tensor, theirs[name]), name


def assert_same_results(one: Path, other: Path) -> None:
    """Check that two finished runs left the same state, the same numbers and the same rounds."""
    assert_same_state(one, other)
    for name in ("metrics.json", "clients.csv", "predictions.safetensors", "labels.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
