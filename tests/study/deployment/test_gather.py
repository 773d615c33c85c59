"""What nodes share of their clients' scores makes the server's tables those of the run on one machine."""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.cli.output import print_table
from pacbayes_fl.federation import frames
from pacbayes_fl.pages.markup import to_html
from pacbayes_fl.pages.scores import results
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.records import load as load_result
from pacbayes_fl.results.rounds import read_rounds
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment.node import StudyNode
from pacbayes_fl.study.deployment.node_folder import NodeFolder
from pacbayes_fl.study.deployment.server import serve
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import open_run, run
from tests.deployed import server_of
from tests.laws.cases import assert_close
from tests.study.deployment.test_server import reach
from tests.tiny_images import tiny_images, write_root

ALL = 'deploy.share=["rows","loss","metrics","moments"]'
SMALL = ["federation.rounds=3", "method.particles=2", "federation.device=cpu", "report.evaluate_every=2"]


def nodes_of(study: Study, folder: Path, count: int = 2) -> dict[int, StudyNode]:
    """Deal all clients, new ones too, to nodes with folders."""
    dataset = load(study)
    dealt: list[list[str]] = [[] for _ in range(count)]
    for group in dataset.groups.values():
        for k, name in enumerate(group.train.names):
            dealt[k % count].append(name)
    places = [NodeFolder(folder / str(k)) for k in range(count)]
    return {7 + k: StudyNode(study, dataset, places[k], dealt[k], places[k].results) for k in range(count)}


def assert_same_tables(there: Result, here: Result, tolerance: float) -> None:
    rows = {(row.group, row.name): row for row in here.clients}
    assert {(row.group, row.name) for row in there.clients} == rows.keys()
    for row in there.clients:
        other = rows[row.group, row.name]
        assert (row.id, row.m) == (other.id, other.m) and row.metrics.keys() == other.metrics.keys()
        for name, value in row.metrics.items():
            assert value == pytest.approx(other.metrics[name], rel=tolerance, abs=tolerance, nan_ok=True), name
    for said, known in zip(there.rounds, here.rounds, strict=True):
        assert said.values.keys() == known.values.keys()
        for name in said.values.keys() - {"seconds"}:
            assert said.values[name] == pytest.approx(known.values[name], rel=tolerance, abs=tolerance)


@pytest.mark.slow
def test_with_all_shared_the_tables_are_those_of_one_machine(tmp_path: Path) -> None:
    """Columns are scaled across clients, a part of the rows is kept for certificates, and a cohort trains."""
    sets = [*SMALL, ALL, "federation.cohort=15", "report.certify.scheme=split", "report.certify.independent=true"]
    study = Study.from_toml("polynomial", sets)
    here, nodes = run(study, tmp_path / "here"), nodes_of(study, tmp_path / "nodes")
    there = serve(study, tmp_path / "there", reach(nodes))
    assert_close(server_of(tmp_path / "there"), server_of(tmp_path / "here"), 1e-9)
    assert_same_tables(there, here, 1e-9)
    assert load_result(tmp_path / "there") == there
    assert there.labels == here.labels
    ends = (here.summary()["groups"]["existing"]["rsmse"], there.summary()["groups"]["existing"]["rsmse"])
    assert ends[1]["mean"] == pytest.approx(ends[0]["mean"], rel=1e-9)
    whole = certify(open_run(tmp_path / "here"), "seeger")
    bounds = {(line.group, line.name): line.bound for line in whole.clients}
    seen = 0
    for place in (tmp_path / "nodes").glob("*/results/*"):
        own = open_run(place)
        for line in certify(own, "seeger").clients:
            assert line.bound == pytest.approx(bounds[line.group, line.name], rel=1e-9)
            seen += 1
        assert load_result(place).predictions["existing.mean"].shape[0] == 12
    assert seen == len(bounds) > 0


def test_of_images_too(tmp_path: Path) -> None:
    images = tiny_images(write_root(tmp_path / "root"), "federation.rounds=2", ALL, "federation.device=cpu")
    here = run(images, tmp_path / "here")
    there = serve(images, tmp_path / "there", reach(nodes_of(images, tmp_path / "nodes")))
    assert_close(server_of(tmp_path / "there"), server_of(tmp_path / "here"), 1e-5)
    assert_same_tables(there, here, 1e-4)


PRIVATE = ["privacy.epsilon=1e3", "privacy.clip=10", "privacy.randomness=simulation", "privacy.delta=1e-3"]


