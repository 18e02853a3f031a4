"""Keys of a terminal: reads them as they are pressed, and leaves the terminal as it was."""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


def parsed(data: bytes) -> list[str]:
    """The keys in what a terminal has sent: characters, or names such as "up". Unknown sequences are left out."""
    found: list[str] = []
    while data:
        name = next((known for known in _NAMED if data.startswith(known)), None)
        if name is not None:
            found.append(_NAMED[name])
            data = data[len(name) :]
        elif data == b"\x1b" or data.startswith(b"\x1b\x1b"):
            found.append("escape")
            data = data[1:]
        elif data.startswith((b"\x1b[", b"\x1bO")):
            end = next((place for place, byte in enumerate(data[2:], 2) if 0x40 <= byte <= 0x7E), len(data))
            data = data[end + 1 :]
        elif data.startswith(b"\x1b"):
            data = data[2:]
        else:
            found.append(chr(data[0]))
            data = data[1:]
    return found


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
        for key in parsed(data):
            handle(key)

    tty.setcbreak(terminal)
    loop.add_reader(terminal, ready)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
