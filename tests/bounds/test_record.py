"""Records of certificates: the same bound comes back through JSON, and a damaged one does not."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo
from pacbayes_fl.bounds.client import seeger
from pacbayes_fl.bounds.losses import BoundedLoss, ClippedNLL, ClippedSquare, LossRange, SaturatingSquare, ZeroOne
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.record import from_record, to_record
from pacbayes_fl.bounds.table import BOUNDS
from pacbayes_fl.errors import AssumptionError, DataError

FINE = Premises(Provenance("split"), independent=True, posterior="exact Gibbs", drawn_clients=True)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def example(name: str, premises: Premises = FINE, draws: MonteCarlo | None = None) -> Certificate:
    energy, m = numbers(0.1, 0.2, 0.3), numbers(40, 50, 60)
    bound = BOUNDS[name]
    if bound.private:
        premises = dataclasses.replace(premises, prior=Provenance("row-level DP", 0.02, draws=2, rows=30))
    own = {"free_energy": energy, "m": m, "kl": 2.0, "log_z": -1.0, "lam": 10.0}
    if bound.group is None:
        own = {"risk": energy, "n": m, "kl": numbers(1, 2, 3), "log_z": -9.0 * energy}
        own |= {"log_ratio": numbers(-1, 2, 3), "tandem_risk": energy, "variance": 0.1 * energy}
        own |= {"variance_factor": 0.25, "scale": 0.5, "gammas": numbers(0.5), "counts": numbers(40, 20)}
        own |= {"shares": torch.full((3, 1, 3), 0.2).double(), "kls": numbers(1, 2).expand(3, 2)}
        own["losses"] = torch.outer(energy, numbers(0, 1, 2, 1))
    later = {"later": 1} if "free_energy" in bound.needs and bound.as_printed else {}
    return bound.certify({**own, "beta": 9.0}, 0.05, premises, draws, **later)


def through_json(certificate: Certificate) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(json.dumps(to_record(certificate), allow_nan=False))
    return record


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("name", list(BOUNDS))
def test_every_certificate_comes_back_through_json(name: str, drawn: bool) -> None:
    premises = dataclasses.replace(FINE, tried=3, predictor="majority vote")
    before = example(name, premises, MonteCarlo(500, 0.01) if drawn and BOUNDS[name].estimable else None)
    after = from_record(through_json(before))
    torch.testing.assert_close(after.recompute(), before.value, rtol=1e-12, atol=0)
    assert torch.equal(after.value, before.value) and after.value.dtype == torch.float64
    assert str(after) == str(before) and after.reasons == before.reasons and after.valid is before.valid
    assert after.premises == before.premises and after.formula is before.formula
    assert dict(after.delta_split) == dict(before.delta_split)
    assert list(after.parts()) == list(before.parts()) and after.vacuous.tolist() == before.vacuous.tolist()


@pytest.mark.parametrize(
    "loss",
    [ZeroOne(), ClippedNLL(1e-4), ClippedSquare(4.0), SaturatingSquare(0.3), LossRange("Brier", 0.0, 2.0, convex=True)],
)
def test_losses_come_back_whole(loss: BoundedLoss) -> None:
    premises = dataclasses.replace(FINE, loss=loss)
    assert from_record(through_json(example("seeger", premises))).premises.loss == loss


def test_a_loss_of_one_s_own_comes_back_as_its_range() -> None:
    class Own:
        name, low, high, convex = "own loss", -1.0, 3.0, True

    after = from_record(through_json(example("seeger", dataclasses.replace(FINE, loss=Own()))))
    assert after.premises.loss == LossRange("own loss", -1.0, 3.0, convex=True)


def test_provenance_comes_back_whole_and_reasons_stay() -> None:
    premises = Premises(Provenance("row-level DP", 0.1, 1e-6, 2, 50), tried=None, loss=ClippedNLL())
    before = example("mcallester", premises)
    after = from_record(through_json(before))
    assert after.prior == premises.prior and after.reasons == before.reasons and len(after.reasons) == 3
    assert "no certificate" in str(after)
    refused = from_record(through_json(example("theorem-4.2")))
    assert "step 2 of the proof" in str(refused)


def test_a_broken_premise_counts_even_where_the_record_hides_it() -> None:
    record = through_json(example("seeger", dataclasses.replace(FINE, independent=False)))
    value = record.pop("unfounded_value")
    result = from_record(signed(record | {"reasons": [], "valid": True, "value": value}))
    assert (
        not result.valid and result.reasons == example("seeger", dataclasses.replace(FINE, independent=False)).reasons
    )


def test_a_formula_of_one_s_own_is_not_recorded() -> None:
    own = dataclasses.replace(example("seeger"), formula=lambda terms: {"bound": terms["risk"]})
    with pytest.raises(AssumptionError, match="the formula of 'Maurer/Seeger, kl inverse' is none of seeger"):
        to_record(own)


def test_a_bound_of_one_s_own_is_recorded_and_read_with_its_record() -> None:
    bound = dataclasses.replace(BOUNDS["seeger"], name="mine", formula=lambda terms: {"bound": terms["risk"]})
    own = dataclasses.replace(example("seeger"), formula=bound.formula, value=example("seeger").terms["risk"])
    record = json.loads(json.dumps(to_record(own, bound)))
    assert record["formula"] == "mine" and torch.equal(from_record(record, bound).value, own.value)
    with pytest.raises(DataError, match=r"formula must be one of seeger, .*, got 'mine'"):
        from_record(record)


ENTRIES = ("theorem", "formula", "valid", "value", "vacuous", "delta", "split", "terms", "premises", "reasons")


def floats(value: Any) -> Any:
    """Write every number as a float."""
    if isinstance(value, dict):
        return {key: floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [floats(inner) for inner in value]
    return float(value) if type(value) is int else value


def signed(record: dict[str, Any]) -> dict[str, Any]:
    """Give a record the checksum of its entries, as an editor may who knows how."""
    entries = {name: floats(record[name]) for name in (*ENTRIES, "unfounded_value") if name in record}
    return record | {"checksum": hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()}


def changed(path: str, value: Any, record: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the record of a certificate with one entry changed, or removed where the value is None."""
    record = copy.deepcopy(record) or through_json(example("seeger", draws=MonteCarlo(500, 0.01)))
    *folders, last = path.split(".")
    place = record
    for folder in folders:
        place = place[folder]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return record


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("formula", "mine", "formula must be one of seeger, .*, got 'mine'"),
        ("formula", "mcallester", "its value is .*, its terms give"),
        ("value", [0.1, 0.1, 0.1], "its value is .*, its terms give"),
        ("value", 0.1, "its value is"),
        ("value", [0.1, "a", 0.1], "damaged"),
        ("terms.risk", [0.1, 0.2, 0.31], "its terms give"),
        ("terms.kl", [1.0, 2.0], "damaged"),
        ("terms.mc_draws", 501, "its terms give"),
        ("terms.mc_draws", None, "its terms give|mc_draws"),
        ("terms.mc_delta", 0.011, "mc_delta is 0.011, and its premises say 0.01"),
        ("terms.high", 2.0, "high is 2, and its premises say 1"),
        ("terms.factor", 0.5, "factor is 0.5, and its premises say 1"),
        ("terms.delta", 0.05, "delta is 0.05, and its premises say 0.04"),
        ("delta", 0.5, "delta of all is 0.05, and its premises say 0.5"),
        ("terms", None, "'terms' is missing"),
        ("terms.n", None, "'n' is missing"),
        ("premises", None, "'premises' is missing"),
        ("premises.tried", 2, "delta is 0.04, and its premises say 0.02"),
        ("premises.loss.kind", "Square", "loss must be one of ZeroOne, .*, got 'Square'"),
        ("premises.loss.high", 2.0, "damaged: .* unexpected keyword argument 'high'"),
        (
            "premises.loss",
            {"kind": "LossRange", "name": "0-1 loss", "low": 0, "high": 2},
            "high is 1, .* premises say 2",
        ),
        ("premises.prior.source", "hearsay", "source must be one of"),
        ("premises.colour", "red", "damaged"),
        ("theorem", None, "'theorem' is missing"),
    ],
)
def test_a_damaged_record_is_refused_whatever_its_checksum(path: str, value: Any, what: str) -> None:
    with pytest.raises(DataError, match=what):
        from_record(signed(changed(path, value)))
    with pytest.raises(
        DataError, match=r"damaged: its entries are not those that its checksum was made of \(it was edi"
    ):
        from_record(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("reasons", []),
        ("reasons", None),
        ("valid", True),
        ("value", [0.1, 0.1, 0.1]),
        ("vacuous", [True, True, True]),
        ("unfounded_value", None),
        ("theorem", "another"),
        ("premises.independent", True),
        ("premises.drawn_clients", False),
        ("premises.predictor", "averaged prediction"),
        ("split", {"bound": 0.02, "Monte Carlo": 0.03}),
        ("checksum", "0" * 64),
    ],
)
def test_nothing_of_a_record_can_be_edited(path: str, value: Any) -> None:
    broken = through_json(example("seeger", dataclasses.replace(FINE, independent=False)))
    assert not from_record(broken).valid
    with pytest.raises(DataError, match="its checksum was made of"):
        from_record(changed(path, value, broken))
    with pytest.raises(DataError, match="'checksum' is missing"):
        from_record(changed("checksum", None, broken))


