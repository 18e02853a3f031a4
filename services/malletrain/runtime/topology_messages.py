"""Conversions between messages about topology and the dataclasses of `malletrain.model.topology`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from malletrain.model.topology import MAX_LEVELS, GroupPath, TopologyPreference, path_problem
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import allocator_pb2, resources_pb2, scavenger_pb2

_PREFERENCES = {
    resources_pb2.TOPOLOGY_PREFERENCE_UNSPECIFIED: TopologyPreference.NONE,
    resources_pb2.TOPOLOGY_PREFERENCE_PREFER: TopologyPreference.PREFER,
    resources_pb2.TOPOLOGY_PREFERENCE_REQUIRE: TopologyPreference.REQUIRE,
    resources_pb2.TOPOLOGY_PREFERENCE_REQUIRE_REPLICA: TopologyPreference.REQUIRE_REPLICA,
}
_VALUES = {preference: value for value, preference in _PREFERENCES.items()}


def preference_from_proto(value: resources_pb2.TopologyPreference.ValueType, field: str) -> TopologyPreference:
    """The preference of a message.

    Raises:
        InvalidInputError: it is not known; the error names `field`.
    """
    if value not in _PREFERENCES:
        raise InvalidInputError(field, "a known preference", value)
    return _PREFERENCES[value]


def known_preference(value: resources_pb2.TopologyPreference.ValueType) -> TopologyPreference:
    """The preference that JobManager reports; none where this version does not know it."""
    return _PREFERENCES.get(value, TopologyPreference.NONE)


def preference_to_proto(preference: TopologyPreference) -> resources_pb2.TopologyPreference.ValueType:
    """The protobuf value of a preference."""
    return _VALUES[preference]


_Asking = resources_pb2.JobSpec | allocator_pb2.JobDemand | scavenger_pb2.CountSuitableNodesRequest
"""What says what is preferred, the level of groups, and the nodes of replicas."""


def level_from_proto(message: _Asking, field: str) -> int:
    """The level of the groups that nodes of a job must be in; see `topology.group_of`.

    Args:
        message: Says the preference and the level.
        field: Where the message is; empty: it is a request.

    Raises:
        InvalidInputError: there is no such level, or none is to be said; the error names the field.
    """
    level, name = message.topology_level, f"{field}.topology_level" if field else "topology_level"
    if not 0 <= level <= MAX_LEVELS:
        raise InvalidInputError(name, f"0 to {MAX_LEVELS}", level)
    if level and not known_preference(message.topology).requires:
        raise InvalidInputError(name, "0 where no group is required", level)
    return level


def replica_from_proto(message: _Asking, field: str) -> int:
    """Nodes of each replica of a job, at least 1.

    Args:
        message: Says the preference and these nodes.
        field: Where the message is; empty: it is a request.

    Raises:
        InvalidInputError: there are none, and each replica is to be in one group; the error names the field.
    """
    nodes = message.nodes_per_replica
    by_replica = message.topology == resources_pb2.TOPOLOGY_PREFERENCE_REQUIRE_REPLICA
    if nodes < 0 or (by_replica and nodes < 2):
        expected = "at least 2, as each replica is to be in one group" if by_replica else "at least 0"
        raise InvalidInputError(f"{field}.nodes_per_replica" if field else "nodes_per_replica", expected, nodes)
    return nodes or 1


def paths_from_proto(groups: Iterable[allocator_pb2.NodeGroup], nodes: Collection[str]) -> dict[str, GroupPath]:
    """The groups that nodes are in, by node.

    Args:
        groups: The message's groups.
        nodes: The nodes that there are.

    Raises:
        InvalidInputError: a path can't be used, or a node is not there or in two groups; the error names the field.
    """
    paths: dict[str, GroupPath] = {}
    for index, group in enumerate(groups):
        path = tuple(group.topology)
        if expected := path_problem(path):
            raise InvalidInputError(f"groups[{index}].topology", expected, list(path)[:10])
        for position, node in enumerate(group.nodes):
            if node not in nodes or node in paths:
                expected = "one of nodes" if node not in nodes else "each node once"
                raise InvalidInputError(f"groups[{index}].nodes[{position}]", expected, node)
            paths[node] = path
    return paths


def groups_to_proto(paths: Mapping[str, GroupPath], nodes: Iterable[str]) -> list[allocator_pb2.NodeGroup]:
    """The groups that nodes are in, as messages.

    Args:
        paths: Groups by node; may lack some of the nodes, and have others.
        nodes: The nodes that there are.
    """
    if not paths:
        return []
    members: dict[GroupPath, list[str]] = {}
    for node in nodes:
        if path := paths.get(node):
            members.setdefault(path, []).append(node)
    return [allocator_pb2.NodeGroup(topology=path, nodes=names) for path, names in members.items()]
