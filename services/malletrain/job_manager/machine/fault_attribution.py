"""Which node is to blame when workers fail. Pure.

That workers of a job fail on one node proves nothing: its script may fail by itself, wherever it runs, and its owner
may mean it. A node is suspected when jobs of several owners, with different programs, have failed there and nowhere
else, each of which has trained well elsewhere; and never while or after another one trains well on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from malletrain.common.gpus import node_of
from malletrain.job_manager.machine.jobs import Job
from malletrain.model.job_state import JobState

_WINDOW_SECONDS = 3600.0
"""Failures that are older say nothing of a node as it is now."""
_MEMORY_SECONDS = 86_400.0
"""For how long it is remembered where a job has trained well."""
_GOOD_SECONDS = 60.0
_MIN_OWNERS = 2
_MAX_JOBS = 10_000
_MAX_NODES = 1000
_MAX_FAILURES = 16


@dataclass(frozen=True)
class JobHistory:
    """Nodes on which a job has failed and has trained well, lately. Times are in seconds since the epoch.

    Attributes:
        owner: Who submitted it.
        program: What it runs.
        failures: Times of failures by node, ascending.
        well: When it was last seen to train well, by node.
        reported: How many of the failures on a node have been reported.
    """

    owner: str
    program: tuple[str, ...]
    failures: dict[str, tuple[float, ...]] = field(default_factory=dict)
    well: dict[str, float] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Suspicion:
    """A node on which work fails by the node's fault, as far as can be told.

    Attributes:
        node: Its name.
        failures: How many failures there are that have not been reported yet, at least 1.
        reason: Why, for people.
        by: Who says so, for people.
    """

    node: str
    failures: int
    reason: str
    by: str


class NodeEvidence:
    """What jobs say of nodes. It is kept in memory: after a restart of JobManager, it is gathered anew."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobHistory] = {}

    def note_success(self, job: Job, now: float) -> None:
        """Note the nodes on which a job trains well, if it does."""
        if _trains_well(job, now):
            history = self._history(job)
            for node in {node_of(name) for name in job.confirmed}:
                if node in history.well or len(history.well) < _MAX_NODES:
                    history.well[node] = now

    def note_failure(self, job: Job, name: str, now: float) -> None:
        """Note that a worker of a job has failed on a node or GPU. A node that the job does not hold can't be meant."""
        node = node_of(name)
        if node in {node_of(held) for held in job.held}:
            history = self._history(job)
            if node in history.failures or len(history.failures) < _MAX_NODES:
                history.failures[node] = (*history.failures.get(node, ()), now)[-_MAX_FAILURES:]

    def _history(self, job: Job) -> JobHistory:
        if job.id not in self._jobs:
            while len(self._jobs) >= _MAX_JOBS:
                del self._jobs[next(iter(self._jobs))]
            self._jobs[job.id] = JobHistory(job.owner, job.spec.command)
        return self._jobs[job.id]

    def suspicion(self, name: str, jobs: Iterable[Job], now: float) -> Suspicion | None:
        """Whether a node is suspected, with failures that have not been reported yet.

        Args:
            name: A node or GPU on which work has just failed.
            jobs: All jobs that have not ended.
            now: The time.
        """
        node = node_of(name)
        for job in jobs:
            if any(node_of(used) == node for used in job.confirmed):
                self.note_success(job, now)
        accusers = {job_id: known for job_id, known in self._jobs.items() if _accuses(known, node, now)}
        first = min((times[0] for known in accusers.values() for times in [known.failures[node]]), default=now)
        if any(known.well.get(node, -1.0) >= first for known in self._jobs.values()):
            return None
        owners: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        for history in accusers.values():
            owners[history.owner].add(history.program)
        programs = {program for of_owner in owners.values() for program in of_owner}
        if len(owners) < _MIN_OWNERS or len(programs) < _MIN_OWNERS:
            return None
        new = sum(self._report(job_id, node) for job_id in accusers)
        who = ", ".join(f"{job_id} ({known.owner})" for job_id, known in sorted(accusers.items())[:8])
        reason = f"jobs of {len(owners)} owners that train well elsewhere fail here only"
        return Suspicion(node, new, reason, who) if new else None

    def _report(self, job_id: str, node: str) -> int:
        history = self._jobs[job_id]
        new = [time for time in history.failures[node] if time > history.reported.get(node, float("-inf"))]
        if new:
            history.reported[node] = new[-1]
        return len(new)

    def forget(self, suspicion: Suspicion) -> None:
        """Mark a suspicion as not reported, since that failed: the next failure on its node reports it again."""
        for history in self._jobs.values():
            history.reported.pop(suspicion.node, None)

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds."""
        for job_id, history in self._jobs.items():
            self._jobs[job_id] = replace(
                history,
                failures={node: tuple(time + seconds for time in times) for node, times in history.failures.items()},
                well={node: time + seconds for node, time in history.well.items()},
                reported={node: time + seconds for node, time in history.reported.items()},
            )


def _trains_well(job: Job, now: float) -> bool:
    has_lasted = job.scale_since is not None and now - job.scale_since >= _GOOD_SECONDS
    return has_lasted and job.state is JobState.RUNNING and job.stalled_since is None and job.stop is None


def _accuses(history: JobHistory, node: str, now: float) -> bool:
    """Whether a job has failed lately on this node and on no other one, and has trained well on another one."""
    recent = {name for name, times in history.failures.items() if now - times[-1] < _WINDOW_SECONDS}
    well = any(name != node and now - time < _MEMORY_SECONDS for name, time in history.well.items())
    return recent == {node} and well
