"""Models of a study: networks are built for the data, and a method of regression is refused on classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl import options
from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.models.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.models.weights.convolutional import BayesianCNN, BayesianFedAvgCNN, BayesianVGG
from pacbayes_fl.options import option
from pacbayes_fl.study import run
from pacbayes_fl.study.config import models
from pacbayes_fl.study.config.gp_model import GPModel, ModelSize
from pacbayes_fl.study.config.models import KINDS, ModelKind, NetworkModel
from pacbayes_fl.study.config.plugins import check_task
from pacbayes_fl.study.file import Study
from tests.tiny_images import write_idx


def test_networks_are_built_for_the_data() -> None:
    flat = NetworkModel(widths=(4, 3)).build((2,), None)
    assert isinstance(flat, BayesianMLP) and flat.sizes == (2, 4, 3, 1) and flat.likelihood == Gaussian()
    assert NetworkModel(noise_std=0.2).build((2,), None).likelihood == Gaussian(0.2)
    learned = NetworkModel(likelihood="heteroscedastic", widths=(4,), noise_std=0.2)
    two = learned.build((2,), None)
    assert isinstance(two, BayesianMLP) and two.sizes == (2, 4, 2) and two.likelihood == HeteroscedasticGaussian(0.2)
    assert learned.size(2, None).weights == two.dim and learned.build((2,), 3).likelihood == Categorical(3)
    image = NetworkModel(dtype="float64").build((1, 28, 28), 62)
    assert isinstance(image, BayesianMLP) and image.sizes == (784, 100, 62) and image.likelihood == Categorical(62)
    assert (flat.dtype, image.dtype) == (torch.float32, torch.float64)
    for kind, network in (("cnn", BayesianCNN), ("fedavg-cnn", BayesianFedAvgCNN), ("vgg", BayesianVGG)):
        assert isinstance(NetworkModel(kind=kind).build((3, 32, 32), 10), network)
    with pytest.raises(StudyError, match=r"kind 'vgg' is for images.*rows of 5 features \(set model.kind to 'mlp'\)"):
        NetworkModel(kind="vgg").build((5,), 3)
    with pytest.raises(StudyError, match="likelihood 'categorical' is not for targets that are numbers"):
        NetworkModel(likelihood="categorical").build((5,), None)
    with pytest.raises(StudyError, match="likelihood 'gaussian' is not for targets that are labels of 3 classes"):
        NetworkModel(likelihood="gaussian").build((5,), 3)


def test_every_method_has_a_kind_of_model() -> None:
    assert {recipe.model for recipe in METHODS.values()} == {kind.over for kind in KINDS.values()}
    assert (models.table_of("functions"), models.table_of("weights")) == (GPModel, NetworkModel)


def test_a_method_learns_the_tasks_that_its_recipe_names() -> None:
    usual = {"regression": "pfedgp", "classification": "pfedbayes"}
    assert METHODS["pfedgp-tree"].learns == ("classification",) and METHODS["fedavg"].learns == tuple(usual)
    for name, recipe in METHODS.items():
        for task in usual:
            if task in recipe.learns:
                check_task(name, task)
                continue
            (own,) = recipe.learns
            with pytest.raises(StudyError, match=f"{name} is a method of {own}.*{usual[task]}"):
                check_task(name, task)


@dataclass(frozen=True)
class DeepModel(NetworkModel):
    """Table [model] of a network as deep as asked for.

    Args:
        depth: hidden layers.
    """

    depth: int = option(1, low=1)


def deep(table: DeepModel, shape: tuple[int, ...], likelihood: Likelihood, dtype: torch.dtype) -> BayesianMLP:
    return BayesianMLP((shape[0], *[table.widths[0]] * table.depth, likelihood.outputs), likelihood, dtype)


def test_a_record_is_all_that_a_kind_of_model_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = ModelKind("deep", "a network as deep as asked for", "weights", DeepModel, deep)
    monkeypatch.setattr(models, "KINDS", {**KINDS, "deep": record})
    table: dict[str, Any] = {
        "data": {"source": "polynomial", "options": {"clients": 2, "new_clients": 0, "test_samples": 5}},
        "model": {"kind": "deep", "depth": 3, "widths": [4]},
        "method": {"name": "fedavg", "steps": 2},
        "federation": {"rounds": 2, "device": "cpu"},
    }
    asked = Study.from_table(table)
    assert isinstance(asked.model, DeepModel) and Study.from_table(asked.table()) == asked
    assert run.run(asked, tmp_path / "run").rounds[-1].round == 2
    model = getattr(run.open_run(tmp_path / "run").method, "model", None)
    assert isinstance(model, BayesianMLP) and model.sizes == (1, 4, 4, 4, 1)
    with pytest.raises(StudyError, match=r"\[model\] depth must be at least 1, got 0"):
        Study.from_table(table, "s.toml", ["model.depth=0"])
    with pytest.raises(StudyError, match=r"s.toml \[model\]: unknown key 'depth'"):
        Study.from_table(table, "s.toml", ["model.kind=mlp"])
    text = r"s.toml \[model\] kind must be one of 'mlp', 'cnn', 'fedavg-cnn', 'vgg', 'deep', got 'wide'"
    with pytest.raises(StudyError, match=text):
        Study.from_table(table, "s.toml", ["model.kind=wide"])


def test_the_only_kind_over_functions_can_be_named() -> None:
    plain, named = (Study.from_table({"model": given}) for given in ({}, {"kind": "deep-kernel-gp"}))
    assert plain == named and "kind" not in plain.table()["model"]
    with pytest.raises(StudyError, match=r"study \[model\]: unknown key 'kind'"):
        Study.from_table({"model": {"kind": "mlp"}})


@pytest.mark.parametrize(
    ("method", "key", "value", "text"),
    [
        ("fedavg", "residuals", "mixture", "is an option of a Gaussian process, and the method's model is a network"),
        ("fedavg", "residual_share", 0.3, "is an option of a Gaussian process, and the method's model is a network"),
        ("pooled-ensemble", "inducing", 5, "is an option of a Gaussian process, and the method's model is a network"),
        ("pac-pfl", "temperature", 2.0, "is an option of a network, and the method's model is a Gaussian process"),
    ],
)
def test_options_of_the_other_kind_of_model_say_whose_they_are(method: str, key: str, value: Any, text: str) -> None:
    """Every model answers for them, with a constant where it has none."""
    with pytest.raises(StudyError, match=rf"s.toml \[model\]: {key} {text} \(drop it, or choose a method on "):
        Study.from_table({"method": {"name": method}}, "s.toml", [f"model.{key}={value}"])


@pytest.mark.parametrize("method", ["fedavg", "pac-pfl"])
def test_what_a_model_says_of_itself_is_no_option(method: str) -> None:
    with pytest.raises(StudyError, match=r"\[model\]: unknown key 'single'"):
        Study.from_table({"method": {"name": method}}, "s.toml", ["model.single=true"])


def test_weights_are_counted_before_a_model_is_made() -> None:
    network = NetworkModel(widths=(7, 3))
    assert network.size(5, 4) == ModelSize(network.build((5,), 4).dim, "model.widths")
    assert network.size(5, None).weights == network.build((5,), None).dim
    assert NetworkModel(kind="cnn").size(5, 4).weights == 0


def test_every_option_of_a_model_has_a_meaning() -> None:
    for kind in KINDS.values():
        assert kind.title and all(one.meaning for one in options.options_of(kind.table).values())


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a small MNIST of 16 x 16 pixels, the least that the convolutions leave a pixel of."""
    root, random = tmp_path_factory.mktemp("sixteen"), np.random.default_rng(0)
    for part, rows in (("train", 40), ("t10k", 20)):
        write_idx(root / "MNIST" / "raw", part, random.integers(0, 256, (rows, 16, 16)), np.arange(rows) % 10)
    return root


