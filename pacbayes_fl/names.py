"""Names of studies, clients and columns as plain text, wherever they are shown or written.

A name is whatever somebody called a client. On a terminal it must not move the cursor, in a spreadsheet it must not be
a formula, on disk it must not be a path, in a figure it must not be mathematics, and in a page it must not be markup.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Final

_FORMULA: Final = re.compile(r"(?:^|;)\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")  # ";" begins a cell where "," is a decimal
_NUMBER: Final = re.compile(  # as tables write it, decimals and thousands by either mark; or a gap that has a sign
    r" *(?:-|-nan|[+-]?(?:\d[\d.,]*|[.,]\d+)(?:e[+-]?\d+)?) *", re.ASCII | re.IGNORECASE
)
_ESCAPE: Final = re.compile(r"\\(?:\\|[nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_DEVICES: Final = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\..*)?", re.IGNORECASE | re.DOTALL
)
_UNSAFE: Final = re.compile(r'[<>:"/\\|?*]')
_ELLIPSIS: Final = "…"
_FOLDER_BYTES: Final = 80  # that are kept of a text in the name of a folder
_MOST: Final = 30  # rows that a notebook shows of a table


def printable(text: str) -> str:
    """Write a text so that it takes one line of a terminal and cannot steer it.

    Args:
        text: any.

    Returns:
        The text with everything that does not print as itself (line breaks, ESC and other control characters, marks
        that turn the direction of writing, lone surrogates) as an escape of Python's.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def width(text: str) -> int:
    """Count the columns of a terminal that a printable text takes; ideographs take two.

    Args:
        text: what `printable` gives.

    Returns:
        The number of columns.
    """
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shortened(text: str, columns: int) -> str:
    """Leave out the middle of a text that is too wide: names differ at their ends.

    Args:
        text: any; it is made printable.
        columns: of a terminal that it may take, at least 1.

    Returns:
        The text, or as much of its two ends as fits around an ellipsis.

    Example:
        >>> from pacbayes_fl import names
        >>> names.shortened("a client with a long name", 12)
        'a clie… name'
    """
    text = printable(text)
    if width(text) <= columns:
        return text
    head, tail, left = 0, len(text), columns - 1
    while True:
        at_head = head <= len(text) - tail
        taken = width(text[head] if at_head else text[tail - 1])
        if taken > left:
            return f"{text[:head]}{_ELLIPSIS}{text[tail:]}"
        head, tail, left = head + at_head, tail - (not at_head), left - taken


def padded(text: str, columns: int) -> str:
    """Fill a printable text with blanks to a number of columns.

    Args:
        text: what `printable` or `shortened` gives.
        columns: of a terminal.

    Returns:
        The text, at least as wide.
    """
    return text + " " * (columns - width(text))


def apart(words: Iterable[str], known: Collection[str]) -> list[str]:
    """Take names apart at commas, but for a name that has some.

    Args:
        words: as they were given, such as "house_05,house_06".
        known: names that there are.

    Returns:
        The names that are not empty, known or not.

    Example:
        >>> from pacbayes_fl import names
        >>> names.apart(["a, b", "c,d"], ["a", "b", "c,d"])
        ['a', 'b', 'c,d']
    """
    given = [[word] if word in known else map(str.strip, word.split(",")) for word in words]
    return [name for names in given for name in names if name]


def to_cell(text: str) -> str:
    """Write a name as the text of a CSV cell: no spreadsheet takes it for a formula, no terminal for a command.

    A name that could be either (it starts with =, +, - or @ and is neither a number nor the mark of a gap, or holds
    what does not print) gets an apostrophe in front, which spreadsheets know as the mark of text, and escapes as of
    `printable` with doubled backslashes. So does a name that starts with an apostrophe itself, so that every name has a
    cell of its own.

    Args:
        text: the name.

    Returns:
        The cell; that of most names is the name.

    Example:
        >>> from pacbayes_fl import names
        >>> names.to_cell("=1+1")
        "'=1+1"
    """
    formula = _FORMULA.search(text) and not _NUMBER.fullmatch(text)
    if not formula and text.isprintable() and not text.startswith("'"):
        return text
    escaped = printable(text.replace("\\", "\\\\"))
    return "'" + (escaped.replace(";", "\\x3b") if formula else escaped)


