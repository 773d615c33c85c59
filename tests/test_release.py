"""What `python -m build` puts into a wheel: every file of the packages, and into an sdist the tests beside them."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

from pacbayes_fl import __version__

ROOT = Path(__file__).parents[1]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]


def data_files() -> list[Path]:
    """Return what packages hold beside modules: studies, styles, scripts, stubs."""
    files = [path.relative_to(ROOT) for name in BUILD["wheel"]["packages"] for path in (ROOT / name).rglob("*")]
    return [path for path in files if (ROOT / path).is_file() and path.suffix not in (".py", ".pyc")]


def ignored(path: Path, rule: str) -> bool:
    """Whether a rule of .gitignore, which the build follows, leaves a file out."""
    parts = [path, *path.parents][:-1]
    if rule.startswith("/"):
        return any(fnmatch(part.as_posix(), rule.strip("/")) and part.as_posix().count("/") == 0 for part in parts)
    return any(fnmatch(part.name, rule.strip("/")) for part in parts)


def test_a_wheel_has_every_file_that_its_packages_read() -> None:
    """The build leaves out nothing but what rules name."""
    assert set(BUILD["wheel"]) == {"packages"}, "what is left out or added needs a test here"
    found = {path.as_posix() for path in data_files()}
    needed = {"pages/style.css", "pages/script.js", "study/bundled/polynomial.toml", "__init__.pyi", "py.typed"}
    assert {f"pacbayes_fl/{name}" for name in needed} <= found
    rules = [
        line for text in (ROOT / ".gitignore").read_text("utf-8").splitlines() if (line := text.split("#")[0].strip())
    ]
    assert [str(path) for path in data_files() for rule in rules if ignored(path, rule)] == []
    assert ignored(Path("pacbayes_fl/__pycache__/a.toml"), "__pycache__/") and ignored(Path("x.csv"), "/*.csv")
    assert not ignored(Path("pacbayes_fl/x.csv"), "/*.csv")


def test_an_sdist_has_what_its_tests_read() -> None:
    left_out = {rule.strip("/") for rule in BUILD["sdist"]["exclude"]}
    assert set(BUILD["sdist"]) == {"exclude"} and left_out == {"runs", ".ci"}


def test_whoever_cites_names_the_version_that_is_released() -> None:
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {__version__}\n" in cited, "CITATION.cff cannot read the version, which stands in __init__.py"
