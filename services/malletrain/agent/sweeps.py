"""Sweeps of jobs' processes on an agent's node, in threads: how long one takes is in the hands of the job's owner."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from malletrain.agent.wire import Log
from malletrain.common.tasks import start_task
from malletrain.common.user_threads import UserBusyError, UserThreads


class Sweeps(Protocol):
    """Does sweeps for sessions."""

    def begin(self, user_id: int, job_id: str, sweep: Callable[[], None], done: Callable[[], None]) -> None:
        """Do one for a job, and call `done` then. Not if it could not be done."""

    def is_under_way(self, job_id: str) -> bool:
        """Whether there is one of a job: processes of it that begin meanwhile would be ended, too."""


class SweepsAtOnce:
    """Does each sweep before `begin` returns. An agent, which has many sessions, uses `SweepsInThreads`."""

    def begin(self, user_id: int, job_id: str, sweep: Callable[[], None], done: Callable[[], None]) -> None:
        """Do it, and call `done`."""
        del user_id, job_id
        sweep()
        done()

    def is_under_way(self, job_id: str) -> bool:
        """Never: each is over when `begin` returns."""
        del job_id
        return False


class SweepsInThreads:
    """Each is done in a thread of the job's owner. Use from one event loop."""

    def __init__(self, log: Log) -> None:
        """Nothing happens before `begin`.

        Args:
            log: Called with a line about each sweep that could not be done.
        """
        self._log = log
        self._threads = UserThreads()
        self._tasks: set[asyncio.Task[object]] = set()
        self._under_way: Counter[str] = Counter()

    def begin(self, user_id: int, job_id: str, sweep: Callable[[], None], done: Callable[[], None]) -> None:
        """Begin a sweep in a thread, and call `done` in the event loop after it."""
        self._under_way[job_id] += 1
        task = start_task(self._sweep(user_id, job_id, sweep, done), f"sweep of {job_id}", self._log_error)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def is_under_way(self, job_id: str) -> bool:
        """Whether there is one of a job."""
        return self._under_way[job_id] > 0

    async def _sweep(self, user_id: int, job_id: str, sweep: Callable[[], None], done: Callable[[], None]) -> None:
        try:
            await self._threads.run(user_id, sweep)
            done()
        except UserBusyError as error:
            self._log(f"processes of {job_id} could not be looked for: {error}")
        finally:
            self._under_way[job_id] -= 1
            if not self._under_way[job_id]:
                del self._under_way[job_id]

    def _log_error(self, error: BaseException) -> None:
        self._log(f"a sweep has failed: {error!r}")
