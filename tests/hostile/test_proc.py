"""Processes with enormous environments: of users who have no job they are not read, of others only the beginning."""

from __future__ import annotations

import asyncio
import builtins
import os
import pwd
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from malletrain.common import processes
from malletrain.common.processes import find_processes, may_belong_to, read_environment
from malletrain.job_manager.launching.processes import ProcessSearch, sweep
from tests.support.stranger import needs_another_account
from tests.support.waiting import wait_until

_LARGE = {f"LARGE_{number}": "x" * 100_000 for number in range(15)}


def sleeper(user: str | None = None, /, **environment: str) -> subprocess.Popen[bytes]:
    started = subprocess.Popen(["/bin/sleep", "600"], env={"PATH": os.defpath, **environment}, user=user)
    try:
        wait_until(lambda: Path(f"/proc/{started.pid}/comm").read_bytes() == b"sleep\n", 30, "its exec")
    except BaseException:
        end(started)
        raise
    return started


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Process and thread of each look into an environment."""
    seen: list[tuple[str, int]] = []

    def noted(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).endswith("/environ"):
            seen.append((str(path), threading.get_ident()))
        return builtins.open(path, *arguments, **options)  # noqa: PTH123

    monkeypatch.setattr(processes, "open", noted, raising=False)
    return seen


@pytest.fixture
def mine() -> Iterator[subprocess.Popen[bytes]]:
    process = sleeper(MARK="mine")
    yield process
    end(process)


@needs_another_account
def test_environments_of_other_users_are_not_read(reads: list[tuple[str, int]], mine: subprocess.Popen[bytes]) -> None:
    with ExitStack() as stack:
        strangers = []
        for _ in range(5):
            strangers.append(sleeper("nobody", MARK="mine", **_LARGE))
            stack.callback(end, strangers[-1])
        found = list(find_processes(lambda seen: seen.get("MARK") == "mine", user_ids={os.geteuid()}))
        assert [process.id.pid for process in found] == [mine.pid]
        assert not {f"/proc/{process.pid}/environ" for process in strangers} & {path for path, _ in reads}


@needs_another_account
def test_a_process_that_lets_nobody_look_into_it_is_known_by_its_user_all_the_same() -> None:
    user_id = pwd.getpwnam("nobody").pw_uid
    closed = "import ctypes, os, time; os.setgid(65534); os.setuid({}); ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); "
    program = closed.format(user_id) + "print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert may_belong_to(process.pid, {user_id})
        assert not may_belong_to(process.pid, {user_id + 1})
    finally:
        end(process)


def test_of_a_large_environment_the_beginning_is_read() -> None:
    large, many = sleeper(FIRST="1", **_LARGE), sleeper(FIRST="1", **{f"V{number}": "1" for number in range(20_000)})
    for process in (large, many):
        found = read_environment(process.pid)
        assert found["FIRST"] == "1"
        assert sum(map(len, (*found, *found.values()))) <= 256 << 10
        assert len(found) <= 4096
        end(process)


async def test_the_event_loop_goes_on_while_processes_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, mine: subprocess.Popen[bytes]
) -> None:
    turned, plain = threading.Event(), processes.read_environment

    def slow(pid: int) -> dict[str, str]:
        assert turned.wait(30), "the event loop stands still"
        return plain(pid)

    monkeypatch.setattr(processes, "read_environment", slow)
    loop = asyncio.get_running_loop()
    loop.call_later(0.01, lambda: loop.call_soon(turned.set))
    assert await sweep(lambda seen: seen.get("MARK") == "mine") == 1
    assert mine.wait(10) < 0


async def test_one_users_processes_keep_no_search_for_those_of_another_waiting(
    monkeypatch: pytest.MonkeyPatch, mine: subprocess.Popen[bytes]
) -> None:
    ended, plain = threading.Event(), processes.may_belong_to

    def slow(pid: int, user_ids: Any) -> bool:
        if user_ids == {4711}:
            assert ended.wait(30)
        return plain(pid, user_ids)

    monkeypatch.setattr(processes, "may_belong_to", slow)
    search = ProcessSearch()
    hostile = asyncio.ensure_future(search.find(lambda _: True, {4711}))
    found = await search.find(lambda seen: seen.get("MARK") == "mine", {os.geteuid()})
    assert [process.id.pid for process in found] == [mine.pid]
    assert not hostile.done()
    ended.set()
    assert await hostile == []


async def test_what_is_meant_is_asked_again_before_it_is_killed(mine: subprocess.Popen[bytes]) -> None:
    def still_meant(_: object) -> bool:
        assert threading.current_thread() is threading.main_thread()
        return False

    assert await sweep(lambda seen: seen.get("MARK") == "mine", still_meant=still_meant) == 0
    assert mine.poll() is None
