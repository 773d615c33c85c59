from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from data_gen.manifest import content_hash, to_json, variant_tag, versions, write_atomic
from data_gen.polynomial import PolynomialConfig


def test_hash_is_what_the_docstring_says() -> None:
    text = b"a|<i8|2\n" + np.array([1, 2], dtype="<i8").tobytes() + b"b|<U1|\n" + np.array("W").tobytes()
    assert content_hash({"b": np.array("W"), "a": np.array([1, 2])}) == hashlib.sha256(text).hexdigest()


def test_hash_ignores_memory_layout_and_byte_order() -> None:
    table = np.arange(6.0).reshape(2, 3)
    assert content_hash({"x": table}) == content_hash({"x": np.asfortranarray(table)})
    assert content_hash({"x": table}) == content_hash({"x": table.astype(">f8")})


@pytest.mark.parametrize("other", [np.arange(6.0), np.arange(6).reshape(2, 3), np.arange(6.0).reshape(2, 3) + 1e-12])
def test_hash_sees_shape_dtype_and_values(other: np.ndarray[Any, Any]) -> None:
    assert content_hash({"x": np.arange(6.0).reshape(2, 3)}) != content_hash({"x": other})


def test_objects_have_no_hash() -> None:
    with pytest.raises(TypeError, match="Python objects"):
        content_hash({"x": np.array([None])})


def test_versions_names_what_is_missing() -> None:
    result = versions("numpy", "no-such-distribution")
    assert result["numpy"] == np.__version__
    assert result["no-such-distribution"] == "not installed"
    assert "python" in result


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(stream: BinaryIO) -> None:
        stream.write(b"half")
        raise KeyError("stop")

    with pytest.raises(KeyError):
        write_atomic(path, fail)
    assert path.read_text() == "old"
    write_atomic(path, lambda stream: stream.write(b"new"))
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_json_is_sorted_and_strict() -> None:
    assert to_json({"b": 1, "a": "°"}).decode() == '{\n  "a": "°",\n  "b": 1\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        to_json({"a": float("nan")})


def test_tag_tells_configurations_apart() -> None:
    shown = ("samples",)
    assert variant_tag(PolynomialConfig(samples=3), shown) == ""
    tags = {variant_tag(PolynomialConfig(noise_std=value), shown) for value in (0.1, 0.2)}
    assert len(tags) == 2
    assert all(len(tag) == 9 for tag in tags)
