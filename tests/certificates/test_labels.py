"""What a table says of its rows and priors."""

from __future__ import annotations

import pytest

from pacbayes_fl.certificates.labels import labels_of
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.certificates.rows import bound_rows_of
from pacbayes_fl.study.run import train
from tests.tiny import tiny


@pytest.mark.parametrize(
    ("sets", "prior"),
    [
        (("report.certify.scheme=split",), "a client's model after the training on its other rows"),
        (("report.certify.scheme=folds", "report.certify.folds=2"), "of 2 hyper-posteriors the one that"),
    ],
)
def test_labels_say_where_the_priors_come_from(sets: tuple[str, ...], prior: str) -> None:
    trained = train(tiny(*sets, "federation.rounds=1"))
    groups = {name: bound_rows_of(trained, name, group, 0.05) for name, group in trained.groups.items()}
    result = labels_of(trained, Request(), {name: group for name, group in groups.items() if group is not None})
    assert prior in result["rows"]["existing"] and "what the server knows of others" in result["rows"]["new"]
    assert result["scheme"] == sets[0].rpartition("=")[2] and result["tried"] == 1 and "units" in result
    assert result["formula"].startswith("L <= a + R kl^-1(") and result["pooled"].startswith("also at the pooled rows")
    assert "the rows of a client are independent draws of its distribution" in result["assumes"]
