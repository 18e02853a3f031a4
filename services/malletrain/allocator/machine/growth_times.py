"""How long growths take, from the command to a scale that is confirmed. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from functools import cache
from typing import TypeVar

from malletrain.allocator.machine.cluster_cache import CachedJob
from malletrain.common.gpus import node_of

KEPT = 15
"""The newest growths and starts that are kept of each training environment and pool."""
_KEPT_OF_JOB = 5
_MAX_KEYS = 1000

_KeyT = TypeVar("_KeyT")
_Seconds = tuple[float, ...]
"""The newest of some growths or starts, in seconds, the newest last."""
PoolOf = Callable[[str], str]
"""The pool of a node; empty where it is not known, or there is only one."""


@dataclass(frozen=True, slots=True)
class BootTime:
    """How long a growth or a start took.

    Attributes:
        environment: Training environment of the job (`training_environment`).
        pool: Pool of the nodes that the job gained.
        seconds: From the command until the workers had confirmed the scale.
    """

    environment: str
    pool: str
    seconds: float


@dataclass(frozen=True)
class _Job:
    """One job. `since` is None while nothing that is measured is under way."""

    environment: str = ""
    commanded: frozenset[str] = frozenset()
    since: float | None = None
    starts: bool = False
    pools: frozenset[str] = frozenset()
    growths: _Seconds = ()
    own_seconds: float | None = None


@dataclass
class GrowthTimes:
    """The newest growths of jobs. The first look at a job measures nothing: its command may be older.

    What they take depends on the nodes and on the training environment above all, and on whether standby processes
    wait there. So a job of which nothing is known yet counts like those of its environment on nodes of its pool.

    Attributes:
        measured: What has been measured before, oldest first.
    """

    measured: InitVar[Iterable[BootTime]] = ()
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _by_key: dict[tuple[str, str], _Seconds] = field(default_factory=dict)
    _by_environment: dict[str, _Seconds] = field(default_factory=dict)
    _of_all: _Seconds = ()

    def __post_init__(self, measured: Iterable[BootTime]) -> None:
        """Learn what has been measured before."""
        for one in measured:
            self._learn(one)

    def see_all(
        self, jobs: Collection[CachedJob], now: float, *, snapshot: bool, pool_of: PoolOf = lambda _: ""
    ) -> list[BootTime]:
        """Take in jobs as JobManager reports them.

        Args:
            now: Monotonic time in seconds.
            snapshot: Whether these are all jobs, and changes may have been missed: what is under way is not measured.
            pool_of: The pool of each node that is known.

        Returns:
            What has been measured by this. A growth on nodes of several pools counts for each of them.
        """
        if snapshot:
            present = {job.plannable.id for job in jobs}
            self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in present}
        measured: list[BootTime] = []
        for job in jobs:
            if job.state.final:
                self._jobs.pop(job.plannable.id, None)
            else:
                measured += self._see(job, now, pool_of)
        if snapshot:
            self._jobs = {job_id: replace(job, since=None) for job_id, job in self._jobs.items()}
        return measured

    def _see(self, seen: CachedJob, now: float, pool_of: PoolOf) -> list[BootTime]:
        job_id, commanded = seen.plannable.id, frozenset(seen.plannable.current_nodes)
        job = self._jobs.get(job_id)
        if job is None:
            # The first report may come in the middle of a start or a growth: nobody knows when that began.
            self._jobs[job_id] = _Job(seen.environment, commanded)
            return []
        if commanded != job.commanded:
            gained = commanded - job.commanded
            job = self._jobs[job_id] = replace(
                job,
                pools=frozenset(pool_of(node_of(name)) for name in gained),
                commanded=commanded,
                starts=not seen.confirmed_nodes,
                since=now if gained else None,  # with a shrink on top it is not known which of the two took how long
            )
        if job.since is None or commanded != seen.confirmed_nodes:
            return []
        seconds = now - job.since
        growths = job.growths if job.starts else (*job.growths, seconds)[-_KEPT_OF_JOB:]
        own = statistics.median(growths) if growths else seconds
        self._jobs[job_id] = replace(job, since=None, growths=growths, own_seconds=own)
        measured = [BootTime(job.environment, pool, seconds) for pool in sorted(job.pools)]
        for one in measured:
            self._learn(one)
        return measured

    def _learn(self, one: BootTime) -> None:
        _append(self._by_key, (one.environment, one.pool), one.seconds)
        _append(self._by_environment, one.environment, one.seconds)
        self._of_all = (*self._of_all, one.seconds)[-KEPT:]

    def seconds(self, pool_of: PoolOf = lambda _: "") -> Mapping[str, float]:
        """How long a growth of each job is expected to take, in seconds.

        The median of the job's newest five growths; before its first growth, how long its newest start took. Before
        that, the median of the newest fifteen of its training environment: on nodes of the pool in which it has most of
        its own, or in all pools where it has no nodes or nothing is known of that pool. Else the median of the newest
        fifteen of all jobs. A job is left out while none has been measured.

        Args:
            pool_of: The pool of each node that is known.
        """
        median = cache(statistics.median)
        result = {}
        for job_id, job in self._jobs.items():
            if job.own_seconds is not None:
                result[job_id] = job.own_seconds
            elif alike := self._alike(job, pool_of):
                result[job_id] = median(alike)
        return result

    def _alike(self, job: _Job, pool_of: PoolOf) -> _Seconds:
        of_pool = None
        if job.commanded and job.environment in self._by_environment:
            pools = Counter(pool_of(node_of(name)) for name in sorted(job.commanded))
            of_pool = self._by_key.get((job.environment, pools.most_common(1)[0][0]))
        return of_pool or self._by_environment.get(job.environment) or self._of_all


def _append(by_key: dict[_KeyT, _Seconds], key: _KeyT, seconds: float) -> None:
    """Add the newest figure of a key. The newest key comes last: of too many, that measured longest ago goes."""
    by_key[key] = (*by_key.pop(key, ()), seconds)[-KEPT:]
    if len(by_key) > _MAX_KEYS:
        del by_key[next(iter(by_key))]
