"""What others see of this process in /proc/PID/environ and /proc/PID/cmdline, replaced after a fork.

The kernel shows the memory in which it has placed both at the start of a program. A process may write there, and a
forked one has its own copy: processes of jobs are found by these variables. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOM_VARIABLE = "MALLETRAIN_STANDBY_ROOM"
"""Variable that only makes room for the environment of later workers."""
_FIRST_FIELD = 45
"""Of arg_start in /proc/PID/stat, counted from the field behind the program's name; three more follow."""


@dataclass(frozen=True)
class ProcessArea:
    """The memory from which the kernel reads the arguments and the environment of this process.

    Attributes:
        arguments: Address and size of the arguments in bytes.
        environment: Address and size of the environment in bytes.
    """

    arguments: tuple[int, int]
    environment: tuple[int, int]

    def show_environment(self, variables: Mapping[str, str]) -> bool:
        """Show these variables, if there is room; whether there was."""
        words = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())
        return _write(*self.environment, words)

    def show_arguments(self, arguments: Sequence[str]) -> None:
        """Show this command line, or as much of it as there is room for."""
        words = b"\0".join(os.fsencode(word) for word in arguments) + b"\0"
        _write(*self.arguments, words[: self.arguments[1]])


def find_area() -> ProcessArea:
    """Find the memory from which the kernel reads what this process was started with."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    arg_start, arg_end, env_start, env_end = (int(word) for word in fields[_FIRST_FIELD : _FIRST_FIELD + 4])
    return ProcessArea((arg_start, arg_end - arg_start), (env_start, env_end - env_start))


def _write(start: int, size: int, words: bytes) -> bool:
    if start == 0 or len(words) > size:
        return False
    ctypes.memmove(start, words.ljust(size, b"\0"), size)
    return True
