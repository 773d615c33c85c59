"""Runs on images end to end: folder, resume, every command, and images that a user brings."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl import cli, settings
from pacbayes_fl.data import image_sets
from pacbayes_fl.errors import DataError, PrivacyError, StudyError
from pacbayes_fl.results import records as results
from pacbayes_fl.results.metrics import comparison_columns
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import run as study
from pacbayes_fl.study.data import load, load_saved
from pacbayes_fl.study.serving.predict import ClassPrediction, join, predict
from tests.data.small_photos import write_clients, write_image
from tests.tiny_images import ROUNDS, SIDE, assert_same_run, table, tiny_images, write_root

Out = Callable[..., tuple[int, str, str]]
SHAPE = (1, SIDE, SIDE)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def done(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Return a finished run's folder, only to be read, and its result."""
    folder = tmp_path_factory.mktemp("done") / "run"
    return folder, study.run(tiny_images(root), folder)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> Out:
    """Run a command in an empty folder that holds tiny-images.toml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-images.toml").write_text(settings.to_toml(table(root)), encoding="utf-8")

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def pixels(result: Any, group: str, k: int, part: str = "test") -> tuple[np.ndarray, np.ndarray]:
    """Return the images of a client as pixels again, and its labels."""
    batch = getattr(result.groups[group].raw, part)
    x, y = batch.x[k][batch.mask[k]], batch.y[k][batch.mask[k]]
    return ((x + 1) * 127.5).round().to(torch.uint8).numpy(), y.numpy()


# the run folder -------------------------------------------------------------------------------------------------


def test_a_run_folder_keeps_positions_instead_of_pixels(done: tuple[Path, Result], root: Path) -> None:
    folder, result = done
    with np.load(folder / "data.npz", allow_pickle=False) as arrays:
        assert set(arrays) == {
            *("client_name", "client_new", "client_domain", "position", "owner", "part"),
            "image_sha256",
        }
        assert len(arrays["position"]) == 6 * 5 * 11  # clients, labels, rows of a label
        assert arrays["image_sha256"].tolist() == [f"mnist {image_sets.read('mnist', str(root)).sha256}"]
    about = json.loads((folder / "environment.json").read_text())
    assert len(about["data"]["split_sha256"]) == 64 and about["data"]["options"]["seed"] == 3
    assert results.load(folder) == result and result.task == "classification"
    assert set(result.predictions) == {
        f"{group}.{name}" for group in ("existing", "new") for name in ("y_test", "mask_test", "pm.probs", "gm.probs")
    }
    assert result.labels["classes"] == 10 and set(result.labels["selections"]) == {"pm", "gm"}


def test_rounds_are_watched_where_the_study_says(done: tuple[Path, Result]) -> None:
    _, result = done
    assert [r.round for r in result.rounds if "pm.accuracy" in r.values] == [2, 4, 6]
    assert [r.round for r in result.rounds if r.histograms] == [1, ROUNDS]
    assert list(result.rounds[0].histograms) == [f"entropy.client_{k:02d}" for k in range(4)]
    means = result.column("existing", "pm.mean_weights.accuracy")
    assert result.rounds[-1].values["pm.accuracy"] == pytest.approx(np.mean(means))


@pytest.mark.parametrize("at", [1, 3])
def test_a_stopped_run_goes_on_bit_by_bit(done: tuple[Path, Result], root: Path, tmp_path: Path, at: int) -> None:
    def stop(record: RoundRecord) -> None:
        if record.round == at:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        study.run(tiny_images(root), tmp_path / "run", on_round=stop)
    study.run(tiny_images(root), tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", done[0])


def test_an_opened_run_predicts_as_it_was_reported(done: tuple[Path, Result], root: Path, tmp_path: Path) -> None:
    folder, result = done
    opened = study.open_run(folder)
    x, _ = pixels(opened, "existing", 2)
    got = predict(opened, "client_02", write_npz(tmp_path / "ask.npz", x=x))
    assert isinstance(got, ClassPrediction)
    probs = result.predictions["existing.pm.probs"][2]
    assert torch.equal(got.label, probs.argmax(-1))
    torch.testing.assert_close(got.probability, probs.max(-1).values, rtol=1e-4, atol=1e-5)
    entropy = -(probs * probs.log()).sum(-1)
    torch.testing.assert_close(got.entropy, entropy, rtol=1e-4, atol=1e-5)


def test_a_run_whose_images_have_changed_or_gone_says_so(root: Path, tmp_path: Path) -> None:
    own = shutil.copytree(root, tmp_path / "root")
    study.run(tiny_images(own, "federation.rounds=1"), tmp_path / "run")
    kept = tmp_path / "run" / "data.npz"
    assert load_saved(tiny_images(own), kept).rows is not None
    with pytest.raises(DataError, match="client 'client_00': its rows are not those that the run was started with"):
        load_saved(tiny_images(own, "seed=4"), kept)
    with pytest.raises(DataError, match="client 'client_05': its rows are not those"):
        load_saved(tiny_images(own, "data.options.new_clients=1"), kept)
    write_root(own, seed=9)
    for use in (lambda: study.open_run(tmp_path / "run"), lambda: resume(own, tmp_path / "run")):
        with pytest.raises(DataError, match="the files of mnist are not those that the run was started with"):
            use()
    shutil.rmtree(own)
    with pytest.raises(DataError, match="mnist is not there"):
        study.open_run(tmp_path / "run")


def resume(root: Path, folder: Path) -> Result:
    return study.run(tiny_images(root, "federation.rounds=2"), folder, resume=True)


# commands -------------------------------------------------------------------------------------------------------


def test_run_show_plot_and_resume(call: Out, tmp_path: Path) -> None:
    code, out, err = call("run", "tiny-images.toml", "--out", "run", "--rounds", 2)
    assert code == 0
    assert "preset recommended; differs from paper in: " in err and "federation.rounds=2 (paper 800)" in err
    head, *lines = out.splitlines()
    table, chosen = (lines[: (at := lines.index("ece and mce: 10 bins of confidence"))], lines[at + 1 :])
    assert head.startswith("tiny-images, pfedbayes, seed 3") and chosen[-1] == "run folder: run"
    names = ["pm.accuracy", "pm.ece", "pm.nll", "pm.brier", "gm.accuracy", "gm.ece"]
    assert [line.split()[0] for line in table if line.startswith("  ")] == [*names, *names]
    assert {"existing, 4 clients", "new, 2 clients"} <= set(table)
    assert [line.split(":")[0] for line in chosen[:-1]] == [
        f"{model}.{rule}" for model in ("pm", "gm") for rule in ("best_validation", "best_of_last_100_test_rounds")
    ]
    assert "pm.accuracy" in err and "log_likelihood" in err
    assert call("run", "tiny-images.toml", "--out", "run")[0] == 1  # a run is there already
    code, more, _ = call("run", "tiny-images.toml", "--out", "run", "--rounds", 3, "--resume", "--quiet")
    assert code == 0 and more != out
    assert call("show", "run")[:2] == (0, more.replace("run folder: run\n", ""))
    summary = json.loads(call("show", "run", "--json")[1])
    assert summary["task"] == "classification"
    assert 0 <= summary["groups"]["existing"]["pm"]["accuracy"]["mean"] <= 1
    code, out, _ = call("plot", "run")
    written = {Path(line).name for line in out.split()}
    assert code == 0 and {"learning.png", "reliability.png", "uncertainty.png", "clients.png"} <= written


@pytest.mark.slow
def test_compare_has_the_metrics_of_the_task(call: Out, tmp_path: Path) -> None:
    arguments = ["tiny-images.toml", "--methods", "fedavg,pfedbayes,local", "--rounds", "2", "--set", "method.steps=2"]
    code, out, _ = call("compare", *arguments, "--out", "all", "--quiet")
    assert code == 0
    lines = out.splitlines()
    assert "ece and mce: 10 bins of confidence" in lines
    for group in ("existing", "new"):
        for metric in comparison_columns("classification"):
            at = lines.index(f"{metric}, {group} clients") + 1
            methods = ["fedavg", "pfedbayes", *(["local"] if metric.startswith("pm.") else [])]
            assert [line.split()[0] for line in lines[at : at + len(methods)]] == methods
            assert not lines[at + len(methods)].startswith("  ")  # no global model where nobody learns together
    with (tmp_path / "all" / "compare.csv").open(newline="") as file:
        assert {"pm.mean_weights.nll", "gm.mce"} <= {line["metric"] for line in csv.DictReader(file)}
    assert call("compare", *arguments, "--out", "all", "--quiet")[1] == out  # read, not run


def test_a_regression_method_is_refused_before_anything_runs(call: Out, tmp_path: Path) -> None:
    for arguments in (("run", "tiny-images.toml", "--set", "method.name=pac-pfl"),):
        code, out, err = call(*arguments)
        assert (code, out) == (1, "")
        assert err.startswith(
            "pacbayes-fl: pac-pfl is a method of regression, and the data have classes (choose one of"
        )
    code, _, err = call("compare", "tiny-images.toml", "--methods", "pfedbayes,ridge", "--out", "all")
    assert code == 1 and "ridge is a method of regression" in err and not (tmp_path / "all").exists()


def test_tune_takes_the_error(call: Out, tmp_path: Path) -> None:
    fixed = ["--set", "method.finetune=1", "--set", "federation.rounds=2", "--set", "method.steps=2"]
    code, out, _ = call("tune", "tiny-images.toml", "--methods", "fedavg-ft", "--budget", 2, "--folds", 2, *fixed)
    assert code == 0 and "fedavg-ft: error 0." in out and " nll " in out
    assert "rate" in (tmp_path / "tiny-images-tuned.toml").read_text()
    code, _, err = call("tune", "tiny-images.toml", "--methods", "fedavg", "--score", "rsmse", "--budget", 1)
    assert code == 1 and "score 'rsmse' is not for these data (one of error, nll is)" in err


def test_join_and_predict_print_labels_with_probability_and_entropy(
    call: Out, done: tuple[Path, Result], tmp_path: Path
) -> None:
    folder, result = done
    opened = study.open_run(folder)
    train, test = pixels(opened, "new", 1, "train"), pixels(opened, "new", 1)
    x, ask = np.concatenate((train[0], test[0])), np.full(len(test[1]), -1)
    names = np.full(len(x), "client_05")
    path = write_npz(tmp_path / "new.npz", x=x, y=np.concatenate((train[1], ask)), client=names)
    code, out, _ = call("join", folder, "--data", path)
    rows = list(csv.DictReader(io.StringIO(out)))
    each = {f"probability_{k}" for k in range(10)}
    assert code == 0 and set(rows[0]) == {"client", "row", "label", "probability", "entropy", "round", *each}
    probs = result.predictions["new.pm.probs"][1]
    for k, row in enumerate(rows):
        assert [float(row[f"probability_{c}"]) for c in range(10)] == pytest.approx(probs[k].tolist(), rel=1e-4)
    assert [int(row["label"]) for row in rows] == probs.argmax(-1).tolist()
    assert [float(row["probability"]) for row in rows] == pytest.approx(probs.max(-1).values.tolist(), rel=1e-4)
    code, out, _ = call("predict", folder, "--client", "client_00", "--data", path, "--json")
    assert code == 1  # the file names another client
    alone = write_npz(tmp_path / "alone.npz", x=x[:3])
    code, out, _ = call("predict", folder, "--client", "client_00", "--data", alone, "--json")
    found = json.loads(out)["client_00"]
    assert code == 0 and set(found) == {"label", "probability", "entropy", "round", *each} and len(found["label"]) == 3
    assert all(0 <= value <= np.log(10) for value in found["entropy"])


def test_who_joins_without_a_label_gets_the_priors_prediction(done: tuple[Path, Result], tmp_path: Path) -> None:
    opened = study.open_run(done[0])
    x, _ = pixels(opened, "new", 0)
    with pytest.warns(UserWarning, match="fresh has no rows with a target"):
        got = join(opened, write_npz(tmp_path / "fresh.npz", x=x, client=np.full(len(x), "fresh")))["fresh"]
    assert len(got.label) == len(x)


# images of a user's own -----------------------------------------------------------------------------------------


def test_labels_that_the_run_does_not_know_are_refused(done: tuple[Path, Result], tmp_path: Path) -> None:
    opened = study.open_run(done[0])
    x, _ = pixels(opened, "new", 0)
    path = write_npz(tmp_path / "a.npz", x=x[:2], y=np.array([1, 10]), client=np.full(2, "me"))
    with pytest.raises(DataError, match="client 'me': label 10 outside"):
        join(opened, path)


def own_study(folder: Path, *sets: str) -> study.Study:
    """Return a study on photographs of anna and bob, with carl as a new client."""
    method = {"name": "fedavg", "steps": 20, "minibatch": 4, "rate": 0.05}
    data = {"source": f"{folder}/", "options": {"size": 8, "new": ["carl"]}}
    parts = {"data": data, "model": {"widths": [4]}, "method": method, "federation": {"rounds": 2, "device": "cpu"}}
    return study.Study.from_table({"name": "own", **parts}, "own.toml", sets)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clients(tmp_path_factory.mktemp("own") / "photos", ("anna", "bob", "carl"))


@pytest.fixture(scope="module")
def own(photos: Path) -> Path:
    """Return the folder of a finished run on a user's photographs, only to be read."""
    study.run(own_study(photos), photos.parent / "run")
    return photos.parent / "run"


