"""Samples as bytes: a header that describes the sample's structure, then its numbers as they lie in memory. Pure.

The header is the same for all samples of one structure, so that it is parsed once. Nothing is pickled.
"""

from __future__ import annotations

import functools
import json
import math
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from malletrain.client.feeding.errors import MalformedSampleError, UnsuitableSampleError

_LENGTH = struct.Struct("<I")
_INT, _FLOAT = struct.Struct("<q"), struct.Struct("<d")
_ALIGNMENT = 16
_MAX_HEADER_LENGTH = 64 << 10
_MAX_LEAVES = 1024
_DEEPEST = 8
_MAX_DIMENSIONS = 16
_MAX_LEAF = 1 << 40
_ARRAY_KINDS = "biufc"
_TENSOR_TYPES = frozenset(
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
)
_EXPECTED = "expected a tensor or NumPy array of numbers, an int or float, or a tuple, list or dict of these"

Node = list[Any]
Buffer = bytes | memoryview


def encode(sample: Any) -> bytes:
    """A sample as bytes.

    Args:
        sample: A tensor (dense, on the CPU), a NumPy array or number, an int (64 bits), float or bool, or a tuple, list
            or dict (with text as keys) of these.

    Raises:
        UnsuitableSampleError: it contains something else. The message names the field.
    """
    leaves: list[Buffer] = []
    header = json.dumps(_describe(sample, "sample", leaves, 0), separators=(",", ":")).encode()
    if len(header) > _MAX_HEADER_LENGTH or len(leaves) > _MAX_LEAVES:
        raise UnsuitableSampleError(f"sample: expected at most {_MAX_LEAVES} fields, got {len(leaves)}")
    parts: list[Buffer] = [_LENGTH.pack(len(header)), header, bytes(_padding(_LENGTH.size + len(header)))]
    for leaf in leaves:
        parts += (leaf, bytes(_padding(len(leaf))))
    return b"".join(parts)


def decode(content: Buffer) -> Any:
    """The sample of which `encode` made these bytes. Its tensors and arrays have memory of their own.

    Raises:
        MalformedSampleError: the bytes are not those of a sample.
    """
    view = memoryview(content)
    if len(view) < _LENGTH.size:
        raise MalformedSampleError(f"sample: expected at least {_LENGTH.size} bytes, got {len(view)}")
    (length,) = _LENGTH.unpack_from(view)
    if not 0 < length <= min(_MAX_HEADER_LENGTH, len(view) - _LENGTH.size):
        raise MalformedSampleError(f"sample: expected a header of at most {_MAX_HEADER_LENGTH} bytes, got {length}")
    build, size = _plan(bytes(view[_LENGTH.size : _LENGTH.size + length]))
    body = view[_LENGTH.size + length + _padding(_LENGTH.size + length) :]
    if len(body) != size:
        raise MalformedSampleError(f"sample: expected {size} bytes of data, got {len(body)}")
    return build(body)


def _describe(value: Any, field: str, leaves: list[Buffer], depth: int) -> Node:
    if depth > _DEEPEST:
        raise UnsuitableSampleError(f"{field}: expected at most {_DEEPEST} levels")
    kind = type(value)
    if kind is tuple or kind is list:
        return [kind.__name__, [_describe(each, f"{field}[{at}]", leaves, depth + 1) for at, each in enumerate(value)]]
    if kind is dict:
        if wrong := [key for key in value if type(key) is not str]:
            raise UnsuitableSampleError(f"{field}: expected text as keys, got {wrong[0]!r}")
        named = [[key, _describe(each, f"{field}[{key!r}]", leaves, depth + 1)] for key, each in value.items()]
        return ["dict", named]
    return _describe_leaf(value, field, leaves)


def _describe_leaf(value: Any, field: str, leaves: list[Buffer]) -> Node:
    kind = type(value)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if kind is int:
        if not -(1 << 63) <= value < 1 << 63:
            raise UnsuitableSampleError(f"{field}: expected an int of at most 64 bits, got {value}")
        leaves.append(_INT.pack(value))
        return ["int"]
    if kind is bool:
        leaves.append(_INT.pack(value))
        return ["bool"]
    if kind is float:
        leaves.append(_FLOAT.pack(value))
        return ["float"]
    if torch and kind is torch.Tensor:
        return _describe_tensor(value, field, leaves)
    if numpy and (kind is numpy.ndarray or isinstance(value, numpy.generic)) and value.dtype.kind in _ARRAY_KINDS:
        leaves.append(memoryview(value.tobytes()))
        shape = list(value.shape)
        return ["array" if kind is numpy.ndarray else "number", value.dtype.str, shape]
    raise UnsuitableSampleError(f"{field}: {_EXPECTED}, got {kind.__module__}.{kind.__qualname__}")


