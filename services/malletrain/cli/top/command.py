"""`malletrain top`: the shell around the screen: streams and keys in, frames out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from rich.console import Console
from rich.live import Live

from malletrain.caller.credentials import caller_credential
from malletrain.cli.shared.settings import AllSettings, load
from malletrain.cli.shared.terminal import open_console
from malletrain.cli.top.screen import Event, View, events_between, rows_of, screen, service_events, view_after
from malletrain.observer.troubles import troubles
from malletrain.observer.watching import Watcher
from malletrain.runtime.access.credentials import Credential
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.errors import InvalidInputError

_NAMED = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
}
_MAX_BYTES = 1024


def parse_keys(data: bytes) -> list[str]:
    """The keys in what a terminal has sent: characters, or names such as "up". Unknown sequences are left out."""
    keys: list[str] = []
    while data:
        name = next((known for known in _NAMED if data.startswith(known)), None)
        if name is not None:
            keys.append(_NAMED[name])
            data = data[len(name) :]
        elif data == b"\x1b" or data.startswith(b"\x1b\x1b"):
            keys.append("escape")
            data = data[1:]
        elif data.startswith((b"\x1b[", b"\x1bO")):
            end = next((place for place, byte in enumerate(data[2:], 2) if 0x40 <= byte <= 0x7E), len(data))
            data = data[end + 1 :]
        elif data.startswith(b"\x1b"):
            data = data[2:]
        else:
            keys.append(chr(data[0]))
            data = data[1:]
    return keys


@contextmanager
def read_keys(terminal: int, handle: Callable[[str], None], hung_up: Callable[[], None]) -> Iterator[None]:
    """Hand over each key without waiting for a line, and without showing it, while the context lasts.

    Args:
        terminal: File descriptor of the terminal.
        handle: Called with each key in the event loop.
        hung_up: Called when the terminal is gone.
    """
    loop = asyncio.get_running_loop()
    before = termios.tcgetattr(terminal)

    def ready() -> None:
        try:
            data = os.read(terminal, _MAX_BYTES)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(terminal)
            hung_up()
        for key in parse_keys(data):
            handle(key)

    tty.setcbreak(terminal)
    loop.add_reader(terminal, ready)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


_FRAME_SECONDS = 0.1
"""At most one frame in so many seconds."""
_QUIET_SECONDS = 1.0
"""A frame at least every so many seconds: times go on."""
_MAX_EVENTS = 200


def top() -> None:
    """Show nodes, jobs, rates and events live in the terminal, until q or Ctrl-C."""
    console = open_console()
    if not sys.stdin.isatty() or not console.is_terminal or console.is_dumb_terminal:
        raise InvalidInputError("top", "a terminal; in scripts use `malletrain jobs --json`")
    settings = load()
    structlog.configure(processors=[_drop])
    asyncio.run(Top(settings, caller_credential(settings), console).run())


def _drop(logger: object, name: str, event: object) -> str:
    """Log nothing: it would be written over the screen, which tells of lost services itself."""
    del logger, name, event
    raise structlog.DropEvent


class Top:
    """The view of one user. All of it runs in one event loop."""

    def __init__(self, settings: AllSettings, credential: Credential, console: Console) -> None:
        self._watcher = Watcher(settings, credential, SystemClock())
        self._console = console
        self._view = View()
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._seen = self._watcher.watched.history
        self._answered: dict[str, bool | None] = {}

    async def run(self) -> None:
        """Draw until the user has had enough. The terminal is as before afterwards, whatever happens."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGWINCH, self._watcher.changed.set)
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # a stopped view would leave its screen behind
        following = asyncio.create_task(self._watcher.run(past=False))
        try:
            with (
                read_keys(sys.stdin.fileno(), self._press, self._end),
                Live(console=self._console, screen=True, auto_refresh=False, redirect_stderr=False) as live,
            ):
                await self._draw(live, following)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _draw(self, live: Live, following: asyncio.Task[None]) -> None:
        while not self._view.over and not following.done():
            self._note_events()
            watched = self._watcher.watched
            problems = troubles(watched.services, watched.history.source, "you")
            frame = screen(watched.history, self._view, problems, list(self._events), self._console.height)
            live.update(frame, refresh=True)
            await asyncio.sleep(_FRAME_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._watcher.changed.wait(), _QUIET_SECONDS)
            self._watcher.changed.clear()
        if following.done():
            following.result()  # a defect: it is raised when the terminal is as before

    def _note_events(self) -> None:
        """Note what has happened since the last frame."""
        self._watcher.tick()
        watched = self._watcher.watched
        now = self._watcher.now()
        answers = {name: state.answers for name, state in watched.services.items()}
        self._events += [
            *service_events(self._answered, answers, now),
            *events_between(self._seen, watched.history, now),
        ]
        self._seen, self._answered = watched.history, answers

    def _press(self, key: str) -> None:
        rows = rows_of(self._watcher.watched.history, self._view.sort, reverse=self._view.reverse)
        self._view = view_after(self._view, key, [row.fact.id for row in rows])
        self._watcher.changed.set()

    def _end(self) -> None:
        self._view = View(over=True)
        self._watcher.changed.set()
