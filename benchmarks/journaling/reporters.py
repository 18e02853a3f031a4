"""Reports stand-in trainings to Monitor: `python -m benchmarks.journaling.reporters FOLDER CONFIG JOBS`.

A training on N nodes processes RATE · N^EXPONENT samples/s in ten batches a second. After each change of its scale it
stands still, for longer after a growth than after a shrink.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import grpc.aio

from benchmarks.looping.stand_ins import open_scales, scale_of
from malletrain.cli.shared.settings import load
from malletrain.client.monitor_stream import Outbox
from malletrain.client.ring import RingRecord
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc

READY = "reporting"
"""File that is there once scales are looked at."""
RATE, EXPONENT = 100.0, 0.9
GROWTH_S, SHRINK_S = 2.0, 1.0
_STEP_S, _LOOK_S, _SEND_S, _PAUSE_S = 0.1, 0.02, 0.25, 0.2
_BATCH_RECORDS = 2048


def rate(nodes: int) -> float:
    """Samples/s on some nodes."""
    return float(RATE * nodes**EXPONENT)


class StandInTraining:
    """The batches of one job."""

    def __init__(self) -> None:
        self.records: list[RingRecord] = []
        self._nodes, self._due, self._position, self._sequence = 0, 0.0, 0, 0

    def advance(self, now: float, nodes: int) -> None:
        """Make the batches that have ended by now, in seconds since the epoch; `nodes` is the scale from now on."""
        while self._nodes and self._due <= now:
            samples = round(rate(self._nodes) * _STEP_S)
            self._position += samples
            self._sequence += 1
            record = RingRecord(self._sequence, int(self._due * 1e9), samples, self._position, self._nodes)
            self.records.append(record)
            self._due += _STEP_S
        if nodes != self._nodes:
            stall = GROWTH_S if nodes > self._nodes else SHRINK_S
            self._nodes, self._due = nodes, now + stall + _STEP_S


class StandInReporter:
    """The reporter of one job."""

    def __init__(self, number: int, training: StandInTraining) -> None:
        self._job_id = f"j{number:06d}"
        self._training = training

    async def _requests(self, outbox: Outbox) -> AsyncIterator[monitor_pb2.ReportRequest]:
        while True:
            await asyncio.sleep(_SEND_S)
            records, self._training.records = self._training.records, []
            outbox.add(records, 0)
            if outbox.is_due(_SEND_S) and (taken := outbox.take(_BATCH_RECORDS)):
                yield self._request(taken)

    def _request(self, records: list[RingRecord]) -> monitor_pb2.ReportRequest:
        return monitor_pb2.ReportRequest(
            job_id=self._job_id,
            reporter_id=self._job_id,
            slots_per_node=1,
            batch=monitor_pb2.ProgressBatch(
                first_sequence=records[0].sequence,
                unix_seconds=[record.unix_ns / 1e9 for record in records],
                samples=[record.samples for record in records],
                positions=[record.position for record in records],
                workers=[record.workers for record in records],
            ),
        )

    async def run(self, stub: monitor_pb2_grpc.MonitorServiceAsyncStub) -> None:
        """Report until cancelled."""
        outbox = Outbox()
        while True:
            with suppress(grpc.aio.AioRpcError):
                async for response in stub.Report(self._requests(outbox)):
                    outbox.acknowledge(response.acknowledged_sequence)
            outbox.rewind()
            await asyncio.sleep(_PAUSE_S)


async def _train(trainings: list[StandInTraining], folder: Path) -> None:
    scales = open_scales(folder)
    (folder / READY).touch()
    while True:
        for number, training in enumerate(trainings, 1):
            training.advance(time.time(), scale_of(scales, number))
        await asyncio.sleep(_LOOK_S)


async def _report(folder: Path, config: Path, jobs: int) -> None:
    settings = load(config)
    credential = open_installation(settings, SystemClock()).credential("job_manager")
    channel = open_channel(settings.peer("monitor"), credential)
    stub: monitor_pb2_grpc.MonitorServiceAsyncStub = monitor_pb2_grpc.MonitorServiceStub(channel)
    trainings = [StandInTraining() for _ in range(jobs)]
    reporters = [StandInReporter(number, training).run(stub) for number, training in enumerate(trainings, 1)]
    await asyncio.gather(_train(trainings, folder), *reporters)


if __name__ == "__main__":
    asyncio.run(_report(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
