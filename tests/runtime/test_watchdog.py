"""Watchdogs of the event loop: what systemd is told, and a process whose loop stands still."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from malletrain.runtime.watchdog import (
    LoopWatchdog,
    NoWatchdog,
    SystemdWatchdog,
    TimerWatchdog,
    keep_telling,
    watchdog_for,
)
from tests.support.waiting import wait_until
from tests.system.deployment import write_settings


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The socket of a stand-in for systemd, and its address."""
    address = str(tmp_path / "notify")
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        listener.bind(address)
        listener.settimeout(30)
        yield address, listener


async def test_systemd_is_told(systemd: tuple[str, socket.socket]) -> None:
    address, listener = systemd
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    watchdog = watchdog_for(environment, 60.0)
    assert environment == {"A": "b"}  # the rest is not for children
    assert watchdog.pause_seconds == pytest.approx(0.025)
    watchdog.serving()
    telling = asyncio.create_task(keep_telling(watchdog))
    said = [await asyncio.to_thread(listener.recv, 100) for _ in range(4)]
    telling.cancel()
    assert said == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    listener.setblocking(False)
    watchdog.stopping()
    assert b"STOPPING=1" in iter(lambda: listener.recv(100), None)


def test_an_abstract_address_is_one() -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        listener.bind(f"\0malletrain-test-{os.getpid()}")
        SystemdWatchdog(f"@malletrain-test-{os.getpid()}", 0.0).serving()
        assert listener.recv(100) == b"READY=1"


def test_a_systemd_that_is_gone_ends_nobody(tmp_path: Path) -> None:
    watchdog = SystemdWatchdog(str(tmp_path / "gone"), 1.0)
    watchdog.serving()
    watchdog.alive()


@pytest.mark.parametrize(
    ("environment", "asked", "hang_seconds", "kind"),
    [
        ({}, False, 60.0, TimerWatchdog),
        ({}, False, 0.0, NoWatchdog),
        ({}, True, 60.0, NoWatchdog),
        ({"NOTIFY_SOCKET": "/a"}, True, 60.0, NoWatchdog),
        ({"NOTIFY_SOCKET": "/a", "WATCHDOG_USEC": "nonsense"}, False, 60.0, SystemdWatchdog),
    ],
)
def test_who_watches(environment: dict[str, str], asked: bool, hang_seconds: float, kind: type[LoopWatchdog]) -> None:
    assert type(watchdog_for(environment, hang_seconds, sys.__stderr__, asked=asked)) is kind
    assert environment == {}


LOOP = """
import asyncio, ctypes, sys, time
from malletrain.runtime.watchdog import keep_telling, watchdog_for

async def main():
    telling = asyncio.create_task(keep_telling(watchdog_for({}, 1.0)))
    await asyncio.sleep(2)  # twice as long as it may stand still
    print("went on", flush=True)
    stand_still()

def stand_still():
    ctypes.PyDLL(None).sleep(1000)  # with the interpreter lock

asyncio.run(main())
"""


def test_a_process_whose_loop_stands_still_ends_and_says_where() -> None:
    done = subprocess.run([sys.executable, "-c", LOOP], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "went on\n")
    assert "in stand_still" in done.stderr


@pytest.mark.system
def test_a_service_tells_systemd_and_a_stopped_one_does_not(tmp_path: Path, systemd: tuple[str, socket.socket]) -> None:
    address, listener = systemd
    write_settings(tmp_path / "state", '[scavenger]\nsource = "static"\nnodes = ["n1"]\n')
    environment = {**os.environ, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"}
    command = [sys.executable, "-m", "malletrain.cli.main", "serve", "monitor"]
    with subprocess.Popen(command, cwd=tmp_path / "state", env=environment, stderr=subprocess.DEVNULL) as service:
        try:
            assert [listener.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            service.send_signal(signal.SIGSTOP)
            listener.settimeout(2)
            with pytest.raises(TimeoutError):
                list(iter(lambda: listener.recv(100), b""))
            service.send_signal(signal.SIGCONT)
            wait_until(lambda: listener.recv(100) == b"WATCHDOG=1")
            service.terminate()
            listener.settimeout(30)
            wait_until(lambda: listener.recv(100) == b"STOPPING=1")
            assert service.wait(30) == 0
        finally:
            service.kill()
