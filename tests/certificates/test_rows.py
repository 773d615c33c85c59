"""Which rows certificates stand on, and in which units."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.certificates.rows import bound_rows_of, none_of
from pacbayes_fl.data.scaling import FEDERATED
from pacbayes_fl.study.callbacks import EarlyStop
from pacbayes_fl.study.run import train
from pacbayes_fl.study.uncertifiable import independent
from tests.tiny import Row, on_csv, rows, tiny, write_csv

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


@pytest.mark.parametrize(("missing", "refused"), [("median", True), ("drop", False)])
def test_clients_that_never_train_are_refused_where_their_rows_are_made_of_each_other(
    tmp_path: Path, missing: str, refused: bool
) -> None:
    """As a study is that keeps rows for certificates: a median is of all rows of the client, those of the bound."""
    table = rows()
    table[-4] |= {"wind": math.nan}  # the last row of new_1 to learn from
    path = write_csv(tmp_path / "rows.csv", table)
    sets = ("federation.rounds=1", "report.certify.independent=true", f"data.missing={missing}")
    with warnings.catch_warnings(record=True):  # of the row that is left out
        reasons = certify(train(on_csv(path, *sets))).reasons["new"]
    made = "[data] missing = 'median': rows are made of each other, and a certificate needs rows that are independent"
    assert reasons == ([f"{made} draws"] if refused else [])


@pytest.mark.parametrize(("scheme", "told"), [("folds", True), ("split", False)])
def test_a_callback_that_ends_all_folds_at_once_has_seen_the_rows_of_the_bound(scheme: str, told: bool) -> None:
    """What it looks at is of all clients; after a split it is of rows that are none of the bound."""
    study = tiny(f"report.certify.scheme={scheme}", "report.certify.folds=2", "federation.rounds=4")
    reasons = certify(train(study, callbacks=[EarlyStop(patience=1, min_delta=1e9)])).reasons
    what = (
        "all folds ended after round 2 of 4, which may have been chosen by all clients, those of the bound among them"
    )
    assert reasons["existing"] == ([f"{what} (as many rounds as were planned)"] if told else [])
    assert reasons["new"] == []


def test_an_empty_batch_has_the_same_clients_and_no_rows() -> None:
    batch = train(tiny("federation.rounds=0")).groups["existing"].train
    result = none_of(batch)
    assert (result.ids, result.names) == (batch.ids, batch.names)
    assert result.size.tolist() == [0.0] * 4
    assert result.x.shape[1:] == (1, 1) and not bool(result.x.any())


def test_units_of_a_new_client_are_not_moved_by_its_own_rows(tmp_path: Path) -> None:
    table = rows()
    for name, move in (("before", 0.0), ("after", 500.0)):
        moved = [row | {"y": row["y"] + move} if row["client"] == "new_1" else row for row in table]
        trained = train(on_csv(write_csv(tmp_path / f"{name}.csv", moved), "federation.rounds=1"))
        result = bound_rows_of(trained, "new", trained.groups["new"], 0.05)
        assert result is not None and result.prior.source == "disjoint clients"
        assert result.seen.size.tolist() == [0.0, 0.0]
        known = trained.groups["existing"].used
        y, mask = result.rows.y[1], result.rows.mask[1]
        raw = trained.groups["new"].raw.train.y[1]
        assert torch.allclose(y[mask] * known.y_std.mean() + known.y_mean.mean(), raw[mask])
        if move:
            assert float(y[mask].min()) > 0.5  # not standardised away


def test_rows_of_a_split_are_scaled_by_what_the_prior_saw() -> None:
    trained = train(tiny(SPLIT, "federation.rounds=1"))
    result = bound_rows_of(trained, "existing", trained.groups["existing"], 0.05)
    afresh = bound_rows_of(trained, "existing", trained.groups["existing"], 0.05, afresh=True)
    assert result is not None and afresh is not None and trained.bound_rows is not None
    assert (result.prior.source, result.seen.size.tolist(), result.rows.size.tolist()) == (
        "split",
        [4.0] * 4,
        [3.0] * 4,
    )
    assert (afresh.seen.size.tolist(), afresh.rows.size.tolist()) == ([0.0] * 4, [3.0] * 4)
    units = trained.groups["existing"].units
    expected = (trained.bound_rows.y - units.y_mean.unsqueeze(1)) / units.y_std.unsqueeze(1)
    assert torch.allclose(result.rows.y, torch.where(trained.bound_rows.mask, expected, 0.0))


def test_a_run_without_a_scheme_has_no_rows_left() -> None:
    trained = train(tiny("federation.rounds=1"))
    assert bound_rows_of(trained, "existing", trained.groups["existing"], 0.05) is None


def capacities(shift: float = 0.0, of: str = "") -> list[Row]:
    """Rows of clients with a capacity of their own, which with one client's targets may be moved."""
    clients = list(dict.fromkeys(row["client"] for row in rows()))
    return [
        row | {"cap": 4.0 + clients.index(row["client"]) + moved, "y": row["y"] + moved}
        for row in rows()
        for moved in [shift if row["client"] == of else 0.0]
    ]


