"""`python -m malletrain.supervisor JOB_DIR`: supervise one job until its workers have ended."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from concurrent import futures
from pathlib import Path

import grpc

from malletrain.agent.wire import WireError, read_token
from malletrain.supervisor.actor import Context
from malletrain.supervisor.backends import UnknownBackendError, open_actor
from malletrain.supervisor.files import start_time, write_atomically
from malletrain.supervisor.guardian import Guardian
from malletrain.supervisor.launch import LaunchError, read_launch
from malletrain.supervisor.remote import Agents
from malletrain.supervisor.service import StateBoard, SupervisorService
from malletrain.v1 import supervisor_pb2, supervisor_pb2_grpc

_THREADS = 16
_GRACE_SECONDS = 2.0
_TERMINATED_GRACE_SECONDS = 3.0


def main() -> int:
    """Run; 0 unless the launch file can't be used."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    folder = Path(sys.argv[1]).resolve()
    try:
        launch = read_launch(folder)
        guardian = Guardian(launch.job_id)
        board = StateBoard()
        agents = Agents(read_token(Path(launch.token_file)) if launch.token_file else b"")
        agents.know(launch.agents)
        actor = open_actor(Context(launch, folder, board.publish, guardian.mark, agents))
    except (LaunchError, UnknownBackendError, WireError, ImportError) as error:
        logging.error("%s", error)
        _write_outcome(folder, supervisor_pb2.SUPERVISOR_OUTCOME_FAILED, str(error))
        return 2
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(
        signal.SIGTERM,
        lambda *_: threading.Thread(target=actor.stop, args=(_TERMINATED_GRACE_SECONDS,), daemon=True).start(),
    )
    server = _serve(SupervisorService(actor, board, launch.slots_per_node), launch.socket)
    write_atomically(
        folder / "supervisor.json",
        json.dumps({"pid": os.getpid(), "start_time": start_time(os.getpid()), "socket": launch.socket}),
    )
    state = actor.run()
    _write_outcome(folder, state.outcome, state.message)
    server.stop(_GRACE_SECONDS).wait()
    guardian.close()
    Path(launch.socket).unlink(missing_ok=True)
    return 0


def _write_outcome(folder: Path, outcome: supervisor_pb2.SupervisorOutcome.ValueType, message: str) -> None:
    name = supervisor_pb2.SupervisorOutcome.Name(outcome).removeprefix("SUPERVISOR_OUTCOME_")
    write_atomically(folder / "outcome.json", json.dumps({"outcome": name, "message": message}))


def _serve(service: SupervisorService, socket: str) -> grpc.Server:
    path = Path(socket)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(_THREADS))
    supervisor_pb2_grpc.add_SupervisorServiceServicer_to_server(service, server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    return server


if __name__ == "__main__":
    sys.exit(main())
