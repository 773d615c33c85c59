"""Default settings beside linear models on small federations: `python -m benchmarks.small_federations`.

What a user meets who names only a table. Eleven federations are made here: linear, smooth, rough, heavy-tailed, with
slopes of each client's own, with a client whose target is constant, from 3 to 300 rows a client, and series with a
trend and a cycle, whose test rows are beyond the training rows. One is real:
scikit-learn's diabetes table, clients by sex and octile of age. Six clients (of diabetes four) never train.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import pacbayes_fl as fl
from benchmarks.panels import half_width
from pacbayes_fl.results.records import Result

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    """A made federation.

    Args:
        features: d.
        clients: that train.
        rows: for training, of every client.
    """

    features: int
    clients: int
    rows: int


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "linear": Kind(5, 16, 12),
        "linear-few": Kind(4, 12, 3),
        "linear-own": Kind(3, 16, 20),
        "smooth": Kind(2, 16, 15),
        "smooth-own": Kind(2, 12, 40),
        "rough": Kind(1, 12, 30),
        "heavy": Kind(4, 16, 20),
        "constant": Kind(3, 10, 12),
        "many-rows": Kind(3, 4, 300),
        "wide": Kind(20, 16, 15),
        "trend": Kind(2, 10, 60),
    }
)
NEW, TEST = 6, 50  # new clients, and test rows of every client
LINEAR = ("ridge", "pooled-ridge")


def targets(name: str, client: int, x: Array, weight: Array, directions: Array, random: np.random.Generator) -> Array:
    """Draw one client's targets.

    Args:
        name: of `KINDS`.
        client: its number; the first of "constant" has the constant target.
        x: inputs [m, d].
        weight: the federation's slopes [d].
        directions: in which it is smooth [d, 2].
        random: source of randomness.

    Returns:
        [m].
    """
    residual: Array = random.normal(size=len(x))
    smooth: Array = np.sin(x @ directions / 1.5)
    heights = np.array([1.0, -1.0])
    match name:
        case "linear-own":
            own: Array = weight + 0.3 * random.normal(size=len(weight))
            return np.asarray(x @ own + 0.5 * residual)
        case "smooth":
            return np.asarray(smooth @ heights + 0.3 * residual)
        case "smooth-own":
            return smooth @ (heights + 0.5 * random.normal(size=2)) + 0.3 * residual
        case "rough":
            return np.sign(np.sin(4 * x[:, 0])) + 0.5 * x[:, 0] + 0.3 * residual
        case "heavy":
            return x @ weight + 0.5 * random.standard_t(2, size=len(x))
        case "constant" if client == 0:
            return np.full(len(x), 2.0)
        case "trend":
            slope = weight[0] + 0.2 * random.normal()
            return np.asarray(slope * x[:, 0] + np.sin(x[:, 0]) + 0.3 * x[:, 1] + 0.3 * residual)
        case "many-rows":
            return x @ weight + 0.4 * np.sin(2 * x[:, 0]) + 0.5 * residual
    return x @ weight + 0.5 * residual


def made(name: str, seed: int) -> pd.DataFrame:
    """Draw a federation.

    Args:
        name: of `KINDS`.
        seed: of the draw.

    Returns:
        A table with columns client, group, split, x0, x1, ... and y, as a study reads it; without split of "trend", of
        which a quarter of each client's rows, the last ones, are test rows.
    """
    kind, random = KINDS[name], np.random.default_rng([seed, list(KINDS).index(name)])
    weight = random.normal(size=kind.features) / kind.features**0.5
    directions = random.normal(size=(kind.features, 2))
    tables = []
    for client in range(kind.clients + NEW):
        series = name == "trend"
        x = random.normal(size=(kind.rows + (kind.rows // 3 if series else TEST), kind.features))
        if series:
            x[:, 0] = np.arange(len(x)) / 4
        table = pd.DataFrame(x, columns=[f"x{j}" for j in range(kind.features)])
        table["y"] = 3 + 10 * targets(name, client, x, weight, directions, random)
        table["client"], table["group"] = f"client_{client}", "existing" if client < kind.clients else "new"
        if not series:
            table["split"] = ["train"] * kind.rows + ["test"] * TEST
        tables.append(table)
    return pd.concat(tables)


def diabetes(seed: int) -> pd.DataFrame:
    """Deal scikit-learn's diabetes table out to 16 clients by sex and octile of age; every other row is a test row."""
    from sklearn.datasets import load_diabetes

    random = np.random.default_rng(seed)
    table = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "y"})
    octile = pd.qcut(table["age"], 8, labels=False)
    table["client"] = [f"sex_{s:g}_age_{o}" for s, o in zip(table.pop("sex"), octile, strict=True)]
    table = table.iloc[random.permutation(len(table))].sort_values("client", kind="stable")
    new = random.choice(sorted(set(table["client"])), 4, replace=False)
    table["group"] = np.where(table["client"].isin(new), "new", "existing")
    table["split"] = np.where(table.groupby("client").cumcount() % 2 == 0, "train", "test")
    return table


