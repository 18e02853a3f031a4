"""Which workers of one job take longer for their own part of a step than the others. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_MIN_WORKERS = 3
"""Of two workers nobody can say which one is as it should be."""
_WINDOWS = 3
"""A worker is slow after so many messages in a row that say so, and no longer after so many that do not."""
_STEP_SHARE = 0.05
"""What a slow worker costs its job is this share of a step, at least."""
_FORGET_SECONDS = 900.0
"""A worker that has said nothing for so long is not compared."""


@dataclass(frozen=True, slots=True)
class WorkerTime:
    """What a worker has reported of its newest steps.

    Attributes:
        node: Its node, or its GPU in a member of a fleet.
        steps: Steps that it has measured so far.
        own_seconds: Median of its own part of a step.
        step_seconds: Median of a whole step.
    """

    rank: int
    node: str
    steps: int
    own_seconds: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class SlowWorker:
    """A worker that holds up the others.

    Attributes:
        share: How much longer its own part is than the others', relative to that.
        own_seconds: Its own part of a step.
        others_seconds: Median of the others' own parts.
    """

    rank: int
    node: str
    share: float
    own_seconds: float
    others_seconds: float


def medians_of_others(own: Mapping[int, float]) -> dict[int, float]:
    """For each worker the median of all others' figures; two of them at least."""
    ordered = sorted(own.values())
    return {rank: _median_without(ordered, bisect_left(ordered, figure)) for rank, figure in own.items()}


def _median_without(ordered: list[float], left_out: int) -> float:
    def at(index: int) -> float:
        return ordered[index if index < left_out else index + 1]

    count = len(ordered) - 1
    return (at((count - 1) // 2) + at(count // 2)) / 2


def is_slower(time: WorkerTime, others_seconds: float, share: float) -> bool:
    """Whether a worker is slower than the others by more than a share, so that their steps are noticeably longer."""
    excess = time.own_seconds - others_seconds
    return excess > share * others_seconds and excess > _STEP_SHARE * time.step_seconds


@dataclass
class JobWorkers:
    """The workers of one job, on the nodes that it has. Not more than there are ranks in its messages."""

    owner: str
    nodes: frozenset[str]
    _times: dict[int, tuple[WorkerTime, float]] = field(default_factory=dict)
    _scores: dict[int, int] = field(default_factory=dict)
    _slow: dict[int, SlowWorker] = field(default_factory=dict)

    def take_times(self, times: Iterable[WorkerTime], share: float, now: float) -> None:
        """Compare what workers have told with what the others say.

        Args:
            times: Messages of workers; those on nodes that are none of the job's are left out.
            share: A worker that is slower by more than this is slow.
            now: Monotonic time in seconds.
        """
        fresh = [time for time in times if time.node in self.nodes]
        self._times.update((time.rank, (time, now)) for time in fresh)
        known = {rank: (time, at) for rank, (time, at) in self._times.items() if now - at <= _FORGET_SECONDS}
        for rank in self._times.keys() - known.keys():
            self._forget(rank)
        self._times = known
        if len(known) < _MIN_WORKERS:
            return
        others = medians_of_others({rank: time.own_seconds for rank, (time, _) in known.items()})
        for time in fresh:
            self._judge(time, others[time.rank], share)

    def _judge(self, time: WorkerTime, others_seconds: float, share: float) -> None:
        slower = is_slower(time, others_seconds, share)
        score = self._scores.get(time.rank, 0) + (1 if slower else -1)
        self._scores[time.rank] = score = max(-_WINDOWS, min(_WINDOWS, score))
        was_slow = time.rank in self._slow
        if score == _WINDOWS or (was_slow and score > 0):
            relative = (time.own_seconds - others_seconds) / max(others_seconds, 1e-9)
            self._slow[time.rank] = SlowWorker(
                time.rank, time.node, min(relative, 1e6), time.own_seconds, others_seconds
            )
        elif was_slow:
            del self._slow[time.rank]

    def _forget(self, rank: int) -> None:
        self._scores.pop(rank, None)
        self._slow.pop(rank, None)

    @property
    def slow(self) -> list[SlowWorker]:
        """Workers that are slow, the slowest first."""
        return sorted(self._slow.values(), key=lambda worker: (-worker.share, worker.rank))

    @property
    def well_nodes(self) -> frozenset[str]:
        """Nodes of which all workers have long been as fast as the others."""
        scores: dict[str, list[int]] = {}
        for rank, (time, _) in self._times.items():
            scores.setdefault(time.node, []).append(self._scores.get(rank, 0))
        return frozenset(node for node, of_node in scores.items() if max(of_node) == -_WINDOWS)

    def count_measured(self, now: float) -> int:
        """How many workers have reported their times lately."""
        return sum(now - at <= _FORGET_SECONDS for _, at in self._times.values())
