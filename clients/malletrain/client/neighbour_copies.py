"""Each worker's part of a divided state, kept in the memory of another worker as well, so that a loss costs little.

Every now and then all workers copy their parts at the same batch. In the background each sends its copy to a worker on
the next node, and receives one from the node before. After a loss each survivor writes what it holds, its own copy and
its neighbour's, without any communication: the lost worker's part is there unless all holders are gone. Of several
replicas each has every part, so that the copies of different ones complete each other.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from malletrain.client.available_memory import available_memory, fits_in_memory
from malletrain.client.part_files import part_path, parts_folder
from malletrain.client.replicas import ReplicaPlace
from malletrain.client.shard_parts import Part, Shards, complete_parts, pack_header, part_of, unpack_header, write_part
from malletrain.client.snapshots import tensor_bytes
from malletrain.client.warn_once import describe, in_words

_MAX_OF_THE_LOOP = 0.05
"""Largest share of the time that the training loop waits for copies."""
_MAX_OF_THE_TIME = 0.25
"""Largest share of the time in which copies are sent in the background."""
_CHUNK = 64 << 20
"""Bytes that are sent at once."""
_SMALL = 64 << 20
"""A part of so many bytes is rather written twice than waited for."""
_SHOWN_SECONDS = 0.5
"""How long the owner of a part has until it shows that it writes it."""
_OTHERS_SECONDS = 10.0
_POLL_SECONDS = 0.005
_PARTS = 4
"""Parts in memory during an exchange: the new ones and the ones before, of this worker and of its neighbour."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What a worker holds of the state at one moment: its own copy, and that of another worker once it has arrived."""

    own: Part
    other: Part | None = None

    @property
    def samples(self) -> int:
        return self.own.samples


@dataclass(frozen=True, slots=True)
class _Ring:
    """The workers, and to which one each of them sends."""

    group: dist.ProcessGroup
    token: str
    rank: int
    workers: int
    distance: int

    @property
    def following(self) -> int:
        return (self.rank + self.distance) % self.workers

    @property
    def before(self) -> int:
        return (self.rank - self.distance) % self.workers


