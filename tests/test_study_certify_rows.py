"""Which rows certificates stand on, and in which units."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pacbayes_fl.study import train
from pacbayes_fl.study_certify_rows import evidence_of, independent, none_of
from tests.tiny import on_csv, rows, tiny, write_csv

SPLIT = "report.certify.scheme=split"


@pytest.mark.parametrize(
    ("source", "declared", "expected"),
    [
        ("polynomial", None, True),
        ("mnist", None, True),
        ("femnist", None, True),
        ("fashion-mnist-inverted", None, True),
        ("pv-ew", None, False),
        ("rows.csv", None, False),
        ("rows.csv", "true", True),
        ("polynomial", "false", False),
    ],
)
def test_who_vouches_for_independent_rows(source: str, declared: str | None, expected: bool) -> None:
    sets = [f"data.source={source}", *([] if declared is None else [f"report.certify.independent={declared}"])]
    name = "pfedbayes" if "mnist" in source else "pac-pfl"
    study = tiny(*sets, f"method.name={name}")
    assert independent(study) is expected


def test_an_empty_batch_has_the_same_clients_and_no_rows() -> None:
    batch = train(tiny("federation.rounds=0")).groups["existing"].train
    found = none_of(batch)
    assert (found.ids, found.names) == (batch.ids, batch.names)
    assert found.size.tolist() == [0.0] * 4
    assert found.x.shape[1:] == (1, 1) and not bool(found.x.any())


def test_units_of_a_new_client_are_not_moved_by_its_own_rows(tmp_path: Path) -> None:
    table = rows()
    for name, move in (("before", 0.0), ("after", 500.0)):
        moved = [row | {"y": row["y"] + move} if row["client"] == "new_1" else row for row in table]
        trained = train(on_csv(write_csv(tmp_path / f"{name}.csv", moved), "federation.rounds=1"))
        found = evidence_of(trained, "new", trained.groups["new"], 0.05)
        assert found is not None and found.prior.source == "disjoint clients"
        assert found.seen.size.tolist() == [0.0, 0.0]
        known = trained.groups["existing"].used
        y, mask = found.rows.y[1], found.rows.mask[1]
        raw = trained.groups["new"].raw.train.y[1]
        assert torch.allclose(y[mask] * known.y_std.mean() + known.y_mean.mean(), raw[mask])
        if move:
            assert float(y[mask].min()) > 0.5  # not standardised away


def test_rows_of_a_split_are_scaled_by_what_the_prior_saw() -> None:
    trained = train(tiny(SPLIT, "federation.rounds=1"))
    found = evidence_of(trained, "existing", trained.groups["existing"], 0.05)
    afresh = evidence_of(trained, "existing", trained.groups["existing"], 0.05, afresh=True)
    assert found is not None and afresh is not None and trained.held is not None
    assert (found.prior.source, found.seen.size.tolist(), found.rows.size.tolist()) == ("split", [4.0] * 4, [3.0] * 4)
    assert (afresh.seen.size.tolist(), afresh.rows.size.tolist()) == ([0.0] * 4, [3.0] * 4)
    units = trained.groups["existing"].units
    expected = (trained.held.y - units.y_mean.unsqueeze(1)) / units.y_std.unsqueeze(1)
    assert torch.allclose(found.rows.y, torch.where(trained.held.mask, expected, 0.0))


def test_a_run_without_a_scheme_has_no_rows_left() -> None:
    trained = train(tiny("federation.rounds=1"))
    assert evidence_of(trained, "existing", trained.groups["existing"], 0.05) is None
