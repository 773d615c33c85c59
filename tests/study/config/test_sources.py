"""Sources of data: a record is all that one needs, be it a generator, a set of images or a change of pixels."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import data_gen
from data_gen import generators, polynomial
from pacbayes_fl import settings
from pacbayes_fl.data import image_federation, image_sets, images
from pacbayes_fl.data.image_sets import ImageSet
from pacbayes_fl.data.images import Change, Images
from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.study import run
from pacbayes_fl.study.config import sources
from pacbayes_fl.study.config.listing import listing
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.uncertifiable import independent
from tests.tiny import tiny
from tests.tiny_images import table


def test_every_source_is_found_by_its_name_and_files_are_not() -> None:
    for name in (*sources.names(), *image_sets.domains()):
        source = sources.find(name)
        assert source is not None and source.name == name and source.title
    assert sources.find("rows.csv") is None and sources.find("mnist-blue") is None
    known = {name: sources.find(name) for name in ("polynomial", "pv-ew", "mnist", "femnist-rotated")}
    assert {name: one is not None and one.rows_independent for name, one in known.items()} == {
        "polynomial": True,
        "pv-ew": False,
        "mnist": True,
        "femnist-rotated": True,
    }
    assert [one is not None and (one.published, one.classes) for one in known.values()] == [(False,) * 2] * 2 + [
        (True,) * 2
    ] * 2


@pytest.mark.parametrize("name", sources.every())
def test_every_option_of_a_source_is_accepted_with_its_default(name: str) -> None:
    """As `load` reads them, but for files: of images by the plan, of generators by their dataclass."""
    source, known = sources.find(name), sources.options_of(name)
    assert source is not None and all(option.meaning for option in known.values())
    given = {key: option.default for key, option in known.items()}
    if source.classes:
        plan = image_federation.planned(name, given)
        assert settings.as_table(plan.common) == {
            key: settings.plain(given[key]) for key in settings.as_table(plan.common)
        }
        assert {"alpha", "labels_per_client", "digits_only"} < set(known)
        with pytest.raises(StudyError, match="unknown key 'alfa'"):
            image_federation.planned(name, {"alfa": 1})
    else:
        free = {key: value for key, value in given.items() if not key.startswith("kind")}
        assert free == given and generators.GENERATORS[name].config(**given, **generators.GENERATORS[name].fixed)
    assert sources.options_of("rows.csv") == {}


def test_a_folder_and_an_archive_of_images_are_sources(tmp_path: Path) -> None:
    found = {name: sources.find(name) for name in (f"{tmp_path}", "photos/", "$HOME/photos", "a/b.csv", "photos")}
    assert [name for name, one in found.items() if one is None] == ["a/b.csv", "photos"]
    assert all(one.own and one.classes and not one.rows_independent for one in found.values() if one is not None)
    options = sources.options_of(sources.FOLDER)
    assert {"size", "colour", "new", "partition", "alpha", "subsample"} < set(options) and "root" not in options
    assert all(one.meaning for one in options.values())
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 1, 4, 4)), y=np.arange(2))
    np.savez(tmp_path / "made.npz", x=np.zeros((2, 1)), client_name=np.array(["a"]))
    arrays = sources.options_of(str(tmp_path / "own.npz"))
    assert set(options) - set(arrays) == {"size", "colour"} and arrays == sources.options_of(sources.ARRAYS)
    assert sources.alike("photos/", str(tmp_path / "own.npz")) and not sources.alike("photos/", "mnist")
    assert sources.find(str(tmp_path / "own.npz")) is not None and sources.find(str(tmp_path / "made.npz")) is None
    with pytest.raises(DataError, match=r"there is no folder .*nowhere"):
        load(Study.from_table({"data": {"source": "nowhere/"}, "method": {"name": "fedavg"}}))


def test_a_bound_asks_the_source_whether_rows_are_independent() -> None:
    for source, known in (("polynomial", True), ("pv-s", False), ("rows.csv", False)):
        assert independent(Study.from_table({"data": {"source": source}})) is known
        declared = {"data": {"source": source}, "report": {"certify": {"independent": not known}}}
        assert independent(Study.from_table(declared)) is not known


def test_the_listing_has_every_source_once() -> None:
    names = [name for name, _ in listing("data")]
    assert names == [
        *(*generators.GENERATORS, *image_sets.IMAGE_SETS),
        *("NAME-inverted", "NAME-rotated", "FILE.npz", "FOLDER/", "FILE.csv", "FILE.parquet"),
    ]


@dataclass(frozen=True)
class ShiftedConfig(polynomial.PolynomialConfig):
    """Options of polynomials that are shifted.

    Attributes:
        shift: of every target.
    """

    shift: float = 1.0


def shifted(config: ShiftedConfig) -> data_gen.Dataset:
    plain = {one.name: getattr(config, one.name) for one in fields(polynomial.PolynomialConfig)}
    made = polynomial.generate(polynomial.PolynomialConfig(**plain))
    return replace(made, y=made.y + config.shift)


def test_a_record_of_a_generator_runs_as_a_study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = generators.Generator("shifted", "polynomials, shifted", ShiftedConfig, shifted, rows_independent=False)
    monkeypatch.setattr(generators, "GENERATORS", {**generators.GENERATORS, "shifted": record})
    plain, moved = (load(tiny(*sets)) for sets in ([], ["data.source=shifted", *given(), "data.options.shift=2.5"]))
    torch.testing.assert_close(moved.groups["existing"].train.y, plain.groups["existing"].train.y + 2.5)
    asked = tiny("data.source=shifted", *given(), "method.name=ridge")
    assert not independent(asked) and ("shifted", "polynomials, shifted") in listing("data")
    result = run.run(asked, tmp_path / "run")
    assert result.clients and run.open_run(tmp_path / "run").study == asked
    with pytest.raises(StudyError, match=r"\[data\] shifted: shifted has no option 'shfit'; nearest is 'shift'"):
        load(tiny("data.source=shifted", "data.options.shfit=2"))


def given() -> list[str]:
    """Spell out the options of the tiny study's data: another source drops them."""
    return [f"data.options.{name}={settings.to_value(value)}" for name, value in tiny().data.options.items()]


