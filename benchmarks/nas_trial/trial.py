"""One system, one trace, one workload: the real services for a fixed time, and what came of it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.nas_trial.workload import BATCH_PER_WORKER, NODES, TRACE_SECONDS, Training, idle_trace
from malletrain.cli.demo.history import idle_intervals, node_seconds, training_intervals
from malletrain.cli.demo.strays import find_processes
from malletrain.cli.demo.watcher import Watcher
from malletrain.cli.jobs import all_jobs
from malletrain.cli.output import state_name
from malletrain.cli.peers import DEADLINE_SECONDS, Peers
from malletrain.scavenger.fragments import write_trace
from malletrain.simulator.reproduce.malletrain_real import RealJob, RealRun
from malletrain.simulator.reproduce.malletrain_systems import System
from malletrain.v1 import job_manager_pb2, monitor_pb2, profiler_pb2, resources_pb2
from tests.system.deployment import deployed

SYSTEMS = (System.LINEAR, System.PROFILED, System.PRIOR)
_TRAINER = Path(__file__).parents[2] / "examples/nasbench/train.py"
_LOOK_SECONDS = 0.5
_LIVE = (profiler_pb2.PROFILE_STATE_CLIMBING, profiler_pb2.PROFILE_STATE_MEASURING, profiler_pb2.PROFILE_STATE_DONE)


@dataclass(frozen=True)
class Trial:
    """What is run.

    Attributes:
        system: Who schedules, knowing what.
        seed: Of the trace.
        trainings: In the order of submission.
        samples: What each has to process.
        seconds: How long, in seconds.
        max_parallel: Most jobs at once.
    """

    system: System
    seed: int
    trainings: tuple[Training, ...]
    samples: int
    seconds: float
    max_parallel: int

    @property
    def speed(self) -> float:
        """Trace seconds per second."""
        return TRACE_SECONDS / self.seconds

    def spec(self, training: Training) -> resources_pb2.JobSpec:
        """What is submitted for a training."""
        guess = training.linear_guess() if self.system is System.LINEAR else ()
        profiled = self.system is System.PROFILED
        options = {
            "--architecture": training.architecture,
            "--seed": self.seed,
            "--samples": self.samples,
            "--batch-per-worker": BATCH_PER_WORKER,
            "--step-seconds": round(training.pace.step_seconds, 4),
            "--exchange-seconds": round(training.pace.exchange_seconds, 4),
        }
        return resources_pb2.JobSpec(
            name=training.name,
            command=[sys.executable, str(_TRAINER), *(str(part) for pair in options.items() for part in pair)],
            working_directory=str(_TRAINER.parent),
            environment={"OMP_NUM_THREADS": "1"},
            min_nodes=1,
            max_nodes=NODES,
            curve=[resources_pb2.ScalingPoint(nodes=nodes, rate=rate) for nodes, rate in guess],
            profile=resources_pb2.PROFILE_MODE_AUTO if profiled else resources_pb2.PROFILE_MODE_NEVER,
        )

    def settings(self, trace: Path) -> str:
        """The services' settings: defaults, sped up with the trace where they go by how long nodes stay."""
        # FreeTrain believes what users say: Monitor measures no throughput that could correct it.
        monitor = "[monitor]\nmin_steps = 1_000_000\n" if self.system is System.LINEAR else ""
        return f"""
[scavenger]
source = "trace"
trace = "{trace}"
speed = {self.speed}
duration_s = {TRACE_SECONDS}
debounce_seconds = {10 / self.speed}
[allocator]
forward_seconds = {120 / self.speed}
replan_seconds = {60 / self.speed}
[job_manager]
max_parallel = {self.max_parallel}
[profiler]
visit_seconds = {60 / self.speed}
retry_seconds = {60 / self.speed}
{monitor}"""


