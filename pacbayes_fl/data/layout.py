"""Roles of the columns of a user's table, and the features that are made of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from pacbayes_fl.errors import DataError, shown
from pacbayes_fl.options import option

Missing = Literal["refuse", "drop", "median"]
"""What is done about missing values: refuse the table, leave such rows out, or fill in the median of the client's
training rows."""

_SECOND: Final = 10**6  # microseconds
_UNITS: Final = MappingProxyType(
    {
        **dict.fromkeys(("s", "second", "seconds"), _SECOND),
        **dict.fromkeys(("min", "minute", "minutes"), 60 * _SECOND),
        **dict.fromkeys(("h", "hour", "hours"), 3600 * _SECOND),
        **dict.fromkeys(("d", "day", "days"), 86400 * _SECOND),
        **dict.fromkeys(("w", "week", "weeks"), 7 * 86400 * _SECOND),
        "": 1,  # of times that are numbers
    }
)
CLASSES: Final = 2**16
"""Most classes that a study, a file or a node may state."""
CYCLES: Final = ("hour", "dayofweek", "dayofyear")
"""What `:cyclic` can follow: the time of the day, the day of the week, the day of the year."""


class Span(NamedTuple):
    """A length of time.

    Args:
        amount: microseconds, or in the units of a column of numbers.
        plain: whether it is of a column of numbers.
    """

    amount: int
    plain: bool

    def __str__(self) -> str:
        """Write the length with the largest unit of which it is a whole number."""
        for name, unit in () if self.plain else (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
            if not self.amount % (unit * _SECOND):
                count = self.amount // (unit * _SECOND)
                return f"{count} {name}{'s' if count > 1 else ''}"
        return f"{self.amount}"


def span(text: str) -> Span | None:
    """Read a length of time.

    Args:
        text: such as "24h", "14 days" or, of times that are numbers, "24".

    Returns:
        The length; None where it is none, or not positive.

    Example:
        >>> from pacbayes_fl.data.layout import span
        >>> span("24h") == span("1 day"), span("yesterday")
        (True, None)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower(), re.ASCII)
    if match is None or match[2] not in _UNITS:
        return None
    amount = round(float(match[1]) * _UNITS[match[2]])
    return Span(amount, not match[2]) if 0 < amount < 2**62 else None


class Kind(NamedTuple):
    """A kind of feature that is derived.

    Args:
        pattern: of its name, with the groups `span`, `of` and `cycle`.
        title: one line for people.
    """

    pattern: str
    title: str


_SPAN: Final = r"(?P<span>\d+(?:\.\d+)?\s*[A-Za-z]*)(?: of (?P<of>.+))?"
DERIVED: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "cyclic": Kind(rf"(?P<cycle>{'|'.join(CYCLES)}):cyclic", "sine and cosine of the hour or the day"),
        "lag": Kind(f"lag:{_SPAN}", "the target, or a column, that long before"),
        "roll": Kind(f"roll:{_SPAN}", "mean of the target, or of a column, over that long before"),
        "clear-sky": Kind("clear-sky", "irradiance under a clear sky at a position, in W/m^2"),
    }
)
"""Kinds of derived features by name."""


