"""The course of a demo run: start, submit, follow, gather."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import grpc
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from malletrain.cli.demo.stage import Stage, demo_jobs
from malletrain.cli.demo.strays import find_processes
from malletrain.cli.demo.summary import Evidence
from malletrain.cli.demo.watcher import Watcher
from malletrain.cli.jobs import all_jobs
from malletrain.cli.peers import DEADLINE_SECONDS, Peers
from malletrain.cli.settings import load
from malletrain.runtime.channel import open_blocking_channel
from malletrain.runtime.config import SERVICES
from malletrain.runtime.errors import MalleTrainError
from malletrain.runtime.health import is_serving
from malletrain.v1 import job_manager_pb2, monitor_pb2

_START_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_LONGEST_EXTRA_SECONDS = 240.0
_RECLAIM_LIMIT_SECONDS = 5.0
"""A process on a node this long after its leave counts as left behind."""

# Calls of the demo itself outlast a restart of the service that they go to.
_patiently = retry(
    retry=retry_if_exception_type(grpc.RpcError), stop=stop_after_delay(30), wait=wait_fixed(0.3), reraise=True
)


def wait_for_services(stage: Stage) -> None:
    """Wait until all five serve.

    Raises:
        MalleTrainError: they don't within a minute.
    """
    addresses = load(stage.config).addresses
    channels = {name: open_blocking_channel(addresses.of(name)) for name in SERVICES}
    deadline = time.monotonic() + _START_SECONDS
    waiting = set(SERVICES)
    pause = threading.Event()
    while waiting := {name for name in waiting if not is_serving(channels[name])}:
        if time.monotonic() > deadline:
            raise MalleTrainError(f"{', '.join(sorted(waiting))} did not start: see {stage.folder}/up.log")
        pause.wait(_LOOK_SECONDS)
    for channel in channels.values():
        channel.close()


@_patiently
def submit_jobs(peers: Peers) -> list[str]:
    """Submit the demo's jobs and return their identifiers."""
    request = job_manager_pb2.SubmitJobsRequest(request_id=uuid.uuid4().hex, specs=demo_jobs())
    return [job.id for job in peers.job_manager.SubmitJobs(request, timeout=DEADLINE_SECONDS).jobs]


def follow_run(watcher: Watcher, peers: Peers, stage: Stage, job_ids: list[str], show: Callable[[], None]) -> list[str]:
    """Wait for the jobs' ends, looking for processes on taken nodes all the while; returns what was found."""
    strays = StrayWatch(watcher, stage)
    limit = time.monotonic() + stage.seconds + _LONGEST_EXTRA_SECONDS
    pause = threading.Event()
    while time.monotonic() < limit:
        show()
        strays.look()
        if watcher.all_ended(job_ids):
            break
        pause.wait(_LOOK_SECONDS)
        _catch_up(watcher, peers)
    show()
    return strays.found


def _catch_up(watcher: Watcher, peers: Peers) -> None:
    """Read the jobs as well as watching them: a stream shows no job that ended while its service was down."""
    try:
        for job in all_jobs(peers, []):
            watcher.see_job(job)
    except grpc.RpcError:
        return  # being restarted; the next look comes soon


class StrayWatch:
    """Looks for our processes on nodes that the scheduler has taken."""

    def __init__(self, watcher: Watcher, stage: Stage) -> None:
        self._watcher = watcher
        self._stage = stage
        self._seen: set[int] = set()
        self.found: list[str] = []

    def look(self) -> None:
        """Note every process on a node that left longer ago than the limit and has not come back."""
        now = time.time()
        last_left: dict[str, float] = {}
        for change in list(self._watcher.history.nodes):
            last_left |= dict.fromkeys(change.left, change.time)
        taken = {
            node
            for node, left in last_left.items()
            if node not in self._watcher.idle and now - left > _RECLAIM_LIMIT_SECONDS
        }
        for process in find_processes(self._stage.folder):
            if process.node in taken and process.pid not in self._seen:
                self._seen.add(process.pid)
                self.found.append(f"on {process.node} {now - last_left[process.node]:.1f} s after its leave: {process}")


@_patiently
def gather(peers: Peers, started: float, ended: float, strays: list[str], trace: str, timeline: str) -> Evidence:
    """Everything that the summary needs from the services, before they are stopped."""
    events: list[job_manager_pb2.JobEvent] = []
    token = ""
    while True:
        page = peers.job_manager.ListJobEvents(
            job_manager_pb2.ListJobEventsRequest(page_token=token), timeout=DEADLINE_SECONDS
        )
        events.extend(page.events)
        token = page.next_page_token
        if not token:
            break
    records = peers.monitor.ListScalingRecords(monitor_pb2.ListScalingRecordsRequest(), timeout=DEADLINE_SECONDS)
    progress = peers.monitor.GetProgress(monitor_pb2.GetProgressRequest(), timeout=DEADLINE_SECONDS)
    return Evidence(
        started=started,
        ended=ended,
        events=events,
        records=list(records.records),
        progress=list(progress.progress),
        strays=strays,
        trace=trace,
        timeline=timeline,
    )
