"""Attacks on commands: a box to run them in, what must hold of every answer, and values that nobody means."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import resource
import signal
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final, NamedTuple
from unittest import mock

from pacbayes_fl import cli, settings
from pacbayes_fl.federation import engine
from pacbayes_fl.methods import METHODS
from pacbayes_fl.study.config.models import table_of
from pacbayes_fl.study.config.parts import CertifyPart, DataPart, FederationPart, PrivacyPart, ReportPart
from tests.tiny import TABLE, quick

MEMORY: Final = 3 << 29  # bytes that a command may take beyond what the process has: what is judged needs none of it
SECONDS: Final = 20  # of computing, for commands that take hundredths: one that takes so long hangs
CODES: Final = (0, 1, 2, 130)
SMALL: Final[dict[str, Any]] = TABLE | {
    "data": {"source": "polynomial", "options": {"clients": 2, "new_clients": 1, "samples": 4, "test_samples": 2}},
    "federation": TABLE["federation"] | {"rounds": 1},
}

NUMBERS: Final = (
    *(
        "-1",
        "0",
        "1",
        "3",
        "1000000",
        "2147483648",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775809",
    ),
    *("1" + "0" * 400, "9" * 5000, "0x7fffffffffffffffff", "1_000"),
    *(
        "nan",
        "-nan",
        "inf",
        "-inf",
        "-1.5",
        "0.0",
        "-0.0",
        "0.5",
        "1e-308",
        "5e-324",
        "1e308",
        "-1e308",
        "1e999",
        "9.2e18",
    ),
)
OTHERS: Final = (
    *(
        '"none"',
        '"word"',
        '""',
        '"\\u0000"',
        '"\\u001b[31m"',
        '"../up"',
        '"/abs"',
        "true",
        "[]",
        "[-1]",
        "[0]",
        "[nan]",
    ),
    *("[1000000000]", "[[1]]", "[" * 5000, "[" * 400 + "]" * 400, '["a"]', "{}", "{ a = 1 }", "1979-05-27", "[1, 'a']"),
    *("[" + "1, " * 3000 + "1]", "'held-out'", '"é\\u202e"', "="),
)


class Answer(NamedTuple):
    """What a command left on the screen."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Refuse memory beyond `MEMORY` more than there is, and end a command that hangs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    def hangs(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer in {SECONDS} s")

    before = signal.signal(signal.SIGPROF, hangs)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Enough(Exception):
    """A box is full: what draws inputs for it may stop."""


class Box:
    """A folder in which commands run, with things beside it that they must leave alone.

    Args:
        folder: empty; commands run in `folder/here`.
    """

    def __init__(self, folder: Path) -> None:
        """Make the folder of the commands and its neighbours."""
        self.enough = 10**6  # distinct inputs after which no more are tried
        self.root, self.here, self.inputs = folder, folder / "here", dict[str, Answer]()
        for name in ("here", "home", "tmp", "beside"):
            (folder / name).mkdir()
        (folder / "beside" / "precious.txt").write_text("mine")

    @property
    def full(self) -> bool:
        """Whether there were enough distinct inputs."""
        return len(self.inputs) >= self.enough

    def call(self, *arguments: str, stop: bool = False) -> Answer:
        """Run a command in the box; with `stop`, Ctrl-C comes when the training would begin."""
        out, err = io.StringIO(), io.StringIO()
        around = {"HOME": str(self.root / "home"), "TMPDIR": str(self.root / "tmp")}
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.dict(os.environ, around))
            stack.enter_context(mock.patch("os.fsync"))  # nothing is killed here
            if stop:
                stack.enter_context(mock.patch.object(engine, "rounds", side_effect=KeyboardInterrupt))
            stack.enter_context(contextlib.chdir(self.here))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            stack.enter_context(limited())
            try:
                code = cli.main(arguments)
            except SystemExit as left:
                code = int(left.code or 0)
        return Answer(code, out.getvalue(), err.getvalue())

    def attack(self, name: str, *arguments: str, out: str = "", stop: bool = False) -> Answer:
        """Run a command on a hostile input, and check all that must hold of any.

        Args:
            name: of the input: what counts it, and what a failure is called.
            arguments: of the command.
            out: folder that the command may make, relative to the box; a refused command leaves none.
            stop: see `call`.

        Returns:
            The answer.

        Raises:
            Enough: when the box is full.
        """
        if self.full:
            raise Enough
        if name in self.inputs:  # hypothesis likes to draw things twice
            return self.inputs[name]
        before = self._beside()
        had = {path.name for path in self.here.iterdir()}
        answer = self.call(*arguments, stop=stop)
        told = f"{name}: {answer.code}\n{answer.out[-300:]}\n{answer.err[-3000:]}"
        assert answer.code in CODES, told
        assert "Traceback" not in answer.err + answer.out, told
        assert "a defect of pacbayes-fl" not in answer.err, told
        assert "memory is exhausted" not in answer.err, told
        if answer.code == 1:
            lines = [line for line in answer.err.splitlines() if not line.startswith("warning: ")]
            assert len(lines) == 1 and lines[0].startswith("pacbayes-fl: ") and lines[0].isprintable(), told
            assert len(lines[0]) < 3000, told
            if out and out not in had:
                trained = (self.here / out / "study.toml").is_file()  # the failure came later
                assert trained or not (self.here / out).exists(), f"left an empty folder: {told}"
        assert self._beside() == before, f"wrote outside of its folder: {told}"
        made = {path.name for path in self.here.iterdir()} - had - {out.split("/")[0]}
        assert not made, f"left {made}: {told}"
        self.inputs[name] = answer
        return answer

    def _beside(self) -> list[tuple[str, int]]:
        """List what lies around the folder of the commands."""
        return [
            (str(path), path.stat().st_size)
            for name in ("home", "tmp", "beside")
            for path in sorted((self.root / name).rglob("*"))
        ] + [(path.name, 0) for path in sorted(self.root.iterdir())]


