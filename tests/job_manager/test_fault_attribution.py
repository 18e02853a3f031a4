"""A node is blamed only where it stands out."""

from __future__ import annotations

import pytest

from malletrain.job_manager.fault_attribution import at_fault


@pytest.mark.parametrize(
    ("failures", "nodes", "expected"),
    [
        ({}, 4, None),
        ({"a": 1}, 4, None),
        ({"a": 2}, 4, "a"),
        ({"a": 5}, 2, "a"),
        ({"a": 5}, 1, None),
        ({"a": 2, "b": 1}, 4, None),
        ({"a": 3, "b": 3, "c": 3}, 3, None),
    ],
)
def test_the_node_that_stands_out_is_at_fault(failures: dict[str, int], nodes: int, expected: str | None) -> None:
    assert at_fault(failures, nodes) == expected
