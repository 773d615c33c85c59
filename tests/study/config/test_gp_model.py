"""Table [model] of Gaussian processes: what it makes is as large as it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn.functional import softplus

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.evidence import particle_evidence
from pacbayes_fl.models.functions.deep_kernel_gp import LINEAR, OUTPUTSCALE, SLOPES
from pacbayes_fl.models.inducing import AUTO, Inducing
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.study import run
from pacbayes_fl.study.config.gp_model import GPModel, fully_connected, with_points
from pacbayes_fl.study.data import load
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.serving.predict import join, predict
from tests.tiny import tiny


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def test_weights_are_counted_before_a_prior_is_made() -> None:
    mean, kernel = (5 + 1) * 4 + (4 + 1), (5 + 1) * 6 + (6 + 1) * 3 + (3 + 1) * 2
    assert GPModel((4,), (6, 3), 2, linear="none").size(5, None).weights == mean + kernel
    started = GPModel((4,), (6, 3), 2, linear="zero")
    assert started.size(5, None).weights == mean + kernel + 5 + 1 + 1 + 1 == started.build((5,)).dim - 1  # the noise
    fewer = GPModel((4,), (6, 3), 2, linear="zero", linear_kernel=False)
    assert fewer.size(5, None).weights == mean + kernel + 5 + 1 + 1 == fewer.build((5,)).dim - 1
    noisy = GPModel((4,), (6, 3), 2, linear="none", noise_widths=(3,), noise_spread=0.25, linear_kernel=True)
    assert noisy.size(5, None).weights == mean + kernel + (5 + 1) * 3 + (3 + 1) + 1 == noisy.build((5,)).dim - 1
    lines = GPModel((4,), (6, 3), 2, linear="zero", networks=False)
    assert lines.size(5, None).weights == 5 + 1 + 1 + 1 == lines.build((5,)).dim - 1
    heavy = GPModel((4,), (6, 3), 2, linear="none", likelihood="student-t")
    assert heavy.size(5, None).weights == mean + kernel + 1 == heavy.build((5,)).dim - 1
    fixed = GPModel((4,), (6, 3), 2, linear="none", likelihood="student-t", degrees_of_freedom=3.0)
    assert fixed.size(5, None).weights == mean + kernel == fixed.build((5,)).dim - 1
    spreads = noisy.build((5,)).spreads()
    assert spreads is not None and spreads.prior[1] == 0.25  # the first weight of the noise network


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("Poisson", "data.transform = 'log1p', with data.lower_bound = 0"),
        ("lognormal", "data.transform = 'log1p', with data.lower_bound = 0"),
        ("bernoulli", "data.task = 'classification', method.name = 'pfedbayes'"),
        ("beta", "data.transform = 'logit', with data.lower_bound = 0 and data.upper_bound = 1"),
    ],
)
def test_targets_of_other_kinds_are_told_what_learns_them(word: str, line: str) -> None:
    with pytest.raises(StudyError, match=f"must be 'gaussian' or 'student-t', .*got {word!r}") as caught:
        tiny(f"model.likelihood={word}")
    assert line in str(caught.value)
    lines = [
        f"{part.strip()}" for part in line.replace(", with", " and").replace(", method", " and method").split(" and ")
    ]
    assert tiny(*(one.replace(" = ", "=").replace("'", "") for one in lines)) is not None, "the lines are a study"
    with pytest.raises(StudyError, match=r"must be one of .*got 'studnt' \(did you mean 'student-t'\?\)"):
        tiny("model.likelihood=studnt")


@pytest.mark.parametrize("word", ["false", "held-out"])
def test_a_prior_without_networks_needs_linear_parts(word: str) -> None:
    for parts in ("model.linear=zero", "model.linear_kernel=true"):
        assert tiny(f"model.networks={word}", "model.linear=none", parts).model.networks is not True
    with pytest.raises(StudyError, match=r"\[model\] networks = .* leaves no part of the prior that knows the inputs"):
        tiny(f"model.networks={word}", "model.linear=none")
    for name in ("vanilla-gp", "pooled-gp", "ard-gp"):  # whose "auto" is "none" beside networks
        assert tiny(f"method.name={name}", "model.networks=false").model.linear == "zero"
        assert tiny(f"method.name={name}").model.linear == "none"


@pytest.mark.parametrize("name", ["vanilla-gp", "pooled-gp", "ard-gp", "ridge"])
def test_a_method_that_tries_nothing_says_so_together_with_the_parts_that_are_missing(name: str) -> None:
    both = r"networks = 'held-out' is not for this method, for which nothing is tried, and leaves no part .* inputs"
    hint = r" \(model\.networks = true; or false, where model\.linear = 'zero' gives it linear parts"
    with pytest.raises(StudyError, match=both + hint):
        tiny(f"method.name={name}", "model.networks=held-out")
    for sets in (["model.networks=true"], ["model.networks=false", "model.linear=zero"]):
        study = tiny(f"method.name={name}", *sets)
        prepare(study, load(study))


def test_a_prior_without_networks_is_a_regression_with_coefficients_of_clients_own() -> None:
    """Its evidence is that of y = X1 (w + u) + a + e, with u ~ N(0, s^2 I) and a ~ N(0, outputscale)."""
    model = GPModel(linear="zero", networks=False).build((2,))
    batch = ClientBatch.pad([(draw(6, 2), draw(6)), (draw(3, 2), draw(3))])
    theta = model.location() + 0.5 * draw(3, model.dim)
    found = particle_evidence(model, theta, batch)
    for client, count in enumerate((6, 3)):
        x = torch.cat((batch.x[client, :count], torch.ones(count, 1, dtype=torch.float64)), 1)
        for p, one in enumerate(theta):
            named = {name: value.reshape(-1) for name, value in model.unflatten(one).items()}
            spread, own = softplus(named[OUTPUTSCALE]), named[SLOPES] ** 2
            std = softplus(named["raw_noise"])
            covariance = own * x @ x.mT + spread + (std**2) * torch.eye(count, dtype=torch.float64)
            exact = MultivariateNormal(x @ named[LINEAR], covariance).log_prob(batch.y[client, :count])
            torch.testing.assert_close(found[client, p], exact, rtol=1e-9, atol=1e-9)


def test_a_network_has_weights_and_biases() -> None:
    assert fully_connected((5, 3, 1)) == 5 * 3 + 3 + 3 + 1 and fully_connected((4,)) == 0


def test_priors_have_the_points_that_a_study_asks_for() -> None:
    plain = GPModel().build((2,))
    assert with_points(plain, "none") is plain and with_points(plain, "auto").inducing == AUTO
    own = with_points(plain, 7)
    assert own.inducing == Inducing(7) and plain.inducing is None and own.dim == plain.dim
    assert with_points(own, "auto") is own  # a program's own rule stays
    network = BayesianMLP((1, 2, 1), Gaussian())
    assert with_points(network, "auto") is network
    assert GPModel().inducing == "auto"
    with pytest.raises(StudyError, match="inducing must be at least 1"):
        GPModel(inducing=0)


@pytest.mark.parametrize(
    ("name", "hint"), [("pooled-gp", "method.inducing is its own"), ("ridge", "pac-pfl"), ("ard-gp", "pac-pfl")]
)
def test_a_number_of_points_that_would_not_count_is_refused(name: str, hint: str) -> None:
    study = tiny(f"method.name={name}", "model.inducing=5")
    with pytest.raises(StudyError, match=f"would count for nothing: {name}") as raised:
        prepare(study, load(study))
    assert hint in str(raised.value)


POINTS = ("model.inducing=3", "model.residuals=mixture", "federation.rounds=2", "report.certify.scheme=split")


def test_a_run_with_points_resumes_to_the_same_numbers_and_lets_others_join(tmp_path: Path) -> None:
    run.run(tiny(*POINTS), tmp_path / "whole")
    run.run(tiny(*POINTS, "federation.rounds=1"), tmp_path / "cut")
    run.run(tiny(*POINTS), tmp_path / "cut", resume=True)
    files = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("whole", "cut")]
    assert files[0] == files[1]
    trained = run.open_run(tmp_path / "cut")
    assert trained.study.model.inducing == 3
    table = tmp_path / "new.csv"
    table.write_text("client,x,y\n" + "".join(f"new,{x},{y}\n" for x, y in ((-1, 0.2), (0, 0.4), (1, 1), (2, ""))))
    (answer,) = join(trained, table).values()
    assert abs(float(answer.mean[0])) < 3.0
    known = tmp_path / "known.csv"
    known.write_text(table.read_text().replace("new", "poly_00"))
    assert abs(float(predict(trained, "poly_00", known).mean[0])) < 3.0
