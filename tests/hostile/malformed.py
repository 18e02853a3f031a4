"""Requests that nobody would send in good faith, made from the descriptors of the protos."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

SERVICES = ("Scavenger", "Allocator", "JobManager", "Monitor", "Profiler", "Access")
LONG = 70_000
_DEPTH = 3
_MANY = 200
_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
_TEXTS = st.sampled_from(
    ["", " ", "\0", "../../etc/passwd", "a" * LONG, "🚂" * 5000, "job-1", "j" + "9" * 5000, "%s%n", "\r\n- x", "-1"]
)
_DOUBLES = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 5e-324, 1.7e308])


def methods() -> list[MethodDescriptor]:
    """Every method that the five services serve."""
    pool = descriptor_pool.Default()
    services = (pool.FindServiceByName(f"malletrain.v1.{name}Service") for name in SERVICES)
    return [method for service in services for method in service.methods]


def broken_bytes(method: MethodDescriptor) -> st.SearchStrategy[bytes]:
    """Bytes that are no message of any type."""
    del method
    return st.one_of(
        st.sampled_from(
            [
                b"\x0a\x05abc",  # a field that is shorter than it says
                b"\x0a\xff\xff\xff\xff\x0f",  # a length of 4 GiB
                b"\xff" * 12,  # a tag that never ends
                b"\x0f",  # a wire type that there is not
                b"\x0b" * 200,  # groups within groups, all open
                b"\x00",  # field number 0
            ]
        ),
        st.binary(min_size=1, max_size=64).map(lambda tail: b"\x0a" + bytes([len(tail) + 1]) + tail),
    )


def not_utf8(method: MethodDescriptor) -> bytes | None:
    """A request whose first text is not UTF-8; None where it has no text."""
    for field in method.input_type.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            tag = field.number << 3 | 2
            return bytes([tag, 2, 0xC3, 0x28])
    return None


def extreme(descriptor: Descriptor, depth: int = 0) -> st.SearchStrategy[Message]:
    """Messages of a type with missing, huge, negative, infinite, unknown and repeated values."""

    @st.composite
    def build(draw: st.DrawFn) -> Message:
        message = message_factory.GetMessageClass(descriptor)()
        for field in descriptor.fields:
            if draw(st.booleans()):
                _fill(message, field, draw, depth)
        return message

    return build()


def _fill(message: Any, field: FieldDescriptor, draw: st.DrawFn, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        target = getattr(message, field.name)
        if field.message_type.fields_by_name["value"].message_type is None:
            for _ in range(draw(st.sampled_from([1, 3]))):
                key = _value(field.message_type.fields_by_name["key"], draw)
                target[key] = _value(field.message_type.fields_by_name["value"], draw)
    elif field.message_type is not None:
        if depth < _DEPTH:
            nested = draw(extreme(field.message_type, depth + 1))
            if field.is_repeated:
                getattr(message, field.name).extend([nested] * draw(st.sampled_from([1, 2, _MANY])))
            else:
                getattr(message, field.name).CopyFrom(nested)
    elif field.is_repeated:
        getattr(message, field.name).extend([_value(field, draw)] * draw(st.sampled_from([1, 2, _MANY])))
    else:
        setattr(message, field.name, _value(field, draw))


def _value(field: FieldDescriptor, draw: st.DrawFn) -> Any:
    if field.type in _INTEGERS:
        low, high = _INTEGERS[field.type]
        return draw(st.sampled_from([low, high, 0, 1, max(low, -1)]))
    if field.type == FieldDescriptor.TYPE_ENUM:
        return draw(st.sampled_from([0, 1, 999, -1]))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return draw(st.booleans())
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return draw(_DOUBLES)
    text = draw(_TEXTS)
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
