"""`python -m malletrain.supervisor JOB_DIR`: supervise one job until its workers have ended."""

from __future__ import annotations

import functools
import json
import logging
import signal
import sys
from concurrent import futures
from pathlib import Path
from typing import TypeAlias

import grpc

from malletrain.common.awaited_signals import AwaitedSignals
from malletrain.common.cgroups import Cgroups
from malletrain.common.files import NO_ROOM, write_atomically, write_once_there_is_room
from malletrain.common.job_folder import (
    FEED_LOG,
    LAUNCH_LOG,
    LOGS_FOLDER,
    OUTCOME_FILE,
    SIDECAR_LOG,
    STAGE_OUT_LOG,
    SUPERVISOR_FILE,
)
from malletrain.common.orphans import end_descendants
from malletrain.common.processes import this_process
from malletrain.common.tasks import start_thread
from malletrain.supervisor.backends import UnknownBackendError, open_event_loop
from malletrain.supervisor.context import Context, LaunchError, check_user, read_launch
from malletrain.supervisor.loop.service import PublishedState, SupervisorService
from malletrain.supervisor.reaper import Reaper
from malletrain.supervisor.workers.agent_links import AgentLinks
from malletrain.supervisor.workers.local_workers import open_local_workers
from malletrain.supervisor.workers.root_cause import Failure
from malletrain.v1 import supervisor_pb2, supervisor_pb2_grpc

_THREADS = 16
SERVER_OPTIONS = (("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.min_ping_interval_without_data_ms", 5_000))
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
        published = PublishedState()
        agents = AgentLinks(Path(launch.certificate_file) if launch.certificate_file else None)
        agents.update(launch.agents)
        record = functools.partial(_try_to_write_outcome, folder)
        groups = Cgroups(Path(launch.cgroup) if launch.cgroup else None, logging.warning)
        local = open_local_workers(launch.cold_start, launch.standby_memory_bytes, [reaper.pid], groups)
        event_loop = open_event_loop(Context(launch, folder, published.publish, reaper.mark, agents, local, record))
    except (LaunchError, UnknownBackendError, ImportError) as error:
        logging.error("%s", error)
        _write_outcome(folder, supervisor_pb2.SUPERVISOR_OUTCOME_FAILED, str(error))
        return 2
    local.watch_logs(folder / LOGS_FOLDER / name for name in (LAUNCH_LOG, SIDECAR_LOG, FEED_LOG, STAGE_OUT_LOG))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    terminations = AwaitedSignals(signal.SIGTERM, note=event_loop.expect_stop)

    def stop_once_terminated() -> None:
        terminations.wait()
        event_loop.stop(_TERMINATED_GRACE_SECONDS)

    start_thread(stop_once_terminated, "stop")
    server = _serve(SupervisorService(event_loop, published, launch.slots_per_node), launch.socket)
    own = this_process()
    announced = json.dumps({"pid": own.pid, "start_time": own.start_time, "socket": launch.socket})
    write_once_there_is_room(folder / SUPERVISOR_FILE, announced, _FULL_DISK_SECONDS)
    state = event_loop.run()
    _write_outcome(folder, state.outcome, state.message, event_loop.failure)
    server.stop(_GRACE_SECONDS).wait()
    local.close()
    reaper.close()
    if ended := end_descendants():
        logging.info("ended %d processes that workers have left behind", ended)
    Path(launch.socket).unlink(missing_ok=True)
    return 0


_Outcome: TypeAlias = "supervisor_pb2.SupervisorOutcome.ValueType"


def _write_outcome(folder: Path, outcome: _Outcome, message: str, failure: Failure | None = None) -> None:
    write_once_there_is_room(folder / OUTCOME_FILE, _outcome_text(outcome, message, failure), _FULL_DISK_SECONDS)


def _try_to_write_outcome(folder: Path, outcome: _Outcome, message: str) -> None:
    """While workers are still being ended, nothing waits for a full disk: the outcome is written again at the end."""
    try:
        write_atomically(folder / OUTCOME_FILE, _outcome_text(outcome, message))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logging.warning("%s is written later: %s", OUTCOME_FILE, error)


def _outcome_text(outcome: _Outcome, message: str, failure: Failure | None = None) -> str:
    name = supervisor_pb2.SupervisorOutcome.Name(outcome).removeprefix("SUPERVISOR_OUTCOME_")
    content: dict[str, object] = {"outcome": name, "message": message}
    if failure is not None:
        content["failure"] = {
            "host": failure.slot.host,
            "by_script": failure.by_script,
            "scale": failure.scale,
            "seconds": failure.seconds,
            "count": failure.count,
            "log": failure.log,
        }
    return json.dumps(content)


def _serve(service: SupervisorService, socket: str) -> grpc.Server:
    path = Path(socket)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(_THREADS), options=SERVER_OPTIONS)
    supervisor_pb2_grpc.add_SupervisorServiceServicer_to_server(service, server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    return server


if __name__ == "__main__":
    sys.exit(main())
