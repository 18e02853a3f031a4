"""Replays of the past, each in a process of its own: one at a time, limited, and kept for whoever asks the same."""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import structlog

from malletrain.common.commands import RunningCommand, start_command
from malletrain.common.tasks import start_task
from malletrain.dashboard.pages.what_if import WhatIf
from malletrain.model.what_if import WhatIfComparison
from malletrain.runtime.kernel.documents import from_document
from malletrain.runtime.logs import log_failure

ValueT = TypeVar("ValueT")

MAX_S = 900.0
"""Seconds of CPU time, and of time, that a replay may take."""
MAX_BYTES = 2**30
"""Memory that a replay may take."""
_MAX_KEPT = 60
_MAX_PASTS = 2
_FRESH_S = 3600.0
"""How long the past that was read counts as the present one, so that what-ifs are of the same past."""
_MAX_LINE_LENGTH = 2**24
_MAX_ERROR_LENGTH = 500


@dataclass(frozen=True)
class RunningReplay:
    """The replay that is being computed now.

    Attributes:
        what_if: What is replayed.
        user: Who asked for it.
        since: When it began, in seconds since the epoch.
        share: How far it is, 0 to 1; 0 while the past is read.
    """

    what_if: WhatIf
    user: str
    since: float
    share: float = 0.0


class Replays:
    """Runs replays and keeps what they gave. All of it runs in one event loop.

    Attributes:
        present: The settings in force, by which the form begins.
        version: Grows with every change.
        running: The replay that runs; None: none does.
    """

    def __init__(
        self,
        command: Sequence[str],
        token: Callable[[], str],
        config: str | None,
        present: WhatIf,
        now: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        """Nothing happens before `start`.

        Args:
            config: File of settings; None: the usual one.
            now: Seconds since the epoch.
            changed: Called after every change.
        """
        self.present = present
        self.version = 0
        self.running: RunningReplay | None = None
        self._command, self._token, self._config = tuple(command), token, config
        self._now, self._notify = now, changed
        self._results: OrderedDict[WhatIf, WhatIfComparison] = OrderedDict()
        self._failures: OrderedDict[WhatIf, str] = OrderedDict()
        self._task: asyncio.Task[object] | None = None
        self._folder = TemporaryDirectory(prefix="malletrain-week-")
        self._past = 0

    def past(self, *, again: bool = False) -> int:
        """End of the past that what-ifs are of, in seconds since the epoch.

        Args:
            again: Whether it is to be now.
        """
        if again or self._now() - self._past > _FRESH_S:
            self._past = int(self._now())
        return self._past

    @property
    def known_past(self) -> int:
        """The same; 0 where no past has been asked for lately."""
        return self._past if self._now() - self._past <= _FRESH_S else 0

    def result_of(self, what_if: WhatIf) -> WhatIfComparison | None:
        """What a what-if gave; None: it was not replayed, or that is no longer kept."""
        return self._results.get(what_if)

    def failure(self, what_if: WhatIf) -> str:
        """Why it could not be replayed; empty: it was not tried, or it could."""
        return self._failures.get(what_if, "")

    def of_same_past(self, what_if: WhatIf) -> list[tuple[WhatIf, WhatIfComparison]]:
        """All that is kept of the same part of the past."""
        key = (what_if.past, what_if.days)
        return [(known, comparison) for known, comparison in self._results.items() if (known.past, known.days) == key]

    def start(self, what_if: WhatIf, user: str) -> None:
        """Replay it, unless that is kept, or another replay runs."""
        if self.running is not None or what_if in self._results:
            return
        self._failures.pop(what_if, None)
        self.running = RunningReplay(what_if, user, self._now())
        self._task = start_task(self._replay(what_if), "replay", log_failure)
        self._note_change()

    def cancel(self) -> None:
        """End the replay that runs."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """End what runs, and forget the past."""
        self.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._folder.cleanup()

    def _note_change(self) -> None:
        self.version += 1
        self._notify()

    async def _replay(self, what_if: WhatIf) -> None:
        try:
            async with asyncio.timeout(MAX_S):
                comparison = await self._ask_process(what_if)
            _keep(self._results, what_if, comparison)
        except TimeoutError:
            _keep(self._failures, what_if, f"it took more than {MAX_S / 60:.0f} minutes")
        except asyncio.CancelledError:
            _keep(self._failures, what_if, "it was cancelled")
        except (OSError, RuntimeError) as error:
            self._note_failure(what_if, str(error))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            # What replays may be of another version.
            self._note_failure(what_if, f"the answer of the process that replays can't be read: {error!r}")
        finally:
            self.running = None
            self._note_change()

    def _note_failure(self, what_if: WhatIf, why: str) -> None:
        structlog.get_logger(__name__).info("a replay has failed", what_if=what_if.in_words(), error=why)
        _keep(self._failures, what_if, why[:_MAX_ERROR_LENGTH])

    async def _ask_process(self, what_if: WhatIf) -> WhatIfComparison:
        """Run the process for a what-if, and return what it answers.

        Raises:
            RuntimeError: it has failed; the message says why.
            OSError: it can't be started.
        """
        request = json.dumps(self._request(what_if)).encode()
        process = await start_command(self._command, os.environ, stdin=request, line_bytes=_MAX_LINE_LENGTH)
        try:
            comparison, error_output, status = await asyncio.gather(
                self._answer(process), process.stderr.read(), process.wait()
            )
            errors = error_output.decode("utf-8", "replace").strip().splitlines()
        finally:
            await process.close()
        if comparison is None:
            raise RuntimeError(errors[-1] if errors else f"the process that replays has ended with status {status}")
        return comparison

    async def _answer(self, process: RunningCommand) -> WhatIfComparison | None:
        async for line in process.stdout:
            message = json.loads(line)
            if "found" in message:
                return from_document(WhatIfComparison, message["found"])
            if self.running is not None:
                self.running = replace(self.running, share=message["share"])
                self._note_change()
        return None

    def _request(self, what_if: WhatIf) -> dict[str, object]:
        folder = Path(self._folder.name)
        pasts = sorted(folder.glob("*.past"), key=lambda path: path.stat().st_mtime)
        past = folder / f"{what_if.past}.past"
        for path in [path for path in pasts if path != past][: -(_MAX_PASTS - 1)]:
            path.unlink()
        return {
            "past": str(past),
            "until": what_if.past,
            "days": what_if.days,
            "forward_s": what_if.forward_s,
            "forward_policy": what_if.forward_policy,
            "max_parallel": what_if.max_parallel,
            "policy": what_if.policy,
            "token": self._token(),
            "config": self._config,
            "seconds": MAX_S,
            "bytes": MAX_BYTES,
        }


def _keep(memory: OrderedDict[WhatIf, ValueT], what_if: WhatIf, value: ValueT) -> None:
    memory[what_if] = value
    while len(memory) > _MAX_KEPT:
        memory.popitem(last=False)
