"""Generators of federated regression data: Polynomial and PV (PAC-PFL section 8.5).

The package stands alone: it needs numpy, and for the PV data pandas and pvlib.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from data_gen import generators
from data_gen.dataset import Dataset, load
from data_gen.errors import DataGenError
from data_gen.generators import Generator

__all__ = ["DataGenError", "Dataset", "Generator", "generate", "load", "names"]


def names() -> tuple[str, ...]:
    """Give the names that ``generate`` takes."""
    return tuple(generators.GENERATORS)


def _nearest(word: str, valid: Iterable[str]) -> str:
    """Give the valid word most like the one given."""
    return difflib.get_close_matches(word, valid, n=1, cutoff=0.0)[0]


def generate(name: str, **options: Any) -> Dataset:
    """Make one of the data sets by name (PAC-PFL sections 8.5.1 and 8.5.2).

    Args:
        name: of ``generators.GENERATORS``, such as ``"polynomial"``, ``"pv-ew"`` or ``"pv-s"``.
        options: fields of the generator's dataclass of options, such as
            ``data_gen.polynomial.PolynomialConfig`` or, without ``kind``, ``data_gen.pv.PVConfig``.

    Returns:
        The data set, not yet written; see ``Dataset.save``.

    Raises:
        DataGenError: the name or an option is unknown or out of range, or a package is missing.
    """
    if name not in generators.GENERATORS:
        raise DataGenError(f"no data set {name!r}; nearest is {_nearest(name, names())!r}")
    known = generators.GENERATORS[name]
    for option in options:
        if option not in known.options:
            raise DataGenError(f"{name} has no option {option!r}; nearest is {_nearest(option, known.options)!r}")
    return known.make(known.config(**options, **known.fixed))
