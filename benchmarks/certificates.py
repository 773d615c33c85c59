"""Certificates of all methods, before and after: `python -m benchmarks.certificates --out runs/certificates`.

"Before" is Seeger's bound of the refined posterior at all of delta, its risk estimated by kl^-1 of the draws' mean,
with nothing beside it. "After" is what `certify` gives: the best posterior, draws paid for by what is independent in
them, and the hold-out bound of the deployed predictor, at half of delta each. Both are of the same run and the same
rows; a run that stands there is certified again, not trained again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch

import pacbayes_fl as fl
from pacbayes_fl import bounds
from pacbayes_fl.results.certificates import CertifiedClient, CertifiedRun

SPLIT = ("report.certify.scheme=split", "report.certify.tables=1")

_FOLDS = ("report.certify.scheme=folds", "report.certify.tried=1", "data.scale=none", "model.noise_std=0.1")

STUDIES: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "mnist-small": ("mnist-small", ()),
        "fmnist-small": ("fmnist-small", ()),
        "mnist-large": ("benchmarks/studies/mnist-large.toml", ()),
        "fmnist-large": ("benchmarks/studies/fmnist-large.toml", ()),
        "polynomial-10": ("polynomial", ()),
        "polynomial-100": ("polynomial", ("data.options.samples=100",)),
        "polynomial-10-folds": ("polynomial", _FOLDS),
    }
)
"""Studies by name. The last keeps all rows for the bound; its settings were compared on draws before seed 3."""

_REQUESTS: Mapping[str, fl.Request] = MappingProxyType(
    {"polynomial-10-folds": fl.Request(loss=bounds.SaturatingSquare(0.48), holdout=0.0)}  # .48: std of y over clients
)
METHODS = ("pfedbayes", "sfedbayes", "cfedbayes", "bpfed", "fedsi", "fedsi-fac", "fedpop", "pbb", "fedavg-ft")
"""Of studies on images."""


def ran(study: str, method: str | None, seed: int, out: Path, more: Sequence[str] = ()) -> tuple[Path, float]:
    """Train a run, unless it stands there.

    Args:
        study: a key of `STUDIES`.
        method: its name; that of the study when None.
        seed: of the run.
        out: where runs stand.
        more: further settings, which another `out` is for.

    Returns:
        Its folder, and the CPU seconds of its training; NaN where it stood there.
    """
    file, sets = STUDIES[study]
    folder = out / study / (method or "default") / f"seed_{seed}"
    if (folder / "metrics.json").is_file():
        return folder, float("nan")
    chosen = () if method is None else (f"method.name={method}",)
    begun = time.process_time()
    fl.run(fl.Study.from_toml(file, [*SPLIT, *sets, *chosen, *more, f"seed={seed}"]), folder)
    return folder, time.process_time() - begun


def before(table: CertifiedRun) -> list[float]:
    """Bounds of the clients' refined posteriors as they were while draws were paid for as coins.

    Args:
        table: of a request for the refined posterior without a hold-out bound.

    Returns:
        One bound a client.
    """
    certificate = bounds.from_record(table.certificates["existing"])
    terms, estimate = certificate.terms, None
    if "mc_draws" in terms:
        share = certificate.delta_split["Monte Carlo"]
        estimate = bounds.MonteCarlo(fl.Request().draws, share)
    numbers = (terms["risk"], terms["kl"], terms["n"], table.delta, certificate.premises)
    values: list[float] = bounds.seeger(*numbers, monte_carlo=estimate).value.tolist()
    return values


def line(study: str, method: str | None, seed: int, out: Path, more: Sequence[str] = ()) -> str:
    """Certify a run in both ways.

    Args:
        study: a key of `STUDIES`.
        method: its name; that of the study when None.
        seed: of the run.
        out: where runs stand.
        more: as `ran`.

    Returns:
        A row of the table, in Markdown.
    """
    folder, trained_in = ran(study, method, seed, out, more)
    trained = fl.open_run(folder)
    begun = time.process_time()
    posterior = type(trained.method).refine is not fl.Method.refine
    asked = _REQUESTS.get(study, fl.Request())
    table = fl.certify(trained, asked if posterior else fl.Request("holdout-binomial"))
    took = time.process_time() - begun
    lines = [one for one in table.clients if one.group == "existing"]
    held = "bound" if not posterior else "holdout_bound"
    beside = "-" if posterior and not asked.holdout else middle(lines, held)
    known = [middle(lines, "bound") if posterior else "-", beside]
    was = "-"
    if posterior:
        plain = fl.certify(replace(trained, folder=None), replace(asked, posterior="refined", holdout=0.0))
        was = f"{statistics.median(before(plain)):.3f}"
    tested, kl = (statistics.mean(getattr(one, name) for one in lines) for name in ("test_risk", "kl"))
    cells = (study, trained.study.method.name, str(seed), str(lines[0].rows), was, *known, f"{tested:.3f}", f"{kl:.1f}")
    return f"| {' | '.join(cells)} | {trained_in:.0f} | {took:.0f} |"


def middle(lines: Sequence[CertifiedClient], name: str) -> str:
    """Median, smallest and largest of a column.

    Args:
        lines: of a table.
        name: of the column.

    Returns:
        Text.
    """
    values = sorted(getattr(one, name) for one in lines)
    return f"**{statistics.median(values):.3f}** [{values[0]:.3f}, {values[-1]:.3f}]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, a row after each run.

    Args:
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where runs stand")
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--methods", nargs="+", help="those of METHODS, of polynomial studies their own")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings of the runs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| study | method | seed | n | before | bound | hold-out bound | test risk | KL | training, s | certify, s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for study in options.studies:
        own = (None,) if study.startswith("polynomial") else METHODS
        for method in options.methods or own:
            for seed in options.seeds:
                print(line(study, method, seed, options.out, options.set), flush=True)


if __name__ == "__main__":
    main()
