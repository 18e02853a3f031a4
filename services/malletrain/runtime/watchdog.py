"""Watchdogs of the event loop: whoever watches this process is told that the loop goes on, and ends it otherwise.

Under systemd that is systemd itself (`WatchdogSec` in the unit, sd_notify(3)), which also sees a process that is
stopped. Elsewhere, as in a container, it is a timer of the interpreter (`faulthandler`), whose thread needs no
interpreter lock: it writes where all threads are to standard error, and ends the process with status 1. `malletrain up`
asks its services itself, so that they need none.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import socket
import sys
from collections.abc import MutableMapping
from typing import Protocol, TextIO

import structlog

BUSY_FACTOR = 5.0
"""How many times longer a service may be silent while it may be busy: it has or wants a processor, or a disk."""
_MAX_PAUSE_SECONDS = 5.0
_SHARE = 4.0
"""How many times within its time a watchdog is told that the loop goes on."""


class LoopWatchdog(Protocol):
    """Ends or reports this process if its event loop stands still."""

    @property
    def pause_seconds(self) -> float:
        """How often it is to be told, in seconds."""

    def serving(self) -> None:
        """This process has started, and serves from now on."""

    def alive(self) -> None:
        """The event loop runs; to be called every `pause_seconds`."""

    def stopping(self) -> None:
        """This process is ending in good order, which may take a while."""


class NoWatchdog:
    """For a process that nobody watches, or whose parent asks it by calls."""

    pause_seconds = _MAX_PAUSE_SECONDS

    def serving(self) -> None:
        """Does nothing."""

    def alive(self) -> None:
        """Does nothing."""

    def stopping(self) -> None:
        """Does nothing."""


class SystemdWatchdog:
    """systemd's watchdog, which is told by the datagrams of sd_notify(3)."""

    def __init__(self, address: str, seconds: float) -> None:
        """
        Args:
            address: Value of NOTIFY_SOCKET.
            seconds: After how long a silence systemd ends this process; 0: it does not.
        """
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._seconds = seconds
        self._failed = False

    @property
    def pause_seconds(self) -> float:
        """How often it is to be told, in seconds."""
        return min(self._seconds / _SHARE, _MAX_PAUSE_SECONDS) if self._seconds else _MAX_PAUSE_SECONDS

    def serving(self) -> None:
        """This process has started, and serves from now on."""
        self._send("READY=1")

    def alive(self) -> None:
        """The event loop runs; to be called every `pause_seconds`."""
        if self._seconds:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """This process is ending in good order, which may take a while."""
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(state.encode(), self._address)
        except OSError as error:
            if not self._failed:
                structlog.get_logger(__name__).warning("systemd is not told", state=state, error=str(error))
            self._failed = True


class TimerWatchdog:
    """A timer in this process: it ends the process when the event loop has stood still for a time."""

    def __init__(self, seconds: float, file: TextIO) -> None:
        """Start no timer yet.

        Args:
            seconds: How long the loop may stand still.
            file: Where to write what all threads did then; a file with a descriptor.
        """
        self._seconds = seconds
        self._file = file

    @property
    def pause_seconds(self) -> float:
        """How often it is to be told, in seconds."""
        return min(self._seconds / _SHARE, _MAX_PAUSE_SECONDS)

    def serving(self) -> None:
        """Does nothing."""

    def alive(self) -> None:
        """Start the timer again."""
        faulthandler.dump_traceback_later(self._seconds, exit=True, file=self._file)

    def stopping(self) -> None:
        """Does nothing: the end may hang, too, so the timer goes on."""


def watchdog_for(
    environment: MutableMapping[str, str], hang_seconds: float, file: TextIO | None = None, *, asked: bool = False
) -> LoopWatchdog:
    """The watchdog of this process: systemd's, a timer, or none.

    Args:
        environment: That of this process. What systemd has put there is taken out: it is not for the children.
        hang_seconds: How long the event loop may stand still where systemd does not watch; 0: for ever.
        file: Where a timer writes to; None: standard error.
        asked: Whether somebody asks this process all the time, who watches it thereby.
    """
    names = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    address, microseconds, pid = (environment.pop(name, "") for name in names)
    if asked:
        return NoWatchdog()
    if address:
        meant = microseconds.isdecimal() and pid in ("", str(os.getpid()))
        return SystemdWatchdog(address, int(microseconds) / 1e6 if meant else 0.0)
    return TimerWatchdog(hang_seconds, file or sys.stderr) if hang_seconds else NoWatchdog()


async def keep_telling(watchdog: LoopWatchdog) -> None:
    """Tell a watchdog that the event loop goes on, until cancelled."""
    while True:
        watchdog.alive()
        await asyncio.sleep(watchdog.pause_seconds)
