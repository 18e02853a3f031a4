"""`python -m malletrain.supervisor JOB_DIR`: supervise one job until its workers have ended."""

from __future__ import annotations

import functools
import json
import logging
import signal
import sys
import threading
from concurrent import futures
from pathlib import Path
from typing import TypeAlias

import grpc

from malletrain.common.files import NO_ROOM, write_atomically, write_once_there_is_room
from malletrain.common.job_folder import OUTCOME_FILE, SUPERVISOR_FILE
from malletrain.common.processes import this_process
from malletrain.supervisor.agent_links import AgentLinks
from malletrain.supervisor.backends import UnknownBackendError, open_event_loop
from malletrain.supervisor.context import Context
from malletrain.supervisor.launch import LaunchError, check_user, read_launch
from malletrain.supervisor.local_workers import open_local_workers
from malletrain.supervisor.reaper import Reaper
from malletrain.supervisor.service import StateBoard, SupervisorService
from malletrain.v1 import supervisor_pb2, supervisor_pb2_grpc

_THREADS = 16
_OPTIONS = (("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.min_ping_interval_without_data_ms", 5_000))
"""JobManager pings every ten seconds; by default gRPC hangs up on peers that ping so often while nothing happens."""
_GRACE_SECONDS = 2.0
_TERMINATED_GRACE_SECONDS = 3.0
_FULL_DISK_SECONDS = 60.0
"""How long to wait for room on a full disk before the job counts as failed."""


def main() -> int:
    """Run; 0 unless the launch file can't be used."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    folder = Path(sys.argv[1]).resolve()
    try:
        launch = read_launch(folder)
        check_user(launch)
        reaper = Reaper(launch.job_id)
        board = StateBoard()
        agents = AgentLinks(Path(launch.certificate_file) if launch.certificate_file else None)
        agents.update(launch.agents)
        record = functools.partial(_try_to_write_outcome, folder)
        local = open_local_workers(launch.cold_start, launch.standby_memory_bytes, [reaper.pid])
        event_loop = open_event_loop(Context(launch, folder, board.publish, reaper.mark, agents, local, record))
    except (LaunchError, UnknownBackendError, ImportError) as error:
        logging.error("%s", error)
        _write_outcome(folder, supervisor_pb2.SUPERVISOR_OUTCOME_FAILED, str(error))
        return 2
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def terminate(*_: object) -> None:
        event_loop.expect_stop()
        threading.Thread(target=event_loop.stop, args=(_TERMINATED_GRACE_SECONDS,), daemon=True).start()

    signal.signal(signal.SIGTERM, terminate)
    server = _serve(SupervisorService(event_loop, board, launch.slots_per_node), launch.socket)
    own = this_process()
    announced = json.dumps({"pid": own.pid, "start_time": own.start_time, "socket": launch.socket})
    write_once_there_is_room(folder / SUPERVISOR_FILE, announced, _FULL_DISK_SECONDS)
    state = event_loop.run()
    _write_outcome(folder, state.outcome, state.message)
    server.stop(_GRACE_SECONDS).wait()
    local.close()
    reaper.close()
    Path(launch.socket).unlink(missing_ok=True)
    return 0


_Outcome: TypeAlias = "supervisor_pb2.SupervisorOutcome.ValueType"


def _write_outcome(folder: Path, outcome: _Outcome, message: str) -> None:
    write_once_there_is_room(folder / OUTCOME_FILE, _outcome_text(outcome, message), _FULL_DISK_SECONDS)


def _try_to_write_outcome(folder: Path, outcome: _Outcome, message: str) -> None:
    """While workers are still being ended, nothing waits for a full disk: the outcome is written again at the end."""
    try:
        write_atomically(folder / OUTCOME_FILE, _outcome_text(outcome, message))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logging.warning("%s is written later: %s", OUTCOME_FILE, error)


def _outcome_text(outcome: _Outcome, message: str) -> str:
    name = supervisor_pb2.SupervisorOutcome.Name(outcome).removeprefix("SUPERVISOR_OUTCOME_")
    return json.dumps({"outcome": name, "message": message})


def _serve(service: SupervisorService, socket: str) -> grpc.Server:
    path = Path(socket)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(_THREADS), options=_OPTIONS)
    supervisor_pb2_grpc.add_SupervisorServiceServicer_to_server(service, server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    return server


if __name__ == "__main__":
    sys.exit(main())
