"""From values to the messages of the contract."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from malletrain.common.trace_context import TraceContext
from malletrain.model.node_needs import NodeNeeds, TraitCensus, needs_of, suits
from malletrain.model.topology import GroupPath, group_of
from malletrain.runtime.messages import message_of, timestamp
from malletrain.runtime.tracing.propagation import to_message
from malletrain.scavenger.machine.drains import DrainSet
from malletrain.scavenger.machine.idle_set import IdleNode
from malletrain.scavenger.machine.machine import ScavengerMachine
from malletrain.scavenger.machine.observations import NO_FACTS, Observation
from malletrain.scavenger.machine.quarantine import NodeFailureRecord
from malletrain.scavenger.machine.slow_nodes import NodeSlowness
from malletrain.scavenger.machine.stays import StayingNode, StayNews
from malletrain.scavenger.machine.stimuli import AnnounceEvent
from malletrain.scavenger.sources.base import PlaceholderStatus, QueryStatus
from malletrain.v1 import resources_pb2, scavenger_pb2


def node_message(node: IdleNode, machine: ScavengerMachine, now: float) -> resources_pb2.Node:
    """A node that counts as idle, with everything that is known of it at `now`, in seconds since the epoch."""
    newest = machine.newest
    end = newest.ends.get(node.name)
    facts = newest.facts.get(node.name, NO_FACTS)
    return resources_pb2.Node(
        name=node.name,
        idle_since=timestamp(node.idle_since),
        expected_stay_seconds=machine.expected_stay(node, now),
        pool=facts.pool_key,
        gpu_type=facts.gpu_type,
        gpus=facts.gpus,
        features=facts.features,
        idle_until=None if end is None else timestamp(end),
        agent=newest.agents.get(node.name, ""),
        agent_name=newest.agent_names.get(node.name, ""),
        cores=facts.cpus,
        memory_mib=facts.memory_mib,
        gpu_memory_mib=facts.gpu_memory_mib,
        topology=facts.topology,
    )


def event_message(
    announced: AnnounceEvent, joined: Sequence[resources_pb2.Node], context: TraceContext | None, *, source_ended: bool
) -> scavenger_pb2.WatchNodesResponse:
    """A change of the idle set, for those who watch it.

    Args:
        announced: The change.
        joined: The nodes that have joined, described.
        context: The span of the event; None without one.
        source_ended: Whether the source tells nothing more.
    """
    return scavenger_pb2.WatchNodesResponse(
        joined=joined,
        left=announced.event.left,
        event_time=timestamp(announced.unix_seconds),
        revision=announced.revision,
        source_ended=source_ended,
        trace_context=to_message(context),
    )


def merge_events(
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


def census_of(newest: Observation) -> TraitCensus:
    """What the nodes are that a source knows, idle or not."""
    names = dict.fromkeys((*newest.known, *newest.idle, *newest.facts))
    return TraitCensus({name: newest.facts.get(name, NO_FACTS).traits for name in names})


def suitable_in_groups(newest: Observation, needs: NodeNeeds, level: int) -> list[int]:
    """How many of the nodes that a source knows, idle or not, suit a job, by group of a level (see `group_of`)."""
    suitable = Counter[GroupPath]()
    for name, facts in newest.facts.items():
        group = group_of(facts.topology, level)
        if group is not None and suits(needs, name, facts.traits):
            suitable[group] += 1
    return list(suitable.values())


def suitable_message(
    needs: NodeNeeds, known: TraitCensus, groups: Sequence[int] | None = None, replica: int | None = None
) -> scavenger_pb2.CountSuitableNodesResponse:
    """How many nodes are such as a job needs.

    Args:
        needs: What the job needs.
        known: The nodes.
        groups: How many suit it by group; None: they need not be in groups.
        replica: Nodes of each replica, which must be in one group; None: replicas need not be.
    """
    return scavenger_pb2.CountSuitableNodesResponse(
        largest_group_nodes=None if groups is None else max(groups, default=0),
        groups=len(groups or ()),
        replica_nodes=None if replica is None else sum(count - count % replica for count in groups or ()),
        known_nodes=len(known),
        suitable_nodes=known.count(needs),
        needs=[
            resources_pb2.NeedCount(
                text=need.text, nodes=known.count(need.part), unknown_nodes=known.unknown(need.part)
            )
            for need in needs_of(needs)
        ],
    )


def query_message(status: QueryStatus) -> scavenger_pb2.QueryStatus:
    """Counts and times of one kind of query."""
    age = status.age_seconds if math.isfinite(status.age_seconds) else None
    return message_of(scavenger_pb2.QueryStatus, status, age_seconds=age)


def placeholder_message(status: PlaceholderStatus) -> scavenger_pb2.PlaceholderStatus:
    """How the placeholders of a source fare."""
    retry_time = None if status.retry_at is None else timestamp(status.retry_at)
    return message_of(scavenger_pb2.PlaceholderStatus, status, retry_time=retry_time)


def quarantine_message(name: str, record: NodeFailureRecord) -> scavenger_pb2.QuarantinedNode:
    """A quarantined node."""
    return message_of(scavenger_pb2.QuarantinedNode, record, name=name, since=timestamp(record.at))


def slow_node_message(node: NodeSlowness) -> scavenger_pb2.SlowNodeStatus:
    """A node that is called slow."""
    return message_of(scavenger_pb2.SlowNodeStatus, node)


def drain_messages(drains: DrainSet) -> list[scavenger_pb2.DrainedNode]:
    """What is drained: first the entry without a name, if all nodes are."""
    entries = [] if drains.everything is None else [("", drains.everything)]
    return [
        scavenger_pb2.DrainedNode(name=name, reason=drain.reason, user=drain.user, since=timestamp(drain.since))
        for name, drain in [*entries, *sorted(drains.nodes.items())]
    ]
