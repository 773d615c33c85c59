"""Elements of a page: whatever stands in names is text, since the serialiser escapes it.

Built by the standard library's ElementTree. A template language, such as the Jinja2 that comes with torch, would have
to be told to escape wherever a name stands; here nothing else can be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree import ElementTree as ET

from pacbayes_fl.names import printable

Element = ET.Element
Content = str | Element | None | Iterable["Content"]

_LONG: Final = 30  # letters of a heading that gets more room, as it would be many lines high
MISSING: Final = "–"
"""What a cell says where there is no number."""


def tag(name: str, /, *content: Content, **attributes: object) -> Element:
    """Make an element.

    Args:
        name: of the tag.
        *content: texts and elements, in their order; None is nothing.
        **attributes: values by name, "class_" for "class" and "aria_label" for "aria-label"; None and False leave an
            attribute out, True leaves it without a value.

    Returns:
        The element.
    """
    element = ET.Element(name)
    for key, value in attributes.items():
        if value is not None and value is not False:
            element.set(key.rstrip("_").replace("_", "-"), "" if value is True else _text(value))
    add(element, *content)
    return element


def add(element: Element, *content: Content) -> None:
    """Put texts and elements behind what an element holds.

    Args:
        element: grows.
        *content: as of `tag`.
    """
    for one in content:
        if isinstance(one, str):
            _write(element, printable(one))
        elif isinstance(one, ET.Element):
            element.append(one)
        elif one is not None:
            add(element, *one)


def _write(element: Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def raw(name: str, text: str, /, **attributes: object) -> Element:
    """Make a <style> or <script>, whose text is not escaped.

    Args:
        name: "style" or "script".
        text: of ours alone.
        **attributes: as of `tag`.

    Returns:
        The element.
    """
    element = tag(name, **attributes)
    element.text = text
    return element


def to_html(root: Element) -> str:
    """Write a page.

    Args:
        root: its <html>.

    Returns:
        HTML 5.
    """
    return "<!DOCTYPE html>\n" + ET.tostring(root, encoding="unicode", method="html") + "\n"


def number(value: float | None, digits: int = 4) -> str:
    """Write a number for a cell.

    Args:
        value: None and NaN are not known.
        digits: significant ones.

    Returns:
        Text.
    """
    return MISSING if value is None or value != value else f"{value:.{digits}g}"


def table(
    caption: str,
    header: Sequence[Content],
    rows: Iterable[Sequence[Content]],
    *,
    numeric: Iterable[int] = (),
    sortable: bool = False,
    identity: str | None = None,
    attributes: Sequence[dict[str, str]] = (),
) -> Element:
    """Make a table with headers of columns and rows, in a box of its own that scrolls where it is too wide.

    Args:
        caption: what it is a table of.
        header: names of the columns.
        rows: cells, the first of which names its row.
        numeric: columns of numbers, which stand right.
        sortable: whether a script lets readers sort it.
        identity: of the <table>.
        attributes: of rows, such as the group of a client.

    Returns:
        The element.
    """
    right = frozenset(numeric)
    kinds = ["n" if at in right else None for at in range(len(header))]
    head = []
    for name, kind in zip(header, kinds, strict=True):
        cell = tag("th", name, scope="col", class_=kind)
        if len(cell.text or "") > _LONG:
            cell.set("class", f"{kind} long" if kind else "long")
        head.append(cell)
    body = tag("tbody")
    for at, (first, *others) in enumerate(rows):
        line = tag("tr", tag("th", first, scope="row"))
        for key, value in attributes[at].items() if attributes else ():
            line.set(key, printable(value))
        add(line, [tag("td", cell, class_=kind) for cell, kind in zip(others, kinds[1:], strict=True)])
        body.append(line)
    inner = tag("table", tag("caption", tag("span", caption)), tag("thead", tag("tr", *head)), body, id=identity)
    if sortable:
        inner.set("data-sortable", "")
    # the table has its name from its caption: the box around it, which a keyboard scrolls, says but what it is
    return tag("div", inner, class_="scroll", tabindex="0", role="group", aria_label="scrollable table")


def definitions(pairs: Iterable[tuple[str, Content]]) -> Element:
    """Make a list of names and what they are.

    Args:
        pairs: names and contents.

    Returns:
        A <dl>.
    """
    result = tag("dl")
    for name, content in pairs:
        add(result, tag("dt", name), tag("dd", content))
    return result


def section(identity: str, title: str, *content: Content) -> Element:
    """Make a section with a heading, which the page's contents link to.

    Args:
        identity: of the section.
        title: its heading.
        *content: what follows.

    Returns:
        The element.
    """
    heading = tag("h2", title, id=f"{identity}-title")
    return tag("section", heading, *content, id=identity, aria_labelledby=f"{identity}-title")


def folded(title: str, *content: Content, opened: bool = False) -> Element:
    """Make a part that opens on a click, also without scripts.

    Args:
        title: what is always shown.
        *content: what is shown when it is open.
        opened: whether it is open at first.

    Returns:
        A <details>.
    """
    return tag("details", tag("summary", title), *content, open=opened)


def figures(*content: Content, pairs: bool = False) -> Element:
    """Set figures side by side as far as there is room.

    Args:
        *content: figures.
        pairs: at most two in a row, for those that belong together.

    Returns:
        The element.
    """
    return tag("div", *content, class_="figures pairs" if pairs else "figures")
