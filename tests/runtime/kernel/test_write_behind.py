"""What is stored behind a state is stored once, in order, and nothing of it is lost at an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from malletrain.runtime.database.errors import CommitUnknownError, DatabaseUnavailableError
from malletrain.runtime.kernel.write_behind import WriteBehind
from tests.support.waiting import wait_until_async

Numbers = tuple[int, ...]


class Database:
    """Takes numbers; may be away, slow until it is let go on, or store and report an error nevertheless."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.refused = 0
        self.away = False
        self.unknown = False
        self.threads: set[int] = set()
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def store(self, items: Numbers) -> None:
        self.threads.add(threading.get_ident())
        self.begun.set()
        self.may_go_on.wait(20)
        if self.away:
            self.refused += 1
            raise DatabaseUnavailableError("numbers")
        if tuple(self.stored[-len(items) :]) != items:
            self.stored += items
        if self.unknown:
            raise CommitUnknownError("numbers")


def behind(database: Database, most: int = 100) -> WriteBehind[Numbers]:
    return WriteBehind(database.store, lambda earlier, later: (*earlier, *later)[-most:], "numbers", retry_seconds=0.01)


@asynccontextmanager
async def running(writer: WriteBehind[Numbers]) -> AsyncIterator[None]:
    task = asyncio.create_task(writer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_batches_are_stored_in_order_in_a_thread() -> None:
    database = Database()
    writer = behind(database)
    async with running(writer):
        database.may_go_on.clear()
        writer.add((1, 2))
        await wait_until_async(database.begun.is_set)
        writer.add((3,))
        writer.add((4,))
        assert writer.waiting == ((1, 2), (3, 4)), "nobody waits, and what is not stored is known"
        database.may_go_on.set()
        await writer.wait_until_stored()
    assert database.stored == [1, 2, 3, 4]
    assert threading.get_ident() not in database.threads


async def test_what_was_tried_stays_as_it_is_and_what_came_later_is_bounded() -> None:
    database = Database()
    writer = behind(database, most=3)
    async with running(writer):
        database.away = True
        writer.add((1, 2))
        await wait_until_async(lambda: database.refused > 1)
        for number in (3, 4, 5, 6):
            writer.add((number,))
        assert writer.waiting == ((1, 2), (4, 5, 6))
        with pytest.raises(DatabaseUnavailableError):
            await writer.wait_until_stored()
        database.away = False
        await wait_until_async(lambda: not writer.behind)
    assert database.stored == [1, 2, 4, 5, 6]


async def test_a_commit_that_is_not_known_is_stored_once() -> None:
    database = Database()
    writer = behind(database)
    async with running(writer):
        database.unknown = True
        writer.add((1,))
        await wait_until_async(lambda: writer.failing)
        writer.add((2,))
        database.unknown = False
        await wait_until_async(lambda: not writer.behind)
    assert database.stored == [1, 2]


async def test_what_is_only_done_if_it_is_stored() -> None:
    database = Database()
    writer = behind(database)
    writer.write_now((1,))
    assert database.stored == [1]
    database.away = True
    with pytest.raises(DatabaseUnavailableError):
        writer.write_now((2,))
    assert not writer.behind, "it was refused"
    database.away, database.unknown = False, True
    with pytest.raises(CommitUnknownError):
        writer.write_now((3,))
    assert writer.waiting == ((3,),)
    with pytest.raises(DatabaseUnavailableError):
        writer.write_now((4,))  # not before what waits
    database.unknown = False
    await writer.flush()
    assert database.stored == [1, 3]


async def test_at_an_end_everything_is_stored_once() -> None:
    database = Database()
    writer = behind(database)
    async with running(writer):
        database.may_go_on.clear()
        writer.add((1,))
        await wait_until_async(database.begun.is_set)
    writer.add((2,))
    database.may_go_on.set()
    await writer.flush()
    assert database.stored == [1, 2]
    database.away = True
    writer.add((3,))
    await writer.flush()
    assert writer.waiting == ((3,),)


async def test_what_belongs_together_is_one_batch() -> None:
    database, may_begin = Database(), asyncio.Event()
    stored: list[Numbers] = []
    writer = WriteBehind(
        database.store,
        lambda earlier, later: (*earlier, *later),
        "n",
        on_stored=stored.append,
        may_begin=may_begin.wait,
    )
    async with running(writer):
        writer.add((1,))
        writer.add((2,))
        may_begin.set()
        await writer.wait_until_stored()
    assert stored == [(1, 2)]
