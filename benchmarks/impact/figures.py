"""Figures from the times of main jobs and of our processes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_SAME_LOOK_S = 0.2
"""Jobs that the scheduler starts in one cycle have time stamps that differ by at most this."""


@dataclass(frozen=True)
class Ran:
    """A main job in one run; times in seconds from the begin of the stream.

    Attributes:
        number: Its position in the stream.
        nodes: Number of its nodes.
        submit_s: When it was submitted.
        start_s: When its first command began.
        end_s: When its last command had ended.
        names: Names of its nodes.
        began_at: When the stream began, in seconds since the epoch.
    """

    number: int
    nodes: int
    submit_s: float
    start_s: float
    end_s: float
    names: tuple[str, ...] = ()
    began_at: float = 0.0


def waited_in_vain(job: Ran, jobs: Sequence[Ran], nodes: int) -> float:
    """Seconds from when a job could have started to when it did.

    A job could start once it was submitted, enough nodes were and remained free of main jobs, and all earlier jobs of
    the queue that started before it, or in the same cycle of the scheduler, had started. The delay of other jobs is
    thus not counted again for each job behind them in the queue.
    """
    others = [other for other in jobs if other.number != job.number and other.start_s <= job.start_s + _SAME_LOOK_S]
    could = job.submit_s
    for other in others:
        if other.number < job.number:
            could = max(could, min(other.start_s, job.start_s))
    moments = sorted({time for other in others for time in (other.start_s, other.end_s) if could < time < job.start_s})
    for time in [could, *moments]:
        if _free(others, nodes, time) < job.nodes:
            could = min((later for later in moments if later > time), default=job.start_s)
    return job.start_s - could


def _free(jobs: Iterable[Ran], nodes: int, time: float) -> int:
    return nodes - sum(job.nodes for job in jobs if job.start_s <= time < job.end_s)


def start_deltas(without: Sequence[Ran], with_us: Sequence[Ran], nodes: int) -> list[float]:
    """How many seconds longer than in the run without us each main job waited after it could have started.

    At most the difference of its start times: a job that Slurm let pass another one has waited for nothing else.
    """
    before = {job.number: waited_in_vain(job, without, nodes) for job in without}
    own = [waited_in_vain(job, with_us, nodes) - before[job.number] for job in with_us]
    return [min(pair) for pair in zip(own, plain_deltas(without, with_us), strict=True)]


def plain_deltas(without: Sequence[Ran], with_us: Sequence[Ran]) -> list[float]:
    """Start time less that in the run without us, in seconds. Includes the delays of all jobs before it."""
    before = {job.number: job.start_s for job in without}
    return [job.start_s - before[job.number] for job in with_us]


def reclaims(signals: Mapping[str, Sequence[float]], empty: Mapping[str, Sequence[float]]) -> list[tuple[float, float]]:
    """When each node was wanted back, and how many seconds later no process of ours was on it.

    Args:
        signals: When the agents of each node got SIGTERM.
        empty: When each node was seen to have become free of our processes.
    """
    found = []
    for node, times in signals.items():
        for time in times:
            after = min((moment for moment in empty.get(node, ()) if moment >= time), default=math.inf)
            found.append((time, after - time))
    return sorted(found)


def shared_seconds(jobs: Iterable[Ran], spans: Mapping[str, Sequence[tuple[float, float]]]) -> float:
    """Node-seconds in which a main job and a process of ours were on one node.

    Args:
        jobs: Main jobs with the names of their nodes.
        spans: For each node, from when to when a process of ours was there, in seconds since the epoch.
    """
    return sum(
        max(0.0, min(end, job.began_at + job.end_s) - max(begin, job.began_at + job.start_s))
        for job in jobs
        for node in job.names
        for begin, end in spans.get(node, ())
    )


def max_in_window(times: Iterable[float], window: float) -> int:
    """Largest number of events within any window of so many seconds, which excludes its end."""
    ordered = sorted(times)
    most = begin = 0
    for end, time in enumerate(ordered):
        while ordered[begin] <= time - window:
            begin += 1
        most = max(most, end - begin + 1)
    return most


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile; None without values. The 99th of fewer than 100 values is the largest."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
