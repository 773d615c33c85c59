"""A study over nodes in memory is the study on one machine, in its run folder too, and it goes on when interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import ClientError, DataError, DeployError, StudyError
from pacbayes_fl.federation import cohort, frames, mail
from pacbayes_fl.federation.node import InMemory
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import read_rounds
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment.node import StudyNode
from pacbayes_fl.study.deployment.server import serve
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import open_run, run
from pacbayes_fl.study.serving.newcomers import forecast_newcomers
from pacbayes_fl.study.serving.release import open_release, release
from tests.deployed import server_of
from tests.laws.cases import assert_close

SMALL = ["federation.rounds=3", "method.particles=2", "federation.device=cpu", "data.scale=client"]
SHARED = 'deploy.share=["rows","metrics"]'
PRIVATE = ["privacy.epsilon=1e3", "privacy.clip=10", "privacy.randomness=simulation", "privacy.delta=1e-3"]
FOLLOWING = [*PRIVATE, "privacy.clip_quantile=0.4"]
WITHIN = [*PRIVATE, "privacy.subspace=7"]
AVERAGED = ["federation.average_last=0.7", "report.evaluate_every=1", 'deploy.share=["rows","loss","metrics"]']
CORRELATED = [*PRIVATE, "privacy.mechanism=dp-ftrl", "federation.cohort=3"]
NAMES = load(Study.from_toml("polynomial", SMALL)).groups["existing"].train.names


def study_of(*more: str) -> Study:
    return Study.from_toml("polynomial", [*SMALL, *more])


def nodes_of(study: Study, memories: Sequence[Any] = ()) -> dict[int, StudyNode]:
    """Put every other client on the second of two nodes."""
    dataset, kept = load(study), memories or (InMemory(), InMemory())
    return {7 + k: StudyNode(study, dataset, kept[k], NAMES[k::2]) for k in range(2)}


def reach(nodes: dict[int, StudyNode], altered: Callable[[int, bytes], bytes] = lambda node, data: data) -> Any:
    def handle(node: int) -> Callable[[bytes], bytes]:
        return lambda data: altered(node, nodes[node].answer(data))

    return mail.InMemory({node: handle(node) for node in nodes})


@pytest.mark.law
@pytest.mark.parametrize(
    "more",
    [[], ["federation.cohort=3"], PRIVATE, FOLLOWING, CORRELATED, WITHIN, AVERAGED],
    ids=["all", "cohort", "private", "following", "dp-ftrl", "subspace", "averaged"],
)
def test_a_study_over_nodes_is_that_on_one_machine(more: list[str], tmp_path: Path) -> None:
    study = study_of(*more)
    run(study, tmp_path / "here")
    result = serve(study, tmp_path / "there", reach(nodes_of(study)))
    assert_close(server_of(tmp_path / "there"), server_of(tmp_path / "here"), 1e-9)
    here, there = read_rounds(tmp_path / "here"), read_rounds(tmp_path / "there")
    assert [record.round for record in there] == [1, 2, 3] and result.rounds == there
    for record, told in zip(here, there, strict=True):
        assert (told.clients, told.dropped) == (record.clients, record.dropped)
        assert told.values.keys() <= record.values.keys()
        both = [name for name in told.values if name != "seconds"]
        assert [told.values[name] for name in both] == pytest.approx([record.values[name] for name in both], rel=1e-9)
        assert more is not AVERAGED or "rsmse" in both
    assert any(name.startswith("average") for name in server_of(tmp_path / "there")) == (more is AVERAGED)
    labels = json.loads((tmp_path / "there" / "labels.json").read_text())
    assert labels["round"] == 3 and ("privacy" in labels) == (PRIVATE[0] in more)
    assert all({"clip", "below_clip"} <= record.values.keys() for record in there) == (more is FOLLOWING)
    names = {path.name for path in (tmp_path / "there").iterdir()}
    assert {"study.toml", "nodes.json", "scaling.json", "rounds.jsonl", "metrics.json", "checkpoints"} <= names
    assert not {"data.npz", "rows.json"} & names


@pytest.mark.slow
def test_no_value_of_a_row_is_in_a_folder_or_a_message(tmp_path: Path) -> None:
    study, came = study_of(*PRIVATE), list[bytes]()

    def heard(node: int, data: bytes) -> bytes:
        came.append(data)
        return data

    serve(study, tmp_path, reach(nodes_of(study), heard))
    train = load(study).groups["existing"].train
    rows = [float(value) for value in train.y[train.mask]]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(came) == 2 * (2 + 3 + 1)
    for value in rows:
        as_number = train.y.new_tensor(value).numpy().tobytes()
        assert not any(as_number in data or repr(value).encode() in data for data in (*files, *came))
    hello = frames.decode(came[0]).config["hello"]
    assert set(hello["clients"].values()) == {1}


@pytest.mark.slow
def test_a_server_that_died_goes_on_with_nodes_that_did_not(tmp_path: Path) -> None:
    """It is gone after the nodes have answered round 2, and before anything of it was saved."""
    study = study_of()
    nodes = nodes_of(study)

    class Died(Exception):
        pass

    def dying(node: int, data: bytes) -> bytes:
        answers = frames.decode(data).config.get("answers", ())
        if node == 8 and any(one.get("config", {}).get("round") == 2 for one in answers):
            raise Died
        return data

    with pytest.raises(Died):
        serve(study, tmp_path / "there", reach(nodes, dying))
    with pytest.raises(StudyError, match="--resume"):
        serve(study, tmp_path / "there", reach(nodes))
    serve(study, tmp_path / "there", reach(nodes), resume=True)
    run(study, tmp_path / "here")
    assert_close(server_of(tmp_path / "there"), server_of(tmp_path / "here"), 1e-9)
    assert [record.dropped for record in read_rounds(tmp_path / "there")] == [(), (), ()]


@pytest.mark.slow
def test_who_trained_for_a_release_that_never_was_goes_back_where_others_are_drawn_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server dies in round 2 before it has paid; chance of the operating system draws another cohort then."""
    sets = ["method.name=pfedbayes", "method.steps=1", "federation.rounds=3", "federation.cohort=12", *SMALL[2:]]
    sets += ["privacy.mechanism=laplace", "report.certify.scheme=none", *PRIVATE]
    study, paid = Study.from_toml("polynomial", sets), Ledger.spend
    first, second, third = (torch.arange(*ends) for ends in ((0, 16), (4, 12), (0, 20)))
    servers = list[dict[str, Any]]()

    def dying(ledger: Ledger, charge: Any, round: int | None = None, *more: Any, **named: Any) -> int:
        if round == 2:
            raise KeyboardInterrupt
        return paid(ledger, charge, round, *more, **named)

    for name, rounds in {"whole": (first, second, third), "cut": (first, torch.arange(8, 20), second, third)}.items():
        drawn, nodes = iter(rounds), nodes_of(study)
        monkeypatch.setattr(cohort, "draw_poisson", lambda *_, drawn=drawn: next(drawn))
        if name == "cut":
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(Ledger, "spend", dying)
                serve(study, tmp_path / name, reach(nodes))
        serve(study, tmp_path / name, reach(nodes), resume=name == "cut")
        assert next(drawn, None) is None
        servers.append(server_of(tmp_path / name))
    assert_close(servers[1], servers[0], 0.0)


