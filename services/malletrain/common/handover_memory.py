"""Memory through which workers hand their state to those that take their place on the same node.

At a planned change all workers of a restarting backend end, and others take their places. What they leave in memory
need not be written to a file system that all nodes share, nor be read from there. It is a file in memory without a
name, so that no other process finds it, and the kernel frees it when the last process that has it open has ended: the
worker, or who starts the node's workers. That one holds it from one worker to the next, and closes it when the node
leaves the job.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.common.files import open_plain, write_atomically
from malletrain.common.job_folder import LEAVE_FILE
from malletrain.common.untrusted_json import JsonBounds, integer_of, parse_object, texts_of

MEMORY_NAME = "malletrain-handover"
"""What /proc shows as the file's name."""
_MAX_HOSTS = 100_000
_MAX_NAME = 300
_MAX_GENERATION = 1 << 62
_BOUNDS = JsonBounds(max_bytes=8 << 20, max_depth=2, max_entries=2 * _MAX_HOSTS + 10)


class HandoverMemories:
    """The memory of each place of a job's workers on this machine. Use from one thread."""

    def __init__(self) -> None:
        """There is none yet."""
        self._descriptors: dict[tuple[str, int], int] = {}

    def of(self, host: str, local_rank: int) -> int:
        """The descriptor of a place's memory, which is made if there is none; -1 if it can't be.

        Args:
            host: The node, or the GPU of a member of a fleet.
            local_rank: The worker's index there.
        """
        place = host, local_rank
        if place not in self._descriptors:
            try:
                self._descriptors[place] = os.memfd_create(MEMORY_NAME, os.MFD_CLOEXEC)
            except OSError:
                return -1  # no descriptors are left: states go by way of the disk
        return self._descriptors[place]

    def close(
        self, hosts: Iterable[str] | None = None, last_look: Callable[[int], object] = lambda _descriptor: None
    ) -> None:
        """Free what is on these hosts, or on all, once no worker has it open any more.

        Args:
            hosts: The hosts; None: all.
            last_look: Called with each descriptor before it is closed.
        """
        wanted = None if hosts is None else set(hosts)
        for place in [place for place in self._descriptors if wanted is None or place[0] in wanted]:
            descriptor = self._descriptors.pop(place)
            try:
                last_look(descriptor)
            finally:
                os.close(descriptor)


@dataclass(frozen=True)
class LeaveNotice:
    """What workers that are asked to leave are told.

    Attributes:
        generation: Of those that leave.
        staying: On which of their hosts other workers come after them.
        released: Hosts that are given back, and in how many seconds what is left there is killed.
    """

    generation: int
    staying: frozenset[str] = frozenset()
    released: Mapping[str, float] = field(default_factory=dict)


def write_leave_notice(folder: Path, notice: LeaveNotice) -> None:
    """Write down what is true from now on. Where that can't be written, workers know nothing, and use the disk.

    Args:
        folder: The job's folder.
        notice: What they are told.
    """
    released = [f"{seconds:.3f} {host}" for host, seconds in sorted(notice.released.items())]
    content = {"generation": notice.generation, "staying": sorted(notice.staying), "released": released}
    try:
        write_atomically(folder / LEAVE_FILE, json.dumps(content), sync=False)
    except OSError:
        with contextlib.suppress(OSError):
            (folder / LEAVE_FILE).unlink()


def read_leave_notice(folder: Path, generation: int) -> LeaveNotice:
    """What a generation is told; nothing if that is not known."""
    unknown = LeaveNotice(generation)
    try:
        with open_plain(folder / LEAVE_FILE) as file:
            document = parse_object(file.read(_BOUNDS.max_bytes + 1), _BOUNDS)
        if integer_of(document, "generation", 0, _MAX_GENERATION) != generation:
            return unknown
        released = (text.partition(" ") for text in texts_of(document, "released", _MAX_HOSTS, _MAX_NAME))
        seconds = {host: max(0.0, float(number)) for number, _, host in released}
        return LeaveNotice(generation, frozenset(texts_of(document, "staying", _MAX_HOSTS, _MAX_NAME)), seconds)
    except (OSError, ValueError):
        return unknown
