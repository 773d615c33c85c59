"""The data sets that can be made, by name: one record each, from which everything that names them is derived."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from data_gen import polynomial, pv
from data_gen.dataset import Dataset


@dataclass(frozen=True)
class Generator:
    """A data set that can be made.

    Attributes:
        name: what ``generate``, the command line and studies call it.
        title: one line for people.
        config: dataclass of its options, whose docstring has a line on each under Attributes.
        make: gives the data set from a ``config``.
        rows_independent: whether the rows of a client are independent draws of one distribution; those
            of a series are not.
        fixed: options that make it this data set and not another one of the same ``config``.
    """

    name: str
    title: str
    config: type
    make: Callable[[Any], Dataset]
    rows_independent: bool
    fixed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that are free."""
        return tuple(one.name for one in fields(self.config) if one.name not in self.fixed)

    def meanings(self) -> dict[str, str]:
        """Give the line of every option that is free, as the docstring of its dataclass has it."""
        section = inspect.cleandoc(self.config.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        entries = re.split(r"\n(?=\S)", inspect.cleandoc(section))
        lines = dict(" ".join(entry.replace("``", "").split()).partition(": ")[::2] for entry in entries if entry)
        return {name: lines[name] for name in self.options}


def _houses(kind: str, facing: str) -> Generator:
    title = f"PV generation of houses facing {facing} (8.5.1)"
    return Generator(f"pv-{kind}", title, pv.PVConfig, pv.generate, False, MappingProxyType({"kind": kind}))


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        one.name: one
        for one in (
            Generator(
                "polynomial",
                "two modes of polynomials (PAC-PFL 8.5.2)",
                polynomial.PolynomialConfig,
                polynomial.generate,
                rows_independent=True,
            ),
            _houses("ew", "east or west"),
            _houses("s", "south"),
        )
    }
)
"""All of them by name. A new one is one more record here."""
