"""What jobs have used, by days in UTC. Pure.

Between two changes a job holds as much all the time, so that its usage follows from when that began. What it holds are
the nodes that it was commanded to use, as every row of the journal names them: so usage and journal come to the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, timedelta

DAY_SECONDS = 86_400.0
_EPOCH = date(1970, 1, 1)
_MAX_DAYS = 400
"""Days that one step divides a usage into. If the clock was wrong by more, the first of them has the rest."""


@dataclass(frozen=True)
class UsageAmounts:
    """Amounts that were used: node-seconds, samples and more.

    Attributes:
        node_seconds: Nodes held, times seconds. A node that members of a fleet share counts once, in equal parts for
            each of the GPUs that they hold there.
        gpu_seconds: GPUs held, times seconds, where the number of a node's GPUs is known.
        lost_node_seconds: Those of the node-seconds in which nothing trained: workers started, stood still or ended.
        samples: Samples processed, net of rollbacks; below 0 where more was rolled back.
        preemptions: Events at which the main scheduler took nodes.
    """

    node_seconds: float = 0.0
    gpu_seconds: float = 0.0
    lost_node_seconds: float = 0.0
    samples: int = 0
    preemptions: int = 0

    def __add__(self, other: UsageAmounts) -> UsageAmounts:
        """The sum of both."""
        return UsageAmounts(
            self.node_seconds + other.node_seconds,
            self.gpu_seconds + other.gpu_seconds,
            self.lost_node_seconds + other.lost_node_seconds,
            self.samples + other.samples,
            self.preemptions + other.preemptions,
        )


@dataclass(frozen=True)
class Holding:
    """What a job holds at a moment.

    Attributes:
        nodes: Nodes; a node that members of a fleet share counts as its part.
        gpus: GPUs, where they are known.
        lost: Those of the nodes on which nothing trains.
    """

    nodes: float = 0.0
    gpus: float = 0.0
    lost: float = 0.0


NOTHING = Holding()


@dataclass(frozen=True)
class OpenUsage:
    """The usage of a job that has not ended. Nothing has to be written while it holds the same.

    Attributes:
        day: Day since the epoch that `amounts` belong to.
        amounts: What was used on that day until `since`, apart from samples and preemptions.
        since: Since when it holds this much, in seconds since the epoch.
        holding: What it holds since then.
        samples: Samples of the job that days before have counted.
        preemptions: Preemptions that they have counted.
    """

    day: int
    since: float
    amounts: UsageAmounts = UsageAmounts()
    holding: Holding = NOTHING
    samples: int = 0
    preemptions: int = 0

    def counting(self, samples: int, preemptions: int) -> UsageAmounts:
        """The amounts of its day, with samples and preemptions.

        Args:
            samples: Of the job so far.
            preemptions: Of the job so far.
        """
        return replace(self.amounts, samples=samples - self.samples, preemptions=preemptions - self.preemptions)


@dataclass(frozen=True)
class UsageRow:
    """What a job has used on one day.

    Attributes:
        job_number: Number of the job.
        day: Days since the epoch.
        owner: Owner of the job.
        project: Project of the job; empty: none.
        amounts: What was used.
        open: How it goes on; None: the day is complete, or the job has ended.
    """

    job_number: int
    day: int
    owner: str
    project: str
    amounts: UsageAmounts
    open: OpenUsage | None = None


def day_of(unix_seconds: float) -> int:
    """Days since the epoch in UTC."""
    return int(unix_seconds // DAY_SECONDS)


def settle_usage(
    usage: OpenUsage, now: float, samples: int, preemptions: int
) -> tuple[list[tuple[int, UsageAmounts]], OpenUsage]:
    """Divide what was used until now into days.

    A clock that was set back adds nothing. Days that were completed stay so: what follows counts for the open one.

    Args:
        now: Seconds since the epoch.
        samples: Samples of the job. Those that are new belong to the first of the days that end.
        preemptions: Preemptions of the job, likewise.

    Returns:
        The days that have ended since, with what was used on each; and the usage from now on. Days without anything are
        left out, but for the first.
    """
    day, begin, amounts, today = usage.day, min(usage.since, now), usage.amounts, day_of(now)
    ended: list[tuple[int, UsageAmounts]] = []
    while day < today:
        following = max(day + 1, today - _MAX_DAYS)
        midnight = following * DAY_SECONDS
        amounts += _amounts_of(usage.holding, max(0.0, midnight - begin))
        if not ended:
            amounts = replace(amounts, samples=samples - usage.samples, preemptions=preemptions - usage.preemptions)
        if not ended or amounts != UsageAmounts():
            ended.append((day, amounts))
        day, begin, amounts = following, max(begin, midnight), UsageAmounts()
    amounts += _amounts_of(usage.holding, now - begin)
    if ended:
        usage = replace(usage, samples=samples, preemptions=preemptions)
    return ended, replace(usage, day=day, amounts=amounts, since=now)


def _amounts_of(holding: Holding, seconds: float) -> UsageAmounts:
    return UsageAmounts(holding.nodes * seconds, holding.gpus * seconds, holding.lost * seconds)


def month_of(day: int) -> int:
    """Number of the month of a day, both in UTC: years times 12, plus 0 for January to 11 for December."""
    date_of_day = _EPOCH + timedelta(days=day)
    return 12 * date_of_day.year + date_of_day.month - 1


def month_name(month: int) -> str:
    """A month by its number, as 2026-07."""
    return f"{month // 12:04d}-{month % 12 + 1:02d}"


def first_day(month: int) -> int:
    """The first day of a month, in days since the epoch."""
    return (date(month // 12, month % 12 + 1, 1) - _EPOCH).days
