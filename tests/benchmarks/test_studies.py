"""Studies of the papers' tables: each row is there, and is the split that the paper describes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import tables
from pacbayes_fl.data import image_federation
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import turns
from pacbayes_fl.methods import METHODS
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.study.config.models import NetworkModel
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import BUNDLED, Study

FOLDER = Path(tables.__file__).parent / "studies"
DOCS = FOLDER.parents[1] / "docs"
PAPERS = [json.loads((tables.REFERENCE / name).read_text(encoding="utf-8")) for name in tables.CLASSIFICATION]
OURS = sorted(FOLDER.glob("*.toml"))
JOURNAL = [file for file in OURS if not file.stem.startswith(("emnist", "fedsi", "femnist", "polynomial", "pv-"))]
DATA = ("mnist", "fmnist", "cifar10")
# training and test images per class and client, journal paper, section 6.1
COUNTS = MappingProxyType({"small": (50, 950), "medium": (200, 800), "large": (900, 300)})
CIFAR10 = MappingProxyType({"small": (25, 475), "medium": (100, 400), "large": (450, 150)})
SMALLEST = MappingProxyType({"mnist": 6_313, "fmnist": 7_000, "cifar10": 6_000})  # images of the rarest class
CLUSTERS = (*(f"{data}-clusters" for data in DATA), "mnist-fmnist-clusters")
ROWS = [f"{data}-{size}" for data in (*DATA, *CLUSTERS) for size in COUNTS]


def options(study: Study) -> SimpleNamespace:
    plan = image_federation.planned(study.data.source, study.data.options)
    return SimpleNamespace(**vars(plan.common), **vars(plan.own), official=plan.pool == "official")


def table_6() -> dict[str, Any]:
    return dict(json.loads((tables.REFERENCE / "pac_pfl_table6.json").read_text(encoding="utf-8")))


def file_of(name: str) -> Path:
    return next(folder / f"{name}.toml" for folder in (BUNDLED, FOLDER) if (folder / f"{name}.toml").is_file())


def test_every_row_of_the_papers_tables_is_a_study() -> None:
    missing = set()
    for file in tables.REFERENCE.glob("*.json"):
        for rows in json.loads(file.read_text(encoding="utf-8")).get("rows", {}).values():
            for data, cells in rows.items():
                names = cells if data in ("existing", "new") else [f"{data}-{size}" for size in cells]
                missing |= {
                    name for name in names if not any((p / f"{name}.toml").is_file() for p in (BUNDLED, FOLDER))
                }
    assert not missing and "rows of the papers' tables" in (DOCS / "howto" / "repeat-papers.md").read_text(
        "utf-8"
    ).replace("\n", " ")


def test_methods_of_the_papers_tables_are_here_as_the_site_says() -> None:
    compared = set[str]()
    for file in tables.REFERENCE.glob("*.json"):
        paper = json.loads(file.read_text(encoding="utf-8"))
        compared |= {tables.ALIASES.get(name, name) for name in paper.get("rows", {})}
        if "method" in paper.get("columns", []):
            compared |= {line[paper["columns"].index("method")] for line in paper["lines"]}
    assert len(compared) >= 30 and {"per-fedavg", "bnfed", "fedpa"} < compared
    assert compared <= METHODS.keys() and "all that the papers' tables compare with" in (DOCS / "index.md").read_text(
        "utf-8"
    ).replace("\n ", "")


def test_an_alias_is_a_papers_row_and_no_method() -> None:
    rows = {name for paper in (*PAPERS, table_6()) for name in paper["rows"]}
    assert tables.ALIASES.keys() <= rows and not tables.ALIASES.keys() & METHODS.keys()
    assert tables.ALIASES["maml"] in METHODS and not set(tables.ALIASES.values()) & tables.ALIASES.keys()


def test_a_sweep_of_a_papers_table_is_over_a_study() -> None:
    swept = [json.loads(file.read_text(encoding="utf-8")) for file in tables.REFERENCE.glob("*.json")]
    named = [paper["study"] for paper in swept if "lines" in paper]
    assert len(named) == 5 and all(file_of(name).is_file() for name in named)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_a_table_is_a_study(name: str) -> None:
    study = Study.from_toml(file_of(name))
    cut, size = options(study), name.rpartition("-")[2]
    cifar10, clusters = name.startswith("cifar10"), "clusters" in name
    assert (cut.train, cut.test) == (CIFAR10 if cifar10 else COUNTS)[size]
    assert cut.clients == (20 if cifar10 else 10) and (cut.labels_per_client, cut.groups) == (5, "two")
    assert len(set(cut.domains)) == (2 if clusters else 0) and cut.partition == "labels" and not cut.official
    assert study.method.name == ("cfedbayes" if clusters else "pfedbayes")
    assert study.data.follow_seed and isinstance(study.model, NetworkModel)
    assert (study.model.kind, study.model.widths) == ("vgg" if cifar10 else "mlp", (100,))


@pytest.mark.parametrize("name", ROWS)
def test_the_data_set_has_enough_images(name: str) -> None:
    cut = options(Study.from_toml(file_of(name)))
    holders = cut.clients * cut.labels_per_client / 10
    each = cut.train + cut.test + cut.validation
    if name.startswith("mnist-fmnist"):  # five clients of each: up to three hold a label
        assert 3 * each <= SMALLEST["mnist"]
        return
    base = SMALLEST[name.split("-")[0]]
    assert holders * each <= base
    assert cut.validation >= 5 or holders * (each + 1) > base  # validation rows where any are left


@pytest.mark.parametrize("file", JOURNAL, ids=lambda file: file.stem)
def test_a_study_says_what_it_is(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    study = Study.from_toml(file)
    assert text.startswith("# ") and "journal paper" in text and study.name == file.stem
    assert not (BUNDLED / file.name).exists()
    like = "cifar10-small" if study.data.source == "cifar10" else "mnist-small"  # the paper draws 10 of 20 clients
    assert Study.from_toml(BUNDLED / f"{like}.toml").federation == study.federation
    result = tables.published_classifier(PAPERS, study.name, study.method.name)
    assert {"pm", "gm"} <= result.keys()


def test_the_sparse_study_takes_an_initial_lambda() -> None:
    sets = ["method.inclusion=0.5", "name=mnist-medium-sparse-0.50"]
    study = Study.from_toml(FOLDER / "mnist-medium-sparse.toml", sets)
    assert study.method.options.inclusion == 0.5
    assert study.data == Study.from_toml("mnist-medium").data
    assert tables.published_classifier(PAPERS, study.name, "sfedbayes") == {"pm": 93.86, "gm": 82.75}


@pytest.mark.parametrize(("data", "size"), [(data, size) for data in DATA for size in ("small", "large")])
def test_a_row_of_fedsis_tables_is_a_study(data: str, size: str) -> None:
    """Section IV.A and IV.C: 10 or 20 clients of 5 labels, 10 of them a round, one hidden layer or the small CNN."""
    own = data == "cifar10"
    name = f"{'fedsi-' if own else ''}{data}-{size}"
    study = Study.from_toml(file_of(name), [] if own else ["method.name=fedsi", "method.preset=paper"])
    cut = options(study)
    assert (cut.train, cut.test) == (CIFAR10 if own else COUNTS)[size] and cut.partition == "labels"
    assert (cut.clients, cut.labels_per_client) == (20 if own else 10, 5)
    assert (study.federation.cohort or cut.clients) == 10
    assert isinstance(study.model, NetworkModel) and study.model.kind == ("cnn" if own else "mlp")
    assert len(study.model.widths) == 1 or own
    assert study.method.options.fraction == (0.07 if own else 0.05)
    result = tables.published_classifier(PAPERS, study.name, "fedsi")
    assert result["accuracy"] and ("ece" in result) == (size == "small")


@pytest.mark.parametrize("data", DATA)
def test_novel_clients_never_train_and_all_clients_are_as_many(data: str) -> None:
    study, usual = (
        Study.from_toml(file_of(f"{name}{data}-{part}")) for name, part in (("fedsi-", "new"), ("", "small"))
    )
    cut, whole = options(study), options(usual)
    assert cut.clients + cut.new_clients == whole.clients and cut.new_clients >= 2
    assert (cut.train, cut.test, cut.validation, cut.groups) == (whole.train, whole.test, whole.validation, "two")
    assert study.method.name == "fedsi" and "Figure 5" in file_of(study.name).read_text(encoding="utf-8")
    assert study.method.options.fraction == (0.07 if data == "cifar10" else 0.01)


@pytest.mark.parametrize("file", [file for file in OURS if file not in JOURNAL], ids=lambda file: file.stem)
def test_a_study_of_another_paper_says_which(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    papers = ("FedSI", "PAC-PFL Table 3", "PAC-PFL Table 6", "PAC-PFL Figure 4")
    assert text.startswith("# ") and any(paper in text for paper in papers)
    assert f'name = "{file.stem}"' in text and not (BUNDLED / file.name).exists()


@pytest.mark.law
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["ew", "s"])
@pytest.mark.parametrize(("bern", "hours"), [("", 490), ("-bern", 610)])
def test_houses_with_all_hours_are_those_with_some(
    kind: str, bern: str, hours: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Table 6: 24 existing and 24 new houses, 15 features, 610 training hours each, on the same test hours."""
    pytest.importorskip("pvlib")
    if bern:
        monkeypatch.setenv("PACBAYES_FL_DATA", str(request.getfixturevalue("data_root")))
    files = [file_of(f"pv-{kind}-{size}{bern}") for size in (610, 150)]
    few = ["data.options.clients=2", "data.options.new_clients=1"]
    every, some = (load(Study.from_toml(file, few)).groups for file in files)
    for group, houses in (("existing", 2), ("new", 1)):
        assert every[group].train.size.tolist() == [hours] * houses
        assert every[group].train.x.shape[-1] == 15 and every[group].train.names == some[group].train.names
        assert torch.equal(every[group].test.y, some[group].test.y)
        rows = {tuple(row) for row in every[group].train.x[0].tolist()}
        assert {tuple(row) for row in some[group].train.x[0].tolist()} <= rows and len(rows) == hours
    published = tables.published(table_6(), f"pv-{kind}-610{bern}", "pac-pfl", "new")
    assert published == (0.43, 0.04 if kind == "ew" else 0.07)


