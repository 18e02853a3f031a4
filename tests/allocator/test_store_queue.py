"""What is stored from a thread is stored once, in order, and nothing of it is lost at an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from malletrain.allocator.store_queue import StoreQueue
from malletrain.runtime.database.errors import DatabaseUnavailableError
from tests.support.waiting import wait_until_async


class Database:
    """Takes items; may be away, or slow until it is let go on."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.refused = 0
        self.away = False
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def store(self, items: Sequence[int]) -> None:
        self.begun.set()
        self.may_go_on.wait(20)
        if self.away:
            self.refused += 1
            raise DatabaseUnavailableError("it is away")
        self.stored += items


@asynccontextmanager
async def running(queue: StoreQueue[int]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(queue.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_items_are_stored_in_order_in_a_thread() -> None:
    database = Database()
    queue = StoreQueue(database.store, "numbers", 100)
    async with running(queue):
        database.may_go_on.clear()
        queue.put(range(50))
        await wait_until_async(database.begun.is_set)
        queue.put([50])
        assert list(queue.waiting) == list(range(51)), "nobody waits, and what is not stored is known"
        database.may_go_on.set()
        await wait_until_async(lambda: not queue.waiting)
    assert database.stored == list(range(51))


async def test_what_could_not_be_stored_is_tried_again_and_the_oldest_go_where_too_much_waits() -> None:
    database = Database()
    queue = StoreQueue(database.store, "numbers", 5, pause_seconds=0.01)
    async with running(queue):
        database.away = True
        queue.put([1, 2, 3])
        await wait_until_async(lambda: database.refused > 1)
        queue.put([4, 5, 6, 7])
        database.away = False
        await wait_until_async(lambda: not queue.waiting)
    assert database.stored == [3, 4, 5, 6, 7]


async def test_at_an_end_everything_is_stored_once() -> None:
    database = Database()
    queue = StoreQueue(database.store, "numbers", 100)
    async with running(queue) as task:
        database.may_go_on.clear()
        queue.put(range(25))
        await wait_until_async(database.begun.is_set)
        task.cancel()
        queue.put([25])
        database.may_go_on.set()
    assert database.stored == list(range(26))
    database.away = True
    async with running(queue):
        queue.put([26])
    assert list(queue.waiting) == [26]
