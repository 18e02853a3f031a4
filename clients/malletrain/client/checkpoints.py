"""Checkpoints on disk: written whole or not at all, the last two kept, a broken one skipped."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

StateT = TypeVar("StateT")

_KEPT = 2
_NAME = re.compile(r"samples-(\d+)\.pt")


class Checkpoints:
    """The checkpoints of one job in one folder, named by their sample counter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, samples: int, write: Callable[[BinaryIO], None]) -> Path:
        """Write a checkpoint and forget all but the newest two.

        A temporary file is filled, synchronised to disk and renamed, so that a kill at any moment leaves the earlier
        checkpoints as they were.

        Args:
            samples: The job's sample counter.
            write: Writes the content.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"samples-{samples:015d}.pt"
        temporary = self._folder / f".{path.name}.{os.getpid()}"
        try:
            with temporary.open("wb") as stream:
                write(stream)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        for old in self.newest_first()[_KEPT:]:
            old.unlink(missing_ok=True)
        return path

    def load(self, read: Callable[[Path], StateT], broken: tuple[type[Exception], ...]) -> StateT | None:
        """The newest checkpoint that can be read, or None.

        Args:
            read: Reads a file.
            broken: What `read` raises for a torn or corrupt file; the one before is tried then.
        """
        for path in self.newest_first():
            try:
                return read(path)
            except broken as error:
                print(f"malletrain: checkpoint {path.name} can't be read ({error!r}), trying the one before")
        return None

    def newest_first(self) -> list[Path]:
        """Checkpoint files, the highest sample counter first."""
        if not self._folder.is_dir():
            return []
        return sorted((path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
