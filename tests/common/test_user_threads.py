"""What looks at users' things happens in threads: an event loop goes on, and nobody waits for another user."""

from __future__ import annotations

import asyncio
import threading

import pytest

from malletrain.common.user_threads import UserBusyError, UserThreads
from tests.support.waiting import wait_until_async


class Gate:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.begun = 0
        self._open = threading.Event()

    def pass_through(self) -> str:
        self.begun += 1
        assert self._open.wait(30)
        return threading.current_thread().name

    def open(self) -> None:
        self._open.set()


async def test_work_happens_in_another_thread_and_says_how_it_went() -> None:
    threads = UserThreads()
    assert await threads.run(7, lambda: threading.current_thread().name) == "of user 7"
    with pytest.raises(ZeroDivisionError):
        await threads.run(7, lambda: 1 / 0)
    with pytest.raises(TimeoutError, match="its own"):
        await threads.run(7, _fails_by_time)


def _fails_by_time() -> None:
    raise TimeoutError("its own")


async def test_a_user_who_keeps_its_threads_busy_keeps_nobody_else_waiting() -> None:
    threads, gate = UserThreads(at_once=2), Gate()
    busy = [asyncio.ensure_future(threads.run("evil", gate.pass_through)) for _ in range(5)]
    await wait_until_async(lambda: gate.begun == 2, 30, "both threads")
    assert await threads.run("good", lambda: 1) == 1
    assert gate.begun == 2, "no more of one user at a time"
    gate.open()
    assert await asyncio.gather(*busy) == ["of user evil"] * 5


async def test_too_many_who_wait_are_turned_away() -> None:
    threads, gate = UserThreads(at_once=1, max_waiting=2), Gate()
    busy = [asyncio.ensure_future(threads.run("evil", gate.pass_through)) for _ in range(3)]
    await wait_until_async(lambda: gate.begun == 1, 30, "the thread")
    with pytest.raises(UserBusyError, match="2 others wait"):
        await threads.run("evil", lambda: 1)
    gate.open()
    await asyncio.gather(*busy)
    assert await threads.run("evil", lambda: 1) == 1


async def test_what_takes_too_long_is_given_up_and_keeps_its_thread() -> None:
    threads, gate = UserThreads(at_once=1, seconds=0.05), Gate()
    with pytest.raises(UserBusyError, match="longer"):
        await threads.run("evil", gate.pass_through)
    with pytest.raises(UserBusyError, match="nothing could be looked at"):
        await threads.run("evil", lambda: 1)
    gate.open()
    patient = UserThreads()
    assert await patient.run("evil", lambda: 1) == 1


async def test_one_who_is_cancelled_leaves_its_turn_to_the_next() -> None:
    threads, gate = UserThreads(at_once=1), Gate()
    first = asyncio.ensure_future(threads.run("a", gate.pass_through))
    await wait_until_async(lambda: gate.begun == 1, 30, "the thread")
    second, third = (asyncio.ensure_future(threads.run("a", lambda: 1)) for _ in range(2))
    await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    gate.open()
    assert await third == 1
    assert second.cancelled()
    assert first.cancelled()
