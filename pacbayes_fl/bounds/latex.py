"""Rows of LaTeX tables from certificates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.results.certificates import rounded_up

_COLUMNS = (("risk", "risk"), ("kl", "KL"), ("n", "$n$"))
_SPECIAL = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


class _Certified(Protocol):
    """What is read of a certificate."""

    @property
    def value(self) -> Tensor:
        """The bound [] or [K]."""

    @property
    def terms(self) -> Mapping[str, Tensor]:
        """Numbers of its formula, each [] or [K]."""

    @property
    def delta(self) -> Tensor | float:
        """Probability with which it may fail, [] or [K]."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is none."""


def rows(certificate: _Certified, names: Sequence[str] = (), header: bool = True) -> str:
    """Write a row for every client; see `Certificate.to_latex`.

    Args:
        certificate: on K clients, or on one.
        names: of the clients; their numbers when empty.
        header: whether headings come first.

    Returns:
        The rows.

    Raises:
        AssumptionError: when there are not as many names as clients.
    """
    values = certificate.value.flatten()
    called = [str(name) for name in names]  # of a column of a table, too, and clients that are numbered
    if called and len(called) != len(values):
        raise AssumptionError(f"names must be one for each of {len(values)} bounds, got {len(called)}")
    known = [(title, certificate.terms[name]) for name, title in _COLUMNS if name in certificate.terms]
    heads = " & ".join(["client", *(title for title, _ in known), "bound"])
    lines = [rf"{heads} \\", r"\midrule"] if header else []
    if certificate.reasons:
        why = "; ".join(certificate.reasons).translate(_SPECIAL)
        return "\n".join([*lines, rf"\multicolumn{{{len(known) + 2}}}{{l}}{{no certificate: {why}}} \\"])
    columns = [term.expand_as(certificate.value).flatten().tolist() for _, term in known]
    for k, value in enumerate(values.tolist()):
        name = (called[k] if called else str(k + 1)).translate(_SPECIAL)
        cells = [name, *(f"{column[k]:.4g}" for column in columns), rounded_up(value)]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join(lines)
