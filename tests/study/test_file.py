"""Studies: where a value comes from, what is refused, and that a resolved study reads back as itself."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.study.config.gp_model import GPModel
from pacbayes_fl.study.config.listing import BUNDLED
from pacbayes_fl.study.config.models import NetworkModel
from pacbayes_fl.study.config.parts import FederationPart
from pacbayes_fl.study.file import Study, assigned, read_table
from tests.tiny import TABLE, tiny, write_study


def study(table: dict[str, Any], *sets: str) -> Study:
    return Study.from_table(table, "s.toml", sets)


LAYERS: dict[str, Any] = {
    "method": {"name": "pac-pfl", "preset": "paper", "rate": 0.02},
    "methods": {"pac-pfl": {"method": {"rate": 0.03}, "model": {"feature_dim": 5}, "federation": {"rounds": 33}}},
}


def test_precedence_from_the_top_to_the_bottom() -> None:
    """Assignments, [methods.NAME], the table, the preset, the default: each wins over what follows."""
    everything, own = dict(LAYERS), LAYERS["methods"]
    assert study(everything, "method.rate=0.04").method.options.rate == 0.04
    assert study(everything).method.options.rate == 0.03
    del everything["methods"]
    assert study(everything).method.options.rate == 0.02
    assert study({"method": {"preset": "paper"}}).method.options.rate == "held-out"
    assert study({}).method.options.rate == 0.01
    assert study(everything).method.options.optimiser == "ascent"  # of the preset, which the table does not contradict
    assert study({"methods": own, "federation": {"rounds": 7}}).federation.rounds == 33
    assert study({"method": {"preset": "paper"}, "federation": {"rounds": 7}}).federation.rounds == 7
    assert study({"method": {"preset": "paper"}}).federation.rounds == 1000
    assert study({"methods": own, "model": {"feature_dim": 7}}).model.feature_dim == 5
    assert study({"methods": own}, "federation.rounds=8", "model.feature_dim=9").plan.rounds == 8


def test_the_last_assignment_wins_and_a_preset_can_be_assigned() -> None:
    assert study({}, "method.rate=0.1", "method.rate=0.2").method.options.rate == 0.2
    got = study({"method": {"rate": 0.05}}, "method.preset=paper")
    assert (got.method.preset, got.method.options.rate, got.method.options.optimiser) == ("paper", 0.05, "ascent")


def test_values_that_were_tuned_for_a_preset_are_not_another_ones() -> None:
    """A bundled study's rate is Adam's, and the paper ascends plainly; what is scored when is no tuned value."""
    given = {"methods": {**LAYERS["methods"], "pfedgp": {"method": {"rate": 0.03}}}}
    given["methods"]["pac-pfl"] = {**given["methods"]["pac-pfl"], "report": {"evaluate_every": 7}}
    tuned, paper = study(given), study(given, "method.preset=paper")
    assert (tuned.method.options.rate, tuned.federation.rounds, tuned.report.evaluate_every) == (0.03, 33, 7)
    assert (paper.method.options.rate, paper.federation.rounds, paper.report.evaluate_every) == ("held-out", 1000, 7)
    own = {**given, "method": {"name": "pac-pfl", "preset": "paper"}}  # tuned under the preset that the table has
    assert study(own).method.options.rate == 0.03
    assert study(own, "method.preset=recommended").method.options.rate == 0.01
    assert study(own, "method.name=pfedgp").method.options.rate == 0.03
    for name in ("pv-ew-150-bern", "pv-s-150"):
        assert Study.from_toml(name, ["method.preset=paper"]).differences() == {}


def test_another_method_drops_the_options_of_the_tables_own() -> None:
    table = {"method": {"name": "pac-pfl", "preset": "paper", "particles": 7}, "model": {"feature_dim": 3}}
    other = study(table, "method.name=pfedgp", "method.rate=0.5")
    assert (other.method.name, other.method.preset, other.method.options.rate) == ("pfedgp", "recommended", 0.5)
    assert other.model.feature_dim == 3  # the other parts are everybody's
    assert study(table, "method.name=pac-pfl").method.options.particles == 7
    assert study({"method": {"particles": 7}}, "method.name=pac-pfl").method.options.particles == 7  # the default name
    with pytest.raises(StudyError, match="unknown key 'particles'"):
        study({"method": {"name": "pfedgp", "particles": 7}})


def test_each_method_finds_its_own_part() -> None:
    table = {"methods": {"pfedgp": {"method": {"rate": 0.07}}, "pac-pfl": {"method": {"rate": 0.08}}}}
    assert study(table, "method.name=pfedgp").method.options.rate == 0.07
    assert study(table).method.options.rate == 0.08
    assert study(table, "method.name=vanilla-gp").method.options.rate == 0.01


def test_assigned_leaves_the_table_as_it_was() -> None:
    table = {"method": {"name": "pac-pfl", "particles": 7}, "seed": 1}
    kept, given = assigned(table, ["method.name=ridge", "seed=2"])
    assert (kept, given) == ({"seed": 1}, {"method": {"name": "ridge"}, "seed": 2})
    assert table == {"method": {"name": "pac-pfl", "particles": 7}, "seed": 1}


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"modle": {}}, "s.toml: unknown key 'modle' (did you mean 'model'?)"),
        (
            {"model": {"kernel_width": [1]}},
            "s.toml [model]: unknown key 'kernel_width' (did you mean 'kernel_widths'?)",
        ),
        ({"method": {"tua": 1.0}}, "s.toml [method] of pac-pfl: unknown key 'tua' (did you mean 'tau'?)"),
        ({"method": {"name": "pac-plf"}}, "s.toml: unknown method 'pac-plf' (did you mean 'pac-pfl'?)"),
        ({"method": {"name": 3}}, "s.toml: unknown method '3'"),
        ({"method": {"name": float("nan")}}, "s.toml: unknown method 'nan'"),
        ({"method": {"name": ["ridge"]}}, "s.toml: unknown method \"['ridge']\""),
        ({"method": {"preset": "papers"}}, "s.toml: unknown preset 'papers' (did you mean 'paper'?)"),
        ({"method": {"preset": ["paper"]}}, "s.toml: unknown preset ['paper']"),
        ({"methods": {"rigde": {}}}, "s.toml: unknown method 'rigde' (did you mean 'ridge'?)"),
        ({"methods": {"pac-pfl": {"methods": {}}}}, "s.toml [methods.pac-pfl]: unknown part 'methods' (valid: method,"),
        ({"methods": {"pac-pfl": {"report": {"evaluate_every": 0}}}}, "[report] evaluate_every must be at least 1"),
        ({"methods": {"pfedgp": {"data": {"time": "t"}}}}, "s.toml [methods.pfedgp.data]: time says which rows there"),
        ({"methods": {"pfedgp": {"data": {"scale": "big"}}}}, "s.toml [methods.pfedgp.data] scale must be one of"),
        ({"methods": {"pfedgp": {"method": {"tau": 1}}}}, "s.toml [methods.pfedgp.method]: unknown key 'tau'"),
        ({"methods": {"pfedgp": {"model": 3}}}, "s.toml [methods.pfedgp.model] must be a table, got 3"),
        ({"methods": {"pfedgp": 3}}, "s.toml [methods.pfedgp] must be a table, got 3"),
        ({"methods": 3}, "s.toml: methods must be a table, got 3"),
        ({"method": 3}, "s.toml: method must be a table, got 3"),
        ({"model": "deep"}, "s.toml: model must be a table, got 'deep'"),
        ({"seed": -1}, "s.toml seed must be a whole number from 0 to 2**32 - 1, got -1"),
        ({"seed": 2**32}, "s.toml seed must be a whole number"),
        ({"seed": True}, "s.toml seed must be a whole number"),
        ({"seed": 1.0}, "s.toml seed must be a whole number"),
        (
            {"federation": {"device": "gpu"}},
            "s.toml [federation] device must be one of 'auto', 'cpu', 'cuda', got 'gpu'",
        ),
        ({"federation": {"checkpoint_every": 0}}, "[federation] checkpoint_every must be at least 1, got 0"),
        ({"federation": {"threads": 0}}, "[federation] threads must be at least 1, got 0"),
        ({"federation": {"waste": 0.5}}, "[federation] waste must be at least 1, got 0.5"),
        ({"report": {"evaluate_every": 0}}, "[report] evaluate_every must be at least 1, got 0"),
        ({"report": {"calibration_bins": 0}}, "[report] calibration_bins must be at least 1, got 0"),
        ({"model": {"mean_widths": [3, 0]}}, "[model] mean_widths must be at least 1, got 3, 0"),
        ({"model": {"feature_dim": 0}}, "[model] feature_dim must be at least 1, got 0"),
        ({"model": {"noise_std": 0.0}}, "[model] noise_std must be positive and finite, got 0"),
        ({"model": {"noise_std": float("nan")}}, "s.toml [model] noise_std must be a finite number, got nan"),
    ],
)
def test_a_wrong_study_is_refused_with_the_place(table: dict[str, Any], text: str) -> None:
    with pytest.raises(StudyError) as caught:
        study(table)
    assert str(caught.value).startswith(text)


def test_a_wrong_assignment_is_refused_like_a_wrong_table() -> None:
    with pytest.raises(StudyError, match="method must be a table, got 3"):
        study({"method": 3}, "method.name=pac-pfl")
    with pytest.raises(StudyError, match="method must be a table, got 3"):
        study({"method": {"name": "ridge"}}, "method=3")
    with pytest.raises(StudyError, match="unknown key 'tauu'"):
        study({}, "method.tauu=3")


def test_numbers_that_only_the_plan_can_judge() -> None:
    with pytest.raises(StudyError, match="cohort must be at least min_clients=3, got 2"):
        _ = study({"federation": {"cohort": 2, "min_clients": 3}}).plan


def test_the_plan_is_the_federation_part() -> None:
    got = tiny("federation.cohort=2", "federation.min_clients=2", "federation.chunk=99", "federation.waste=1.5")
    assert got.plan == FederationPlan(12, 2, 3, "drop", 2, 99, 1.5, "philox", "cohort")
    assert tiny("federation.train=all").plan.train == "all"
    assert tiny("method.name=ridge").plan.rounds == 1  # nothing to repeat
    assert tiny("method.name=ridge").federation.rounds == 12


def test_a_plan_is_the_same_from_python_and_from_a_study() -> None:
    """But for the rounds, which presets choose, and the seed, which is the study's."""
    plan, part = FederationPlan(), FederationPart()
    shared = FederationPlan.__dataclass_fields__.keys() & FederationPart.__dataclass_fields__.keys()
    assert FederationPlan.__dataclass_fields__.keys() - shared == {"seed"} and plan.seed == Study().seed
    assert {name for name in shared if getattr(plan, name) != getattr(part, name)} == {"rounds"}


