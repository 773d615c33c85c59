"""What stands in texts and attributes is text, as the standard library's parser reads it back."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from pacbayes_fl.pages.markup import add, definitions, folded, number, raw, section, table, tag, to_html
from tests.pages.conftest import HOSTILE, shown


class Read(HTMLParser):
    """Collects tags, attributes and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.text, self.attributes = list[str](), "", dict[str, str | None]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_wherever_it_stands(name: str) -> None:
    reader = Read()
    reader.feed(to_html(tag("p", tag("b", name), name, title=name)))
    assert reader.tags == ["p", "b"]
    assert reader.text.strip("\n") == shown(name) * 2 and reader.attributes["title"] == shown(name)


def test_contents_keep_their_order_and_nothing_is_nothing() -> None:
    inner = tag("p", "a", None, [tag("b", "c"), "d"], tag("i"), "e", hidden=True, id=None, class_="x y")
    add(inner, "f")
    assert to_html(inner).splitlines()[1] == '<p hidden="" class="x y">a<b>c</b>d<i></i>ef</p>'


def test_scripts_are_ours_and_stay_as_they_are() -> None:
    assert to_html(raw("script", "a < b && c")).splitlines()[1] == "<script>a < b && c</script>"


def test_tables_have_headers_of_columns_and_rows_and_a_caption() -> None:
    made = table("caption", ("a", "b"), [("x", "1"), ("y", "2")], numeric=(1,), sortable=True, identity="t")
    text = to_html(made)
    assert text.count('<th scope="col"') == 2 and text.count('<th scope="row"') == 2 and "<caption>" in text
    assert text.count('class="n"') == 3 and 'data-sortable=""' in text and 'id="t"' in text
    assert 'role="group"' in text and 'tabindex="0"' in text  # a keyboard can scroll what is too wide
    assert text.count(">caption<") == 1 and 'aria-label="caption"' not in text  # and readers hear its name once


def test_long_headings_have_room() -> None:
    text = to_html(table("c", ("a", "b" * 40, "c" * 40), [("x", "1", "2")], numeric=(1,)))
    assert 'class="n long"' in text and 'class="long"' in text and text.count("long") == 2
    assert "long" not in to_html(table("c", ("a", ["b" * 20, tag("span", "c" * 20)]), []))  # what is a line of its own


def test_sections_lists_and_folded_parts() -> None:
    text = to_html(section("s", "Title", definitions([("a", "b")]), folded("more", "x", opened=True)))
    assert 'aria-labelledby="s-title"' in text and "<dt>a</dt><dd>b</dd>" in text and '<details open="">' in text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (float("nan"), "–"), (0.123456, "0.1235"), (12345.6, "1.235e+04")]
)
def test_numbers_have_four_digits(value: float | None, text: str) -> None:
    assert number(value) == text