@pytest.mark.slow
def test_a_node_that_lost_its_memory_joins_as_new_and_it_is_said(tmp_path: Path) -> None:
    serve(study_of("federation.rounds=1"), tmp_path, reach(nodes_of(study_of())))
    with pytest.warns(UserWarning, match=f"{NAMES[0]}.*joins as new after round 1"):
        serve(study_of(), tmp_path, reach(nodes_of(study_of())), resume=True)


def test_nodes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    study = study_of()
    dataset = load(study)
    twice = {k: StudyNode(study, dataset, InMemory(), NAMES[:1]) for k in range(2)}
    with pytest.raises(DataError, match=f"client '{NAMES[0]}': two nodes claim"):
        serve(study, tmp_path / "a", reach(twice))
    with pytest.raises(DeployError, match="there is no node"):
        serve(study, tmp_path / "b", reach({}))
    silent = mail.InMemory({7: lambda data: frames.encode({"refused": "no"}, {})})
    with pytest.raises(DeployError, match="node 7 does not take part: 'no'"):
        serve(study, tmp_path / "c", silent)
    serve(study_of("federation.rounds=1"), tmp_path / "d", reach(nodes_of(study)))
    fewer = {7: StudyNode(study, dataset, InMemory(), NAMES[::2])}
    with pytest.raises(DataError, match=r"it was \d+ rows when the run was started, and is absent"):
        serve(study, tmp_path / "d", reach(fewer), resume=True)


def test_who_answers_for_another_nodes_client_is_not_heard(tmp_path: Path) -> None:
    study = study_of("federation.rounds=1")
    nodes = nodes_of(study)

    def lying(node: int, data: bytes) -> bytes:
        return data.replace(NAMES[1].encode(), NAMES[0].encode()) if node == 8 and b"answers" in data else data

    serve(study, tmp_path, reach(nodes, lying))
    (record,) = read_rounds(tmp_path)
    assert NAMES[1] in record.dropped and NAMES[0] not in record.dropped
    assert any("node 8 for" in name for name in record.reasons)


INFINITE = b'{"config": {}, "arrays": [["a", "float64", [Infinity], "numpy.ndarray", 0]]}'
NO_MESSAGE = len(INFINITE).to_bytes(8, "big") + INFINITE


