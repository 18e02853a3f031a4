"""Monitor killed with SIGKILL and started again on the same database."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.monitor.machine.progress import RecordColumns, ReportedBatch, SaveState
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc
from tests.monitor.running import Reporter, report
from tests.monitor.trainer import FakeTrainer
from tests.support.access import CREDENTIAL
from tests.support.channels import plain_channel
from tests.support.debug_replay import debug_replay
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.processes

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
def monitor_process(state_dir: Path, fault: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A Monitor and its address; `fault` is code that runs before."""
    command = [sys.executable, "-c", fault + SERVER, str(state_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
        async with plain_channel(address, CREDENTIAL) as channel:
            reporter = Reporter(monitor_pb2_grpc.MonitorServiceStub(channel))
            await reporter.send(first)
            await reporter.acknowledged(121)
            # Perhaps stored, perhaps not: the reporter can't know, and will send it again.
            await reporter.send(second)
            process.send_signal(signal.SIGKILL)
    with monitor_process(tmp_path) as (_, address):
        async with plain_channel(address, CREDENTIAL) as channel:
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
        async with plain_channel(address, CREDENTIAL) as channel:
            stub: monitor_pb2_grpc.MonitorServiceAsyncStub = monitor_pb2_grpc.MonitorServiceStub(channel)
            await report(stub, [batch])
            await report(stub, [replace(batch, job_id="j2", reporter_id="r2")])
            assert await stored_jobs(stub) == {"j1", "j2"}
            await stub.ForgetJobs(monitor_pb2.ForgetJobsRequest(job_ids=["j1", "unknown"]), timeout=5)
            assert await stored_jobs(stub) == {"j2"}
    with monitor_process(tmp_path) as (_, address):
        async with plain_channel(address, CREDENTIAL) as channel:
            assert await stored_jobs(monitor_pb2_grpc.MonitorServiceStub(channel)) == {"j2"}


FAULT = """
from malletrain.monitor.machine import trackers
from malletrain.monitor.machine.throughput import ThroughputMeter

def fail_at_13(self, step, add=ThroughputMeter.add):
    if step.samples == 13:
        raise ZeroDivisionError("13 samples")
    add(self, step)

ThroughputMeter.add = fail_at_13
"""


async def test_a_defect_ends_the_process_and_can_be_replayed(tmp_path: Path) -> None:
    trainer, other = FakeTrainer(), FakeTrainer()
    other.steps(5, 0.1)
    trainer.steps(40, 0.1)
    first = replace(trainer.take(), saves=SaveState(1, "no room in /home/ann"))
    trainer.per_node = 13
    trainer.steps(1, 0.1)
    last = trainer.take()
    with monitor_process(tmp_path, FAULT) as (process, address):
        async with plain_channel(address, CREDENTIAL) as channel:
            reporter, second = (Reporter(monitor_pb2_grpc.MonitorServiceStub(channel)) for _ in range(2))
            await second.send(replace(other.take(), job_id="j2"))
            await reporter.send(first)
            await reporter.acknowledged(40)
            await reporter.send(last)
            await wait_until_async(lambda: process.poll() is not None, what="the end of Monitor")
    (file,) = (tmp_path / "debug").iterdir()
    assert file.name.startswith("monitor-stimuli-")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "/home/ann" not in file.read_text()
    assert "j2" not in file.read_text(), "a failure is about one job"

    again = debug_replay(file, fault=FAULT)
    assert again.returncode == 0, again.stderr
    assert "the same failure as recorded: ZeroDivisionError: 13 samples" in again.stdout
    assert "<- BatchesReported(1 records of 'r1' from 41)" in again.stdout
    found = json.loads(debug_replay(file, "--json", fault=FAULT).stdout)
    assert found["reproduced"]
    assert found["replayed"]["stimulus"] == found["stimuli"]
    assert found["replayed"]["failure"]["job_id"] == "j1"

    mended = debug_replay(file)
    assert mended.returncode == 1
    assert "replayed: no failure" in mended.stdout

    # What was acknowledged is stored: without the fault, the next Monitor goes on from there.
    with monitor_process(tmp_path) as (_, address):
        async with plain_channel(address, CREDENTIAL) as channel:
            assert await report(monitor_pb2_grpc.MonitorServiceStub(channel), [last]) == [41]


async def stored_jobs(stub: monitor_pb2_grpc.MonitorServiceAsyncStub) -> set[str]:
    listed = await stub.GetProgress(monitor_pb2.GetProgressRequest(), timeout=5)
    records = await stub.ListScalingRecords(monitor_pb2.ListScalingRecordsRequest(), timeout=5)
    found = {progress.job_id for progress in listed.progress}
    assert {record.job_id for record in records.records} == found
    return found
