"""The environment variables that a job is submitted with: from the command line, from files, from this shell."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from malletrain.job_manager.redaction import names_secret
from malletrain.runtime.errors import InvalidInputError

EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=VALUE for the workers, or NAME for the value that it has in this shell, which is then on no command"
        " line; may be repeated."
    ),
]
EnvFileOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="File with a line NAME=VALUE, or NAME, for each variable; may be repeated. --env takes precedence."
    ),
]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MAX_BYTES = 128 * 1024
"""More than a job's specification may have in all."""
_QUOTES = "'\""


def job_environment(
    pairs: Sequence[str] | None,
    files: Sequence[Path] | None,
    shell: Mapping[str, str],
    warn: Callable[[str], None] | None = None,
) -> dict[str, str]:
    """The variables of a job. Of two with one name the later one counts, and options count more than files.

    Args:
        pairs: What was given with `--env`: NAME=VALUE or NAME.
        files: What was given with `--env-file`.
        shell: The environment of this process.
        warn: Told where a value that looks like a secret stands on the command line.

    Raises:
        InvalidInputError: one is not as expected; values are not quoted, since they may be secrets.
    """
    variables: dict[str, str] = {}
    for path in files or ():
        variables |= read_environment_file(path, shell)
    for pair in pairs or ():
        name, has_value, value = pair.partition("=")
        if not _NAME.match(name):
            raise InvalidInputError("--env", f"NAME=VALUE or NAME, {_NAME_IN_WORDS}", name)
        variables[name] = value if has_value else _from_shell("--env", name, shell)
        if warn is not None and value and names_secret(name):
            warn(
                f"note: the value of {name} stands on a command line, which others on this machine can read;"
                f" --env {name} takes it from the shell, --env-file from a file"
            )
    return variables


def read_environment_file(path: Path, shell: Mapping[str, str]) -> dict[str, str]:
    """Variables from a file: a line NAME=VALUE or NAME (of the shell) for each; empty lines and those with # count not.

    A value reaches to the end of its line, and may stand in quotes. Nothing in it is expanded. `export` may come first.

    Raises:
        InvalidInputError: it can't be read, or has another line; the error names the line.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(_text_of(path).split("\n"), start=1):
        words = line.strip().removeprefix("export ").lstrip()
        if not words or words.startswith("#"):
            continue
        at = f"{path}:{number}"
        name, has_value, value = words.partition("=")
        name = name.rstrip()
        if not _NAME.match(name):
            raise InvalidInputError(at, f"NAME=VALUE or NAME, {_NAME_IN_WORDS}")
        variables[name] = _unquote(at, name, value.strip()) if has_value else _from_shell(at, name, shell)
    return variables


_NAME_IN_WORDS = "with a name of letters, digits and _ that does not begin with a digit"


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # /dev/fd/63 is a pipe, as a shell's <(...) makes it; a device may never end.
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode) and str(path) != os.devnull:
                raise InvalidInputError("--env-file", "a file or a pipe", str(path))
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInputError("--env-file", f"a readable file ({error.strerror})", str(path)) from None
    if len(content) > _MAX_BYTES:
        raise InvalidInputError(f"{path}", f"at most {_MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(f"{path}:{line}", "text in UTF-8") from None
    if "\0" in text:
        raise InvalidInputError(f"{path}:{text[: text.index(chr(0))].count(chr(10)) + 1}", "no zero bytes")
    return text.replace("\r\n", "\n")


def _unquote(at: str, name: str, value: str) -> str:
    if value[:1] not in _QUOTES or not value:
        return value
    if len(value) < 2 or value[-1] != value[0]:
        raise InvalidInputError(at, f"a value of {name} whose quotes end on the same line")
    return value[1:-1]


def _from_shell(at: str, name: str, shell: Mapping[str, str]) -> str:
    if name not in shell:
        raise InvalidInputError(at, f"{name}=VALUE, or a variable that is set and exported in this shell", name)
    return shell[name]
