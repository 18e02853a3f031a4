"""Where the node-seconds that a run was offered went. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from malletrain.cli.demo.history import JobChange, NodeChange, RunHistory

_FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


class OfferUse(Enum):
    """What an idle node is doing; its value is the name in the summary.

    Attributes:
        TRAINING: A job trains on it, or stands still while it rescales.
        STARTING: A job that has no other nodes boots on it.
        JOINING: A job that trains on others is to grow by it.
        LEAVING: Workers on it end: their job stops, or gives it to another.
        AWAITING_PLAN: It is free, a job could use it, and no plan has been made since it became free.
        LEFT_FREE: It is free, a job could use it, and the newest plan leaves it free.
        TOO_MANY: It is free, and the jobs that have not ended can't use so many, whatever the plan.
        NO_JOB: No job has been submitted yet, or all have ended.
    """

    TRAINING = "training"
    STARTING = "starting"
    JOINING = "joining"
    LEAVING = "leaving"
    AWAITING_PLAN = "awaiting_plan"
    LEFT_FREE = "left_free"
    TOO_MANY = "too_many"
    NO_JOB = "no_job"


@dataclass
class _Moment:
    """What is known at one moment.

    Attributes:
        idle: Nodes that are idle.
        jobs: The newest change of each job that has not ended.
        free_since: When each node that is free became so.
        planned: When the newest plan was applied.
    """

    idle: set[str] = field(default_factory=set)
    jobs: dict[str, JobChange] = field(default_factory=dict)
    free_since: dict[str, float] = field(default_factory=dict)
    planned: float = float("-inf")

    def take(self, change: NodeChange | JobChange | float) -> None:
        """Take in a change; a number is the time of a plan."""
        if isinstance(change, NodeChange):
            self.idle = (self.idle - change.left) | change.joined
        elif isinstance(change, float):
            self.planned = change
        elif change.state in _FINAL:
            self.jobs.pop(change.job_id, None)
        else:
            self.jobs[change.job_id] = change

    def uses(self, now: float) -> Counter[OfferUse]:
        """How many idle nodes have each use from now on."""
        held: dict[str, OfferUse] = {}
        # What a job still has comes before what it is to have: a node may be one job's and promised to another.
        for part in (_coming, _leaving, _training):
            held.update(pair for job in self.jobs.values() for pair in part(job).items())
        free = self.idle - held.keys()
        self.free_since = {node: self.free_since.get(node, now) for node in free}
        found = Counter(held[node] for node in self.idle & held.keys())
        if not self.jobs:
            return found + Counter({OfferUse.NO_JOB: len(free)})
        too_many = min(len(free), len(self.idle) - most_usable(len(self.idle), self.jobs.values()))
        awaiting = sum(since >= self.planned for since in self.free_since.values())
        awaiting = min(awaiting, len(free) - too_many)
        left = len(free) - too_many - awaiting
        return found + Counter(
            {OfferUse.TOO_MANY: too_many, OfferUse.AWAITING_PLAN: awaiting, OfferUse.LEFT_FREE: left}
        )


def divide_offer(history: RunHistory, end: float) -> Mapping[OfferUse, float]:
    """Divide the time in which nodes were idle.

    Args:
        history: What has happened.
        end: End of the run in seconds since the epoch.

    Returns:
        Node-seconds of each use. Their sum is what was offered.
    """
    changes: list[tuple[float, NodeChange | JobChange | float]] = [
        *((change.time, change) for change in history.nodes),
        *((change.time, change) for change in history.jobs),
        *((time, time) for time in history.plans),
    ]
    changes.sort(key=lambda entry: entry[0])
    totals = dict.fromkeys(OfferUse, 0.0)
    moment = _Moment()
    for number, (time, change) in enumerate(changes):
        moment.take(change)
        until = changes[number + 1][0] if number + 1 < len(changes) else end
        for use, nodes in moment.uses(time).items():
            totals[use] += nodes * max(0.0, min(until, end) - time)
    return totals


def most_usable(nodes: int, jobs: Iterable[JobChange]) -> int:
    """The largest number of nodes, of so many, that jobs can use together at permitted scales."""
    reached = {0}
    for job in jobs:
        reached |= {sum_ + scale for sum_ in reached for scale in job.scales if sum_ + scale <= nodes}
    return max(reached)


def _coming(job: JobChange) -> dict[str, OfferUse]:
    """Nodes that are to be a job's."""
    return dict.fromkeys(job.wanted, OfferUse.JOINING if job.nodes else OfferUse.STARTING)


def _leaving(job: JobChange) -> dict[str, OfferUse]:
    """Nodes on which a job's workers are to end, or are ending."""
    return dict.fromkeys(job.held if job.state == "STOPPING" else job.held - job.wanted, OfferUse.LEAVING)


def _training(job: JobChange) -> dict[str, OfferUse]:
    return dict.fromkeys(job.nodes, OfferUse.TRAINING)
