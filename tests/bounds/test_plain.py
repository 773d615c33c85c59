"""Certificates as dicts and JSON: all that they say, and nothing that a certificate without premises may not say."""

from __future__ import annotations

import json

import numpy as np
import torch

from pacbayes_fl.bounds import ClippedNLL, LossRange, MonteCarlo, Premises, Provenance, from_record, seeger, to_record
from pacbayes_fl.results.records import SIMULATED_EPSILON

FINE = Premises(Provenance("split"), independent=True, loss=ClippedNLL(1e-3))
PAIR = torch.tensor([0.1, 0.2]), torch.tensor([1.0, 2.0]), torch.tensor([50, 70])


def test_a_dict_is_the_record_without_formula_and_checksum() -> None:
    certificate = seeger(*PAIR, 0.05, FINE, monte_carlo=MonteCarlo(100, 0.01))
    known, record = certificate.to_dict(), to_record(certificate)
    assert {**known} == {"risk": certificate.risk} | {
        name: value for name, value in record.items() if name not in ("formula", "checksum")
    }
    assert json.loads(certificate.to_json()) == known and known["value"] == certificate.value.tolist()
    assert known["premises"]["loss"] == {"kind": "ClippedNLL", "p_min": 1e-3}  # type: ignore[index, call-overload]


def test_what_is_no_certificate_has_no_value() -> None:
    known = seeger(0.1, 1.0, 50, 0.05, Premises()).to_dict()
    assert known["value"] is None and not known["valid"] and len(known["reasons"]) == 2  # type: ignore[arg-type]


def test_a_simulated_epsilon_is_called_so() -> None:
    prior = Provenance("client-level DP", 0.5, simulated=True)
    known = seeger(0.1, 1.0, 50, 0.05, Premises(prior, independent=True)).to_dict()
    for part in (known["terms"], known["premises"]["prior"]):  # type: ignore[index, call-overload]
        assert part[SIMULATED_EPSILON] == 0.5 and "epsilon" not in {*part} - {SIMULATED_EPSILON}


def test_numbers_of_numpy_are_written() -> None:
    prior = Provenance("row-level DP", np.float32(0.25), rows=np.int64(40), draws=np.int64(2))  # type: ignore[arg-type]
    loss = LossRange("cost", np.float32(0.0), np.int64(2))  # type: ignore[arg-type]
    premises = Premises(prior, True, loss, tried=np.int64(3))  # type: ignore[arg-type]
    certificate = seeger(np.float64(0.1), 1.0, np.int64(50), np.float32(0.25), premises)  # type: ignore[arg-type]
    assert from_record(json.loads(json.dumps(to_record(certificate)))).value == certificate.value
    assert json.loads(certificate.to_json())["premises"]["prior"]["rows"] == 40
