"""Tables of records that are open: to entry points of installed packages, and to references to users' files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pacbayes_fl.errors import StudyError, shown
from pacbayes_fl.options import Packaged
from pacbayes_fl.plugins.references import Loaded, Reference, load_file, load_module, reference
from pacbayes_fl.settings import nearest

Record = TypeVar("Record")


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Named = TypeVar("Named", bound=_Dataclass)


def under_its_name(kind: type[Named]) -> Callable[[object, ModuleType, str], Named | None]:
    """Make an `OpenTable` take records of a kind that has a name.

    Args:
        kind: a dataclass with the field `name`.

    Returns:
        Gives such a record under the name by which its file is found again, whatever it calls itself; None of others.
    """

    def record(thing: object, module: ModuleType, name: str) -> Named | None:
        return replace(thing, name=name) if isinstance(thing, kind) else None

    return record


class OpenTable(Mapping[str, Record], Generic[Record]):
    """A table of built-in records that also holds those of installed packages and, by reference, of users' files.

    Args:
        known: the built-in records by name; it is called when it is first needed.
        group: of the entry points of installed packages, such as "pacbayes_fl.methods".
        where: the option of a study that names a record, such as "[method] name".
        expected: what a reference must lead to, such as "a subclass of Method".
        record: makes a record of an object, its module and the name that a study gives it; None where it is no such
            object.
    """

    def __init__(
        self,
        known: Callable[[], Mapping[str, Record]],
        group: str,
        where: str,
        expected: str,
        record: Callable[[object, ModuleType, str], Record | None],
    ) -> None:
        """Nothing is loaded yet."""
        self._known, self._packaged, self._record = known, Packaged(group), record
        self._where, self._expected = where, expected
        self._made: dict[tuple[str, str], Record] = {}

    def __getitem__(self, name: str) -> Record:
        """Give a record.

        Args:
            name: of a built-in record or an entry point, or a reference.

        Returns:
            The record.

        Raises:
            KeyError: when there is none of that name, and it is no reference.
            StudyError: when a reference leads to nothing, or to an object of another kind.
        """
        known = self._known()
        if isinstance(name, str) and name in known:
            return known[name]
        loaded, reference = self._loaded(name)
        if (name, loaded.sha256) not in self._made:
            self._made[name, loaded.sha256] = self._taken(name, loaded, reference)
        return self._made[name, loaded.sha256]

    def __contains__(self, name: object) -> bool:
        """Whether a study may say this name; nothing is imported, so that a reference may yet lead to nothing."""
        if not isinstance(name, str):
            return False
        return name in self._known() or reference(name) is not None or name in self._packaged.entries()

    def __iter__(self) -> Iterator[str]:
        """Go through the names of built-in records, then through those of installed packages."""
        yield from self._known()
        yield from (name for name in self._packaged.entries() if name not in self._known())

    def __len__(self) -> int:
        """Number of names."""
        return sum(1 for _ in self)

    @property
    def known(self) -> Mapping[str, Record]:
        """The built-in records."""
        return self._known()

    def listing(self) -> list[tuple[str, str]]:
        """List the entries of installed packages.

        Returns:
            Names, each with the package that brings it.
        """
        return [
            (name, _package(entry)) for name, entry in self._packaged.entries().items() if name not in self._known()
        ]

    @property
    def expected(self) -> str:
        """What a reference must lead to."""
        return self._expected

    def leads_here(self, name: str) -> bool:
        """Whether a reference or an entry point leads to an object of this table's kind, which is then imported.

        Args:
            name: as `__getitem__` takes it.

        Returns:
            False of a built-in record, and of an object of another kind.

        Raises:
            StudyError: when the place of a reference cannot be imported, or holds no such name.
        """
        if name in self._known() or name not in self:
            return False
        loaded, found = self._loaded(name)
        return self._record(self._object(loaded, found), loaded.module, name) is not None

    def origin(self, name: str) -> Loaded | None:
        """The file of a record.

        Args:
            name: as `__getitem__` takes it.

        Returns:
            The module that was imported; None of a built-in record.

        Raises:
            KeyError, StudyError: as `__getitem__`.
        """
        return None if name in self._known() else self._loaded(name)[0]

    def _loaded(self, name: str) -> tuple[Loaded, Reference]:
        result = reference(name)
        if result is None:
            entry = self._packaged.entries().get(name)
            result = None if entry is None else reference(entry.value.replace(" ", ""))
            if result is None:
                raise KeyError(name)
        if result.is_file:
            return load_file(Path(result.place), self._where), result
        return load_module(result.place, self._where), result

    def _object(self, loaded: Loaded, reference: Reference) -> object:
        module = loaded.module
        if not hasattr(module, reference.name):
            public = [each for each in vars(module) if not each.startswith("_")]
            what = f"{self._where}: {reference.place} has no {reference.name!r}"
            raise StudyError(what, hint=nearest(reference.name, public))
        return getattr(module, reference.name)

    def _taken(self, name: str, loaded: Loaded, reference: Reference) -> Record:
        thing = self._object(loaded, reference)
        record = self._record(thing, loaded.module, name)
        if record is None:
            what = f"{self._where}: {reference} must be {self._expected}, got {_kind(thing)}"
            raise StudyError(what, hint=f"define it in {reference.place}")
        return record


def _package(entry: EntryPoint) -> str:
    return f"of the package {entry.dist.name}" if entry.dist is not None else f"from {entry.value}"


def _kind(thing: object) -> str:
    """Name an object in an error."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return f"{shown(thing)} of type {type(thing).__name__}"