@pytest.mark.law
@pytest.mark.parametrize("method", ["fedavg", "pfedbayes", "bpfed", "fedsi", "pac-pfl-bnn"])
def test_the_network_of_pac_pfls_images_is_for_every_method_on_weights(sixteen: Path, method: str) -> None:
    rows = {"clients": 2, "train": 2, "test": 1, "validation": 0}
    options = {
        "fedsi": {"draws": 2, "fraction": 0.001, "alpha": 1.0, "personal_alpha": 1.0, "finetune": 1},
        "pac-pfl-bnn": {"particles": 2, "train_draws": 2, "draws": 2, "posterior": "svi", "personal_steps": 1},
    }.get(method, {"zeta": 0.1} if method in ("pfedbayes", "bpfed") else {})
    steps = {} if method == "pac-pfl-bnn" else {"steps": 1}
    asked = Study.from_table(
        {
            "data": {"source": "mnist", "options": {"root": str(sixteen), **rows}},
            "model": {"kind": "fedavg-cnn", "temperature": 1.0},
            "method": {"name": method, **options, **steps},
            "federation": {"rounds": 1, "device": "cpu"},
        }
    )
    probs = run.run(asked).predictions["existing.pm.probs"]
    assert probs.shape == (2, 5, 10) and bool(probs.isfinite().all())
