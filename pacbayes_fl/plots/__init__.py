"""Figures from results alone: every function takes finished runs and returns a matplotlib figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pacbayes_fl import files
from pacbayes_fl.errors import StudyError, kinds_checked
from pacbayes_fl.plots import certificates
from pacbayes_fl.plots.bounds import bound_curve
from pacbayes_fl.plots.calibration import calibration_curve
from pacbayes_fl.plots.clients import PARTICLES, box_plots, client_boxes, particle_ablation
from pacbayes_fl.plots.convergence import convergence_curves
from pacbayes_fl.plots.diagnostics import diagnostics
from pacbayes_fl.plots.intervals import interval_plot
from pacbayes_fl.plots.learning import learning_curve
from pacbayes_fl.plots.paper import SCREEN, Look, lay_out
from pacbayes_fl.plots.predictive import predictive_bands
from pacbayes_fl.plots.privacy import privacy_utility
from pacbayes_fl.plots.reliability import reliability_diagram
from pacbayes_fl.plots.shares import coverage, pit_histograms
from pacbayes_fl.plots.sparsity import kept_share, sparsity_curve
from pacbayes_fl.plots.style import NothingToDrawError, drawing
from pacbayes_fl.plots.sweep import sweep_curve
from pacbayes_fl.plots.uncertainty import uncertainty_histograms
from pacbayes_fl.results.certificates import CertifiedRun
from pacbayes_fl.results.grouping import by_settings, distinct
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FIGURES",
    "Look",
    "NothingToDrawError",
    "bound_curve",
    "box_plots",
    "calibration_curve",
    "certificates",
    "client_boxes",
    "convergence_curves",
    "coverage",
    "diagnostics",
    "interval_plot",
    "kept_share",
    "learning_curve",
    "particle_ablation",
    "pit_histograms",
    "predictive_bands",
    "privacy_utility",
    "reliability_diagram",
    "save_all",
    "save_bound",
    "save_certificates",
    "save_joint",
    "sparsity_curve",
    "sweep_curve",
    "uncertainty_histograms",
]

FIGURES: Mapping[str, Callable[[Result], Figure]] = MappingProxyType(
    {
        "predictions": predictive_bands,  # first: of clients that are not there nothing is written
        "learning": learning_curve,
        "diagnostics": diagnostics,
        "clients": client_boxes,
        "calibration": calibration_curve,
        "pit": pit_histograms,
        "coverage": coverage,
        "reliability": reliability_diagram,
        "uncertainty": uncertainty_histograms,
    }
)
"""Every figure of one run, under the name of its file."""


_DATE = MappingProxyType({"svg": "Date", "pdf": "CreationDate"})  # what would differ from one day to the next


@kinds_checked
def save_all(
    result: Result,
    folder: Path | str,
    formats: Sequence[str] = ("png", "svg"),
    clients: Sequence[str] | None = None,
    look: Look = SCREEN,
) -> list[Path]:
    """Write every figure that a result has the numbers for; the same result gives the same bytes.

    Args:
        result: a finished run.
        folder: where the files go, made if it does not exist.
        formats: file endings that matplotlib knows.
        clients: names of the clients of the predictive bands; a few of each group when None.
        look: for a screen or for paper, and how wide.

    Returns:
        The files written, such as `learning.png`; figures for which the result holds nothing are left out.

    Raises:
        StudyError: when matplotlib does not know a format.
        PacBayesFLError: when matplotlib is not installed.
    """
    figures: dict[str, Callable[[Result], Figure]] = {**FIGURES}
    figures["predictions"] = partial(predictive_bands, clients=clients)
    return _save({name: partial(draw, result) for name, draw in figures.items()}, Path(folder), formats, look)


@kinds_checked
def save_certificates(
    tables: Sequence[CertifiedRun],
    folder: Path | str,
    formats: Sequence[str] = ("png", "svg"),
    look: Look = SCREEN,
) -> list[Path]:
    """Write a figure for every table of certificates; the same table gives the same bytes.

    Args:
        tables: of one run, as `results.certificates.tables_of` reads them.
        folder: where the files go, made if it does not exist.
        formats: file endings that matplotlib knows.
        look: for a screen or for paper, and how wide.

    Returns:
        The files written, such as `certificates-seeger.png`; tables without clients are left out.

    Raises:
        StudyError: when matplotlib does not know a format.
        PacBayesFLError: when matplotlib is not installed.
    """
    figures = {f"certificates-{table.stem}": partial(certificates.figure, table) for table in tables}
    return _save(figures, Path(folder), formats, look)


@kinds_checked
def save_bound(
    n: Sequence[float], bounds: Sequence[float], path: Path | str, title: str, risk: float | None = None
) -> Path:
    """Write the figure of a bound against the number of rows.

    Args:
        n: numbers of rows.
        bounds: one for each; NaN where there is no certificate.
        path: of the file, whose ending is the format.
        title: of the figure.
        risk: empirical risk.

    Returns:
        The path.

    Raises:
        NothingToDrawError: when no bound is a certificate.
        StudyError: when matplotlib does not know the format.
        PacBayesFLError: when matplotlib is not installed.
    """
    figure, path = bound_curve(n, bounds, title, risk), Path(path)
    _save({path.stem: lambda: figure}, path.parent, [path.suffix.removeprefix(".")], SCREEN)
    return path


@kinds_checked
def save_joint(
    results: Sequence[Result], folder: Path | str, formats: Sequence[str] = ("png", "svg"), look: Look = SCREEN
) -> list[Path]:
    """Write the figures that compare runs, as far as the results have the data.

    Box plots by method, the means of several runs with their intervals, the convergence of classifiers, and for
    methods that ran with several numbers of particles and differ in nothing else, with several shares of weights kept,
    or with several values of what a comparison varied, what comes of it. Where a run was private, what privacy costs.
    Runs that differ in nothing but their seed are one; what else differs is in their names.

    Args:
        results: finished runs.
        folder: where the files go, made if it does not exist.
        formats: file endings that matplotlib knows.
        look: for a screen or for paper, and how wide.

    Returns:
        The files written.

    Raises:
        StudyError: when matplotlib does not know a format.
        PacBayesFLError: when matplotlib is not installed.

    Warns:
        UserWarning: naming results that are there twice, and are drawn once.
    """
    results = distinct(results)
    figures: dict[str, Callable[[], Figure]] = {
        "box_plots": partial(box_plots, results),
        **({"intervals": partial(interval_plot, results)} if len(by_settings(results)) > 1 else {}),
        "convergence": partial(convergence_curves, results),
    }
    if ablated := _ablated(results):
        figures["particles"] = partial(particle_ablation, ablated)
    if pruned := _pruned(results):
        figures["sparsity"] = partial(sparsity_curve, pruned)
    if any("varied" in result.labels for result in results):
        figures["sweep"] = partial(sweep_curve, results)
    if any(result.labels.get("privacy") for result in results):
        figures["privacy_utility"] = partial(privacy_utility, results)
    return _save(figures, Path(folder), formats, look)


def _ablated(results: Sequence[Result]) -> list[Result]:
    """Return the runs that differ in nothing but their seed and their number of particles, where it has several."""
    known = [result for result in results if "particles" in result.labels and "varied" not in result.labels]
    runs = by_settings(known, without=PARTICLES).values()
    return [one for same in runs if len({one.labels["particles"] for one in same}) > 1 for one in same]


def _pruned(results: Sequence[Result]) -> list[Result]:
    """Return the runs of methods that kept several shares of their weights; one a method is no curve."""
    shares: dict[str, set[float]] = {}
    for result in results:
        if (share := kept_share(result)) is not None:
            shares.setdefault(result.method, set()).add(share)
    return [r for r in results if kept_share(r) is not None and len(shares[r.method]) > 1]


def _save(figures: Mapping[str, Callable[[], Figure]], folder: Path, formats: Sequence[str], look: Look) -> list[Path]:
    written = []
    with drawing():
        for name, draw in figures.items():
            try:
                figure = draw()
            except NothingToDrawError:
                continue
            known = figure.canvas.get_supported_filetypes()
            if unknown := [ending for ending in formats if ending not in known]:
                raise StudyError(f"formats must be among {', '.join(sorted(known))}, got {', '.join(unknown)}")
            look.apply(figure)
            lay_out(figure)
            figure.set_layout_engine("none")  # the first drawing places everything, the same for every format
            files.make_folder(folder)
            for ending in formats:
                path = folder / f"{name}.{ending}"
                known_date = {_DATE[ending]: None} if ending in _DATE else None
                with files.opened(path, "wb") as file:
                    figure.savefig(file, format=ending, dpi=160, metadata=known_date)
                written.append(path)
    return written