@pytest.mark.parametrize("kind", ["ew", "s"])
@pytest.mark.parametrize("bern", ["", "-bern"])
def test_more_hours_change_nothing_else_of_a_study(kind: str, bern: str) -> None:
    every, some = (Study.from_toml(file_of(f"pv-{kind}-{size}{bern}")) for size in (610, 150))
    same = Study.from_toml(file_of(every.name), ["name=pv", "data.options.samples=150"])
    assert same == replace(some, name="pv") and every.data.options["samples"] == (610 if bern else "none")
    assert every.name == f"pv-{kind}-610{bern}"
    for method in ("pac-pfl", "pfedgp", "vanilla-gp", "pooled-gp", "pac-pfl-bnn"):
        sets = ["name=pv", f"method.name={method}", "data.options.samples=150"]
        assert Study.from_toml(file_of(every.name), sets) == Study.from_toml(file_of(some.name), sets)


def test_writers_have_twenty_digits_or_all_of_them(data_root: Path) -> None:
    few, every = (Study.from_toml(file_of(f"femnist-{size}")) for size in ("20", "all"))
    assert few.report.calibration_bins == every.report.calibration_bins == 20  # eq. 42, section 8.6.1
    cut = options(few)
    assert (cut.clients, cut.limit, cut.digits_only, options(every).limit) == (40, 20, True, None)
    assert {**vars(cut), "limit": None} == vars(options(every))
    made = [
        image_federation.federation("femnist", {**study.data.options, "root": str(data_root)}) for study in (few, every)
    ]
    small, large = (dataset.groups["existing"] for dataset in made)
    assert small.train.size.tolist() == [20] * 40 and made[0].classes == 10
    assert 80 < float(large.train.size.mean()) < 110 and float(small.test.size.sum()) == 474
    assert small.validation is not None and small.validation.size.min() >= 5
    assert small.train.names == large.train.names and torch.equal(small.test.x, large.test.x)


