"""Generated pages hold every name that there is, and tables of results keep their numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import pages
from docs.pages import methods, records, results
from pacbayes_fl.certificates import network
from pacbayes_fl.cli.parser import parser
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.methods import METHODS
from pacbayes_fl.options import options_of
from pacbayes_fl.privacy import ledger, shared_ledger
from pacbayes_fl.results import certificates, manifest
from pacbayes_fl.study.config.keys import PARTS
from pacbayes_fl.study.describe import every_name
from pacbayes_fl.study.serving import release

DOCS = Path(pages.__file__).parents[1]


@pytest.fixture(scope="module")
def every() -> dict[str, str]:
    return pages.every()


def test_every_key_of_a_study_has_a_row(every: dict[str, str]) -> None:
    for part, kind in PARTS:
        section = every["keys.md"].partition(f"## `[{part}]`")[2].partition("\n## ")[0]
        assert all(f"| `{name}` |" in section for name in options_of(kind) if name != "certify"), part


def test_every_option_of_a_method_stands_on_its_page_with_its_presets(every: dict[str, str]) -> None:
    for name, recipe in METHODS.items():
        page = every[f"methods/{name}.md"]
        assert all(f"| `{option}` |" in page for option in options_of(recipe.options)), name
        assert not options_of(recipe.options) or all(preset in page for preset in recipe.presets), name


def test_every_command_and_every_option_of_one_is_there(every: dict[str, str]) -> None:
    commands = next(action for action in parser()._actions if action.dest == "command").choices or {}
    for name, sub in dict(commands).items():
        section = every["commands.md"].partition(f"## `{name}`")[2].partition("\n## ")[0]
        assert all(
            flag in section for action in sub._actions for flag in action.option_strings if flag not in ("-h", "--help")
        ), name


def test_every_name_that_can_be_described_is_on_a_page(every: dict[str, str]) -> None:
    text = "\n".join(every.values())
    for family, names in every_name().items():
        assert family == "method" or all(re.search(rf"^## `\[?{re.escape(name)}\]?`", text, re.M) for name in names)


def test_numbers_beside_a_paper_s_are_those_of_the_results() -> None:
    page = results.of_method("pfedbayes")
    source = "".join((results.BENCHMARKS / f"RESULTS_{name}.md").read_text("utf-8") for name in ("IMAGES", "FEDSI"))
    cells = re.findall(r"\d+\.\d+ \[\d+\.\d+, \d+\.\d+\]", page)
    assert len(cells) >= 6 and all(cell in source for cell in cells)
    assert "94.13 ± 0.27" in page and not results.of_method("persistence-of-nobody")


def test_when_a_method_is_good_is_said_of_all() -> None:
    assert methods.when().keys() == {*METHODS}


def test_every_method_has_a_box() -> None:
    boxes = {file.stem for file in methods.BOXES.glob("*.txt")} | {"pac-pfl"}  # whose module has its own
    assert boxes == {*METHODS}


def test_text_is_no_markup() -> None:
    assert records.text("a|b *c* <d> `e|f`") == r"a\|b \*c\* \<d\> `e\|f`"


def test_links_between_pages_lead_somewhere(every: dict[str, str]) -> None:
    found = {f"generated/{path}": text for path, text in every.items()}
    found |= {page.relative_to(DOCS).as_posix(): page.read_text("utf-8") for page in DOCS.rglob("*.md")}
    broken = []
    for path, text in found.items():
        if path.startswith(("generated/contributing", "generated/changelog", "algorithms")):
            continue
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            target = (DOCS / path).parent.joinpath(link).resolve()
            known = target.exists() or (target.is_relative_to(DOCS) and target.relative_to(DOCS).as_posix() in found)
            if "://" not in link and not known:
                broken.append((path, link))
    assert not broken


def test_the_page_of_run_folders_says_the_formats_that_are_written() -> None:
    text = " ".join((DOCS / "howto" / "run-folders.md").read_text("utf-8").split())
    assert f'about format {manifest.FORMAT_VERSION}, the "format_version" of `manifest.json`' in text
    kinds = {"certificates": certificates, "ledgers": ledger, "releases": release, "checkpoints": checkpoint}
    kinds |= {"shipped networks": network, "ledgers that runs share": shared_ledger}
    assert all(f"{name} {kind.FORMAT_VERSION}" in text for name, kind in kinds.items())
