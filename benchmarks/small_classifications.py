"""Default settings beside training alone on small federations of labels: `python -m benchmarks.small_classifications`.

What a user meets who names only a table. "digits" are scikit-learn's by label, "wine" and "cancer" those of
`benchmarks.real_federations`. Two are made: "shifted", whose classes lie elsewhere at every client, and "few", four
rows a client. The last two are images, read below `PACBAYES_FL_DATA`: "writers", 20 digits of every writer of FEMNIST,
and "mnist", 20 digits of five labels.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import pacbayes_fl as fl
from benchmarks.panels import half_width
from benchmarks.real_federations import cancer, dealt, wine
from pacbayes_fl.results.records import Result

Array = NDArray[np.float64]
METHODS = ("pfedbayes", "sfedbayes", "cfedbayes", "bpfed", "fedsi")
ALONE = "local"


def _labelled(x: Array, y: NDArray[np.int64]) -> pd.DataFrame:
    table = pd.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])])
    table["y"] = y
    return table


def digits(seed: int) -> pd.DataFrame:
    """Deal scikit-learn's digits out to 20 clients with 3 labels each, per label 8 training and 16 test rows."""
    from sklearn.datasets import load_digits

    random, (x, y) = np.random.default_rng(seed), load_digits(return_X_y=True)
    decks = {label: random.permutation(np.flatnonzero(y == label)) for label in range(10)}
    dealt = dict.fromkeys(range(10), 0)
    clients = []
    for client in range(20):
        for label in ((3 * client + j) % 10 for j in range(3)):
            rows = np.take(decks[label], dealt[label] + np.arange(24), mode="wrap")
            dealt[label] += 24
            part = _labelled(x[rows], y[rows])
            part["client"], part["split"] = f"client_{client}", ["train"] * 8 + ["test"] * 16
            clients.append(part)
    return pd.concat(clients)


def _made(seed: int, clients: int, classes: int, rows: int, shift: float) -> pd.DataFrame:
    """Normal classes in ten dimensions whose means are the federation's, moved by `shift` at every client."""
    random = np.random.default_rng([seed, rows])
    means = random.normal(size=(classes, 10))
    parts = []
    for client in range(clients):
        own = means + shift * random.normal(size=means.shape)
        y = np.resize(np.arange(classes), rows + 50)
        part = _labelled(own[y] + random.normal(size=(len(y), 10)), y)
        part["client"], part["split"] = f"client_{client}", ["train"] * rows + ["test"] * 50
        parts.append(part)
    return pd.concat(parts)


def shifted(seed: int) -> pd.DataFrame:
    """Draw 12 clients with 4 classes and 24 training rows; their means move by .7 of a class's standard deviation."""
    return _made(seed, 12, 4, 24, 0.7)


def few(seed: int) -> pd.DataFrame:
    """Draw 16 clients with 4 classes and one training row of each."""
    return _made(seed, 16, 4, 4, 0.3)


TABLES: Mapping[str, Callable[[int], pd.DataFrame]] = MappingProxyType(
    {
        "digits": digits,
        "wine": lambda seed: dealt(wine(), seed, "classification"),
        "cancer": lambda seed: dealt(cancer(), seed, "classification"),
        "shifted": shifted,
        "few": few,
    }
)
IMAGES: Mapping[str, Sequence[str]] = MappingProxyType(
    {"writers": ("femnist-20",), "mnist": ("mnist-small", "data.options.train=4", "data.options.validation=1")}
)


def study(name: str, seed: int, method: str, folder: Path, sets: Sequence[str] = ()) -> fl.Study:
    """Make a study of one federation with one method, all else as the library has it.

    Args:
        name: of `TABLES` or `IMAGES`.
        seed: of the draw of rows, and of the run.
        method: its name.
        folder: to write a table to.
        sets: assignments, such as "federation.rounds=100".

    Returns:
        The study. Rows of "digits" are dealt again when a label is used up, and are kept.
    """
    common = [f"seed={seed}", "report.evaluate_every=none", *sets]
    if name in IMAGES:
        bundled, *own = IMAGES[name]
        return fl.Study.from_toml(bundled, [f"method.name={method}", *own, *common])
    path = folder / f"{name}_{seed}.csv"
    if not path.exists():
        TABLES[name](seed).to_csv(path, index=False)
    data = {"source": str(path), "task": "classification", "duplicate_rows": "allow"}
    return fl.Study.from_table({"data": data, "method": {"name": method}}, sets=common)


def compared(name: str, seeds: Sequence[int], methods: Sequence[str], sets: Sequence[str]) -> Iterator[str]:
    """Train by default settings and compare every method with training alone, by clients.

    Args:
        name: of the federation.
        seeds: of the draws.
        methods: that are compared.
        sets: assignments for them, such as "federation.rounds=100".

    Yields:
        Per method: accuracy of it and of training alone in per cent, difference with its paired 95 % interval over
        clients of all draws by Student's t, and mean NLL of both.
    """

    def column(runs: Sequence[Result], score: str) -> Array:
        return np.concatenate([np.asarray(run.column("existing", score), dtype=float) for run in runs])

    with tempfile.TemporaryDirectory() as folder:
        alone = [fl.run(study(name, seed, ALONE, Path(folder))) for seed in seeds]
        base, base_nll = column(alone, "pm.accuracy"), column(alone, "pm.nll")
        for method in methods:
            own = [fl.run(study(name, seed, method, Path(folder), sets)) for seed in seeds]
            accuracy, nll = column(own, "pm.accuracy"), column(own, "pm.nll")
            gain = 100 * (accuracy - base)
            yield (
                f"{method} | {100 * base.mean():.1f} | {100 * accuracy.mean():.1f} "
                f"| {gain.mean():+.1f} ± {half_width(gain):.1f} | {base_nll.mean():.3f} | {nll.mean():.3f}"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of all federations, or of some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*TABLES, *IMAGES], help="some of them (default: all)")
    parser.add_argument(
        "--methods", default=",".join(METHODS), help=f"that are compared (default: {','.join(METHODS)})"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the draws (default: 0)")
    parser.add_argument("--set", action="append", default=[], help="an assignment for them, such as method.zeta=1")
    options = parser.parse_args(arguments)
    print("| federation | method | alone % | accuracy % | difference | NLL alone | NLL |")
    print("|---|---|---|---|---|---|---|")
    for name in options.names:
        for line in compared(name, options.seeds, options.methods.split(","), options.set):
            print(f"| {name} | {line} |", flush=True)


if __name__ == "__main__":
    main()
