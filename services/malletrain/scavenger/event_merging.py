"""One event of several, for a watcher that reads slowly. Pure."""

from __future__ import annotations

from malletrain.v1 import scavenger_pb2


def followed_by(
    earlier: scavenger_pb2.WatchNodesResponse, later: scavenger_pb2.WatchNodesResponse
) -> scavenger_pb2.WatchNodesResponse | None:
    """The change from before an event to after the next one.

    A node that joined and has left again is in neither part. The time is that of the first leave, so that nobody takes
    a release for quicker than it was.

    Returns:
        Both as one event; None where a node left and has joined again: watchers must see both, since what ran on the
        node must end.
    """
    left_again, joined_again = frozenset(later.left), {node.name for node in later.joined}
    if not joined_again.isdisjoint(earlier.left):
        return None
    joined_before = {node.name for node in earlier.joined}
    merged = scavenger_pb2.WatchNodesResponse(
        joined=[node for node in earlier.joined if node.name not in left_again],
        left=[*earlier.left, *(name for name in later.left if name not in joined_before)],
        event_time=earlier.event_time if earlier.left else later.event_time,
        revision=later.revision,
        source_ended=later.source_ended,
    )
    merged.joined.extend(later.joined)
    first = earlier if earlier.HasField("trace_context") else later
    if first.HasField("trace_context"):
        merged.trace_context.CopyFrom(first.trace_context)
    return merged
