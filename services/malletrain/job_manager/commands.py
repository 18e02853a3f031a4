"""Can a job's command be started? What can be seen on the disk is checked before the job is stored."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError

_PYTHON = re.compile(r"python[0-9.]*\Z")
_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def check_working_directory(at: str, directory: str) -> None:
    """Refuse a working directory that is relative or does not exist.

    Raises:
        InvalidInputError: naming the field below `at`.
    """
    field = f"{at}.working_directory"
    if not Path(directory).is_absolute():
        raise InvalidInputError(field, "an absolute path", directory)
    if not Path(directory).is_dir():
        raise InvalidInputError(field, "an existing directory", directory)


def check_command(at: str, command: Sequence[str], directory: str, search_path: str) -> None:
    """Refuse a command whose program or Python script does not exist.

    Raises:
        InvalidInputError: naming the field below `at`.
    """
    if not command or not command[0]:
        raise InvalidInputError(f"{at}.command", "a program and its arguments", list(command))
    for index, word in enumerate(command):
        if "\0" in word:
            raise InvalidInputError(f"{at}.command[{index}]", "text without zero bytes", word)
    program = command[0]
    if os.sep in program:
        path = Path(directory, program)
        if not path.is_file() or not os.access(path, os.X_OK):
            raise InvalidInputError(f"{at}.command[0]", "an executable file", program)
    elif shutil.which(program, path=search_path) is None:
        raise InvalidInputError(f"{at}.command[0]", "a program that is found on PATH", program)
    script = script_index(command)
    if script is not None and not Path(directory, command[script]).is_file():
        raise InvalidInputError(
            f"{at}.command[{script}]", f"an existing script (relative ones in {directory})", command[script]
        )


def script_index(command: Sequence[str]) -> int | None:
    """Where a Python command names its script; None for other programs, `-m`, `-c` and standard input."""
    if not _PYTHON.match(Path(command[0]).name):
        return None
    index = 1
    while index < len(command):
        word = command[index]
        if not word.startswith("-"):
            return index
        if word == "-" or word[:2] in ("-c", "-m"):
            return None
        index += 2 if word in _OPTIONS_WITH_VALUE else 1
    return None
