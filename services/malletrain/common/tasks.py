"""Tasks and threads that last: none ends without anybody noticing.

asyncio and threading only print what ends a task or a thread, if that much; the process goes on without it, and looks
healthy. Here somebody is told, who repairs it or ends: by default the process ends, and whoever started it starts it
anew. Tasks that their creator awaits need nothing of this; `tests/hostile/test_tasks.py` lists them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

DEFECT_STATUS = 70
"""Exit status of a process that a defect ends (EX_SOFTWARE)."""

TellFailure = Callable[[BaseException], object]
"""Called once with what has ended a task or thread."""


class TaskEndedError(Exception):
    """A task that should have lasted has ended by itself, without an error."""


def end_process(error: BaseException) -> NoReturn:
    """Print an error with its traceback, and end this process at once: its state can't be trusted any more."""
    traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()
    os._exit(DEFECT_STATUS)


async def lasting(work: Coroutine[Any, Any, object], name: str) -> NoReturn:
    """Do what should last until it is cancelled; for groups, which notice errors and not a quiet end.

    Args:
        work: What to do; nothing else is done by the same task.
        name: What it is called in the error, and the task from now on.

    Raises:
        TaskEndedError: it has ended without an error, or by a cancellation of something else.
        Exception: what has ended it.
    """
    if (task := asyncio.current_task()) is not None:
        task.set_name(name)
    await ending(work, name)
    raise TaskEndedError(f"{name} has ended by itself")


async def ending(work: Coroutine[Any, Any, object], name: str) -> None:
    """Do what may end, but not by a cancellation that nobody has asked for; for groups, which overlook these.

    What reads a gRPC call that somebody else cancels, or whose channel is closed, gets the same error as a task that is
    cancelled itself.

    Args:
        work: What to do; nothing else is done by the same task.
        name: What it is called in the error.

    Raises:
        TaskEndedError: it was not cancelled, and yet has ended by a cancellation.
        Exception: what has ended it.
    """
    try:
        await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise TaskEndedError(f"{name} has ended by the cancellation of something else") from error


def start_task(work: Coroutine[Any, Any, object], name: str, failed: TellFailure = end_process) -> asyncio.Task[object]:
    """Start what may end, but not by an error that nobody notices.

    Args:
        work: What to do.
        name: What the task is called.
        failed: Called with the error that has ended it. By default the process ends.

    Returns:
        The task; whoever starts it keeps it, since the event loop does not.
    """
    task: asyncio.Task[object] = asyncio.get_running_loop().create_task(ending(work, name), name=name)

    def look(ended: asyncio.Task[object]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None:
            failed(error)

    task.add_done_callback(look)
    return task


class Crew:
    """Tasks that last as long as their owner, which is told when one has ended before. Use from one event loop.

    Attributes:
        failure: What has ended the first task that has ended; None while all go on.
    """

    def __init__(self, ended: Callable[[], object]) -> None:
        """
        Args:
            ended: Called when a task has ended that was not cancelled; `check` says why.
        """
        self._ended = ended
        self._tasks: list[asyncio.Task[object]] = []
        self.failure: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, object], name: str, *, may_end: bool = False) -> None:
        """Start a task.

        Args:
            work: What to do.
            name: What it is called.
            may_end: Whether it may end without an error.
        """
        self._tasks.append(start_task(work if may_end else lasting(work, name), name, self._keep_error))

    def _keep_error(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._ended()

    @property
    def working(self) -> int:
        """How many tasks go on."""
        return sum(not task.done() for task in self._tasks)

    def check(self) -> None:
        """Raise what has ended a task, if one has ended.

        Raises:
            TaskEndedError: a task has ended that should have lasted.
            Exception: the error that has ended one.
        """
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Cancel all tasks, and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def start_thread(work: Callable[[], object], name: str, failed: TellFailure = end_process) -> threading.Thread:
    """Start a thread that does not keep the process from ending.

    Args:
        work: What it does.
        name: What it is called.
        failed: Called in the thread with the error that has ended it. By default the process ends.
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it must not end a thread quietly
            failed(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
