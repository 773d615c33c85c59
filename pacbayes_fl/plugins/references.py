"""References of a study to objects of users' files and packages, and how these are loaded.

"FILE.py:NAME" is an object of a Python file, "package.module:NAME" one of an importable module. Nothing is imported
before it is asked for.
"""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from importlib import import_module
from importlib.abc import ExecutionLoader
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from pacbayes_fl.errors import StudyError

_FILE: Final = re.compile(r"(?P<place>[^\0]+\.py):(?P<name>[^\W\d]\w*)")
_MODULE: Final = re.compile(r"(?P<place>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)")
_PREFIX: Final = "pacbayes_fl_user_"
INSTANCE: Final = "instance:"
"""How a study calls an object that a program has given its run: by this and the name of the class."""


class Reference(NamedTuple):
    """An object in a file or module.

    Args:
        place: path of a Python file, or the dotted name of a module.
        name: of the object there.
        is_file: whether the place is a file.
    """

    place: str
    name: str
    is_file: bool

    def __str__(self) -> str:
        """As a study writes it."""
        return f"{self.place}:{self.name}"


class Loaded(NamedTuple):
    """A module that was imported for a study.

    Args:
        module: the module.
        file: its source file.
        sha256: of the bytes of that file.
    """

    module: ModuleType
    file: Path
    sha256: str


def reference(text: object) -> Reference | None:
    """Read a reference.

    Args:
        text: such as "mine.py:MyMethod" or "package.module:MyMethod".

    Returns:
        The reference; None of anything else, such as the name of a built-in record.
    """
    if not isinstance(text, str) or text.startswith(INSTANCE):
        return None
    for pattern, is_file in ((_FILE, True), (_MODULE, False)):
        if result := pattern.fullmatch(text):
            return Reference(result["place"], result["name"], is_file)
    return None


def anchored(text: str, folder: Path) -> str:
    """Make the path of a reference absolute.

    Args:
        text: any value of a study.
        folder: from which relative paths count.

    Returns:
        The reference with an absolute path; any other text as it is.
    """
    result = reference(text)
    if result is None or not result.is_file:
        return text
    return str(result._replace(place=str((folder / Path(result.place).expanduser()).resolve())))


class _Executed:
    """Files that were executed: each once per content, as `sys.modules` has modules once per name."""

    def __init__(self) -> None:
        self.modules: dict[tuple[str, str], ModuleType] = {}  # by file and SHA-256
        self.current: dict[str, Loaded] = {}  # by file: what a study takes until the next one is read
        self.imported: dict[str, str] = {}  # by name: files of modules, likewise


_EXECUTED: Final = _Executed()


def read_again() -> None:
    """Reload users' files in the next study; a running study keeps its objects."""
    _EXECUTED.current.clear()
    _EXECUTED.imported.clear()


class _Bytes(ExecutionLoader):
    """Executes the bytes that were read, of which the hash is known, and leaves no compiled file beside them."""

    def __init__(self, path: Path, source: bytes) -> None:
        self._path, self._source = path, source

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_source(self, fullname: str) -> str:
        return decode_source(self._source)


def load_file(path: Path, where: str) -> Loaded:
    """Import a Python file as a module of its own name, which hides no other module and is hidden by none.

    Args:
        path: of the file.
        where: what errors call the option that names it.

    Returns:
        The module, until `read_again` that of the first call. The same bytes are executed once per process.

    Raises:
        StudyError: when there is no such file, or executing it fails, with the line.
    """
    if str(path) in _EXECUTED.current:
        return _EXECUTED.current[str(path)]
    try:
        source = path.read_bytes()
    except OSError as error:
        what = f"{where}: there is no file {path}" if not path.exists() else f"{where}: {path}: {error.strerror}"
        hint = "paths count from the folder of the study file, on the command line from the working folder"
        raise StudyError(what, hint=hint) from error
    sha256 = hashlib.sha256(source).hexdigest()
    key = (str(path), sha256)
    if key not in _EXECUTED.modules:
        name = f"{_PREFIX}{path.stem}_{hashlib.sha256(repr(key).encode()).hexdigest()[:12]}"
        loader = _Bytes(path, source)
        module = module_from_spec(ModuleSpec(name, loader, origin=str(path)))
        sys.modules[name] = module  # dataclasses look annotations up there
        try:
            loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise _not_imported(where, path, error) from error
        _EXECUTED.modules[key] = module
    return _EXECUTED.current.setdefault(str(path), Loaded(_EXECUTED.modules[key], path, sha256))


def load_module(name: str, where: str) -> Loaded:
    """Import a module of an installed package.

    Args:
        name: dotted.
        where: what errors call the option that names it.

    Returns:
        The module.

    Raises:
        StudyError: when it cannot be imported.
    """
    try:
        module = import_module(name)
    except (Exception, SystemExit) as error:
        raise _not_imported(where, name, error) from error
    file = getattr(module, "__file__", None)
    if file is None:
        raise StudyError(f"{where}: the module {name} has no source file", hint="name a module, not a namespace")
    _EXECUTED.imported[name] = file
    return Loaded(module, Path(file), hashlib.sha256(Path(file).read_bytes()).hexdigest())


def brought() -> list[str]:
    """Name the files of users and packages that the last study has brought.

    Returns:
        Their paths, in the order in which they came.
    """
    return [*_EXECUTED.current, *_EXECUTED.imported.values()]


def raised_in(error: BaseException) -> str | None:
    """Say where in a file that a study or a command has brought, now or before, an error came up.

    Args:
        error: with its trace.

    Returns:
        The innermost such place, as "mine.py, line 3"; None where none of the calls is of such a file.
    """
    files, place = {*brought(), *(path for path, _ in _EXECUTED.modules)}, None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        place = f"{file}, line {line}" if file in files else place
    return place


def _not_imported(where: str, place: Path | str, error: BaseException) -> StudyError:
    """Say why a file or module cannot be imported, with the line of the file at which it failed."""
    line: int | None = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(place):
            line = frame.lineno
    at = f"{place}, line {line}" if line is not None else f"{place}"
    what = f"{where}: {at}: {type(error).__name__}: {error}"
    own = isinstance(error, ModuleNotFoundError) and isinstance(place, Path)
    return StudyError(what, hint="a file can import installed packages, and no files beside it" if own else None)
