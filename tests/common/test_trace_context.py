from __future__ import annotations

import pytest

from malletrain.common.trace_context import TraceContext, parse_traceparent

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_context_is_read_as_w3c_writes_it() -> None:
    found = parse_traceparent(GOOD)
    assert found == TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", sampled=True)
    assert found.traceparent == GOOD


def test_flags_other_than_sampled_are_not_passed_on() -> None:
    found = parse_traceparent(GOOD[:-2] + "fe")
    assert found is not None
    assert not found.sampled
    assert found.traceparent == GOOD[:-2] + "00"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        GOOD.upper(),
        f" {GOOD}",
        f"{GOOD}\n",
        f"{GOOD}-more",
        GOOD.replace("00-", "ff-", 1),
        GOOD.replace("b7ad6b7169203331", "0" * 16),
        GOOD.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        GOOD.replace("0af", "٠af"),
        GOOD[:-1],
        GOOD * 100_000,
        b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        None,
    ],
)
def test_anything_else_is_ignored(text: object) -> None:
    assert parse_traceparent(text) is None