def test_photographs_of_clients_are_predicted_file_by_file(own: Path, photos: Path, tmp_path: Path, call: Out) -> None:
    opened = study.open_run(own)
    names = [opened.groups[group].train.names for group in ("existing", "new")]
    assert names == [("anna", "bob"), ("carl",)] and opened.dataset.provenance["class_names"] == ["cat", "dog"]
    files = [tmp_path / "next" / name for name in ("bob/b.png", "anna/holidays/a.jpg", "carl/c.png")]
    for file in files:
        write_image(file, size=(12, 9))
    code, out, _ = call("predict", own, "--data", tmp_path / "next")
    rows = list(csv.DictReader(io.StringIO(out)))
    columns = ["client", "file", "label", "probability", "entropy", "probability_cat", "probability_dog", "round"]
    assert code == 0 and list(rows[0]) == columns
    assert [row["file"] for row in rows] == ["anna/holidays/a.jpg", "bob/b.png", "carl/c.png"]
    for row in rows:
        probs = {name: float(row[f"probability_{name}"]) for name in ("cat", "dog")}
        assert sum(probs.values()) == pytest.approx(1, abs=1e-5) and row["label"] == max(probs, key=probs.__getitem__)
        assert float(row["probability"]) == max(probs.values())
        assert float(row["entropy"]) == pytest.approx(-sum(p * np.log(p) for p in probs.values()), rel=1e-4)
    alone = predict(opened, "anna", tmp_path / "next" / "anna")
    assert isinstance(alone, ClassPrediction)
    assert float(alone.probability[0]) == pytest.approx(float(rows[0]["probability"]), rel=1e-5)
    code, _, _ = call("predict", own, "--client", "bob", "--data", tmp_path / "next" / "bob", "--out", "bob.csv")
    (line,) = csv.DictReader((tmp_path / "bob.csv").read_text().splitlines())
    assert code == 0 and line == rows[1] | {"file": "b.png"}
    held = call("predict", own, "--data", photos, "--json")[1]
    assert {name: len(one["label"]) for name, one in json.loads(held).items()} == {"anna": 8, "bob": 8, "carl": 8}


