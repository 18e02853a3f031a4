"""Which nodes jobs call slow: a node counts as slow where jobs of several owners say so, not by one's word. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from malletrain.common.gpus import node_of
from malletrain.monitor.stragglers.judging import JobWorkers, SlowWorker, WorkerTime

_MAX_OWNERS = 16
"""Of each node, the owners whose word is kept."""


@dataclass(frozen=True)
class StragglerOptions:
    """When a worker is slow, and how long that is held against its node.

    Attributes:
        share: A worker is slow whose own part of a step is longer than the others' by more than this, relative to that.
        remember_seconds: For how long the word of a job counts.
    """

    share: float = 0.25
    remember_seconds: float = 86400.0


class JobPlace(NamedTuple):
    """A job, with its owner and its nodes: whose workers are compared.

    Attributes:
        job_id: The job.
        owner: Whose it is.
        nodes: Nodes that its workers are on; empty: it has none, or has ended.
    """

    job_id: str
    owner: str
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class SlowNode:
    """A node that is called slow.

    Attributes:
        share: How much slower its workers are, by the owner whose jobs say the most.
        owners: Of how many owners jobs say so.
        job_id: A job that says so.
    """

    name: str
    share: float
    owners: int
    job_id: str


class _Word(NamedTuple):
    job_id: str
    share: float
    at: float


class SlowChange(NamedTuple):
    """A worker has become slow, or is no longer."""

    job_id: str
    worker: SlowWorker
    slow: bool


@dataclass
class StragglerBook:
    """What the workers of all jobs tell of their steps, and what that says of nodes. All of it is bounded.

    Attributes:
        options: When a worker is slow.
    """

    options: StragglerOptions = field(default_factory=StragglerOptions)
    _jobs: dict[str, JobWorkers] = field(default_factory=dict)
    _words: dict[str, dict[str, _Word]] = field(default_factory=dict)

    def place(self, jobs: Iterable[JobPlace], *, all_jobs: bool) -> None:
        """Take in where jobs are. On other nodes a job's workers are compared anew.

        Args:
            jobs: Jobs that have changed.
            all_jobs: Whether these are all that there are.
        """
        by_id = {job.job_id: job for job in jobs}
        if all_jobs:
            self._jobs = {job_id: workers for job_id, workers in self._jobs.items() if job_id in by_id}
        for job_id, job in by_id.items():
            if not job.nodes:
                self._jobs.pop(job_id, None)
            elif (known := self._jobs.get(job_id)) is None or known.nodes != job.nodes:
                self._jobs[job_id] = JobWorkers(job.owner, job.nodes)

    def take_times(self, job_id: str, times: Iterable[WorkerTime], now: float) -> list[SlowChange]:
        """Take in what workers of a job have told.

        Args:
            job_id: The job; one that has no nodes says nothing.
            times: Their messages.
            now: Monotonic time in seconds.

        Returns:
            Which of them have become slow, or are no longer.
        """
        workers = self._jobs.get(job_id)
        if workers is None:
            return []
        before = {worker.rank: worker for worker in workers.slow}
        workers.take_times(times, self.options.share, now)
        after = {worker.rank: worker for worker in workers.slow}
        self._hold_against_nodes(job_id, workers, now)
        return [
            *(SlowChange(job_id, worker, True) for rank, worker in after.items() if rank not in before),
            *(SlowChange(job_id, worker, False) for rank, worker in before.items() if rank not in after),
        ]

    def _hold_against_nodes(self, job_id: str, workers: JobWorkers, now: float) -> None:
        for name in workers.well_nodes:
            self._words.get(node_of(name), {}).pop(workers.owner, None)
        for worker in workers.slow:
            # Many scripts have rank 0 do more than the others: that is not its node's fault.
            if worker.rank == 0:
                continue
            words = self._words.setdefault(node_of(worker.node), {})
            words.pop(workers.owner, None)
            words[workers.owner] = _Word(job_id, worker.share, now)
            if len(words) > _MAX_OWNERS:
                del words[next(iter(words))]
        oldest = now - self.options.remember_seconds
        current = (
            (name, {owner: word for owner, word in words.items() if word.at >= oldest})
            for name, words in self._words.items()
        )
        self._words = {name: words for name, words in current if words}

    def slow_workers(self, job_id: str) -> list[SlowWorker]:
        """Workers of a job that are slow, the slowest first."""
        workers = self._jobs.get(job_id)
        return [] if workers is None else workers.slow

    def count_measured(self, job_id: str, now: float) -> int:
        """The number of a job's workers whose times are known."""
        workers = self._jobs.get(job_id)
        return 0 if workers is None else workers.count_measured(now)

    def all_slow_workers(self) -> int:
        """How many workers of all jobs are slow."""
        return sum(len(workers.slow) for workers in self._jobs.values())

    def slow_nodes(self, now: float) -> list[SlowNode]:
        """Nodes that jobs call slow, in the order of their names."""
        slow = []
        for name, words in sorted(self._words.items()):
            current = [word for word in words.values() if now - word.at <= self.options.remember_seconds]
            if current:
                worst = max(current, key=lambda word: word.share)
                slow.append(SlowNode(name, worst.share, len(current), worst.job_id))
        return slow