class NeighbourCopies:
    """The copies of one worker. All workers call `begin` at the same batch.

    The state before is kept until all workers hold the next one: two parts in the memory of the CPU between exchanges,
    four during one. If some node has no memory for those of its workers, there are no copies.
    """

    def __init__(
        self,
        folder: Path | None,
        min_seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
        memory: Callable[[], int | None] = available_memory,
    ) -> None:
        """Nothing is copied before the first `begin`.

        Args:
            folder: Folder of the checkpoints; None: there are no copies.
            min_seconds: Shortest time in seconds from one copy to the next; None: there are no copies.
            clock: Monotonic clock in seconds.
            memory: Returns the bytes of this node's memory that are available; None: not known.
        """
        self._folder = folder
        self._min_seconds = min_seconds
        self._clock = clock
        self._available = memory
        self._began_at = clock()
        self._copy_seconds = self._exchange_seconds = 0.0
        self._copies, self.loop_seconds = 0, 0.0
        self._ring: _Ring | None = None
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._held: list[_Held] = []

    def is_due(self) -> bool:
        """Whether to make copies now, so that they cost little enough; rank 0 decides for all."""
        if self._folder is None or self._min_seconds is None or self._is_busy() or self._has_failed():
            return False
        cost = max(self._copy_seconds / _MAX_OF_THE_LOOP, self._exchange_seconds / _MAX_OF_THE_TIME)
        return self._clock() - self._began_at >= max(self._min_seconds, cost)

    def begin(
        self,
        samples: int,
        place: ReplicaPlace,
        shards: Callable[[], Shards],
        plain: Callable[[], Mapping[str, Any]],
        random_state: Any,
    ) -> None:
        """Copy this worker's part, and exchange it in the background.

        Args:
            samples: The job's sample counter.
            place: Which part of the state this worker has: workers of other replicas have the same.
            shards: Returns what is divided.
            plain: Returns what is not, without the random states.
            random_state: This worker's random number generators.
        """
        if self._ring is None:
            self._ring, lacking = _form_ring(_PARTS * tensor_bytes(shards(), own=True), self._available())
            self._failure = MemoryError(lacking) if lacking else None
        # Rank 0 has seen that all hold the copy before: the others hear of it at any moment.
        self.wait(_OTHERS_SECONDS)
        began = self._began_at = self._clock()
        if self._is_busy() or self._has_failed():
            return
        ring = self._ring
        own = part_of(shards(), plain(), random_state, samples=samples, rank=place.shard, workers=place.shards)
        self._copy_seconds = self._clock() - began
        self.loop_seconds += self._copy_seconds
        self._copies += 1
        self._thread = threading.Thread(
            target=self._exchange, args=(ring, own), name="malletrain-neighbour-copy", daemon=True
        )
        self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until an exchange has ended."""
        if self._thread is not None:
            self._thread.join(seconds)

    def save(self, newest: int) -> int | None:
        """After a loss: write what this worker holds of states that are newer than the newest on disk.

        Args:
            newest: Sample counter of the newest state on disk; -1: there is none.

        Returns:
            Sample counter of the newest complete state that this worker has a part in; None: others were not yet done,
            or too much is lost.

        Raises:
            OSError: it can't be written.
        """
        with self._lock:
            held = [entry for entry in reversed(self._held) if entry.samples > newest]
        for entry in held:
            if self._write(entry):
                return entry.samples
        return None

    def costs(self) -> dict[str, float]:
        """Mean time in seconds that a copy takes of the training loop."""
        return {"neighbour_copy_loop_seconds": round(self.loop_seconds / self._copies, 6)} if self._copies else {}

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _has_failed(self) -> bool:
        if self._failure is not None and self._min_seconds is not None:
            self._min_seconds = None
            print(f"malletrain: no more copies on neighbours: {describe(self._failure)[:200]}", file=sys.stderr)
        return self._failure is not None

    # -- in the background -----------------------------------------------------------------------------------------

    def _exchange(self, ring: _Ring, own: Part) -> None:
        began = self._clock()
        try:
            with self._lock:
                self._held.append(_Held(own))
            other = _swap(ring, own)
            with self._lock:
                self._held[-1] = replace(self._held[-1], other=other)
            dist.barrier(group=ring.group)
            with self._lock:
                del self._held[:-1]
        except Exception as error:  # noqa: BLE001 - another worker may be lost; the training finds out by itself
            self._failure = error
        self._exchange_seconds = self._clock() - began

    # -- after a loss ----------------------------------------------------------------------------------------------

    def _write(self, held: _Held) -> bool:
        """Write both parts of a state; whether it is complete."""
        assert self._folder is not None
        ring = self._ring
        assert ring is not None
        folder = parts_folder(self._folder, held.samples)
        folder.mkdir(parents=True, exist_ok=True)
        _writes_file(folder, ring, held.own.rank).touch()
        write_part(folder, ring.token, held.own)
        if held.other is not None and not self._is_written(folder, ring, held.other):
            write_part(folder, ring.token, held.other)
        return bool(complete_parts(folder))

    def _is_written(self, folder: Path, ring: _Ring, part: Part) -> bool:
        """Whether the owner of a part writes it itself. It is waited for while it shows that it does."""
        path = part_path(folder, ring.token, part.rank, part.header["workers"])
        if part.data.numel() <= _SMALL:
            return path.exists()
        began = self._clock()
        while not path.exists():
            limit = _OTHERS_SECONDS if _writes_file(folder, ring, part.rank).exists() else _SHOWN_SECONDS
            if self._clock() - began >= limit:
                return False
            time.sleep(_POLL_SECONDS)
        return True


def _writes_file(folder: Path, ring: _Ring, rank: int) -> Path:
    return folder / f"{ring.token}-{rank}.writes"


def _form_ring(needed: int, available: int | None) -> tuple[_Ring, str]:
    """Agree on a group of its own, so that operations of the training go on meanwhile; all workers call it.

    Args:
        needed: Bytes that this worker's copies take.
        available: Bytes of memory that are available on its node; None: not known.

    Returns:
        The ring, and what is lacking on one of the nodes; empty: nothing is.
    """
    rank, workers = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="gloo")
    answers: list[Any] = [None] * workers
    on_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    needed *= on_node
    text = f"a node's copies take {in_words(needed)}, and {in_words(available or 0)} of its memory are available"
    lacking = "" if fits_in_memory(needed, available) else text
    dist.all_gather_object(answers, (on_node, secrets.token_hex(4), lacking), group=group)
    # The ranks of a node follow each other, and a node's loss must not take both holders of a part.
    most = max(count for count, _, _ in answers)
    distance = most if most < workers else 1
    return _Ring(group, answers[0][1], rank, workers, distance), next((text for _, _, text in answers if text), "")


def _swap(ring: _Ring, own: Part) -> Part:
    """Send a part to the next worker of the ring and receive one from the worker before."""
    header = pack_header(own.header)
    own_sizes = torch.tensor([header.numel(), own.data.numel()])
    sizes = torch.empty(2, dtype=torch.int64)
    _send_and_receive(ring, own_sizes, sizes)
    other_header = torch.empty(int(sizes[0]), dtype=torch.uint8)
    _send_and_receive(ring, header, other_header)
    data = torch.empty(int(sizes[1]), dtype=torch.uint8)
    for first in range(0, max(data.numel(), own.data.numel()), _CHUNK):
        _send_and_receive(ring, own.data[first : first + _CHUNK], data[first : first + _CHUNK])
    return Part(unpack_header(other_header), data)


def _send_and_receive(ring: _Ring, sent: torch.Tensor, received: torch.Tensor) -> None:
    works = []
    if received.numel():
        works.append(dist.irecv(received, src=ring.before, group=ring.group))
    if sent.numel():
        works.append(dist.isend(sent, dst=ring.following, group=ring.group))
    for work in works:
        if work is not None:
            work.wait()
