"""What jobs need of their nodes, as messages."""

from __future__ import annotations

from malletrain.model.node_needs import NO_NEEDS, NodeNeeds
from malletrain.v1 import resources_pb2


def needs_from_proto(message: resources_pb2.NodeNeeds) -> NodeNeeds:
    """The needs of a message, as they are; those of an absent one are none."""
    if not message.ByteSize():
        return NO_NEEDS
    return NodeNeeds(
        message.gpu,
        message.constraint,
        message.pool,
        tuple(message.excluded_nodes),
        message.gpu_memory_mib,
        message.gpus,
        message.cores,
        message.memory_mib,
    )


def needs_to_proto(needs: NodeNeeds) -> resources_pb2.NodeNeeds | None:
    """Needs as a message; None: any node suits."""
    if not needs:
        return None
    return resources_pb2.NodeNeeds(
        gpu=needs.gpu,
        constraint=needs.constraint,
        pool=needs.pool,
        excluded_nodes=needs.excluded_nodes,
        gpu_memory_mib=needs.gpu_memory_mib,
        gpus=needs.gpus,
        cores=needs.cores,
        memory_mib=needs.memory_mib,
    )
