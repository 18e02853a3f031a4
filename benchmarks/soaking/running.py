"""One run: everything is started, disturbed and watched; then the jobs are left in peace until they have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.looping.stand_ins import COMMANDS, STARTS
from benchmarks.soaking.checks import samples_agree
from benchmarks.soaking.configuration import job_spec, queue_gauges, write_settings
from benchmarks.soaking.fault_plan import FaultKind, plan_faults
from benchmarks.soaking.injectors import inject, make_injectors
from benchmarks.soaking.logs import defects, ends, keep_logs, log_files
from benchmarks.soaking.machine import SteppedClock, small_disk
from benchmarks.soaking.observations import FinalJob, Observations
from benchmarks.soaking.sampling import Installation, Sampler
from benchmarks.soaking.scheduler import StandInSchedulers, play
from benchmarks.soaking.trainer import STATE
from benchmarks.soaking.watching import Watcher, journal_row, read_journal, retried
from benchmarks.soaking.workload import IdleNodes, plan_arrivals, taken_nodes
from malletrain.caller.credentials import owner_credential
from malletrain.cli.shared.settings import AllSettings, load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.common.processes import read_arguments
from malletrain.runtime.channel import is_serving, open_blocking_channel
from malletrain.runtime.settings_file import SERVICES
from malletrain.scavenger.idle_trace import Trace
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
_AGENT_NODES = tuple(f"agent{number}" for number in range(1, 7))
_START_S, _DRAIN_S, _STOP_S, _SETTLE_S = 90.0, 240.0, 60.0, 20.0


@dataclass(frozen=True)
class SoakOptions:
    """What is run.

    Attributes:
        seconds: How long faults come and the trace is played.
        jobs: How many jobs are submitted.
        seed: Seed of faults, jobs and nodes.
        mean_gap_s: Mean time between the beginnings of two faults, in seconds.
        speed: Seconds of the trace per second.
        kinds: Faults that may come.
        parallel: Most jobs that take part in plans.
    """

    seconds: float
    jobs: int
    seed: int
    mean_gap_s: float
    speed: float
    kinds: frozenset[FaultKind]
    parallel: int = 12


@dataclass
class Soaked:
    """What came of it.

    Attributes:
        seen: What was seen.
        absent: Faults that could not be done, with the reason.
        options: What was run.
        drained_s: How long the jobs took to end after the last fault.
    """

    seen: Observations
    absent: dict[FaultKind, str]
    options: SoakOptions
    drained_s: float = 0.0


@contextmanager
def _program(log: Path, environment: dict[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Soak:
    """The parts of a run that follow each other."""

    def __init__(self, settings: AllSettings, folder: Path, options: SoakOptions, seen: Observations) -> None:
        self._settings, self._folder, self._options, self._seen = settings, folder, options, seen
        self._begin = time.monotonic()
        self._ending = threading.Event()
        self.arrivals = plan_arrivals(options.seed, options.jobs, options.seconds)

    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self._begin

    @property
    def ending(self) -> threading.Event:
        """Set at the end of the disturbed part."""
        return self._ending

    def submit(self) -> None:
        """Submit each job when it is due, again until that is answered."""
        with closing(ServiceStubs(self._settings, owner_credential(self._settings))) as stubs:
            for arrival in self.arrivals:
                self._ending.wait(max(0.0, arrival.at_s - self.now()))
                request = job_manager_pb2.SubmitJobsRequest(
                    request_id=arrival.name, specs=[job_spec(arrival, self._folder)]
                )
                retried(partial(stubs.job_manager.SubmitJobs, request), lambda: self.now() > 5000, time.sleep)
                self._seen.submitted[arrival.name] = self.now()

    def drain(self) -> float:
        """Wait until all jobs have ended; how long that took. Those that do not are told by the checks."""
        begin = self.now()
        with closing(ServiceStubs(self._settings, owner_credential(self._settings))) as stubs:
            while self.now() - begin < _DRAIN_S:
                jobs = self._jobs(stubs)
                if len(jobs) >= self._options.jobs and all(job.HasField("end_time") for job in jobs):
                    break
                time.sleep(0.5)
        return self.now() - begin

    def _jobs(self, stubs: ServiceStubs) -> list[resources_pb2.Job]:
        request = partial(stubs.job_manager.ListJobs, job_manager_pb2.ListJobsRequest())
        begin = self.now()
        return list(retried(request, lambda: self.now() - begin > _START_S, time.sleep).jobs)

    def look_at_last(self, installation: Installation) -> None:
        """Read everything once more when all is quiet: what Monitor stored last reaches JobManager a moment later."""
        seen = self._seen
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            left = {" ".join(read_arguments(process.id.pid)) for process in installation.job_processes()}
            seen.left_processes = sorted(left)
            seen.gauges = queue_gauges(self._settings)
            seen.final_jobs = self._final_jobs(installation)
            if not left and not any(seen.gauges.values()) and not samples_agree(seen):
                break
            time.sleep(0.5)
        seen.silent_services = [
            name for name in SERVICES if not is_serving(open_blocking_channel(self._settings.peer(name), None))
        ]
        with closing(ServiceStubs(self._settings, owner_credential(self._settings))) as stubs:
            seen.last_rows = [journal_row(event, self.now()) for event, _ in read_journal(stubs)]
        seen.commands = [self._moved(line) for line in (self._folder / COMMANDS).read_text().splitlines()]

    def _final_jobs(self, installation: Installation) -> list[FinalJob]:
        with closing(ServiceStubs(self._settings, owner_credential(self._settings))) as stubs:
            progress = stubs.monitor.GetProgress(monitor_pb2.GetProgressRequest(), timeout=10).progress
            samples = {entry.job_id: entry.samples for entry in progress}
            request = job_manager_pb2.GetUsageRequest(group_by=[job_manager_pb2.USAGE_KEY_JOB])
            used = {row.job_id: row for part in stubs.job_manager.GetUsage(request, timeout=30) for row in part.rows}
            return [
                self._final(job, samples.get(job.id), used.get(job.id, job_manager_pb2.UsageRow()), installation)
                for job in self._jobs(stubs)
            ]

    def _moved(self, line: str) -> str:
        """A line of the stand-ins, whose clock began at another moment."""
        moment, _, rest = line.partition(" ")
        return f"{float(moment) - self._begin:.6f} {rest}"

    def _final(
        self,
        job: resources_pb2.Job,
        samples: int | None,
        used: job_manager_pb2.UsageRow,
        installation: Installation,
    ) -> FinalJob:
        path = installation.state / "jobs" / job.id / STATE
        return FinalJob(
            job_id=job.id,
            name=job.spec.name,
            state=resources_pb2.JobState.Name(job.state),
            samples=job.samples,
            monitor_samples=samples,
            trained=int(path.read_text()) if path.exists() else None,
            wanted=int(job.spec.command[-1]),
            restarts=job.restarts,
            preemptions=job.preemptions,
            used_node_s=used.node_seconds,
            used_samples=used.samples,
            used_preemptions=used.preemptions,
        )


def run(
    folder: Path, trace: Trace, clock: SteppedClock | str, options: SoakOptions, keep: Path | None = None
) -> Soaked:
    """Run once.

    Args:
        folder: An empty folder for everything that is written.
        trace: Idle nodes of Slurm.
        clock: What all processes see as the wall clock, this one included; why it can't be stepped otherwise.
        options: What is run.
        keep: Folder that gets the logs; None: they are not kept.
    """
    seen = Observations()
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder))
        state = folder / "disk" / "state"
        state.mkdir(mode=0o700)
        if keep is not None:
            stack.callback(keep_logs, folder, state, keep)
        idle = IdleNodes(trace, options.speed)
        schedulers = StandInSchedulers(folder / "schedulers", idle, _AGENT_NODES, options.seed)
        config = write_settings(folder, state, schedulers.folder, options.parallel)
        environment = {**os.environ, "PATH": f"{schedulers.folder}:{os.environ['PATH']}", "COLUMNS": "200"}
        program = partial(_program, folder / "programs.log", environment)
        stack.enter_context(program("-m", "benchmarks.soaking.stand_ins", str(folder), str(config)))
        wait_until((folder / STARTS).exists, _START_S, "the stand-ins")
        up = stack.enter_context(
            _program(folder / "up.log", environment, "-m", "malletrain.cli.main", "up", "--config", str(config))
        )
        stack.callback(schedulers.end_agents)
        installation = Installation(state, up.pid)
        stack.callback(_kill_jobs, installation)
        wait_until(lambda: "stop with Ctrl-C" in (folder / "up.log").read_text(), _START_S, "all services serving")
        injectors, absent = make_injectors(installation, schedulers, disk, clock)
        faults = plan_faults(options.seed, options.seconds, options.mean_gap_s, options.kinds & injectors.keys())
        soak = Soak(load(config), folder, options, seen)
        watcher, sampler = Watcher(load(config), seen, soak.now), Sampler(installation, seen, soak.now)
        watcher.start()
        sampler.start()
        taken = taken_nodes(options.seed, _AGENT_NODES, options.seconds)
        moments = [moment for moment in idle.moments if moment < options.seconds]
        _together(
            soak,
            options.seconds,
            partial(play, schedulers, moments, taken, soak.now, soak.ending),
            partial(inject, faults, injectors, seen, soak.now, soak.ending),
            soak.submit,
        )
        schedulers.drain()
        drained = soak.drain()
        soak.look_at_last(installation)
        time.sleep(1.0)
        watcher.close()
        sampler.close()
        seen.ends = ends((folder / "up.log").read_text())
        for path in log_files(folder, state):
            with path.open(errors="replace") as lines:
                seen.defects += defects(f"{path.parent.name}/{path.name}", lines)
    return Soaked(seen, absent, options, drained)


def _together(soak: Soak, seconds: float, *parts: Callable[[], object]) -> None:
    """Run all parts at the same time until the end of the disturbed part.

    Raises:
        Exception: what one of them raised.
    """
    with ThreadPoolExecutor(len(parts)) as pool:
        running = [pool.submit(part) for part in parts]
        wait(running, max(0.0, seconds - soak.now()), FIRST_EXCEPTION)
        soak.ending.set()
    for part in running:
        part.result()


def _kill_jobs(installation: Installation) -> None:
    for process in installation.job_processes():
        process.id.kill()
