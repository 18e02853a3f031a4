from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch")

import numpy
import torch

from malletrain.client.feeding.codec import decode, encode
from malletrain.client.feeding.errors import MalformedSampleError, UnsuitableSampleError

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
tensors = st.builds(
    lambda shape, dtype: (torch.rand(shape) * 100).to(getattr(torch, dtype)),
    shapes,
    st.sampled_from(["float32", "float64", "bfloat16", "float16", "int64", "uint8", "bool", "complex64"]),
)
arrays = st.builds(
    lambda shape, dtype: (numpy.random.rand(*shape) * 100).astype(dtype) if shape else numpy.array(7).astype(dtype),
    shapes,
    st.sampled_from(["<f4", ">f8", "<i2", "u1", "?", "<c8"]),
)
leaves = (
    tensors
    | arrays
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.booleans()
    | st.builds(numpy.float32, st.floats(width=32))
    | st.builds(numpy.int64, st.integers(-(2**63), 2**63 - 1))
)
samples = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
).filter(lambda sample: depth_of(sample) <= 8)


def depth_of(sample: Any) -> int:
    if isinstance(sample, list | tuple):
        return 1 + max(map(depth_of, sample), default=0)
    return 1 + max(map(depth_of, sample.values()), default=0) if isinstance(sample, dict) else 0


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, numpy.ndarray | numpy.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other or (math.isnan(one) and math.isnan(other)))


@given(samples)
def test_a_sample_comes_back_as_it_was(sample: Any) -> None:
    assert same(sample, decode(encode(sample)))


def test_what_comes_back_is_independent_and_writable() -> None:
    content = encode((torch.arange(6).reshape(2, 3).t(), numpy.arange(4)[::2]))
    first, second = decode(content), decode(content)
    first[0].zero_()
    first[1][:] = 0
    assert second[0].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert second[1].tolist() == [0, 2]


class Picture(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("sample", "field"),
    [
        ("text", "sample"),
        ((torch.ones(2), {"mask": [1, None]}), r"sample\[1\]\['mask'\]\[1\]: .* got builtins.NoneType"),
        ({3: 1.0}, "sample: expected text as keys, got 3"),
        ([2**63], r"sample\[0\]: .*64 bits"),
        ((numpy.array(["a"]),), r"sample\[0\]: .* got numpy.ndarray"),
        ((numpy.array([None]),), r"sample\[0\]"),
        ((torch.eye(2).to_sparse(),), r"sample\[0\]: .*sparse"),
        ((torch.ones(1, requires_grad=True),), r"sample\[0\]: .*with gradients"),
        ((Picture(),), r"sample\[0\]: .* got .*Picture"),
    ],
)
def test_anything_else_is_refused_by_the_name_of_its_field(sample: Any, field: str) -> None:
    with pytest.raises(UnsuitableSampleError, match=field):
        encode(sample)


@given(sample=samples, at=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.integers(0, 10_000))
def test_damaged_bytes_give_a_sample_or_the_error_for_it(sample: Any, at: int, value: int, cut: int) -> None:
    damaged = bytearray(encode(sample))
    damaged[at % len(damaged)] = value
    for content in (damaged, damaged[: cut % len(damaged)], damaged + b"\0"):
        with suppress(MalformedSampleError):
            decode(bytes(content))
