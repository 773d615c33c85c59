"""Default settings on real federations that ship with packages: `python -m benchmarks.real_federations`.

Nobody has chosen anything for them. "weather" is a panel of pvlib's three typical years (Greensboro, Miami, Sand
Point): clients are the months of a site, rows are days, and tomorrow's irradiation is predicted from today's weather.
"cancer" is scikit-learn's breast cancer table, clients by octile of the mean texture; "wine" its wines, clients by
sextile of the colour's intensity. A sixth of the clients never trains.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import pacbayes_fl as fl
from benchmarks.panels import half_width
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.records import Result

Array = NDArray[np.float64]
METHODS: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "regression": ("pac-pfl", "ridge", "pooled-ridge", "pooled-gbt"),
        "classification": ("pfedbayes", "local", "fedavg", "pooled-bnn"),
    }
)
"""The method, then a model of each client alone, and those of all clients together."""
SCORES: Final = MappingProxyType({"regression": ("rsmse", "nlpd"), "classification": ("pm.accuracy", "pm.nll")})
_WEATHER: Final = ("temperature", "humidity", "pressure", "wind", "irradiation")


def weather() -> pd.DataFrame:
    """Read the days of pvlib's three typical years: a client per site and month, tomorrow's irradiation as the target.

    Returns:
        Means of a day's hours (degrees C, %, hPa, m/s) and sums (kWh/m2); y in kWh/m2. A month of a typical year is of
        one year, so that no pair of days crosses its end.
    """
    import pvlib

    folder, days = Path(pvlib.__file__).parent / "data", []
    for site, name in (("greensboro", "723170TYA.CSV"), ("sand-point", "703165TY.csv"), ("miami", "12839.tm2")):
        if name.endswith("tm2"):
            hours, _ = pvlib.iotools.read_tmy2(folder / name)
            columns = ("DryBulb", "RHum", "Pressure", "Wspd", "GHI")
            hours = hours.assign(DryBulb=hours["DryBulb"] / 10, Wspd=hours["Wspd"] / 10)
        else:
            hours, _ = pvlib.iotools.read_tmy3(folder / name, map_variables=True)
            columns = ("temp_air", "relative_humidity", "pressure", "wind_speed", "ghi")
        hours = hours[list(columns)].set_axis(list(_WEATHER), axis=1).astype(float)
        hour = np.arange(len(hours)) // 24  # from midnight, an hour a row
        table = hours.groupby(hour).mean().assign(irradiation=hours["irradiation"].groupby(hour).sum() / 1000)
        table["month"] = hours.index.month[::24]
        table["y"] = table.groupby("month")["irradiation"].shift(-1)
        table["client"] = [f"{site}_{month:02d}" for month in table["month"]]
        days.append(table.dropna())
    return pd.concat(days)[["client", *_WEATHER, "y"]]


def cancer() -> pd.DataFrame:
    """Deal scikit-learn's breast cancer table out by octile of the mean texture."""
    from sklearn.datasets import load_breast_cancer

    return _by_quantile(load_breast_cancer(as_frame=True).frame, "mean texture", 8)


def wine() -> pd.DataFrame:
    """Deal scikit-learn's wines out by sextile of the colour's intensity."""
    from sklearn.datasets import load_wine

    return _by_quantile(load_wine(as_frame=True).frame, "color_intensity", 6)


def _by_quantile(table: pd.DataFrame, column: str, clients: int) -> pd.DataFrame:
    table = table.rename(columns={"target": "y"})
    return table.assign(client=[f"{column}_{q}" for q in pd.qcut(table[column], clients, labels=False)])


FEDERATIONS: Final = MappingProxyType(
    {"weather": (weather, "regression"), "cancer": (cancer, "classification"), "wine": (wine, "classification")}
)
"""Tables by name, with their task."""


def dealt(table: pd.DataFrame, seed: int, task: str) -> pd.DataFrame:
    """Say which clients are new, and which rows are test rows.

    Args:
        table: as the functions above give it.
        seed: of the clients that are new, and of the rows where they have no order.
        task: days have one: the last third of each client are test rows; of labels a half are, at random.

    Returns:
        The table with the columns group and split.
    """
    random = np.random.default_rng(seed)
    if task == "classification":
        table = table.iloc[random.permutation(len(table))]
    clients = sorted(set(table["client"]))
    new = random.choice(clients, max(1, len(clients) // 6), replace=False)
    place = table.groupby("client").cumcount() / table.groupby("client")["y"].transform("size")
    share = 2 / 3 if task == "regression" else 1 / 2
    group = np.where(table["client"].isin(new), "new", "existing")
    return table.assign(group=group, split=np.where(place < share, "train", "test"))


def compared(name: str, seeds: Sequence[int], folder: Path) -> Iterator[str]:
    """Train all methods by default settings.

    Args:
        name: of `FEDERATIONS`.
        seeds: of the draws and of the runs.
        folder: to write tables to.

    Yields:
        A line for every method and group: mean over clients and seeds of both scores, each with the difference of the
        first method from this one and its paired 95 % interval over clients and seeds by Student's t.
    """
    read, task = FEDERATIONS[name]
    table, results = read(), dict[str, list[Result]]()
    for seed in seeds:
        path = folder / f"{name}_{seed}.csv"
        dealt(table, seed, task).to_csv(path, index=False)
        for method in METHODS[task]:
            study = {"seed": seed, "data": {"source": str(path), "task": task}, "method": {"name": method}}
            result = fl.run(fl.Study.from_table(study))
            means = [f"{np.nanmean(result.column(group, one)):.4f}" for group in GROUPS for one in SCORES[task]]
            print(name, seed, method, result.round, *means, file=sys.stderr, flush=True)
            results.setdefault(method, []).append(result)
    for group in GROUPS:
        for method, runs in results.items():
            cells = []
            for score in SCORES[task]:
                first, own = (_column(one, group, score) for one in (results[METHODS[task][0]], runs))
                cells.append(f"{np.nanmean(own):.3f}" if np.isfinite(own).any() else "-")
                cells.append("" if runs is results[METHODS[task][0]] else _paired(first - own))
            yield " | ".join([name, group, method, *cells])


def _column(runs: Sequence[Result], group: str, score: str) -> Array:
    return np.concatenate([np.asarray(run.column(group, score), dtype=np.float64) for run in runs])


def _paired(difference: Array) -> str:
    known = difference[np.isfinite(difference)]
    if len(known) < 2:
        return "-"
    return f"{known.mean():+.3f} ± {half_width(known):.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of all federations, or of some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*FEDERATIONS], help="some of them (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the draws (default: 0 1 2)")
    options = parser.parse_args(arguments)
    print("| federation | clients | method | RSMSE or accuracy | the first one minus it | NLPD or NLL | the same |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            for line in compared(name, options.seeds, Path(folder)):
                print(f"| {line} |", flush=True)


if __name__ == "__main__":
    main()
