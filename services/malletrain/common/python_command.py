"""Takes apart the command line of a Python interpreter, by the rules of CPython 3.11 and later. Pure.

Source: CPython, Python/getopt.c (`_PyOS_GetOpt`) and Python/initconfig.c (`config_parse_cmdline`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_INTERPRETER = re.compile(r"python(\d+(\.\d+)*)?t?")
_FLAGS = frozenset("bBdEiIOPqRsStuvx")
"""Options without an argument that let a script run. (-h, -?, -V end the interpreter, -J is refused.)"""
_WITH_ARGUMENT = frozenset("cmWX")
_PYCS = "check-hash-based-pycs"
_PYCS_VALUES = frozenset({"default", "always", "never"})


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A command that runs a script or a module.

    Attributes:
        interpreter: The interpreter and its options, up to the script or `-m`. A command of these words and another
            script runs that script with the same options.
        kind: What is run.
        target: Path of the script or name of the module.
        arguments: Arguments of the script or module.
        skips_first_line: Whether the first line of the script is skipped (`-x`).
    """

    interpreter: tuple[str, ...]
    kind: Literal["script", "module"]
    target: str
    arguments: tuple[str, ...]
    skips_first_line: bool = False


def is_interpreter(program: str) -> bool:
    """Whether a program, by its name or path, is an interpreter of Python."""
    return bool(_INTERPRETER.fullmatch(Path(program).name))


def parse_python_command(command: Sequence[str]) -> PythonCommand | None:
    """Take a command apart.

    Returns:
        Its parts; None for other programs, and for interpreters that run neither a script nor a module: `-c`,
        standard input, `--version`, or options that the interpreter refuses.
    """
    if not command or not is_interpreter(command[0]):
        return None
    flags: set[str] = set()
    index = 1
    while index < len(command) and command[index].startswith("-") and command[index] != "-":
        start, word = index, command[index]
        index += 1
        if word == "--":
            break
        options = _parse_options(word)
        if options is None:
            return None
        flags.update(options.flags)
        if not options.last:
            continue
        argument = options.argument
        if argument is None:
            if index == len(command):
                return None
            argument = command[index]
            index += 1
        if options.last == "m":
            before = (f"-{options.flags}",) if options.flags else ()
            return PythonCommand((*command[:start], *before), "module", argument, tuple(command[index:]))
        if options.last == "c" or (options.last == _PYCS and argument not in _PYCS_VALUES):
            return None
    if index == len(command) or command[index] == "-":
        return None
    return PythonCommand(
        tuple(command[:index]), "script", command[index], tuple(command[index + 1 :]), skips_first_line="x" in flags
    )


@dataclass(frozen=True, slots=True)
class _Options:
    """One word of options.

    Attributes:
        flags: Those without an argument.
        last: The option with an argument, which is always the last; empty if there is none.
        argument: Its argument if it is part of the word; None if it is the next word.
    """

    flags: str
    last: str = ""
    argument: str | None = None


def _parse_options(word: str) -> _Options | None:
    """Take apart a word that begins with a dash; None if the interpreter runs nothing with it."""
    for at, letter in enumerate(word[1:], start=1):
        flags, rest = word[1:at], word[at + 1 :]
        if letter in _WITH_ARGUMENT:
            return _Options(flags, letter, rest or None)
        if letter == "-" and rest == _PYCS:
            return _Options(flags, _PYCS)
        if letter not in _FLAGS:
            return None
    return _Options(word[1:])
