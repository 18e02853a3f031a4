"""Processes of jobs: whose they are, waiting for their end, and ending them.

Whose a process is follows from the environment with which it was started.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from malletrain.common import environment as env
from malletrain.common.gpus import node_of
from malletrain.common.processes import FoundProcess, ProcessId, UserTest, find_processes, of_anybody, process_ids
from malletrain.common.user_threads import UserBusyError, UserThreads

_SWEEP_PAUSE_SECONDS = 0.02
_LAST_WORDS_SECONDS = 1.0
_MAX_KILLED_AT_ONCE = 50
_MAX_NAMED = 20

T = TypeVar("T")


class ProcessesLeftError(Exception):
    """Processes were killed and have not ended; they hang in the kernel, for example."""


def of_job(jobs: Path, job_id: str) -> Predicate:
    """Processes of a job, its supervisor included; `jobs` is the folder of the jobs' folders."""
    path = str(jobs / job_id)
    return lambda variables: variables.get(env.JOB_DIR) == path


def of_supervisor(jobs: Path, job_id: str, incarnation: int) -> Predicate:
    """One supervisor of a job."""
    is_mine = of_job(jobs, job_id)
    return lambda variables: (
        is_mine(variables) and env.NODE not in variables and variables.get(env.INCARNATION) == str(incarnation)
    )


def of_incarnation_on(jobs: Path, job_id: str, incarnation: int, nodes: frozenset[str]) -> Predicate:
    """Processes of a job on some nodes or GPUs, and one of its supervisors.

    Not its other supervisors: a later one may have started meanwhile.
    """
    is_mine, is_supervisor = of_job(jobs, job_id), of_supervisor(jobs, job_id, incarnation)
    return lambda variables: is_supervisor(variables) or (is_mine(variables) and variables.get(env.NODE) in nodes)


def of_workers_on(jobs: Path, job_id: str, nodes: frozenset[str] | None) -> Predicate:
    """Processes of a job on some nodes or GPUs, or on all, without its supervisors."""
    is_mine = of_job(jobs, job_id)
    return lambda variables: (
        is_mine(variables) and env.NODE in variables and (nodes is None or variables[env.NODE] in nodes)
    )


def of_other_jobs(jobs: Path, supervised: frozenset[str]) -> Predicate:
    """Processes of all jobs except the supervised ones."""
    parent = str(jobs)

    def is_meant(variables: Mapping[str, str]) -> bool:
        folder, _, job_id = variables.get(env.JOB_DIR, "").rpartition(os.sep)
        return folder == parent and job_id not in supervised

    return is_meant


def of_other_jobs_on(jobs: Path, supervised: frozenset[str], nodes: frozenset[str]) -> Predicate:
    """Processes on some nodes, whichever GPU of it they have, of all jobs except the supervised ones."""
    is_other = of_other_jobs(jobs, supervised)
    return lambda variables: node_of(variables.get(env.NODE, "")) in nodes and is_other(variables)


async def wait_for_end(process: ProcessId) -> None:
    """Wait until a process has ended. It need not be a child of this process."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:  # it has ended, or is a thread
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        if process.alive():
            loop.add_reader(descriptor, ended.set)
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def until_end(items: AsyncIterator[T], process: ProcessId) -> AsyncIterator[T]:
    """What a process sends, until the stream ends or the process has ended and no more arrives.

    A stream over gRPC may go on waiting for a peer that is gone.

    Args:
        items: The stream.
        process: Who sends it.
    """
    ending = asyncio.ensure_future(wait_for_end(process))
    reading: asyncio.Future[T | None] | None = None
    try:
        while True:
            reading = asyncio.ensure_future(anext(items, None))
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await asyncio.wait({reading}, timeout=_LAST_WORDS_SECONDS)
            if not reading.done() or (item := reading.result()) is None:
                return
            yield item
    finally:
        unfinished = [task for task in (reading, ending) if task is not None]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


async def call_unless_ended(process: ProcessId, call: Coroutine[None, None, bool]) -> bool:
    """Result of a call, or False as soon as the process that should answer has ended."""
    calling, ending = asyncio.ensure_future(call), asyncio.ensure_future(wait_for_end(process))
    try:
        await asyncio.wait({calling, ending}, return_when=asyncio.FIRST_COMPLETED)
        return calling.done() and calling.result()
    finally:
        calling.cancel()
        ending.cancel()
        await asyncio.gather(calling, ending, return_exceptions=True)


async def sweep(
    is_meant: Predicate,
    is_ours: UserTest = of_anybody,
    patience_seconds: float = 5.0,
    search: ProcessSearch | None = None,
    user_ids: Iterable[int] | None = None,
    still_meant: Predicate = lambda _: True,
) -> int:
    """Kill all processes that are meant, until none is left.

    Args:
        is_meant: Which ones.
        is_ours: Whether a process with an environment and with user ids can be meant.
        patience_seconds: How long they may take to end.
        search: Finds them, with its own `is_ours`; None: one that nobody else uses.
        user_ids: Users whose processes can be meant; None: all.
        still_meant: Asked about each that was found immediately before it is killed: while processes are looked at,
            other things go on.

    Returns:
        How many there were.

    Raises:
        ProcessesLeftError: some have not ended after `patience_seconds`, or looking at them takes too long.
    """
    killed: set[ProcessId] = set()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    search = ProcessSearch(is_ours) if search is None else search
    users = None if user_ids is None else frozenset(user_ids)
    while processes := await _find_meant(search, is_meant, users, still_meant):
        if loop.time() > deadline:
            named = ", ".join(str(process.id.pid) for process in processes[:_MAX_NAMED])
            raise ProcessesLeftError(f"still there: {len(processes)} processes: {named}")
        for begin in range(0, len(processes), _MAX_KILLED_AT_ONCE):
            # A user may have thousands: others are served meanwhile, and what is meant may change.
            for process in processes[begin : begin + _MAX_KILLED_AT_ONCE]:
                if still_meant(process.environment):
                    process.id.kill()
                    killed.add(process.id)
            await asyncio.sleep(0)
        await asyncio.sleep(_SWEEP_PAUSE_SECONDS)
    return len(killed)


async def _find_meant(
    search: ProcessSearch, is_meant: Predicate, users: frozenset[int] | None, still_meant: Predicate
) -> list[FoundProcess]:
    try:
        processes = await search.find(is_meant, users)
    except UserBusyError as error:
        raise ProcessesLeftError(f"not known to have ended: {error}") from error
    return [entry for entry in processes if still_meant(entry.environment)]


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
        """
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
        users: list[int | None] = [None] if user_ids is None else list(user_ids)
        processes = await asyncio.gather(*(self._find(is_meant, user_id) for user_id in users))
        return [process for part in processes for process in part if is_meant(process.environment)]

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
