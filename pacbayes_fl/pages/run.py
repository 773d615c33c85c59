"""The page of a run, made from its folder alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pacbayes_fl.errors import PacBayesFLError
from pacbayes_fl.names import shortened
from pacbayes_fl.pages import about
from pacbayes_fl.pages.about import Known
from pacbayes_fl.pages.calibration import calibration
from pacbayes_fl.pages.certificates import certificates
from pacbayes_fl.pages.classes import classes, uncertainty_rounds
from pacbayes_fl.pages.clients import clients
from pacbayes_fl.pages.document import MOST, page
from pacbayes_fl.pages.errors import errors
from pacbayes_fl.pages.forecasts import Rows, rows_of
from pacbayes_fl.pages.rounds import privacy, rounds
from pacbayes_fl.pages.scores import results
from pacbayes_fl.results.certificates import CertifiedRun, tables_of
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.manifest import put
from pacbayes_fl.results.records import Result, load

FILE: Final = "report.html"
"""What the page is called in the folder of a run or of a comparison."""
_TITLE: Final = 90
_SMALLEST: Final = 1 / 64


def run_page(result: Result, known: Known, tables: Sequence[CertifiedRun] = (), stale: Sequence[str] = ()) -> str:
    """Make the page of a run, below 3 MB: of many clients it draws and lists fewer, and says so.

    Args:
        result: a finished run.
        known: what its folder says beside the result.
        tables: certificates of its current state.
        stale: what is said of certificates of another state.

    Returns:
        HTML, self-contained.
    """
    share, text = 1.0, _page(result, known, tables, stale, 1.0)
    while len(text.encode()) > MOST and share > _SMALLEST:
        share /= 2
        text = _page(result, known, tables, stale, share)
    return text


def _page(result: Result, known: Known, tables: Sequence[CertifiedRun], stale: Sequence[str], share: float) -> str:
    """Make the page with a share of the lines and drawings of clients that it may hold."""
    groups: dict[str, Rows] = {}
    if result.task == "regression":
        groups = {group: rows for group in GROUPS if (rows := rows_of(result, group)) is not None}
    commands = (
        "pacbayes-fl run study.toml --out again",
        "pacbayes-fl show again",
        "pacbayes-fl report again --open",
    )
    numbers = [errors(result, groups), calibration(result)] if result.task == "regression" else []
    labels = [classes(result), uncertainty_rounds(result)] if result.task == "classification" else []
    return page(
        f"{shortened(result.method, _TITLE)} on {shortened(result.study, _TITLE)}",
        "Report of a run",
        [about.paragraph(result, known.study)],
        [
            about.warnings(result, known),
            *((results(result), clients(result, groups, share)) if result.clients else ()),
            *numbers,
            *[one for one in labels if one is not None and one.tag == "section"],
            certificates(tables, stale),
            privacy(result),
            rounds(result),
            about.repeat(result, known, commands),
        ],
    )


def write_run(folder: Path | str, result: Result | None = None) -> Path:
    """Write the page of a run into its folder.

    Args:
        folder: of a finished run.
        result: of the run; read from the folder when None.

    Returns:
        The file.

    Raises:
        StudyError, DataError, CheckpointError: when the folder holds no finished run, or cannot be read or written.
    """
    folder, stale = Path(folder), list[str]()
    result = load(folder) if result is None else result
    try:
        tables = tables_of(folder, stale.append)
    except PacBayesFLError as error:  # a table that was edited is no reason to show nothing of the run
        tables, stale = [], [str(error)]
    text = run_page(result, about.known_of(folder), tables, stale)
    put(folder, {FILE: text.encode()}, last=True)
    return folder / FILE


def refresh(folder: Path | str) -> None:
    """Write the page of a run again where it has one: its folder holds more than before, such as certificates.

    Args:
        folder: of a finished run.

    Raises:
        StudyError, DataError, CheckpointError: as `write_run`.
    """
    if (Path(folder) / FILE).is_file():
        write_run(folder)
