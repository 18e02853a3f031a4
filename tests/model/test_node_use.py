"""What a node is used for, as JobManager's metrics and the dashboard have it."""

from __future__ import annotations

import pytest

from malletrain.model.node_use import NodeUse, use_of


@pytest.mark.parametrize(
    ("name", "stopping", "stalled", "expected"),
    [
        ("n1", False, False, NodeUse.TRAINING),
        ("n1", False, True, NodeUse.STALLED),
        ("n2", False, False, NodeUse.BOOTING),
        ("n2", False, True, NodeUse.BOOTING),
        ("n3", False, False, NodeUse.STOPPING),  # it has trained there, and is to leave
        ("n4", False, False, NodeUse.STOPPING),
        ("n1", True, False, NodeUse.STOPPING),
    ],
)
def test_the_use_of_a_node_of_a_job(name: str, stopping: bool, stalled: bool, expected: NodeUse) -> None:
    assert use_of(name, stopping=stopping, stalled=stalled, commanded={"n1", "n2"}, confirmed={"n1", "n3"}) is expected
