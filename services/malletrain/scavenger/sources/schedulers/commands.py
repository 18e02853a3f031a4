"""Runs a scheduler's commands with a time limit, in the C locale and UTC."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from malletrain.common.commands import RunningCommand, start_command
from malletrain.scavenger.sources.base import SourceError

MAX_OUTPUT_BYTES = 256 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024
_PIECE = 64 * 1024
_SHOWN_LINE = 500
_SHOWN_END = 200


class CommandFailedError(SourceError):
    """A command ended with another status than 0.

    Attributes:
        status: Its exit status.
    """

    def __init__(self, program: str, status: int, error_output: str) -> None:
        super().__init__(f"{program} ended with status {status}: {error_output}")
        self.status = status


@dataclass(frozen=True)
class Input:
    """What a program reads from its standard input.

    Attributes:
        text: It may be a secret: it is in no error and no log.
    """

    text: str = field(default="", repr=False)


NO_INPUT = Input()
"""A program that reads nothing."""


class RunCommand(Protocol):
    """Runs a program and returns what it prints."""

    async def __call__(self, argv: Sequence[str], timeout_seconds: float, command_input: Input = NO_INPUT) -> str:
        """Run it and return its standard output. Bytes that are not UTF-8 are replaced: users name jobs as they like.

        Args:
            argv: Program and arguments.
            timeout_seconds: Time limit.
            command_input: Its standard input.

        Raises:
            CommandFailedError: it ended with another status than 0.
            SourceError: it can't be run, prints too much, or takes longer than `timeout_seconds`.
        """


async def run_command(argv: Sequence[str], timeout_seconds: float, command_input: Input = NO_INPUT) -> str:
    """Run a program in its own session. The session is killed when time is up or the caller is cancelled.

    Args:
        argv: Program and arguments.
        timeout_seconds: Time limit.
        command_input: Its standard input.

    Raises:
        CommandFailedError: it ended with another status than 0.
        SourceError: it can't be run, prints too much, or takes too long.
    """
    try:
        process = await start_command(
            argv,
            _environment(),
            stdin=command_input.text.encode() if command_input.text else None,
            seconds=timeout_seconds,
        )
    except (OSError, ValueError) as error:
        raise SourceError(f"{argv[0]} can't be run: {error}") from error
    try:
        async with asyncio.timeout(timeout_seconds):
            output, errors = await _read_output(process)
    except TimeoutError as error:
        raise SourceError(f"{argv[0]} has not answered within {timeout_seconds:g} s") from error
    finally:
        await process.close()
    if len(output) > MAX_OUTPUT_BYTES:
        raise SourceError(f"{argv[0]} printed more than {MAX_OUTPUT_BYTES} bytes")
    if process.returncode:
        raise CommandFailedError(argv[0], process.returncode, _shorten(errors.decode(errors="replace").strip()))
    return output.decode(errors="replace")


def _shorten(text: str) -> str:
    """The first line, which tells what is wrong, and the end of the others; qsub prints its usage after it."""
    first, _, others = text.partition("\n")
    rest = others.strip()
    excerpt = f"{first[:_SHOWN_LINE]}\n{rest[-_SHOWN_END:]}" if rest else first[:_SHOWN_LINE]
    return excerpt or "no message on standard error"


def _environment() -> dict[str, str]:
    """The environment without variables that change formats, times in UTC."""
    shaping = ("SINFO_", "SQUEUE_", "SLURM_TIME_FORMAT", "LC_", "LANG")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(shaping)}
    return variables | {"TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


async def _read_output(process: RunningCommand) -> tuple[bytes, bytes]:
    """What a process prints and says, until it ends. It is killed when it prints too much."""
    output, errors, _ = await asyncio.gather(
        _read(process.stdout, MAX_OUTPUT_BYTES, process.kill), _read(process.stderr, _MAX_ERROR_BYTES), process.wait()
    )
    return output, errors


async def _read(stream: asyncio.StreamReader, limit: int, on_excess: Callable[[], None] = lambda: None) -> bytes:
    """All of a stream, or what is more than `limit` bytes; the rest is read and dropped."""
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(_PIECE):
        if size <= limit:
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                on_excess()
    return b"".join(pieces)
