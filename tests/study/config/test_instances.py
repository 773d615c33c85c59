"""Objects that a program gives a run: runs as by name, folders, what is checked when they go on, certificates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.certificates import clients
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.cli import main
from pacbayes_fl.data import tables
from pacbayes_fl.errors import CheckpointError, DataError, StudyError
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.local import LocalOnly
from pacbayes_fl.metrics import Metric
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.records import load as load_result
from pacbayes_fl.study.compare import compare
from pacbayes_fl.study.config.instances import Instances
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.run import open_run, run
from pacbayes_fl.study.serving.predict import Prediction, predict
from tests.tiny import rows, tiny, write_csv

GP = ("federation.rounds=2", "federation.checkpoint_every=1")
NETWORK = (*GP, "method.name=fedavg", "method.steps=2", "model.widths=[3]")


def largest(predictive: Any, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, (predictive.mean - y).abs(), 0.0).amax(1)


LARGEST = Metric("largest_error", "largest error", "", largest, "lower", ("regression",), "largest absolute error")


def built(*sets: str) -> tuple[Any, tables.Dataset]:
    """Build the method of the tiny study, and its data."""
    study = tiny(*sets)
    dataset = load(study)
    return prepare(study, dataset)[0], dataset


def scores(result: Result) -> list[Mapping[str, float]]:
    return [row.metrics for row in result.clients]


@pytest.mark.parametrize("sets", [GP, NETWORK], ids=["functions", "weights"])
def test_a_run_of_instances_is_that_of_their_names_bit_by_bit(sets: tuple[str, ...]) -> None:
    method, dataset = built(*sets)
    expected = scores(run(tiny(*sets)))
    result = run(tiny(*sets), method=method, data=dataset, metrics=[LARGEST])
    assert [{name: row[name] for name in expected[0]} for row in scores(result)] == expected
    assert all(row["largest_error"] > 0 for row in scores(result) if "largest_error" in row)
    assert scores(run(tiny(*sets), model=method.model)) == expected
    assert result.method == f"instance:{type(method).__name__}"


def network(width: int = 3) -> BayesianMLP:
    return BayesianMLP((1, width, 1), Gaussian(), torch.float64)


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    x = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(1)
    data = {f"house_{k}": (x, torch.sin((k + 1) * x[:, 0])) for k in range(3)}
    return {"method": LocalOnly(network()), "data": data, "metrics": [LARGEST]}


STUDY = Study.from_table({"federation": {"rounds": 2, "checkpoint_every": 1, "device": "cpu"}})


@pytest.fixture(scope="module")
def folder(given: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given") / "run"
    run(STUDY, path, **given)
    return path


def test_a_folder_names_what_was_given_and_opens_with_it(folder: Path, given: dict[str, Any]) -> None:
    own = json.loads((folder / "environment.json").read_text())["own_files"]
    assert own.keys() == {"instance:LocalOnly", "instance:largest_error"}
    assert own["instance:LocalOnly"]["class"] == "pacbayes_fl.methods.baselines.local:LocalOnly"
    assert own["instance:LocalOnly"]["options"]["init_std"] == given["method"].init_std
    assert own["instance:largest_error"]["class"] == f"{__name__}:largest"
    trained = open_run(folder, method=LocalOnly(network()), metrics=[LARGEST])  # an equal one, not the same
    assert trained.round == 2
    from_file = predict(trained, "house_0", write_csv(folder.parent / "x.csv", [{"x_1": 0.3}]))
    from_rows = predict(trained, "house_0", torch.tensor([[0.3]], dtype=torch.float64))
    assert isinstance(from_file, Prediction) and isinstance(from_rows, Prediction)
    assert from_file.mean.tolist() == from_rows.mean.tolist()
    with pytest.raises(DataError, match=r"'house_0': rows to predict must be \[M, 1\], got \[2, 3\]"):
        predict(trained, "house_0", torch.zeros(2, 3))
    table = clients.certify(trained, Request(bound="seeger"))
    assert table.method == "instance:LocalOnly"
    assert load_result(folder).column("existing", "largest_error")


def test_a_run_goes_on_with_equal_instances_alone(folder: Path, given: dict[str, Any]) -> None:
    more = replace(STUDY, federation=replace(STUDY.federation, rounds=3))
    other = {"method": LocalOnly(network(4)), "data": given["data"], "metrics": [LARGEST]}
    slower = {**given, "method": replace(given["method"], init_std=0.5)}
    for changed, words in (
        (other, "another instance:LocalOnly"),
        (slower, r"init_std 0.1 then, 0.5 now"),
        ({**given, "metrics": []}, "trained with instance:largest_error"),
    ):
        with pytest.raises(StudyError, match=words):
            run(more, folder, resume=True, **changed)
    with pytest.raises(DataError, match=r"house_1.: its rows are not those"):
        x, y = given["data"]["house_1"]
        run(more, folder, resume=True, **{**given, "data": {**given["data"], "house_1": (x, y + 1)}})
    with pytest.raises((StudyError, CheckpointError)):
        run(more, folder, resume=True)
    mended = replace(LARGEST, function=lambda p, y, m: y[:, 0])
    with pytest.warns(UserWarning, match=r"another instance:largest_error: .* scores from now on are by the metric"):
        open_run(folder, method=given["method"], metrics=[mended])  # on which no training rests
    assert run(more, folder, resume=True, **given).rounds[-1].round == 3


def test_a_folder_does_not_open_without_what_was_given_or_with_more(
    folder: Path, given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StudyError, match=r"instance:LocalOnly, an instance of .*:LocalOnly that a program"):
        open_run(folder, metrics=[LARGEST])
    with pytest.raises(StudyError, match="was not trained with instance:FedAvg"):
        open_run(folder, method=FedAvg(network()))
    assert main(["predict", str(folder), "--client", "house_0", "--data", "x.csv"]) == 1
    assert main(["run", str(folder / "study.toml"), "--out", str(folder.parent / "again")]) == 1
    said = capsys.readouterr().err
    assert "open_run" in said and "'LocalOnly' is an object that a program has given its run" in said


def test_a_run_that_keeps_no_rows_asks_for_them_again(given: dict[str, Any], tmp_path: Path) -> None:
    study = replace(STUDY, report=replace(STUDY.report, keep="no-rows"))
    own = {"method": FedAvg(network()), "data": tables.of_clients(given["data"])}
    run(study, tmp_path / "run", **own)
    assert not list(tmp_path.rglob("data.npz"))
    with pytest.raises(DataError, match="an object that a program has given"):
        open_run(tmp_path / "run", method=own["method"])
    assert open_run(tmp_path / "run", **own).round == 2
    with pytest.raises(DataError, match="rows are not those"):
        changed = {name: (x, y + 1) for name, (x, y) in given["data"].items()}
        open_run(tmp_path / "run", method=own["method"], data=tables.of_clients(changed))


def test_instances_are_compared(given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pacbayes_fl.study.compare.write", lambda *_: None)  # tables and figures
    data = tables.of_clients(given["data"])
    studies = [STUDY.with_instances(method=one, data=data) for one in (LocalOnly(network()), FedAvg(network()))]
    result = compare(studies, 1, tmp_path / "both")
    assert [one.method for one in result] == ["instance:LocalOnly", "instance:FedAvg"]
    again = compare(studies, 1, tmp_path / "both", resume=True)
    assert [scores(one) for one in again] == [scores(one) for one in result]
    with pytest.raises(StudyError, match="different data"):
        other = {name: (rows[0], 2.0 * rows[1], *rows[2:]) for name, rows in given["data"].items()}
        compare([studies[0], studies[1].with_instances(method=FedAvg(network()), data=other)], 1)


def test_other_objects_are_refused_by_name() -> None:
    method = FedAvg(network())
    for wrong, words in (
        ({"method": FedAvg}, "method must be an instance of Method, got"),
        ({"method": "fedavg"}, "method must be an instance of Method, got 'fedavg'"),
        ({"model": 3}, "model must be an instance of FunctionModel or WeightModel, got 3"),
        ({"data": []}, "data must be an instance of Dataset"),
        ({"metrics": [3]}, r"metrics must be records Metric, got 3"),
        ({"method": method, "model": network()}, "another than the one that the method holds"),
        ({"model": network()}, "model is of BayesianMLP, and pac-pfl learns functions"),
        ({"metrics": [replace(LARGEST, name="rmse")]}, "cannot be called 'rmse'"),
    ):
        with pytest.raises(StudyError, match=words):
            tiny().with_instances(**wrong)  # type: ignore[arg-type]
    assert Instances(method=method, model=method.model).model is method.model
    with pytest.raises(StudyError, match="pac-pfl is a method of regression, and the data have classes"):
        labels = {"a": (torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]))}
        run(tiny("data.task=classification"), model=DeepKernelGP(1, (3,), (3,)), data=labels)


def test_a_classifier_and_an_open_temperature_are_given_too() -> None:
    x = torch.linspace(-1, 1, 12).unsqueeze(1)
    data = {f"c{k}": (x, (x[:, 0] > 0.3 * k - 0.3).long()) for k in range(3)}
    method = FedAvg(BayesianMLP((1, 3, 2), Categorical(2), torch.float64))
    sets = ["data.task=classification", "method.name=fedavg", "model.temperature=held-out", "federation.rounds=2"]
    result = run(Study.from_table({}, sets=sets), method=method, data=data)
    assert result.task == "classification" and "temperature" in result.labels


def test_an_assignment_to_an_option_of_an_instance_is_refused() -> None:
    study = tiny(*NETWORK).with_instances(method=FedAvg(network()))
    with pytest.raises(StudyError, match="unknown key 'steps'"):
        Study.from_table(study.table(), sets=["method.steps=3"], instances=study.instances)
    again = Study.from_table(study.table(), instances=study.instances)
    assert again == study and study.differences() == again.differences()


def test_tables_of_users_and_rows_of_a_program_are_one_data_set(tmp_path: Path) -> None:
    own = [row for row in rows() if row["group"] == "existing"]
    for row in own:
        del row["split"]
    by_name: dict[str, list[list[float]]] = {}
    for row in own:
        by_name.setdefault(row["client"], []).append([row["lag_1"], row["wind"], row["y"]])
    cells = {name: torch.tensor(each, dtype=torch.float64) for name, each in by_name.items()}
    result = tables.of_clients({name: (each[:, :2].numpy(), each[:, 2]) for name, each in cells.items()})
    expected = tables.read(write_csv(tmp_path / "rows.csv", own))
    for part in ("train", "test"):
        one, other = (getattr(each.groups["existing"], part) for each in (result, expected))
        assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y) and one.names == other.names
