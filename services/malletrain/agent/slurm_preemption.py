"""Asks Slurm whether the placeholder was preempted before the agent could receive a signal."""

from __future__ import annotations

import asyncio
import os
import re

from malletrain.common.commands import start_command

_PREEMPTED = re.compile(r"\bPreemptTime=(?!None\b|Unknown\b|\(null\))\S")
_SECONDS = 10.0


class PreemptionQueryError(Exception):
    """Slurm does not answer, or answers with an error."""


async def was_preempted(job: str, scontrol: str = "scontrol") -> bool:
    """Ask Slurm once. Call when the handler of SIGTERM is installed.

    Slurm sends SIGTERM to the steps of a job. If a job is preempted before its step runs, its step gets no signal, and
    the main job waits until GraceTime is over (19 s instead of 1 s, measured with GraceTime=10).

    Args:
        job: Slurm's identifier of the placeholder.
        scontrol: Path of the command.

    Raises:
        PreemptionQueryError: the command fails, or does not end within 10 s.
    """
    command = (scontrol, "--oneliner", "show", "job", job)
    try:
        # In this session: what is in another one counts as a worker's, and the agent collects it.
        process = await start_command(command, os.environ, seconds=_SECONDS, own_session=False)
    except OSError as error:
        raise PreemptionQueryError(f"{scontrol}: {error.strerror}") from error
    try:
        async with asyncio.timeout(_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise PreemptionQueryError(f"{scontrol} has not answered within {_SECONDS:g} s") from error
    finally:
        await process.close()
    if process.returncode:
        raise PreemptionQueryError(f"{scontrol}: {errors.decode(errors='replace').strip()}")
    return is_preempted(output.decode(errors="replace"))


def is_preempted(text: str) -> bool:
    """Whether the output of `scontrol show job` has a time of preemption."""
    return _PREEMPTED.search(text) is not None
