"""Commands that services run: with real programs, also such as can't be started or do not end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from malletrain.common import commands as module
from malletrain.common.child_process import find_program, spawn, through_shell
from malletrain.common.commands import RunningCommand, StartTimeoutError, start_command
from malletrain.common.processes import identify, read_status
from tests.support.slow_programs import held_program
from tests.support.waiting import wait_until, wait_until_async

ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


async def run(*words: str, stdin: bytes | None = None) -> tuple[int, bytes, bytes]:
    command = await start_command(words, ENVIRONMENT, stdin=stdin)
    try:
        output, errors = await command.communicate()
        return await command.wait(), output, errors
    finally:
        await command.close()


async def test_a_command_gets_what_it_is_given_and_nothing_else() -> None:
    assert await run("sh", "-c", "cat; echo said >&2; exit 3", stdin=b"x" * 200_000) == (3, b"x" * 200_000, b"said\n")
    assert await run("cat") == (0, b"", b"")
    assert await run("sh", "-c", "kill -9 $$") == (-signal.SIGKILL, b"", b"")
    pipe = os.pipe()
    os.set_inheritable(pipe[0], True)
    try:
        shown = "echo /proc/$$/fd/*; ps -o sid= -p $$; echo $$; echo $1"
        status, output, _ = await run("sh", "-c", shown, "sh", "a 'b' $c")
    finally:
        for number in pipe:
            os.close(number)
    files, session, pid, argument = output.decode().splitlines()
    assert status == 0
    assert {Path(name).name for name in files.split()} <= {"0", "1", "2", "3", "10"}
    assert int(session) == int(pid)
    assert argument == "a 'b' $c"


async def test_a_command_that_is_not_heard_prints_nowhere() -> None:
    command = await start_command(("sh", "-c", "yes | head -c 1000000; yes | head -c 1000000 >&2"), ENVIRONMENT,
                                  hear_output=False, hear_errors=False)  # fmt: skip
    try:
        assert await command.wait() == 0
        assert await command.communicate() == (b"", b"")
    finally:
        await command.close()


async def test_what_can_not_be_started_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await run("/no/such/program")
    with pytest.raises(FileNotFoundError):
        await run("no-such-program")
    with pytest.raises(ValueError, match="null"):
        await run("echo", "\0")


async def test_one_that_somebody_else_has_collected_has_failed() -> None:
    for _ in range(20):
        command = await start_command(("sleep", "600"), ENVIRONMENT)
        await asyncio.to_thread(_collect, command.pid)
        assert await command.wait() == -signal.SIGKILL
        await command.close()


def _collect(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


async def test_closing_kills_the_session_and_leaves_no_zombie(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; wait"
    command = await start_command(("sh", "-c", script), ENVIRONMENT)
    await wait_until_async((tmp_path / "pid").exists, what="the child")
    child = int(await wait_until_async((tmp_path / "pid").read_text))
    await command.close()
    assert command.returncode == -signal.SIGKILL
    assert read_status(command.pid) is None
    await wait_until_async(lambda: identify(child) is None, what="the end of the child")


async def test_the_event_loop_goes_on_while_a_program_can_not_be_executed(tmp_path: Path) -> None:
    turns: list[float] = []

    async def turn() -> None:
        while True:
            turns.append(time.monotonic())
            await asyncio.sleep(0.01)

    turning = asyncio.create_task(turn())
    with held_program(tmp_path / "held") as program:
        begin = time.monotonic()
        command = await start_command((str(program),), ENVIRONMENT)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await command.communicate()
        await command.close()
        assert time.monotonic() - begin < 5
        assert command.returncode == -signal.SIGKILL
    turning.cancel()
    assert max(later - former for former, later in pairwise(turns)) < 0.9


async def test_without_descriptors_left_there_is_an_error_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(number: int, real: Callable[[int], int] = os.dup) -> int:
        if len(copies) == 2:
            raise OSError(errno.EMFILE, "none left")
        copies.append(real(number))
        return copies[-1]

    copies: list[int] = []
    monkeypatch.setattr(os, "dup", none_left)
    with pytest.raises(OSError, match="none left"):
        await start_command(("true",), ENVIRONMENT)
    assert len(copies) == 2
    for copy in copies:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(copy)


async def test_a_start_that_does_not_return_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, started = threading.Event(), []

    def slow(*arguments: object, **options: object) -> object:
        assert may_go_on.wait(30)
        process = spawn(*arguments, **options)  # type: ignore[arg-type]
        started.append(process)
        return process

    monkeypatch.setattr(module, "spawn", slow)
    with pytest.raises(StartTimeoutError):
        await start_command(("sleep", "1000"), ENVIRONMENT, seconds=0.2)
    may_go_on.set()
    await wait_until_async(lambda: started and read_status(started[0].pid) is None, what="the end of what began late")


async def test_commands_that_do_not_end_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNENDED", 2)
    running: list[RunningCommand] = []
    try:
        for _ in range(2):
            running.append(await start_command(("sleep", "1000"), ENVIRONMENT))
        with pytest.raises(StartTimeoutError, match="2 earlier commands"):
            await start_command(("true",), ENVIRONMENT)
    finally:
        for command in running:
            await command.close()


NO_ROOM = """
import os, resource, sys
from malletrain.common.child_process import spawn, through_shell
forked = []
os.register_at_fork(before=lambda: forked.append(1))
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    spawn(through_shell(["true"], os.environ), os.environ, stdin=0, stdout=1, stderr=2)
except BlockingIOError as error:
    print("no room", len(forked))
"""


def test_a_machine_without_room_is_an_error_and_no_fork() -> None:
    done = subprocess.run([sys.executable, "-c", NO_ROOM], capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout, done.stderr) == ("no room 0\n", "")


def test_descriptors_are_passed_under_their_numbers() -> None:
    reading, writing = os.pipe()
    process = spawn(("sh", "-c", f"echo passed > /proc/self/fd/{writing}"), ENVIRONMENT, stdin=0, stdout=1, stderr=2,
                    pass_fds=[writing])  # fmt: skip
    os.close(writing)
    assert os.read(reading, 100) == b"passed\n"
    os.close(reading)
    assert process.wait(10) == 0
    assert process.wait() == process.poll() == 0


def test_a_process_is_waited_for_no_longer_than_asked() -> None:
    process = spawn(("sleep", "1000"), ENVIRONMENT, stdin=0, stdout=1, stderr=2)
    with pytest.raises(TimeoutError):
        process.wait(0.05)
    process.terminate()
    assert process.wait(10) == -signal.SIGTERM
    process.kill()  # it has ended: nobody else's process with its number gets the signal


def test_a_shell_begins_and_the_program_is_found_before(tmp_path: Path) -> None:
    assert through_shell(["true"], ENVIRONMENT)[0] == "/bin/sh"
    assert find_program("true", ENVIRONMENT).endswith("/true")
    (tmp_path / "plain").write_text("")
    with pytest.raises(PermissionError):
        find_program(str(tmp_path / "plain"), ENVIRONMENT)
    reading, writing = os.pipe()
    process = spawn(through_shell(["pwd"], ENVIRONMENT, "/"), ENVIRONMENT, stdin=0, stdout=writing, stderr=2)
    os.close(writing)
    wait_until(lambda: process.poll() is not None)
    assert os.read(reading, 100) == b"/\n"
    os.close(reading)
