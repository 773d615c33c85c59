"""A shipped network is the one that the certificate is on: by itself it errs on the rows as often as the line says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import pacbayes_fl as fl
from pacbayes_fl import bounds
from pacbayes_fl.certificates import network
from pacbayes_fl.data.scaling import Scaling
from pacbayes_fl.errors import AssumptionError, CheckpointError, DataError, StudyError
from pacbayes_fl.results import sealed
from pacbayes_fl.results.certificates import CertifiedRun
from pacbayes_fl.study.run import Trained, train
from tests.tiny import tiny
from tests.tiny_images import tiny_images, write_root

NUMBERS = ("data.task=regression", "data.target=sum", "model.temperature=1.0")
SETS = ("report.certify.scheme=split", "report.certify.independent=true", "federation.rounds=2", "method.zeta=1.0")


def table_study(folder: Path, *sets: str) -> fl.Study:
    """Three clients with two classes, or with numbers, in units of their own: columns far from standard ones."""
    random = np.random.default_rng(5)
    lines = ["client,at,height,weight,kind,sum"]
    for client in range(3):
        x = random.normal(size=(60, 2))
        kind = (x[:, 0] + 0.4 * random.normal(size=60) > 0).astype(int)
        own = x * (10.0, 1e3) + (50.0 * client, -3e4)
        total = 700.0 + 30.0 * (client + 1) * (x[:, 0] - x[:, 1] ** 2) + 3.0 * random.normal(size=60)
        cells = enumerate(zip(own, kind, total, strict=True))
        lines += [f"c {client},{at},{a:.6f},{b:.6f},{k},{s:.6f}" for at, ((a, b), k, s) in cells]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    table = {
        "seed": 1,
        "data": {
            "source": str(folder / "rows.csv"),
            "task": "classification",
            "target": "kind",
            "time": "at",
            "features": ["height", "weight"],
        },
        "method": {"name": "pfedbayes", "steps": 3, "minibatch": 8, "draws": 2, "rate": 0.02},
        "model": {"widths": [4], "temperature": 2.5},
        "federation": {"device": "cpu", "threads": 1},
    }
    return fl.Study.from_table(table, "table.toml", [*SETS, *sets])


@pytest.fixture(scope="module", params=["table", "images"])
def shipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, CertifiedRun]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "table":
        study = table_study(folder)
    else:
        study = tiny_images(write_root(folder), *SETS, "data.options.train=10", "data.options.test=2")
    fl.run(study, folder / "run")
    trained = fl.open_run(folder / "run")
    return trained, fl.certify(trained, fl.Request("one-draw", holdout=0.0), ship=folder / "ship")


def folders(trained: Trained) -> dict[str, Path]:
    assert trained.folder is not None
    found = (trained.folder.parent / "ship").iterdir()
    return {json.loads((each / "network.json").read_text())["client"]: each for each in found}


def test_its_errors_on_the_rows_of_the_bound_are_the_risk_that_the_certificate_names(
    shipped: tuple[Trained, CertifiedRun],
) -> None:
    trained, table = shipped
    where, held = folders(trained), trained.bound_rows
    assert held is not None and table.clients and where.keys() == {line.name for line in table.clients}
    risks = []
    for line in table.clients:
        one = fl.load_network(where[line.name])
        rows = held if line.group == "existing" else trained.groups["new"].raw.train
        k = rows.names.index(line.name)
        x, y = rows.x[k][rows.mask[k]], rows.y[k][rows.mask[k]]
        assert line.repeats == 0 and len(y) == line.rows
        made = one.predict(x)
        wrong = int((made.label != y).sum())
        assert wrong / len(y) == line.risk == one.certificate["risk"]
        assert one.certificate["bound"] == line.bound > line.risk and one.certificate["table"]["bound"] == "one-draw"
        assert [part.label.tolist() for part in map(one.predict, x.split(3))] == [
            part.tolist() for part in made.label.split(3)
        ]
        risks.append(line.risk)
    assert max(risks) > 0


def test_probabilities_are_those_of_the_network_written_out(shipped: tuple[Trained, CertifiedRun]) -> None:
    trained, table = shipped
    line = table.clients[0]
    folder = folders(trained)[line.name]
    one, flat = fl.load_network(folder), safetensors.torch.load_file(folder / "network.safetensors")
    group = trained.groups["existing"]
    k, theta = group.raw.test.names.index(line.name), flat["weights"].double().numpy()
    x = group.raw.test.x[k][group.raw.test.mask[k]]
    h = ((x.double() - group.used.x_mean[k].double()) / group.used.x_std[k].double()).flatten(1).numpy()
    at = 0
    for shape in one.model.shapes.values():  # in the order of the flat vector
        leaf, at = theta[at : at + int(np.prod(shape))].reshape(shape), at + int(np.prod(shape))
        h = h @ leaf if len(shape) == 2 else h + leaf
        if len(shape) == 1 and at < len(theta):
            h = np.maximum(h, 0.0)
    assert at == len(theta)
    scores = torch.from_numpy(h).div(one.about["temperature"]).softmax(-1)
    assert one.about["temperature"] == trained.study.model.temperature
    made = one.predict(x)
    torch.testing.assert_close(made.probability.double(), scores.max(-1).values, rtol=1e-4, atol=1e-6)
    assert torch.equal(made.label, scores.argmax(-1))


@pytest.mark.law
@pytest.mark.parametrize(
    ("sets", "loss"),
    [
        (("model.dtype=float64",), bounds.SaturatingSquare(0.7)),
        (("model.dtype=float64", "data.scale=pooled"), None),
        (("model.likelihood=heteroscedastic", "method.name=bpfed"), bounds.ClippedSquare(2.0)),
    ],
    ids=["saturating", "pooled", "heteroscedastic"],
)
def test_of_numbers_the_certificate_s_loss_at_its_predictions_is_the_risk_of_the_line(
    sets: tuple[str, ...], loss: bounds.BoundedLoss | None, tmp_path: Path
) -> None:
    fl.run(table_study(tmp_path, *NUMBERS, *sets), tmp_path / "run")
    trained = fl.open_run(tmp_path / "run")
    table = fl.certify(trained, fl.Request("one-draw", loss=loss), ship=tmp_path / "ship")
    where, held = folders(trained), trained.bound_rows
    assert held is not None and table.clients and where.keys() == {line.name for line in table.clients}
    near = 1e-12 if trained.study.model.dtype == "float64" else 1e-5
    for line in table.clients:
        one, k = fl.load_network(where[line.name]), held.names.index(line.name)
        x, y = held.x[k][held.mask[k]], held.y[k][held.mask[k]]
        made = one.predict(x)
        error = ((made.mean - y) / one.units.y_std).abs()
        if isinstance(loss, bounds.ClippedSquare):
            risk = error.square().clamp_max(2.0).mean()
        else:
            risk = (1.0 - torch.exp(-((error / (1.0 if loss is None else 0.7)) ** 2))).mean()
        assert risk.item() == pytest.approx(line.risk, rel=near) and line.risk < line.bound
        assert bool((made.lower < made.mean).all()) and bool((made.mean < made.upper).all())
        torch.testing.assert_close(made.upper - made.lower, 2 * 1.959964 * made.std, rtol=1e-5, atol=0.0)
        assert 500.0 < made.mean.mean() < 900.0 and bool((made.std > 1.0).all())  # of the data's own units


def test_a_changed_byte_and_a_missing_file_are_refused(shipped: tuple[Trained, CertifiedRun]) -> None:
    folder = next(iter(folders(shipped[0]).values()))
    for file in (folder / "network.json", folder / "network.safetensors"):
        good = file.read_bytes()
        for at in {0, 1, len(good) - 1, *range(5, len(good), 97)}:
            file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(CheckpointError, match=rf"{file.name} is damaged"):
                fl.load_network(folder)
        file.unlink()
        with pytest.raises((CheckpointError, StudyError), match=rf"{file.name}.* is missing"):
            fl.load_network(folder)
        file.write_bytes(good)
    fl.load_network(folder)


def test_a_folder_speaks_of_one_client_and_has_none_of_its_rows(shipped: tuple[Trained, CertifiedRun]) -> None:
    trained, _ = shipped
    where = folders(trained)
    for client, folder in where.items():
        assert sorted(each.name for each in folder.iterdir()) == ["network.json", "network.safetensors"]
        text = (folder / "network.json").read_text()
        assert not any(f'"{other}"' in text for other in where if other != client) and "rows.csv" not in text
        assert set(safetensors.torch.load_file(folder / "network.safetensors")) == {"weights", *Scaling._fields}


def test_rows_of_another_shape_and_weights_of_another_model_are_named(
    shipped: tuple[Trained, CertifiedRun], tmp_path: Path
) -> None:
    client, folder = next(iter(folders(shipped[0]).items()))
    with pytest.raises(DataError, match=rf"{client}.*rows to predict must be \[M, .*got \[2, 5\]"):
        fl.load_network(folder).predict(torch.zeros(2, 5))
    about, files = sealed.read(folder, network.KIND)
    about["model"]["widths"] = [17]
    sealed.write(tmp_path / "other", network.KIND, about, files)
    with pytest.raises(CheckpointError, match=r"weights and units .* are not the model's"):
        fl.load_network(tmp_path / "other")


def test_what_cannot_be_shipped_is_refused_before_a_bound_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = table_study(tmp_path)
    fl.run(study, tmp_path / "run")
    trained, asked = fl.open_run(tmp_path / "run"), tmp_path / "run" / "certified.jsonl"
    with pytest.raises(AssumptionError, match=r"the bound 'seeger' is not on one drawn network.*--bound one-draw"):
        fl.certify(trained, "seeger", ship=tmp_path / "ship")
    with pytest.raises(StudyError, match=r"is inside of the run"):
        fl.certify(trained, "one-draw", ship=tmp_path / "run" / "ship")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(StudyError, match=r"is not empty, and a shipped network is .*another --ship"):
        fl.certify(trained, "one-draw", ship=tmp_path / "full")
    assert not asked.exists() and not (tmp_path / "ship").exists()
    functions = train(tiny("report.certify.scheme=split", "federation.rounds=1"))
    with pytest.raises(AssumptionError, match=r"a network of this library .*, and the model of .* is 'deep-kernel-gp'"):
        fl.certify(functions, "one-draw", ship=tmp_path / "ship")
    refused = {
        "data.transform=yeo-johnson": r"predicts transformed targets \(yeo-johnson\)",
        "data.client_inputs=summaries": "summaries of the clients' training rows are inputs",
    }
    for setting, why in refused.items():
        numbers = train(table_study(tmp_path, *NUMBERS, setting))
        with pytest.raises(AssumptionError, match=why):
            fl.certify(numbers, "one-draw", ship=tmp_path / "ship")
    labels = train(tiny_images(write_root(tmp_path / "root"), *SETS))
    monkeypatch.setattr(fl.BayesianMLP, "row_by_row", False)
    with pytest.raises(AssumptionError, match="normalises by rows of the training, which cannot be shipped"):
        fl.certify(labels, "one-draw", ship=tmp_path / "ship")
