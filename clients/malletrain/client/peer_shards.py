"""Parts of a divided state in the memory of nodes: where workers that end leave them, and how others get theirs.

A worker that ends leaves its part on its own node if the job keeps that node, and otherwise on another one. The workers
of the next generation, of any number, ask each other for the pieces that they need, so that also a worker on a new
node reads nothing from the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from malletrain.client.available_memory import available_memory, fits_in_memory
from malletrain.client.handover import StateMoment, agreed_notice, are_kept, gather_values, places, tell_disk
from malletrain.client.node_memory import NodeMemory
from malletrain.client.shard_parts import (
    HeadersReader,
    Part,
    PreparedPart,
    Shards,
    completed_future,
    load_from,
    narrow_to_item,
    pack_header,
    unpack_header,
)

_CHUNK = 64 << 20
"""Bytes that are sent at once."""


class Offer(NamedTuple):
    """What a worker has, and what it can keep.

    Attributes:
        node: Its node; empty: it has no memory for a handover.
        shard: Which part of the state it has.
        shards: Parts of the state.
        size: Bytes of its part.
        header_size: Bytes of what describes it.
        room: Bytes that can be kept on its node, for all workers there together; None: not known.
        random_state: Its random states.
    """

    node: str
    shard: int
    shards: int
    size: int
    header_size: int
    room: int | None
    random_state: Any


class Way(NamedTuple):
    """From which rank to which a part goes; where both are the same it stays."""

    owner: int
    holder: int


def ways_of(offers: Sequence[Offer], staying: Set[str]) -> dict[int, Way] | None:
    """Who keeps which part. A part stays where it is, if it can; others go where most room is left. Pure.

    Args:
        offers: Those of all workers, by rank.
        staying: Nodes that the job keeps.

    Returns:
        By part; None if not all of them can be kept.
    """
    holders = [rank for rank, offer in enumerate(offers) if offer.node and offer.node in staying]
    owners: dict[int, list[int]] = {}
    for rank, offer in enumerate(offers):
        owners.setdefault(offer.shard, []).append(rank)
    if not holders or len(owners) < offers[0].shards:
        return None
    used = dict.fromkeys((offers[rank].node for rank in holders), 0)

    def rank_by_room(rank: int, size: int) -> tuple[bool, int, int]:
        room, taken = offers[rank].room, used[offers[rank].node]
        return fits_in_memory(taken + size, room), -taken if room is None else room - taken, -rank

    ways: dict[int, Way] = {}
    # Those that need not travel first: they take the room that others could.
    for shard in sorted(owners, key=lambda shard: (not set(owners[shard]) & set(holders), shard)):
        at_home = [rank for rank in owners[shard] if rank in holders]
        size = offers[owners[shard][0]].size
        candidates = [rank for rank in at_home if rank_by_room(rank, size)[0]] or holders
        holder = max(candidates, key=lambda rank: rank_by_room(rank, size))
        if not rank_by_room(holder, size)[0]:
            return None
        used[offers[holder].node] += size
        ways[shard] = Way(holder if holder in at_home else owners[shard][0], holder)
    return ways


def leave_parts(memory: NodeMemory | None, own: PreparedPart) -> bool:
    """Leave a divided state; all workers call it at the same batch.

    Args:
        memory: This worker's memory; None: it has none.
        own: Its part. In its header `rank` and `workers` say which one it is; `plain`, the same at all workers, gets
            the random states of all of them.

    Returns:
        Whether all parts lie on nodes that the job keeps. The same at all workers.
    """
    staying, rank = agreed_notice(memory).staying, dist.get_rank()
    header = pack_header(own.header)
    room = None if memory is None else available_memory()
    offer = Offer(
        "" if memory is None else memory.node,
        own.header["rank"],
        own.header["workers"],
        own.size,
        header.numel(),
        room,
        own.header["random_state"],
    )
    offers: list[Offer] = gather_values(offer)
    ways = ways_of(offers, staying)
    if ways is None:
        return False
    kept = [shard for shard, way in sorted(ways.items()) if way.holder == rank]
    firsts, size = places([offers[ways[shard].owner].size for shard in kept])
    data = None
    if kept and memory is not None:
        try:
            data = memory.begin(size)
        except OSError as error:
            tell_disk(error)
    # Nobody sends to one that has no memory.
    if not all(gather_values(data is not None or not kept)):
        return are_kept(memory, ())
    headers = _exchange(ways, offers, own, header, data, dict(zip(kept, firsts, strict=True)))
    wrote = not kept
    if kept and memory is not None:
        for left in headers:
            left["plain"]["random_states"] = [offer.random_state for offer in offers]
        try:
            memory.finish(own.header["samples"], {"parts": headers, "firsts": firsts}, size)
            wrote = True
        except OSError as error:
            tell_disk(error)
    nodes = {offers[way.holder].node for way in ways.values()}
    return are_kept(memory, nodes if all(gather_values(wrote)) else ())


def _exchange(
    ways: Mapping[int, Way],
    offers: Sequence[Offer],
    own: PreparedPart,
    own_header: torch.Tensor,
    data: torch.Tensor | None,
    firsts: Mapping[int, int],
) -> list[dict[str, Any]]:
    """Copy and send parts to where they are kept; returns the headers of those that are kept here."""
    travels = any(way.owner != way.holder for way in ways.values())
    group = dist.new_group(backend="gloo") if travels else None
    rank, headers = dist.get_rank(), []
    # All in the same order: of two workers that wait for each other, one would have to be ahead of the other.
    for shard, way in sorted(ways.items()):
        offer = offers[way.owner]
        if way.holder == rank and data is not None:
            target = data[firsts[shard] : firsts[shard] + offer.size]
            if way.owner == rank:
                own.copy_to(target)
                headers.append(own.header)
                continue
            header = torch.empty(offer.header_size, dtype=torch.uint8)
            dist.recv(header, src=way.owner, group=group)
            for piece in _chunks(target):
                dist.recv(piece, src=way.owner, group=group)
            headers.append(unpack_header(header))
        elif way.owner == rank:
            dist.send(own_header, dst=way.holder, group=group)
            for piece in _chunks(own.copy_to(torch.empty(own.size, dtype=torch.uint8)).data):
                dist.send(piece, dst=way.holder, group=group)
    return headers


def _chunks(data: torch.Tensor) -> Iterator[torch.Tensor]:
    for first in range(0, data.numel(), _CHUNK):
        yield data[first : first + _CHUNK]


class LeftParts(NamedTuple):
    """Which parts a worker was left: of which moment, how many make the state, and which these are."""

    moment: StateMoment
    shards: int
    parts: tuple[int, ...]


class PeerShards:
    """A complete state in the memory of this generation's nodes. All workers use it together, then `close`.

    Attributes:
        plain: What is not divided, with the random states of all workers.
        samples: The job's sample counter.
    """

    def __init__(
        self, memory: NodeMemory | None, own: Mapping[int, Part], owners: Mapping[int, int], headers: list[Any]
    ) -> None:
        """Use what workers were left; see `find_peer_shards`."""
        self._memory = memory
        self._reader = _PeerReader(own, owners, headers)
        self.samples = int(headers[0]["samples"])
        self.plain: dict[str, Any] = dict(headers[0]["plain"])

    def load(self, shards: Shards) -> None:
        """Fill tensors, however they are divided now.

        Raises:
            RuntimeError: a tensor is missing or has another shape, or another worker is lost.
        """
        load_from(self._reader, shards, "the state in memory")

    def close(self) -> None:
        """Free the memory."""
        self._reader.forget()
        if self._memory is not None:
            self._memory.clear()


def find_peer_shards(memory: NodeMemory | None, on_disk: int) -> PeerShards | None:
    """A complete state that workers before have left, if it is as new as what is on disk; all workers call it.

    Args:
        memory: This worker's memory, which is cleared if there is none; None: it has none.
        on_disk: At rank 0, the sample counter of the newest checkpoint, -1 without one; ignored at the others.
    """
    left = None if memory is None else memory.read()
    parts: dict[int, Part] = {}
    own: LeftParts | None = None
    if left is not None and "parts" in left.description:
        for header, first, end in _headers_with_bounds(left.description, left.data.numel()):
            parts[int(header["rank"])] = Part(header, left.data[first:end])
        shards = int(left.description["parts"][0]["workers"])
        own = LeftParts(StateMoment(left.samples, left.generation), shards, tuple(parts))
    table = gather_values((own, on_disk))
    owners = owners_of([entry for entry, _ in table], table[0][1])
    if not owners:
        if memory is not None:
            parts.clear()
            del left
            memory.clear()
        return None
    rank = dist.get_rank()
    mine = {shard: parts[shard].header for shard, owner in owners.items() if owner == rank}
    headers: dict[int, Any] = {}
    for some in gather_values(mine):
        headers.update(some)
    return PeerShards(memory, parts, owners, [headers[shard] for shard in range(len(owners))])


def _headers_with_bounds(description: Mapping[str, Any], size: int) -> Iterator[tuple[dict[str, Any], int, int]]:
    """The headers of what a worker was left, each with its first byte and the one after its last."""
    firsts = [*description["firsts"], size]
    yield from zip(description["parts"], firsts, firsts[1:], strict=False)


def owners_of(table: Sequence[LeftParts | None], on_disk: int) -> dict[int, int]:
    """Which rank has which part of the newest complete state; empty if that on disk is newer, or none is complete.

    Args:
        table: What each worker was left, by rank.
        on_disk: Sample counter of the newest checkpoint; -1 without one.
    """
    states: dict[tuple[StateMoment, int], dict[int, int]] = {}
    for rank, left in enumerate(table):
        if left is not None:
            for part in left.parts:
                states.setdefault((left.moment, left.shards), {}).setdefault(part, rank)
    complete = [key for key, ranks in states.items() if len(ranks) == key[1] and key[0].samples >= on_disk]
    return dict(sorted(states[max(complete)].items())) if complete else {}


class _Asked(NamedTuple):
    """A piece that a worker needs: of which part, which of its tensors, and what of that."""

    shard: int
    entry: tuple[Any, ...]
    item: ReadItem


class _PeerReader(HeadersReader):
    """Has workers send each other what they need; see `PeerShards`."""

    def __init__(
        self, own: Mapping[int, Part], owners: Mapping[int, int], headers: Sequence[Mapping[str, Any]]
    ) -> None:
        super().__init__()
        self._own = dict(own)
        self._owners = owners
        self._headers = headers

    def headers(self) -> Sequence[Mapping[str, Any]]:
        """Those of all parts."""
        return self._headers

    def forget(self) -> None:
        """Look at the memory no more."""
        self._own.clear()

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Fill what the plan asks for; all workers call it."""
        rank, workers = dist.get_rank(), dist.get_world_size()
        wanted: list[list[_Asked]] = [[] for _ in range(workers)]
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self.load_value(planner, item)
                continue
            shard, entry = self.places[item.storage_index]
            if shard in self._own:
                self.fill(planner, item, narrow_to_item(self._own[shard].tensor(entry), item))
            else:
                wanted[self._owners[shard]].append(_Asked(shard, entry, item))
        asked = gather_values(wanted)
        if any(requests for row in asked for requests in row):
            group = dist.new_group(backend="gloo")
            for step in range(1, workers):
                to, source = (rank + step) % workers, (rank - step) % workers
                self._swap(planner, asked[to][rank], to, wanted[source], source, group)
        return completed_future()

    def _swap(
        self,
        planner: LoadPlanner,
        sent: Sequence[_Asked],
        to: int,
        received: Sequence[_Asked],
        source: int,
        group: dist.ProcessGroup,
    ) -> None:
        """Send one worker what it has asked for, piece by piece, while another one sends what this one has."""
        for number in range(max(len(sent), len(received))):
            works = []
            if number < len(sent):
                asked = sent[number]
                piece = narrow_to_item(self._own[asked.shard].tensor(asked.entry), asked.item).contiguous()
                works.append(dist.isend(_bytes_of(piece), dst=to, group=group))
            if number < len(received):
                item = received[number].item
                buffer = torch.empty(item.lengths, dtype=received[number].entry[4])
                works.append(dist.irecv(_bytes_of(buffer), src=source, group=group))
            for work in works:
                if work is not None:
                    work.wait()
            if number < len(received):
                self.fill(planner, item, buffer)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
