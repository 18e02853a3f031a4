"""Reports the progress of all jobs to Monitor: `python -m benchmarks.looping.reporters FOLDER CONFIG JOBS PER_SECOND`.

Each message has one record, as that of a sidecar whose trainer needs a tenth of a second for a batch.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio

from benchmarks.looping.stand_ins import open_scales, scale_of
from malletrain.cli.settings import load
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc

_SAMPLES_PER_NODE = 32
_CHANNELS = 4
_PAUSE_SECONDS = 0.2


class Reporter:
    """The reporter of one job."""

    def __init__(self, number: int, scales: mmap.mmap, interval: float) -> None:
        self._number, self._scales, self._interval = number, scales, interval
        self._sequence = self._position = 0
        self._name = f"{number}"

    async def requests(self) -> AsyncIterator[monitor_pb2.ReportRequest]:
        """One record an interval, while the job has nodes."""
        loop = asyncio.get_running_loop()
        begin = loop.time() + random.uniform(0, self._interval)
        for count in itertools.count():
            await asyncio.sleep(max(0.0, begin + count * self._interval - loop.time()))
            nodes = scale_of(self._scales, self._number)
            if not nodes:
                continue
            self._sequence += 1
            self._position += _SAMPLES_PER_NODE * nodes
            yield monitor_pb2.ReportRequest(
                job_id=f"j{self._number:06d}",
                reporter_id=self._name,
                slots_per_node=1,
                batch=monitor_pb2.ProgressBatch(
                    first_sequence=self._sequence,
                    unix_seconds=[time.time()],
                    samples=[_SAMPLES_PER_NODE * nodes],
                    positions=[self._position],
                    workers=[nodes],
                ),
            )

    async def run(self, stub: monitor_pb2_grpc.MonitorServiceAsyncStub) -> None:
        """Report until cancelled; a new reporter after each loss of the stream."""
        for life in itertools.count():
            self._name, self._sequence = f"{self._number}.{life}", 0
            try:
                async for _ in stub.Report(self.requests()):
                    pass
            except grpc.aio.AioRpcError:
                await asyncio.sleep(_PAUSE_SECONDS)


async def _report(folder: Path, config: Path, jobs: int, per_second: float) -> None:
    settings, scales = load(config), open_scales(folder)
    credential = open_installation(settings, SystemClock()).credential("job_manager")
    stubs = [
        monitor_pb2_grpc.MonitorServiceStub(open_channel(settings.peer("monitor"), credential))
        for _ in range(_CHANNELS)
    ]
    reporters = (Reporter(number, scales, 1 / per_second) for number in range(1, jobs + 1))
    await asyncio.gather(*(reporter.run(stubs[index % _CHANNELS]) for index, reporter in enumerate(reporters)))


if __name__ == "__main__":
    asyncio.run(_report(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
