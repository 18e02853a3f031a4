"""What MalleTrain needs on a head node: `python benchmarks/sizing.py [--nodes 100] [--jobs 10] [--json]`.

Starts a real `malletrain up` on virtual nodes that come and go as a drawn trace says, and jobs whose program only
reports progress. Measured over some seconds: memory (PSS, which counts shared pages once) and CPU of each service and
of a job's processes, by how much databases and logs grow, and what goes over loopback. All of it depends on how often
nodes change; so the changes are counted, too. Linux only.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from benchmarks.footprint import STORING, database_bytes, log_bytes, pss_mib
from malletrain.cli.operate.service_forks import TITLE as FORKS
from malletrain.runtime.paging import all_pages
from malletrain.scavenger.generate import generate
from malletrain.scavenger.trace_files import write_trace
from malletrain.v1 import job_manager_pb2, resources_pb2, scavenger_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

_IDLE_FRACTION, _SEED = 0.3, 2021
_TRACE_SECONDS = 24 * 3600.0
_PROGRAM = """
import time
from malletrain.client import report
while True:
    time.sleep(1 / {rate})
    report(32)
"""
_KINDS = {
    "malletrain.supervisor": "supervisor",
    "malletrain.supervisor.reaper": "reaper",
    "malletrain.client.sidecar": "sidecar",
}
_WAITING = "/worker_bootstrap.py"


@dataclass(frozen=True)
class Use:
    """What processes of one kind use.

    Attributes:
        processes: How many there are.
        pss_mib: Memory of one of them, the median, in MiB.
        largest_mib: Memory of the largest, in MiB.
        cpu_percent: CPU of all of them, in percent of one core.
    """

    processes: int
    pss_mib: float
    largest_mib: float
    cpu_percent: float


@dataclass(frozen=True)
class Size:
    """One measurement.

    Attributes:
        nodes: Nodes of the machine, idle or not.
        idle: Idle nodes at the end.
        jobs: Jobs that take part in plans.
        training: Jobs with nodes at the end.
        seconds: Length of the measurement.
        node_changes: Joins and leaves of nodes in it.
        journal_rows: Rows of JobManager's journal in it.
        use: By kind of process.
        database_bytes: What each database grew by.
        log_bytes: What all logs of services grew by.
        loopback_bytes: What went over loopback, of everybody on the machine.
    """

    nodes: int
    idle: int
    jobs: int
    training: int
    seconds: float
    node_changes: int
    journal_rows: int
    use: dict[str, Use]
    database_bytes: dict[str, int]
    log_bytes: int
    loopback_bytes: int


@dataclass(frozen=True)
class Reading:
    """What has been used up to a moment: seconds of CPU by process, and sizes."""

    at: float
    cpu_seconds: dict[int, float]
    database_bytes: dict[str, int]
    log_bytes: int
    loopback_bytes: int
    journal_rows: int


def measure(nodes: int, jobs: int, seconds: float, speed: float, rate: float) -> Size:
    """Start everything, wait until the jobs have settled, and measure."""
    with tempfile.TemporaryDirectory(prefix="malletrain-sizing-") as name:
        folder = Path(name)
        write_trace(generate(nodes, _TRACE_SECONDS, _IDLE_FRACTION, random.Random(_SEED)), folder / "idle.csv")
        with deployed(folder / "state", _settings(folder, jobs, speed)) as system, _nothing_left(system):
            _submit(system, jobs, folder, rate)
            expected = max(1, min(jobs * 9 // 10, round(nodes * _IDLE_FRACTION / 2)))
            wait_until(lambda: _with_nodes(system) >= expected, 240, f"{expected} jobs with nodes")
            return _measured(system, nodes, jobs, seconds)


@contextmanager
def _nothing_left(system: Deployment) -> Iterator[None]:
    """Kill the jobs' processes at the end: there may be more than stop in time."""
    try:
        yield
    finally:
        jobs = psutil.Process(system.pids()["job_manager"]).children(recursive=True)
        system.process.send_signal(signal.SIGTERM)
        system.process.wait(90)
        for process in jobs:
            with suppress(psutil.Error):  # it has ended, as it should
                process.kill()


def _settings(folder: Path, jobs: int, speed: float) -> str:
    return f"""
[scavenger]
source = "trace"
trace = {json.dumps(str(folder / "idle.csv"))}
start_s = 3600
speed = {speed}
debounce_seconds = 1

[job_manager]
backend = "command"
max_parallel = {jobs}
rescale_deadline_seconds = 600
"""


def _submit(system: Deployment, jobs: int, folder: Path, rate: float) -> None:
    program = folder / "program.py"
    program.write_text(_PROGRAM.format(rate=rate))
    spec = resources_pb2.JobSpec(
        name="sizing",
        command=[sys.executable, str(program)],
        working_directory=str(folder),
        min_nodes=1,
        max_nodes=4,
        profile=resources_pb2.PROFILE_MODE_NEVER,
    )
    with closing(system.stubs) as stubs:
        stubs.job_manager.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[spec] * jobs), timeout=60)


def _with_nodes(system: Deployment) -> int:
    with closing(system.stubs) as stubs:
        listed = stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=60).jobs
    return sum(bool(job.confirmed_nodes) for job in listed)


