"""A program in a real pseudo-terminal."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import termios
from pathlib import Path

import pytest


def interruptible() -> None:
    """A shell has what it starts in the background ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A real pseudo-terminal with a program in it, and what a user would see of it."""

    def __init__(self, words: list[str], folder: Path, lines: int = 30, columns: int = 120) -> None:
        pyte = pytest.importorskip("pyte", reason="needs pyte (pip install pyte)")
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.terminal, self.inner = os.openpty()
        termios.tcsetwinsize(self.inner, (lines, columns))
        self.settings = termios.tcgetattr(self.inner)
        self.raw = b""
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
            | {"TERM": "xterm-256color"},
            stdin=self.inner,
            stdout=self.inner,
            stderr=self.inner,
            start_new_session=True,
            preexec_fn=interruptible,
        )

    def text(self) -> str:
        """What is on the screen now."""
        while select.select([self.terminal], [], [], 0)[0]:
            data = os.read(self.terminal, 1 << 16)
            self.raw += data
            self._stream.feed(data)
        return "\n".join(self._screen.display)

    def press(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def resize(self, lines: int, columns: int) -> None:
        termios.tcsetwinsize(self.inner, (lines, columns))
        self._screen.resize(lines, columns)
        self.process.send_signal(signal.SIGWINCH)

    def ended(self) -> int | None:
        """The exit status; what the program still writes is read, so that it can end."""
        self.text()
        return self.process.poll()

    def is_sane(self) -> bool:
        """Whether the settings are as before, the cursor is shown, and the usual screen is back."""
        self.text()
        shown = self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l")
        left = self.raw.rfind(b"\x1b[?1049l") > self.raw.rfind(b"\x1b[?1049h") > -1
        return termios.tcgetattr(self.inner) == self.settings and shown and left

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        os.close(self.inner)
