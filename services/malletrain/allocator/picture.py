"""What the peers have said, kept as messages arrive, and the situation it amounts to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from malletrain.allocator.holds import Hold
from malletrain.allocator.planner import IdleNode, JobCurve, PlannableJob, Situation
from malletrain.allocator.problem import ScalingPoint, Stall
from malletrain.v1 import job_manager_pb2, profiler_pb2, resources_pb2, scavenger_pb2

_FINAL = (resources_pb2.JOB_STATE_COMPLETED, resources_pb2.JOB_STATE_FAILED, resources_pb2.JOB_STATE_CANCELLED)


class Picture:
    """Nodes, jobs and curves as last heard of.

    `complete` turns true once nodes and jobs have been heard of: no plan is made from half a picture, which would
    take nodes from jobs that are merely not known yet.
    """

    def __init__(self, caution: float = 0.0) -> None:
        """Know nothing yet. `caution`: how much of a rate's error is taken off it."""
        self._caution = caution
        self._nodes: dict[str, resources_pb2.Node] = {}
        self._jobs: dict[str, resources_pb2.Job] = {}
        self._profiles: dict[str, profiler_pb2.Profile] = {}
        self._nodes_known = False
        self._jobs_known = False

    @property
    def complete(self) -> bool:
        """Whether both nodes and jobs are known."""
        return self._nodes_known and self._jobs_known

    @property
    def highest_generation(self) -> int:
        """The highest plan generation that any job has seen."""
        return max((job.plan_generation for job in self._jobs.values()), default=0)

    def see_nodes(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        """Take over a message of WatchNodes."""
        if message.snapshot:
            self._nodes.clear()
            self._nodes_known = True
        for name in message.left:
            self._nodes.pop(name, None)
        self._nodes.update((node.name, node) for node in message.joined)

    def see_stays(self, nodes: Iterable[resources_pb2.Node]) -> None:
        """Take over newer expected stays of nodes that are known."""
        self._nodes.update((node.name, node) for node in nodes if node.name in self._nodes)

    def see_jobs(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        """Take over a message of WatchJobs; ended jobs are forgotten."""
        if message.snapshot:
            self._jobs.clear()
            self._jobs_known = True
        for job in message.jobs:
            if job.state in _FINAL:
                self._jobs.pop(job.id, None)
                self._profiles.pop(job.id, None)
            else:
                self._jobs[job.id] = job

    def see_profiles(self, message: profiler_pb2.WatchProfilesResponse) -> None:
        """Take over a message of WatchProfiles."""
        self._profiles.update((profile.job_id, profile) for profile in message.profiles)

    def situation(self, now: float) -> Situation:
        """All that a plan depends on, at `now` seconds since the epoch."""
        jobs = sorted((job for job in self._jobs.values() if job.admitted), key=lambda job: job.id)
        stopping = [job for job in jobs if job.state == resources_pb2.JOB_STATE_STOPPING]
        return Situation(
            nodes=tuple(IdleNode(node.name, node.expected_stay_seconds, node.pool) for node in self._nodes.values()),
            jobs=tuple(_plannable(job) for job in jobs if _may_be_planned(job, now)),
            busy_nodes=frozenset(name for job in stopping for name in (*job.commanded_nodes, *job.wanted_nodes)),
            curves={
                name: curve for name, profile in self._profiles.items() if (curve := _curve(profile, self._caution))
            },
            holds={name: hold for name, profile in self._profiles.items() if (hold := _hold(profile, now))},
        )

    def next_release(self, now: float) -> float | None:
        """When the next hold of a profile runs out by itself, in seconds since the epoch; None where none is."""
        times = [profile.hold.until_unix_seconds for profile in self._profiles.values() if profile.HasField("hold")]
        return min((time for time in times if time > now), default=None)

    def next_eligible(self, now: float) -> float | None:
        """When the next job that backs off may be planned, in seconds since the epoch; None where none does."""
        times = [job.not_before.ToNanoseconds() / 1e9 for job in self._jobs.values() if job.HasField("not_before")]
        return min((time for time in times if time > now), default=None)


def _may_be_planned(job: resources_pb2.Job, now: float) -> bool:
    backing_off = job.HasField("not_before") and job.not_before.ToNanoseconds() / 1e9 > now
    return job.state != resources_pb2.JOB_STATE_STOPPING and not backing_off


def _plannable(job: resources_pb2.Job) -> PlannableJob:
    return PlannableJob(
        id=job.id,
        min_nodes=job.spec.min_nodes,
        max_nodes=job.spec.max_nodes,
        permitted_nodes=tuple(job.spec.permitted_nodes),
        weight=job.spec.weight or 1.0,
        current_nodes=tuple(job.commanded_nodes),
    )


def _hold(profile: profiler_pb2.Profile, now: float) -> Hold | None:
    hold = profile.hold
    if not profile.HasField("hold") or hold.until_unix_seconds <= now:
        return None
    return Hold(hold.nodes, hold.grow, hold.until_unix_seconds)


def _curve(profile: profiler_pb2.Profile, caution: float) -> JobCurve | None:
    if not profile.points:
        return None
    return JobCurve(
        points=_lowered(profile.points, caution),
        scale_up_seconds=profile.scale_up_seconds,
        scale_down_seconds=profile.scale_down_seconds,
        stalls=tuple(Stall(stall.from_nodes, stall.to_nodes, stall.seconds) for stall in profile.stalls),
    )


def _lowered(points: Sequence[profiler_pb2.ProfilePoint], caution: float) -> tuple[ScalingPoint, ...]:
    """The curve less a share of its error at each point; still never falling."""
    rates = accumulate((point.rate * max(0.0, 1.0 - caution * point.relative_error) for point in points), max)
    return tuple(ScalingPoint(point.nodes, rate) for point, rate in zip(points, rates, strict=True))
