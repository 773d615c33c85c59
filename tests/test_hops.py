"""How many files lie between a command and the formula that it comes to: real calls, and docs/architecture.md.

`python -m tests.test_hops` prints the block of that page.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

import pacbayes_fl
from pacbayes_fl import cli
from pacbayes_fl.inference import curvature, evidence, svi
from tests.tiny import write_study

ROOT = Path(pacbayes_fl.__file__).parent
PAGE = ROOT.parent / "docs" / "architecture.md"
MOST = 6  # files from a command to a formula


class Hop(NamedTuple):
    """A function on the way, by the file that it stands in."""

    file: str
    name: str


class Arrived(BaseException):
    """Ends a run where its formula is evaluated for the first time."""

    def __init__(self, hops: list[Hop]) -> None:
        self.hops = hops


class Formula(NamedTuple):
    """What a run of a method comes to: a function, and what it computes."""

    function: Any
    says: str
    options: tuple[str, ...] = ()


NETWORK = ("model.widths=[4]",)
FORMULAS = {
    "pac-pfl": Formula(evidence.particle_scores, "PAC-PFL eq. 33"),
    "pfedbayes": Formula(svi.loss_gradient, "pFedBayes eq. 30", NETWORK),
    "fedsi": Formula(
        curvature.marginal_variance, "FedSI eq. 15", (*NETWORK, "method.alpha=0.01", "method.personal_alpha=0.1")
    ),
}


def stack(frame: FrameType | None) -> Iterator[CodeType]:
    """Yield what was called, the last first."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def read(calls: Sequence[CodeType]) -> list[Hop]:
    """Follow calls as a reader does, from the command's module on: a function inside another stands in its text.

    Who only calls such a function back, as one that cuts clients into calls does, is therefore left out, and so is the
    decorator that checks kinds of arguments: what is read is the function beneath it.
    """
    way: list[CodeType] = []
    for code in calls:
        outer = code.co_qualname.rpartition(".<locals>.")[0]
        for at, known in enumerate(way):
            if outer and known.co_qualname == outer and known.co_filename == code.co_filename:
                del way[at + 1 :]
                break
        else:
            way.append(code)
    hops = [Hop(Path(code.co_filename).relative_to(ROOT).as_posix(), code.co_qualname) for code in way]
    return [hop for hop in hops if hop.file != "cli/__init__.py" and not hop.name.startswith("kinds_checked.")]


def followed(method: str, folder: Path) -> list[Hop]:
    """Run a command and take the calls on the way to the first evaluation of the method's formula."""
    formula = FORMULAS[method]

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is formula.function.__code__:
            sys.setprofile(before)
            calls = [code for code in stack(frame) if Path(code.co_filename).is_relative_to(ROOT)]
            raise Arrived(read(calls[::-1]))

    sets = (f"method.name={method}", *formula.options)
    arguments = [text for each in sets for text in ("--set", each)]
    study = write_study(folder)
    before, said = sys.getprofile(), io.StringIO()
    sys.setprofile(watch)
    try:
        with redirect_stderr(said):
            code = cli.main(["run", str(study), "--rounds", "1", "--out", str(folder / method), "--quiet", *arguments])
    except Arrived as arrived:
        return arrived.hops
    finally:
        sys.setprofile(before)
    raise AssertionError(f"{method} never came to {FORMULAS[method].says}, exit code {code}: {said.getvalue()}")


def files(hops: Sequence[Hop]) -> list[str]:
    """The files of a chain, each once, in the order in which a reader opens them."""
    return list(dict.fromkeys(hop.file for hop in hops))


def text(chains: dict[str, list[Hop]]) -> str:
    """Write the page's block: a line per method, its files with what is called there."""
    lines = []
    for method, hops in chains.items():
        stops = [f"{file}: {', '.join(hop.name for hop in hops if hop.file == file)}" for file in files(hops)]
        lines.append("\n".join([f"{method} ({FORMULAS[method].says})", *(f"  {stop}" for stop in stops)]))
    return "\n".join(lines)


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Hop]]:
    """The chains of three methods."""
    return {method: followed(method, tmp_path_factory.mktemp(method)) for method in FORMULAS}


@pytest.mark.parametrize("method", FORMULAS)
def test_a_formula_is_few_files_from_its_command(chains: dict[str, list[Hop]], method: str) -> None:
    opened = files(chains[method])
    assert opened[0] == "cli/run.py" and len(opened) <= MOST, opened
    assert chains[method][-1].name == FORMULAS[method].function.__name__


def test_the_page_shows_the_calls_that_were_made(chains: dict[str, list[Hop]]) -> None:
    (block,) = re.findall(r"```text\n(pac-pfl \(.*?)\n```", PAGE.read_text("utf-8"), re.DOTALL)
    assert block == text(chains), "print the block anew: python -m tests.test_hops"


def test_a_detour_of_callbacks_is_left_out_and_another_file_is_not() -> None:
    def code(name: str, file: str) -> CodeType:
        return followed.__code__.replace(co_qualname=name, co_filename=str(ROOT / file))

    way = [code("main", "cli/__init__.py"), code("act", "cli/run.py"), code("play", "a.py"), code("calls", "b.py")]
    inside = code("play.<locals>.work", "a.py")
    assert files(read([*way, inside, code("client", "c.py")])) == ["cli/run.py", "a.py", "c.py"]
    assert files(read([*way, code("other.<locals>.work", "a.py")])) == ["cli/run.py", "a.py", "b.py"]


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        print(text({method: followed(method, Path(folder)) for method in FORMULAS}))