def from_cell(cell: str) -> str:
    """Read a name back that `to_cell` has written.

    Args:
        cell: text of a CSV cell.

    Returns:
        The name.

    Example:
        >>> from pacbayes_fl import names
        >>> names.from_cell("'=1+1")
        '=1+1'
    """
    if not cell.startswith("'"):
        return cell

    return _ESCAPE.sub(lambda result: result[0].encode("ascii").decode("unicode_escape"), cell[1:])


def meant_by(cells: Iterable[object], known: Collection[str]) -> dict[object, str]:
    """Find the cells in which `to_cell` has written a known name, other than by the name itself.

    Args:
        cells: of a table.
        known: names.

    Returns:
        The name by cell.
    """
    read = {cell: from_cell(cell) for cell in {*cells}.difference(known) if isinstance(cell, str)}
    return {cell: name for cell, name in read.items() if name in known}


def in_json(text: str) -> str:
    """Escape what does not print in JSON that was written with all letters as they are.

    Args:
        text: JSON, whose line breaks stay.

    Returns:
        The same JSON, which no longer steers the terminal that it is shown on.
    """
    if text.isprintable():
        return text

    def escaped(match: re.Match[str]) -> str:
        return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]

    return re.sub(r"[^\n\x20-\x7e]", escaped, text)


def to_folder(text: str) -> str:
    """Make a name of one folder or file, on every system, of any text.

    Args:
        text: any, such as ``../../escaped`` or ``CON``.

    Returns:
        The text where it is such a name; else with ``_`` for what is not, and 8 digits of its SHA-256 behind, so that
        different texts have different folders.

    Example:
        >>> from pacbayes_fl import names
        >>> names.to_folder("my study: no. 1/2")
        'my study_ no. 1_2-79a0ea4b'
    """
    name = _UNSAFE.sub("_", "".join(c if c.isprintable() else "_" for c in text))
    name = name.encode()[:_FOLDER_BYTES].decode(errors="ignore").rstrip(" .")
    if name[:1] in ("", ".", "-", " ", "~") or _DEVICES.fullmatch(name):
        name = f"_{name[1:] if name[:1] in ('.', '-', ' ', '~') else name}"
    return name if name == text else f"{name}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"


def to_drawing(text: str, longest: int) -> str:
    """Write a text so that matplotlib draws it as it stands: a dollar sign is no formula.

    Args:
        text: any; its line breaks stay.
        longest: columns of a line.

    Returns:
        The text with lines that are printable and not too long.
    """
    return "\n".join(shortened(line, longest) for line in text.split("\n")).replace("$", r"\$")


def as_html(title: str, header: Sequence[str], rows: Sequence[Sequence[object]], most: int = _MOST) -> str:
    """Write a table as HTML.

    Args:
        title: what it is a table of.
        header: names of the columns.
        rows: cells, the first of which names its row.
        most: rows that are shown; the caption says how many there are.

    Returns:
        A `<table>` with a caption and headers of columns and rows; whatever stands in names is text.
    """
    caption = title if len(rows) <= most else f"{title} (the first {most} of {len(rows)} rows)"
    head = "".join(f'<th scope="col">{_cell(name)}</th>' for name in header)
    lines = []
    for first, *others in rows[:most]:
        cells = "".join(f"<td>{_cell(cell)}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{_cell(first)}</th>{cells}</tr>')
    body = "\n".join(lines)
    caption = f"<caption>{_cell(caption)}</caption>"
    return f"<table>\n{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _cell(cell: object) -> str:
    """Write a cell: numbers with four significant digits, "-" for what is not known."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    return escape(printable(f"{cell:.4g}" if isinstance(cell, float) else str(cell)))


def told_apart(value: float, spread: float) -> str:
    """Write a predicted number with nine significant digits, or as many as tell a hundred-thousandth of its spread.

    Args:
        value: a mean or a quantile, in the target's unit.
        spread: standard deviation of the predictive, in the same unit; without one, NaN.

    Returns:
        The number, of at most 17 significant digits.

    Example:
        >>> from pacbayes_fl import names
        >>> names.told_apart(1 / 3, 0.1), names.told_apart(100000001.6969227, 0.02)
        ('0.333333333', '100000001.696923')
    """
    known = value != 0 and math.isfinite(value) and 0 < spread < math.inf
    digits = 5 + math.ceil(math.log10(abs(value)) - math.log10(spread)) if known else 0
    return f"{value:.{max(9, min(17, digits))}g}"