def _describe_tensor(value: Any, field: str, leaves: list[Buffer]) -> Node:
    torch = sys.modules["torch"]
    name = str(value.dtype).removeprefix("torch.")
    dense = value.layout is torch.strided and value.device.type == "cpu" and not value.requires_grad
    if name not in _TENSOR_TYPES or not dense:
        description = f"{name}, {value.layout}, on {value.device}" + (", with gradients" if value.requires_grad else "")
        raise UnsuitableSampleError(f"{field}: expected a dense tensor of numbers on the CPU, got one of {description}")
    flat = value.contiguous().resolve_conj().resolve_neg().reshape(-1)
    leaves.append(memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b"")
    return ["tensor", name, list(value.shape)]


class _Builder:
    """Makes the plan of one structure: where each field's bytes lie."""

    def __init__(self) -> None:
        self.size = 0
        self._leaves = 0

    def node(self, node: Any, depth: int = 0) -> Callable[[memoryview], Any]:
        if depth > _DEEPEST + 1 or not isinstance(node, list) or not node:
            raise MalformedSampleError("sample: expected the description of a field")
        match node:
            case ["tuple", list(items)]:
                parts = [self.node(item, depth + 1) for item in items]
                return lambda body: tuple(part(body) for part in parts)
            case ["list", list(items)]:
                parts = [self.node(item, depth + 1) for item in items]
                return lambda body: [part(body) for part in parts]
            case ["dict", list(items)]:
                named = [self._named(item, depth) for item in items]
                return lambda body: {name: part(body) for name, part in named}
            case ["int"]:
                return _reading(_INT, self._place(_INT.size), int)
            case ["bool"]:
                return _reading(_INT, self._place(_INT.size), bool)
            case ["float"]:
                return _reading(_FLOAT, self._place(_FLOAT.size), float)
            case [("tensor" | "array" | "number") as kind, str(name), list(shape)]:
                return self._array(kind, name, shape)
        raise MalformedSampleError(f"sample: expected the description of a field, got {str(node)[:100]}")

    def _named(self, item: Any, depth: int) -> tuple[str, Callable[[memoryview], Any]]:
        match item:
            case [str(name), list(node)]:
                return name, self.node(node, depth + 1)
        raise MalformedSampleError(f"sample: expected a name and a field, got {str(item)[:100]}")

    def _place(self, size: int) -> int:
        self._leaves += 1
        if self._leaves > _MAX_LEAVES or size > _MAX_LEAF:
            raise MalformedSampleError(f"sample: expected at most {_MAX_LEAVES} fields of at most {_MAX_LEAF} bytes")
        start = self.size
        self.size += size + _padding(size)
        return start

    def _array(self, kind: str, name: str, shape: list[Any]) -> Callable[[memoryview], Any]:
        valid = len(shape) <= _MAX_DIMENSIONS and all(type(side) is int and 0 <= side < 1 << 48 for side in shape)
        dtype, size = (_tensor_type if kind == "tensor" else _array_type)(name) if valid else (None, 0)
        if dtype is None or (kind == "number" and shape):
            raise MalformedSampleError(f"sample: expected a type and a shape of a {kind}, got {name!r} and {shape}")
        length = size * math.prod(shape)
        start = self._place(length)
        if kind == "tensor":
            return lambda body: _tensor(body[start : start + length], dtype, shape)
        numpy = __import__("numpy")

        def array(body: memoryview) -> Any:
            numbers = numpy.frombuffer(bytearray(body[start : start + length]), dtype).reshape(shape)
            return numbers[()] if kind == "number" else numbers

        return array


def _reading(layout: struct.Struct, start: int, kind: Callable[[Any], Any]) -> Callable[[memoryview], Any]:
    return lambda body: kind(layout.unpack_from(body, start)[0])


def _tensor(content: memoryview, dtype: Any, shape: list[int]) -> Any:
    torch = __import__("torch")
    if not len(content):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


def _tensor_type(name: str) -> tuple[Any, int]:
    dtype = getattr(__import__("torch"), name, None) if name in _TENSOR_TYPES else None
    return dtype, 0 if dtype is None else dtype.itemsize


def _array_type(name: str) -> tuple[Any, int]:
    numpy = __import__("numpy")
    try:
        dtype = numpy.dtype(name)
    except (TypeError, ValueError):
        return None, 0
    plain = dtype.kind in _ARRAY_KINDS and dtype.names is None and dtype.subdtype is None
    return (dtype, dtype.itemsize) if plain else (None, 0)


class _Plan(NamedTuple):
    build: Callable[[memoryview], Any]
    size: int


@functools.lru_cache(maxsize=256)
def _plan(header: bytes) -> _Plan:
    builder = _Builder()
    try:
        build = builder.node(json.loads(header))
    except (ValueError, RecursionError) as error:
        raise MalformedSampleError(f"sample: expected a header in JSON, got {header[:100]!r}") from error
    return _Plan(build, builder.size)


def _padding(length: int) -> int:
    return -length % _ALIGNMENT
