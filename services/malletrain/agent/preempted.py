"""Whether Slurm has preempted the placeholder before the agent could hear of it."""

from __future__ import annotations

import asyncio
import contextlib
import re

_PREEMPTED = re.compile(r"\bPreemptTime=(?!None\b|Unknown\b|\(null\))\S")
_SECONDS = 10.0


class AskError(Exception):
    """Slurm does not tell."""


async def was_preempted(job: str, scontrol: str = "scontrol") -> bool:
    """Ask Slurm once, after the handler of SIGTERM is there.

    Slurm sends its SIGTERM to the steps of a job. A job that is preempted before its step runs gets none, and the main
    job waits until GraceTime is over (19 s instead of one, measured with GraceTime=10).

    Args:
        job: Slurm's identifier of the placeholder.
        scontrol: Path of the command.

    Raises:
        AskError: no answer, or none in time.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *(scontrol, "--oneliner", "show", "job", job),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise AskError(f"{scontrol}: {error.strerror}") from error
    try:
        output, complaints = await asyncio.wait_for(process.communicate(), _SECONDS)
    except TimeoutError as error:
        raise AskError(f"{scontrol} has not answered within {_SECONDS:g} s") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise AskError(f"{scontrol}: {complaints.decode(errors='replace').strip()}")
    return is_preempted(output.decode(errors="replace"))


def is_preempted(text: str) -> bool:
    """Whether `scontrol show job` tells of a job that has to leave."""
    return _PREEMPTED.search(text) is not None
