"""Those who ask at the same time are answered by one look at all processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping

import pytest

from malletrain.common.processes import FoundProcess, process_ids
from malletrain.job_manager.launching.processes import Predicate, ProcessSearch
from tests.support.waiting import wait_until_async


def marked(mark: str) -> Predicate:
    return lambda found: found.get("MARK") == mark


def pids(found: Iterable[FoundProcess]) -> list[int]:
    return [process.id.pid for process in found]


@pytest.fixture
def children() -> Iterator[dict[str, int]]:
    """Pids of two processes, by their marks."""
    started = {
        mark: subprocess.Popen(["sleep", "60"], env={"MARK": mark, "PATH": os.defpath}) for mark in ("one", "two")
    }
    yield {mark: process.pid for mark, process in started.items()}
    for process in started.values():
        process.kill()
        process.wait()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many processes there were at each look."""
    found: list[int] = []

    def counted() -> Iterator[int]:
        present = list(process_ids())
        found.append(len(present))
        return iter(present)

    monkeypatch.setattr("malletrain.job_manager.launching.processes.process_ids", counted)
    return found


async def test_one_look_answers_all_who_asked_before_it(children: dict[str, int], looks: list[int]) -> None:
    search = ProcessSearch()
    found = await asyncio.gather(*(search.find(marked(mark)) for mark in ("one", "two", "none", "one")))
    assert [pids(answer) for answer in found] == [
        [children["one"]],
        [children["two"]],
        [],
        [children["one"]],
    ]
    assert len(looks) == 1


async def test_who_asks_during_a_look_is_answered_by_the_next(children: dict[str, int], looks: list[int]) -> None:
    search, looking, asked = ProcessSearch(), threading.Event(), threading.Event()

    def waits(found: Mapping[str, str]) -> bool:
        looking.set()
        assert asked.wait(30), "the event loop goes on while processes are looked at"
        return marked("one")(found)

    first = asyncio.ensure_future(search.find(waits))
    await wait_until_async(looking.is_set, 30, "the first look")
    later = asyncio.ensure_future(search.find(marked("two")))
    await asyncio.sleep(0)
    asked.set()
    assert pids(await first) == [children["one"]]
    assert pids(await later) == [children["two"]]
    assert len(looks) == 2


async def test_one_who_does_not_wait_any_more_keeps_nobody_else(children: dict[str, int]) -> None:
    search = ProcessSearch()
    impatient, patient = (asyncio.ensure_future(search.find(marked(mark))) for mark in ("one", "two"))
    await asyncio.sleep(0)
    impatient.cancel()
    assert pids(await patient) == [children["two"]]
    assert impatient.cancelled()


async def test_a_look_that_fails_is_told_and_the_next_one_works(children: dict[str, int]) -> None:
    search = ProcessSearch()

    def fails(found: Mapping[str, str]) -> bool:
        raise ValueError(found)

    with pytest.raises(ValueError, match="PATH"):
        await search.find(fails)
    assert pids(await search.find(marked("one"))) == [children["one"]]
