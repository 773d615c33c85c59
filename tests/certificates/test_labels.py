"""What a table says of its rows and priors."""

from __future__ import annotations

import pytest
import torch

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


def test_a_transform_of_the_target_is_named_with_its_units() -> None:
    trained = train(tiny("report.certify.scheme=split", "federation.rounds=1", "data.transform=yeo-johnson"))
    group = bound_rows_of(trained, "new", trained.groups["new"], 0.05)
    assert group is not None
    units = labels_of(trained, Request(), {"new": group})["units"]["new"]
    assert units.startswith("t = Yeo and Johnson's of y with lambda = 0.5, standardised by others' average units")
    own, used = trained.groups["new"], trained.groups["existing"].used
    transform, y = own.shared.transform, own.raw.train.y[0, 0]
    assert transform is not None
    torch.testing.assert_close(group.rows.y[0, 0], (transform.forward(y) - used.y_mean.mean()) / used.y_std.mean())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), ()),
        (("data.lower_bound=-100",), ("; the mean is that before the target's bounds",)),
        (("data.transform=yeo-johnson", "data.lower_bound=-100"), ("; the mean is that of t",)),
    ],
)
def test_the_mean_of_the_hold_out_bound_is_named_where_predict_gives_another(
    more: tuple[str, ...], words: tuple[str, ...]
) -> None:
    trained = train(tiny("report.certify.scheme=split", "federation.rounds=1", *more))
    groups = {name: bound_rows_of(trained, name, group, 0.05) for name, group in trained.groups.items()}
    said = labels_of(trained, Request(), {name: group for name, group in groups.items() if group is not None})
    assert said["predictor"].keys() == {"existing", "new"}
    for text in said["predictor"].values():
        assert all(word in text for word in words) and ("the mean" in text) is bool(words)
