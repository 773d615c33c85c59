"""The command `report`: the page of a run, a comparison or a search, from its folder alone."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import webbrowser
from pathlib import Path
from typing import Final

from pacbayes_fl.cli.arguments import AddCommand
from pacbayes_fl.cli.output import say
from pacbayes_fl.errors import PacBayesFLError
from pacbayes_fl.results import comparison

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_SECONDS: Final = 120  # for a PDF of the largest page


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "report",
        "one page of everything that a run or comparison found, for people",
        "pacbayes-fl report runs/first --open",
        "pacbayes-fl report runs/three --pdf",
        "pacbayes-fl report best.toml",
    )
    sub.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="folder of a finished run or comparison, or the study that tune has written",
    )
    sub.add_argument("--open", action="store_true", help="show it in the browser")
    sub.add_argument("--pdf", action="store_true", help="also write report.pdf, printed by Chromium or Chrome")


def act(options: argparse.Namespace) -> None:
    """Write the page, and print its path.

    Args:
        options: as parsed.
    """
    from pacbayes_fl import pages

    if options.run.suffix == ".toml" and options.run.is_file():
        path = pages.write_search(options.run)
    elif comparison.is_comparison(options.run):
        path = pages.write_comparison(options.run)
    else:
        path = pages.write_run(options.run)
    say(str(path))
    if options.pdf:
        say(str(_printed(path)))
    if options.open and not webbrowser.open(path.resolve().as_uri()):
        raise PacBayesFLError("no browser was found to open the page in", hint=f"open {path} yourself")


def _printed(page: Path) -> Path:
    """Print a page by a browser without a window; nothing is fetched, as the page needs nothing.

    Args:
        page: HTML.

    Returns:
        The PDF beside it.

    Raises:
        PacBayesFLError: when no such browser is installed, or it fails.
    """
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        what = "a PDF is printed by Chromium or Chrome, and none is installed"
        raise PacBayesFLError(what, hint=f"print {page} from a browser of yours")
    target = page.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as profile:
        half = Path(profile) / "page.pdf"
        call = [
            *(browser, "--headless", "--disable-gpu", "--no-sandbox", "--no-first-run", "--disable-quic"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={profile}", "--no-pdf-header-footer", f"--print-to-pdf={half}"),
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(call, capture_output=True, timeout=_SECONDS, check=False)  # noqa: S603
            data = half.read_bytes()
        except (OSError, subprocess.TimeoutExpired) as error:
            what = f"{browser} could not print {page}: {type(error).__name__}"
            raise PacBayesFLError(what, hint="print it from a browser of yours") from error
    if done.returncode or not data.startswith(b"%PDF"):
        raise PacBayesFLError(f"{browser} ended with {done.returncode} and no PDF", hint=f"print {page} yourself")
    from pacbayes_fl.results.folder import write_atomic

    write_atomic(target, data)
    return target
