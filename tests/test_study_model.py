"""Models of a study: networks are built for the data, and a method of regression is refused on classes."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.models.bayesian_network import BayesianMLP
from pacbayes_fl.models.convolutional import BayesianCNN, BayesianVGG
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.study_model import MODELS, ModelPart, NetworkPart, check_task


def test_networks_are_built_for_the_data() -> None:
    flat = NetworkPart(widths=(4, 3)).build((2,), None)
    assert isinstance(flat, BayesianMLP) and flat.sizes == (2, 4, 3, 1) and flat.likelihood == Gaussian()
    assert NetworkPart(noise_std=0.2).build((2,), None).likelihood == Gaussian(0.2)
    image = NetworkPart(dtype="float64").build((1, 28, 28), 62)
    assert isinstance(image, BayesianMLP) and image.sizes == (784, 100, 62) and image.likelihood == Categorical(62)
    assert (flat.dtype, image.dtype) == (torch.float32, torch.float64)
    for kind, network in (("cnn", BayesianCNN), ("vgg", BayesianVGG)):
        assert isinstance(NetworkPart(kind=kind).build((3, 32, 32), 10), network)  # type: ignore[arg-type]
    with pytest.raises(StudyError, match=r"kind 'vgg' is for images.*rows of 5 features \(set model.kind to 'mlp'\)"):
        NetworkPart(kind="vgg").build((5,), 3)
    with pytest.raises(StudyError, match="likelihood 'categorical' is not for targets that are numbers"):
        NetworkPart(likelihood="categorical").build((5,), None)
    with pytest.raises(StudyError, match="likelihood 'gaussian' is not for targets that are labels of 3 classes"):
        NetworkPart(likelihood="gaussian").build((5,), 3)


def test_every_method_has_a_kind_of_model() -> None:
    assert {recipe.model for recipe in METHODS.values()} == set(MODELS)
    assert (MODELS["functions"], MODELS["weights"]) == (ModelPart, NetworkPart)
    for name, recipe in METHODS.items():
        check_task(name, classification=False)
        if recipe.model == "weights":
            check_task(name, classification=True)
        else:
            with pytest.raises(StudyError, match=f"{name} is a method of regression.*pfedbayes"):
                check_task(name, classification=True)
