"""Those who ask at the same time are answered by one look at all processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator, Mapping

import pytest

from malletrain.common.processes import ProcessId, process_ids
from malletrain.job_manager.launching.process_search import Predicate, ProcessSearch


def marked(mark: str) -> Predicate:
    return lambda found: found.get("MARK") == mark


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

    monkeypatch.setattr("malletrain.job_manager.launching.process_search.process_ids", counted)
    return found


async def test_one_look_answers_all_who_asked_before_it(children: dict[str, int], looks: list[int]) -> None:
    search = ProcessSearch()
    found = await asyncio.gather(*(search.find(marked(mark)) for mark in ("one", "two", "none", "one")))
    assert [[process.pid for process in answer] for answer in found] == [
        [children["one"]],
        [children["two"]],
        [],
        [children["one"]],
    ]
    assert len(looks) == 1


async def test_who_asks_during_a_look_is_answered_by_the_next(children: dict[str, int], looks: list[int]) -> None:
    search, later = ProcessSearch(), list[asyncio.Task[list[ProcessId]]]()

    def asks_again(found: Mapping[str, str]) -> bool:
        if not later:
            later.append(asyncio.ensure_future(search.find(marked("two"))))
        return marked("one")(found)

    assert [process.pid for process in await search.find(asks_again)] == [children["one"]]
    assert [process.pid for process in await later[0]] == [children["two"]]
    assert len(looks) == 2


async def test_one_who_does_not_wait_any_more_keeps_nobody_else(children: dict[str, int]) -> None:
    search = ProcessSearch()
    impatient, patient = (asyncio.ensure_future(search.find(marked(mark))) for mark in ("one", "two"))
    await asyncio.sleep(0)
    impatient.cancel()
    assert [process.pid for process in await patient] == [children["two"]]
    assert impatient.cancelled()


async def test_a_look_that_fails_is_told_and_the_next_one_works(children: dict[str, int]) -> None:
    search = ProcessSearch()

    def fails(found: Mapping[str, str]) -> bool:
        raise ValueError(found)

    with pytest.raises(ValueError, match="PATH"):
        await search.find(fails)
    assert [process.pid for process in await search.find(marked("one"))] == [children["one"]]
