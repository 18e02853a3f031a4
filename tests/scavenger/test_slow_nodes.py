"""Nodes that are called slow: which of them count, what the operator and the Allocator are told."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from malletrain.scavenger.machine.slow_nodes import CalledSlow, NodeSlowness, judge
from malletrain.scavenger.slow_node_watch import SlowNodeWatch

CALLED = CalledSlow("n2", 0.4, 1, "j7")


def test_a_node_counts_as_slow_by_the_word_of_two_owners() -> None:
    (node,) = judge([CALLED])
    assert (node.name, node.counts) == ("n2", False)
    assert node.reason == "its workers take 40% longer than the others of their jobs, by jobs of 1 owner (j7)"
    several = judge([CALLED, CalledSlow("n1", 0.3, 2, "j8")])
    assert [(node.name, node.counts) for node in several] == [("n1", True), ("n2", False)]


def said(watch: SlowNodeWatch, *nodes: NodeSlowness) -> list[str]:
    """What is logged when nodes are called slow."""
    with capture_logs() as logs:
        watch.take_slow_nodes(nodes)
    return [f"{entry['log_level']}: {entry['event']}: {entry['node']}" for entry in logs]


def test_each_change_is_told_once() -> None:
    watch = SlowNodeWatch(None)
    called, counts = NodeSlowness("n2", False, "a"), NodeSlowness("n2", True, "b")
    assert said(watch, called) == ["warning: a node is called slow: n2"]
    assert (said(watch, called), watch.counting) == ([], [])
    assert said(watch, counts) == ["warning: a node counts as slow: n2"]
    assert watch.counting == ["n2"]
    assert said(watch) == ["info: a node is no longer called slow: n2"]
    assert watch.counting == []


@pytest.mark.parametrize("counts", [True, False])
def test_only_nodes_that_count_are_told_to_the_allocator(counts: bool) -> None:
    watch = SlowNodeWatch(None)
    watch.take_slow_nodes((NodeSlowness("n2", counts, "a"),))
    assert watch.counting == (["n2"] if counts else [])
