"""Simulated jobs that follow the requests of profile runs, by the allocator's own rule for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from malletrain.allocator.problem.scale_pins import ScalePin, pinned_counts
from malletrain.profiler.machine.points import CurvePoint
from malletrain.profiler.machine.profile_scheduler import (
    ClusterView,
    JobView,
    ProfilingParameters,
    ProfilingState,
    ScaleRequest,
    advance,
)
from malletrain.profiler.machine.recording import validate_runs
from malletrain.profiler.machine.scale_selection import candidate_scales, next_listed

PARAMETERS = ProfilingParameters(
    least_top_share=1.0, least_steps=3, visit_seconds=30.0, climb_seconds=100.0, retry_seconds=5.0
)


@dataclass
class FakeJob:
    """A job.

    Attributes:
        scales: Permitted scales in nodes, ascending.
        nodes: Number of nodes that it has.
        busy_until: When its rescale ends.
        steps: Number of steps measured at each scale.
    """

    scales: tuple[int, ...]
    nodes: int = 0
    busy_until: float = 0.0
    steps: dict[int, int] = field(default_factory=dict)


class FakeCluster:
    """Jobs, idle nodes and profile runs. A second passes with each tick. It is also the `ProfilingPolicy`."""

    def __init__(self, idle: int, jobs: Mapping[str, FakeJob], wanted: Sequence[str] = ()) -> None:
        self.now = 1000.0
        self.idle = idle
        self.jobs = dict(jobs)
        self.wanted = set(wanted)
        self.state = ProfilingState()

    @property
    def requests(self) -> Mapping[str, ScaleRequest]:
        return self.state.requests

    # `ProfilingPolicy`

    def wants_profile(self, job_id: str) -> bool:
        return job_id in self.wanted

    def largest(self, job_id: str, scales: Sequence[int]) -> int:
        return scales[-1]

    def measured_at(self, job_id: str, nodes: int) -> CurvePoint | None:
        steps = self.jobs[job_id].steps.get(nodes, 0)
        when = self.now if self.jobs[job_id].nodes == nodes else 0.0
        error = 0.04 if steps >= 5 else 1.0
        return CurvePoint(nodes, 10.0 * nodes, steps, error, when) if steps else None

    def next_scale(self, job_id: str, present: int, top: int, visited: Sequence[int], pool: int) -> int | None:
        reachable = [scale for scale in self.jobs[job_id].scales if scale <= top]
        return next_listed(candidate_scales(reachable), present, visited)

    # What happens in the cluster

    def view(self) -> ClusterView:
        views = (
            JobView(name, job.scales, job.nodes, self.now >= job.busy_until) for name, job in sorted(self.jobs.items())
        )
        return ClusterView(self.now, self.idle, tuple(views))

    def tick(self, stall: float = 2.0) -> ProfilingState:
        """Take the next step of the runs, and let the jobs follow the requests."""
        self.now += 1.0
        for job in self.jobs.values():
            if job.nodes and self.now >= job.busy_until:
                job.steps[job.nodes] = job.steps.get(job.nodes, 0) + 1
        view = self.view()
        self.state = advance(self.state, view, self, PARAMETERS)
        validate_runs(self.state, view)
        holds = {name: ScalePin(request.nodes, request.grow, inf) for name, request in self.requests.items()}
        present = {name: job.nodes for name, job in self.jobs.items()}
        sizes = {name: (0, *job.scales) for name, job in self.jobs.items()}
        for name, count in pinned_counts(present, sizes, holds, self.idle).items():
            if count != present[name]:
                self.jobs[name].nodes = count
                self.jobs[name].busy_until = self.now + stall
        return self.state

    def lose(self, name: str) -> None:
        """The batch scheduler takes a node of a job."""
        job = self.jobs[name]
        if not job.nodes:
            return
        self.idle -= 1
        job.nodes = max((scale for scale in (0, *job.scales) if scale < job.nodes), default=0)
        job.busy_until = self.now + 1.0

    def share_equally(self) -> None:
        """Divide the nodes as a plan would between two profiles."""
        for job in self.jobs.values():
            job.nodes = job.scales[0]
        while free := self.idle - sum(job.nodes for job in self.jobs.values()):
            smallest = min(self.jobs.values(), key=lambda job: job.nodes)
            if smallest.nodes >= smallest.scales[-1]:
                break
            smallest.nodes += min(free, 1)


def scales(least: int, most: int) -> tuple[int, ...]:
    return tuple(range(least, most + 1))