def test_emnist_is_shared_out_as_the_paper_says() -> None:
    """Section 8.5.3: 10 % of 814,255 rows, 80 clients, a symmetric Dirichlet distribution with alpha = 0.4."""
    study = Study.from_toml(file_of("emnist-all"))
    cut = options(study)
    assert (cut.partition, cut.alpha, cut.clients, cut.official) == ("dirichlet", 0.4, 80, False)
    assert int(cut.subsample * 814_255) == 81_425 and study.report.calibration_bins == 20
    assert isinstance(study.model, NetworkModel) and study.model.build((1, 28, 28), 62).dim == 582_026 + 52 * 513
    assert tables.published_classifier(PAPERS, study.name, "pac-pfl-bnn")["pm"] == [87.1, 1.1]


@pytest.mark.parametrize("size", COUNTS)
@pytest.mark.parametrize("name", ["bpfed", "fedsi", "fedsi-fac", "fedavg", "fedavg-ft", "local"])
def test_the_preset_paper_does_ten_epochs_at_every_size(name: str, size: str) -> None:
    """50 minibatches of 50 for the 250 rows of a small client, 200 and 900 for those of the larger ones."""
    sets = [f"method.name={name}", "method.preset=paper", *(["method.alpha=0.01"] if "fedsi" in name else [])]
    study = Study.from_toml(file_of(f"mnist-{size}"), sets)
    method = study.recipe.build(study.method.options, BayesianMLP((2, 3, 10), Categorical(10)), ())
    rows = 5 * COUNTS[size][0]
    batch = ClientBatch.pad([(torch.zeros(rows, 2), torch.zeros(rows, dtype=torch.int64))], classes=10)
    assert turns.counts(method.local, batch).tolist() == [10 * rows // 50]  # type: ignore[attr-defined]
    assert study.table()["method"]["steps"] == "none" and study.table()["method"]["epochs"] == 10
