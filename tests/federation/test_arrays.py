"""Tensors in bytes: what goes in comes out, NumPy reads it, and nothing is taken for what it is not."""

from __future__ import annotations

import hashlib
import io
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import DeployError, ShapeError
from pacbayes_fl.federation import arrays
from pacbayes_fl.federation.arrays import Array
from tests.laws.cases import bits

TREE: dict[str, Any] = {
    "w": {"loc": torch.arange(6.0, dtype=torch.float64).view(2, 3), "rho": torch.tensor([[-0.0, 1e-40, 3.0]])},
    "steps": torch.tensor([3, -1]),
    "scalar": torch.tensor(2.5),
    "none": torch.zeros(0, 4),
}


def npy(array: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def test_bytes_are_files_that_numpy_reads_and_come_back_bit_by_bit() -> None:
    packed = arrays.pack(TREE)
    assert {name: (a.dtype, a.shape, a.stype) for name, a in packed.items()} == {
        "w.loc": ("float64", (2, 3), "numpy.ndarray"),
        "w.rho": ("float32", (1, 3), "numpy.ndarray"),
        "steps": ("int64", (2,), "numpy.ndarray"),
        "scalar": ("float32", (), "numpy.ndarray"),
        "none": ("float32", (0, 4), "numpy.ndarray"),
    }
    for name, leaf in tensors.leaves(TREE).items():
        read = np.load(io.BytesIO(packed[name].data), allow_pickle=False)
        assert read.tobytes() == leaf.numpy().tobytes() and read.shape == tuple(leaf.shape)
    assert bits(arrays.unpack(TREE, packed)) == bits(TREE)
    assert arrays.size(packed) == sum(len(name) + len(a.data) for name, a in packed.items())


def test_what_numpy_and_tensors_that_are_views_write_is_read() -> None:
    wide = torch.arange(6.0).view(3, 2).T.requires_grad_()
    assert bits(arrays.unpack({"a": wide}, arrays.pack({"a": wide}))) == bits({"a": wide.detach()})
    array = np.arange(6, dtype="float32").reshape(2, 3)
    sent = Array("float32", (2, 3), "numpy.ndarray", npy(array))
    assert arrays.unpack({"a": torch.zeros(2, 3)}, {"a": sent})["a"].numpy().tolist() == array.tolist()
    sent = sent._replace(shape=[2, 3])  # type: ignore[arg-type]  # as some versions of Flower keep it
    assert arrays.unpack({"a": torch.zeros(2, 3)}, {"a": sent})["a"].numpy().tolist() == array.tolist()


def test_what_is_read_is_a_copy() -> None:
    own = torch.zeros(3)
    read = arrays.unpack({"a": own}, {"a": own})["a"]
    read += 1
    assert own.tolist() == [0, 0, 0]
    arrays.unpack({"a": own}, arrays.pack({"a": own}))["a"].add_(1)  # and not of memory that cannot be written


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.bool, torch.int32, torch.complex64], ids=str)
def test_other_dtypes_do_not_travel(dtype: torch.dtype) -> None:
    with pytest.raises(ShapeError, match=f"leaf 'x.y' is {dtype}; what may travel is float32, float64, int64"):
        arrays.pack({"x": {"y": torch.zeros(2, dtype=dtype)}})


def test_hashes_tell_names_shapes_dtypes_and_bits_apart() -> None:
    zero = torch.zeros(2, 2)
    others: list[Any] = [
        {"a": zero},
        {"b": zero},
        {"a": zero.view(4)},
        {"a": zero.double()},
        {"a": -zero},
        {"a": zero, "b": torch.zeros(0)},
        {"a": zero[:1], "b": zero[:1]},
        {"a": zero.view(4)[:3], "b": zero[0, :1]},
    ]
    assert len({arrays.digest(tree) for tree in others}) == len(others)
    assert arrays.digest({"a": TREE["steps"], "b": zero}) == arrays.digest({"b": zero.T, "a": TREE["steps"].clone()})
    assert arrays.digest({"a": zero}) == hashlib.sha256(b"1 a torch.float32 [2, 2]\n" + bytes(16)).hexdigest()


LIKE = {"a": torch.zeros(2, 3)}
GOOD = Array("float32", (2, 3), "numpy.ndarray", npy(np.ones((2, 3), "float32")))
DOUBLE = npy(np.ones((2, 3)))


def changed(**fields: Any) -> Any:
    return GOOD._replace(**fields)


class Loose:
    """No array."""


