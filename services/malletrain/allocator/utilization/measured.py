"""How much of what its curve gives a job has trained, by what Monitor counts. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.allocator.utilization.definition import Pause, capacity
from malletrain.allocator.utilization.present import PresentUse

WINDOW_S = 600.0
"""Samples are compared over so many seconds: a batch may take minutes, and is counted when it is over."""
_MAX_STEPS = 2000
_MAX_SEEN = 20_000


@dataclass(slots=True)
class _Counted:
    """What is known of a job.

    Attributes:
        counts: When its samples were counted, and how many there were, oldest first.
        steps: Begin, end and rate of the times in which it trained, oldest first.
        last: When it was last among the jobs that could have nodes.
    """

    counts: deque[tuple[float, int]] = field(default_factory=deque)
    steps: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=_MAX_STEPS))
    last: float = 0.0


class MeasuredShares:
    """Compares what is counted of jobs with what their curves give, over the last minutes."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Counted] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._began = False

    @property
    def jobs(self) -> tuple[str, ...]:
        """Jobs whose samples are to be counted."""
        return tuple(self._jobs)

    @property
    def has_uncounted(self) -> bool:
        """Whether nothing is known yet of what one of the jobs had trained before."""
        return any(not job.counts for job in self._jobs.values())

    def note_time(self, begin: float, end: float, present: PresentUse) -> None:
        """Time has passed; both in seconds since the epoch. A job that is new had no samples before."""
        for job, rate in zip(present.jobs, present.rates, strict=True):
            known = self._jobs.get(job.id)
            if known is None:
                is_new = self._began and job.id not in self._seen
                known = self._jobs[job.id] = _Counted(deque([(begin, 0)] if is_new else []))
                self._note_seen(job.id)
            known.last = end
            if rate > 0:
                last = known.steps[-1] if known.steps else None
                if last is not None and last[1:] == (begin, rate):
                    known.steps[-1] = (last[0], end, rate)
                else:
                    known.steps.append((begin, end, rate))
        self._began = True

    def _note_seen(self, job_id: str) -> None:
        self._seen[job_id] = None
        while len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)

    def note_counts(self, time: float, samples: Mapping[str, tuple[float, int]]) -> None:
        """What Monitor has counted of `jobs`; those that it does not know have trained nothing.

        Args:
            time: Seconds since the epoch.
            samples: Until when samples are counted, in seconds since the epoch, and how many, net of what was lost, by
                job. Of a job that trains that is its newest batch, of one that hangs it is now.
        """
        for job_id, job in list(self._jobs.items()):
            if job.last < time - 2 * WINDOW_S:
                del self._jobs[job_id]
                continue
            until, count = samples.get(job_id, (time, 0))
            job.counts.append((max(until, job.counts[-1][0]) if job.counts else until, count))
            while len(job.counts) > 2 and job.counts[1][0] <= time - WINDOW_S:
                job.counts.popleft()
            while job.steps and job.steps[0][1] <= job.counts[0][0]:
                job.steps.popleft()

    def share(self, job_id: str, pauses: Sequence[Pause]) -> float:
        """How much of what its curve gives a job has trained lately, 0 to 1; 1 where that is not known."""
        job = self._jobs.get(job_id)
        if job is None or len(job.counts) < 2:
            return 1.0
        (begin, before), (end, now) = job.counts[0], job.counts[-1]
        possible = sum(
            capacity(max(begin, first), min(end, last), rate, pauses) for first, last, rate in job.steps if first < end
        )
        return min(1.0, max(0.0, (now - before) / possible)) if possible > 0 else 1.0
