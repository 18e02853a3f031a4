"""How workers hand their state to those that take their places: in the memory of nodes, where that is possible.

Backend `torchrun` restarts all workers at a change. Where the job keeps a node, what a worker leaves in that node's
memory (`malletrain.client.node_memory`) is there for the next one at once: nothing is written to the disk and read
again, and a worker that is new gets its state from the others. Until the next checkpoint, which is written at once in
the background, it is nowhere else: if all nodes that have it are lost before, the training goes on from the checkpoint
before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from malletrain.client.node_memory import Left, NodeMemory
from malletrain.client.object_transfer import TensorKey, TensorPickler, TensorUnpickler
from malletrain.client.shard_parts import align, view_of
from malletrain.client.warn_once import describe
from malletrain.common.handover_memory import LeaveNotice


class StateMoment(NamedTuple):
    """Which state it is; of two, the greater one is newer.

    Attributes:
        samples: The job's sample counter; -1: there is none.
        generation: The generation of workers that has left it.
    """

    samples: int
    generation: int


NOTHING = StateMoment(-1, -1)


def agreed_notice(memory: NodeMemory | None) -> LeaveNotice:
    """What rank 0 reads of where others come after these workers, and which nodes are given back; all call it."""
    said: list[Any] = [LeaveNotice(0) if memory is None or dist.get_rank() else memory.notice()]
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(said)
    notice: LeaveNotice = said[0]
    return notice


def gather_values(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values of all workers, or of those of a group, by rank, at each of them."""
    values: list[Any] = [value] * dist.get_world_size(group)
    if len(values) > 1:
        dist.all_gather_object(values, value, group=group)
    return values


class Handover(Enum):
    """What a worker is to do when it has left its state, or has not."""

    BY_DISK = "by_disk"
    """All workers save together, as without a memory."""
    DONE = "done"
    """End: the state is in memory, or another worker sees to it."""
    SAVE_ALONE = "save_alone"
    """Save for all of them: the state is in memory nowhere, and the others end."""
    STAGE_OUT = "stage_out"
    """Leave the checkpoint for the node's agent to copy; the others end."""


def leave_whole(
    memory: NodeMemory | None,
    samples: int,
    content: Callable[[list[Any]], Any],
    states: list[Any],
    *,
    in_memory: bool = True,
    stages_out: bool = False,
) -> Handover:
    """Leave a state that every worker has whole; all workers call it at the same batch.

    Those of nodes that are given back end at once. One worker of each other node leaves the state there. Where that is
    not to be, but rank 0's node is given back, the first worker on another node saves for all. Where there is no other
    node, rank 0 saves, or has the checkpoint staged out.

    Args:
        memory: This worker's memory; None: it has none.
        samples: The job's sample counter.
        content: Returns the state, given the random states of all workers.
        states: The random states of all workers.
        in_memory: At rank 0, whether it is to be left in memory; ignored at the others.
        stages_out: At rank 0, whether the checkpoint had better be staged out than saved; ignored at the others.
    """
    notice = agreed_notice(memory)
    offers = gather_values((None if memory is None else memory.node, in_memory, stages_out))
    nodes = [offer[0] for offer in offers]
    # One worker of a node is enough.
    holders = sorted(nodes.index(node) for node in notice.staying.intersection(nodes)) if offers[0][1] else []
    if not holders:
        others = [rank for rank, node in enumerate(nodes) if node is not None and node not in notice.released]
        if nodes[0] in notice.released and not others and offers[0][2]:
            return Handover.DONE if dist.get_rank() else Handover.STAGE_OUT
        if nodes[0] not in notice.released or not others:
            return Handover.BY_DISK
        return Handover.SAVE_ALONE if dist.get_rank() == others[0] else Handover.DONE
    if memory is None or dist.get_rank() not in holders:
        return Handover.DONE
    group = dist.new_group(holders, backend="gloo", use_local_synchronization=True) if len(holders) > 1 else None
    written = _write_whole(memory, samples, content(states))
    # It may have taken long: another node may have been asked for since.
    counts = written and memory.node in memory.notice().staying
    if any(gather_values(counts, group) if group is not None else [counts]):
        return Handover.DONE
    memory.clear()
    return Handover.SAVE_ALONE if dist.get_rank() == holders[0] else Handover.DONE


