"""Monitor killed with SIGKILL and started again on the same database."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.monitor.progress import RecordColumns, ReportedBatch
from malletrain.runtime.channel import open_channel
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc
from tests.monitor.running import Reporter, report
from tests.monitor.trainer import FakeTrainer
from tests.support.access import CREDENTIAL

SERVER = """
import asyncio, sys
from pathlib import Path
from malletrain.monitor.service import create
from malletrain.monitor.settings import MonitorSettings
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.server import ServiceHost
from tests.support.access import checked

async def serve():
    section = MonitorSettings(store_seconds=0.02, publish_seconds=0.02)
    service = create(Settings(state_dir=Path(sys.argv[1])), section, SystemClock())
    host = ServiceHost("127.0.0.1:0", checked())
    service.register(host)
    print(await host.start(), flush=True)
    await service.run()

asyncio.run(serve())
"""


@contextmanager
def monitor_process(state_dir: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(state_dir)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


async def test_kill_9_loses_nothing_that_was_acknowledged_and_counts_nothing_twice(tmp_path: Path) -> None:
    trainer = FakeTrainer(nodes=2)
    trainer.steps(60, 0.1)
    trainer.nodes = 1
    trainer.step(2.1)
    trainer.steps(60, 0.1)
    first = trainer.take()
    trainer.steps(40, 0.1)
    second = trainer.take()
    with monitor_process(tmp_path) as (process, address):
        async with open_channel(address, CREDENTIAL) as channel:
            reporter = Reporter(monitor_pb2_grpc.MonitorServiceStub(channel))
            await reporter.send(first)
            await reporter.acknowledged(121)
            # Perhaps stored, perhaps not: the reporter can't know, and will send it again.
            await reporter.send(second)
            process.send_signal(signal.SIGKILL)
    with monitor_process(tmp_path) as (_, address):
        async with open_channel(address, CREDENTIAL) as channel:
            stub: monitor_pb2_grpc.MonitorServiceAsyncStub = monitor_pb2_grpc.MonitorServiceStub(channel)
            (sign_of_life,) = await report(stub, [ReportedBatch("j1", "r1", 0, RecordColumns(), 1)])
            assert sign_of_life in (121, 161)
            await report(stub, [first, second])
            progress = (await stub.GetProgress(monitor_pb2.GetProgressRequest(), timeout=5)).progress[0]
            assert (progress.samples, progress.records) == (trainer.processed, 161)
            assert not progress.stalled
            listed = await stub.ListScalingRecords(monitor_pb2.ListScalingRecordsRequest(), timeout=5)
            (record,) = listed.records
            assert {point.nodes: pytest.approx(point.rate) for point in record.points} == {2: 640, 1: 320}
            assert record.scale_down_seconds == pytest.approx(2)


async def test_jobs_that_are_not_kept_are_forgotten_for_good(tmp_path: Path) -> None:
    trainer = FakeTrainer(nodes=2)
    trainer.steps(60, 0.1)
    batch = trainer.take()
    with monitor_process(tmp_path) as (_, address):
        async with open_channel(address, CREDENTIAL) as channel:
            stub: monitor_pb2_grpc.MonitorServiceAsyncStub = monitor_pb2_grpc.MonitorServiceStub(channel)
            await report(stub, [batch])
            await report(stub, [replace(batch, job_id="j2", reporter_id="r2")])
            assert await stored_jobs(stub) == {"j1", "j2"}
            await stub.ForgetJobs(monitor_pb2.ForgetJobsRequest(job_ids=["j1", "unknown"]), timeout=5)
            assert await stored_jobs(stub) == {"j2"}
    with monitor_process(tmp_path) as (_, address):
        async with open_channel(address, CREDENTIAL) as channel:
            assert await stored_jobs(monitor_pb2_grpc.MonitorServiceStub(channel)) == {"j2"}


async def stored_jobs(stub: monitor_pb2_grpc.MonitorServiceAsyncStub) -> set[str]:
    listed = await stub.GetProgress(monitor_pb2.GetProgressRequest(), timeout=5)
    records = await stub.ListScalingRecords(monitor_pb2.ListScalingRecordsRequest(), timeout=5)
    found = {progress.job_id for progress in listed.progress}
    assert {record.job_id for record in records.records} == found
    return found
