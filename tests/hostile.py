"""Names that are something else where nobody looks: markup, commands of a terminal, formulas, paths, mathematics."""

from __future__ import annotations

NAMES = {
    "markup": "[bold red]x[/bold red]",
    "markup that closes": "houses [/b]",
    "markup of a link": "[link=http://x]y[/link] :smile:",
    "escape sequence": "a\x1b[2J\x1b]0;owned\x07b",
    "control character of 8 bits": "a\x9b31mb",
    "right to left": "abc\u202etxt.exe",
    "isolates and nothing": "a\u2066b\u200bc\ufeff",
    "line breaks": "a\nb\r\nc\u2028d",
    "carriage return": "good\rbad",
    "backspace and delete": "ab\x08\x7fc",
    "formula": '=HYPERLINK("http://x","y")',
    "formula after a blank": " =1+1",
    "formula after a tab": "\t=2+2",
    "formula after a semicolon": "a;=1+1",
    "plus": "+1+cmd|' /C calc'!A0",
    "minus": "-2+3",
    "at": "@SUM(A1)",
    "full width": "\uff1d1+1",
    "path": "../../escaped",
    "absolute path": "/abs/olute",
    "parent": "..",
    "nul": "a\0b",
    "device": "CON",
    "device with an ending": "nul.txt",
    "drive": "C:\\new\\x41",
    "option": "--quiet",
    "home": "~root",
    "apostrophe": "'s-Hertogenbosch",
    "apostrophe and escape": "'\\x41",
    "quotes and commas": 'a"b,c;d',
    "long": "start-" + "x" * 3000 + "-end",
    "ideographs": "\u5bb6" * 60,
    "mathematics": r"$\frac{1}{0}$ and $x_{$",
    "a dollar that is escaped": r"a\$b$c$",
    "format": "%s %(x)d {0} {x!r}",
    "html": "<script>alert(1)</script>&amp;",
    "a number": "-5",
}
"""By what they are."""

STEERING = (*"\x00\x07\x08\r\x7f\x9b\u200b\u2028\u202e\u2066\ufeff", "\x1b[2J", "\x1b]0")
"""What must never reach a terminal out of these names."""