def test_coloured_files_are_predicted_by_a_grey_run_where_it_made_its_own_grey(tmp_path: Path, call: Out) -> None:
    """A run that takes files as they are takes none of another colour or size, and names the first."""
    for client in ("anna", "bob", "carl"):
        for row in range(8):
            write_image(tmp_path / "photos" / client / ("cat", "dog")[row % 2] / f"{row}.png", row, mode="L")
    plain, made = tmp_path / "plain", tmp_path / "made"
    study.run(own_study(tmp_path / "photos", "federation.rounds=1", "data.options.size=none"), plain)
    study.run(own_study(tmp_path / "photos", "federation.rounds=1", "data.options.colour=grey"), made)
    write_image(tmp_path / "next" / "anna" / "a.png")
    write_image(tmp_path / "more" / "anna" / "b.png", size=(9, 12), mode="L")
    for folder, file, got in (("next", "a.png", "3 x 8 x 8"), ("more", "b.png", "1 x 9 x 12")):
        code, _, error = call("predict", plain, "--data", tmp_path / folder)
        said = " ".join(error.split())
        assert code == 1 and f"anna/{file}: images of the run are 1 x 8 x 8" in said and f"got {got}" in said
        assert call("predict", made, "--data", tmp_path / folder)[0] == 0


def test_the_table_of_data_counts_for_photographs_too(photos: Path, tmp_path: Path) -> None:
    half = "data.options.test_share=0.5"
    batch = load(own_study(photos, half)).groups["existing"]
    assert batch.train.size.tolist() == batch.test.size.tolist() == [4, 4]
    with pytest.raises(StudyError, match=r"\[data\] missing is for the columns of a table"):
        load(own_study(photos, "data.missing=drop"))
    root = write_clients(tmp_path / "photos", ("anna", "bob", "carl"), rows=1)
    for row in range(1, 8):
        shutil.copy(root / "anna" / "cat" / "0.png", root / "anna" / "cat" / f"{row}.png")
    with pytest.raises(DataError, match="are one image, learned from and held out"):
        load(own_study(root, half))
    load(own_study(root, half, "data.duplicate_rows=allow"))


