"""Errors for users: one family, each with its place and a remedy.

Every class is also the builtin error of its kind, so that code that knows nothing of this library handles it well.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from typing import Final, ParamSpec, TypeVar

from pacbayes_fl.names import printable

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

_LONGEST: Final = 2000  # characters of a message: whatever came in a file may stand in it
_SEVERAL: Final = re.compile(r"(Sequence|Collection|Iterable)\[.+\]( \| None)?")  # an annotation
_FILE: Final = re.compile(r"Path \| str((?: \| \w+)*)")
_RUN: Final = re.compile(r"Trained( \| Served)?")
_STUDIES: Final = "Sequence[Study]"


UNREADABLE: Final = (
    *(OSError, ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(OverflowError, RecursionError, EOFError),
)
"""What reading a file raises that was damaged, or never was one of ours."""


def one_line(text: str) -> str:
    """Write a text so that it takes one line of a terminal and cannot steer it.

    Args:
        text: any, such as what another library says or a name from a file.

    Returns:
        The text with line breaks as spaces and other characters that cannot be printed as escapes; of a long one its
        beginning and its end.
    """
    text = re.sub(r"\s*[\r\n]\s*", " ", text.strip())
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return printable(text)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Name the first few, and say how many more there are.

    Args:
        names: any.
        most: how many are named.

    Returns:
        Such as "a, b and 3 more".
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, what: str) -> str:
    """Count things.

    Args:
        number: of them.
        what: one of them.

    Returns:
        Such as "1 row" or "0 rows".
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def meant(word: str, valid: Iterable[str]) -> str | None:
    """Advise on a word that is not known, beside an error that lists the valid ones.

    Args:
        word: as given.
        valid: what would have been right.

    Returns:
        "did you mean ...?"; None where none is near.
    """
    close = difflib.get_close_matches(word, [*valid], n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else None


def usual_line(cls: type, where: str, name: str) -> str | None:
    """Give a line that works in the place of a value out of range: that of the default.

    Args:
        cls: a dataclass.
        where: its table, such as "[model]"; "" where it is no table.
        name: of the field.

    Returns:
        The advice; None of a field that has no default.
    """
    field = cls.__dataclass_fields__[name]  # type: ignore[attr-defined]
    key = f"{where[1:-1]}.{name}" if where.startswith("[") else name
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return None
    usual = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return f"leave {key} out" if usual is None else f"the default is {key} = {json.dumps(usual)}"


def shown(value: object, longest: int = 80) -> str:
    """Shortened `repr` of an unexpected value.

    Args:
        value: any, such as a number of 5,000 digits or a list in a list, 900 deep.
        longest: characters.

    Returns:
        The start of its `repr`.

    Example:
        >>> from pacbayes_fl.errors import shown
        >>> shown("x" * 200, 12)
        "'xxxxxxx ..."
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits than Python writes, or deeper than it follows
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= longest else f"{text[: longest - 4]} ..."


class PacBayesFLError(Exception):
    """Base of every error that this library raises on purpose.

    Args:
        message: what was expected and what came, naming the argument.
        client: name of the client that it concerns, if one.
        round: number of the federated round, if one.
        cause: what made it fail, in a few words.
        hint: what the reader can do.

    Example:
        >>> import pacbayes_fl as fl
        >>> try:
        ...     fl.Study.from_table({"method": {"name": "fedavgg"}})
        ... except fl.PacBayesFLError as error:  # a StudyError, which is a ValueError too
        ...     print(error, isinstance(error, ValueError))
        study: unknown method 'fedavgg' (did you mean 'fedavg'?) True
    """

    def __init__(
        self,
        message: str,
        *,
        client: str | None = None,
        round: int | None = None,
        cause: str | None = None,
        hint: str | None = None,
    ) -> None:
        """Store the fields and build the one-line text."""
        self.message, self.client, self.round, self.cause, self.hint = message, client, round, cause, hint
        place = "" if client is None else f"client {client!r}: "
        when = "" if round is None else f"round {round}: "
        advice = "" if hint is None else f" ({hint})"
        super().__init__(one_line(f"{when}{place}{message}{advice}"))


class ShapeError(PacBayesFLError, ValueError):
    """A tensor has not the shape or dtype that was asked for."""


class StudyError(PacBayesFLError, ValueError):
    """A study names something that does not exist or asks for what cannot be."""


class DataError(PacBayesFLError, ValueError):
    """Rows of a client cannot be used: not finite, missing, of the wrong kind, or in the wrong place."""


class AssumptionError(PacBayesFLError, ValueError):
    """A premise without which no number can be formed does not hold."""


class NumericalError(PacBayesFLError, ArithmeticError):
    """A computation left the finite numbers or lost positive definiteness."""


class ClientError(PacBayesFLError):
    """A client failed or answered something unusable."""


class CheckpointError(PacBayesFLError):
    """A saved state cannot be written, read or trusted."""


class PrivacyError(PacBayesFLError):
    """A privacy guarantee cannot be given as asked."""


class DeployError(PacBayesFLError):
    """A run on several machines cannot start or go on."""


class DamageWarning(UserWarning):
    """A file of a run folder was altered or lost since it was written; no option hides this."""


def caller_stacklevel() -> int:
    """Count the frames up to the first one outside of this package: the `stacklevel` of a warning to whoever called."""
    ours, level, frame = (__name__.split(".")[0], "contextlib"), 1, sys._getframe(1)  # which calls our managers' exits
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in ours:
        level, frame = level + 1, frame.f_back
    return level


def several(name: str, value: object) -> None:
    """Refuse one value where several are meant: a text would be read letter by letter.

    Args:
        name: of the argument.
        value: what came.

    Raises:
        StudyError: when it is a text, or nothing that holds values.
    """
    holds = isinstance(value, Iterable) or hasattr(type(value), "__getitem__")
    if isinstance(value, str | bytes) or not holds or getattr(value, "ndim", 1) == 0:
        one = f'["{value}"]' if isinstance(value, str) else f"[{shown(value, 40)}]"
        raise StudyError(f"{name} must be a list, got {shown(value)}", hint=f"write {one} for one alone")


def a_path(name: str, value: object, others: Sequence[str] = ()) -> None:
    """Refuse what is no path where a file is meant.

    Args:
        name: of the argument.
        value: what came.
        others: names of classes that do as well.

    Raises:
        StudyError: when it is no text and no path, such as a table of pandas.
    """
    known = {kind.__name__ for kind in type(value).__mro__}
    if not isinstance(value, str | os.PathLike) and known.isdisjoint(others):
        table = hasattr(value, "to_csv")
        hint = "write it to a file, .to_csv('rows.csv', index=False), and give its path" if table else "as 'rows.csv'"
        raise StudyError(
            f"{name} must be a path{''.join(f' or {one}' for one in others)}, got {type(value).__name__}", hint=hint
        )


def a_run(name: str, value: object, kinds: Sequence[str]) -> None:
    """Refuse what is no run where one is meant, such as the path of its folder.

    Args:
        name: of the argument.
        value: what came.
        kinds: names of the classes that do.

    Raises:
        StudyError: when it is of another class.
    """
    if {kind.__name__ for kind in type(value).__mro__}.isdisjoint(kinds):
        path = isinstance(value, str | os.PathLike)
        raise StudyError(
            f"{name} must be a run, {' or '.join(kinds)}, got {type(value).__name__}",
            hint=f"pacbayes_fl.open_run({str(value)!r}) opens that of a folder" if path else "as open_run gives it",
        )


def a_study(name: str, value: object) -> None:
    """Refuse what is no study where one is meant, such as its name or the path of its file.

    Args:
        name: of the argument.
        value: what came.

    Raises:
        StudyError: when it is of another class.
    """
    if isinstance(value, str | os.PathLike):
        read = f"Study.from_toml({str(value)!r}) reads it"
        raise StudyError(f"{name} must be a Study, got {shown(str(value))}", hint=read)
    if "Study" not in {kind.__name__ for kind in type(value).__mro__}:
        made = "as Study.from_toml or from_table gives it"
        raise StudyError(f"{name} must be a Study, got {type(value).__name__!r}", hint=made)


def studies(name: str, value: object) -> None:
    """Refuse what are no studies where several are meant, one alone among them.

    Args:
        name: of the argument.
        value: what came.

    Raises:
        StudyError: saying which is none.
    """
    if not isinstance(value, list | tuple):
        one = f"Study.from_toml({value!r})" if isinstance(value, str) else "study"
        raise StudyError(f"{name} must be a list, got {shown(value, 40)}", hint=f"write [{one}] for one alone")
    for at, one in enumerate(value):
        a_study(f"{name}[{at}]", one)


def kinds_checked(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Have a function refuse, before all else, one value for several, and what is no path, no study or no run.

    Args:
        function: of which it reads the annotations: `Sequence`, `Collection` or `Iterable` of something are several,
            `Path | str`, alone or with other classes behind, is a file, `Study` a study and `Trained` a run; None
            passes.

    Returns:
        The function, which raises StudyError naming the argument.
    """
    places = {name: at for at, name in enumerate(function.__code__.co_varnames)}
    kinds = {name: str(kind) for name, kind in function.__annotations__.items() if name in places}
    checks: list[tuple[str, Callable[[str, object], None]]] = []
    checks += [(name, a_study) for name, kind in kinds.items() if kind == "Study"]
    checks += [(name, studies) for name, kind in kinds.items() if kind == _STUDIES]
    checks += [(name, several) for name, kind in kinds.items() if _SEVERAL.fullmatch(kind) and kind != _STUDIES]
    found = ((name, _FILE.fullmatch(kind)) for name, kind in kinds.items())
    others = ((name, match[1].replace(" | None", "").split(" | ")[1:]) for name, match in found if match)
    checks += [(name, partial(a_path, others=classes)) for name, classes in others]
    checks += [(name, partial(a_run, kinds=kind.split(" | "))) for name, kind in kinds.items() if _RUN.fullmatch(kind)]

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        for name, check in checks:
            at = places[name]
            if (value := args[at] if at < len(args) else kwargs.get(name)) is not None:
                check(name, value)
        return function(*args, **kwargs)

    return call