@pytest.mark.law
@pytest.mark.parametrize("kind", ["hello", "join", "train", "score", "finish"])
def test_what_is_no_message_costs_a_node_its_part_and_the_server_nothing(kind: str, tmp_path: Path) -> None:
    """A size that no number can be: a round goes on without the node's clients, scores without them are warned of."""
    study = study_of("federation.rounds=2", *AVERAGED[1:])
    nodes = nodes_of(study)
    assert "no message" in frames.decode(nodes[7].answer(NO_MESSAGE)).config["refused"]

    def odd(data: bytes) -> bytes:
        asked = frames.decode(data).config
        mine = asked["kind"] == kind and (kind != "train" or asked["requests"][0]["round"] == 1)
        return NO_MESSAGE if mine else nodes[8].answer(data)

    post = mail.InMemory({7: nodes[7].answer, 8: odd})
    if kind in ("hello", "join"):
        with pytest.raises(DeployError, match="node 8: what came is no message"):
            serve(study, tmp_path, post)
        return
    if kind == "train":
        result = serve(study, tmp_path, post)
        assert [record.dropped for record in result.rounds] == [NAMES[1::2], ()]
        assert all("no message" in reason for reason in result.rounds[0].reasons.values())
        return
    with pytest.warns(UserWarning, match="node 8 .* tells nothing of a round: what came is no message"):
        result = serve(study, tmp_path, post)
    assert len(result.rounds) == 2 and len(result.clients) == len(NAMES[::2] if kind == "finish" else NAMES)


@pytest.mark.parametrize("claim", [{"big": 10**13}, {"big": 4 * 10**9}, {"\ud800": 3}, {"a\nb": 3}, {"": 3}], ids=ascii)
def test_a_node_that_says_what_cannot_be_is_named_or_costs_nothing(claim: dict[str, int], tmp_path: Path) -> None:
    study = study_of("federation.rounds=1")

    def claiming(node: int, data: bytes) -> bytes:
        config = dict(frames.decode(data).config)
        if node == 8 and "hello" in config:
            config["hello"]["clients"] |= claim
            return frames.encode(config, {})
        return data

    if claim == {"big": 4 * 10**9}:
        (record,) = serve(study, tmp_path, reach(nodes_of(study), claiming)).rounds
        assert record.dropped == ("big",)
        return
    with pytest.raises(DeployError, match="node 8: what a node says of itself cannot be read: client"):
        serve(study, tmp_path, reach(nodes_of(study), claiming))


def test_nodes_that_do_not_all_hold_the_largest_label_state_the_classes(tmp_path: Path) -> None:
    lines = {name: [f"{name},{k}.5,{k % last}" for k in range(8)] for name, last in (("a", 2), ("b", 2), ("c", 3))}

    def labelled(names: str, **more: Any) -> Study:
        path = tmp_path / f"{names}.csv"
        path.write_text("\n".join(["client,x,y", *(line for name in names for line in lines[name])]) + "\n")
        about = {"source": str(path), "task": "classification", **more}
        own = {"method": {"name": "fedavg", "weighting": "uniform"}, "federation": {"rounds": 2, "device": "cpu"}}
        return Study.from_table({"data": about, **own})

    def nodes(**more: Any) -> dict[int, StudyNode]:
        studies = {7: labelled("ab", **more), 8: labelled("c", **more)}
        return {node: StudyNode(study, load(study), InMemory()) for node, study in studies.items()}

    with pytest.raises(DataError, match=r"'c': it has 3 classes, and 'a' has 2 classes: .*the same data\.classes"):
        serve(labelled("abc"), tmp_path / "counted", reach(nodes()))
    run(labelled("abc", classes=4), tmp_path / "here")
    serve(labelled("abc", classes=4), tmp_path / "there", reach(nodes(classes=4)))
    assert_close(server_of(tmp_path / "there"), server_of(tmp_path / "here"), 1e-6)