def test_the_model_part_builds_the_prior() -> None:
    for widths, dim in (("zero", 0), ([], 2), ([4], 13)):  # of the mean: none, w x + b, and 4 + 4 + 4 + 1
        table = {"mean_widths": widths, "kernel_widths": [], "feature_dim": 1, "linear": "none"}
        prior = study({"model": table}).model.build((1,), None)
        assert isinstance(prior, DeepKernelGP)
        assert prior.dim == dim + 2 + 1  # and the linear embedding x -> 1, and the noise


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("preset", ["recommended", "paper"])
def test_a_resolved_study_reads_back_as_itself(name: str, preset: str, tmp_path: Path) -> None:
    sets = (
        "federation.cohort=3",
        "model.mean_widths=zero" if METHODS[name].model == "functions" else "model.widths=[]",
        'data.options.note="a \\"quoted\\" ü"',
        "report.levels=pacoh",
    )
    one = study({"name": "näme", "seed": 2**32 - 1, "method": {"name": name, "preset": preset}}, *sets)
    path = tmp_path / "study.toml"
    path.write_text(one.to_toml(), encoding="utf-8")
    assert Study.from_toml(path) == one
    assert Study.from_toml(path).table() == one.table() == tomllib.loads(one.to_toml())


def test_a_resolved_study_implies_nothing() -> None:
    table = tiny().table()
    fields = {"data": 30, "model": 16, "method": 19, "federation": 17, "report": 11, "privacy": 18, "deploy": 3}
    assert {part: len(table[part]) for part in fields} == fields
    assert set(table) == {"name", "seed", *fields}
    assert table["federation"]["cohort"] == "none"


