"""Records U by minute while the Allocator runs: it looks every second, and asks Monitor when a minute is over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import grpc
import grpc.aio
import structlog

from malletrain.allocator.machine.cluster_cache import ClusterCache
from malletrain.allocator.utilization.best_rates import BestRates
from malletrain.allocator.utilization.definition import (
    HOUR_S,
    MAX_AGE_S,
    MINUTE_S,
    MinuteUse,
    Pause,
    minute_use,
    pauses_of,
)
from malletrain.allocator.utilization.measured import MeasuredShares
from malletrain.allocator.utilization.meter import OpenMinute, UseMeter
from malletrain.allocator.utilization.present import PresentUses, present_use
from malletrain.allocator.utilization.store import UtilizationStore
from malletrain.common.tasks import lasting
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.runtime.clock import Clock
from malletrain.runtime.kernel.peers import Peers
from malletrain.runtime.kernel.write_behind import WriteBehind
from malletrain.v1 import monitor_pb2

_WORK_SECONDS = 5.0
_PAUSES = ((1.0, 1.0), (5.0, 5.0))
"""Seconds between two looks, beside how many seconds it may take at most to work out a minute of them."""
_MAX_PAUSE = 15.0
_JOBS_ASKED = 500
_MAX_UNSTORED = 1000
"""Minutes that wait at most while the database can't be written."""

Minutes = tuple[MinuteUse, ...]


class UtilizationRecorder:
    """Records minutes. All of it runs in one event loop, but for what a thread works out."""

    def __init__(
        self, cluster: Callable[[], ClusterCache], peers: Peers, store: UtilizationStore, clock: Clock
    ) -> None:
        """Go on where an earlier one has ended.

        Args:
            cluster: What is known of nodes, jobs and curves.
            peers: Monitor, which knows when jobs stood still.
            store: Where minutes are stored.
            clock: Clock.
        """
        self._cluster = cluster
        self._peers = peers
        self._clock = clock
        self._uses, self._meter, self._best = PresentUses(), UseMeter(), BestRates()
        self._shares = MeasuredShares()
        self._newest = deque(
            store.since(clock.time() - HOUR_S - MAX_AGE_S), maxlen=int((HOUR_S + MAX_AGE_S) / MINUTE_S)
        )
        self._to_store = WriteBehind[Minutes](
            store.add, lambda earlier, later: (*earlier, *later)[-_MAX_UNSTORED:], "utilization by minute"
        )
        self._pause = _pause_after(0.0)
        self._log = structlog.get_logger(__name__)
        self.flush = self._to_store.flush

    @property
    def newest(self) -> Sequence[MinuteUse]:
        """The minutes of the last hour, oldest first."""
        return tuple(self._newest)

    async def run(self) -> None:
        """Look at the present and work out minutes, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(lasting(self._look(), "looking at what nodes are used for"))
            group.create_task(lasting(self._work_out(), "working out minutes"))
            group.create_task(lasting(self._to_store.run(), "utilization to store"))

    async def _look(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(self._pause)

    def look(self) -> None:
        """Take what is so now."""
        now = self._clock.time()
        passed = self._meter.note_use(now, present_use(self._cluster(), self._uses, now))
        if passed is not None:
            since, present = passed
            self._shares.note_time(since, now, present)

    async def _work_out(self) -> None:
        while True:
            try:
                await self.work_out()
            except grpc.aio.AioRpcError as error:
                self._log.debug("when jobs stood still is not known yet", code=error.code().name)
            await asyncio.sleep(_WORK_SECONDS)

    async def work_out(self) -> None:
        """Work out the minutes that are over.

        A job that was there before this recorder is counted once before its first minute is over: what it trains in
        that minute could not be told from what it has trained before.

        Raises:
            grpc.aio.AioRpcError: Monitor does not answer; they wait.
        """
        due = self._meter.due(self._clock.time())
        if not due and not self._shares.has_uncounted:
            return
        records = await self._ask_monitor()
        for minute in due:
            pauses = {job_id: _pauses(record, minute) for job_id, record in records.items()}
            shares = {job_id: self._shares.share(job_id, pauses.get(job_id, ())) for job_id in minute.trainers}
            began = self._clock.monotonic()
            use = await asyncio.to_thread(minute_use, minute.start, minute.steps, self._best, pauses, shares)
            self._pause = _pause_after(self._clock.monotonic() - began)
            self._meter.close(minute)
            while self._newest and self._newest[-1].start >= use.start:
                self._newest.pop()  # the clock was set back
            self._newest.append(use)
            self._to_store.add((use,))

    async def _ask_monitor(self) -> dict[str, monitor_pb2.ScalingRecord]:
        """What Monitor knows of the jobs of the last minutes: their samples, and when they stood still.

        Raises:
            grpc.aio.AioRpcError: it does not answer.
        """
        monitor, jobs = self._peers.monitor, self._shares.jobs
        scaling_records: dict[str, monitor_pb2.ScalingRecord] = {}
        samples: dict[str, tuple[float, int]] = {}
        for first in range(0, len(jobs), _JOBS_ASKED):
            job_ids = jobs[first : first + _JOBS_ASKED]
            records = await monitor.ListScalingRecords(
                monitor_pb2.ListScalingRecordsRequest(job_ids=job_ids), timeout=DEADLINE_SECONDS
            )
            progress = await monitor.GetProgress(
                monitor_pb2.GetProgressRequest(job_ids=job_ids), timeout=DEADLINE_SECONDS
            )
            scaling_records.update((record.job_id, record) for record in records.records)
            now = self._clock.time()
            for entry in progress.progress:
                silent_s = 0.0 if entry.stalled or entry.pausing else entry.silent_seconds
                samples[entry.job_id] = (now - silent_s, entry.samples)
        self._shares.note_counts(self._clock.time(), samples)
        return scaling_records


def _pauses(record: monitor_pb2.ScalingRecord, minute: OpenMinute) -> list[Pause]:
    return pauses_of(
        [(entry.unix_seconds, entry.stall_seconds) for entry in record.rescales],
        record.first_batches_unix_seconds,
        record.usual_step_seconds,
        minute.starts.get(record.job_id, ()),
    )


def _pause_after(seconds: float) -> float:
    """Seconds between two looks: on a machine so large that a minute takes long, there are fewer."""
    return next((pause for pause, most in _PAUSES if seconds <= most), _MAX_PAUSE)
