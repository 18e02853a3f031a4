"""What jobs need of their nodes, as messages."""

from __future__ import annotations

from malletrain.model.node_needs import NO_NEEDS, NodeNeeds
from malletrain.runtime.messages import message_of
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
    return message_of(resources_pb2.NodeNeeds, needs) if needs else None
