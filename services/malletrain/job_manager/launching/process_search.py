"""Looks at all processes of the machine for several who ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from malletrain.common.processes import FoundProcess, ProcessId, UserTest, find_processes, of_anybody, process_ids

_LOOKED_AT_ONCE = 25

Predicate = Callable[[Mapping[str, str]], bool]
"""Whether a process with an environment is meant."""


class ProcessSearch:
    """Answers all who have asked before a look at /proc begins with that one look.

    A look takes 40 ms for a thousand processes. Other things go on meanwhile. With a look for each who asks, twenty
    jobs that end and start in a second would keep an event loop busy all the time.
    """

    def __init__(self, is_ours: UserTest = of_anybody) -> None:
        """Look at nothing yet.

        Args:
            is_ours: Whether a process with an environment and with user ids can be meant.
        """
        self._is_ours = is_ours
        self._meant: list[Predicate] = []
        self._next: asyncio.Task[list[FoundProcess]] | None = None
        self._newest: asyncio.Task[list[FoundProcess]] | None = None

    async def find(self, is_meant: Predicate) -> list[ProcessId]:
        """Processes that are meant, by a look that begins after this call."""
        self._meant.append(is_meant)
        if self._next is None:
            self._next = self._newest = asyncio.create_task(self._look_after(self._newest), name="process search")
        # Whoever is cancelled here leaves the others their answer.
        found = await asyncio.shield(self._next)
        return [process.id for process in found if is_meant(process.environment)]

    async def _look_after(self, previous: asyncio.Task[list[FoundProcess]] | None) -> list[FoundProcess]:
        if previous is not None:
            await asyncio.wait({previous})
        meant, self._meant, self._next = self._meant, [], None
        found: list[FoundProcess] = []
        pids = list(process_ids())
        for first in range(0, len(pids), _LOOKED_AT_ONCE):
            among = pids[first : first + _LOOKED_AT_ONCE]
            found += find_processes(lambda seen: any(is_meant(seen) for is_meant in meant), self._is_ours, among)
            await asyncio.sleep(0)
        return found
