"""A stand-in for the supervisor, without Horovod: confirms whatever it is told, one worker process per slot.

Run as `python -m malletrain.supervisor JOB_DIR` through the interpreter script that `make_python` writes. A worker is
the job's own command; when one ends, all end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from malletrain.common.files import write_atomically
from malletrain.common.processes import this_process
from malletrain.v1 import supervisor_pb2 as pb
from malletrain.v1 import supervisor_pb2_grpc


def make_python(folder: Path) -> Path:
    """An "interpreter" that runs this module in place of the supervisor, and everything else as Python does."""
    path = folder / "bin" / "python"
    path.parent.mkdir(parents=True)
    here = Path(__file__)
    path.write_text(
        f'#!/bin/sh\nif [ "$2" = malletrain.supervisor ]; then exec {sys.executable} {here} "$3"; fi\n'
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return path


class StandInSupervisor(supervisor_pb2_grpc.SupervisorServiceServicer):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launch: dict[str, Any] = json.loads((folder / "launch.json").read_text())
        self.sequence = self.launch["sequence"]
        self.hosts = {host["name"]: host["slots"] for host in self.launch["hosts"]}
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.changed = threading.Condition()
        self.stopping = False
        self.version = 0
        with self.changed:
            self._follow()

    def _follow(self) -> None:
        for name in set(self.workers) - set(self.hosts):
            self.kill(name)
        for name in set(self.hosts) - set(self.workers):
            environment = {**os.environ, **self.launch["environment"], "MALLETRAIN_NODE": name}
            log = (self.folder / "logs" / f"{name}.0.log").open("ab")
            self.workers[name] = subprocess.Popen(
                self.launch["command"],
                cwd=self.launch["working_directory"],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.version += 1
        self.changed.notify_all()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        worker = self.workers.pop(name)
        worker.send_signal(number)
        worker.wait()

    def state(self, phase: pb.SupervisorPhase.ValueType = pb.SUPERVISOR_PHASE_RUNNING) -> pb.SupervisorState:
        workers = [pb.WorkerProcess(host=name, pid=worker.pid) for name, worker in self.workers.items()]
        return pb.SupervisorState(
            phase=phase,
            commanded_sequence=self.sequence,
            confirmed_sequence=self.sequence,
            confirmed_hosts=sorted(self.hosts),
            workers=workers,
        )

    def WatchState(self, request: Any, context: Any) -> Any:
        del request
        seen = 0
        while context.is_active():
            with self.changed:
                self.changed.wait_for(lambda: self.version != seen, timeout=0.2)  # noqa: B023  # called at once
                if self.version == seen:
                    continue
                seen = self.version
                state = self.state()
            yield pb.WatchStateResponse(state=state)

    def SetHosts(self, request: Any, context: Any) -> pb.SetHostsResponse:
        del context
        with self.changed:
            if request.sequence > self.sequence:
                self.sequence, self.hosts = request.sequence, {host.name: host.slots for host in request.hosts}
                self._follow()
            return pb.SetHostsResponse(state=self.state())

    def ReleaseHosts(self, request: Any, context: Any) -> pb.ReleaseHostsResponse:
        del context
        with self.changed:
            self.hosts = {name: slots for name, slots in self.hosts.items() if name not in request.hosts}
            self._follow()
            return pb.ReleaseHostsResponse(state=self.state())

    def GetState(self, request: Any, context: Any) -> pb.GetStateResponse:
        del request, context
        with self.changed:
            return pb.GetStateResponse(state=self.state())

    def Stop(self, request: Any, context: Any) -> pb.StopResponse:
        del request, context
        with self.changed:
            self.stopping = True
            for name in list(self.workers):
                self.kill(name, signal.SIGTERM)
            self.version += 1
            self.changed.notify_all()
            return pb.StopResponse(state=self.state())

    def outcome(self) -> str:
        """How the workers ended; empty while they run."""
        if self.stopping:
            return "STOPPED"
        ended = [worker.poll() for worker in self.workers.values() if worker.poll() is not None]
        return "" if not ended else "FAILED" if any(ended) else "EXITED"


def main() -> None:
    folder = Path(sys.argv[1])
    stand_in = StandInSupervisor(folder)
    server = grpc.server(futures.ThreadPoolExecutor(8))
    supervisor_pb2_grpc.add_SupervisorServiceServicer_to_server(stand_in, server)
    server.add_insecure_port(f"unix:{stand_in.launch['socket']}")
    server.start()
    own = this_process()
    announced = {"pid": own.pid, "start_time": own.start_time, "socket": stand_in.launch["socket"]}
    write_atomically(folder / "supervisor.json", json.dumps(announced))
    pause = threading.Event()
    outcome = ""
    while not outcome:
        pause.wait(0.02)
        with stand_in.changed:
            outcome = stand_in.outcome()
    for name in list(stand_in.workers):
        stand_in.kill(name)
    write_atomically(folder / "outcome.json", json.dumps({"outcome": outcome, "message": f"stand-in: {outcome}"}))
    server.stop(0.2).wait()


if __name__ == "__main__":
    main()
