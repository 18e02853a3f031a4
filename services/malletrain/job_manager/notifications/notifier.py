"""Sends notices of ended and waiting jobs to one receiver.

The journal is the queue: what can't be delivered yet waits there, over restarts, too, and takes no memory. A receiver
that hangs or fails holds up nothing but its own notices.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from malletrain.common.files import write_atomically
from malletrain.job_manager.machine.jobs import Job, job_number
from malletrain.job_manager.notifications.notices import JobNotice, NoticeKind, Waits, due_waits, end_notice, waits_now
from malletrain.job_manager.settings import NotificationSettings
from malletrain.job_manager.storage.store import JobStore
from malletrain.runtime.clock import Clock
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.notices.delivery import Deliver, receivers, send

_SECTION = "job_manager.notifications"
_LOOK_SECONDS = 1.0
_ROWS = 200


_MODE = 0o600


class Notifier:
    """Sends notices to one receiver, in order, and tries again until it has them."""

    def __init__(
        self,
        name: str,
        deliver: Deliver,
        settings: NotificationSettings,
        store: JobStore,
        jobs: Callable[[], Collection[Job]],
        file: Path,
        clock: Clock,
    ) -> None:
        """Tell nothing yet. What happens from here on will be told, and what the last JobManager could not tell.

        Args:
            name: Of the receiver, for the log.
            deliver: Delivers a notice.
            settings: What is told, and how often it is tried.
            store: The journal.
            jobs: The jobs that have not ended.
            file: Where to note what was told.
            clock: Clock.
        """
        self._deliver = deliver
        self._settings = settings
        self._store = store
        self._jobs = jobs
        self._file = file
        self._clock = clock
        self._progress = read_progress(file) or NoticeProgress(store.last_sequence())
        self._log = structlog.get_logger(__name__).bind(receiver=name)

    async def run(self) -> None:
        """Tell what happens, until cancelled."""
        noted = False
        while True:
            try:
                if not noted:
                    await self._save_progress(self._progress)
                    noted = True
                await self._tell_ends()
                if NoticeKind.WAITING in self._settings.events:
                    await self._tell_waits()
            except (OSError, DatabaseUnavailableError) as error:
                self._log.warning("notifications delayed", error=str(error))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _tell_ends(self) -> None:
        while True:
            after = self._progress.sequence
            rows = await asyncio.to_thread(self._store.events, after, _ROWS, None)
            for row in rows:
                if row.event.to_state.final:
                    job = await asyncio.to_thread(self._store.job, job_number(row.event.job_id))
                    notice = end_notice(row.sequence, row.event, job, self._settings.events)
                    if notice is not None:
                        await self._send(notice)
                        await self._save_progress(replace(self._progress, sequence=row.sequence))
            if rows and self._progress.sequence != rows[-1].sequence:
                await self._save_progress(replace(self._progress, sequence=rows[-1].sequence))
            if len(rows) < _ROWS:
                return

    async def _tell_waits(self) -> None:
        jobs = {job.id: job for job in self._jobs()}
        now = self._clock.time()
        waits = waits_now(self._progress.waits, jobs.values(), now)
        if waits != self._progress.waits:
            await self._save_progress(replace(self._progress, waits=waits))
        for job_id in due_waits(waits, self._settings.waiting_seconds, now):
            since = waits.since[job_id]
            await self._send(JobNotice(f"{job_id}-{since:.0f}", NoticeKind.WAITING, now, jobs[job_id], now - since))
            waits = replace(waits, told=waits.told | {job_id})
            await self._save_progress(replace(self._progress, waits=waits))

    async def _save_progress(self, progress: NoticeProgress) -> None:
        await asyncio.to_thread(write_progress, self._file, progress)
        self._progress = progress

    async def _send(self, notice: JobNotice) -> None:
        log = self._log.bind(job=notice.job.id, event_kind=notice.kind.value)
        await send(notice.as_json(), self._deliver, self._settings, self._clock, log)


def open_notifiers(
    settings: NotificationSettings,
    store: JobStore,
    jobs: Callable[[], Collection[Job]],
    state_dir: Path,
    clock: Clock,
) -> list[Notifier]:
    """A notifier for each receiver that is set.

    Raises:
        InvalidInputError: a receiver can't be used.
    """
    return [
        Notifier(name, deliver, settings, store, jobs, state_dir / f"notifications-{name}.json", clock)
        for name, deliver in receivers(settings, _SECTION).items()
    ]


@dataclass(frozen=True)
class NoticeProgress:
    """How far one receiver has been sent notices.

    Attributes:
        sequence: Number of the last row of the journal of which it was told, or need not be.
        waits: Jobs without nodes.
    """

    sequence: int
    waits: Waits = field(default_factory=Waits)


def read_progress(path: Path) -> NoticeProgress | None:
    """What the file says; None where there is none, or none that can be read: then only what is new is told."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        since = {str(job_id): float(time) for job_id, time in content["waiting_since"].items()}
        return NoticeProgress(int(content["sequence"]), Waits(since, frozenset(map(str, content["told_of"]))))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        structlog.get_logger(__name__).warning("what was told is not known any more", file=str(path), error=str(error))
        return None


def write_progress(path: Path, progress: NoticeProgress) -> None:
    """Write the file, completely or not at all.

    Raises:
        OSError: it can't be written.
    """
    content = {
        "sequence": progress.sequence,
        "waiting_since": dict(progress.waits.since),
        "told_of": sorted(progress.waits.told),
    }
    write_atomically(path, json.dumps(content), mode=_MODE)
