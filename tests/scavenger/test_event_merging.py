"""Events that wait for a slow watcher, as one."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.hub import Subscription
from malletrain.runtime.messages import timestamp, unix_seconds
from malletrain.scavenger.wire import merge_events
from malletrain.v1 import resources_pb2, scavenger_pb2

NAMES = ("a", "b", "c")


def event(joined: str, left: str = "", revision: int = 1, trace: str = "") -> scavenger_pb2.WatchNodesResponse:
    """An event of nodes of one letter each; it happened at its revision, in seconds."""
    return scavenger_pb2.WatchNodesResponse(
        joined=[resources_pb2.Node(name=name, gpus=revision) for name in joined],
        left=list(left),
        event_time=timestamp(float(revision)),
        revision=revision,
        trace_context=resources_pb2.TraceContext(traceparent=trace) if trace else None,
    )


def test_two_events_are_one_with_the_time_of_the_first_leave() -> None:
    merged = merge_events(event("a", "b", 4, "first"), event("c", "d", 5, "second"))
    assert merged is not None
    assert ([node.name for node in merged.joined], list(merged.left)) == (["a", "c"], ["b", "d"])
    assert (merged.revision, unix_seconds(merged.event_time)) == (5, 4.0)
    assert merged.trace_context.traceparent == "first"
    late = merge_events(event("a", revision=4), event("", "d", 5, "second"))
    assert late is not None
    assert unix_seconds(late.event_time) == 5.0
    assert late.trace_context.traceparent == "second"


def test_a_node_that_only_passed_by_is_left_out() -> None:
    merged = merge_events(event("ab"), event("", "b", 2))
    assert merged is not None
    assert ([node.name for node in merged.joined], list(merged.left)) == (["a"], [])


def test_a_node_that_comes_back_is_two_events() -> None:
    assert merge_events(event("", "a"), event("a", revision=2)) is None


async def all_of(ended: Subscription[scavenger_pb2.WatchNodesResponse]) -> list[scavenger_pb2.WatchNodesResponse]:
    return [item async for item in ended]


@given(st.lists(st.sets(st.sampled_from(NAMES)), max_size=12), st.sets(st.sampled_from(NAMES)))
def test_a_slow_watcher_sees_every_leave_of_a_node_that_it_knows(sets: list[set[str]], first: set[str]) -> None:
    slow = Subscription[scavenger_pb2.WatchNodesResponse](merge=merge_events)
    before, lives = first, dict.fromkeys(first, 0)
    for revision, present in enumerate(sets, start=1):
        slow.put(event("".join(sorted(present - before)), "".join(sorted(before - present)), revision))
        lives.update(dict.fromkeys(present - before, revision))
        before = present
    idle = dict.fromkeys(first, 0)
    slow.end()
    for merged in asyncio.run(all_of(slow)):
        assert not {node.name for node in merged.joined} & set(merged.left)
        for name in merged.left:
            del idle[name]  # it was known
        for node in merged.joined:
            assert node.name not in idle, "its end was told before"
            idle[node.name] = node.gpus
    assert idle == {name: lives[name] for name in before}
