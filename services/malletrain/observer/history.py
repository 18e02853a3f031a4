"""What has happened in the last 24 hours: nodes, jobs and what idle nodes were used for. Pure.

Other modules make the next history of one: `updates` of what the services say, `accounting` of time that passes, and
`backfill` of the time before the services were heard.

A History is never changed. Each update returns a new one that shares all that is the same, so that what has changed
between two of them is found by identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from malletrain.allocator.utilization.definition import MinuteUse
from malletrain.common.gpus import node_of
from malletrain.model.node_use import NodeUse
from malletrain.observer.facts import NodeFact, PlanFact, ReleaseFact, SourceFact, StallFact
from malletrain.observer.job_facts import CurveFact, JobFact, ProgressFact

KEPT_S = 86400.0
"""How far back a history goes, in seconds."""
MAX_FRAGMENTS = 60_000
MAX_JOBS = 400
"""Jobs that have ended and are kept; of the others all are."""
MAX_RELEASES = 5000
USES = tuple(NodeUse)
LOST = (NodeUse.BOOTING, NodeUse.STALLED, NodeUse.STOPPING, NodeUse.UNASSIGNED)
NOTHING = (0.0,) * len(USES)


@dataclass(frozen=True, slots=True)
class NodePeriod:
    """A period in which a node was one job's, or idle and nobody's.

    Attributes:
        node: Name of the node.
        job_id: The job; empty: no job had it.
        start: In seconds since the epoch.
        end: None while it lasts.
        others: More jobs that had it then: members of the same fleet, on other GPUs of the node.
    """

    node: str
    job_id: str
    start: float
    end: float | None = None
    others: tuple[str, ...] = ()

    @property
    def jobs(self) -> tuple[str, ...]:
        """All jobs that had it; empty: none."""
        return (self.job_id, *self.others) if self.job_id else ()


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute of all nodes together, in node-seconds; `utilization` has what was trained.

    Attributes:
        start: In seconds since the epoch, a multiple of 60.
        node_seconds: By use, in the order of `USES`.
    """

    start: float
    node_seconds: tuple[float, ...] = NOTHING

    @property
    def idle(self) -> float:
        """Node-seconds that were offered."""
        return sum(self.node_seconds)


@dataclass(frozen=True, slots=True)
class RatePoint:
    """Rate of a job at one moment.

    Attributes:
        time: In seconds since the epoch.
        rate: Samples per second.
        nodes: Scale.
    """

    time: float
    rate: float
    nodes: int


@dataclass(frozen=True)
class History:
    """All that the page shows, but for what only a job's owner may see.

    Attributes:
        began: When the first service was heard, in seconds since the epoch.
        now: Until when it is accounted.
        nodes: Idle nodes by name; None before the Scavenger was heard.
        jobs: Jobs by identifier.
        progress: Of jobs, by identifier.
        curves: By job.
        stalls: The newest rescales of each job, oldest first.
        rates: Rate over time, by job.
        heard_jobs: Whether JobManager was heard.
        fragments: Roughly in the order of their begins.
        epoch: Grows when fragments are dropped or put before others: places in `fragments` hold within one epoch.
        open: Place of the fragment that lasts, by node.
        minutes: Oldest first; minutes of which nothing is known are missing.
        counts: Idle nodes by use, in the order of `USES`. A node whose GPUs differ in use is shared among their uses.
        unit_nodes: What one of a job's units is of a node, where it is less: a GPU of a member of a fleet.
        plans: Oldest first.
        releases: Oldest first.
        source: Whether the source of idle nodes works; None before it was asked.
        utilization: U by minute, as the Allocator has recorded it, oldest first.
    """

    began: float = 0.0
    now: float = 0.0
    nodes: Mapping[str, NodeFact] | None = None
    jobs: Mapping[str, JobFact] = field(default_factory=dict)
    heard_jobs: bool = False
    progress: Mapping[str, ProgressFact] = field(default_factory=dict)
    curves: Mapping[str, CurveFact] = field(default_factory=dict)
    stalls: Mapping[str, tuple[StallFact, ...]] = field(default_factory=dict)
    rates: Mapping[str, tuple[RatePoint, ...]] = field(default_factory=dict)
    fragments: tuple[NodePeriod, ...] = ()
    epoch: int = 0
    open: Mapping[str, int] = field(default_factory=dict)
    minutes: tuple[Minute, ...] = ()
    counts: tuple[float, ...] = NOTHING
    unit_nodes: Mapping[str, float] = field(default_factory=dict)
    plans: tuple[PlanFact, ...] = ()
    releases: tuple[ReleaseFact, ...] = ()
    source: SourceFact | None = None
    utilization: tuple[MinuteUse, ...] = ()


def changed_fragments(before: History, after: History) -> tuple[list[int], int] | None:
    """What has changed from one history to a later one.

    Returns:
        Places of fragments that are in both and differ, and the place of the first new one; None in another epoch.
    """
    if before.epoch != after.epoch:
        return None
    if before.fragments is after.fragments:
        return [], len(after.fragments)
    pairs = zip(before.fragments, after.fragments, strict=False)
    return [place for place, (old, new) in enumerate(pairs) if old is not new], len(before.fragments)


def holders(history: History) -> dict[str, tuple[str, ...]]:
    """The jobs of each node that any has, whether the node is idle or was just taken: one, or members of a fleet."""
    named = {name: job.id for job in history.jobs.values() for name in (*job.confirmed, *job.commanded)}
    jobs_by_node: dict[str, tuple[str, ...]] = {}
    for name, job_id in named.items():
        node = node_of(name)
        known = jobs_by_node.get(node, ())
        if job_id not in known:
            jobs_by_node[node] = tuple(sorted((*known, job_id)))
    return jobs_by_node