def _measured(system: Deployment, nodes: int, jobs: int, seconds: float) -> Size:
    changes = NodeChanges(system)
    before = _read(system)
    threading.Event().wait(seconds)
    after = _read(system)
    node_changes = changes.close()
    return Size(
        nodes=nodes,
        idle=len(system.json("nodes")),
        jobs=jobs,
        training=_with_nodes(system),
        seconds=after.at - before.at,
        node_changes=node_changes,
        journal_rows=after.journal_rows - before.journal_rows,
        use=_use(system, before, after),
        database_bytes={name: after.database_bytes[name] - size for name, size in before.database_bytes.items()},
        log_bytes=after.log_bytes - before.log_bytes,
        loopback_bytes=after.loopback_bytes - before.loopback_bytes,
    )


class NodeChanges:
    """Counts nodes that join and leave, until it is closed."""

    def __init__(self, system: Deployment) -> None:
        self._stubs = system.stubs
        self._count = 0
        self._stream = self._stubs.scavenger.WatchNodes(scavenger_pb2.WatchNodesRequest())
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        with suppress(grpc.RpcError):  # it is cancelled at the end
            for message in self._stream:
                if not message.snapshot:
                    self._count += len(message.joined) + len(message.left)

    def close(self) -> int:
        """End; returns how many there were."""
        self._stream.cancel()
        self._thread.join()
        self._stubs.close()
        return self._count


def _read(system: Deployment) -> Reading:
    counters = psutil.net_io_counters(pernic=True)["lo"]
    return Reading(
        at=time.monotonic(),
        cpu_seconds={process.pid: _cpu_seconds(process) for _, process in _processes(system)},
        database_bytes={name: database_bytes(system.folder, name) for name in STORING},
        log_bytes=log_bytes(system.folder),
        loopback_bytes=counters.bytes_sent,
        journal_rows=_journal_rows(system),
    )


def _journal_rows(system: Deployment) -> int:
    with closing(system.stubs) as stubs:
        request = job_manager_pb2.ListJobEventsRequest()
        return sum(len(page.events) for page in all_pages(stubs.job_manager.ListJobEvents, request, timeout=60))


def _cpu_seconds(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _processes(system: Deployment) -> Iterator[tuple[str, psutil.Process]]:
    """Processes of the installation with their kinds."""
    services = {pid: name for name, pid in system.pids().items()}
    yield "malletrain up", psutil.Process(system.process.pid)
    for process in psutil.Process(system.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # it may have ended
            words = process.cmdline()
            if name := services.get(process.pid):
                yield name, process
            elif "-m" in words and (kind := _KINDS.get(words[words.index("-m") + 1])):
                yield kind, process
            elif words[:1] == [FORKS]:
                yield "service forks", process
            elif any(word.endswith(_WAITING) for word in words):
                yield "worker in reserve", process


def _use(system: Deployment, before: Reading, after: Reading) -> dict[str, Use]:
    by_kind: dict[str, list[psutil.Process]] = {}
    for kind, process in _processes(system):
        by_kind.setdefault(kind, []).append(process)
    return {kind: _use_of(processes, before, after) for kind, processes in by_kind.items()}


def _use_of(processes: list[psutil.Process], before: Reading, after: Reading) -> Use:
    memory = [found for process in processes if (found := pss_mib(process)) is not None]
    pids = [process.pid for process in processes]
    spent = sum(after.cpu_seconds.get(pid, 0.0) - before.cpu_seconds.get(pid, 0.0) for pid in pids)
    return Use(
        processes=len(processes),
        pss_mib=round(statistics.median(memory), 1) if memory else 0.0,
        largest_mib=round(max(memory, default=0.0), 1),
        cpu_percent=round(100 * spent / (after.at - before.at), 2),
    )


def show(size: Size) -> None:
    """Print a measurement."""
    print(
        f"{size.nodes} nodes, {size.idle} of them idle; {size.jobs} jobs, {size.training} of them training; "
        f"{size.seconds:.0f} s with {size.node_changes} joins and leaves of nodes, "
        f"{size.journal_rows} rows of the journal"
    )
    print(f"{'':<20}{'processes':>10}{'PSS MiB':>10}{'largest':>10}{'CPU %':>10}")
    for kind, use in size.use.items():
        print(f"{kind:<20}{use.processes:>10}{use.pss_mib:>10.1f}{use.largest_mib:>10.1f}{use.cpu_percent:>10.2f}")
    for name, grown in size.database_bytes.items():
        print(f"database of {name}: {grown / 1024:+.0f} KiB")
    print(f"logs of services: {size.log_bytes / 1024:+.0f} KiB")
    print(f"loopback: {size.loopback_bytes / size.seconds / 1024:.0f} KiB/s")


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=positive, default=100, help="nodes of the machine")
    parser.add_argument("--jobs", type=positive, default=10, help="jobs that take part in plans")
    parser.add_argument("--seconds", type=positive, default=30, help="length of the measurement")
    parser.add_argument("--speed", type=float, default=60.0, help="seconds of the trace per second: more events")
    parser.add_argument("--rate", type=float, default=2.0, help="records a second that each job reports")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    size = measure(options.nodes, options.jobs, options.seconds, options.speed, options.rate)
    if options.json:
        print(json.dumps(asdict(size)))
    else:
        show(size)


if __name__ == "__main__":
    main()
