"""From the pure core to the contract's messages."""

from __future__ import annotations

import math

from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.scavenger.idle_set import IdleNode
from malletrain.scavenger.quarantine import Record
from malletrain.scavenger.sources.base import NO_FACTS, NodeFacts, QueryStatus
from malletrain.v1 import resources_pb2, scavenger_pb2


def timestamp(seconds: float) -> Timestamp:
    """A time stamp from seconds since the epoch."""
    stamp = Timestamp()
    stamp.FromNanoseconds(round(seconds * 1e9))
    return stamp


def node_message(
    node: IdleNode, expected_stay: float, facts: NodeFacts = NO_FACTS, known_end: float | None = None, agent: str = ""
) -> resources_pb2.Node:
    """A node.

    Args:
        node: The node.
        expected_stay: Expected further stay in seconds.
        facts: What it is.
        known_end: When that ends at the latest, in seconds since the epoch.
        agent: Where its agent serves; empty where it is this machine.
    """
    return resources_pb2.Node(
        name=node.name,
        idle_since=timestamp(node.idle_since),
        expected_stay_seconds=expected_stay,
        pool=facts.likeness,
        gpu_type=facts.gpu_type,
        gpus=facts.gpus,
        features=facts.features,
        idle_until=None if known_end is None else timestamp(known_end),
        agent=agent,
    )


def query_message(status: QueryStatus) -> scavenger_pb2.QueryStatus:
    """How a kind of question fares."""
    return scavenger_pb2.QueryStatus(
        source=status.source,
        query=status.query,
        age_seconds=status.age_seconds if math.isfinite(status.age_seconds) else None,
        asked=status.asked,
        failed=status.failed,
        failures_in_a_row=status.failures_in_a_row,
        seconds=status.seconds,
        error=status.error,
    )


def quarantine_message(name: str, record: Record) -> scavenger_pb2.QuarantinedNode:
    """A node that is left alone."""
    return scavenger_pb2.QuarantinedNode(
        name=name, until=timestamp(record.until), failures=record.failures, reason=record.reason
    )
