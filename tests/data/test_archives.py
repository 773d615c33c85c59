"""Archives of arrays: numpy's own, another machine's, and some that lie about their size."""

from __future__ import annotations

import io
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacbayes_fl.data import archives
from pacbayes_fl.data.archives import read_npz
from pacbayes_fl.errors import DataError

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "x": np.arange(12.0).reshape(3, 4),
    "turned": np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
    "none": np.zeros((0, 3)),
    "number": np.array(7),
    "words": np.array(["é", "long word"]),
    "flags": np.array([True, False]),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "a.npz"
    np.savez_compressed(path, **ARRAYS)
    return path.read_bytes()


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """Write an array of which the header says whatever it likes."""
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


def zipped(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name.replace("_npy", ".npy"), data)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes_comes_back(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "a.npz", **ARRAYS)
    result = read_npz(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as theirs:
        assert list(result) == list(theirs)
        for name, array in result.items():
            np.testing.assert_array_equal(array, theirs[name], strict=True)
            assert array.flags.writeable


@pytest.mark.parametrize("dtype", [">f8", ">i4", ">f4", ">u2", ">U3", ">c16"])
def test_arrays_of_a_machine_of_another_byte_order_are_read(tmp_path: Path, dtype: str) -> None:
    array = np.arange(5).astype(dtype)
    np.savez(tmp_path / "a.npz", x=array)
    result = read_npz(tmp_path / "a.npz")["x"]
    assert result.dtype.isnative and result.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }"),
            r"said to be \[10*\] float64, and",
        ),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", bytes(8)), r"said to be \[-1\]"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes(8)), "holds 8 bytes"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", bytes(8)), "Python objects"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1" + "0" * 5000 + ",), }"), "cannot be read"),
        (npy("[" * 900 + "]" * 900), "cannot be read"),
        (
            npy("{'descr': __import__('os').system('touch /tmp/ran'), 'fortran_order': False, 'shape': ()}"),
            "cannot be read",
        ),
        (
            npy("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", bytes(8), b"\x07\x00"),
            "a format of its own",
        ),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", bytes(8), b"\x03\x00"), "a format of its own"),
        (b"", "cannot be read"),
        (b"\x93NUMPY", "cannot be read"),
    ],
)
def test_headers_that_lie_are_named(tmp_path: Path, entry: bytes, message: str) -> None:
    tracemalloc.start()
    with pytest.raises(DataError, match=message) as caught:
        read_npz(zipped(tmp_path / "a.npz", x_npy=entry))
    assert str(tmp_path / "a.npz") in str(caught.value) and len(str(caught.value)) < 2100
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


def test_an_archive_in_an_archive_is_not_looked_into(tmp_path: Path) -> None:
    inner = io.BytesIO()
    np.savez(inner, x=np.ones(3))
    with pytest.raises(DataError, match=r"a\.npz cannot be read: its entry 'b\.npz' is no array \(an archive in an"):
        read_npz(zipped(tmp_path / "a.npz", **{"b.npz": inner.getvalue()}))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """200 MB of zeros in 200 kB: by what the archive says of itself, without a byte of them."""
    path, zeros = tmp_path / "bomb.npz", bytes(1 << 20)
    header = npy(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({25 << 20 >> 0},), }}")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        file.write(header)
        for _ in range(200):
            file.write(zeros)
    assert path.stat().st_size < 250_000
    tracemalloc.start()
    with pytest.raises(DataError, match=r"bomb\.npz, 2.. kB and unpacked takes 210 MB, and the limit is 67\.1 MB"):
        read_npz(path)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def test_what_has_no_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random(1000))
    monkeypatch.setattr(archives.memory, "available", lambda: 10_000)
    with pytest.raises(DataError, match=r"a\.npz, unpacked, takes 8\.13 kB, and the limit is 5 kB, half of the 10 kB"):
        read_npz(tmp_path / "a.npz")


@given(st.data())
@settings(max_examples=150)
def test_damage_is_an_error_of_ours_or_harmless(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)) | st.just(len(whole)))
    path.write_bytes((whole[:at] + bytes([byte]) + whole[at + 1 :])[:cut])
    start = time.monotonic()
    try:
        result = read_npz(path)
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert all(np.array_equal(result[name], array) for name, array in ARRAYS.items() if name in result)
    assert time.monotonic() - start < 5
