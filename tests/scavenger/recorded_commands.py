"""Executables that print what a scheduler's commands printed, and note how they were called."""

from __future__ import annotations

import shlex
from pathlib import Path

_SCRIPT = """#!/bin/sh
here=$(dirname "$0")
printf '%s\\n' "$*" >> "$here/{name}.calls"
[ -e "$here/{name}.stall" ] && sleep 60
cat "$here/{name}.out"
[ -e "$here/{name}.status" ] && {{ cat "$here/{name}.error" >&2; exit "$(cat "$here/{name}.status")"; }}
exit 0
"""


class RecordedCommands:
    """A folder of such executables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, output: str = "") -> str:
        """Make one; its path."""
        path = self.folder / name
        self.says(name, output)
        path.write_text(_SCRIPT.format(name=shlex.quote(name)))
        path.chmod(0o755)
        return str(path)

    def says(self, name: str, output: str | bytes) -> None:
        """From now on it prints this."""
        draft = self.folder / f"{name}.draft"
        draft.write_bytes(output if isinstance(output, bytes) else output.encode())
        draft.rename(self.folder / f"{name}.out")

    def fails(self, name: str, status: int | None, error: str = "error: no contact") -> None:
        """From now on it ends with this status and says why; None: with 0."""
        (self.folder / f"{name}.error").write_text(f"{name}: {error}\n")
        self._flag(f"{name}.status", None if status is None else str(status))

    def stalls(self, name: str, stalls: bool) -> None:
        """From now on it answers too late, or in time."""
        self._flag(f"{name}.stall", "" if stalls else None)

    def calls(self, name: str) -> list[str]:
        """Arguments of each call so far."""
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def _flag(self, name: str, content: str | None) -> None:
        path = self.folder / name
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(content)
