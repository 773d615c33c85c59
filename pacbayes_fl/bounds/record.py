"""Certificates as JSON can hold them: all that a bound was made of, read back only where it still gives the bound."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, Formula, shared_terms
from pacbayes_fl.bounds.checks import Number
from pacbayes_fl.bounds.losses import BoundedLoss
from pacbayes_fl.bounds.plain import KINDS, renamed
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.table import formulas
from pacbayes_fl.errors import AssumptionError, DataError
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.results.records import SIMULATED_EPSILON

_AGREEMENT = 1e-12
_ENTRIES = (
    "theorem",
    "formula",
    "valid",
    "value",
    "unfounded_value",
    "vacuous",
    "delta",
    "split",
    "terms",
    "premises",
    "reasons",
)


def to_record(certificate: Certificate, *bounds: Bound) -> JsonTable:
    """Write a certificate as numbers, words, lists and dicts.

    Args:
        certificate: of a bound of the table, or of one of these.
        *bounds: records of further bounds.

    Returns:
        What `from_record` reads. A loss of the caller's own is kept as its name and range. Without "valid" the "value"
        is None, and the number, which then bounds nothing, is the "unfounded_value". The "checksum" is over the rest as
        JSON with sorted keys, in which every number is a float: anybody can make it anew, so that it finds damage and
        slips, and no forgery.

    Raises:
        AssumptionError: when its formula is of the caller's own making.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, from_record, seeger, to_record
        >>> certificate = seeger(0.1, 5.0, 1_000, 0.05, Premises(Provenance("split"), independent=True))
        >>> record = to_record(certificate)
        >>> bool(from_record(record).value == certificate.value)
        True
    """
    known = formulas(*bounds)
    names = [name for name, formula in known.items() if formula is certificate.formula]
    if not names:
        what = f"the formula of {certificate.theorem!r} is none of {', '.join(known)}"
        raise AssumptionError(what, hint="give the record of its bound too: to_record(certificate, bound)")
    entries = {**certificate.to_dict(), "formula": names[0]}
    record = {name: entries[name] for name in _ENTRIES if name in entries}
    return record | {"checksum": _checksum(record)}


def from_record(record: JsonMapping, *bounds: Bound) -> Certificate:
    """Read a certificate back and compute it again.

    A premise that is broken counts, whether the record says so or not.

    Args:
        record: what `to_record` gave; further entries are ignored.
        *bounds: records of further bounds than those of the table.

    Returns:
        The certificate, on the CPU, with the recorded value.

    Raises:
        DataError: when an entry was edited, is missing or none that `to_record` writes, when the terms do not fit the
            premises, or when the value does not follow from the terms.

    Example:
        >>> import json
        >>> from pacbayes_fl.bounds import Premises, Provenance, from_record, seeger, to_record
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> text = json.dumps(to_record(seeger(0.1, 5.0, 1000, 0.05, premises)))
        >>> try:
        ...     from_record(json.loads(text.replace('"n": 1000', '"n": 9000')))
        ... except ValueError as error:
        ...     print(str(error).partition(":")[0])
        the record of a certificate is damaged
    """
    try:
        if record["checksum"] != _checksum(record):
            raise DataError(
                "the record of a certificate is damaged: its entries are not those that its checksum was made of",
                hint="it was edited; write it again with `to_record`",
            )
        certificate = _read(record, formulas(*bounds))
        again = certificate.recompute()
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise DataError(f"the record of a certificate is damaged: {what}") from error
    value = certificate.value
    if again.shape != value.shape or not torch.allclose(again, value, rtol=_AGREEMENT, atol=0.0):
        raise DataError(
            f"the record of a certificate is damaged: its value is {value.tolist()}, its terms give {again.tolist()}",
            hint="write it again with `to_record`",
        )
    return certificate


def of_another_bound(record: JsonMapping, *bounds: Bound) -> bool:
    """Whether a record is of a bound that is not at hand, so that its value cannot be computed again.

    Args:
        record: what `to_record` returned, perhaps by way of a file.
        *bounds: at hand beside those of the table.

    Returns:
        False of one whose entries are not those that its checksum was made of.
    """
    return record.get("formula") not in formulas(*bounds) and record.get("checksum") == _checksum(record)


def _read(record: JsonMapping, known: Mapping[str, Formula]) -> Certificate:
    name = record["formula"]
    if name not in known:
        raise DataError(f"formula must be one of {', '.join(known)}, got {name!r}")
    given, simulated = dict(record["premises"]), SIMULATED_EPSILON in record["premises"]["prior"]
    prior = Provenance(**renamed(given["prior"], simulated, back=True), simulated=simulated)
    premises = Premises(**{**given, "prior": prior, "loss": _loss(given["loss"])})
    split = {str(key): _number(share) for key, share in record["split"].items()}
    terms = {str(key): _numbers(term) for key, term in renamed(record["terms"], simulated, back=True).items()}
    delta = _number(record["delta"])
    shares = torch.stack(torch.broadcast_tensors(*(_numbers(share) for share in split.values())))
    for key, expected in {**shared_terms(premises, split), "delta of all": delta}.items():
        result, said = shares.sum(0) if key == "delta of all" else terms[key], _numbers(expected)
        if key == "delta of all" and not said.dim():  # whose shares may be by client
            said = said.expand_as(result)
        if result.shape != said.shape or not torch.allclose(result, said, rtol=_AGREEMENT, atol=0.0):
            text = f"{key} is {_words(result)}, and its premises say {_words(said)}"
            raise DataError(f"the record of a certificate is damaged: {text}")
    broken = premises.broken()
    reasons = (*broken, *(str(reason) for reason in record["reasons"] if reason not in broken))
    return Certificate(
        str(record["theorem"]),
        _numbers(record["unfounded_value" if record["value"] is None else "value"]),
        delta,
        MappingProxyType(split),
        MappingProxyType(terms),
        known[name],
        premises,
        reasons,
    )


def _checksum(record: JsonMapping) -> str:
    """Hash what `to_record` writes of a record; 1 and 1.0 are the same, as other programs write one for the other."""
    text = json.dumps({name: record[name] for name in _ENTRIES if name in record})
    return hashlib.sha256(json.dumps(json.loads(text, parse_int=float), sort_keys=True).encode()).hexdigest()


def _numbers(values: object) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def _number(value: Any) -> Number:
    """Take one number as it is, and several as a tensor."""
    return _numbers(value) if isinstance(value, list) else float(value)


def _words(value: Tensor) -> str:
    return f"{value.item():g}" if value.dim() == 0 else f"{value.tolist()}"


def _loss(record: JsonMapping) -> BoundedLoss:
    settings = dict(record)
    kind = settings.pop("kind")
    if kind not in KINDS:
        raise DataError(f"loss must be one of {', '.join(KINDS)}, got {kind!r}")
    return KINDS[kind](**settings)
