"""The process that replays the past for auto-tuning. It may hang, fail or be killed: a run fails then, nothing else.

It is started with the command that the Allocator was given, in a session of its own, so that all of it can be killed.
It limits itself (`malletrain.cli.operate.tuning_replays`): lowest priority, CPU time, memory; and it ends with the
Allocator.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from malletrain.allocator.auto_tuning.documents import TuningOrder, from_json, to_json
from malletrain.allocator.auto_tuning.machine import TuningAnswer
from malletrain.common.commands import RunningCommand, start_command
from malletrain.runtime.errors import MalleTrainError

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
_MAX_LINE_LENGTH = 300


class TuningRunError(MalleTrainError):
    """A run of auto-tuning has failed."""


class ReplayProcess:
    """Runs replays in a process of their own, one run at a time."""

    def __init__(self, command: Sequence[str], folder: Path, cpu_seconds: float, memory_mib: int) -> None:
        """Nothing happens before `run`.

        Args:
            command: What is run; options are added.
            folder: Where it keeps its copies of databases; emptied before and after each run.
            cpu_seconds: CPU time after which the kernel kills it.
            memory_mib: Memory that it may have, in MiB.
        """
        limits = ("--cpu-seconds", str(max(1, int(cpu_seconds))), "--memory-mib", str(memory_mib))
        self._command = (*command, *limits, "--parent", str(os.getpid()))
        self._folder = folder
        self._process: RunningCommand | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs; None: it does not."""
        return self._process.pid if self._process is not None else None

    async def run(self, order: TuningOrder, seconds: float) -> TuningAnswer:
        """Have it answer within so many seconds of wall-clock time.

        Raises:
            TuningRunError: it did not; whatever there was of it is killed.
        """
        await asyncio.to_thread(self._empty)
        try:
            async with asyncio.timeout(seconds):
                return await self._answer(order)
        except TimeoutError:
            raise TuningRunError(f"the replays took longer than {seconds:g} s") from None
        except OSError as error:
            raise TuningRunError(f"the replays could not be started ({error})") from error
        finally:
            await self._close()
            await asyncio.to_thread(shutil.rmtree, self._folder, True)

    def _empty(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)

    async def _answer(self, order: TuningOrder) -> TuningAnswer:
        environment = {**os.environ, **_ONE_THREAD, "TMPDIR": str(self._folder.absolute())}
        process = await start_command(self._command, environment, stdin=to_json(order).encode())
        self._process = process
        output, errors = await process.communicate()
        if process.returncode:
            raise TuningRunError(_why(process.returncode, errors))
        try:
            return from_json(TuningAnswer, output.decode())
        except ValueError as error:
            raise TuningRunError(f"the replays answered nonsense: {error}") from error

    async def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.close()


def _why(code: int, errors: bytes) -> str:
    lines = errors.decode(errors="replace").strip().splitlines()
    last = f": {lines[-1][:_MAX_LINE_LENGTH]}" if lines else ""
    if code == -signal.SIGXCPU:
        return f"the replays needed more CPU time than auto_tune_cpu_share permits{last}"
    if code < 0:
        return f"the replays were killed by signal {-code}{last}"
    return f"the replays ended with exit status {code}{last}"