@dataclass(frozen=True)
class Feature:
    """A feature as a study names it.

    Args:
        name: as there.
        kind: "column", "categorical", or one of `DERIVED`.
        source: the column that it is made of; empty for those of time alone, and of a column without a name.
        span: of a lag or a roll.
        cycle: of a cyclic one.
    """

    name: str
    kind: str = "column"
    source: str = ""
    span: Span | None = None
    cycle: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of x, with that of a categorical one standing for all its categories."""
        return (f"{self.cycle}:sin", f"{self.cycle}:cos") if self.kind == "cyclic" else (self.name,)

    @property
    def of_time(self) -> bool:
        """Whether it is made of the time alone."""
        return self.kind in ("cyclic", "clear-sky")

    @property
    def known_later(self) -> bool:
        """Whether it is made of what comes before, so that the first rows have none."""
        return self.kind in ("lag", "roll")


@dataclass(frozen=True)
class Layout:
    """Roles of the columns of a user's table, and what is made of them.

    Args:
        client: name of the client column of a table.
        target: name of the target column of a table.
        classes: number of classes of a table whose targets are labels 0, 1, 2, ..., where everybody may know it; "none"
            takes the largest label of all clients, and 1. Private runs need it, as do nodes of a deployment that do not
            all hold the largest.
        time: name of the column of times of a table: ISO 8601 dates or datetimes, or numbers. Rows are sorted by it
            within clients; it is no feature. Without one the order of the file is taken for that of time.
        zone: time zone of the table, such as "Europe/Zurich": local times without an offset are of it, and the hour is
            read by its clocks. Local times that clocks skip or show twice are refused, or left out if `missing` is not
            "refuse".
        split: name of the column of a table that says which rows are "train" and which are "test", where it has one;
            "none" where a column of that name is one like others.
        group: likewise which clients are "existing" and which are "new".
        features: names of the columns of a table that are features; every other column is one when empty. Derived ones:
            "hour:cyclic", "dayofweek:cyclic" and "dayofyear:cyclic", sine and cosine of the time; "lag:24h", the target
            24 hours before, and "lag:24h of cloud"; "roll:3h" and "roll:3h of cloud", means over the 3 hours before,
            the row's own target not among them; "clear-sky", irradiance without clouds, which needs pvlib. A row before
            which the table has nothing lacks its lag, and is left out.
        categorical: names of the columns of a table that hold words, each a category: they become columns of 0 and 1.
        categories: the words by column, such as { roof = ["flat", "steep"] }; those of the training rows otherwise,
            which private runs refuse. A word that is none of them is 0 in all columns.
        client_features: names of the columns of a table that tell clients apart, such as a capacity, constant inside
            each and scaled across clients.
        missing: what is done about missing values (blank, "nan", "NA", "null", "none", "-") of a table: "refuse" it,
            "drop" rows that lack one, or fill in the "median" of the client's training rows; rows without a target are
            dropped then too. The numbers of rows by client stand in environment.json.
        horizon: how far ahead predictions are made, such as "24h": shorter lags of the target, and of columns that are
            no features themselves, are refused as leaks, and rolling means end that long before the row.
        latitude: of the clients in degrees north, or the column of a table that has it.
        longitude: likewise in degrees east.
        exclude_clients: names of clients of a table, or of your own images, whose rows are not read, such as
            ["house_03"]; to a run they are clients that never trained.
    """

    client: str = "client"
    target: str = "y"
    classes: int | None = option(None, low=2, high=CLASSES)
    time: str | None = None
    zone: str | None = None
    split: str | None = "split"
    group: str | None = "group"
    features: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    categories: Mapping[str, Any] = option(factory=dict)
    client_features: tuple[str, ...] = ()
    missing: Missing = "refuse"
    horizon: str | None = None
    latitude: float | str | None = None
    longitude: float | str | None = None
    exclude_clients: tuple[str, ...] = ()

    @property
    def ahead(self) -> Span | None:
        """How far ahead targets are predicted, where it is said."""
        return None if self.horizon is None else span(self.horizon)

    @property
    def marks(self) -> dict[str, tuple[str, str]]:
        """Columns that mark rows and clients, and the two words that each may hold."""
        known = ((self.split, ("train", "test")), (self.group, ("existing", "new")))
        return {name: words for name, words in known if name is not None}

    def wanted(
        self, columns: Sequence[str], made: Sequence[str] | None = None, empty: Collection[str] = ()
    ) -> tuple[Feature, ...]:
        """Find out which features are to be made.

        Args:
            columns: of the table.
            made: names of the columns of x of a run; None before there is one.
            empty: those of the columns that hold no value: none is a feature unless the study names it.

        Returns:
            In the order of the study or, where it names none, of the table: a run's come in its own order.

        Raises:
            DataError: when a name is neither a column nor a derived feature, or a lag is shorter than the horizon.
        """
        reserved = {self.client, self.target, self.time, *self.marks}
        names = list(self.features)
        if not names and made is None:
            names = [name for name in columns if name not in reserved and name not in empty]
        elif not names and made is not None:
            names = list(dict.fromkeys(self.column_of(name) for name in made))
        if self.features or made is None:
            names += [name for name in (*self.categorical, *self.client_features) if name not in names]
        result = tuple(self.feature(name, columns) for name in dict.fromkeys(names))
        self._check_ahead(result)
        return result

    def feature(self, name: str, columns: Sequence[str]) -> Feature:
        """Read the name of a feature; one that a column has is the column's.

        Args:
            name: of the feature.
            columns: of the table.

        Returns:
            The feature; of an unknown name the column that would be so called.

        Raises:
            DataError: when it is derived in a way that there is not.
        """
        if name in self.categorical:
            return Feature(name, "categorical", name)
        if name in columns:
            return Feature(name, "column", name)
        for kind, one in DERIVED.items():
            if match := re.fullmatch(one.pattern, name):
                found = match.groupdict()
                length = None if found.get("span") is None else span(found["span"])
                if found.get("span") is not None and length is None:
                    break
                source = "" if length is None else found["of"] or self.target
                return Feature(name, kind, source, length, found.get("cycle") or "")
        if ":" in name:
            known = "hour:cyclic, dayofweek:cyclic, dayofyear:cyclic, lag:24h, lag:24h of COLUMN, roll:3h, clear-sky"
            raise DataError(f"data.features: {shown(name)} is neither a column nor a derived feature", hint=known)
        return Feature(name, "column", name)

    def column_of(self, name: str) -> str:
        """Name the column of a table that a column of x belongs to: "roof" of "roof=flat".

        Args:
            name: of a column of x.

        Returns:
            The categorical column, or the name itself.
        """
        return next((column for column in self.categorical if name.startswith(f"{column}=")), name)

    def ends_before(self, feature: Feature, wanted: Sequence[Feature]) -> Span | None:
        """Say how long before its row the newest value is that a lag or a roll may take.

        Args:
            feature: a lag or a roll.
            wanted: all features: a column that is one itself is known for the time of the row, such as a forecast of
                the weather.

        Returns:
            The horizon; None where there is none, or the column is known for the time of the row.
        """
        known = feature.source != self.target and any(one.name == feature.source for one in wanted)
        return None if known else self.ahead

    def _check_ahead(self, wanted: Sequence[Feature]) -> None:
        """Refuse lags of what is not known yet."""
        for feature in wanted:
            least = self.ends_before(feature, wanted) if feature.kind == "lag" else None
            if least is not None and feature.span is not None and feature.span.amount < least.amount:
                what = f"data.features: {feature.name!r} is shorter than the horizon of {self.horizon}, when"
                raise DataError(
                    f"{what} {feature.source!r} is not known yet: that would leak it",
                    hint=f"lag:{self.horizon} is the shortest; or a shorter data.horizon",
                )

    def same_for_all(self, columns: Sequence[str]) -> dict[str, Literal["none", "pooled"]]:
        """Say how columns are scaled that mean the same in every client.

        Args:
            columns: names of the columns of x.

        Returns:
            By name: "none" of categories and of sines and cosines, "pooled" of numbers that tell clients apart.
        """
        cycles = {name for text in self.features for name in self.feature(text, ()).names if text.endswith(":cyclic")}
        result: dict[str, Literal["none", "pooled"]] = {}
        for name in columns:
            column = self.column_of(name)
            if column in self.categorical or name in cycles:
                result[name] = "none"
            elif column in self.client_features:
                result[name] = "pooled"
        return result
