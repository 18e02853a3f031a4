"""`malletrain submit --mirror`: a job of the site's own queue that stands for one of ours, and lives as long as it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

import grpc

from malletrain.cli.jobs.waiting import wait_until_ended
from malletrain.cli.shared.output import state_name, tell
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.v1 import job_manager_pb2, resources_pb2

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_RETRY_SECONDS = 1.0
_COMMENT_SECONDS = 10.0
_PASSING = frozenset((grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED))


class SiteJobEnded(Exception):  # noqa: N818  # it is no error
    """The scheduler ends the site's job."""


class SiteSignals:
    """What the scheduler sends when it ends the site's job.

    Until `arm`, a signal is only noted: between a submission and its answer, no job is known that could be cancelled.
    After the first one, others are ignored: they would end the cancelling. To be entered in the main thread.
    """

    def __init__(self) -> None:
        self._seen = ""
        self._armed = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> SiteSignals:
        """Handle the site's signals from now on, until the block ends."""
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._end)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave them to others again."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def arm(self) -> None:
        """From now on, a signal raises; at once if one has come already.

        Raises:
            SiteJobEnded: one has come.
        """
        self._armed = True
        if self._seen:
            raise SiteJobEnded(self._seen)

    def _end(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._seen:
            return
        self._seen = signal.Signals(number).name
        if self._armed:
            raise SiteJobEnded(self._seen)


def site_job(environment: Mapping[str, str]) -> str:
    """The job of Slurm that this process is in; empty: of another scheduler, or in none."""
    return environment.get("SLURM_JOB_ID", "")


def comment_of(jobs: Sequence[resources_pb2.Job]) -> str:
    """What the comment of the site's job says of ours: `j000012 RUNNING, 4 nodes`, or how many are in which state."""
    if len(jobs) == 1:
        nodes = len(jobs[0].commanded_nodes)
        return f"{jobs[0].id} {state_name(jobs[0].state)}" + (f", {nodes} nodes" if nodes else "")
    counts: dict[str, int] = {}
    for job in jobs:
        counts[state_name(job.state)] = counts.get(state_name(job.state), 0) + 1
    first, last = jobs[0].id, jobs[-1].id
    return f"{first} to {last}: " + ", ".join(f"{count} {state}" for state, count in counts.items())


class SlurmComment:
    """Writes what becomes of our jobs into the comment of the site's job, for `squeue -o '%i %T %k'`.

    Slurm need not allow that, and need not answer: this is told once, and our jobs go on.
    """

    def __init__(self, job_id: str, run: Callable[[Sequence[str]], str]) -> None:
        """Write for a job of Slurm; nothing is written where `job_id` is empty.

        Args:
            run: Runs a command, and returns why that failed; empty: it has not.
        """
        self._job_id = job_id
        self._run = run
        self._newest = ""

    def write(self, jobs: Sequence[resources_pb2.Job]) -> None:
        """Write it where it is another than before."""
        text = comment_of(jobs)
        if not self._job_id or text == self._newest:
            return
        self._newest = text
        if reason := self._run(["scontrol", "update", f"JobId={self._job_id}", f"Comment={text}"]):
            tell(f"the comment of job {self._job_id} is no longer kept up to date: {reason}")
            self._job_id = ""


def run_command(argv: Sequence[str]) -> str:
    """Run a command for a few seconds; returns why that failed, empty if it has not."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=_COMMENT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else f"{argv[0]} ended with {done.returncode}: {done.stderr.strip()[:200]}"


def mirror_until_ended(
    stubs: ServiceStubs,
    jobs: Sequence[resources_pb2.Job],
    comment: SlurmComment,
    signals: SiteSignals,
    sleep: Callable[[float], None] = time.sleep,
) -> list[resources_pb2.Job]:
    """Wait until all jobs have ended; where the scheduler ends this process before, cancel them, and wait for that.

    Args:
        stubs: The services.
        comment: Told of every change.
        signals: Those of the scheduler; entered before the submission.
        sleep: Waits so many seconds.

    Returns:
        The jobs as they ended, in the same order.

    Raises:
        grpc.RpcError: JobManager refuses to cancel one; all others were cancelled.
    """
    try:
        signals.arm()
        comment.write(jobs)
        return wait_until_ended(stubs, jobs, comment.write)
    except SiteJobEnded as reason:
        tell(f"{reason}: the site's job ends, so that {_in_words(jobs)} cancelled")
        _cancel_all(stubs, jobs, sleep)
        return wait_until_ended(stubs, jobs, comment.write)


def _in_words(jobs: Sequence[resources_pb2.Job]) -> str:
    return f"{jobs[0].id} is" if len(jobs) == 1 else f"{jobs[0].id} to {jobs[-1].id} are"


def _cancel_all(stubs: ServiceStubs, jobs: Sequence[resources_pb2.Job], sleep: Callable[[float], None]) -> None:
    """Cancel all jobs, also where one of them can't be: all reasons are told, and the first is raised at the end."""
    refused: list[grpc.RpcError] = []
    for job in jobs:
        try:
            _cancel(stubs, job.id, sleep)
        except grpc.RpcError as error:
            tell(f"{job.id} is not cancelled: {error.details()}")
            refused.append(error)
    if refused:
        raise refused[0]


def _cancel(stubs: ServiceStubs, job_id: str, sleep: Callable[[float], None]) -> None:
    """Cancel a job, also where JobManager is away for a while. The scheduler decides how long that may take."""
    request = job_manager_pb2.CancelJobRequest(job_id=job_id)
    while True:
        try:
            stubs.job_manager.CancelJob(request, timeout=DEADLINE_SECONDS)
            return
        except grpc.RpcError as error:
            code = error.code()
            if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
                return  # it has ended
            if code not in _PASSING:
                raise
        sleep(_RETRY_SECONDS)