def test_differences_from_the_paper() -> None:
    assert study({"method": {"preset": "paper"}}).differences() == {}
    assert study({}).differences() == {
        "method.rate": (0.01, "held-out"),
        "method.optimiser": ("adam", "ascent"),
        "method.preconditioner": ("model", "none"),
        "model.linear": ("ridge", "none"),
        "model.linear_kernel": (True, False),
        "federation.rounds": (400, 1000),
    }
    changed = {"method": {"preset": "paper"}, "model": {"mean_widths": "zero"}, "federation": {"threads": 1}}
    assert study(changed, "federation.device=cpu").differences() == {"model.mean_widths": ("zero", [32, 32])}


@pytest.mark.parametrize("name", sorted(file.stem for file in BUNDLED.glob("*.toml")))
def test_every_bundled_study_loads_by_its_name(name: str) -> None:
    got = Study.from_toml(name)
    assert got.name == name
    assert got == Study.from_toml(BUNDLED / f"{name}.toml")
    assert Study.from_table(got.table()) == got


def test_a_file_is_named_after_itself_when_it_does_not_say(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("seed = 4\n")
    assert (Study.from_toml(tmp_path / "mine.toml").name, Study.from_toml(tmp_path / "mine.toml").seed) == ("mine", 4)
    assert Study.from_toml(write_study(tmp_path)) == tiny()
    assert Study.from_toml(str(write_study(tmp_path)), ["seed=9"]).seed == 9
    assert read_table(write_study(tmp_path)) == (TABLE, "tiny.toml")


def test_a_study_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"there is no study 'polynomail' \(did you mean 'polynomial'\?\)"):
        Study.from_toml("polynomail")
    with pytest.raises(StudyError, match="there is no study"):
        Study.from_toml(tmp_path)
    (tmp_path / "bad.toml").write_text("seed = = 3")
    with pytest.raises(StudyError, match=r"bad\.toml is not TOML: "):
        Study.from_toml(tmp_path / "bad.toml")
    (tmp_path / "rows.csv").write_text("client,x,y\na,1,2\n")
    with pytest.raises(StudyError, match=r"rows\.csv is not TOML: .* \(`init --data rows\.csv` writes the study"):
        Study.from_toml(tmp_path / "rows.csv")
    (tmp_path / "bad.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(StudyError, match=r"bad\.toml is not TOML: "):
        Study.from_toml(tmp_path / "bad.toml")


def test_relative_paths_count_from_the_studys_folder_and_those_of_sets_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    file = tmp_path / "mine.toml"
    file.write_text('[data]\nsource = "rows.csv"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path / "sub")
    assert Study.from_toml("../mine.toml").data.source == str(tmp_path / "rows.csv")
    assert Study.from_toml(file, ["data.source=rows.csv"]).data.source == str(tmp_path / "sub" / "rows.csv")
    for kept in ("polynomial", "$DATA/rows.csv", "/data/rows.csv"):
        assert Study.from_toml(file, [f"data.source={kept}"]).data.source == kept


def test_another_table_in_the_place_of_one_keeps_what_the_study_says_of_it() -> None:
    """And so does a source with the same options; of any other kind the keys are left out, by name."""
    data = {"source": "a.csv", "target": "power", "time": "when", "scale": "pooled"}
    own = {
        "method": {"name": "ridge"},
        "privacy": {"epsilon": "none"},
        "methods": {"ridge": {"data": {"scale": "none"}}},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = Study.from_table({"data": data} | own, sets=["data.source=b.parquet", "data.target=load"]).data
        assert (kept.target, kept.time, kept.scale) == ("load", "when", "none")
        images = Study.from_toml("mnist-small", ["data.source=fashion-mnist"])
        assert images.data.options == Study.from_toml("mnist-small").data.options and images.data.follow_seed
    with pytest.warns(UserWarning, match=r"\[data\] time, scale of the study are for another kind .* 'pv-ew'"):
        moved = Study.from_table({"data": data} | own, sets=["data.source=pv-ew", "data.target=load"]).data
    assert (moved.target, moved.time, moved.scale) == ("load", None, "client")


# networks -------------------------------------------------------------------------------------------------------


def test_a_model_of_another_kind_does_not_count_where_the_method_is_assigned() -> None:
    functions = {"model": {"mean_widths": "zero"}, "seed": 5}
    other = study(functions, "method.name=pfedbayes", "model.widths=[7]")
    assert other.model == NetworkModel(widths=(7,)) and other.seed == 5
    alone = GPModel(mean_widths="zero", linear="none", linear_kernel=False)
    assert study(functions, "method.name=vanilla-gp").model == alone
    weights = {"model": {"kind": "mlp", "widths": [7]}, "method": {"name": "bpfed"}}
    assert study(weights, "method.name=fedavg").model == NetworkModel(widths=(7,))
    assert study(weights, "method.name=pac-pfl").model == GPModel(linear="ridge", linear_kernel=True)
    with pytest.raises(StudyError, match=r"s\.toml \[model\]: unknown key 'widths'"):
        study({"model": {"widths": [7]}})
    with pytest.raises(StudyError, match=r"s\.toml \[methods\.fedavg\.model\]: unknown key 'mean_widths'"):
        study({"methods": {"fedavg": {"model": {"mean_widths": "zero"}}}})
    with pytest.raises(StudyError, match=r"\[model\] widths must be at least 1, got 3, 0"):
        study(weights, "model.widths=[3, 0]")
    with pytest.raises(StudyError, match=r"\[model\] noise_std must be positive and finite, got 0"):
        study(weights, "model.noise_std=0.0")


def test_a_preset_gives_the_rounds_unless_the_study_does() -> None:
    assert study({"method": {"name": "pfedbayes"}}).plan.rounds == 160
    assert study({"method": {"name": "pfedbayes", "preset": "paper"}}).plan.rounds == 800
    assert study({"method": {"name": "pfedbayes"}, "federation": {"rounds": 7}}).plan.rounds == 7


@pytest.mark.parametrize("source", ["mnist", "fashion-mnist-inverted", "femnist-rotated"])
def test_data_with_classes_refuse_methods_of_regression(source: str) -> None:
    data = {"data": {"source": source}}
    for name, recipe in METHODS.items():
        if "classification" in recipe.learns:
            assert study(data, f"method.name={name}").data.source == source
        else:
            with pytest.raises(StudyError, match=f"{name} is a method of regression.*--set method.name=pfedbayes"):
                study(data, f"method.name={name}")
    with pytest.raises(StudyError, match="ridge is a method of regression"):
        study({"data": {"source": "rows.csv", "task": "classification"}, "method": {"name": "ridge"}})


def test_the_folder_of_images_counts_from_the_studys_folder(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    head = '[method]\nname = "fedavg"\n[data]\nsource = "mnist"\noptions = { root = '
    for given, expected in (("images", str(tmp_path / "images")), ("$HOME/x", "$HOME/x"), ("none", "none")):
        file.write_text(head + f'"{given}" }}\n', encoding="utf-8")
        assert Study.from_toml(file).data.options["root"] == expected


def test_clusters_are_a_number_or_to_be_chosen() -> None:
    table = {"method": {"name": "cfedbayes"}}
    assert study(table, "method.clusters=3").method.options.clusters == 3
    assert study(table, "method.clusters=held-out").method.options.clusters == "held-out"
    with pytest.raises(StudyError, match="clusters must be of type int or one of 'held-out', got 'many'"):
        study(table, "method.clusters=many")


# where learning starts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "linear"),
    [
        ((), "ridge"),
        (("method.name=pfedgp",), "ridge"),
        (("method.name=vanilla-gp",), "none"),
        (("method.name=pooled-gp",), "none"),
        (("method.preset=paper",), "none"),
        (("privacy.epsilon=1",), "zero"),
        (("report.certify.scheme=folds",), "zero"),
        (("report.certify.scheme=split",), "ridge"),
    ],
)
def test_learning_starts_at_the_pooled_ridge_where_rows_may_say_so(sets: tuple[str, ...], linear: str) -> None:
    model = study({}, *sets).model
    assert isinstance(model, GPModel) and model.linear == linear


@pytest.mark.parametrize(
    ("asked", "error"), [("privacy.epsilon=1", PrivacyError), ("report.certify.scheme=folds", StudyError)]
)
def test_sums_of_all_rows_are_refused_where_nobody_may_know_of_them(asked: str, error: type[StudyError]) -> None:
    with pytest.raises(error, match="linear = 'ridge' takes sums of all clients' rows") as caught:
        study({}, "model.linear=ridge", asked)
    assert "model.linear = 'zero'" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["vanilla-gp", "ard-gp"])
def test_clients_that_are_alone_take_no_sums_of_others_rows(name: str) -> None:
    with pytest.raises(
        StudyError, match="'ridge' takes sums of all clients' rows, and clients of this method are alone"
    ):
        study({}, f"method.name={name}", "model.linear=ridge")
    pooled = study({}, "method.name=pooled-gp", "model.linear=ridge").model
    assert isinstance(pooled, GPModel) and pooled.linear == "ridge"


def test_only_the_bundled_studies_that_were_tuned_without_it_have_no_linear_term() -> None:
    for name in ("polynomial", "pv-ew-150", "pv-s-150-bern"):
        for method in ("pac-pfl", "pfedgp"):
            model = Study.from_toml(name, [f"method.name={method}"]).model
            assert isinstance(model, GPModel) and model.linear == "none"


def test_a_method_may_see_the_columns_in_a_way_of_its_own() -> None:
    """Not in the paper's preset, and not where another source of data is named: it was settled for these rows."""
    table = {"methods": {"pac-pfl": {"data": {"scale": "pooled"}}}}
    assert Study.from_table(table).data.scale == "pooled"
    assert Study.from_table({**table, "method": {"name": "pfedgp"}}).data.scale == "client"
    assert Study.from_table(table, sets=["data.scale=shrunk"]).data.scale == "shrunk"
    assert Study.from_table({**table, "method": {"preset": "paper"}}).data.scale == "client"
    assert Study.from_table(table, sets=["data.source=mine.csv"]).data.scale == "held-out"
    x = torch.linspace(-1, 1, 8).unsqueeze(1)
    assert Study.from_table(table).with_instances(data={"a": (x, x[:, 0])}).data.scale == "held-out"
    assert Study.from_toml("polynomial").data.scale == "pooled"
    assert Study.from_toml("polynomial", ["method.name=ridge"]).data.scale == "client"
