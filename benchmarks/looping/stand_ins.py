"""Stand-ins for the supervisors of all jobs, in one process: `python -m benchmarks.looping.stand_ins FOLDER`.

JobManager starts the interpreter script that `make_python` writes. It tells this process of the job and then sleeps, so
that each job has a process of its own that can be watched and killed. This process serves the job's socket, confirms
every scale after a moment, and writes down when which command came.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, TextIO

import grpc.aio

from malletrain.common.files import write_atomically
from malletrain.common.processes import ProcessId, identify
from malletrain.supervisor.__main__ import SERVER_OPTIONS
from malletrain.v1 import supervisor_pb2 as pb
from malletrain.v1 import supervisor_pb2_grpc

COMMANDS = "commands.txt"
SCALES = "scales.bin"
STARTS = "starts.fifo"
MAX_JOBS = 100_000
_CONFIRM_SECONDS = 0.1


def make_python(folder: Path) -> Path:
    """An "interpreter" for the services that tells this process of supervisors instead of starting them."""
    path = folder / "stand-in-python"
    tell = f'echo "$$ $3" > {folder / STARTS}; exec sleep 1000000'
    path.write_text(f'#!/bin/sh\nif [ "$2" = malletrain.supervisor ]; then {tell}; fi\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def open_scales(folder: Path) -> mmap.mmap:
    """Number of nodes of each job, by the job's number, as 32-bit integers."""
    path = folder / SCALES
    if not path.exists():
        path.write_bytes(bytes(4 * MAX_JOBS))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def scale_of(scales: mmap.mmap, number: int) -> int:
    """Number of nodes of a job."""
    found: int = struct.unpack_from("=i", scales, 4 * number)[0]
    return found


class StandIn(supervisor_pb2_grpc.SupervisorServiceServicer):
    """The supervisor of one job, without workers."""

    def __init__(self, folder: Path, process: ProcessId, log: TextIO, scales: mmap.mmap) -> None:
        self._folder, self._process, self._log, self._scales = folder, process, log, scales
        self.launch: dict[str, Any] = json.loads((folder / "launch.json").read_text())
        self._job_id = self.launch["job_id"]
        self._sequence = self._confirmed_sequence = self.launch["sequence"]
        self._hosts = self._confirmed = tuple(host["name"] for host in self.launch["hosts"])
        self._changed = asyncio.Condition()
        self._version = 1
        self._write("start", self._hosts)
        self._tell_scale()

    async def WatchState(self, request: Any, context: Any) -> AsyncIterator[pb.WatchStateResponse]:
        del request, context
        seen = 0
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._version != seen)  # noqa: B023  # called at once
                seen, state = self._version, self._state()
            yield pb.WatchStateResponse(state=state)

    async def SetHosts(self, request: pb.SetHostsRequest, context: Any) -> pb.SetHostsResponse:
        del context
        if request.sequence > self._sequence:
            self._hosts = tuple(host.name for host in request.hosts)
            self._sequence = request.sequence
            self._write("set", self._hosts)
            asyncio.get_running_loop().call_later(_CONFIRM_SECONDS, asyncio.ensure_future, self._confirm())
        return pb.SetHostsResponse(state=self._state())

    async def ReleaseHosts(self, request: pb.ReleaseHostsRequest, context: Any) -> pb.ReleaseHostsResponse:
        del context
        self._write("release", request.hosts)
        self._hosts = tuple(host for host in self._hosts if host not in request.hosts)
        self._confirmed = tuple(host for host in self._confirmed if host not in request.hosts)
        await self._publish()
        return pb.ReleaseHostsResponse(state=self._state())

    async def Stop(self, request: pb.StopRequest, context: Any) -> pb.StopResponse:
        del request, context
        self._write("stop", self._hosts)
        self._hosts = self._confirmed = ()
        self._tell_scale()
        write_atomically(self._folder / "outcome.json", json.dumps({"outcome": "STOPPED", "message": "stand-in"}))
        self._process.kill()
        return pb.StopResponse(state=self._state())

    async def _confirm(self) -> None:
        self._confirmed, self._confirmed_sequence = self._hosts, self._sequence
        await self._publish()

    async def _publish(self) -> None:
        self._tell_scale()
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _state(self) -> pb.SupervisorState:
        return pb.SupervisorState(
            phase=pb.SUPERVISOR_PHASE_RUNNING,
            commanded_sequence=self._sequence,
            confirmed_sequence=self._confirmed_sequence,
            confirmed_hosts=self._confirmed,
            workers=[pb.WorkerProcess(host=host, pid=1) for host in {*self._hosts, *self._confirmed}],
        )

    def _tell_scale(self) -> None:
        struct.pack_into("=i", self._scales, 4 * int(self._job_id[1:]), len(self._confirmed))

    def _write(self, kind: str, nodes: Iterable[str]) -> None:
        self._log.write(f"{time.time():.6f} {kind} {self._job_id} {' '.join(nodes)}\n")


async def _serve_job(words: list[str], log: TextIO, scales: mmap.mmap) -> grpc.aio.Server | None:
    process = identify(int(words[0]))
    if process is None:
        return None
    folder = Path(words[1])
    stand_in = StandIn(folder, process, log, scales)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    supervisor_pb2_grpc.add_SupervisorServiceServicer_to_server(stand_in, server)
    server.add_insecure_port(f"unix:{stand_in.launch['socket']}")
    await server.start()
    announced = {"pid": process.pid, "start_time": process.start_time, "socket": stand_in.launch["socket"]}
    write_atomically(folder / "supervisor.json", json.dumps(announced))
    return server


async def serve(folder: Path) -> None:
    """Serve the supervisors that are started, until cancelled."""
    starts = folder / STARTS
    os.mkfifo(starts)
    reader = asyncio.StreamReader()
    # Open for writing, too: the end of one writer is not the end of the file.
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.open(starts, os.O_RDWR | os.O_NONBLOCK), "rb", 0)
    )
    scales, servers = open_scales(folder), list[grpc.aio.Server]()
    try:
        with (folder / COMMANDS).open("w", buffering=1) as log:
            while line := await reader.readline():
                server = await _serve_job(line.decode().strip().split(maxsplit=1), log, scales)
                servers += [server] if server is not None else []
    finally:
        await asyncio.gather(*(server.stop(0) for server in servers))
        pipe.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
