"""Tests mirror sources: whoever reads a module knows where its tests are."""

from __future__ import annotations

from collections.abc import Collection

from tests.architecture.source import ROOT, complain, modules


def mirror_of(path: str) -> str | None:
    """Return where the tests of a module belong; None for `__init__.py` and `__main__.py`."""
    *folders, file = path.split("/")
    if file in ("__init__.py", "__main__.py"):
        return None
    inner = folders[1:] if folders[0] == "pacbayes_fl" else folders
    return "/".join(["tests", *inner, f"test_{file.lstrip('_')}"])


def untested(sources: Collection[str], tests: Collection[str]) -> list[str]:
    """Return one line for each module whose tests are not where they belong."""
    return [f"{path} has no {mirror}" for path in sources if (mirror := mirror_of(path)) and mirror not in tests]


def test_every_module_has_its_tests() -> None:
    complain(untested(modules(), {file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py")}))


def test_a_module_without_tests_is_found() -> None:
    sources = [
        "pacbayes_fl/__init__.py",
        "pacbayes_fl/noise.py",
        "pacbayes_fl/data/batch.py",
        "pacbayes_fl/methods/baselines/pooled.py",
        "data_gen/__main__.py",
        "data_gen/pv.py",
    ]
    tests = ["tests/test_noise.py", "tests/data/test_batch.py", "tests/methods/baselines/test_pooled.py"]
    assert untested(sources, [*tests, "tests/data_gen/test_pv.py"]) == []
    assert untested(sources, tests) == ["data_gen/pv.py has no tests/data_gen/test_pv.py"]
    assert untested(sources[1:3], ["tests/test_batch.py"]) == [
        "pacbayes_fl/noise.py has no tests/test_noise.py",
        "pacbayes_fl/data/batch.py has no tests/data/test_batch.py",
    ]
