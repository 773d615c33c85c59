"""Generators of federated regression data: Polynomial and PV (PAC-PFL section 8.5).

The package stands alone: it needs numpy, and for the PV data pandas and pvlib.
"""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any

from data_gen.dataset import Dataset, load
from data_gen.errors import DataGenError

NAMES = ("polynomial", "pv-ew", "pv-s")
"""Names that ``generate`` takes."""

__all__ = ["NAMES", "DataGenError", "Dataset", "generate", "load"]


def _nearest(word: str, valid: tuple[str, ...]) -> str:
    """Give the valid word most like the one given."""
    return difflib.get_close_matches(word, valid, n=1, cutoff=0.0)[0]


def _check_options(name: str, options: dict[str, Any], valid: tuple[str, ...]) -> None:
    """Refuse options that a generator does not have."""
    for option in options:
        if option not in valid:
            raise DataGenError(f"{name} has no option {option!r}; nearest is {_nearest(option, valid)!r}")


def generate(name: str, **options: Any) -> Dataset:
    """Make one of the data sets by name (PAC-PFL sections 8.5.1 and 8.5.2).

    Args:
        name: ``"polynomial"``, ``"pv-ew"`` or ``"pv-s"``.
        options: fields of ``data_gen.polynomial.PolynomialConfig`` or, without ``kind``, of
            ``data_gen.pv.PVConfig``.

    Returns:
        The data set, not yet written; see ``Dataset.save``.

    Raises:
        DataGenError: the name or an option is unknown or out of range, or a package is missing.
    """
    if name == "polynomial":
        from data_gen import polynomial

        _check_options(name, options, tuple(f.name for f in fields(polynomial.PolynomialConfig)))
        return polynomial.generate(polynomial.PolynomialConfig(**options))
    if name in ("pv-ew", "pv-s"):
        from data_gen import pv

        _check_options(name, options, tuple(f.name for f in fields(pv.PVConfig) if f.name != "kind"))
        return pv.generate(pv.PVConfig(kind=name.removeprefix("pv-"), **options))
    raise DataGenError(f"no data set {name!r}; nearest is {_nearest(name, NAMES)!r}")