def test_a_capacity_is_scaled_as_on_one_machine_where_moments_are_told_and_named_where_they_are_not(
    tmp_path: Path,
) -> None:
    lines = {name: [f"{name},{k}.5,{9 + k % 2}" for k in range(8)] for name in "abc"}

    def capacities(names: str, *sets: str) -> Study:
        path = tmp_path / f"{names}.csv"
        rows = [f"{line.rpartition(',')[0]},{ord(name)},{line[-1]}" for name in names for line in lines[name]]
        path.write_text("\n".join(["client,x,cap,y", *rows]) + "\n")
        own = {"data": {"source": str(path)}, "model": {"residuals": "gaussian", "linear": "zero"}}
        own["model"] |= {"noise_widths": "constant", "networks": True}
        return Study.from_table(own, sets=[*SMALL, "data.client_inputs=none", "method.hyper_prior_std=1.0", *sets])

    def nodes(*sets: str) -> dict[int, StudyNode]:
        studies = {7: capacities("ab", *sets), 8: capacities("c", *sets)}
        return {node: StudyNode(study, load(study), InMemory()) for node, study in studies.items()}

    alike = (["deploy.share=['rows','moments']"], ["data.column_scale.cap=none"])
    for k, sets in enumerate(alike):
        run(capacities("abc", *sets), tmp_path / f"here{k}")
        serve(capacities("abc", *sets), tmp_path / f"there{k}", reach(nodes(*sets)))
        assert_close(server_of(tmp_path / f"there{k}"), server_of(tmp_path / f"here{k}"), 1e-9)
    with pytest.warns(UserWarning) as said:
        own = nodes()
    texts = [str(one.message) for one in said]
    for start in ("cap: constant inside clients and different", "cap: constant inside clients and perhaps different"):
        assert any(text.startswith(start) and "deploy.share with 'moments'" in text for text in texts), start
    serve(capacities("abc"), tmp_path / "there", reach(own))
    with pytest.raises(AssertionError):
        assert_close(server_of(tmp_path / "there"), server_of(tmp_path / "here0"), 1e-9)


def test_the_folder_of_a_server_has_no_clients_to_predict(tmp_path: Path) -> None:
    serve(study_of("federation.rounds=1"), tmp_path, reach(nodes_of(study_of())))
    with pytest.raises(StudyError, match="the clients' rows and models are at its nodes"):
        open_run(tmp_path)


def test_a_release_of_a_servers_folder_is_that_of_the_run_on_one_machine(tmp_path: Path) -> None:
    study = study_of()
    run(study, tmp_path / "here")
    serve(study, tmp_path / "there", reach(nodes_of(study)))
    x = torch.linspace(-1, 1, 6, dtype=torch.float64)
    (tmp_path / "new.csv").write_text("client,x,y\n" + "".join(f"n,{v:.3f},{v:.3f}\n" for v in x[:4]) + "n,0.9,\n")
    means = []
    for name in ("here", "there"):
        release(tmp_path / name, tmp_path / f"{name} released")
        forecast = forecast_newcomers(open_release(tmp_path / f"{name} released"), tmp_path / "new.csv")
        means.append(forecast.predicted["mean"])
    torch.testing.assert_close(means[1], means[0], rtol=1e-7, atol=1e-9)


def test_all_nodes_gone_end_the_run_and_it_goes_on_later(tmp_path: Path) -> None:
    study = study_of()
    nodes = nodes_of(study)

    class Gone(mail.InMemory):
        def ask(self, letters: Any, seconds: float) -> Any:
            config = frames.decode(next(iter(letters.values()))).config
            if config["kind"] == "train" and config["requests"][0]["round"] == 2:
                return iter(())
            return super().ask(letters, seconds)

    with pytest.raises(ClientError, match=r"round 2: none of .* clients gave an update"):
        serve(study, tmp_path, Gone({node: one.answer for node, one in nodes.items()}))
    assert len(read_rounds(tmp_path)) == 1
    assert len(serve(study, tmp_path, reach(nodes), resume=True).rounds) == 3


@pytest.mark.slow
def test_whose_answers_do_not_arrive_ends_as_one_who_was_not_there(tmp_path: Path) -> None:
    """In rounds 2 and 4 of 4, and the server dies in round 3; clients keep heads of their own, scored at the end."""
    study = Study.from_toml("polynomial", ["method.name=fedper", "federation.rounds=4", *SMALL[2:], SHARED])
    results, late = list[Result](), {2, 4}
    for trains in (True, False):
        nodes, died = nodes_of(study), list[int]()

        def second(data: bytes, nodes: Any = nodes, trains: bool = trains, died: list[int] = died) -> bytes:
            config = frames.decode(data).config
            number = config["requests"][0]["round"] if config["kind"] == mail.TRAIN else 0
            answer = nodes[8].answer(data) if trains or number not in late else b""
            if number == 3 and not died:
                died.append(number)
                raise KeyboardInterrupt
            return frames.encode({"refused": "late"}, {}) if number in late else answer

        out, post = tmp_path / str(trains), mail.InMemory({7: nodes[7].answer, 8: second})
        with pytest.raises(KeyboardInterrupt):
            serve(study, out, post)
        results.append(serve(study, out, post, resume=True))
        assert [bool(record.dropped) for record in results[-1].rounds] == [False, True, False, True]
    assert [row.metrics for row in results[0].clients] == [row.metrics for row in results[1].clients]
    assert len(results[0].clients) == len(NAMES)
    assert_close(server_of(tmp_path / "True"), server_of(tmp_path / "False"), 0.0)
