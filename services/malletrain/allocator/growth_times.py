"""How long growths take, from the command to a scale that is confirmed. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from malletrain.allocator.cluster_cache import CachedJob
from malletrain.common.gpus import node_of

KEPT = 15
"""The newest growths and starts that are kept of each training environment and pool."""
_KEPT_OF_JOB = 5
_MOST_KEYS = 1000

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


@dataclass
class _Job:
    """One job. `since` is None while nothing that is measured is under way."""

    environment: str = ""
    commanded: frozenset[str] = frozenset()
    since: float | None = None
    starts: bool = False
    pools: frozenset[str] = frozenset()
    growths: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_OF_JOB))
    own_seconds: float | None = None


class GrowthTimes:
    """The newest growths of jobs. The first look at a job measures nothing: its command may be older.

    What they take depends on the nodes and on the training environment above all, and on whether standby processes
    wait there. So a job of which nothing is known yet counts like those of its environment on nodes of its pool.
    """

    def __init__(self, measured: Iterable[BootTime] = ()) -> None:
        """Know no job.

        Args:
            measured: What has been measured before, oldest first.
        """
        self._jobs: dict[str, _Job] = {}
        self._by_key: dict[tuple[str, str], deque[float]] = {}
        self._by_environment: dict[str, deque[float]] = {}
        self._of_all: deque[float] = deque(maxlen=KEPT)
        for one in measured:
            self._learn(one)

    def see_all(
        self, jobs: Collection[CachedJob], now: float, *, snapshot: bool, pool_of: PoolOf = lambda _: ""
    ) -> list[BootTime]:
        """Take in jobs as JobManager reports them.

        Args:
            jobs: The jobs.
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
            for known in self._jobs.values():
                known.since = None
        return measured

    def _see(self, seen: CachedJob, now: float, pool_of: PoolOf) -> list[BootTime]:
        commanded, confirmed = frozenset(seen.plannable.current_nodes), seen.confirmed_nodes
        job = self._jobs.get(seen.plannable.id)
        if job is None:
            self._jobs[seen.plannable.id] = _Job(seen.environment, commanded)
            return []
        if commanded != job.commanded:
            gained = commanded - job.commanded
            job.pools = frozenset(pool_of(node_of(name)) for name in gained)
            job.commanded, job.starts = commanded, not confirmed
            job.since = now if gained else None
        if job.since is None or commanded != confirmed:
            return []
        seconds, job.since = now - job.since, None
        if not job.starts:
            job.growths.append(seconds)
        job.own_seconds = statistics.median(job.growths) if job.growths else seconds
        measured = [BootTime(job.environment, pool, seconds) for pool in sorted(job.pools)]
        for one in measured:
            self._learn(one)
        return measured

    def _learn(self, one: BootTime) -> None:
        key = (one.environment, one.pool)
        # The newest key comes last, so that the first one is that which was measured longest ago.
        self._by_key[key] = self._by_key.pop(key, deque(maxlen=KEPT))
        self._by_key[key].append(one.seconds)
        if len(self._by_key) > _MOST_KEYS:
            del self._by_key[next(iter(self._by_key))]
        of_environment = self._by_environment.pop(one.environment, deque(maxlen=KEPT))
        self._by_environment[one.environment] = of_environment
        of_environment.append(one.seconds)
        if len(self._by_environment) > _MOST_KEYS:
            del self._by_environment[next(iter(self._by_environment))]
        self._of_all.append(one.seconds)

    def seconds(self, pool_of: PoolOf = lambda _: "") -> Mapping[str, float]:
        """How long a growth of each job is expected to take, in seconds.

        The median of the job's newest five growths; before its first growth, how long its newest start took. Before
        that, the median of the newest fifteen of its training environment: on nodes of the pool in which it has most of
        its own, or in all pools where it has no nodes or nothing is known of that pool. Else the median of the newest
        fifteen of all jobs. A job is left out while none has been measured.

        Args:
            pool_of: The pool of each node that is known.
        """
        medians: dict[int, float] = {}

        def median(found: deque[float]) -> float:
            if id(found) not in medians:
                medians[id(found)] = statistics.median(found)
            return medians[id(found)]

        result = {}
        for job_id, job in self._jobs.items():
            if job.own_seconds is not None:
                result[job_id] = job.own_seconds
            elif found := self._alike(job, pool_of):
                result[job_id] = median(found)
        return result

    def _alike(self, job: _Job, pool_of: PoolOf) -> deque[float]:
        found = None
        if job.commanded and job.environment in self._by_environment:
            pools = Counter(pool_of(node_of(name)) for name in sorted(job.commanded))
            found = self._by_key.get((job.environment, pools.most_common(1)[0][0]))
        return found or self._by_environment.get(job.environment) or self._of_all
