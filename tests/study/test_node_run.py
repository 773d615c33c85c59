"""What a node makes of a run after its last round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.federation import frames, public
from pacbayes_fl.federation.frames import Array
from pacbayes_fl.federation.node import InMemory
from pacbayes_fl.results.records import load as load_result
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.node import StudyNode
from pacbayes_fl.study.prepare import build
from pacbayes_fl.study.run import open_run

SETS = ["method.particles=2", "federation.device=cpu", "data.scale=client", "federation.rounds=2"]
STUDY = Study.from_toml("polynomial", [*SETS, 'deploy.share=["metrics"]'])
NAMES = ("poly_02", "poly_03", "new_poly_01")


def node_of(study: Study, folder: Path | None) -> StudyNode:
    results = None if folder is None else (lambda run: folder / run)
    node = StudyNode(study, load(study), InMemory(), NAMES, results)
    assert "new" in asked(node, {"kind": "join", "run": "r", "round": 0})
    return node


def asked(node: StudyNode, config: dict[str, Any], arrays: dict[str, Array] | None = None) -> Any:
    return frames.decode(node.answer(frames.encode(config, arrays or {}))).config


def letter(study: Study, number: int, **more: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    method, _ = build(study, load(study))
    model = public.to_bytes(method, method.init_server(torch.Generator().manual_seed(0)), study.seed)
    config = {"kind": "finish", "run": "r", "round": number, "halved": 0, "uncounted": {}, "released": None}
    return config | more, {"model": Array("", (), "", model)}


def test_models_and_scores_are_kept_where_a_run_is_opened_and_again_after_more_rounds(tmp_path: Path) -> None:
    node = node_of(STUDY, tmp_path)
    for number in (1, 2):
        rows = asked(node, *letter(STUDY, number))["rows"]
        assert [(row["name"], row["group"], row["m"]) for row in rows] == [
            ("poly_02", "existing", 1),  # their number is not shared
            ("poly_03", "existing", 1),
            ("new_poly_01", "new", 1),
        ]
        trained, kept = open_run(tmp_path / "r"), load_result(tmp_path / "r")
        assert trained.round == number and [row.name for row in kept.clients] == [*NAMES]
        assert [row["metrics"] for row in rows] == [dict(row.metrics) for row in kept.clients]
        assert {row.m for row in kept.clients} == {10}
        assert kept.predictions["existing.mean"].shape[0] == 2


def test_what_is_not_shared_is_not_told_and_nothing_is_written_without_a_folder() -> None:
    shy = Study.from_toml("polynomial", SETS)
    node = node_of(shy, None)
    assert asked(node, *letter(shy, 2)) == {"rows": []}
    config, arrays = letter(shy, 2, kind="score")
    assert "no 'loss'" in asked(node, config, arrays)["refused"]
    assert "moments of columns are not told" in asked(node, {"kind": "moments"})["refused"]
    for wrong in ({"run": "s"}, {"round": "2"}, {"halved": -1}, {"halved": None}):
        assert "no run that the node has joined" in asked(node, *letter(shy, 2, **wrong))["refused"]
    for wrong in ({"uncounted": None}, {"uncounted": {NAMES[0]: "2"}}):
        assert "whose last answers did not count" in asked(node, *letter(shy, 2, **wrong))["refused"]
    assert "holds no model" in asked(node, letter(shy, 2)[0])["refused"]
    damaged = {"model": Array("", (), "", b"x")}
    assert "it failed (CheckpointError)" in asked(node, letter(shy, 2)[0], damaged)["refused"]
    other = {"kind": "join", "run": "r", "round": 0, "seed": 1}
    assert "seed is 0 in the node's study and 1 in the server's" in asked(node, other)["refused"]


def test_a_private_run_says_what_was_spent(tmp_path: Path) -> None:
    private = Study.from_toml("polynomial", [*SETS, "privacy.epsilon=1", "privacy.randomness=simulation"])
    node = node_of(private, tmp_path)
    assert "what the releases of its private run have spent" in asked(node, *letter(private, 2))["refused"]
    assert not (tmp_path / "r" / "metrics.json").exists()
    assert json.dumps(node.leaves).count("not told") == 3


@pytest.mark.parametrize("names", [("new_poly_01",)])
def test_a_node_of_new_clients_alone_has_nothing_to_train(names: tuple[str, ...]) -> None:
    with pytest.raises(Exception, match="a node takes part with at least one client that trains"):
        StudyNode(STUDY, load(STUDY), InMemory(), names)