def test_a_private_run_is_told_its_classes(photos: Path) -> None:
    private = ("privacy.epsilon=3", "method.weighting=uniform")
    with pytest.raises(
        PrivacyError, match=r"which no epsilon covers \(state what everybody may know: data\.options\.c"
    ):
        load(own_study(photos, *private))
    assert load(own_study(photos, *private, 'data.options.classes=["cat", "dog"]')).classes == 2


def test_who_brings_photographs_joins_a_run_or_its_release(own: Path, tmp_path: Path, call: Out) -> None:
    write_clients(tmp_path / "fresh", ("dora",), rows=2)
    write_image(tmp_path / "fresh" / "dora" / "which.png")
    assert call("release", own, "--out", "released")[0] == 0
    results = [call("join", folder, "--data", tmp_path / "fresh") for folder in (own, "released")]
    (row,) = csv.DictReader(io.StringIO(results[0][1]))
    assert results[0] == results[1] and row["client"] == "dora" and row["label"] in ("cat", "dog")
    for part in ("train", "test"):  # whose test images are to be predicted, as in a table with a split
        shutil.copytree(tmp_path / "fresh" / "dora", tmp_path / "split" / "dora" / part)
        (tmp_path / "split" / "dora" / part / "which.png").unlink()
    _, out, _ = call("join", own, "--data", tmp_path / "split")
    assert len([*csv.DictReader(io.StringIO(out))]) == 4
    write_image(tmp_path / "fresh" / "dora" / "bird" / "0.png")
    code, _, error = call("join", own, "--data", tmp_path / "fresh")
    assert code == 1 and "dora/bird/0.png: there is no class 'bird'" in error


