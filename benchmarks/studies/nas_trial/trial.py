"""One run of the benchmark: the real services with one system, trace and workload, for a fixed time."""

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

from benchmarks.studies.nas_trial.workload import BATCH_PER_WORKER, NODES, TRACE_SECONDS, NasTraining, idle_trace
from malletrain.cli.demo.job_processes import find_job_processes
from malletrain.cli.demo.recorder import RunRecorder, idle_intervals, node_seconds, training_intervals
from malletrain.cli.jobs.jobs import all_jobs
from malletrain.cli.shared.output import state_name
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.reproduce.malletrain.real import RealJob, RealRun
from malletrain.reproduce.malletrain.systems import System
from malletrain.scavenger.trace_files import write_trace
from malletrain.v1 import job_manager_pb2, monitor_pb2, profiler_pb2, resources_pb2
from tests.system.deployment import deployed

SYSTEMS = (System.LINEAR, System.PROFILED, System.PRIOR)
_TRAINER = Path(__file__).parents[3] / "examples/nasbench/train.py"
_LOOK_SECONDS = 0.5
_LIVE = (profiler_pb2.PROFILE_STATE_CLIMBING, profiler_pb2.PROFILE_STATE_MEASURING, profiler_pb2.PROFILE_STATE_DONE)


@dataclass(frozen=True)
class NasTrial:
    """A run of the benchmark.

    Attributes:
        system: FreeTrain or MalleTrain, with what is known of the curves.
        seed: Seed of the trace.
        trainings: Trainings in the order of submission.
        samples: Number of samples of each training.
        seconds: Duration in seconds.
        max_parallel: Largest number of jobs at once.
    """

    system: System
    seed: int
    trainings: tuple[NasTraining, ...]
    samples: int
    seconds: float
    max_parallel: int

    @property
    def speed(self) -> float:
        """Seconds of the trace per second."""
        return TRACE_SECONDS / self.seconds

    def spec(self, training: NasTraining) -> resources_pb2.JobSpec:
        """The job that is submitted for a training."""
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
        """Settings of the services: the defaults, with times divided by the speed of the trace."""
        # FreeTrain uses declared curves as they are, so Monitor must not measure any that would correct them.
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


def run_trial(trial: NasTrial, folder: Path) -> RealRun:
    """Run the trial in an empty folder.

    Raises:
        AssertionError: the services did not start.
        RuntimeError: processes of the run could not be ended.
    """
    folder.mkdir(parents=True)
    write_trace(idle_trace(trial.seed), folder / "trace.csv")
    with _no_strays(folder), deployed(folder / "state", trial.settings(folder / "trace.csv")) as deployment:
        stubs = deployment.stubs
        recorder = RunRecorder(stubs)
        recorder.start()
        started = time.time()
        specs = [trial.spec(training) for training in trial.trainings]
        request = job_manager_pb2.SubmitJobsRequest(specs=specs)
        stubs.job_manager.SubmitJobs(request, timeout=DEADLINE_SECONDS)
        runs = _follow(stubs, started + trial.seconds)
        ended = time.time()
        progress = stubs.monitor.GetProgress(monitor_pb2.GetProgressRequest(), timeout=DEADLINE_SECONDS).progress
        jobs = list(all_jobs(stubs, []))
        recorder.stop()
        run = _result(trial, recorder, jobs, progress, list(runs.values()), ended)
        stubs.close()
    return run


def _follow(stubs: ServiceStubs, until: float) -> dict[str, profiler_pb2.ProfileRun]:
    """The newest state of each profile run. Profiler forgets runs of jobs that have ended, so it is asked regularly."""
    runs: dict[str, profiler_pb2.ProfileRun] = {}
    pause = threading.Event()
    while (left := until - time.time()) > 0:
        for job in all_jobs(stubs, []):
            if job.admitted:
                with contextlib.suppress(grpc.RpcError):
                    request = profiler_pb2.GetProfileRequest(job_id=job.id)
                    found = stubs.profiler.GetProfile(request, timeout=DEADLINE_SECONDS).profile
                    if found.run.seconds > 0 or found.run.state in _LIVE:
                        runs[job.id] = found.run
        pause.wait(min(left, _LOOK_SECONDS))
    return runs


def _result(
    trial: NasTrial,
    recorder: RunRecorder,
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
        node_seconds_offered=round(node_seconds(idle_intervals(recorder.history.nodes, ended)), 1),
        node_seconds_used=round(node_seconds(training_intervals(recorder.history.jobs, ended)), 1),
        jobs=tuple(
            _job(job, by_name[job.spec.name], samples.get(job.id, 0))
            for job in jobs
            if job.state != resources_pb2.JOB_STATE_QUEUED
        ),
    )


def _job(job: resources_pb2.Job, training: NasTraining, samples: int) -> RealJob:
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
    """Kill the processes of this run that are left at the end, for instance after an error."""
    try:
        yield
    finally:
        deadline = time.monotonic() + 10.0
        while left := find_job_processes(folder):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{folder}: processes that can't be killed: {left}")
            time.sleep(0.1)