def run_trial(trial: Trial, folder: Path) -> RealRun:
    """Run it in an empty folder.

    Raises:
        AssertionError: the services did not start.
        RuntimeError: processes of the run could not be ended.
    """
    folder.mkdir(parents=True)
    write_trace(idle_trace(trial.seed), folder / "trace.csv")
    with _no_strays(folder), deployed(folder / "state", trial.settings(folder / "trace.csv")) as deployment:
        peers = deployment.peers
        watcher = Watcher(peers)
        watcher.start()
        started = time.time()
        specs = [trial.spec(training) for training in trial.trainings]
        request = job_manager_pb2.SubmitJobsRequest(specs=specs)
        peers.job_manager.SubmitJobs(request, timeout=DEADLINE_SECONDS)
        runs = _follow(peers, started + trial.seconds)
        ended = time.time()
        progress = peers.monitor.GetProgress(monitor_pb2.GetProgressRequest(), timeout=DEADLINE_SECONDS).progress
        jobs = list(all_jobs(peers, []))
        watcher.stop()
        run = _result(trial, watcher, jobs, progress, list(runs.values()), ended)
        peers.close()
    return run


def _follow(peers: Peers, until: float) -> dict[str, profiler_pb2.ProfileRun]:
    """The newest state of each profile; the Profiler forgets those of jobs that have ended."""
    runs: dict[str, profiler_pb2.ProfileRun] = {}
    pause = threading.Event()
    while (left := until - time.time()) > 0:
        for job in all_jobs(peers, []):
            if job.admitted:
                with contextlib.suppress(grpc.RpcError):
                    request = profiler_pb2.GetProfileRequest(job_id=job.id)
                    found = peers.profiler.GetProfile(request, timeout=DEADLINE_SECONDS).profile
                    if found.run.seconds > 0 or found.run.state in _LIVE:
                        runs[job.id] = found.run
        pause.wait(min(left, _LOOK_SECONDS))
    return runs


def _result(
    trial: Trial,
    watcher: Watcher,
    jobs: Sequence[resources_pb2.Job],
    progress: Sequence[monitor_pb2.Progress],
    runs: Sequence[profiler_pb2.ProfileRun],
    ended: float,
) -> RealRun:
    samples = {entry.job_id: entry.samples for entry in progress}
    by_name = {training.name: training for training in trial.trainings}
    return RealRun(
        system=trial.system,
        seed=trial.seed,
        samples=sum(samples.values()),
        samples_lost=sum(entry.samples_lost for entry in progress),
        rescales=sum(job.rescales for job in jobs),
        preemptions=sum(job.preemptions for job in jobs),
        profiles=len(runs),
        profiles_done=sum(run.state == profiler_pb2.PROFILE_STATE_DONE for run in runs),
        profile_node_seconds=round(sum(run.node_seconds for run in runs), 1),
        profile_stalled_node_seconds=round(sum(run.stalled_node_seconds for run in runs), 1),
        node_seconds_offered=round(node_seconds(idle_intervals(watcher.history.nodes, ended)), 1),
        node_seconds_used=round(node_seconds(training_intervals(watcher.history.jobs, ended)), 1),
        jobs=tuple(
            _job(job, by_name[job.spec.name], samples.get(job.id, 0))
            for job in jobs
            if job.state != resources_pb2.JOB_STATE_QUEUED
        ),
    )


def _job(job: resources_pb2.Job, training: Training, samples: int) -> RealJob:
    return RealJob(
        name=training.name,
        cell=str(training.cell),
        state=state_name(job.state),
        samples=samples,
        rescales=job.rescales,
        preemptions=job.preemptions,
        step_seconds=round(training.pace.step_seconds, 4),
        exchange_seconds=round(training.pace.exchange_seconds, 4),
    )


@contextmanager
def _no_strays(folder: Path) -> Iterator[None]:
    """In the end, kill what the services have left of this run's trainings, as after an error here."""
    try:
        yield
    finally:
        deadline = time.monotonic() + 10.0
        while left := find_processes(folder):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{folder}: processes that can't be killed: {left}")
            time.sleep(0.1)
