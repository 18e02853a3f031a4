"""Where jobs run best: what is said of the groups of nodes that a job spans."""

from __future__ import annotations

import grpc

from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.model.topology import NodeTree, TopologyPreference, level_in_words, spans_in_words
from malletrain.runtime.topology_messages import known_preference
from malletrain.v1 import resources_pb2, scavenger_pb2


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