def test_a_number_may_be_added_to_no_valid_record() -> None:
    with pytest.raises(DataError, match="its checksum was made of"):
        from_record(changed("unfounded_value", [0.1, 0.1, 0.1]))


def test_the_order_of_entries_and_the_way_numbers_are_written_do_not_matter() -> None:
    record = through_json(example("server"))
    assert record["checksum"] == signed(record)["checksum"]
    text = json.dumps(dict(reversed(record.items())))
    assert '"factor": 1.0' in text
    other = json.loads(text.replace('"factor": 1.0', '"factor": 1').replace('"tried": 1', '"tried": 1e0'))
    with pytest.raises(DataError, match="damaged"):
        from_record(other | {"terms": other["terms"] | {"factor": 1.5}})
    assert torch.equal(from_record(other).value, example("server").value)


def test_a_number_that_bounds_nothing_is_not_called_the_value() -> None:
    valid = to_record(example("seeger"))
    assert (valid["valid"], valid["vacuous"]) == (True, [False, False, False]) and "unfounded_value" not in valid
    broken = to_record(example("seeger", dataclasses.replace(FINE, independent=False)))
    assert broken["valid"] is False and broken["value"] is None
    assert broken["unfounded_value"] == valid["value"]
    assert to_record(seeger(0.1, 1e6, 100, 0.05, FINE))["vacuous"] is True


def test_what_else_stands_in_a_record_is_ignored_and_it_is_not_changed() -> None:
    record = through_json(example("server")) | {"client": "a", "note": "mine"}
    kept = copy.deepcopy(record)
    assert torch.equal(from_record(record).value, example("server").value)
    assert record == kept


def test_a_record_of_no_certificate_is_refused() -> None:
    for wrong in ({}, {"formula": "seeger"}, {"formula": ["seeger"]}):
        with pytest.raises(DataError, match="damaged"):
            from_record(wrong)


def test_the_value_of_many_clients_is_recorded_by_client() -> None:
    record = to_record(seeger(numbers(0.1, 0.2), 2.0, 100, 0.05, FINE))
    assert len(record["value"]) == 2 and record["terms"]["kl"] == 2.0 and record["formula"] == "seeger"
