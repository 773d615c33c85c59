"""What a run saves beside the tensors of a round: the only place where its keys are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pacbayes_fl.federation import checkpoint
from pacbayes_fl.federation.checkpoint import Checkpoint
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.files import JsonMapping, JsonTable


@dataclass(frozen=True)
class SavedMeta:
    """Values saved with a round.

    Args:
        study: the resolved study, as a table.
        ids: of all clients, in the order of the federation.
        names: of all clients, in the same order.
        kept: ids of the clients whose state is saved; None for all.
        watch: what the guard remembers of the rounds before.
        own_files: files and objects of the user's, as `study.storage.origins.used` names them.
        fell_back: damaged rounds in whose place an older one was used, as text.
        released: how many releases of a private run the state has seen; None of a run that is not private.
    """

    study: JsonMapping
    ids: Sequence[int]
    names: Sequence[str]
    kept: Sequence[int] | None = None
    watch: Watch = field(default_factory=Watch)
    own_files: JsonMapping = field(default_factory=dict)
    fell_back: Sequence[str] = ()
    released: int | None = None

    @property
    def stateful(self) -> Sequence[int]:
        """Ids of the clients whose state is saved."""
        return self.ids if self.kept is None else self.kept

    def name_of(self, client: int) -> str:
        """Name of the client with an id."""
        return self.names[self.ids.index(client)]

    def to_json(self) -> JsonTable:
        """Give what `checkpoint.save` takes; what is empty is left out."""
        table: JsonTable = {"study": self.study, "ids": list(self.ids), "names": list(self.names)}
        if self.kept is not None:
            table["kept"] = list(self.kept)
        table["watch"] = self.watch.to_save()
        if self.own_files:
            table["own_files"] = self.own_files
        if self.fell_back:
            table["fell_back"] = list(self.fell_back)
        if self.released is not None:
            table["released"] = self.released
        return table

    @classmethod
    def of(cls, saved: Checkpoint) -> SavedMeta:
        """Read what `to_json` gave.

        Args:
            saved: a round.

        Returns:
            The values.

        Raises:
            CheckpointError: when one is missing, or is nothing that a run has saved.
        """
        with checkpoint.meant(saved):
            meta = saved.meta
            ids, names, kept = _all(int, meta["ids"]), _all(str, meta["names"]), meta.get("kept")
            if len(ids) != len(names):
                raise ValueError(f"{len(ids)} ids and {len(names)} names")
            return cls(
                meta["study"],
                ids,
                names,
                None if kept is None else _all(int, kept),
                Watch.from_saved(meta["watch"]),
                meta.get("own_files", {}),
                _all(str, meta.get("fell_back", ())),
                None if meta.get("released") is None else int(meta["released"]),
            )


_Value = TypeVar("_Value", int, str)


def _all(kind: type[_Value], values: Sequence[object]) -> tuple[_Value, ...]:
    """Check that a list holds values of one type alone."""
    if isinstance(values, str) or not all(type(value) is kind for value in values):
        raise TypeError(f"a list of {kind.__name__} was expected, got {values!r:.60}")
    return tuple(kind(value) for value in values)  # type: ignore[call-overload]
