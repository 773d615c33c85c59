"""What a node makes of a run after its last round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.errors import DataError, PacBayesFLError
from pacbayes_fl.federation import frames, public
from pacbayes_fl.federation.frames import Array
from pacbayes_fl.federation.mail import InMemory as InMemoryMail
from pacbayes_fl.federation.node import InMemory
from pacbayes_fl.results.records import load as load_result
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment.node import StudyNode
from pacbayes_fl.study.deployment.node_folder import NodeFolder
from pacbayes_fl.study.deployment.server import serve
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import build
from pacbayes_fl.study.run import open_run
from pacbayes_fl.study.serving.node_release import results_of
from pacbayes_fl.study.serving.release import release
from tests.tiny import on_csv, rows, write_csv

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
    assert asked(node, *letter(shy, 2)) == asked(node, *letter(shy, 2, metrics=False)) == {"rows": []}
    assert "metrics are not told: deploy.share" in asked(node, *letter(shy, 2, metrics=True))["refused"]
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


def test_rows_that_change_under_a_run_are_no_rows_of_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that begins again with a longer file would keep others of its rows, of which the run has seen some."""
    sets = ("federation.rounds=3", "model.linear=zero", "report.certify.scheme=split")
    known, longer, place = rows(new=()), rows(new=(), sizes=(12, 15, 11, 13)), NodeFolder(tmp_path / "node")
    path = tmp_path / "rows.csv"
    study = on_csv(path, *sets, "report.certify.independent=true")

    def node() -> StudyNode:
        return StudyNode(study, load(study), place, results=place.results)

    write_csv(path, known)
    nodes, said = {7: node()}, list[str]()
    log = "pacbayes_fl.study.deployment.node._LOG.warning"
    monkeypatch.setattr(log, lambda text, *given: said.append(text % given))

    def begin_again(record: RoundRecord) -> None:
        if record.round == 2:
            write_csv(path, longer)
            nodes[7] = node()

    mail = InMemoryMail({7: lambda data: nodes[7].answer(data)})
    with pytest.raises(PacBayesFLError):
        serve(study, tmp_path / "there", mail, on_round=begin_again)
    assert said and "client 'existing_0': its training rows are not those that it trained on before" in said[0]
    assert not [*tmp_path.glob("node/results/*/metrics.json")]
    write_csv(path, known)
    nodes[7] = node()
    serve(study, tmp_path / "there", mail, resume=True)
    release(tmp_path / "there", tmp_path / "released", public_scaling=True)
    write_csv(path, longer)
    with pytest.raises(DataError, match="not those that it trained on before"):
        results_of(study, tmp_path / "node", release=tmp_path / "released")
    write_csv(path, known)
    assert certify(open_run(results_of(study, tmp_path / "node", release=tmp_path / "released"))).valid["existing"]
