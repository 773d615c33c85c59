"""One thread a process, the published data sets where they are, and markers that skip with a reason."""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before torch and numpy load; worker processes inherit it
os.environ.setdefault("MPLBACKEND", "Agg")
_MEMORY, _ENOUGH = "/dev/shm", 2**32  # bytes: what tests write and remove within a second need not reach a disk
if os.access(_MEMORY, os.W_OK) and os.statvfs(_MEMORY).f_bavail * os.statvfs(_MEMORY).f_frsize > _ENOUGH:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)

import functools
import gc
import logging
import signal
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

import hypothesis
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

from pacbayes_fl import cli, pages
from pacbayes_fl.privacy import numerical
from tests import brief

torch.set_num_threads(1)
_SELDOM = (10_000, 10, 10)
gc.disable()  # all that is made until tests are collected stays, and was looked through for a third of that time
# A shell starts its background jobs with Ctrl-C ignored, and Python then leaves it so: here it is sent on purpose.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The same examples every time, and no time limit per example: a busy machine is no fault.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")
os.fsync = lambda _: None  # the machine of a test loses no power, and a process that is killed none of its bytes


cli.parser = functools.cache(cli.parser)  # type: ignore[attr-defined]  # which takes a third of a short command
metadata.version = functools.cache(metadata.version)  # of a dozen packages, for every run folder
numerical._loss = functools.lru_cache(4)(numerical._loss)  # of a release, for every number of them


def _data_folder() -> Path | None:
    value = os.environ.get("PACBAYES_FL_DATA", "")
    return Path(value) if value and Path(value).is_dir() else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--brief`, with which continuous integration runs the tests."""
    parser.addoption("--brief", action="store_true", help="leave out slow tests and seven of eight forms of each law")


def pytest_configure(config: pytest.Config) -> None:
    """Keep GPUs from tests that do not ask for one: a process whose gradients ran on it cannot fork any more."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_finish() -> None:
    """Let the collector of garbage look at what tests leave, now and then, and not at the tests and modules."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_SELDOM)
    gc.enable()


_PROCESS = os.getpid()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport() -> None:
    """End a forked child that leaves its test: it would run all that is left a second time."""
    if os.getpid() != _PROCESS:
        os._exit(99)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Return the folder of published data sets, or skip; whoever asks for it is marked `real_data`."""
    folder = _data_folder()
    if folder is None:
        pytest.skip("set PACBAYES_FL_DATA to the folder with the published data sets")
    return folder


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark users of `data_root`, skip what this machine cannot run, and leave out what a brief run does."""
    if config.option.brief:
        out = brief.left_out(items)
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]
    no_gpu = None if torch.cuda.is_available() else pytest.mark.skip(reason="no CUDA device; with one, `make gpu`")
    reason = "PACBAYES_FL_DATA names no folder with the published data sets"
    no_data = pytest.mark.skip(reason=reason) if _data_folder() is None else None
    for item in items:
        if "data_root" in getattr(item, "fixturenames", ()):
            item.add_marker("real_data")
        for name, skip in (("gpu", no_gpu), ("real_data", no_data)):
            if skip is not None and item.get_closest_marker(name):
                item.add_marker(skip)


_RENDERED = Figure.savefig, ConstrainedLayoutEngine.execute
_HEADS = {"png": b"\x89PNG\r\n", "svg": b"<?xml <svg"}


def _texts_only(figure: Figure, file: BinaryIO, *, format: str, **_: object) -> None:
    """Write the texts of a figure for its picture, of which most of the time goes into placing letters."""
    texts = [text.get_text() for text in figure.findobj(Text)]
    file.write(b"\n".join([_HEADS[format], *(text.encode() for text in texts)]))


Figure.savefig = _texts_only  # type: ignore[method-assign,assignment]
ConstrainedLayoutEngine.execute = lambda *_: None  # type: ignore[method-assign]


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let figures be drawn: the others are written as their texts."""
    monkeypatch.setattr(Figure, "savefig", _RENDERED[0])
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", _RENDERED[1])


_PAGES = {name: getattr(pages, name) for name in ("write_run", "write_comparison", "write_search", "refresh")}
for _name in _PAGES:  # hundreds of tests run studies, and some look at their pages
    setattr(pages, _name, lambda *_: None)


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs, comparisons and searches write their pages."""
    for name, write in _PAGES.items():
        monkeypatch.setattr(pages, name, write)


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """Return what is logged; pytest's own plugin, which goes through all loggers of torch six times a test, is off."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign,assignment]
    logging.getLogger().addHandler(handler)
    yield records
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run of the tiny study; only to be read."""
    from pacbayes_fl.study.run import run
    from tests.tiny import tiny

    folder = tmp_path_factory.mktemp("finished") / "run"
    run(tiny(), folder)
    return folder
