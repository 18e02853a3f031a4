"""The reader of what users write: everything but bounded, strict JSON is one clear error."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.common.untrusted_json import (
    JsonBounds,
    UntrustedJsonError,
    flag_of,
    integer_of,
    parse_object,
    text_of,
    texts_of,
)

BOUNDS = JsonBounds(max_bytes=100_000, max_depth=4, max_entries=50)
HOSTILE = {
    "nothing": b"",
    "no object": b"[1, 2]",
    "a number": b"1",
    "nested without end": b'{"a":' + b"[" * 50_000,
    "nested and complete": b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "objects without end": b'{"a":' * 10_000,
    "too long": b'{"a": "' + b"x" * 100_000 + b'"}',
    "too many entries": b'{"a": [' + b",".join([b"1"] * 60) + b"]}",
    "too many fields": json.dumps({str(index): index for index in range(60)}).encode(),
    "an endless number": b'{"a": ' + b"9" * 90_000 + b"}",
    "quotes without end": b'{"a": "' + b'\\"' * 40_000,
    "not UTF-8": b'{"a": "\xc3\x28"}',
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "a field twice": b'{"a": 1, "a": 2}',
    "more behind it": b'{"a": 1} {"a": 2}',
    "no JSON": b"\x80\x04\x95pickle",
    "a zero byte": b'{"a": "\x00"}',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_hostile_is_one_error(text: bytes) -> None:
    with pytest.raises(UntrustedJsonError) as caught:
        parse_object(text, BOUNDS)
    assert len(str(caught.value)) <= 500


@given(st.binary(max_size=300))
def test_any_bytes_are_an_object_or_that_error(text: bytes) -> None:
    with contextlib.suppress(UntrustedJsonError):
        assert isinstance(parse_object(text, BOUNDS), dict)


@given(st.dictionaries(st.text(), st.one_of(st.integers(-(2**63), 2**63), st.text(), st.lists(st.text(), max_size=5))))
def test_what_python_writes_is_read(fields: dict[str, object]) -> None:
    assert parse_object(json.dumps(fields).encode()) == fields


def test_brackets_and_commas_within_texts_count_for_nothing() -> None:
    text = json.dumps({"a": '[[[[[[[[,,,,\\"[[[' + "," * 100})
    assert parse_object(text.encode(), BOUNDS)["a"].startswith("[[[")


def test_fields_have_the_type_that_is_expected() -> None:
    fields = {"text": "abcdef", "texts": ["ab", "cd"], "number": 3, "true": True, "list": [1], "nothing": None}
    assert text_of(fields, "text", 3) == "abc"
    assert text_of(fields, "nothing", 3, "else") == "else"
    assert texts_of(fields, "texts", 1, 1) == ("a",)
    assert texts_of(fields, "missing", 1, 1) == ()
    assert integer_of(fields, "number", 1, 3) == 3
    assert flag_of(fields, "true")
    assert not flag_of(fields, "missing")
    for name in ("number", "missing", "list"):
        with pytest.raises(UntrustedJsonError, match=name):
            text_of(fields, name, 10)
    for name in ("number", "list", "text"):
        with pytest.raises(UntrustedJsonError, match=name):
            texts_of(fields, name, 10, 10)
        with pytest.raises(UntrustedJsonError, match=name):
            flag_of(fields, name)
    for name in ("true", "text", "missing"):
        with pytest.raises(UntrustedJsonError, match=name):
            integer_of(fields, name, 0, 10)
    with pytest.raises(UntrustedJsonError, match="from 4 to 9"):
        integer_of(fields, "number", 4, 9)
