"""Supervisors and trainings that are stand-ins, in one process: `python -m benchmarks.soaking.stand_ins FOLDER CONFIG`.

Each serves its job's socket as a supervisor does, stalls at a change of scale, reports to Monitor, keeps its counter in
the job's folder, and delivers again what Monitor has not acknowledged. It ends when its samples are done, when it is
told to stop, or when the process that stands for its supervisor is killed: what was not kept is lost then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

import grpc.aio

from benchmarks.looping.stand_ins import COMMANDS, STARTS, StandIn, open_scales
from benchmarks.soaking.trainer import STATE, save
from benchmarks.soaking.workload import SAMPLES_PER_STEP
from malletrain.cli.shared.settings import load
from malletrain.common.files import write_atomically
from malletrain.common.job_folder import OUTCOME_FILE, SUPERVISOR_FILE
from malletrain.common.processes import ProcessId, identify
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.supervisor.__main__ import SERVER_OPTIONS
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc, supervisor_pb2_grpc
from malletrain.v1 import supervisor_pb2 as pb

NAME = "soak-stand-in"
"""Jobs with this word in their command get a stand-in."""
_STEP_S, _SAVE_S, _LOOK_S = 0.5, 1.0, 0.3
_MAX_STALL_S = 1.5
_DELIVERY_S = 30.0
_RETRY_S = 0.2


def make_python(folder: Path) -> Path:
    """An "interpreter" for the services that starts stand-ins where the job asks for one, and supervisors else."""
    path = folder / "stand-in-python"
    tell = f'echo "$$ $3" > {folder / STARTS}; exec sleep 1000000'
    is_meant = f'[ "$2" = malletrain.supervisor ] && grep -q {NAME} "$3/launch.json"'
    path.write_text(f'#!/bin/sh\nif {is_meant}; then {tell}; fi\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


class Outbox:
    """Records of one training that Monitor has not acknowledged, and the stream that delivers them."""

    def __init__(self, job_id: str, reporter: str) -> None:
        self._job_id, self._reporter = job_id, reporter
        self._records: deque[tuple[int, float, int, int, int]] = deque()
        self._sequence = 0
        self._news = asyncio.Event()

    @property
    def empty(self) -> bool:
        """Whether all is acknowledged."""
        return not self._records

    def add(self, samples: int, position: int, workers: int) -> None:
        """One more step."""
        self._sequence += 1
        self._records.append((self._sequence, time.time(), samples, position, workers))
        self._news.set()

    async def _requests(self, news: asyncio.Event) -> AsyncIterator[monitor_pb2.ReportRequest]:
        sent = 0
        while True:
            news.clear()
            batch = [record for record in self._records if record[0] > sent]
            if batch:
                sent = batch[-1][0]
                yield monitor_pb2.ReportRequest(
                    job_id=self._job_id,
                    reporter_id=self._reporter,
                    slots_per_node=1,
                    batch=monitor_pb2.ProgressBatch(
                        first_sequence=batch[0][0],
                        unix_seconds=[record[1] for record in batch],
                        samples=[record[2] for record in batch],
                        positions=[record[3] for record in batch],
                        workers=[record[4] for record in batch],
                    ),
                )
            await news.wait()

    async def deliver(self, stub: monitor_pb2_grpc.MonitorServiceAsyncStub) -> None:
        """Deliver until cancelled; again from the first that is not acknowledged after each loss of the stream."""
        while True:
            # Of this stream alone: gRPC goes on reading the requests of a lost one until it has got another of them.
            self._news = asyncio.Event()
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for response in stub.Report(self._requests(self._news)):
                    while self._records and self._records[0][0] <= response.acknowledged_sequence:
                        self._records.popleft()
            await asyncio.sleep(_RETRY_S)


class Training(StandIn):
    """A supervisor and its training."""

    def __init__(self, folder: Path, process: ProcessId, log: TextIO, scales: Any, stub: Any) -> None:
        super().__init__(folder, process, log, scales)
        words = self.launch["command"]
        self._total = int(words[-1])
        self._stub = stub
        self._path = folder / STATE
        self._position = int(self._path.read_text()) if self._path.exists() else 0
        self._saved = time.monotonic()
        self._stalled_until = time.monotonic() + random.uniform(0.1, _MAX_STALL_S)
        self._stopped = False
        self._outbox = Outbox(self._job_id, f"{self._job_id}.{self.launch['incarnation']}")

    async def SetHosts(self, request: pb.SetHostsRequest, context: Any) -> pb.SetHostsResponse:
        del context
        if request.sequence > self._sequence:
            self._hosts = tuple(host.name for host in request.hosts)
            self._sequence = request.sequence
            self._write("set", self._hosts)
            stall = random.uniform(0.1, _MAX_STALL_S)
            self._stalled_until = time.monotonic() + stall
            asyncio.get_running_loop().call_later(stall, asyncio.ensure_future, self._confirm())
        return pb.SetHostsResponse(state=self._state())

    async def Stop(self, request: pb.StopRequest, context: Any) -> pb.StopResponse:
        del request, context
        if not self._stopped:
            self._stopped = True
            self._write("stop", self._hosts)
            self._hosts = self._confirmed = ()
            save(self._path, self._position)
            self._stopping = asyncio.ensure_future(self._end("STOPPED"))
        return pb.StopResponse(state=self._state())

    async def run(self) -> None:
        """Train until it is over; its last records are delivered some time longer."""
        delivering = asyncio.create_task(self._outbox.deliver(self._stub))
        await self._train()
        deadline = time.monotonic() + _DELIVERY_S
        while not self._outbox.empty and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
        delivering.cancel()

    async def _train(self) -> None:
        while not self._stopped:
            await asyncio.sleep(_STEP_S)
            if identify(self._process.pid) != self._process:
                self._write("killed", ())
                return
            nodes = len(self._confirmed)
            if self._stopped or not nodes or time.monotonic() < self._stalled_until:
                continue
            step = min(SAMPLES_PER_STEP * nodes, self._total - self._position)
            self._position += step
            self._outbox.add(step, self._position, nodes)
            if self._position >= self._total:
                await self._complete()
                return
            if time.monotonic() - self._saved > _SAVE_S:
                self._saved = time.monotonic()
                save(self._path, self._position)

    async def _complete(self) -> None:
        """As rank 0 with exit status 0: its sidecar delivers everything first, if Monitor takes it in time."""
        self._stopped = True
        deadline = time.monotonic() + _DELIVERY_S
        while not self._outbox.empty and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        while not save(self._path, self._position):
            await asyncio.sleep(_RETRY_S)
        self._write("exit", ())
        await self._end("EXITED")

    async def _end(self, outcome: str) -> None:
        await _write_surely(self._folder / OUTCOME_FILE, {"outcome": outcome, "message": "stand-in"})
        self._process.kill()

    def _write(self, kind: str, nodes: Any) -> None:
        self._log.write(f"{time.monotonic():.6f} {kind} {self._job_id} {' '.join(nodes)}\n")


async def _write_surely(path: Path, content: dict[str, Any]) -> None:
    """Write a file, again and again while the disk is full."""
    while True:
        try:
            write_atomically(path, json.dumps(content))
        except OSError:
            await asyncio.sleep(_RETRY_S)
        else:
            return


async def _serve_job(words: list[str], log: TextIO, scales: Any, stub: Any) -> None:
    process = identify(int(words[0]))
    if process is None:
        return
    folder = Path(words[1])
    training = Training(folder, process, log, scales, stub)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    socket = training.launch["socket"]
    supervisor_pb2_grpc.add_SupervisorServiceServicer_to_server(training, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    announced = {"pid": process.pid, "start_time": process.start_time, "socket": socket}
    await _write_surely(folder / SUPERVISOR_FILE, announced)
    try:
        await training.run()
    finally:
        await server.stop(None)


async def _serve(folder: Path, config: Path) -> None:
    starts = folder / STARTS
    os.mkfifo(starts)
    reader = asyncio.StreamReader()
    # Open for writing, too: the end of one writer is not the end of the file.
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.open(starts, os.O_RDWR | os.O_NONBLOCK), "rb", 0)
    )
    settings = load(config)
    stub: Any = None
    scales, running = open_scales(folder), set()
    with (folder / COMMANDS).open("w", buffering=1) as log:
        while line := await reader.readline():
            if stub is None:
                credential = open_installation(settings, SystemClock()).credential("job_manager")
                stub = monitor_pb2_grpc.MonitorServiceStub(open_channel(settings.peer("monitor"), credential))
            task = asyncio.create_task(_serve_job(line.decode().strip().split(maxsplit=1), log, scales, stub))
            running.add(task)
            task.add_done_callback(running.discard)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), Path(sys.argv[2])))
