"""What a node of a study says before it joins, and what it answers."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest

from pacbayes_fl.errors import DataError, PrivacyError, StudyError
from pacbayes_fl.federation import frames
from pacbayes_fl.federation.node import InMemory
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment.node import StudyNode
from pacbayes_fl.study.file import Study

STUDY = Study.from_toml("polynomial", ["method.particles=2", "federation.device=cpu", "data.scale=client"])
SMALL = ("method.particles=2", "data.scale=client")
DATA = load(STUDY)
TRAIN = DATA.groups["existing"].train
NODE = StudyNode(STUDY, DATA, InMemory(), TRAIN.names[2:4])


def asked(**config: Any) -> Any:
    return frames.decode(NODE.answer(frames.encode(config, {}))).config


def test_a_node_has_its_own_clients_alone() -> None:
    rows = dict(zip(TRAIN.names, map(int, TRAIN.size), strict=True))
    assert dict(NODE.hello.clients) == {name: rows[name] for name in TRAIN.names[2:4]}
    assert set(StudyNode(STUDY, DATA, InMemory()).hello.clients) == set(TRAIN.names)
    with pytest.raises(DataError, match="client 'x': it is not in the data, which hold poly_00"):
        StudyNode(STUDY, DATA, InMemory(), ["x"])


def test_what_leaves_is_told_before_anything_does() -> None:
    text = "\n".join(NODE.leaves)
    assert "poly_02, poly_03" in text and f"poly_02 {NODE.hello.clients['poly_02']}" in text
    assert "bytes a client: score" in text and "y" in text
    private = Study.from_toml("polynomial", [*SMALL, "privacy.epsilon=1", "privacy.clip=1"])
    node = StudyNode(private, load(private), InMemory())
    assert "numbers of training rows: withheld" in node.leaves
    assert any("each round" in line and "hidden by noise at the server" in line for line in node.leaves)
    assert set(node.hello.clients.values()) == {1}
    with pytest.raises(PrivacyError, match="share has 'metrics', 'rows', which the budget"):
        StudyNode(private_with('deploy.share=["rows","metrics"]'), DATA, InMemory())


def private_with(*more: str) -> Study:
    return Study.from_toml("polynomial", ["method.particles=2", "privacy.epsilon=1", "privacy.clip=1", *more])


def test_messages_are_answered_by_kind_and_others_refused(logged: list[logging.LogRecord]) -> None:
    assert asked(kind="hello")["hello"] == frames.decode(frames.encode(NODE.hello.to_json(), {})).config
    assert asked(kind="join", run="r", round=0) == {"new": {"poly_02": True, "poly_03": True}}
    assert asked(kind="join", run="r", round=1) == {"new": {"poly_02": False, "poly_03": False}}
    assert asked(kind="join", run="another", round=3) == {"new": {"poly_02": True, "poly_03": True}}
    said = "\n".join(record.getMessage() for record in logged)
    assert "remembered here of poly_02, poly_03 in this run: joining as new after round 3" in said
    assert "names no run" in asked(kind="join", run=1)["refused"]
    assert "does not know" in asked(kind="shell")["refused"] and "does not know" in asked()["refused"]
    assert "holds no requests" in asked(kind="train")["refused"]
    (answer,) = asked(kind="train", requests=[{"client": "poly_00"}])["answers"]
    assert "for client 'poly_00', and here is" in answer["refused"]
    assert "no message" in frames.decode(NODE.answer(b"x")).config["refused"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("deploy.share=[]", "scale = 'pooled' takes moments .* every node of a deployment knows its own rows alone"),
        ("data.client_inputs=summaries", "client_inputs = 'summaries' .* every node"),
        ("model.linear=ridge", "linear = 'ridge' takes sums"),
        ("report.intervals=conformal", "intervals = 'conformal' takes a histogram"),
        ("report.certify.scheme=folds", "scheme = 'folds' deals all clients"),
        ("data.scale=held-out", "is open and would be chosen by rows of all clients"),
        ("method.name=ridge", "ridge has no rounds"),
    ],
)
def test_what_takes_sums_of_all_clients_is_refused_by_name(change: str, text: str) -> None:
    scale = [] if change.startswith("deploy") else ["data.scale=client"]
    with pytest.raises(StudyError, match=text):
        StudyNode(Study.from_toml("polynomial", [*scale, change]), DATA, InMemory())


@pytest.mark.slow
def test_a_client_of_pac_pfl_loads_no_more_than_it_needs() -> None:
    """It reads its rows, trains and answers; only Pyro, from whose distributions posteriors derive, comes along."""
    code = """
import sys, tests.study.deployment.test_node_run as known
from pacbayes_fl.federation import mail, messages, arrays
node = known.node_of(known.STUDY, None)
message = node._method.broadcast(node._method.init_server(known.torch.Generator()))
config = {"run": "r", "round": 1, "client": "poly_02", "parameters": arrays.digest(message), "rates": 1.0, "seed": 0}
config |= {"method": messages.signature(node._method), "noise": "philox", "keep": True, "uncounted": 0}
((_, reply),) = mail.unpack_answers(node.answer(mail.pack_requests([messages.Request(config, arrays.pack(message))])))
assert "score" in reply.arrays, reply
heavy = ("sklearn", "sympy", "pandas", "torchvision", "matplotlib", "dp_accounting", "torch._dynamo")
sys.exit(", ".join(name for name in heavy if name in sys.modules) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
