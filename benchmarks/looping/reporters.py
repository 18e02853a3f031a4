"""Reports the progress of all jobs to Monitor: `python -m benchmarks.looping.reporters FOLDER CONFIG JOBS PER_SECOND`.

Each job has that many batches a second. Their records go into messages by the sidecar's rule.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import grpc.aio

from benchmarks.looping.stand_ins import open_scales, scale_of
from malletrain.cli.shared.settings import load
from malletrain.client.monitor_stream import SEND_SECONDS, UNANSWERED_SECONDS
from malletrain.runtime.access.credentials import showing
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.clock import SystemClock
from malletrain.tls.credentials import authority_credentials, peer_options
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc

_SAMPLES_PER_NODE = 32
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""As each sidecar has; channels with equal options share one otherwise."""
_PAUSE_SECONDS = 0.2
_MIN_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 1.0
_BATCH_RECORDS = 2048


class Reporter:
    """The reporter of one job.

    It makes the columns of its messages without single records: a thousand reporters share the machine that they
    measure, where each job's sidecar has a node.
    """

    def __init__(self, number: int, scales: mmap.mmap, interval: float) -> None:
        self._number, self._scales, self._interval = number, scales, interval
        self._position = 0
        self._name, self._answered = f"{number}", asyncio.Event()
        self._sent = self._acknowledged = 0

    async def _requests(self) -> AsyncIterator[monitor_pb2.ReportRequest]:
        loop = asyncio.get_running_loop()
        begin, begin_seconds = loop.time() + random.uniform(0, 1), time.time()
        sent_at = begin
        while True:
            # It wakes up for messages only: a thousand that wake up for each batch would be most of the load.
            await asyncio.sleep(max(_MIN_PAUSE_SECONDS, begin + (self._sent + 1) * self._interval - loop.time()))
            while loop.time() - sent_at < self._send_seconds():
                self._answered.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._answered.wait(), _MAX_PAUSE_SECONDS)
            first, sent_at = self._sent + 1, loop.time()
            self._sent = min(int((sent_at - begin) / self._interval), self._sent + _BATCH_RECORDS)
            if self._sent >= first:
                yield self._request(range(first, self._sent + 1), begin_seconds)

    def _send_seconds(self) -> float:
        """How long after the last message the next may go, as `Outbox.is_due` says."""
        return UNANSWERED_SECONDS if self._acknowledged < self._sent else SEND_SECONDS

    def _request(self, sequences: range, begin_seconds: float) -> monitor_pb2.ReportRequest:
        nodes, count = scale_of(self._scales, self._number), len(sequences)
        samples, before = _SAMPLES_PER_NODE * nodes, self._position
        self._position += samples * count
        return monitor_pb2.ReportRequest(
            job_id=f"j{self._number:06d}",
            reporter_id=self._name,
            slots_per_node=1,
            batch=monitor_pb2.ProgressBatch(
                first_sequence=sequences[0],
                unix_seconds=[begin_seconds + sequence * self._interval for sequence in sequences],
                samples=[samples] * count,
                positions=[before + samples * place for place in range(1, count + 1)],
                workers=[max(1, nodes)] * count,
            ),
        )

    async def run(self, stub: monitor_pb2_grpc.MonitorServiceAsyncStub) -> None:
        """Report until cancelled; a new reporter after each loss of the stream."""
        for life in itertools.count():
            self._name, self._sent, self._acknowledged = f"{self._number}.{life}", 0, 0
            try:
                async for response in stub.Report(self._requests()):
                    self._acknowledged = response.acknowledged_sequence
                    self._answered.set()
            except grpc.aio.AioRpcError:
                await asyncio.sleep(_PAUSE_SECONDS)


async def _report(folder: Path, config: Path, jobs: int, per_second: float) -> None:
    settings, scales = load(config), open_scales(folder)
    credential = open_installation(settings, SystemClock()).credential("job_manager")
    runs, peer = [], settings.peer("monitor")
    options = (*_OWN_CONNECTION, *peer_options("monitor"))
    for number in range(1, jobs + 1):
        secure = grpc.aio.secure_channel(peer.address, authority_credentials(peer.authority_file), options=options)
        channel = showing(secure, credential.towards("monitor"))
        runs.append(Reporter(number, scales, 1 / per_second).run(monitor_pb2_grpc.MonitorServiceStub(channel)))
    await asyncio.gather(*runs)


if __name__ == "__main__":
    asyncio.run(_report(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