def keys(method: str) -> dict[str, int]:
    """Return the dotted keys of a method's options and of its model, and how many values each is given.

    Two, but one where an earlier method of the table has the same option: of one name, default, type and range.
    """
    return {key: 1 if option in _options_before(method) else 2 for key, option in _options(method).items()}


def _options(method: str) -> dict[str, str]:
    recipe = METHODS[method]
    tables = {"method": recipe.options, "model": table_of(recipe.model)}
    return {
        f"{part}.{field.name}": repr((field.name, field.default, field.type, field.metadata))
        for part, kind in tables.items()
        for field in dataclasses.fields(kind)
    }


@cache
def _options_before(method: str) -> frozenset[str]:
    names = list(METHODS)
    return frozenset(option for name in names[: names.index(method)] for option in _options(name).values())


def common_keys() -> list[str]:
    """Return the dotted keys of every study, whatever its method."""
    tables = {
        "data": DataPart,
        "federation": FederationPart,
        "report": ReportPart,
        "report.certify": CertifyPart,
        "privacy": PrivacyPart,
    }
    own = [f"{part}.{field.name}" for part, kind in tables.items() for field in dataclasses.fields(kind)]
    options = ("clients", "new_clients", "samples", "test_samples", "modes", "seed", "lengthscales", "outputscale")
    return ["name", "seed", "method.name", "method.preset", *own, *(f"data.options.{name}" for name in options)]


def values(key: str, count: int) -> list[str]:
    """Draw values for a key, as TOML; the same for the same key."""
    random = Random(key)
    known = [one for one in NUMBERS if not ("options" in key and one == "1000000")]  # so many clients take a minute
    numbers = random.sample(known, min(len(known), (2 * count + 2) // 3))
    return [*numbers, *random.sample(OTHERS, count - len(numbers))]


def harmless(value: str) -> bool:
    """Whether a study with this value may run: not for a year, should it be accepted."""
    try:
        return abs(float(value)) < 10
    except (ValueError, OverflowError):
        return len(value) < 12


def sets(*assignments: str) -> list[str]:
    """Spell assignments out as arguments."""
    return [part for one in assignments for part in ("--set", one)]


def write_small(folder: Path, **parts: Any) -> Path:
    """Write the smallest study into a folder."""
    path = folder / "s.toml"
    path.write_text(settings.to_toml(SMALL | parts), encoding="utf-8")
    return path


def run(study: str, method: str, *more: str) -> Sequence[str]:
    """Spell out the command that runs a study into `out`."""
    return ["run", study, "--quiet", "--out", "out", *sets(*quick(method)), *more]
