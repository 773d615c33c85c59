"""The progress bar of a terminal: rounds and time left always fit, names and scores take the remaining columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from pacbayes_fl.names import printable, shortened, width

_TIME: Final = 9  # of 100:00:00 and a blank
_BAR: Final = 10  # a shorter one says nothing


class _Plain(ProgressColumn):
    """A field of the task as plain text: no markup, one line."""

    def __init__(self, field: str) -> None:
        super().__init__(Column())
        self.field = field

    def render(self, task: Task) -> Text:
        """Write the field."""
        return Text(task.fields[self.field], no_wrap=True, overflow="ellipsis")


class Show(Protocol):
    """Shows how far a run has come."""

    def __call__(self, done: int, news: Sequence[str] | None, total: int | None = None) -> None:
        """Show finished rounds, what is new, and the number of all rounds where that has changed."""


@contextmanager
def bar(text: str, total: int, console: Console | None = None) -> Iterator[Show]:
    """Show a bar on a terminal.

    Args:
        text: what is being done.
        total: number of rounds.
        console: where; stderr when None.

    Yields:
        What is to be called after a round, with its number and what is new, the most important first (None leaves what
        was told before), and the number of all rounds, which may be chosen before the first.
    """
    console = Console(stderr=True) if console is None else console
    fixed = [kind(table_column=Column(no_wrap=True)) for kind in (MofNCompleteColumn, TimeRemainingColumn)]
    left = console.width - (2 * len(str(total)) + 2) - _TIME - 1
    name = shortened(text, max(8, min(width(printable(text)), left // 2 - 1)))
    wide = min(40, left - width(name) - 1 - left // 3)
    drawn = [BarColumn(bar_width=wide)] if wide >= _BAR else []
    with Progress(_Plain("name"), *drawn, *fixed, _Plain("news"), console=console) as shown:
        task = shown.add_task("", total=total, name=name, news="")

        def show(done: int, news: Sequence[str] | None, total: int | None = None) -> None:
            fields = (
                {} if news is None else {"news": _packed(news, left - width(name) - (wide + 1 if drawn else 0) - 1)}
            )
            shown.update(task, completed=done, total=total, **fields)  # type: ignore[arg-type]

        yield show


def _packed(news: Sequence[str], columns: int) -> str:
    """Take as much of the news as there is room for, whole; only the first may be shortened."""
    text = ""
    for one in news:
        if text and width(f"{text} {printable(one)}") > columns:
            break
        text = f"{text} {printable(one)}" if text else shortened(one, max(1, columns))
    return text
