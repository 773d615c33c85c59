"""What a study may leave open, in which table it stands, and what a file of one's own leaves open by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from pacbayes_fl import BayesianMLP, FedAvg, Gaussian
from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.methods import METHODS, HeldOutChoice
from pacbayes_fl.options import option, options_of
from pacbayes_fl.study import privacy
from pacbayes_fl.study.config import choices, models
from pacbayes_fl.study.config.choices import (
    ROUNDS,
    TEMPERATURE,
    candidates,
    kind_of,
    refuse_open,
    rounds_of,
    with_value,
)
from pacbayes_fl.study.config.gp_model import GPModel
from pacbayes_fl.study.config.listing import BUNDLED
from pacbayes_fl.study.config.parts import DataPart, FederationPart
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from tests.tiny import tiny

OWN = {"data": {"source": "mine.csv"}}


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("pac-pfl", ["data.scale", "model.noise_widths", "hyper_prior_std", "model.networks"]),
        ("pfedgp", ["init_std", "data.scale", "model.noise_widths", "model.networks"]),
    ],
)
def test_a_file_of_ones_own_leaves_the_number_of_rounds_open(name: str, others: list[str]) -> None:
    study = Study.from_table({**OWN, "method": {"name": name}})
    assert [one.key for one in study.held_out] == [*others, ROUNDS.key]
    assert study.federation.rounds == study.data.scale == "held-out"
    assert study.plan.rounds == max(candidates(study, ROUNDS)), "as many as can be, until it is chosen"
    assert with_value(study, ROUNDS, 25).plan.rounds == 25


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_of_a_program_leaves_nothing_open_that_the_one_named_beside_it_would(name: str) -> None:
    """Nothing is tried for it; what somebody has written down himself stays, and is refused."""
    method = FedAvg(BayesianMLP((1, 2, 1), Gaussian()))
    own = Study.from_table({**OWN, "method": {"name": name}})
    study = own.with_instances(method=method)
    assert study.held_out == () and study.data == DataPart(source=own.data.source)
    assert isinstance(study.model, models.InstanceModel) and study.model.residuals == "gaussian"
    refuse_open(study)
    asked = Study.from_table({"data": {"source": "mine.csv", "scale": "pooled"}}).with_instances(method=method)
    assert asked.data.scale == "pooled"
    with pytest.raises(StudyError, match=r"data\.scale = 'held-out' is not for instance:FedAvg"):
        refuse_open(replace(asked, data=replace(asked.data, scale="held-out")))


@pytest.mark.parametrize(
    ("model", "networks"),
    [
        ({}, "held-out"),
        ({"noise_widths": [8], "likelihood": "student-t"}, "held-out"),
        ({"networks": True}, True),
        ({"networks": False}, False),
        ({"linear": "none"}, True),
        ({"mean_widths": "zero"}, True),
        ({"kernel_widths": [8]}, True),
        ({"feature_dim": 3}, True),
    ],
)
@pytest.mark.parametrize("name", ["pac-pfl", "pfedgp"])
def test_networks_are_open_where_nothing_is_said_of_them(name: str, model: dict[str, Any], networks: object) -> None:
    study = Study.from_table({**OWN, "method": {"name": name}, "model": model})
    assert getattr(study.model, "networks", None) == networks
    assert getattr(Study.from_table({"method": {"name": name}, "model": model}).model, "networks", None) != "held-out"
    program = Study.from_table({"method": {"name": name}, "model": model})
    assert getattr(choices.with_own_defaults(program).model, "networks", None) == networks


@dataclass(frozen=True)
class Waves(GPModel):
    """Table [model] of networks with waves.

    Args:
        waves: of the kernel network.
    """

    network_options: ClassVar[tuple[str, ...]] = (*GPModel.network_options, "waves")
    waves: int = option(3, low=1)


def test_a_kind_of_model_says_which_of_its_options_are_of_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (GPModel, models.NetworkModel, models.InstanceModel, Waves):
        assert {*table.network_options} <= {*options_of(table)}
    record = models.ModelKind("waves", "a Gaussian process", "functions", Waves)
    monkeypatch.setattr(models, "KINDS", {**models.KINDS, "waves": record})
    for given, networks in (({}, "held-out"), ({"waves": 4}, True), ({"feature_dim": 3}, True)):
        model = {"kind": "waves", **given}
        assert getattr(Study.from_table({**OWN, "model": model}).model, "networks", None) == networks
        program = choices.with_own_defaults(Study.from_table({"model": model}))
        assert isinstance(program.model, Waves) and program.model.networks == networks


@pytest.mark.parametrize(
    ("table", "rounds"),
    [
        ({"federation": {"rounds": 30}}, 30),
        ({"methods": {"pac-pfl": {"federation": {"rounds": 30}}}}, 30),
        ({"method": {"preset": "paper"}}, 1000),
        ({"method": {"name": "pooled-ensemble"}}, 160),  # all rows in one place: what a round is says nothing
        ({"method": {"name": "pfedbayes"}}, 160),
        ({"method": {"name": "fedavg"}, "federation": {"rounds": 30}}, 30),
        ({"privacy": {"epsilon": 2.0}}, 400),
        ({"report": {"certify": {"scheme": "folds"}}}, 400),
        ({"data": {"source": "polynomial"}}, 400),
        ({"data": {}}, 400),
    ],
)
def test_what_is_said_or_may_not_be_chosen_by_rows_is_not_left_open(table: dict[str, Any], rounds: int) -> None:
    assert Study.from_table({**OWN, **table}).federation.rounds == rounds


@pytest.mark.parametrize(
    ("table", "scale", "residuals"),
    [
        ({}, "held-out", "mixture"),
        ({"method": {"name": "pfedgp"}}, "held-out", "mixture"),
        ({"data": {"source": "mine.csv", "scale": "pooled"}, "model": {"residuals": "gaussian"}}, "pooled", "gaussian"),
        ({"method": {"preset": "paper"}}, "client", "gaussian"),
        ({"privacy": {"epsilon": 2.0}}, "client", "gaussian"),
        ({"report": {"certify": {"scheme": "folds"}}}, "client", "gaussian"),
        ({"data": {"source": "polynomial"}}, "client", "gaussian"),
    ],
)
def test_scales_and_shapes_of_errors_are_learned_from_others_where_they_may_be(
    table: dict[str, Any], scale: str, residuals: str
) -> None:
    study = Study.from_table({**OWN, **table})
    assert (study.data.scale, study.model.residuals) == (scale, residuals)


@pytest.mark.parametrize("path", sorted(BUNDLED.glob("*.toml")), ids=lambda path: path.stem)
def test_no_bundled_study_leaves_its_rounds_open(path: Any) -> None:
    assert all(
        Study.from_toml(path.stem, [f"method.name={name}"]).federation.rounds != "held-out" for name in _able(path)
    )


def _able(path: Any) -> list[str]:
    usual = Study.from_toml(path.stem)
    return [name for name in ("pac-pfl", "pfedgp", "fedavg") if usual.recipe.learns == METHODS[name].learns]


def test_privacy_with_the_word_none_is_no_privacy() -> None:
    assert Study.from_table({**OWN, "privacy": {"epsilon": "none"}}).held_out == Study.from_table(OWN).held_out != ()


def test_where_nothing_is_repeated_no_number_of_rounds_is_chosen() -> None:
    study = Study.from_table({"method": {"name": "vanilla-gp"}, "federation": {"rounds": "held-out"}})
    assert study.held_out == () and study.plan.rounds == 1 and rounds_of(study) == {"rounds": 1}


@pytest.mark.parametrize(
    ("asked", "value"),
    [
        (HeldOutChoice("feature_dim", (1, 2), table="model"), 1),
        (HeldOutChoice("scale", ("client", "pooled"), table="data"), "pooled"),
        (HeldOutChoice("tau", (1.0, 0.3)), 0.3),
        (ROUNDS, 10),
    ],
)
def test_a_choice_stands_in_any_table(asked: HeldOutChoice, value: Any) -> None:
    study = with_value(tiny(), asked, value)
    part: Any = study.method.options if asked.table == "method" else getattr(study, asked.table)
    assert getattr(part, asked.option) == value and type(part) is kind_of(study, asked)
    assert with_value(study, asked, getattr(getattr(tiny(), asked.table), asked.option, 1.0)) == tiny()
    assert asked.key == (asked.option if asked.table == "method" else f"{asked.table}.{asked.option}")


def test_the_dataclass_that_reads_a_choice_is_that_of_its_table() -> None:
    assert kind_of(tiny(), ROUNDS) is FederationPart
    assert kind_of(tiny(), HeldOutChoice("scale", (), table="data")) is DataPart


def test_nothing_is_trained_while_the_model_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, study = HeldOutChoice("linear", ("ridge", "none"), table="model"), tiny()
    object.__setattr__(study.model, "linear", "held-out")
    monkeypatch.setattr(choices, "every", lambda recipe: (asked, TEMPERATURE))
    assert study.held_out == (asked,)
    with pytest.raises(StudyError, match=r"model\.linear is still 'held-out'"):
        refuse_open(study)
    with pytest.raises(StudyError, match=r"model\.linear is still 'held-out'"):
        prepare(study, load(tiny()))


def test_a_private_run_refuses_the_choice_by_the_name_of_its_table(tmp_path: Any) -> None:
    for key, sets in (("federation.rounds", []), ("method.tau", ["method.tau=held-out", "federation.rounds=5"])):
        study = tiny("federation.rounds=held-out", *sets, "privacy.epsilon=1.0")
        with pytest.raises(PrivacyError, match=f"{key} would be chosen by the clients' rows"):
            privacy.check(study, tmp_path)


@pytest.mark.parametrize("name", ["pfedbayes", "sfedbayes", "cfedbayes", "bpfed"])
def test_few_images_a_client_leave_the_weight_of_the_divergence_open(name: str) -> None:
    def zeta(study: str, *sets: str) -> object:
        return getattr(Study.from_toml(study, [f"method.name={name}", *sets]).method.options, "zeta")  # noqa: B009

    usual = zeta("mnist-small")  # 5 labels of 50 rows
    assert usual == {"bpfed": 1.0}.get(name, 10.0)
    assert zeta("mnist-small", "data.options.train=20") == "held-out" != zeta("mnist-small", "data.options.train=21")
    assert zeta("mnist-small", "data.options.labels_per_client=2") == "held-out"
    assert zeta("femnist-20") == "held-out" and zeta("femnist-20", "data.options.limit=101") == usual
    assert zeta("femnist-20", "method.zeta=0.3") == 0.3 and zeta("cifar10-small") == zeta("mnist-medium") == usual
    for other in ("method.preset=paper", "privacy.epsilon=1.0"):
        assert zeta("femnist-20", other) != "held-out"


@pytest.mark.parametrize("name", ["pfedbayes", "sfedbayes", "cfedbayes", "bpfed"])
def test_few_images_leave_the_temperature_open_too(name: str) -> None:
    few, said, many = (
        Study.from_toml("mnist-small", [f"method.name={name}", *sets])
        for sets in (
            ["data.options.train=20"],
            ["data.options.train=20", "model.temperature=1.0"],
            ["data.options.train=21"],
        )
    )
    assert few.model.temperature == "held-out" and said.model.temperature == many.model.temperature == 1.0  # type: ignore[union-attr]


def test_few_images_change_nothing_else() -> None:
    for name in ("fedsi", "local", "fedavg", "fed-ensemble"):
        if "classification" in METHODS[name].learns:
            few, many = (
                Study.from_toml("mnist-small", [f"method.name={name}", f"data.options.train={m}"]) for m in (4, 50)
            )
            assert few.method == many.method and few.federation == many.federation and few.model == many.model
    given = ["method.zeta=1.0", "model.temperature=1.0", "data.options.train=4"]
    assert Study.from_toml("mnist-small", given).held_out == ()


@pytest.mark.parametrize("task", ["auto", "classification"])
@pytest.mark.parametrize("name", [name for name, recipe in METHODS.items() if recipe.model == "weights"])
def test_networks_leave_their_rounds_and_one_noise_of_numbers_open(name: str, task: str) -> None:
    if task == "auto" and "regression" not in METHODS[name].learns:
        return
    study = Study.from_table({"data": {"source": "mine.csv", "task": task}, "method": {"name": name}})
    repeated = METHODS[name].federated and METHODS[name].rounds
    by_divergence = task == "auto" and "zeta" in {one.option for one in METHODS[name].held_out}
    assert (choices.ROUNDS in study.held_out) == (repeated and not by_divergence)
    learned = getattr(study.model, "likelihood", None) == "heteroscedastic"
    assert (choices.NOISE in study.held_out) == (task == "auto" and not learned)
    assert study.model.build((2,), None if task == "auto" else 3).likelihood.outputs  # with the usual noise until then
    given = {"likelihood": "heteroscedastic"} if task == "auto" else {"noise_std": 0.3}
    assert choices.NOISE not in Study.from_table({**OWN, "method": {"name": name}, "model": given}).held_out


def test_no_noise_is_chosen_where_it_is_learned() -> None:
    table = {**OWN, "method": {"name": "fedavg"}, "model": {"likelihood": "heteroscedastic", "noise_std": "held-out"}}
    with pytest.raises(StudyError, match=r"noise_std = 'held-out' is of one noise for all inputs") as raised:
        Study.from_table(table)
    assert raised.value.hint == "model.noise_std = 0.4, from which it starts"
