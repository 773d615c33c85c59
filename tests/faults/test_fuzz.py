"""Two thousand inputs that nobody means, each answered in a named way: see `tests.faults.fuzz` for what must hold.

Every input is the same in every run: options are walked through by name, everything else is drawn by hypothesis from
fixed seeds. Studies that are accepted stop where their training would begin, where it could last.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
import shutil
import string
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from pacbayes_fl.bounds import BOUNDS
from pacbayes_fl.data import tables
from pacbayes_fl.errors import PacBayesFLError
from pacbayes_fl.federation import checkpoint, messages, remote_client, wire
from pacbayes_fl.methods import METHODS
from pacbayes_fl.results import manifest
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import run
from tests.faults import fuzz
from tests.faults import test_wire_faults as network
from tests.faults.fuzz import Box, sets
from tests.tiny import write_csv
from tests.tiny_images import table as image_table
from tests.tiny_images import write_root

COUNTS: Final = {
    "options": sum(sum(fuzz.keys(name).values()) for name in METHODS),
    "common options": 4 * len(fuzz.common_keys()),
    "syntax": 100,
    "tables": 170,
    "archives": 80,
    "images": 90,
    "run folders": 150,
    "checkpoints": 60,
    "commands": 100,
    "wire": 200,
}
"""Distinct inputs, at least, by what they attack."""


def test_there_are_two_thousand_inputs_and_more() -> None:
    assert sum(COUNTS.values()) >= 2000


def drawn(count: int, number: int, box: Box | None = None) -> Callable[[Callable[[st.DataObject], None]], Any]:
    """Draw inputs by hypothesis until a box has enough: always the same, without shrinking, which takes minutes."""
    if box is not None:
        box.enough = count

    def wrap(attack: Callable[[st.DataObject], None]) -> Any:
        every = settings(
            max_examples=3 * count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )

        tried = seed(number)(every(given(st.data())(attack)))

        def until_full() -> None:
            with contextlib.suppress(fuzz.Enough):
                tried()

        return until_full

    return wrap


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """Return a box with the smallest study."""
    made = Box(tmp_path)
    fuzz.write_small(made.here)
    yield made


def cleared(box: Box) -> Box:
    """Take away what the command before has left."""
    shutil.rmtree(box.here / "out", ignore_errors=True)
    return box


# studies --------------------------------------------------------------------------------------------------------


@pytest.mark.law
@pytest.mark.parametrize("method", METHODS)
def test_every_option_of_every_method(method: str, box: Box) -> None:
    for key, count in fuzz.keys(method).items():
        for value in fuzz.values(f"{method} {key}", count):
            given_, stop = fuzz.run("s.toml", method, *sets(f"{key}={value}")), not fuzz.harmless(value)
            cleared(box).attack(f"{method} {key}={value}", *given_, out="out", stop=stop)
    assert len(box.inputs) == sum(fuzz.keys(method).values())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_every_option_of_every_study(part: int, box: Box) -> None:
    names = list(METHODS)
    for i, key in enumerate(fuzz.common_keys()):
        method = names[(i + part) % len(names)]
        for value in fuzz.values(key, 4)[2 * part : 2 * part + 2]:
            given_, stop = fuzz.run("s.toml", method, *sets(f"{key}={value}")), not fuzz.harmless(value)
            cleared(box).attack(f"{method} {key}={value}", *given_, out="out", stop=stop)
    assert len(box.inputs) == 2 * len(fuzz.common_keys())


PIECES = st.sampled_from(
    [
        *("[", "]", "[[", "{", "}", '"', "'", "=", ".", ",", "#", "\n", "\x00", "\x1b[2J", "é", "\u202e", "\ufeff"),
        *("9" * 5000, "[" * 3000, "{a=" * 2000, "a." * 2000, "[method]\n", "[[data]]\n", "inf", "nan", "-", "1e400"),
        *("0x", "1979-05-27"),
    ]
) | st.text(st.characters(codec="utf-8"), max_size=6)


def test_study_files_that_are_hardly_toml(box: Box) -> None:
    text = (box.here / "s.toml").read_text()

    @drawn(COUNTS["syntax"], 1, box)
    def attack(data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 8)))
        broken = (text[:start] + data.draw(PIECES) + text[end:]).encode()
        if data.draw(st.integers(0, 9)) == 0:
            broken = broken[:start] + data.draw(st.binary(min_size=1, max_size=4)) + broken[start:]
        (box.here / "s.toml").write_bytes(broken)
        cleared(box).attack(repr(broken), *fuzz.run("s.toml", "ridge"), out="out", stop=True)

    attack()
    assert len(box.inputs) >= COUNTS["syntax"]


# tables and archives --------------------------------------------------------------------------------------------

CELLS = st.sampled_from(
    [
        *("", " ", "nan", "inf", "-inf", "1e308", "1e-308", "1e400", "-0", "1_000", "١٢", "0x1", "1,5", "True", "None"),
        *("c0 ", "\x00", "\x1b[31m", '"', '""', "=1+1", "\r", "\n", "é", "e\u0301", "\u202e", "test", "new", "1" * 400),
        *("x" * 10**5, "2024-01-01", "999999999", "1000001", "-1", "0.5", "{}", "client", "../x", "/abs"),
    ]
) | st.text(st.characters(codec="utf-8"), max_size=4)
HEADS = ["client", "x", "wind", "y", "split", "group"]
ROWS = [
    [f"c{i % 3}", i * 0.37, (i * 7) % 5, (i // 3 + i) % 3, "train" if i < 18 else "test", "existing"] for i in range(24)
]


def asking(data: st.DataObject, path: str) -> list[str]:
    """Draw what reads a table: a run on it, as numbers or labels, or a finished run."""
    kind = data.draw(st.sampled_from(["ridge", "labels", "join", "predict", "later"]))
    if kind in ("ridge", "labels"):
        method, task = ("ridge", "auto") if kind == "ridge" else ("fedavg", "classification")
        return [*fuzz.run("s.toml", method), *sets(f"data.source={path}", f"data.task={task}")]
    if kind == "join":
        return ["join", "run", "--data", path, "--quiet"]
    if kind == "predict":
        return ["predict", "run", "--client", "c0", "--data", path, "--quiet"]
    return ["predict", "run", "--client", "c0", "--data", "ask.csv", "--later", path, "--quiet"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run on the table that is attacked, with certificates; only to be copied."""
    folder = tmp_path_factory.mktemp("trained")
    table = [dict(zip(HEADS, row, strict=True)) for row in ROWS]
    write_csv(folder / "rows.csv", table)
    write_csv(folder / "ask.csv", [{"client": "c0", "x": 0.5, "wind": 1.0}])
    data = {"source": str(folder / "rows.csv")}
    certify = {"certify": {"scheme": "split", "independent": True}}
    study = Study.from_table(
        fuzz.SMALL | {"data": data, "report": certify}, "s.toml", ["federation.rounds=2", *LASTING]
    )
    run(study, folder / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert fuzz.cli.main(["certify", "run", "--json", "--draws", "20"]) == 0
    return folder


LASTING: Final = ["federation.rounds=2", "federation.checkpoint_every=1"]


@pytest.fixture
def full(box: Box, trained: Path) -> Box:
    """Return a box that also holds the finished run and rows to ask about."""
    shutil.copytree(trained / "run", box.here / "run")
    shutil.copy(trained / "ask.csv", box.here)
    return box


@pytest.mark.slow
def test_tables_with_cells_that_are_no_numbers(full: Box) -> None:
    @drawn(100, 2, full)
    def attack(data: st.DataObject) -> None:
        table = [HEADS, *copy.deepcopy(ROWS)]
        for _ in range(data.draw(st.integers(1, 2))):
            line = data.draw(st.integers(0, len(table) - 1))
            change = data.draw(st.sampled_from(["cell", "cell", "cell", "cell", "short", "long", "twice", "less"]))
            if change == "cell":
                column = data.draw(st.integers(0, len(table[line]) - 1)) if table[line] else 0
                table[line][column : column + 1] = [data.draw(CELLS)]
            elif change == "less":
                del table[data.draw(st.integers(0, line)) : line + 1]
                table = table or [[]]
            else:
                table[line] = {"short": table[line][:-1], "long": [*table[line], 1], "twice": table[line] * 2}[change]
        text = io.StringIO()
        csv.writer(text, delimiter=data.draw(st.sampled_from(",,,,,,;\t"))).writerows(table)
        content = text.getvalue().encode(data.draw(st.sampled_from(["utf-8"] * 8 + ["utf-16", "latin-1"])), "replace")
        if data.draw(st.integers(0, 15)) == 0:
            content = data.draw(st.binary(max_size=40)) + content[: data.draw(st.integers(0, len(content)))]
        (full.here / "t.csv").write_bytes(content)
        arguments = asking(data, "t.csv")
        cleared(full).attack(f"{arguments[0]} {content!r}", *arguments, out="out", stop=True)

    attack()
    assert len(full.inputs) >= 100


def columns() -> dict[str, Any]:
    """Return columns of every type that Parquet knows and a table does not mean."""
    import pyarrow as pa

    n, one = len(ROWS), list(range(len(ROWS)))
    return {
        "bool": pa.array([i % 2 == 0 for i in one]),
        "dates": pa.array(one, pa.int32()).cast(pa.date32()),
        "times": pa.array(one, pa.timestamp("ns", "UTC")),
        "spans": pa.array(one, pa.duration("s")),
        "lists": pa.array([[i] for i in one]),
        "structs": pa.array([{"a": i} for i in one]),
        "bytes": pa.array([b"\xff\x00"] * n),
        "nulls": pa.nulls(n),
        "holes": pa.array([None, *one[1:]]),
        "words": pa.array(["a", "b", "c"] * (n // 3)),
        "kinds": pa.array(["a", "b", "c"] * (n // 3)).dictionary_encode(),
        "half": pa.array(np.arange(n, dtype=np.float16)),
        "unsigned": pa.array([2**64 - 1] * n, pa.uint64()),
        "decimals": pa.array(one).cast(pa.decimal128(38, 2)),
        "nan": pa.array([float("nan")] * n),
        "blank": pa.array([" "] * n),
    }


@pytest.mark.slow
def test_tables_in_parquet(full: Box) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    odd = columns()
    plain = {name: pa.array([row[i] for row in ROWS]) for i, name in enumerate(HEADS)}

    @drawn(70, 3, full)
    def attack(data: st.DataObject) -> None:
        changed = dict(plain)
        for _ in range(data.draw(st.integers(0, 2))):
            changed[data.draw(st.sampled_from([*HEADS, "more"]))] = odd[data.draw(st.sampled_from(sorted(odd)))]
        if data.draw(st.integers(0, 5)) == 0:
            del changed[data.draw(st.sampled_from(sorted(changed)))]
        stream = io.BytesIO()
        parquet.write_table(pa.table(changed), stream)
        content = damaged(data, stream.getvalue()) if data.draw(st.booleans()) else stream.getvalue()
        (full.here / "t.parquet").write_bytes(content)
        arguments = asking(data, "t.parquet")
        cleared(full).attack(f"{arguments[0]} {content!r}", *arguments, out="out", stop=True)

    attack()
    assert len(full.inputs) >= 70


def damaged(data: st.DataObject, content: bytes) -> bytes:
    """Draw a damage of some bytes: flipped, cut, doubled, filled with zeros, or gone."""
    kind = data.draw(st.sampled_from(["flip", "flip", "flip", "cut", "twice", "zeros", "empty", "insert"]))
    at = data.draw(st.integers(0, max(0, len(content) - 1)))
    size = data.draw(st.integers(1, 40))
    if kind == "flip" and content:
        return content[:at] + bytes([content[at] ^ (1 << data.draw(st.integers(0, 7)))]) + content[at + 1 :]
    changed = {
        "cut": content[:at],
        "twice": content + content,
        "zeros": content[:at] + bytes(size) + content[at + size :],
    }
    return {**changed, "empty": b"", "insert": content[:at] + data.draw(st.binary(max_size=8)) + content[at:]}.get(
        kind, b""
    )


def odd_arrays(data: st.DataObject, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Draw a change of some arrays: another type, shape or value, one too few or one too many."""
    changed: dict[str, Any] = dict(arrays)
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from(sorted(changed)))
        array = changed[name]
        kinds = ["f2", "f4", ">f8", "i1", ">i4", "u2", "u8", "?", "c16", "U3", "S4", "M8[s]", "V3", "g"]
        what = data.draw(st.sampled_from(["type", "type", "shape", "value", "value", "gone", "more", "object", "many"]))
        if what == "type":
            try:
                with np.errstate(all="ignore"):
                    changed[name] = array.astype(data.draw(st.sampled_from(kinds)))
            except (ValueError, TypeError):
                changed[name] = np.zeros(array.shape, data.draw(st.sampled_from(["u8", "?", "S4"])))
        elif what == "shape":
            cuts = [
                array[..., None],
                array[:1] if array.ndim else array[None],
                array.reshape(-1)[:0],
                array.reshape(-1),
            ]
            changed[name] = cuts[data.draw(st.integers(0, 3))]
        elif what == "value" and array.size and array.dtype.kind in "iufb":
            changed[name] = array.astype("f8" if data.draw(st.booleans()) else array.dtype).copy()
            values = [0, 1, -1, 99, 0.5, 2**31, 2**62, 1e300, float("nan"), float("inf")]
            with np.errstate(all="ignore"):
                value = np.array(data.draw(st.sampled_from(values))).astype(changed[name].dtype)
            changed[name].reshape(-1)[data.draw(st.integers(0, array.size - 1))] = value
        elif what == "object":
            changed[name] = np.array([print, None], dtype=object)
        elif what == "more":
            changed[data.draw(st.sampled_from(["more", "classes", "feature_shape", "validation"]))] = np.array(
                data.draw(st.sampled_from([0, 2, 10**9, -1, [10**6, 10**6], [1, 1], ["a"]]))
            )
        elif what == "many":
            changed[name] = np.concatenate([array, array]) if array.ndim else array
        else:
            del changed[name]
    return changed


@pytest.mark.slow
def test_archives_of_arrays(full: Box) -> None:
    plain = tables.to_arrays(load(Study.from_table(fuzz.SMALL)))

    @drawn(COUNTS["archives"], 4, full)
    def attack(data: st.DataObject) -> None:
        stream = io.BytesIO()
        np.savez(stream, **odd_arrays(data, plain))
        content = stream.getvalue() if data.draw(st.integers(0, 2)) else damaged(data, stream.getvalue())
        (full.here / "t.npz").write_bytes(content)
        arguments = asking(data, "t.npz")
        cleared(full).attack(f"{arguments[0]} {content!r}", *arguments, out="out", stop=True)

    attack()
    assert len(full.inputs) >= COUNTS["archives"]


# images ---------------------------------------------------------------------------------------------------------


def image_box(box: Box, **data: Any) -> list[str]:
    """Write a study on images into a box, and return the command that runs it."""
    root = box.here / "images"
    table = image_table(root)
    data = {"source": "mnist", "options": {**table["data"]["options"], "root": str(root)}} | data
    fuzz.write_small(box.here, data=data, model={"widths": [2]}, method={"name": "fedavg"}, report={})
    return ["run", "s.toml", "--quiet", "--out", "out", *sets("method.steps=1")]


def test_images_of_mnist(box: Box) -> None:
    root = write_root(box.here / "images") / "MNIST" / "raw"
    command, files = image_box(box), {path: path.read_bytes() for path in sorted(root.iterdir())}

    @drawn(55, 5, box)
    def attack(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(files)))
        content = damaged(data, files[path])
        if data.draw(st.booleans()):  # the header's sizes
            at = 4 * data.draw(st.integers(0, 3))
            number = data.draw(st.sampled_from([-1, 0, 1, 2**31 - 1, 59, 28, 10**6]))
            content = files[path][:at] + struct.pack(">i", number) + files[path][at + 4 :]
        path.write_bytes(content)
        cleared(box).attack(f"{path.name} {content!r}", *command, out="out", stop=True)
        path.write_bytes(files[path])

    attack()
    assert len(box.inputs) >= 55


def test_images_of_femnist(box: Box) -> None:
    command = image_box(box, source="femnist")
    (box.here / "images").mkdir()
    generator, n = np.random.default_rng(0), 120
    plain = {
        "x": generator.integers(0, 255, (n, 6, 6)).astype(np.uint8),
        "y": np.arange(n) % 10,
        "writer": np.arange(n) % 6,
        "is_test": np.arange(n) % 5 == 0,
        "dup": np.arange(n) == 7,
        "writer_name": np.array([f"w{i}" for i in range(6)]),
    }

    @drawn(50, 6, box)
    def attack(data: st.DataObject) -> None:
        stream = io.BytesIO()
        np.savez(stream, **odd_arrays(data, plain))
        content = stream.getvalue() if data.draw(st.integers(0, 3)) else damaged(data, stream.getvalue())
        (box.here / "images" / "femnist.npz").write_bytes(content)
        natural = data.draw(st.sampled_from(["labels", "dirichlet", "natural"]))
        more = sets(f"data.options.partition={natural}", "data.options.clients=2", "data.options.new_clients=1")
        cleared(box).attack(repr(content), *command, *more, out="out", stop=True)

    attack()
    assert len(box.inputs) >= 50


def odd_json(data: st.DataObject, value: Any) -> Any:
    """Draw a change somewhere in a tree of JSON: another value, or none."""
    strange = [
        None,
        True,
        -1,
        0,
        1.5,
        10**30,
        float("nan"),
        float("inf"),
        "",
        "word",
        "\x1b[2J\x00",
        [],
        {},
        [[]],
        {"a": 1},
    ]
    if isinstance(value, dict | list) and value and data.draw(st.integers(0, 3)):
        place = data.draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(min(3, len(value)))))
        changed = copy.copy(value)
        if data.draw(st.integers(0, 5)) == 0:
            del changed[place]
        else:
            changed[place] = odd_json(data, value[place])
        return changed
    return data.draw(st.sampled_from(strange))


def odd_text(data: st.DataObject, text: str) -> bytes:
    """Draw a text that JSON readers stumble over, made of one that they know."""
    kind = data.draw(st.sampled_from(["tree", "tree", "tree", "deep", "digits", "1e999", "bytes", "damage"]))
    if kind == "tree":
        return json.dumps(odd_json(data, json.loads(text))).encode()
    special = {"deep": b"[" * 10**5, "digits": b'{"round": ' + b"9" * 5000 + b"}", "1e999": b'{"round": 1e999}'}
    special["bytes"] = data.draw(st.binary(max_size=20))
    return special[kind] if kind in special else damaged(data, text.encode())


def test_images_of_leaf(box: Box) -> None:
    command = [*image_box(box, source="femnist"), *sets("data.options.partition=natural", "data.options.minimum=2")]
    command += sets("data.options.clients=2", "data.options.new_clients=0", "data.options.test_share=0.5")
    image = [0.0, 0.5] * 392
    text = json.dumps({"user_data": {f"w{i}": {"x": [image] * 3, "y": [0, 1, 2]} for i in range(2)}})
    for part in ("train", "test"):
        (box.here / "images" / part).mkdir(parents=True)
        (box.here / "images" / part / "a.json").write_text(text)

    @drawn(35, 7, box)
    def attack(data: st.DataObject) -> None:
        content = odd_text(data, text)
        if data.draw(st.integers(0, 4)) == 0:
            content = text.replace(
                "[0, 1, 2]", data.draw(st.sampled_from(["[0, 1, 1e999]", "[0, 1, 62]", "[0, true, 2]"]))
            ).encode()
        (box.here / "images" / "train" / "a.json").write_bytes(content)
        cleared(box).attack(repr(content), *command, out="out", stop=True)

    attack()
    assert len(box.inputs) >= 35


# run folders ----------------------------------------------------------------------------------------------------

READERS = (
    ["show", "run", "--quiet"],
    ["show", "run", "--json", "--quiet"],
    ["predict", "run", "--client", "c0", "--data", "ask.csv", "--quiet"],
    ["join", "run", "--data", "new.csv", "--quiet"],
    ["certify", "run", "--draws", "20", "--json", "--quiet"],
    ["run", "s.toml", "--out", "run", "--resume", "--quiet"],
)


@pytest.fixture
def folder(full: Box, trained: Path) -> Box:
    """Return a box with a finished run, and all that commands on it need."""
    (full.here / "new.csv").write_text("client,x,wind,y\nnew,0.5,1,2\nnew,0.25,1,\n")
    shutil.copy(trained / "run" / "study.toml", full.here / "s.toml")
    return full


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_files_of_a_run_folder_that_are_not_what_was_written(part: int, folder: Box, trained: Path) -> None:
    files = sorted(path.relative_to(trained / "run") for path in (trained / "run").rglob("*") if path.is_file())

    @drawn(COUNTS["run folders"] // 3, 80 + part, folder)
    def attack(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(files))
        content = (trained / "run" / path).read_bytes()
        if path.suffix == ".json" and data.draw(st.integers(0, 3)):
            content = odd_text(data, content.decode())
        elif path.suffix == ".jsonl" and data.draw(st.integers(0, 3)):
            lines = content.splitlines()
            content = b"\n".join([odd_text(data, lines[0].decode()), *lines[1:]]) + b"\n"
        else:
            content = damaged(data, content)
        gone, forging = data.draw(st.integers(0, 7)) == 0, data.draw(st.booleans())
        arguments = data.draw(st.sampled_from(READERS))
        if folder.full:
            raise fuzz.Enough
        shutil.rmtree(folder.here / "run")
        shutil.copytree(trained / "run", folder.here / "run")
        place = folder.here / "run" / path
        place.unlink() if gone else place.write_bytes(content)
        if forging:
            forged(folder.here / "run")
        folder.attack(f"{arguments[0]} {path} {content!r}", *arguments)

    attack()
    assert len(folder.inputs) >= COUNTS["run folders"] // 3


def forged(run_folder: Path) -> None:
    """Make a folder say that its files are what was written: new checksums of all."""
    with mock.patch("os.fsync"), contextlib.suppress(PacBayesFLError):
        manifest.adopt(run_folder)


@pytest.mark.slow
def test_checkpoints_that_are_intact_with_values_out_of_range(folder: Box, trained: Path) -> None:
    saved = checkpoint.load(trained / "run")
    assert saved is not None

    @drawn(COUNTS["checkpoints"], 9, folder)
    def attack(data: st.DataObject) -> None:
        meta, flat = dict(saved.meta), dict(saved.tensors)
        if data.draw(st.booleans()):
            key = data.draw(st.sampled_from(sorted(meta)))
            if data.draw(st.integers(0, 4)):
                meta[key] = odd_json(data, meta[key])
            else:
                del meta[key]
        else:
            name = data.draw(st.sampled_from(sorted(flat)))
            kinds = [torch.float32, torch.int64, torch.bool, torch.complex64, torch.float16]
            one = flat[name]
            changes = [*(one.to(kind) for kind in kinds), one.reshape(-1)[:0], one[None], one * torch.nan]
            change = data.draw(st.integers(0, len(changes)))
            flat |= {name: changes[change]} if change < len(changes) else {"server.more": flat[name]}
            if data.draw(st.integers(0, 3)) == 0:
                del flat[name]
        arguments = data.draw(st.sampled_from(READERS[2:]))
        if folder.full:
            raise fuzz.Enough
        shutil.rmtree(folder.here / "run")
        shutil.copytree(trained / "run", folder.here / "run")
        with mock.patch("os.fsync"), contextlib.suppress(PacBayesFLError):
            checkpoint.save(folder.here / "run", saved.round, flat, meta)
        forged(folder.here / "run")
        told = {name: (tensor.dtype, tuple(tensor.shape), str(tensor.flatten()[:2])) for name, tensor in flat.items()}
        folder.attack(f"{arguments[0]} {json.dumps(meta, default=str)} {told}", *arguments)

    attack()
    assert len(folder.inputs) >= COUNTS["checkpoints"]


# the command line and the wire ----------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [
        *(
            "",
            " ",
            "-1",
            "0",
            "1e999",
            "nan",
            "9" * 30,
            "9" * 5000,
            "\x00",
            "\x1b[2J",
            "é",
            "../..",
            "/",
            ".",
            "a=b",
            "=",
        ),
        *(
            "[",
            "none",
            "run",
            "s.toml",
            "seeger",
            "existing",
            "c0,c1",
            "0-1",
            "clipped-nll=0",
            "rows",
            "data.",
            ".data",
        ),
        *("method.rate", "\udcff"),
    ]
) | st.text(string.printable, max_size=5)


def test_arguments_that_nobody_gives(folder: Box) -> None:
    numbers = st.sampled_from(["-1", "0", "1", "0.5", "1e-300", "1e300", "nan", "inf", "-inf", "7", "1e15"])
    forms: tuple[tuple[str, ...], ...] = (
        ("show", "?"),
        ("join", "run", "--data", "?"),
        ("predict", "run", "--client", "?", "--data", "ask.csv"),
        ("certify", "run", "--bound", "?", "--draws", "3", "--json"),
        ("certify", "run", "--loss", "?", "--draws", "3", "--json"),
        ("certify", "run", "--delta", "#", "--draws", "3", "--json"),
        ("certify", "run", "--smooth", "#", "--draws", "3", "--json"),
        ("run", "?", "--out", "out"),
        ("run", "s.toml", "--out", "out", "--set", "?"),
        ("compare", "s.toml", "--methods", "?"),
        ("compare", "s.toml", "--vary", "?"),
        ("tune", "s.toml", "--budget", "?"),
        ("tune", "s.toml", "--folds", "?", "--budget", "0"),
        ("?", "?"),
        *[("bound", "!", "--n", "#", "--delta", "#", "--risk", "#", "--kl", "#", "--beta", "#")] * 6,
        *[("bound", "!", "--n", "#", "--delta", "#", "--log-z", "#", "--epsilon", "#", "--low", "#", "--high", "#")]
        * 2,
    )

    @drawn(COUNTS["commands"], 10, folder)
    def attack(data: st.DataObject) -> None:
        draws = {"?": WORDS, "#": numbers, "!": st.sampled_from(sorted(BOUNDS))}
        form = data.draw(st.sampled_from(forms))
        given_ = [data.draw(draws[part]) if part in draws else part for part in form]
        cleared(folder).attack(repr(given_), *given_, "--quiet", out="out", stop=True)

    attack()
    assert len(folder.inputs) >= COUNTS["commands"]


ODD: Final[Sequence[Any]] = (
    *(None, True, 0, -1, 10**400, 1.5, float("nan"), "", "x" * 10**6, "\x00", b"\xff", [], {}, object(), "[" * 10**5),
    *(
        torch.zeros(3),
        torch.zeros(1, dtype=torch.complex64),
        torch.empty(2**40, device="meta"),
        np.zeros(2, dtype=object),
    ),
)


def odd_message(data: st.DataObject, config: Mapping[str, Any], sent: Mapping[str, Any]) -> tuple[Any, Any]:
    """Draw a change of what came over a network: of its plain values, of its arrays, or of their bytes."""
    config, sent = dict(config), dict(sent)
    kind = data.draw(st.sampled_from(["config", "config", "array", "array", "field", "field", "field", "key", "whole"]))
    name = data.draw(st.sampled_from(sorted(sent)))
    if kind == "config":
        config[data.draw(st.sampled_from(sorted(config)))] = data.draw(st.sampled_from(ODD))
    elif kind == "array":
        sent[name] = data.draw(st.sampled_from(ODD))
    elif kind == "field":
        field = data.draw(st.sampled_from(["dtype", "shape", "stype", "data", "data", "data"]))
        value = damaged(data, sent[name].data) if field == "data" else data.draw(st.sampled_from(ODD))
        sent[name] = sent[name]._replace(**{field: value})
    elif kind == "key":
        sent[data.draw(st.sampled_from([0, None, "", "x" * 99, ("a",), b"w"]))] = sent.pop(name)
    else:
        return data.draw(st.sampled_from([(config, None), (None, sent), ([], []), ({}, {}), (config, {})]))
    return config, sent


@pytest.mark.slow
def test_replies_over_a_network() -> None:
    honest, seen = network.HONEST[network.LIAR], set[str]()

    @drawn(COUNTS["wire"] // 2, 11)
    def attack(data: st.DataObject) -> None:
        config, sent = odd_message(data, honest.config, honest.arrays)
        seen.add(repr((config, sent)))
        result = wire.collect(network.NINE, {**network.HONEST, network.LIAR: messages.Reply(config, sent)}.items())
        assert all(leaf.isfinite().all() for leaf in network.tensors.leaves(result.update).values())

    attack()
    assert len(seen) >= COUNTS["wire"] // 2


def test_requests_over_a_network() -> None:
    request, seen = network.NINE.request(network.LIAR), set[str]()
    batch = network.BATCH.select(torch.tensor([1])).trim()

    @drawn(COUNTS["wire"] // 2, 12)
    def attack(data: st.DataObject) -> None:
        config, sent = odd_message(data, request.config, request.arrays)
        seen.add(repr((config, sent)))
        try:
            remote_client.handle_train(network.METHOD, messages.Request(config, sent), None, batch, "run")
        except PacBayesFLError as error:
            assert str(error).isprintable() and len(str(error)) < 3000

    attack()
    assert len(seen) >= COUNTS["wire"] // 2
