"""What records cost Monitor: `python benchmarks/monitor_ingest.py [--reporters 1000] [--per-second 10]`.

First without gRPC: messages of 2,048 records are checked and counted, whole and record by record, in one process. Then
with it: a real Monitor, and as many reporters as asked, each with so many batches a second, which send by the sidecar's
rule. Told are the share of one core that Monitor takes, how many records it counts, how old the newest one of a job is
(median), and how many were dropped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import grpc
import psutil

from benchmarks.arguments import positive
from benchmarks.looping.stand_ins import open_scales
from malletrain.caller.credentials import owner_credential
from malletrain.cli.demo.setup import free_ports
from malletrain.cli.shared.settings import AllSettings, load
from malletrain.monitor.machine.progress import ReportedBatch
from malletrain.monitor.machine.trackers import JobTrackers
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.wire import parse_report
from malletrain.runtime.channel import open_channel
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc

ROOT = Path(__file__).parent.parent
_RECORDS = 2048
_MESSAGES = 60
_PATIENCE_SECONDS = 30.0


def messages(count: int) -> list[bytes]:
    """What a job sends that trains steadily on four nodes, with a rescale in each third message."""
    made = []
    for number in range(count):
        numbers = range(number * _RECORDS + 1, (number + 1) * _RECORDS + 1)
        workers = [4 + (number % 3 == 0 and entry % _RECORDS > _RECORDS // 2) for entry in numbers]
        columns = monitor_pb2.ProgressBatch(
            first_sequence=numbers[0],
            unix_seconds=[0.01 * entry for entry in numbers],
            samples=[128] * _RECORDS,
            positions=[128 * entry for entry in numbers],
            workers=workers,
        )
        request = monitor_pb2.ReportRequest(job_id="j1", reporter_id="r1", slots_per_node=1, batch=columns)
        made.append(request.SerializeToString())
    return made


def whole(trackers: JobTrackers, batch: ReportedBatch) -> None:
    """Count a message as Monitor does."""
    trackers.add(batch, 0.0)


def singly(trackers: JobTrackers, batch: ReportedBatch) -> None:
    """Count its records one by one."""
    for index in range(len(batch.records)):
        part = batch.records.part(index, index + 1)
        trackers.add(
            ReportedBatch(batch.job_id, batch.reporter_id, batch.first_sequence + index, part, batch.slots_per_node),
            0.0,
        )


def records_per_second(count: Callable[[JobTrackers, ReportedBatch], None]) -> float:
    """How fast messages are parsed, checked, counted, and made ready for the store."""
    sent, trackers = messages(_MESSAGES), JobTrackers(MonitorSettings().options(), (), 0.0)
    begin = time.process_time()
    for message in sent:
        count(trackers, parse_report(monitor_pb2.ReportRequest.FromString(message)))
        trackers.take_unstored()
    return _MESSAGES * _RECORDS / (time.process_time() - begin)


def start(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    """A program whose output goes to a file."""
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=log, stderr=log)


async def answering(settings: AllSettings) -> monitor_pb2_grpc.MonitorServiceAsyncStub:
    """Wait for Monitor.

    Raises:
        TimeoutError: it does not answer.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not Path(settings.peer("monitor").authority_file).exists() and time.monotonic() < deadline:
        await asyncio.sleep(0.1)  # Monitor makes the certificates at its start
    stub: monitor_pb2_grpc.MonitorServiceAsyncStub = monitor_pb2_grpc.MonitorServiceStub(
        open_channel(settings.peer("monitor"), owner_credential(settings))
    )
    while time.monotonic() < deadline:
        try:
            await stub.GetProgress(monitor_pb2.GetProgressRequest(), timeout=5)
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.1)
        else:
            return stub
    raise TimeoutError("Monitor does not answer")


async def with_reporters(folder: Path, reporters: int, per_second: float, seconds: float) -> dict[str, Any]:
    """A Monitor and its reporters, measured once all of them are heard."""
    config = folder / "malletrain.toml"
    config.write_text(f'state_dir = "{folder}"\n[addresses]\nmonitor = "127.0.0.1:{free_ports()[0]}"\n')
    settings, scales = load(config), open_scales(folder)
    scales[: 4 * (reporters + 1)] = (1).to_bytes(4, sys.byteorder) * (reporters + 1)
    monitor = start(folder, "malletrain.cli.main", "serve", "monitor", "--config", str(config))
    try:
        stub = await answering(settings)
        arguments = [str(folder), str(config), str(reporters), str(per_second)]
        sending = start(folder, "benchmarks.looping.reporters", *arguments)
        try:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while (heard := len(await _progress(stub))) < reporters:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"only {heard} reporters are heard")
                await asyncio.sleep(0.5)
            await asyncio.sleep(5.0)
            process = psutil.Process(monitor.pid)
            begin, before, first = time.monotonic(), sum(process.cpu_times()[:2]), await _progress(stub)
            await asyncio.sleep(seconds)
            passed, last = time.monotonic() - begin, await _progress(stub)
            ages = sorted(time.time() - entry.last_record_unix_seconds for entry in last)
            cpu = sum(process.cpu_times()[:2]) - before
            memory = process.memory_info().rss
        finally:
            sending.terminate()
            sending.wait(_PATIENCE_SECONDS)
        counted = sum(entry.records for entry in last) - sum(entry.records for entry in first)
        return {
            "reporters": reporters,
            "records_per_second": round(counted / passed),
            "expected_per_second": round(reporters * per_second),
            "cores": round(cpu / passed, 3),
            "memory_mib": round(memory / 2**20),
            "age_median_s": round(ages[len(ages) // 2], 2),
            "dropped": sum(entry.dropped_records for entry in last),
        }
    finally:
        monitor.terminate()
        monitor.wait(_PATIENCE_SECONDS)


async def _progress(stub: monitor_pb2_grpc.MonitorServiceAsyncStub) -> list[monitor_pb2.Progress]:
    return list((await stub.GetProgress(monitor_pb2.GetProgressRequest())).progress)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reporters", type=positive, default=1000)
    parser.add_argument("--per-second", type=float, default=10.0, help="batches of each reporter")
    parser.add_argument("--seconds", type=positive, default=30, help="how long is measured")
    options = parser.parse_args()
    fast, slow = records_per_second(whole), records_per_second(singly)
    figures = {"whole_per_second": round(fast), "singly_per_second": round(slow), "ratio": round(fast / slow, 1)}
    with tempfile.TemporaryDirectory(prefix="ingest-") as name:
        measured = with_reporters(Path(name), options.reporters, options.per_second, options.seconds)
        print(json.dumps({"counting": figures, "with_reporters": asyncio.run(measured)}, indent=1))


if __name__ == "__main__":
    main()
