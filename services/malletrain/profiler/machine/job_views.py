"""What JobManager tells of jobs, and how the profile scheduler sees them: made anew only for jobs that have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.common.gpus import node_of
from malletrain.model.job_state import JobState
from malletrain.profiler.machine.curve_estimator import JobDeclaration
from malletrain.profiler.machine.profile_scheduler import JobView


@dataclass(frozen=True, slots=True)
class ReportedJob:
    """What JobManager tells of a job, as far as Profiler needs it.

    Attributes:
        declaration: What the user has declared.
        owner: Who has submitted it; empty: nobody in particular.
        admitted: Whether it takes part in plans.
        wanted_nodes: Nodes that the newest plan gives it.
        commanded_nodes: Nodes that it is commanded to use.
        confirmed_nodes: Nodes that it trains on.
        not_before: When it may start again after a failure, in seconds since the epoch; None: at once.
        saves_fail: Whether its checkpoints cannot be written.
    """

    declaration: JobDeclaration
    state: JobState
    owner: str = ""
    admitted: bool = False
    wanted_nodes: tuple[str, ...] = ()
    commanded_nodes: tuple[str, ...] = ()
    confirmed_nodes: tuple[str, ...] = ()
    not_before: float | None = None
    saves_fail: bool = False

    @property
    def job_id(self) -> str:
        """Identifier of the job."""
        return self.declaration.job_id

    @property
    def fleet_id(self) -> str:
        """Fleet that it is a member of; empty: none."""
        return self.declaration.fleet_id


@dataclass(frozen=True, slots=True)
class _Seen:
    """A job, and how the profile scheduler has last seen it."""

    job: ReportedJob
    view: JobView


class JobViews:
    """Remembers the view of each job. Mappings of nodes are replaced rather than changed."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._pools: Mapping[str, str] = {}

    def of(self, jobs: Mapping[str, ReportedJob], now: float, pools: Mapping[str, str]) -> tuple[JobView, ...]:
        """Views of the admitted jobs, by identifier; members of fleets are none of them.

        The plan of a fleet measures its members while they train, and their scales are GPUs.

        Args:
            jobs: All jobs.
            now: Seconds since the epoch.
            pools: Pool of each idle node.
        """
        before, self._seen = self._seen, {}
        moved, self._pools = self._pools is not pools, pools
        only = only_pool(pools) if moved else None
        for job_id, job in sorted(jobs.items()):
            if job.admitted and not job.fleet_id:
                entry = before.get(job_id)
                # Whether a job backs off depends on the time, too.
                if entry is None or entry.job is not job or job.not_before is not None:
                    entry = _Seen(job, view_of(job, now, pools))
                elif moved and (pool := pool_of(job.commanded_nodes, pools, only)) != entry.view.pool:
                    entry = replace(entry, view=replace(entry.view, pool=pool))
                self._seen[job_id] = entry
        return tuple(entry.view for entry in self._seen.values())


def view_of(job: ReportedJob, now: float, pools: Mapping[str, str]) -> JobView:
    """A job as the profile scheduler sees it.

    Args:
        now: Seconds since the epoch.
        pools: Pool of each idle node.
    """
    wanted, commanded, confirmed = set(job.wanted_nodes), set(job.commanded_nodes), set(job.confirmed_nodes)
    trains = job.state is JobState.RUNNING and commanded == confirmed
    rests = job.state is JobState.WAITING and not commanded
    backs_off = job.not_before is not None and job.not_before > now
    declared = job.declaration
    return JobView(
        job_id=job.job_id,
        scales=tuple(declared.scales),
        nodes=len(commanded),
        steady=(trains or rests) and wanted == commanded and not job.saves_fail,
        available=job.state is not JobState.STOPPING and not backs_off and not job.saves_fail,
        pool=pool_of(job.commanded_nodes, pools, only_pool(pools)),
    )


def pool_of(nodes: Sequence[str], pools: Mapping[str, str], only: str | None) -> str | None:
    """The pool of most of a job's nodes; for a job without nodes the only pool.

    Args:
        nodes: Nodes of the job.
        pools: Pool of each idle node.
        only: The only pool; None where there are several, or none.
    """
    own = Counter(pools[node] for node in nodes if node in pools)
    return own.most_common(1)[0][0] if own else only


def only_pool(pools: Mapping[str, str]) -> str | None:
    """The pool of all nodes; None where there are several, or none."""
    names = set(pools.values())
    return next(iter(names)) if len(names) == 1 else None


def without_fleets(nodes: Mapping[str, str], jobs: Mapping[str, ReportedJob]) -> Mapping[str, str]:
    """The nodes that no member of a fleet has; the same mapping where there are no fleets.

    Args:
        nodes: Pool of each idle node.
        jobs: All jobs.
    """
    held = {node_of(gpu) for job in jobs.values() if job.fleet_id for gpu in (*job.commanded_nodes, *job.wanted_nodes)}
    return {name: pool for name, pool in nodes.items() if name not in held} if held else nodes
