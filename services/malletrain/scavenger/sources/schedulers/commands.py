"""Runs a scheduler's commands with a time limit, in the C locale and UTC."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Protocol

from malletrain.scavenger.sources.base import SourceError

_LARGEST_BYTES = 256 * 1024 * 1024
_SHOWN_LINE = 500
_SHOWN_END = 200


class CommandFailedError(SourceError):
    """A command ended with another status than 0.

    Attributes:
        status: Its exit status.
    """

    def __init__(self, program: str, status: int, said: str) -> None:
        super().__init__(f"{program} ended with status {status}: {said}")
        self.status = status


class RunCommand(Protocol):
    """Runs a program and returns what it prints."""

    async def __call__(self, argv: Sequence[str], timeout_seconds: float) -> str:
        """Run it and return its standard output.

        Raises:
            CommandFailedError: it ended with another status than 0.
            SourceError: it can't be run, prints no text, or takes longer than `timeout_seconds`.
        """


async def run_command(argv: Sequence[str], timeout_seconds: float) -> str:
    """Run a program in its own session. The session is killed when time is up or the caller is cancelled.

    Raises:
        CommandFailedError: it ended with another status than 0.
        SourceError: it can't be run, prints no text or too much of it, or takes too long.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=_environment(),
        )
    except OSError as error:
        raise SourceError(f"{argv[0]} can't be run: {error}") from error
    try:
        async with asyncio.timeout(timeout_seconds):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise SourceError(f"{argv[0]} has not answered within {timeout_seconds:g} s") from error
    finally:
        await _end(process)
    if process.returncode != 0:
        raise CommandFailedError(argv[0], process.returncode or 0, _shortened(errors.decode(errors="replace").strip()))
    if len(output) > _LARGEST_BYTES:
        raise SourceError(f"{argv[0]} printed {len(output)} bytes")
    try:
        return output.decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{argv[0]} printed something that is not text: {error}") from error


def _shortened(said: str) -> str:
    """The first line, which tells what is wrong, and the end of the others; qsub prints its usage after it."""
    first, _, others = said.partition("\n")
    rest = others.strip()
    shown = f"{first[:_SHOWN_LINE]}\n{rest[-_SHOWN_END:]}" if rest else first[:_SHOWN_LINE]
    return shown or "no message on standard error"


def _environment() -> dict[str, str]:
    """The environment without variables that change formats, times in UTC."""
    shaping = ("SINFO_", "SQUEUE_", "SLURM_TIME_FORMAT", "LC_", "LANG")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(shaping)}
    return kept | {"TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
