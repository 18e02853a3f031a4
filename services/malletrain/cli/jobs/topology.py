"""Where jobs run best: the option of `submit`, and what is said of the groups of nodes that a job spans."""

from __future__ import annotations

import grpc

from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.model.topology import MAX_LEVELS, NodeTree, TopologyPreference, level_in_words, spans_in_words
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.topology_messages import known_preference, preference_to_proto
from malletrain.v1 import resources_pb2, scavenger_pb2

_LEVELS = frozenset(map(str, range(1, MAX_LEVELS + 1)))


def parse_topology(text: str) -> tuple[resources_pb2.TopologyPreference.ValueType, int]:
    """The preference that `--topology` names, and the level: `prefer`, `require` or `require=2`.

    Raises:
        InvalidInputError: it is not known.
    """
    name, equals, level = text.partition("=")
    known = name in list(TopologyPreference) and (not equals or name == TopologyPreference.REQUIRE)
    if not known or (equals and level not in _LEVELS):
        expected = f"none, prefer, require or require=LEVEL with a level of 1 to {MAX_LEVELS}"
        raise InvalidInputError("--topology", expected, text)
    return preference_to_proto(TopologyPreference(name)), int(level or 0)


def topology_in_words(stubs: ServiceStubs, job: resources_pb2.Job) -> str:
    """What a job prefers, and how many groups it spans; empty where it has no preference."""
    preference = known_preference(job.spec.topology)
    if preference is TopologyPreference.NONE:
        return ""
    preferred = "nodes near each other preferred"
    if preference is TopologyPreference.REQUIRE:
        preferred = f"all nodes in one {level_in_words(job.spec.topology_level)}"
    try:
        nodes = stubs.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS).nodes
    except grpc.RpcError:
        return preferred  # the job is shown all the same
    paths = {node.name: tuple(node.topology) for node in nodes}
    own = [name for name in job.commanded_nodes if name in paths]
    if not any(paths.values()):
        return f"{preferred}; where nodes are is not known"
    if not own:
        return preferred
    return f"{preferred}; groups that its nodes are in: {spans_in_words(NodeTree.of(paths, paths).spans(own))}"
