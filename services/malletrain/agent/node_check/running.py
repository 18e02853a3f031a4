"""Checks a node: runs what measures it, and the operator's script, beside each other and within their limits."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from malletrain.agent.node_check.judging import (
    MAX_REASON_LENGTH,
    CheckLimits,
    read_measures,
    reasons_against,
    text_for_people,
)
from malletrain.agent.node_check.measuring import STEPS
from malletrain.common.commands import RunningCommand, start_command
from malletrain.common.untrusted_json import UntrustedJsonError, parse_object

_BOOT_SECONDS = 10.0
"""How long an interpreter may take to start on a busy machine, which says nothing of what is measured."""
_NO_PROGRAM = f"no program starts within {_BOOT_SECONDS:g} s"
_MAX_SPEED_SECONDS = 5.0
"""The work takes a second at most, and may be interrupted by others."""
_MAX_LINE_BYTES = 32 << 10
_MAX_SAID_BYTES = 4 << 10
_PIECE = 64 << 10
_NODE_VARIABLE = "MALLETRAIN_NODE"


async def check_node(node: str, limits: CheckLimits) -> str:
    """Why no work must start on this node; empty: nothing is known against it.

    Args:
        node: Name of the node, which the operator's script is told.
        limits: What the node must have.
    """
    checks = [_reasons_by_measures(limits)] + ([_reasons_by_script(node, limits)] if limits.script else [])
    reasons_of_each = await asyncio.gather(*checks)
    return text_for_people("; ".join(reason for reasons in reasons_of_each for reason in reasons))


async def measure_speed(limits: CheckLimits) -> tuple[float, float] | None:
    """How fast this node is: seconds of one core to hash 1 MiB, and to copy 32 MiB.

    Returns:
        Both; None where that is not wanted, or where it can't be measured, which is nothing against the node.
    """
    if limits.speed_seconds <= 0:
        return None
    command = (sys.executable, "-P", "-m", "malletrain.agent.node_check.speed", f"{limits.speed_seconds:g}")
    try:
        async with _program(command, os.environ) as process:
            async with asyncio.timeout(_BOOT_SECONDS):
                await process.stdout.readline()
            async with asyncio.timeout(_MAX_SPEED_SECONDS):
                measured = parse_object(await process.stdout.readline())
    except (OSError, ValueError, TimeoutError, UntrustedJsonError):
        return None
    match measured:
        case {"hash_seconds": float() as hashing, "copy_seconds": float() as copying}:
            return hashing, copying
    return None


async def _reasons_by_measures(limits: CheckLimits) -> list[str]:
    command = (sys.executable, "-P", "-m", "malletrain.agent.node_check.measuring", *limits.folders)
    try:
        async with _program(command, os.environ) as process:
            return await _reasons_of_process(process, limits)
    except OSError as error:
        return [f"no program can be started ({error.strerror})"]


async def _reasons_of_process(process: RunningCommand, limits: CheckLimits) -> list[str]:
    step = ""
    try:
        async with asyncio.timeout(_BOOT_SECONDS) as limit:
            while line := await process.stdout.readline():
                if not step:
                    limit.reschedule(asyncio.get_running_loop().time() + limits.seconds)
                if line.strip().decode(errors="replace") not in STEPS:
                    return reasons_against(read_measures(parse_object(line)), limits)
                step = line.strip().decode()
    except TimeoutError:
        return [f"{step}: no answer within {limits.seconds:g} s" if step else _NO_PROGRAM]
    except (ValueError, UntrustedJsonError) as error:  # ValueError: the line is too long
        return [f"what was measured can't be read ({error})"]
    return [f"the measuring process has ended ({step})"]


async def _reasons_by_script(node: str, limits: CheckLimits) -> list[str]:
    name = f"check script {limits.script}"
    command = (sys.executable, "-P", "-m", "malletrain.agent.node_check.script", limits.script, node)
    begun = b""
    try:
        async with _program(command, {**os.environ, _NODE_VARIABLE: node}) as process:
            async with asyncio.timeout(_BOOT_SECONDS):
                begun = await process.stdout.readline()
            async with asyncio.timeout(limits.script_seconds):
                output = await _read_beginning(process)
                status = await process.wait()
    except TimeoutError:
        return [f"{name} has not ended within {limits.script_seconds:g} s" if begun else _NO_PROGRAM]
    except OSError as error:
        return [f"no program can be started ({error.strerror})"]
    if status == 0:
        return []
    first = next((line for line in output.splitlines() if line.strip()), "")
    return [f"{name} ended with {status}" + (f": {text_for_people(first, MAX_REASON_LENGTH // 2)}" if first else "")]


async def _read_beginning(process: RunningCommand) -> str:
    """The beginning of what a program prints, and says on standard error; the rest is read and dropped."""
    printed, errors = await asyncio.gather(_beginning(process.stdout), _beginning(process.stderr))
    return printed + errors


async def _beginning(stream: asyncio.StreamReader) -> str:
    beginning = b""
    while piece := await stream.read(_PIECE):
        beginning += piece[: _MAX_SAID_BYTES - len(beginning)]
    return beginning.decode(errors="replace")


@asynccontextmanager
async def _program(command: tuple[str, ...], environment: Mapping[str, str]) -> AsyncIterator[RunningCommand]:
    """A program in a process group of its own, all of which is killed at the end.

    It stays in this session: what is in another one counts as left behind by workers.

    Raises:
        OSError: it can't be started.
    """
    process = await start_command(command, environment, line_bytes=_MAX_LINE_BYTES, own_session=False)
    try:
        yield process
    finally:
        await process.close()
