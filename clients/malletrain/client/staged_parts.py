"""Divided states that are staged out: each worker leaves its part for the agent of its node to copy.

That is done where all nodes of the job are given back at once, and have less time than a save takes. The checkpoint is
complete once all parts are in their place, whoever has copied them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from malletrain.client.handover import agreed_notice, gather_values, tell_disk
from malletrain.client.node_memory import NodeMemory
from malletrain.client.shard_parts import PreparedPart, write_content
from malletrain.common.stage_out import StagedCheckpoint, StageOutTerms


class StageOutOffer(NamedTuple):
    """What a worker could leave to its agent.

    Attributes:
        node: Its node.
        shard: Which part of the state it has.
        size: Bytes of its part.
        max_bytes: Most bytes that its agent copies; 0: it copies nothing.
    """

    node: str
    shard: int
    size: int
    max_bytes: int


def stagers_of(offers: Sequence[StageOutOffer], shards: int, released: Collection[str]) -> dict[int, int] | None:
    """Who leaves which part. Pure.

    Args:
        offers: Those of all workers, by rank.
        shards: Parts of the state.
        released: Nodes that are given back.

    Returns:
        The rank for each part; None if not all parts can be staged out, or if a node stays, which has time to save.
    """
    if any(offer.node not in released for offer in offers):
        return None
    stagers: dict[int, int] = {}
    for rank, offer in enumerate(offers):
        stagers.setdefault(offer.shard, rank)
    used: Counter[str] = Counter()
    for rank in stagers.values():
        used[offers[rank].node] += offers[rank].size
    fits = all(used[offers[rank].node] <= offers[rank].max_bytes for rank in stagers.values())
    return stagers if fits and len(stagers) == shards else None


def stage_parts(
    memory: NodeMemory | None, own: PreparedPart, token: str, terms: StageOutTerms | None, *, wanted: bool
) -> bool:
    """Leave a divided state to the agents; all workers call it at the same batch.

    Args:
        memory: This worker's memory; None: it has none.
        own: Its part, as for `malletrain.client.peer_shards.leave_parts`.
        token: Tells these parts from those of other generations; eight digits, the same at all workers.
        terms: What this worker's agent offers.
        wanted: At rank 0, whether that is better than a save; ignored at the others.

    Returns:
        Whether all parts have been left. The same at all workers.
    """
    released = agreed_notice(memory).released
    node, most = ("", 0) if memory is None or terms is None else (memory.node, terms.max_bytes)
    shard, shards = own.header["rank"], own.header["workers"]
    answers = gather_values((wanted, StageOutOffer(node, shard, own.size, most)))
    stagers = stagers_of([offer for _, offer in answers], shards, released) if answers[0][0] else None
    if stagers is None:
        return False
    staged = StagedCheckpoint(2 * own.size, own.header["samples"], shard, shards, token)  # torch writes a copy of it
    left = True
    if memory is not None and stagers[shard] == dist.get_rank():
        left = _leave(memory, own, staged)
    if all(gather_values(left)):
        return True
    if memory is not None and stagers[shard] == dist.get_rank():
        memory.unstage(staged)
    return False


def _leave(memory: NodeMemory, own: PreparedPart, staged: StagedCheckpoint) -> bool:
    try:
        memory.stage(staged, lambda file: write_content(own.copy_to(torch.empty(own.size, dtype=torch.uint8)), file))
    except (OSError, RuntimeError) as error:
        tell_disk(error)
        return False
    return True