def odd(kind: str) -> Tensor:
    """Return a tensor that is not a dense one; torch warns that some kinds are young or old."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "quantised":
            return torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8)
        return torch.ones(2, 3).to_sparse_csr()


BAD: dict[str, tuple[Any, str]] = {
    "another dtype": (Array("float64", (2, 3), "numpy.ndarray", DOUBLE), r"got \[2, 3\] 'float64'"),
    "a dtype that is not its bytes'": (GOOD._replace(data=DOUBLE), r"its bytes say \[2, 3\] <f8"),
    "a dtype that is none": (GOOD._replace(dtype="object"), "got .* 'object'"),
    "a dtype that is no text": (changed(dtype=None), "got .* None"),
    "big-endian, as declared": (GOOD._replace(dtype=">f4"), "got .* '>f4'"),
    "big-endian in its bytes": (GOOD._replace(data=npy(np.ones((2, 3), ">f4"))), "its bytes say .* >f4"),
    "another shape": (GOOD._replace(shape=(3, 2)), r"got \[3, 2\]"),
    "a shape that is not its bytes'": (GOOD._replace(data=npy(np.ones((3, 2), "float32"))), r"its bytes say \[3, 2\]"),
    "a shape that is huge": (GOOD._replace(shape=(2**62, 3)), "must be"),
    "a shape that is no sequence": (changed(shape=3), "got Array"),
    "in columns": (GOOD._replace(data=npy(np.asfortranarray(np.ones((2, 3), "float32")))), "in columns"),
    "a pickle": (GOOD._replace(data=npy(np.array([[1, "x", None]] * 2, object))), r"its bytes say .* \|O"),
    "format 2.0": (GOOD._replace(data=npy(np.ones((2, 3), "float32"), (2, 0))), "no file of NumPy's format 1.0"),
    "another form": (GOOD._replace(stype="pickle"), "as numpy.ndarray, got 'pickle'"),
    "bytes cut short": (GOOD._replace(data=GOOD.data[:-1]), "24 bytes of numbers, got 23"),
    "bytes too many": (GOOD._replace(data=GOOD.data + b"\0"), "24 bytes of numbers, got 25"),
    "no bytes": (GOOD._replace(data=b""), "no file of NumPy's format 1.0"),
    "noise": (GOOD._replace(data=b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 200), "no file of NumPy's format 1.0"),
    "sparse": (torch.ones(2, 3).to_sparse(), "dense on the CPU, got sparse_coo on cpu"),
    "compressed": (odd("compressed"), "dense on the CPU, got sparse_csr on cpu"),
    "without numbers": (torch.ones(2, 3, device="meta"), "dense on the CPU, got strided on meta"),
    "quantised": (odd("quantised"), "dense on the CPU, got quantised"),
    "a tensor of another dtype": (torch.ones(2, 3).double(), r"got .* torch.float64"),
    "a tensor that would broadcast": (torch.ones(1, 3), r"got \[1, 3\]"),
    "a NumPy array": (np.ones((2, 3), "float32"), "got ndarray"),
    "a list": ([[1.0] * 3] * 2, "got list"),
    "nothing": (None, "got NoneType"),
    "some object": (Loose(), "got Loose"),
}


@pytest.mark.parametrize(("value", "text"), BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_is_refused_by_name(value: Any, text: str) -> None:
    with pytest.raises(ShapeError, match=text) as caught:
        arrays.unpack(LIKE, {"a": value})
    assert "leaf 'a' must be [2, 3] torch.float32" in str(caught.value)


@pytest.mark.parametrize("sent", [{}, {"a": GOOD, "b": GOOD}, {"\x1b[2Jb" * 100: GOOD}], ids=len)
def test_names_are_those_that_are_known(sent: Any) -> None:
    with pytest.raises(ShapeError, match="leaves missing") as caught:
        arrays.unpack(LIKE, sent)
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [np.ones(3), "text", None, 3])
def test_sizes_are_those_of_bytes_and_tensors_alone(value: Any) -> None:
    with pytest.raises(ShapeError, match="leaf 'a' is no array in bytes and no tensor"):
        arrays.size({"a": value})
    assert arrays.size({"ab": torch.empty(2**40, device="meta")}) == 2**42 + 2


@given(position=st.integers(0, len(GOOD.data) - 1), byte=st.integers(0, 255), cut=st.integers(0, 200))
def test_bytes_that_were_changed_give_numbers_of_the_same_form_or_a_named_error(
    position: int, byte: int, cut: int
) -> None:
    data = bytearray(GOOD.data)
    data[position] = byte
    for came in (bytes(data), bytes(data[: len(data) - cut])):
        try:
            read: Tensor = arrays.unpack(LIKE, {"a": GOOD._replace(data=came)})["a"]
        except ShapeError as error:
            assert "leaf 'a' must be [2, 3] torch.float32" in str(error)
        else:
            assert read.shape == (2, 3) and read.dtype == torch.float32


@pytest.mark.parametrize(("compress", "digits"), [("float16", 11), ("bfloat16", 8)])
def test_numbers_are_rounded_to_16_bits_on_their_way(compress: arrays.Compress, digits: int) -> None:
    generator = torch.Generator().manual_seed(0)
    tree = {"x": torch.randn(5, 3, generator=generator, dtype=torch.float64), "n": torch.tensor([2**40])}
    packed = arrays.pack(tree, compress)
    assert len(packed["x"].data) == 128 + 2 * 15 and packed["x"].dtype == compress and packed["n"].dtype == "int64"
    got = arrays.unpack(tree, packed, compress)
    mantissa, exponent = torch.frexp(tree["x"])
    expected = torch.ldexp((mantissa * 2**digits).round() / 2**digits, exponent)  # to the nearest, ties to even
    assert torch.equal(got["x"], expected) and got["x"].dtype == torch.float64 and torch.equal(got["n"], tree["n"])
    again = arrays.rounded(tree, compress)
    assert all(torch.equal(again[name], got[name]) for name in tree) and arrays.rounded(tree, "none") is tree
    others: list[arrays.Compress] = ["none", "float16" if compress == "bfloat16" else "bfloat16"]
    for wrong in others:
        with pytest.raises(ShapeError, match="leaf 'x' must be"):
            arrays.unpack(tree, packed, wrong)
    with pytest.raises(ShapeError, match="leaf 'x' must be"):
        arrays.unpack(tree, arrays.pack(tree), compress)


def test_what_16_bits_do_not_hold_is_named() -> None:
    with pytest.raises(DeployError, match=r"leaf 'x' has a number beyond 65504, the largest of float16"):
        arrays.pack({"x": torch.tensor([1.0, 7e4])}, "float16")
    assert float(arrays.rounded({"x": torch.tensor([7e4])}, "bfloat16")["x"]) == 70144