def runs(
    table: pd.DataFrame, method: str, sets: Sequence[str], folder: Path, linear: Sequence[str] = ()
) -> dict[str, Result]:
    """Train the two linear models, and a method by default settings.

    Args:
        table: as `made` gives it.
        method: that is compared with ridge regressions.
        sets: assignments for it, such as "federation.rounds=100".
        folder: to write the table to.
        linear: assignments for the linear models, such as "data.scale=held-out".

    Returns:
        By name of the method, that which is compared last.
    """
    path, results = folder / "rows.csv", {}
    table.to_csv(path, index=False)
    for name in (*LINEAR, method):
        study = {"data": {"source": str(path)}, "method": {"name": name}}
        results[name] = fl.run(fl.Study.from_table(study, sets=sets if name == method else linear))
    return results


def excess(draws: Sequence[Mapping[str, Result]], method: str, group: str) -> tuple[float, float]:
    """Compare a method's RSMSE with that of the better linear model, client by client.

    Args:
        draws: runs as `runs` gives them, one for every draw.
        method: that is compared.
        group: "existing" or "new".

    Returns:
        Mean difference over the clients of all draws, negative where the method is better, and half its 95 % interval
        by Student's t. Clients with a constant target have no RSMSE and do not count.
    """
    errors = {name: column(draws, name, group, "rsmse") for name in (*LINEAR, method)}
    better = min(LINEAR, key=lambda name: float(np.nanmean(errors[name])))
    difference = errors[method] - errors[better]
    difference = difference[np.isfinite(difference)]
    return float(difference.mean()), half_width(difference)


def column(draws: Sequence[Mapping[str, Result]], method: str, group: str, score: str) -> Array:
    """Collect a score of the clients of all draws.

    Args:
        draws: runs as `runs` gives them, one for every draw.
        method: whose score it is.
        group: "existing" or "new".
        score: its name.

    Returns:
        [K], NaN of a client without one.
    """
    return np.concatenate([np.asarray(results[method].column(group, score), dtype=float) for results in draws])


def compared(
    tables: Sequence[pd.DataFrame], method: str, sets: Sequence[str], folder: Path, linear: Sequence[str] = ()
) -> Iterator[str]:
    """Train by default settings and compare by clients with the better of the two linear models.

    Args:
        tables: as `made` gives them, one for every draw.
        method: that is compared with ridge regressions.
        sets: assignments for it, such as "federation.rounds=100".
        folder: to write the tables to.
        linear: assignments for the linear models.

    Yields:
        For existing and new clients of all draws: mean RSMSE of every method, difference with its paired 95 % interval,
        mean NLPD, and the number of rounds of every draw.
    """
    draws = [runs(table, method, sets, folder, linear) for table in tables]
    rounds = ", ".join(str(results[method].round) for results in draws)
    for group in ("existing", "new"):
        mean, half = excess(draws, method, group)
        nlpd = " | ".join(f"{np.nanmean(column(draws, name, group, 'nlpd')):.2f}" for name in draws[0])
        means = " | ".join(f"{np.nanmean(column(draws, name, group, 'rsmse')):.3f}" for name in draws[0])
        yield f"{group} | {means} | {mean:+.3f} ± {half:.3f} | {nlpd} | {rounds}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of all federations, or of some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*KINDS, "diabetes"], help="some of them (default: all)")
    parser.add_argument("--method", default="pac-pfl", help="that is compared (default: pac-pfl)")
    parser.add_argument("--rounds", help="of it (default: the default's, which held-out training rows choose)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the draws (default: 0)")
    parser.add_argument("--set", action="append", default=[], help="an assignment for it, such as data.scale=shrunk")
    parser.add_argument("--linear", action="append", default=[], help="an assignment for the linear models")
    options = parser.parse_args(arguments)
    sets = [*([] if options.rounds is None else [f"federation.rounds={options.rounds}"]), *options.set]
    print(
        f"| federation | clients | ridge | pooled ridge | {options.method} | minus the better one | NLPD | | | rounds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in options.names:
        tables = [diabetes(seed) if name == "diabetes" else made(name, seed) for seed in options.seeds]
        with tempfile.TemporaryDirectory() as folder:
            for line in compared(tables, options.method, sets, Path(folder), options.linear):
                print(f"| {name} | {line} |", flush=True)


if __name__ == "__main__":
    main()