def test_photographs_that_are_others_now_are_not_those_of_the_run(own: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    for rounds in (1, 2):
        longer = own_study(tmp_path / "photos", f"federation.rounds={rounds}")
        study.run(longer, tmp_path / "run", resume=rounds == 2)
    write_image(tmp_path / "photos" / "anna" / "cat" / "0.png", row=1)
    with pytest.raises(DataError, match="the files of photos are not those that the run was started with"):
        study.run(own_study(tmp_path / "photos", "federation.rounds=3"), tmp_path / "run", resume=True)
    with np.load(own / "data.npz", allow_pickle=False) as arrays:
        assert "x" not in arrays and len(arrays["position"]) == 24


# published data -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_bundled_study_runs_on_mnist(data_root: Path) -> None:
    sets = ["federation.rounds=2", "data.options.test=40", "method.draws=3", "federation.device=cpu"]
    result = study.run(study.Study.from_toml("mnist-small", [*sets, "report.evaluate_every=1"]))
    curve = [record.values["pm.accuracy"] for record in result.rounds]
    assert curve[1] > 0.5 > 0.1 and curve[1] > curve[0] - 0.05  # of five digits each
    assert {f"{model}.{name}" for model in ("pm", "gm") for name in ("accuracy", "ece")} <= set(result.metrics)


@pytest.mark.law
@pytest.mark.parametrize("kind", ["cnn", "fedavg-cnn", "vgg"])
def test_convolutional_networks_run_as_a_study(data_root: Path, kind: str) -> None:
    rows = [f"data.options.{name}={count}" for name, count in (("clients", 2), ("train", 2), ("test", 2))]
    cheap = ["method.steps=1", "method.draws=2", "federation.rounds=1", "federation.device=cpu"]
    cheap += ["method.zeta=1", "model.temperature=1"]
    result = study.run(study.Study.from_toml("fmnist-small", [f"model.kind={kind}", *rows, *cheap]))
    assert result.predictions["existing.pm.probs"].shape == (2, 10, 10)
    with pytest.raises(StudyError, match="kind 'cnn' is for images, the data have rows of 1 features"):
        study.run(study.Study.from_toml("polynomial", ["method.name=pfedbayes", "model.kind=cnn"]))
