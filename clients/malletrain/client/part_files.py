"""The files of the parts of a divided state: their names, and how one is there only once it is complete.

Standard library only.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

FILE = re.compile(r"([0-9a-f]+)-(\d+)-of-(\d+)\.pt")
"""Name of the file of a part: token, number of the part, number of parts."""


def parts_folder(folder: Path, samples: int) -> Path:
    """The folder of a state whose parts are written each by itself."""
    return folder / f"samples-{samples:015d}.parts"


def part_path(folder: Path, token: str, rank: int, workers: int) -> Path:
    """The file of a part.

    Args:
        folder: The folder of its state.
        token: Tells parts of one generation from those of another one with the same sample counter.
        rank: Which part it is, from 0.
        workers: How many parts the state has.
    """
    return folder / f"{token}-{rank}-of-{workers}.pt"


def store_part(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write the file of a part; it is there once it is complete.

    Args:
        path: The file; its folder is made if there is none.
        write: Writes the content.

    Raises:
        OSError: it can't be written. Nothing is left of it, nor if `write` raises.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Workers of other machines may write the same part, and have the same process id.
    unfinished = path.with_suffix(f".{secrets.token_hex(8)}")
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
