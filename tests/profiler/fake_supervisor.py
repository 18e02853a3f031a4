"""A supervisor with a simulated training in real time: it sleeps for as long as the steps would take.

Run as `python -m malletrain.supervisor JOB_DIR` through the interpreter script that `make_python` writes. The job's
command is `true BATCH A B C UP DOWN`: a step of n nodes takes A + B·(n-1)/n + C·(n-1) seconds and processes BATCH
samples per node; growths stall UP seconds, shrinks DOWN.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from malletrain.client.monitor_stream import open_channel, read_job_token
from malletrain.common.files import write_atomically
from malletrain.common.job_folder import TOKEN_FILE
from malletrain.common.processes import this_process
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc, supervisor_pb2_grpc
from malletrain.v1 import supervisor_pb2 as pb


@dataclass(frozen=True)
class StepTimes:
    """A job's batch per node, times of a step in seconds (see the module), and stalls of growths and shrinks."""

    batch: int
    compute: float
    bandwidth: float
    latency: float
    up: float = 0.6
    down: float = 0.2

    def step_seconds(self, nodes: int) -> float:
        return self.compute + self.bandwidth * (nodes - 1) / nodes + self.latency * (nodes - 1)

    def rate(self, nodes: int) -> float:
        return nodes * self.batch / self.step_seconds(nodes)

    @property
    def command(self) -> list[str]:
        figures = (self.batch, self.compute, self.bandwidth, self.latency, self.up, self.down)
        return ["true", *(f"{figure:g}" for figure in figures)]


def make_python(folder: Path) -> Path:
    """A shell script that runs this module in place of the supervisor, and Python for everything else."""
    path = folder / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'#!/bin/sh\nif [ "$2" = malletrain.supervisor ]; then exec {sys.executable} {Path(__file__)} "$3"; fi\n'
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return path


class SimulatedTraining:
    """Sleeps and reports, on the commanded number of nodes."""

    def __init__(self, times: StepTimes, environment: dict[str, str], nodes: int) -> None:
        self.times = times
        self.job_id = environment["MALLETRAIN_JOB_ID"]
        self.nodes = nodes
        self.wanted = nodes
        self.changed_scale = threading.Event()
        self.outbox: queue.Queue[monitor_pb2.ReportRequest] = queue.Queue()
        self.sequence = 0
        self.position = 0
        self.environment = environment
        self.token = read_job_token(Path(environment["MALLETRAIN_JOB_DIR"]) / TOKEN_FILE)
        self.reporter = f"simulated-{os.getpid()}"

    def tell(self, nodes: int) -> None:
        self.wanted = nodes
        self.changed_scale.set()

    def run(self) -> None:
        threading.Thread(target=self._send, daemon=True).start()
        due = time.monotonic()
        while True:
            self.changed_scale.clear()
            if self.wanted != self.nodes:
                stall = self.times.up if self.wanted > self.nodes else self.times.down
                self.nodes = self.wanted
                due = time.monotonic() + stall
            if not self.nodes:
                self.changed_scale.wait()
                continue
            due += self.times.step_seconds(self.nodes)
            if self.changed_scale.wait(max(0.0, due - time.monotonic())):
                continue
            # Time stamps are the exact ones: a busy machine that is late does not make the job slow.
            self._report(time.time() + due - time.monotonic())

    def _report(self, unix_seconds: float) -> None:
        self.sequence += 1
        samples = self.times.batch * self.nodes
        self.position += samples
        batch = monitor_pb2.ProgressBatch(
            first_sequence=self.sequence,
            unix_seconds=[unix_seconds],
            samples=[samples],
            positions=[self.position],
            workers=[self.nodes],
        )
        self.outbox.put(
            monitor_pb2.ReportRequest(job_id=self.job_id, reporter_id=self.reporter, batch=batch, slots_per_node=1)
        )

    def _send(self) -> None:
        with open_channel(self.environment["MALLETRAIN_MONITOR"], self.environment) as channel:
            stub = monitor_pb2_grpc.MonitorServiceStub(channel)
            for _ in stub.Report(self._requests(), metadata=(("authorization", f"Bearer {self.token}"),)):
                pass

    def _requests(self) -> Iterator[monitor_pb2.ReportRequest]:
        while True:
            yield self.outbox.get()


class FakeSupervisor(supervisor_pb2_grpc.SupervisorServiceServicer):
    def __init__(self, folder: Path) -> None:
        self.launch: dict[str, Any] = json.loads((folder / "launch.json").read_text())
        self.sequence = self.launch["sequence"]
        self.hosts = {host["name"] for host in self.launch["hosts"]}
        batch, *figures = self.launch["command"][1:]
        times = StepTimes(int(batch), *map(float, figures))
        self.training = SimulatedTraining(times, self.launch["environment"], len(self.hosts))
        self.changed = threading.Condition()
        self.stopped = threading.Event()
        self.version = 1

    def state(self) -> pb.SupervisorState:
        return pb.SupervisorState(
            phase=pb.SUPERVISOR_PHASE_RUNNING,
            commanded_sequence=self.sequence,
            confirmed_sequence=self.sequence,
            confirmed_hosts=sorted(self.hosts),
            workers=[pb.WorkerProcess(host=name, pid=os.getpid()) for name in sorted(self.hosts)],
        )

    def _now_on(self, hosts: set[str]) -> pb.SupervisorState:
        self.hosts = hosts
        self.training.tell(len(hosts))
        self.version += 1
        self.changed.notify_all()
        return self.state()

    def WatchState(self, request: Any, context: Any) -> Any:
        del request
        seen = 0
        while context.is_active():
            with self.changed:
                if self.version == seen:
                    self.changed.wait(0.2)
                    continue
                seen, state = self.version, self.state()
            yield pb.WatchStateResponse(state=state)

    def SetHosts(self, request: Any, context: Any) -> pb.SetHostsResponse:
        del context
        with self.changed:
            if request.sequence > self.sequence:
                self.sequence = request.sequence
                return pb.SetHostsResponse(state=self._now_on({host.name for host in request.hosts}))
            return pb.SetHostsResponse(state=self.state())

    def ReleaseHosts(self, request: Any, context: Any) -> pb.ReleaseHostsResponse:
        del context
        with self.changed:
            return pb.ReleaseHostsResponse(state=self._now_on(self.hosts - set(request.hosts)))

    def GetState(self, request: Any, context: Any) -> pb.GetStateResponse:
        del request, context
        with self.changed:
            return pb.GetStateResponse(state=self.state())

    def Stop(self, request: Any, context: Any) -> pb.StopResponse:
        del request, context
        self.stopped.set()
        with self.changed:
            return pb.StopResponse(state=self.state())


def main() -> None:
    folder = Path(sys.argv[1])
    supervisor = FakeSupervisor(folder)
    server = grpc.server(futures.ThreadPoolExecutor(8))
    supervisor_pb2_grpc.add_SupervisorServiceServicer_to_server(supervisor, server)
    socket = supervisor.launch["socket"]
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    threading.Thread(target=supervisor.training.run, daemon=True).start()
    own = this_process()
    announced = {"pid": own.pid, "start_time": own.start_time, "socket": socket}
    write_atomically(folder / "supervisor.json", json.dumps(announced))
    supervisor.stopped.wait()
    outcome = {"outcome": "STOPPED", "message": "simulated training stopped"}
    write_atomically(folder / "outcome.json", json.dumps(outcome))
    server.stop(0.2).wait()


if __name__ == "__main__":
    main()
