"""Every example runs as it stands, and every Python block of a page does, in the order of the page."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "```python\n" in page.read_text("utf-8")]
PAGES = [page for page in PAGES if "generated" not in page.parts]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.law
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_runs(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(example.read_text("utf-8").splitlines()) < 60
    runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed and not re.search(r"\b(nan|inf)\b", printed)


def test_there_are_eight_and_every_one_stands_on_a_page() -> None:
    text = "".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert len(EXAMPLES) >= 8
    assert not [example.name for example in EXAMPLES if f"examples/{example.name}" not in text]


@pytest.mark.law
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_python_of_a_page_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, object] = {"__name__": page.stem}
    for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        exec(compile(block, page.name, "exec"), space)
    assert "nan" not in capsys.readouterr().out
