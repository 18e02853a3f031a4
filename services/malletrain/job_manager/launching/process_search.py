"""Looks at processes of the machine for several who ask at the same time, in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from malletrain.common.processes import FoundProcess, UserTest, find_processes, of_anybody, process_ids
from malletrain.common.user_threads import UserThreads

Predicate = Callable[[Mapping[str, str]], bool]
"""Whether a process with an environment is meant. It is asked in another thread."""


@dataclass
class _Looks:
    """The looks at the processes of one user: one at a time, and the next one for all who have asked meanwhile."""

    meant: list[Predicate] = field(default_factory=list)
    next: asyncio.Task[list[FoundProcess]] | None = None
    newest: asyncio.Task[list[FoundProcess]] | None = None


class ProcessSearch:
    """Answers all who have asked for a user's processes before a look at them begins with that one look.

    A look takes 40 ms for a thousand processes, and much longer if their user wants it to. So it happens in a thread,
    and who asks for another user's processes does not wait for it.
    """

    def __init__(self, is_ours: UserTest = of_anybody, threads: UserThreads | None = None) -> None:
        """Look at nothing yet.

        Args:
            is_ours: Whether a process with an environment and with user ids can be meant.
            threads: Where it looks; None: in threads of its own.
        """
        self._is_ours = is_ours
        self._threads = UserThreads() if threads is None else threads
        self._looks: dict[int | None, _Looks] = {}

    async def find(self, is_meant: Predicate, user_ids: Iterable[int] | None = None) -> list[FoundProcess]:
        """Processes that are meant, by a look that begins after this call.

        Args:
            is_meant: Which ones.
            user_ids: Users whose processes can be meant; None: all users, which only those who trust all of them ask.

        Raises:
            UserBusyError: a user's processes take too long to look at.
        """
        asked: list[int | None] = [None] if user_ids is None else list(user_ids)
        found = await asyncio.gather(*(self._find(is_meant, user_id) for user_id in asked))
        return [process for part in found for process in part if is_meant(process.environment)]

    async def _find(self, is_meant: Predicate, user_id: int | None) -> list[FoundProcess]:
        looks = self._looks.setdefault(user_id, _Looks())
        looks.meant.append(is_meant)
        if looks.next is None:
            begun = self._look_after(looks.newest, looks, user_id)
            looks.next = looks.newest = asyncio.create_task(begun, name="process search")
        # Whoever is cancelled here leaves the others their answer.
        return await asyncio.shield(looks.next)

    async def _look_after(
        self, previous: asyncio.Task[list[FoundProcess]] | None, looks: _Looks, user_id: int | None
    ) -> list[FoundProcess]:
        if previous is not None:
            await asyncio.wait({previous})
        meant, looks.meant, looks.next = looks.meant, [], None

        def look() -> list[FoundProcess]:
            users = None if user_id is None else {user_id}
            return list(
                find_processes(
                    lambda seen: any(is_meant(seen) for is_meant in meant), self._is_ours, process_ids(), users
                )
            )

        try:
            return await self._threads.run(user_id, look)
        finally:
            if looks.newest is asyncio.current_task() and not looks.meant:
                self._looks.pop(user_id, None)