@pytest.mark.slow
def test_a_private_run_pays_for_moments_and_shares_nothing_else(tmp_path: Path) -> None:
    """Neither rows nor their number nor scores are in a packet; what is, is searched for values of all columns."""
    study, came = Study.from_toml("polynomial", [*SMALL, *PRIVATE]), list[bytes]()

    def heard(node: int, data: bytes) -> bytes:
        came.append(data)
        return data

    run(study, tmp_path / "here")
    there = serve(study, tmp_path / "there", reach(nodes_of(study, tmp_path / "nodes"), heard))
    assert_close(server_of(tmp_path / "there"), server_of(tmp_path / "here"), 1e-9)
    spent = [json.loads((tmp_path / name / "privacy.json").read_text()) for name in ("here", "there")]
    assert spent[0] == spent[1] and there.labels["privacy"]["outside"].keys() == {"scaling"}
    files = [path.read_bytes() for path in (tmp_path / "there").rglob("*") if path.is_file()]
    assert len(came) == 2 * (1 + 1 + 1 + 3 + 1) and there.clients == ()
    everything = b"|".join((*files, *came))
    for group in load(study).groups.values():
        for batch in (group.train, group.test):
            for column in (batch.x[batch.mask].flatten(), batch.y[batch.mask]):
                for value in column[::20]:
                    known = value.numpy().tobytes(), repr(float(value)).encode()
                    assert not [one for one in known if one in everything]
    for data in came:
        config, arrays = frames.decode(data)
        for name, array in arrays.items():
            if name.endswith("weight"):
                assert set(_numbers(array.data)) == {1.0}
        assert not {"rows", "scores"} & {key for key in config if config[key]}


def _numbers(data: bytes) -> list[float]:
    numbers: list[float] = np.load(io.BytesIO(data)).reshape(-1).tolist()
    return numbers


def test_rows_that_are_not_shared_are_not_told(tmp_path: Path) -> None:
    weighted = ["method.name=fedavg", "data.scale=client", "federation.rounds=1", "deploy.share=[]"]
    study, told = Study.from_toml("polynomial", weighted), list[float]()

    def heard(node: int, data: bytes) -> bytes:
        for name, array in frames.decode(data).arrays.items():
            if name.endswith("weight"):
                told.extend(_numbers(array.data))
        return data

    result = serve(study, tmp_path / "there", reach(nodes_of(study, tmp_path / "nodes"), heard))
    assert set(told) == {1.0} and len(told) == 24 and result.clients == ()


@pytest.mark.slow
@pytest.mark.parametrize(("compress", "tolerance"), [("float16", 0.1), ("bfloat16", 0.3)])
def test_a_quarter_of_the_bytes_costs_some_digits(compress: str, tolerance: float, tmp_path: Path) -> None:
    plain = Study.from_toml("polynomial", [*SMALL, "data.scale=client"])
    narrow = Study.from_toml("polynomial", [*SMALL, "data.scale=client", f"deploy.compress={compress}"])
    sizes = []
    for study, name in ((plain, "plain"), (narrow, "narrow")):
        sent = list[int]()

        def heard(node: int, data: bytes, sent: list[int] = sent) -> bytes:
            sent.append(len(data))
            return data

        serve(study, tmp_path / name, reach(nodes_of(study, tmp_path / f"{name} nodes"), heard))
        sizes.append(max(sent))
    assert sizes[1] < 0.3 * sizes[0]  # of float64
    exact, rough = server_of(tmp_path / "plain"), server_of(tmp_path / "narrow")
    difference = rough["server.particles"] - exact["server.particles"]
    assert 0 < float(difference.abs().max()) < tolerance


def test_a_node_that_makes_lines_up_is_left_out(tmp_path: Path) -> None:
    study = Study.from_toml("polynomial", [*SMALL, ALL, "federation.rounds=1"])

    def lying(node: int, data: bytes) -> bytes:
        config, arrays = frames.decode(data)
        if node != 8 or "rows" not in config:
            return data
        rows = [dict(row) for row in config["rows"]]
        rows[0]["name"], rows[1]["metrics"], rows[2]["group"] = "poly_00", {"": 1.0}, "third"
        return frames.encode({**config, "rows": rows}, arrays)

    with pytest.warns(UserWarning, match="node 8: a line of clients.csv is left out"):
        result = serve(study, tmp_path / "there", reach(nodes_of(study, tmp_path / "nodes"), lying))
    names = [row.name for row in result.clients]
    assert len(names) == 48 - 3 and names.count("poly_00") == 1


TOLD = ["method.name=fedavg", "method.steps=1", "federation.rounds=1", "data.scale=client", "federation.device=cpu"]
METRICS = 'deploy.share=["rows","metrics"]'


