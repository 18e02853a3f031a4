"""Until when members of fleets may be waited for while their rates are measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from malletrain.allocator.fleets.members import LateRate
from malletrain.allocator.problem.planner import JobCurve, PlanInput, PlannableJob


@dataclass(frozen=True)
class _Waiting:
    """A member whose rate is waited for.

    Attributes:
        gpus: GPUs that it has; 0: its rate on so many is known, or nobody asks for it.
        since: When it was last looked at, in monotonic seconds.
        waited: For how long it has had numbers of GPUs without its rate on so many getting known, in seconds.
    """

    gpus: int = 0
    since: float = 0.0
    waited: Mapping[int, float] = field(default_factory=dict)


@dataclass
class RateDeadlines:
    """Members whose rates did not come in time.

    Only the time in which a member has GPUs counts, also while it starts: one that waits for its turn, or after a
    failure, is not late. A member that is late once is not measured on purpose again.

    Attributes:
        limit_seconds: How long a rate may take to get known.
        late: Members that are late, by their jobs.
    """

    limit_seconds: float
    late: Mapping[str, LateRate]
    _waiting: dict[str, _Waiting] = field(default_factory=dict)

    def look(self, plan_input: PlanInput, now: float) -> Mapping[str, LateRate]:
        """Take in what members have now.

        Args:
            plan_input: The present.
            now: Monotonic time in seconds.

        Returns:
            Members whose rates did not come in time, by their jobs.
        """
        members = {job.id: job for job in plan_input.jobs if job.member is not None}
        present = members.keys() | plan_input.resting.keys()
        late = {job_id: late for job_id, late in self.late.items() if job_id in present}
        known = {job_id: self._waiting.get(job_id, _Waiting()) for job_id in present - late.keys()}
        self._waiting = {}
        for job_id, before in known.items():
            waited = dict(before.waited)
            if before.gpus:
                waited[before.gpus] = waited.get(before.gpus, 0.0) + now - before.since
                if waited[before.gpus] >= self.limit_seconds:
                    late[job_id] = LateRate(before.gpus, self.limit_seconds)
            job, curve = members.get(job_id), plan_input.curves.get(job_id)
            gpus = _awaited_gpus(job, curve) if job is not None and curve is not None else 0
            self._waiting[job_id] = _Waiting(gpus, now, waited)
        self.late = late
        return late

    def next_seconds(self) -> float | None:
        """Seconds from the last look until the next member may be late; None: none is waited for."""
        seconds = [
            self.limit_seconds - waiting.waited.get(waiting.gpus, 0.0)
            for job_id, waiting in self._waiting.items()
            if waiting.gpus and job_id not in self.late
        ]
        return max(0.0, min(seconds)) if seconds else None


def _awaited_gpus(job: PlannableJob, curve: JobCurve) -> int:
    """The GPUs that a member has, if its rate on so many is to be measured; else 0."""
    gpus = len(job.current_nodes)
    if gpus in curve.sure:
        return 0
    measured = job.member is not None and job.member.profiled and (gpus == job.min_nodes or gpus.bit_count() == 1)
    return gpus if measured or not curve.known else 0
