"""From values to the messages of the contract."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from malletrain.runtime.messages import timestamp
from malletrain.scavenger.drains import DrainSet
from malletrain.scavenger.idle_set import IdleNode
from malletrain.scavenger.quarantine import NodeFailureRecord
from malletrain.scavenger.sources.base import NO_FACTS, Observation, PlaceholderStatus, QueryStatus
from malletrain.scavenger.stay_changes import StayChanges, StayingNode, StayNews
from malletrain.scavenger.stays import StayEstimator
from malletrain.v1 import resources_pb2, scavenger_pb2


class NodeDescriber:
    """Describes nodes by the newest observation, and by how long nodes have stayed idle so far."""

    def __init__(self, stays: StayEstimator) -> None:
        """Begin without an observation.

        Args:
            stays: Learns how long nodes stay idle.
        """
        self._stays = stays
        self._newest = Observation(0.0, {})

    @property
    def stale(self) -> bool:
        """Whether the newest observation is stale."""
        return self._newest.stale

    def observe(self, observation: Observation) -> None:
        """Take over an observation."""
        if not observation.stale:  # else nodes are missing whose fragments have not ended
            watched = observation.idle if observation.watched is None else observation.watched
            self._stays.observe(observation.time, watched)
        self._newest = observation

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds."""
        self._stays.move_times(seconds)

    def news(self, changes: StayChanges, known: str, since: Mapping[str, float], now: float) -> StayNews:
        """What a reader does not know yet of stays at `now`, in seconds since the epoch; see `StayChanges.news`."""
        return changes.news(known, since, self._newest, self._stays.learned(now))

    def messages(self, nodes: Sequence[IdleNode], now: float) -> list[resources_pb2.Node]:
        """Nodes with everything that is known of them at `now`, in seconds since the epoch."""
        return [self._message(node, now) for node in nodes]

    def _message(self, node: IdleNode, now: float) -> resources_pb2.Node:
        newest = self._newest
        end = newest.ends.get(node.name)
        facts = newest.facts.get(node.name, NO_FACTS)
        return resources_pb2.Node(
            name=node.name,
            idle_since=timestamp(node.idle_since),
            expected_stay_seconds=self._stays.expected_stay(now, node.idle_since, end),
            pool=facts.pool_key,
            gpu_type=facts.gpu_type,
            gpus=facts.gpus,
            features=facts.features,
            idle_until=None if end is None else timestamp(end),
            agent=newest.agents.get(node.name, ""),
        )


def stays_message(news: StayNews, now: float) -> scavenger_pb2.GetStaysResponse:
    """What expected stays are computed from, without the nodes.

    Args:
        news: What to tell.
        now: Seconds since the epoch.
    """
    curve = news.curve
    return scavenger_pb2.GetStaysResponse(
        token=news.token,
        unix_seconds=now,
        horizon_seconds=news.horizon_seconds,
        same_curve=news.same_curve,
        curve=None
        if curve is None
        else scavenger_pb2.SurvivalSteps(seconds=curve.times, survival=curve.survival, tail_rate=curve.tail_rate),
        complete=news.complete,
    )


def staying_node_message(node: StayingNode) -> scavenger_pb2.StayingNode:
    """What the Allocator needs to know of an idle node."""
    return scavenger_pb2.StayingNode(
        name=node.name,
        idle_since_unix_seconds=node.since,
        idle_until_unix_seconds=node.until,
        pool=node.facts.pool_key,
        gpus=node.facts.gpus,
    )


def query_message(status: QueryStatus) -> scavenger_pb2.QueryStatus:
    """How one kind of query fares."""
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


def placeholder_message(status: PlaceholderStatus) -> scavenger_pb2.PlaceholderStatus:
    """How the placeholders of a source fare."""
    return scavenger_pb2.PlaceholderStatus(
        source=status.source,
        pending=status.pending,
        running=status.running,
        ending=status.ending,
        failures_in_a_row=status.failures_in_a_row,
        paused=status.paused,
        retry_time=None if status.retry_at is None else timestamp(status.retry_at),
        node=status.node,
        error=status.error,
    )


def quarantine_message(name: str, record: NodeFailureRecord) -> scavenger_pb2.QuarantinedNode:
    """A quarantined node."""
    return scavenger_pb2.QuarantinedNode(
        name=name, until=timestamp(record.until), failures=record.failures, reason=record.reason
    )


def drain_messages(drains: DrainSet) -> list[scavenger_pb2.DrainedNode]:
    """What is drained: first the entry without a name, if all nodes are."""
    entries = [] if drains.everything is None else [("", drains.everything)]
    return [
        scavenger_pb2.DrainedNode(name=name, reason=drain.reason, user=drain.user, since=timestamp(drain.since))
        for name, drain in [*entries, *sorted(drains.nodes.items())]
    ]