def are_kept(memory: NodeMemory | None, nodes: Collection[str]) -> bool:
    """Whether parts that were left count: another node may have been asked for meanwhile; all workers call it.

    Args:
        memory: This worker's memory, which is cleared if they do not; None: it has none.
        nodes: On which nodes they lie; none: they have not been left.
    """
    kept = agreed_notice(memory).staying.issuperset(nodes) and bool(nodes)
    if memory is not None and not kept:
        memory.clear()
    return kept


def _write_whole(memory: NodeMemory, samples: int, content: Any) -> bool:
    pickler = TensorPickler(content)
    firsts, size = places([tensor.numel() * tensor.element_size() for tensor in pickler.tensors])
    description = {"whole": torch.frombuffer(bytearray(pickler.data), dtype=torch.uint8), "firsts": firsts}
    try:
        data = memory.begin(size)
        for tensor, first in zip(pickler.tensors, firsts, strict=True):
            view_of(data, first, tensor.shape, tensor.dtype).copy_(tensor)
        memory.finish(samples, description, size)
    except (OSError, RuntimeError) as error:
        tell_disk(error)
        return False
    return True


def tell_disk(error: Exception) -> None:
    """Say why a state is not left in memory."""
    print(f"malletrain: the state goes by way of the disk: {describe(error)}", file=sys.stderr)


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each of several pieces begins, and where the last one ends."""
    firsts, end = [], 0
    for size in sizes:
        firsts.append(end)
        end += align(size)
    return firsts, end


def newest_left(memory: NodeMemory | None, on_disk: int) -> tuple[Left | None, list[StateMoment]]:
    """What this worker was left, if any worker was left something that is as new as what is on disk.

    All workers call it.

    Args:
        memory: This worker's memory; None: it has none.
        on_disk: At rank 0, the sample counter of the newest checkpoint, -1 without one; ignored at the others.

    Returns:
        What this worker has, and for each rank which moment's state it was left; empty if the disk counts.
    """
    left = None if memory is None else memory.read()
    own = NOTHING if left is None or "whole" not in left.description else StateMoment(left.samples, left.generation)
    table = gather_values((own, on_disk))
    moments = [moment for moment, _ in table]
    return left, moments if max(moments).samples >= max(0, table[0][1]) else []


def take_whole(memory: NodeMemory | None, on_disk: int, send: Callable[[Any, int], Any]) -> Mapping[str, Any] | None:
    """The state that workers before have left, if it is as new as what is on disk; all workers call it.

    Args:
        memory: This worker's memory; None: it has none. It is cleared.
        on_disk: As for `newest_left`.
        send: Returns at each worker the value that one of them gives, whose rank is its second argument.

    Returns:
        The state; None: that on disk is to be loaded.
    """
    left, moments = newest_left(memory, on_disk)
    content: Mapping[str, Any] | None = None
    if moments:
        holders = [rank for rank, moment in enumerate(moments) if moment == max(moments)]
        # One worker sends it to those that lack it; the others take theirs with these, and copy nothing.
        lacked = len(holders) < len(moments)
        reads = left is not None and (not lacked or dist.get_rank() == holders[0])
        own = _read_whole(left) if left is not None and reads else None
        content = send(own, holders[0]) if lacked else own
    del left
    if memory is not None:
        memory.clear()
    return content


def _read_whole(left: Left) -> Mapping[str, Any]:
    """A state, copied from the memory."""
    firsts = left.description["firsts"]

    def tensor_of(key: TensorKey) -> torch.Tensor:
        index, shape, dtype = key
        return view_of(left.data, firsts[index], shape, dtype).clone()

    content: Mapping[str, Any] = TensorUnpickler(left.description["whole"].numpy().tobytes(), tensor_of).load()
    return content