POOLED = ("data.column_scale.y=pooled", "federation.rounds=1")


@pytest.mark.parametrize("kind", FEDERATED)
def test_what_clients_share_is_of_rows_that_priors_saw_and_of_no_row_of_a_bound(tmp_path: Path, kind: str) -> None:
    """A split keeps its rows out of pooled moments, and a new client's rows, however far off, move nobody's units."""
    path = write_csv(tmp_path / "rows.csv", capacities())
    trained = train(on_csv(path, *POOLED, SPLIT))
    assert trained.bound_rows is not None
    shared, known = trained.groups["existing"].shared, trained.groups["existing"].raw.train
    assert shared.kinds == ("client", "client", "pooled", "pooled")
    assert float(shared.mean[3]) == pytest.approx(float(known.y[known.mask].mean()), rel=1e-12)
    assert float(shared.std[3]) == pytest.approx(float(known.y[known.mask].std(correction=0)), rel=1e-12)
    result = bound_rows_of(trained, "existing", trained.groups["existing"], 0.05)
    assert result is not None
    expected = (trained.bound_rows.y - shared.mean[3]) / shared.std[3]
    assert torch.allclose(result.rows.y, torch.where(trained.bound_rows.mask, expected, 0.0), rtol=1e-12, atol=1e-12)
    scaled = []
    for name, move in (("before", 0.0), ("after", 500.0)):
        path = write_csv(tmp_path / f"{name}.csv", capacities(move, "new_1"))
        trained = train(on_csv(path, *POOLED, f"data.column_scale.y={kind}"))
        result = bound_rows_of(trained, "new", trained.groups["new"], 0.05)
        assert result is not None and result.independent
        scaled.append((result.rows, trained.groups["new"].shared))
    (before, first), (after, second) = scaled
    assert torch.equal(first.mean, second.mean) and torch.equal(first.std, second.std)
    assert torch.equal(before.x[0], after.x[0]) and torch.equal(before.y[0], after.y[0])
    step = (after.y[1] - before.y[1])[after.mask[1]] * second.std[3]
    assert torch.allclose(step, torch.full_like(step, 500.0))


def test_summaries_of_the_rows_of_a_bound_are_no_inputs(tmp_path: Path) -> None:
    """A new client is taken for an average one; of a split the rows that the prior saw are summarised."""
    path = write_csv(tmp_path / "rows.csv", capacities())
    trained = train(on_csv(path, "data.client_inputs=summaries", "federation.rounds=1", SPLIT))
    groups = {name: replace(group, inputs=torch.full_like(group.inputs, 7.0)) for name, group in trained.groups.items()}
    result = bound_rows_of(trained, "new", groups["new"], 0.05)
    assert result is not None and not bool(result.rows.x[..., 3:].any()) and not bool(result.test.x[..., 3:].any())
    split = bound_rows_of(trained, "existing", groups["existing"], 0.05)
    assert split is not None and trained.bound_rows is not None
    for k in range(4):
        assert bool((split.rows.x[k, split.rows.mask[k], 3:] == 7.0).all())


def test_folds_share_nothing_that_a_client_s_own_rows_moved(tmp_path: Path) -> None:
    """In folds a client's units and kinds are of others alone: its capacity is not scaled across clients."""
    sets = ("federation.rounds=1", "report.certify.scheme=folds", "report.certify.folds=2")
    with pytest.warns(UserWarning, match="^cap: constant inside clients and different between them"):
        trained = train(on_csv(write_csv(tmp_path / "rows.csv", capacities()), *sets))
    assert trained.groups["existing"].shared.kinds == ("client",) * 4
