"""From the pure core to the contract's messages."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.scavenger.idle_set import IdleNode
from malletrain.v1 import resources_pb2


def timestamp(seconds: float) -> Timestamp:
    """A time stamp from seconds since the epoch."""
    stamp = Timestamp()
    stamp.FromNanoseconds(round(seconds * 1e9))
    return stamp


def node_message(node: IdleNode, expected_stay: float) -> resources_pb2.Node:
    """A node with its expected further stay in seconds."""
    return resources_pb2.Node(
        name=node.name, idle_since=timestamp(node.idle_since), expected_stay_seconds=expected_stay
    )
