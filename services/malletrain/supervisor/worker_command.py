"""How a job's command becomes that of a worker's process. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?$")
_FLAGS_WITH_VALUE = ("-W", "-X")


def worker_command(
    command: Sequence[str], python: str, parent: int, pipes: tuple[int, int], *, warm: bool = True
) -> list[str]:
    """Arguments of a worker's process.

    Args:
        command: The job's command.
        python: An interpreter for commands that are not Python.
        parent: Process id of the supervisor.
        pipes: File descriptors: from the first the worker reads its start, on the second it says that it is warm.
        warm: Whether a Python script's worker imports what it needs before its start.
    """
    numbers = [str(number) for number in (parent, *pipes)]
    split = split_python(command) if warm else None
    if split is None:
        return [python, str(BOOTSTRAP), *numbers, "cold", *command]
    interpreter, kind, target = split
    return [*interpreter, str(BOOTSTRAP), *numbers, "warm", kind, *target]


def split_python(command: Sequence[str]) -> tuple[list[str], str, list[str]] | None:
    """A Python command as (interpreter with flags, "script" or "module", target with arguments); None for others."""
    if not _PYTHON.match(Path(command[0]).name):
        return None
    flags = [command[0]]
    words = list(command[1:])
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "-m" and words:
            return flags, "module", words
        if word in ("-c", "-") or word == "-m":
            return None
        flags.append(word)
        if word in _FLAGS_WITH_VALUE and words:
            flags.append(words.pop(0))
    return (flags, "script", words) if words else None
