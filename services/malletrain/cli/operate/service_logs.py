"""The logs of services that `malletrain up` runs: how large they get, and what they say last."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_MAX_LINE_LENGTH = 500


@dataclass(frozen=True)
class LogRotation:
    """How large logs may get.

    A service holds its log open for appending, so the file stays and is emptied. A line that is written between the
    copy and that is lost.

    Attributes:
        max_bytes: A larger log is copied and emptied.
        copies: Copies that are kept, from `.1`, the newest, on; 0: none.
    """

    max_bytes: int
    copies: int

    def apply(self, log: Path) -> bool:
        """Rotate a log if it is too large.

        Returns:
            Whether it was.

        Raises:
            OSError: a file can't be written. The log is emptied all the same where that is possible.
        """
        try:
            if log.stat().st_size <= self.max_bytes:
                return False
        except FileNotFoundError:
            return False
        try:
            self._copy(log)
        finally:
            os.truncate(log, 0)
        return True

    def _copy(self, log: Path) -> None:
        if not self.copies:
            return
        for number in range(self.copies, 1, -1):
            older, newer = _copy_path(log, number), _copy_path(log, number - 1)
            if newer.exists():
                newer.replace(older)
        fresh = _copy_path(log, 1)
        fresh.touch(mode=0o600)
        shutil.copyfile(log, fresh)


def _copy_path(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


def last_line(path: Path) -> str:
    """The last line of a log with text in it; the path of the log if there is none."""
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()] if path.exists() else []
    return lines[-1][:_MAX_LINE_LENGTH] if lines else f"nothing in {path}; is there room on its disk?"