def ended(tmp_path: Path, altered: Callable[[int, list[Any]], None]) -> tuple[Result, list[str]]:
    """Run a study of two nodes of which one changes the lines of its clients, and give all that was said."""
    study = Study.from_toml("polynomial", [*TOLD, METRICS])

    def lying(node: int, data: bytes) -> bytes:
        config, arrays = frames.decode(data)
        if "rows" in config:
            altered(node, config["rows"])
        return frames.encode(config, arrays)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = serve(study, tmp_path / "there", reach(nodes_of(study, tmp_path / "nodes"), lying))
    return result, [str(one.message) for one in said if one.category is UserWarning]


def test_who_withholds_its_metrics_is_named_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table said "existing, 12 clients", as if there were no others; and a node that had refused was said twice."""
    study, withheld = Study.from_toml("polynomial", [*TOLD, METRICS]), Study.from_toml("polynomial", TOLD)
    nodes = {7: nodes_of(study, tmp_path / "a")[7], 8: nodes_of(withheld, tmp_path / "b")[8]}
    with pytest.warns(UserWarning) as caught:
        result = serve(study, tmp_path / "there", reach(nodes))
    said = "\n".join(str(one.message) for one in caught)
    assert 'node 8 (poly_01, poly_03, poly_05) tells nothing of a round: "metrics are not told: deploy.share' in said
    assert "no answer that counts" not in said
    assert "are of 12 of 24 existing clients, without 'poly_01', 'poly_03', " in said
    assert "are of 12 of 24 new clients, without 'new_poly_01'" in said
    assert result.labels["group_sizes"] == {"existing": 24, "new": 24}
    assert len([*(tmp_path / "b" / "1").glob("results/*/metrics.json")]) == 1  # its own scores are made
    print_table(load_result(tmp_path / "there"))
    assert "existing, 12 of 24 clients" in capsys.readouterr().out
    assert "existing (12 of 24)" in to_html(results(result))


def test_nobody_is_missed_where_all_have_told_or_nothing_is_asked(tmp_path: Path) -> None:
    result, said = ended(tmp_path, lambda node, rows: None)
    assert not [text for text in said if "clients.csv" in text or "number for" in text]
    assert len(result.clients) == 48 and "group_sizes" not in result.labels
    study = Study.from_toml("polynomial", TOLD)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nothing = serve(study, tmp_path / "nothing", reach(nodes_of(study, tmp_path / "others")))
    assert not [text for text in map(str, caught) if "tells nothing" in text or "clients.csv" in text]
    assert nothing.clients == () and "group_sizes" not in nothing.labels


@pytest.mark.parametrize(
    ("change", "count", "text"),
    [
        (
            lambda rows: rows.clear(),
            24,
            "clients.csv and all means are of 12 of 24 existing clients, without 'poly_01', ",
        ),
        (
            lambda rows: rows[0]["metrics"].clear(),
            48,
            "existing clients without a number for a metric, which means leave",
        ),
        (lambda rows: rows[0]["metrics"].pop("rsmse"), 48, "leave out: 'poly_01' ('rsmse'); it was not told"),
        (lambda rows: rows[0]["metrics"].update(rsmse=math.nan), 48, "leave out: 'poly_01' ('rsmse'); it was not told"),
        (
            lambda rows: rows[0]["metrics"].update(rmse_raw=-1.0),
            47,
            "client 'poly_01': 'rmse_raw' is at least 0, got -1",
        ),
        (lambda rows: rows[0]["metrics"].update(coverage_95=1.5), 47, "'coverage_95' is between 0 and 1, got 1.5"),
        (lambda rows: rows[0]["metrics"].update(rsmse="0.01"), 47, "client 'poly_01': a metric is a number, got "),
    ],
    ids=["no lines", "no metrics", "one less", "NaN", "negative", "beyond", "text"],
)
def test_scores_that_did_not_come_or_cannot_be_are_said(
    change: Callable[[list[Any]], None], count: int, text: str, tmp_path: Path
) -> None:
    result, said = ended(tmp_path, lambda node, rows: change(rows) if node == 8 else None)
    assert len(result.clients) == count and [one for one in said if text in one], said
    assert ("group_sizes" in result.labels) == (count < 48)


def test_a_node_that_is_gone_at_the_end_is_named(tmp_path: Path) -> None:
    study = Study.from_toml("polynomial", [*SMALL, ALL, "federation.rounds=1"])

    def gone(node: int, data: bytes) -> bytes:
        return frames.encode({"refused": "no"}, {}) if node == 8 and b'"rows"' in data else data

    with pytest.warns(UserWarning, match=r"node 8 \(poly_01.*\) tells nothing"):
        result = serve(study, tmp_path / "there", reach(nodes_of(study, tmp_path / "nodes"), gone))
    assert len(result.clients) == 24 and len(read_rounds(tmp_path / "there")) == 1
