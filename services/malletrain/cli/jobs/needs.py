"""What jobs need of their nodes: options of `submit`, and what is said of jobs that too few nodes suit."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.model.topology import level_in_words
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.topology_messages import known_preference
from malletrain.v1 import resources_pb2, scavenger_pb2

_MAX_ASKED = 20
"""Different needs that one command asks about."""


def parse_nodes(text: str) -> tuple[str, ...]:
    """Names in a list such as `n07,n[11-13]`.

    Raises:
        InvalidInputError: it can't be read.
    """
    if not text:
        return ()
    # The library that reads lists takes time to load.
    from malletrain.scavenger.sources.schedulers.availability import UnreadableError
    from malletrain.scavenger.sources.schedulers.hostlists import expand

    try:
        return expand(text)
    except UnreadableError:
        raise InvalidInputError("--exclude", "nodes such as n07,n[11-13]", text) from None


def describe_unsuited_jobs(stubs: ServiceStubs, jobs: Iterable[resources_pb2.Job]) -> list[str]:
    """A line for each job that too few of the nodes suit that the Scavenger knows, idle or not.

    Raises:
        grpc.RpcError: the Scavenger does not answer, or is of an earlier version.
    """
    counts: dict[bytes, scavenger_pb2.CountSuitableNodesResponse] = {}
    lines = []
    for job in jobs:
        request = scavenger_pb2.CountSuitableNodesRequest(needs=job.spec.needs)
        if requires_group(job):
            request.topology, request.topology_level = job.spec.topology, job.spec.topology_level
            request.nodes_per_replica = job.spec.nodes_per_replica
        key = request.SerializeToString(deterministic=True)
        if not (job.spec.needs.ByteSize() or requires_group(job)) or (key not in counts and len(counts) >= _MAX_ASKED):
            continue
        if key not in counts:
            counts[key] = stubs.scavenger.CountSuitableNodes(request, timeout=DEADLINE_SECONDS)
        if counts[key].known_nodes and (line := _why_not(job, counts[key])):
            lines.append(line)
    return lines


def _why_not(job: resources_pb2.Job, counts: scavenger_pb2.CountSuitableNodesResponse) -> str:
    """What keeps a job from starting as the site is; empty: nothing that is known."""
    least = job.spec.min_nodes
    if job.spec.needs.ByteSize() and counts.suitable_nodes < least:
        return _too_few(job, counts)
    if counts.HasField("replica_nodes"):
        return _too_few_replicas(job, counts) if counts.replica_nodes < least else ""
    if counts.HasField("largest_group_nodes") and counts.largest_group_nodes < least:
        return _too_small(job, counts)
    return ""


def tell_of_unsuited(stubs: ServiceStubs, jobs: Iterable[resources_pb2.Job]) -> list[str]:
    """As `describe_unsuited_jobs`; nothing where the Scavenger does not say."""
    try:
        return describe_unsuited_jobs(stubs, jobs)
    except grpc.RpcError:
        return []  # the jobs are submitted and shown all the same


def requires_group(job: resources_pb2.Job) -> bool:
    """Whether the nodes of a job must be in groups: all in one, or all of each replica."""
    return known_preference(job.spec.topology).requires


def _too_small(job: resources_pb2.Job, counts: scavenger_pb2.CountSuitableNodesResponse) -> str:
    level = level_in_words(job.spec.topology_level)
    least = f"{job.spec.min_nodes} node{'' if job.spec.min_nodes == 1 else 's'}"
    known = f"of the {counts.known_nodes} known nodes, idle or not"
    groups = (
        f"{counts.groups} such groups have nodes that suit it, the largest has {counts.largest_group_nodes}"
        if counts.groups
        else "none that suits it is known to be in one"
    )
    return f"{job.id} can't start as the site is: it needs {least} at least in one {level}; {known}, {groups}"


def _too_few_replicas(job: resources_pb2.Job, counts: scavenger_pb2.CountSuitableNodesResponse) -> str:
    replica, level = job.spec.nodes_per_replica, level_in_words(job.spec.topology_level)
    largest = (
        f"the largest such group has {counts.largest_group_nodes}" if counts.groups else "none is known to be in one"
    )
    return (
        f"{job.id} can't start as the site is: it needs {job.spec.min_nodes} nodes at least, the {replica} of each "
        f"replica in one {level}; of the {counts.known_nodes} known nodes, idle or not, {counts.replica_nodes} that "
        f"suit it make whole replicas, {largest}"
    )


def _too_few(job: resources_pb2.Job, counts: scavenger_pb2.CountSuitableNodesResponse) -> str:
    each = ", ".join(map(_describe_need, counts.needs))
    least = f"{job.spec.min_nodes} node{'' if job.spec.min_nodes == 1 else 's'}"
    return (
        f"{job.id} can't start as the site is: it needs {least} at least, and of the {counts.known_nodes} known nodes, "
        f"idle or not, {counts.suitable_nodes} suit it ({each})"
    )


def _describe_need(need: resources_pb2.NeedCount) -> str:
    unknown = f", not known of {need.unknown_nodes}" if need.unknown_nodes else ""
    return f"{need.text}: {need.nodes}{unknown}"