def blobs(folder: Path, download: bool) -> Images:
    random = np.random.default_rng(1)
    y = torch.from_numpy(np.arange(200) % 4)
    x = torch.from_numpy(random.integers(0, 60, (200, 1, 5, 5)).astype(np.uint8)) + 60 * y.view(-1, 1, 1, 1).byte()
    return images.make("blobs", x, y, torch.arange(200) >= 150, 4)


def test_a_record_of_images_runs_as_a_study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = ImageSet("blobs", "four shades of grey", blobs, rows_independent=False)
    monkeypatch.setattr(image_sets, "IMAGE_SETS", {**image_sets.IMAGE_SETS, "blobs": record})
    full = table(tmp_path)
    full["data"] |= {"source": "blobs"}
    full["data"]["options"] |= {"labels_per_client": 2}
    asked = Study.from_table(full)
    result = run.run(asked, tmp_path / "run")
    assert result.task == "classification" and len(result.clients) == 6
    opened = run.open_run(tmp_path / "run")
    assert opened.dataset.classes == 4 and opened.dataset.feature_shape == (1, 5, 5)
    assert not independent(asked) and ("blobs", "four shades of grey") in listing("data")
    with pytest.raises(StudyError, match="ridge is a method of regression"):
        Study.from_table(full, "study", ["method.name=ridge"])


def test_a_record_of_a_change_is_a_domain_of_every_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(image_sets, "IMAGE_SETS", {"blobs": ImageSet("blobs", "four shades of grey", blobs)})
    plain = load(Study.from_table(small("blobs", tmp_path)))
    record = Change("without their left column", lambda x: torch.cat((x[..., :1] * 0, x[..., 1:]), -1))
    changes = {**images.CHANGES, "bare": record}
    for module in (images, image_sets, sources):
        monkeypatch.setattr(module, "CHANGES", changes)
    changed = load(Study.from_table(small("blobs-bare", tmp_path)))
    before, after = (dataset.groups["existing"].train.x for dataset in (plain, changed))
    assert torch.equal(before[..., 1:], after[..., 1:]) and (after[..., 0] == -1).all() and (before[..., 0] > -1).any()
    assert ("NAME-bare", "the same images without their left column, a second domain") in listing("data")


def small(source: str, root: Path) -> dict[str, object]:
    rows = {"root": str(root), "clients": 2, "labels_per_client": 2, "train": 3, "test": 3, "validation": 1}
    return {"data": {"source": source, "options": rows}, "method": {"name": "fedavg"}}


def test_options_of_a_source_are_those_of_its_record() -> None:
    known = sources.find("mnist")
    assert known is not None and "partition" in {one.name for one in fields(known.options)}
