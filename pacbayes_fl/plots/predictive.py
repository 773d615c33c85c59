"""Predictions for single clients: mean and 95 % band, with training and test points."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING

import numpy as np

from pacbayes_fl.errors import StudyError, kinds_checked
from pacbayes_fl.plots.style import (
    FAINT,
    GROUP_COLOURS,
    INK,
    RED,
    NothingToDrawError,
    count_whole,
    group_names,
    panels,
    predicted,
    run_title,
    target_label,
)
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.moments import drawn_before, of_group
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray

_NAMES = ("x_train", "y_train", "mask_train", "x_test", "y_test", "mask_test", "mean", "lower", "upper")
_COLUMNS = 2
_DAY = 86_400.0  # seconds


@kinds_checked
def predictive_bands(result: Result, clients: Sequence[str] | None = None, rows: int = 168) -> Figure:
    """Draw the predictive mean and 95 % band of a few clients with their training and test points (PAC-PFL, Figure 6).

    Against the times of the rows where they are known; with one input feature against that feature. Otherwise rows are
    taken as a series in their stored order: test rows count from 0, and training rows, which need not end where those
    begin, have negative numbers. The title of a panel says which rows are left out.

    Args:
        result: a finished run with predictions.
        clients: names of clients; by default the first and the last of each group.
        rows: most test rows that a series shows, and at most half as many training rows before them.

    Returns:
        A matplotlib figure with one panel a client, in the data's own units.

    Raises:
        StudyError: when there is no client of a name.
        NothingToDrawError: when the result holds no predictions with a mean and a band.
        PacBayesFLError: when matplotlib is not installed.
    """
    groups = {group: predicted(result, group, *_NAMES) for group in GROUPS}
    groups = {group: arrays for group, arrays in groups.items() if arrays and arrays["mask_test"].any()}
    if not groups:
        raise NothingToDrawError("the result holds no predictions with a mean and a band")
    chosen = _chosen(result, groups, clients)
    columns = min(_COLUMNS, len(chosen))
    moments = {group: known for group in groups if (known := of_group(result, group)) is not None}
    series = any(known.series for known in moments.values())
    width, height = (5.2, 2.2) if series else (3.9, 2.7)
    title = f"{run_title(result)}, round {result.round}"
    with panels(-(-len(chosen) // columns), columns, title, width, height) as (figure, axes):
        for axis, (group, number) in zip(axes.flat, chosen, strict=False):
            client = {name: array[number] for name, array in groups[group].items()}
            train = client["y_train"][client["mask_train"]]
            test = {name: client[name][client["mask_test"]] for name in ("y_test", "mean", "lower", "upper")}
            known = moments[group]
            x_train, x_test = (getattr(known, part)[number][client[f"mask_{part}"]] for part in ("train", "test"))
            title = f"{group_names(result, group)[number]} ({group})"
            if known.series:
                title += f"\nthe first {rows} of {x_test.size} test rows" if x_test.size > rows else ""
                train, test = train[-(rows // 2) :], {name: values[:rows] for name, values in test.items()}
                x_train, x_test = x_train[-(rows // 2) :], x_test[:rows]
            if known.kind == "order":
                x_train, x_test = np.arange(-train.size, 0), np.arange(test["mean"].size)
                axis.axvline(-0.5, color=FAINT, linewidth=0.8, zorder=1)
                count_whole(axis.xaxis)
            label = "row (training before 0, test from 0)" if known.kind == "order" else known.label
            if known.kind == "clock":
                near = drawn_before(x_train, x_test)
                x_train, train, x_test = x_train[near] / _DAY, train[near], x_test / _DAY
                by_clock(axis, known.zone)
            _bands(axis, x_train, train, x_test, test, GROUP_COLOURS[group])
            axis.set(title=title, xlabel=label, ylabel=target_label(result))
        for axis in axes.flat[len(chosen) :]:
            axis.remove()
        figure.legend(handles=_key(), loc="outside lower center", ncols=4)
    return figure


def _chosen(
    result: Result, groups: Mapping[str, Mapping[str, Array]], clients: Sequence[str] | None
) -> list[tuple[str, int]]:
    """Return group and position of the clients to draw, of those that have test rows."""
    usable = {
        (group, number): name
        for group, arrays in groups.items()
        for number, name in enumerate(group_names(result, group))
        if arrays["mask_test"][number].any()
    }
    if clients is None:
        ends = [[place for place in usable if place[0] == group] for group in groups]
        return list(dict.fromkeys(place for places in ends for place in (places[0], places[-1])))
    for name in clients:
        if name not in usable.values():
            near = difflib.get_close_matches(name, usable.values(), 1)
            raise StudyError(
                f"the result holds no predictions for a client {name!r}", hint=f"is it {near[0]!r}?" if near else None
            )
    return [place for wanted in clients for place, name in usable.items() if name == wanted]


def _bands(axis: Axes, x_train: Array, train: Array, x_test: Array, test: Mapping[str, Array], colour: str) -> None:
    """Draw one client, its test rows sorted by x."""
    order = np.argsort(x_test, kind="stable")
    x = x_test[order]
    axis.fill_between(x, test["lower"][order], test["upper"][order], color=colour, alpha=0.2, linewidth=0, label="band")
    axis.plot(x, test["mean"][order], color=colour, label="mean")
    axis.plot(x, test["y_test"][order], ".", color=INK, markersize=3, alpha=0.7, label="test")
    axis.plot(x_train, train, "x", color=RED, markersize=4.5, markeredgewidth=1.2, label="training")


def by_clock(axis: Axes, zone: tzinfo) -> None:
    """Let the values of x be told by the clocks of a zone.

    Args:
        axis: whose x are days since 1970 in UTC.
        zone: of the clocks.
    """
    from matplotlib.dates import MINUTELY, SECONDLY, AutoDateLocator, ConciseDateFormatter

    # a unit from 3 of it on: with 5, as is usual, 7 ticks have no step for 4 days in hours, or 4 months in days
    locator = AutoDateLocator(tz=zone, minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    for unit in (MINUTELY, SECONDLY):  # the usual steps of 1, 5, 10 may leave a single tick
        locator.intervald[unit] = [1, 2, 5, 10, 15, 30]
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))  # type: ignore[no-untyped-call]


def _key() -> list[Artist]:
    """Return the entries of the legend that all panels share; the colour of a panel says its group."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Line2D([], [], color=FAINT, label="predictive mean"),
        Patch(color=FAINT, alpha=0.35, linewidth=0, label="95 % band"),
        Line2D([], [], color=RED, marker="x", linestyle="", label="training points"),
        Line2D([], [], color=INK, marker=".", linestyle="", label="test points"),
    ]
