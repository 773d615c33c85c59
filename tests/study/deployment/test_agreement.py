"""Studies of a server and its nodes that differ in the units of rows are refused, and others are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import frames
from pacbayes_fl.federation.node import InMemory
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment import agreement
from pacbayes_fl.study.deployment.node import StudyNode
from pacbayes_fl.study.deployment.server import serve
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.serving.node_release import results_of
from pacbayes_fl.study.serving.release import release
from tests.study.deployment.test_server import NAMES, nodes_of, reach, study_of

LOGIT = ("data.transform=logit", "data.lower_bound=-99", "data.upper_bound=99")
SCHEMA = load(study_of())


def of(*sets: str) -> Any:
    """Send what a study says as it travels."""
    return frames.decode(frames.encode(agreement.units(study_of(*sets), SCHEMA), {})).config


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            LOGIT,
            r"^data\.transform is 'logit' in the node's study and 'none' in the server's; 2 more differ \(all nodes",
        ),
        (("data.transform=yeo-johnson",), r"^data\.transform is 'yeo-johnson' in the node's study and 'none'"),
        (("data.scale=none",), r"^data\.scale of 'x' is 'none' in the node's study and 'client' in .*; 1 more"),
        (
            ("data.column_scale.y=none",),
            r"^data\.scale of 'y' is 'none' in the node's study and 'client' in the server's \(",
        ),
        (("data.upper_bound=99",), r"^data\.upper_bound is 99\.0 in the node's study and None in the server's"),
    ],
    ids=str,
)
def test_what_differs_is_named_with_both_values(change: tuple[str, ...], text: str, tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=text):
        agreement.check(of(*change), of())
    study, other = study_of(), study_of(*change)
    nodes = {**nodes_of(study), 8: StudyNode(other, load(other), InMemory(), NAMES[1::2])}
    with pytest.raises(DeployError, match=rf"node 8 does not take part: .{text.removeprefix('^')}"):
        serve(study, tmp_path, reach(nodes))


def test_powers_means_and_public_ranges_are_compared_where_they_count() -> None:
    powers = [of("data.transform=yeo-johnson", f"data.transform_lambda={power}") for power in ("0.5", "1.5")]
    with pytest.raises(DeployError, match=r"^data\.transform_lambda is 0\.5 in the node's study and 1\.5 in"):
        agreement.check(*powers)
    assert "data.transform_lambda" not in of() and not any("ranges" in key for key in of("data.ranges.y=[0,1]"))
    with pytest.raises(DeployError, match=r"^data\.upper_bound is 'x' in the node's study and 9\.0 in the server's"):
        agreement.check(of("data.upper_bound=x"), of("data.upper_bound=9"))
    private = ("privacy.epsilon=1", "privacy.clip=1")
    ranges = [of(*private, f"data.ranges.y=[0,{high}]") for high in (1, 2)]
    with pytest.raises(
        DeployError, match=r"^data\.ranges of 'y' is \[0\.0, 1\.0\] in the node's study and \[0\.0, 2\.0\]"
    ):
        agreement.check(*ranges)
    rolls = [of('data.features=["roll:3h"]', f"data.horizon={ahead}") for ahead in ("24h", "1 day", "2 days")]
    agreement.check(rolls[0], rolls[1])
    with pytest.raises(DeployError, match=r"^data\.horizon is '1 day' in the node's study and '2 days'"):
        agreement.check(rolls[0], rolls[2])
    assert "data.horizon" not in of("data.horizon=24h")


@pytest.mark.parametrize("came", [None, [], "x", 3])
def test_what_says_no_units_is_refused(came: object) -> None:
    with pytest.raises(DeployError, match="what should say the units of the server's study is"):
        agreement.check(of(), came)
    with pytest.raises(DeployError, match=r"^odd is None in the node's study and 1 in the server's"):
        agreement.check(of(), {**of(), "odd": 1})


def test_what_is_a_nodes_own_is_not_compared(tmp_path: Path) -> None:
    """Its rows come from elsewhere, are cut elsewhere, and it says of the scale of a column what all say of it."""
    study = study_of("federation.rounds=1")
    same = ("data.options.rows=4", "data.test.share=0.5", "data.duplicate_rows=allow", "data.column_scale.x=client")
    other = study_of(*same, "deploy.share=[]", "deploy.deadline=5", "data.client=house")
    assert agreement.units(other, SCHEMA) == agreement.units(study, SCHEMA)
    nodes = {**nodes_of(study), 8: StudyNode(replace(study, data=other.data), load(study), InMemory(), NAMES[1::2])}
    (record,) = serve(study, tmp_path, reach(nodes)).rounds
    assert record.dropped == ()


def test_moments_in_other_units_are_not_told(tmp_path: Path) -> None:
    """Else a private run would have paid for them."""
    scaled = ("data.scale=pooled", "federation.rounds=1")
    study, other, heard = study_of(*scaled), study_of(*scaled, *LOGIT), list[Any]()
    nodes = {**nodes_of(study), 8: StudyNode(other, load(other), InMemory(), NAMES[1::2])}

    def came(node: int, data: bytes) -> bytes:
        heard.append((node, frames.decode(data)))
        return data

    with pytest.raises(DeployError, match=r"node 8 does not take part: .data\.transform is 'logit'"):
        serve(study, tmp_path, reach(nodes, came))
    assert all(not frame.arrays for node, frame in heard if node == 8)
    assert not (tmp_path / "scaling.json").exists()


def test_a_release_in_other_units_is_refused(tmp_path: Path) -> None:
    study = study_of("federation.rounds=1")
    serve(study, tmp_path / "there", reach(nodes_of(study)))
    release(tmp_path / "there", tmp_path / "released")
    results_of(study, tmp_path / "node", NAMES[:1], tmp_path / "released")
    with pytest.raises(
        DeployError, match=r"data\.transform is 'logit' in the node's study and 'none' in the release's"
    ):
        results_of(study_of("federation.rounds=1", *LOGIT), tmp_path / "node", NAMES[:1], tmp_path / "released")


def test_the_study_that_is_bundled_agrees_with_itself() -> None:
    study = Study.from_toml("polynomial")
    assert agreement.units(study, SCHEMA) == agreement.units(study, load(study))
