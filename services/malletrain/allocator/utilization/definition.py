"""Utilization efficiency U by minute, and its bound: the one definition that all who show it share. Pure.

U of a minute is the samples that its jobs trained, over those that the same jobs would have trained on as many nodes
that are always there. Its zero-cost bound is what they would have trained on the nodes as they came and went if
rescaling were free, over the same. The jobs are those that could have nodes in that minute, and what they could have
trained is by their curves, as these were believed then. What they trained is what Monitor has counted, net of what was
lost, and at most what their curves give for the nodes that they had: where a curve is too low, U does not exceed its
bound. U and bound of a longer time are the quotients of the sums over its minutes, so that minutes without jobs count
nowhere.

It is BFTrainer's U (section 4.1.2) with each minute as a period of its own. A replay of a trace takes its whole length
as one period, as the paper does (`malletrain.simulator.replay.records`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from malletrain.allocator.problem.allocation_problem import JobDemand

MINUTE_S = 60.0
HOUR_S = 3600.0
MAX_AGE_S = 600.0
"""How old the newest minute may be that still tells of the present."""
IN_WORDS = (
    "U: samples that the jobs have trained, of those that they could have trained on as many nodes that are always "
    "there, by their curves; minute by minute."
)
"""What U is, for people."""

BestRate = Callable[[tuple[JobDemand, ...], int], float]
"""Most samples per second that jobs can train on so many nodes if rescaling is free."""
Pause = tuple[float, float]
"""Begin and end of a time in which a job stood still, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class UseStep:
    """A time in which nothing changed.

    Attributes:
        start: In seconds since the epoch.
        seconds: Its length.
        nodes: Idle nodes; in GPUs, as the scales of the jobs, where a fleet trains.
        jobs: Jobs that could have nodes.
        rates: Samples per second of each of them by its curve, at the scale that it had; 0: it did not train.
    """

    start: float
    seconds: float
    nodes: int
    jobs: tuple[JobDemand, ...]
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MinuteUse:
    """What a minute's idle nodes were used for, in samples. 0 <= trained <= free.

    Attributes:
        start: In seconds since the epoch, a multiple of 60.
        nodes: Mean number of idle nodes; in GPUs while a fleet trains.
        trained: What its jobs trained.
        free: What they would have trained on the same nodes if rescaling were free.
        static: What they would have trained on `nodes` nodes that are always there.
    """

    start: float
    nodes: float
    trained: float
    free: float
    static: float

    @property
    def efficiency(self) -> float | None:
        """U; None where nothing could have been trained."""
        return self.trained / self.static if self.static > 0 else None

    @property
    def bound(self) -> float | None:
        """U if rescaling were free; None where nothing could have been trained."""
        return self.free / self.static if self.static > 0 else None


@dataclass(frozen=True, slots=True)
class Utilization:
    """U of a longer time.

    Attributes:
        seconds: Length of its minutes together.
        nodes: Mean number of idle nodes.
        efficiency: U; None where nothing could have been trained.
        bound: U if rescaling were free.
    """

    seconds: float
    nodes: float
    efficiency: float | None
    bound: float | None


def utilization_of(minutes: Iterable[MinuteUse]) -> Utilization | None:
    """U of several minutes; None without any."""
    known = list(minutes)
    if not known:
        return None
    trained, free, static = (
        sum(minute.trained for minute in known),
        sum(minute.free for minute in known),
        sum(minute.static for minute in known),
    )
    nodes = sum(minute.nodes for minute in known) / len(known)
    seconds = MINUTE_S * len(known)
    if static <= 0:
        return Utilization(seconds, nodes, None, None)
    return Utilization(seconds, nodes, trained / static, free / static)


def last_hour(minutes: Sequence[MinuteUse], now: float) -> Sequence[MinuteUse]:
    """The newest hour of minutes, oldest first; none where the newest one is too old to tell of the present.

    Args:
        minutes: Oldest first.
        now: Seconds since the epoch.
    """
    known = [minute for minute in minutes if now - HOUR_S - MAX_AGE_S < minute.start <= now]
    if not known or now - known[-1].start > MAX_AGE_S:
        return ()
    return [minute for minute in known if minute.start > known[-1].start - HOUR_S]


def between(minutes: Iterable[MinuteUse], since: float, until: float) -> list[MinuteUse]:
    """The minutes that lie wholly between two times, in seconds since the epoch."""
    return [minute for minute in minutes if since <= minute.start and minute.start + MINUTE_S <= until]


def minute_use(
    start: float,
    steps: Sequence[UseStep],
    best: BestRate,
    pauses: Mapping[str, Sequence[Pause]] | None = None,
    shares: Mapping[str, float] | None = None,
    trained: float | None = None,
) -> MinuteUse:
    """What a minute was used for.

    Args:
        start: Its begin in seconds since the epoch.
        steps: Its steps, which cover it; shorter gaps are taken to be as the rest. At least one.
        best: The best rates.
        pauses: When jobs stood still for a rescale or a start, by job, in the order of time and without overlaps.
        shares: How much of what its curve gives each job has trained, 0 to 1, by job; those that are missing: all.
        trained: What the jobs trained, where a replay knows it; None: by what is above.
    """
    covered = sum(step.seconds for step in steps)
    nodes = sum(step.seconds * step.nodes for step in steps) / covered
    below = int(nodes)
    counted = free = static = 0.0
    for step in steps:
        possible = step.seconds * best(step.jobs, step.nodes)
        counted += min(_count_samples(step, pauses or {}, shares or {}), possible)
        free += possible
        low = best(step.jobs, below)
        static += step.seconds * (low + (nodes - below) * (best(step.jobs, below + 1) - low) if nodes > below else low)
    scale = MINUTE_S / covered
    samples = scale * counted if trained is None else min(max(trained, 0.0), scale * free)
    return MinuteUse(start, nodes, samples, scale * free, scale * static)


def _count_samples(step: UseStep, pauses: Mapping[str, Sequence[Pause]], shares: Mapping[str, float]) -> float:
    return sum(
        shares.get(job.id, 1.0) * capacity(step.start, step.start + step.seconds, rate, pauses.get(job.id, ()))
        for job, rate in zip(step.jobs, step.rates, strict=True)
        if rate > 0
    )


def capacity(begin: float, end: float, rate: float, pauses: Iterable[Pause]) -> float:
    """Samples that a job can train between two times at a rate: while it stands still, none."""
    still = sum(max(0.0, min(end, last) - max(begin, first)) for first, last in pauses)
    return rate * max(0.0, end - begin - still)


def pauses_of(
    stalls: Iterable[tuple[float, float]], first_batches: Iterable[float], step_s: float, starts: Iterable[float]
) -> list[Pause]:
    """When a job stood still, in the order of time and without overlaps.

    Args:
        stalls: Measured stalls of rescales: when training went on, and how long it had stood still, in seconds.
        first_batches: When the first batches of processes ended that had not reported before.
        step_s: How long a batch usually takes, in seconds.
        starts: When it began to train on nodes after it had none: until its first batch began, it did not.
    """
    pauses = [(end - seconds, end) for end, seconds in stalls]
    firsts = sorted(first_batches)
    for start in starts:
        first = next((time - step_s for time in firsts if time >= start), None)
        if first is not None and first > start:
            pauses.append((start, first))
    joined: list[Pause] = []
    for begin, end in sorted(pauses):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def trained_scale(demand: JobDemand, count: int) -> int:
    """The scale at which a job trains that has workers on so many nodes: the largest permitted one; 0: none."""
    return demand.max_within(min(count, demand.curve[-1].nodes))
