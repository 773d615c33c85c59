"""The command `describe`: plain text, no line wider than it may be, one line for a name that nothing has."""

from __future__ import annotations

import re

import pytest

from pacbayes_fl import cli
from pacbayes_fl.cli.describe import lines
from pacbayes_fl.study.describe import Description, Options, Row, describe, every_name


@pytest.mark.parametrize("family", every_name())
def test_every_description_fits(family: str) -> None:
    for name in every_name()[family]:
        for result in describe(name):
            for columns in (60, 120):
                text = list(lines(result, columns))
                assert max(len(line) for line in text[: text.index("examples")]) <= columns
                joined = "\n".join(text[text.index("examples") + 1 :]).replace(" \\\n     ", "")
                assert joined.splitlines() == [
                    f"  {example}" for example in result.examples
                ]  # words whole, no blank lost
                assert text[0].startswith(f"{name} ({result.family}): "[:columns])
            assert max(map(len, text)) <= 120 and all(line.isprintable() for line in text)


def test_the_layout() -> None:
    rows = (
        Row(("rate", "0.1", "0.5", "eta"), "A number. How fast."),
        Row(("longest_name", "7", "7", ""), "Words. " * 6),
    )
    table = Options("options of [method]", ("option", "default", "paper", "symbol"), rows)
    result = Description("method", "x", "a method", (("uploads", "w"), ("keeps", "nothing")), (table,), ("run x",))
    assert "\n".join(lines(result, 40)) == (
        "x (method): a method\n"
        "  uploads  w\n"
        "  keeps    nothing\n"
        "\n"
        "options of [method]\n"
        "  option        default  paper  symbol\n"
        "  rate          0.1      0.5    eta\n"
        "      A number. How fast.\n"
        "  longest_name  7        7\n"
        "      Words. Words. Words. Words. Words.\n"
        "      Words.\n"
        "\n"
        "examples\n"
        "  run x"
    )


def test_describe_prints_a_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["describe", "pac-pfl"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and re.search(r'^  rate +0\.01 +"held-out"', out, re.MULTILINE)
    assert re.search(r"^  federation\.rounds +400 +1000", out, re.MULTILINE)


def test_a_name_that_nothing_has_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["describe", "pac-plf\x1b[2J"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err[:-1].isprintable() and "did you mean 'pac-pfl'" in err
