"""The present nodes, jobs and curves, as the other services last reported them. Pure; `wire` reads protobufs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from malletrain.allocator.fleets.members import LateRate
from malletrain.allocator.problem.planner import JobCurve, PlanInput, PlannableJob, PlannableNode, faults_in
from malletrain.allocator.problem.scale_pins import ScalePin
from malletrain.fleet.problem import FleetPlanner
from malletrain.model.job_state import JobState
from malletrain.model.job_terms import JobTerms
from malletrain.model.scaling import permitted_scales
from malletrain.runtime.kernel.documents import DERIVED

_BY_REMAINING_WORK = (FleetPlanner.MAKESPAN, FleetPlanner.AUTO)
_MAX_LISTED_SCALE = 1024
_HANDOVER_SECONDS = 2.0
"""How long nodes of a job that stops stay promised to another. A stop takes longer only if its checkpoint does."""


@dataclass(frozen=True)
class CachedJob:
    """A job as JobManager last reported it.

    Attributes:
        plannable: What a plan needs to know of it; `current_nodes` are its commanded nodes.
        admitted: Whether it takes part in plans.
        not_before: Until when it backs off, in seconds since the epoch; None where it does not.
        plan_generation: Generation of the newest plan that has changed its nodes.
        confirmed_nodes: Nodes that its workers have confirmed to train on.
        environment: Its training environment (`training_environment`).
        stopping_since: If it is being stopped, when it was changed last, in seconds since the epoch; the cache keeps
            the first of these. None where it is not being stopped.
        keeps_scale: Whether its saves fail, so that JobManager leaves its scale alone.
    """

    plannable: PlannableJob
    state: JobState
    admitted: bool
    not_before: float | None = None
    plan_generation: int = 0
    confirmed_nodes: frozenset[str] = frozenset()
    environment: str = ""
    stopping_since: float | None = None
    keeps_scale: bool = False

    def may_be_planned(self, now: float) -> bool:
        """Whether it may get nodes at `now`, in seconds since the epoch."""
        backs_off = self.not_before is not None and self.not_before > now
        return self.admitted and self.state is not JobState.STOPPING and not backs_off


def offered_scales(terms: JobTerms, left_out: tuple[int, ...]) -> tuple[int, ...]:
    """The scales that a job may have now; empty: all between its bounds.

    Where a few of many are left out, those that are far above them are left out, too.

    Args:
        terms: Its bounds, and the scales that its owner permits.
        left_out: Scales at which its script has failed.
    """
    if not left_out:
        return terms.permitted_nodes
    top = min(terms.max_nodes, max(_MAX_LISTED_SCALE, 2 * max(left_out)))
    scales = permitted_scales(terms.min_nodes, top, terms.permitted_nodes)
    return tuple(scale for scale in scales if scale not in left_out) or terms.permitted_nodes


@dataclass(frozen=True)
class CachedProfile:
    """What the Profiler last reported of a job: its curve, and the scale at which it is to be pinned."""

    job_id: str
    curve: JobCurve | None
    pin: ScalePin | None = None


@dataclass
class ClusterCache:
    """Nodes, jobs and curves as last reported.

    No plan may be made before nodes and jobs are known, or it would take nodes from jobs that are not known yet:
    `complete` says whether they are.
    """

    _nodes: dict[str, PlannableNode] = field(default_factory=dict)
    _stays: dict[str, float] = field(default_factory=dict)
    _jobs: dict[str, CachedJob] = field(default_factory=dict)
    _profiles: dict[str, CachedProfile] = field(default_factory=dict)
    _late_rates: Mapping[str, LateRate] = field(default_factory=dict)
    _generation: int = 0
    # The newest input with the times from and before which it holds; None: something has changed since.
    _input: tuple[float, float, PlanInput] | None = field(default=None, metadata=DERIVED)
    _nodes_known: bool = False
    _jobs_known: bool = False

    @property
    def complete(self) -> bool:
        """Whether both nodes and jobs are known."""
        return self._nodes_known and self._jobs_known

    def next_generation(self, last: int) -> int:
        """Generation of the next plan: above that of our last plan, and above every one that JobManager has seen.

        JobManager may have seen higher ones, where our database was restored from a backup: it refuses all others.
        """
        return max((last, self._generation, *(job.plan_generation for job in self._jobs.values()))) + 1

    @property
    def generation(self) -> int:
        """Generation of the newest plan that JobManager has reported to have applied; 0: none."""
        return self._generation

    def wanted_nodes(self, job_id: str) -> tuple[str, ...] | None:
        """What JobManager has last reported to be wanted for a job; None: it is not known."""
        job = self._jobs.get(job_id)
        return job.plannable.wanted_nodes if job is not None else None

    def note_generation(self, generation: int) -> None:
        """JobManager has applied a plan of this generation."""
        self._generation = max(self._generation, generation)

    def update_nodes(
        self, joined: Iterable[PlannableNode], left: Iterable[str] = (), *, snapshot: bool = False
    ) -> None:
        """Take over a change of the idle nodes, or all of them with `snapshot`."""
        self._input = None
        if snapshot:
            self._nodes.clear()
            self._stays.clear()
            self._nodes_known = True
        for name in left:
            self._nodes.pop(name, None)
            self._stays.pop(name, None)
        for node in joined:
            self._nodes[node.name] = node
            self._stays.pop(node.name, None)  # what a join says of the stay is newer

    def pool_of(self, name: str) -> str:
        """The pool of a node; empty where it is not known."""
        node = self._nodes.get(name)
        return node.pool if node is not None else ""

    @property
    def nodes(self) -> Collection[PlannableNode]:
        """The idle nodes."""
        return self._nodes.values()

    @property
    def node_names(self) -> Collection[str]:
        """The names of the idle nodes."""
        return self._nodes.keys()

    @property
    def jobs(self) -> Collection[CachedJob]:
        """The jobs that have not ended."""
        return self._jobs.values()

    def curve_of(self, job_id: str) -> JobCurve | None:
        """The curve of a job; None: not known."""
        profile = self._profiles.get(job_id)
        return profile.curve if profile is not None else None

    def update_stays(self, nodes: Iterable[PlannableNode], stays: Mapping[str, float] | None = None) -> None:
        """Take over newer expected stays; nodes that are not known are ignored.

        Args:
            nodes: Nodes that have changed besides.
            stays: Expected stays of nodes in seconds, by name; None: those of `nodes`, which are all.
        """
        self._input = None
        self._stays = {} if stays is None else dict(stays)
        for node in nodes:
            known = self._nodes.get(node.name)
            if known is None:
                continue
            # Of what a node is besides, joins alone tell.
            self._nodes[node.name] = known._replace(
                expected_stay_seconds=node.expected_stay_seconds, pool=node.pool, gpus=node.gpus, slow=node.slow
            )

    def has_other_weights(self, jobs: Iterable[CachedJob]) -> bool:
        """Whether one of these jobs is known, and with another weight of its own."""
        known = ((job.plannable.weight, self._jobs.get(job.plannable.id)) for job in jobs)
        return any(before is not None and before.plannable.weight != weight for weight, before in known)

    def is_outdated(self, job: CachedJob) -> bool:
        """Whether what a newer plan has changed of a job is known already."""
        known = self._jobs.get(job.plannable.id)
        return known is not None and job.plan_generation < known.plan_generation

    def is_ahead(self, job: CachedJob) -> bool:
        """Whether a job is known, and what a plan has changed of it is not; else what is known may be newer."""
        known = self._jobs.get(job.plannable.id)
        return known is not None and job.plan_generation > known.plan_generation

    def update_jobs(self, jobs: Iterable[CachedJob], *, snapshot: bool = False) -> None:
        """Take over changed jobs, or all of them with `snapshot`. Jobs in a final state are forgotten."""
        self._input = None
        if snapshot:
            self._jobs.clear()
            self._jobs_known = True
        for job in jobs:
            job_id = job.plannable.id
            if job.state.final:
                self._jobs.pop(job_id, None)
                self._profiles.pop(job_id, None)
            else:
                self._jobs[job_id] = _with_what_was_known(job, self._jobs.get(job_id))

    @property
    def has_fleets(self) -> bool:
        """Whether a job that takes part in plans is a member of a fleet."""
        return any(job.admitted and job.plannable.member for job in self._jobs.values())

    def replans_fleets(self, now: float) -> bool:
        """Whether GPUs are divided by remaining work in a fleet with a member that may have some at `now`."""
        members = (job.plannable.member for job in self._jobs.values() if job.may_be_planned(now))
        return any(member.terms.planner in _BY_REMAINING_WORK for member in members if member is not None)

    def update_samples(self, samples: Mapping[str, int]) -> None:
        """Take over how many samples members of fleets and jobs with a deadline have trained on; others are ignored."""
        self._input = None
        for job_id, count in samples.items():
            job = self._jobs.get(job_id)
            if job is None:
                continue
            plannable = job.plannable
            if plannable.member is not None:
                member = replace(plannable.member, samples=count)
                self._jobs[job_id] = replace(job, plannable=replace(plannable, member=member))
            elif plannable.value.moves:
                value = replace(plannable.value, samples=count)
                self._jobs[job_id] = replace(job, plannable=replace(plannable, value=value))

    def update_feeds(self, rates: Mapping[str, float]) -> None:
        """Take over how many samples/s the feeds of members can prepare on a node, by job; other jobs are ignored."""
        for job_id, rate in rates.items():
            job = self._jobs.get(job_id)
            if job is not None and job.plannable.member is not None:
                member = replace(job.plannable.member, feed_rate=rate)
                self._jobs[job_id] = replace(job, plannable=replace(job.plannable, member=member))

    @property
    def members(self) -> tuple[str, ...]:
        """Members of fleets that take part in plans."""
        return tuple(job_id for job_id, job in self._jobs.items() if job.admitted and job.plannable.member)

    @property
    def deadlines(self) -> tuple[str, ...]:
        """Jobs that have a deadline and take part in plans."""
        return tuple(job_id for job_id, job in self._jobs.items() if job.admitted and job.plannable.value.moves)

    def open_deadlines(self, now: float) -> tuple[float, ...]:
        """The deadlines that are still to come of jobs that take part in plans, in seconds since the epoch."""
        times = (job.plannable.value.due_at for job in self._jobs.values() if job.admitted)
        return tuple(time for time in times if time is not None and time > now)

    def update_profiles(self, profiles: Iterable[CachedProfile]) -> None:
        """Take over changed profiles."""
        self._input = None
        self._profiles.update((profile.job_id, profile) for profile in profiles)

    def update_late_rates(self, late: Mapping[str, LateRate]) -> None:
        """Take over which members of fleets are late with their rates, by their jobs."""
        if late != self._late_rates:
            self._input = None
        self._late_rates = late

    def plan_input(self, now: float) -> PlanInput:
        """All that a plan depends on, at `now` in seconds since the epoch: the same object while nothing changes."""
        if self._input is None or not self._input[0] <= now < self._input[1]:
            deadline = min(self.open_deadlines(now), default=None)
            ends = (self.next_unpinned(now), self.next_eligible(now), self.next_overdue(now), deadline)
            self._input = now, min((time for time in ends if time is not None), default=inf), self._plan_input(now)
        return self._input[2]

    def _plan_input(self, now: float) -> PlanInput:
        jobs = sorted((job for job in self._jobs.values() if job.admitted), key=lambda job: job.plannable.id)
        curves = {name: profile.curve for name, profile in self._profiles.items() if profile.curve is not None}
        faults = faults_in((job.plannable for job in jobs if job.may_be_planned(now)), curves)
        planned = [job for job in jobs if job.may_be_planned(now) and job.plannable.id not in faults]
        kept_by_others = {name for job in planned for name in job.plannable.current_nodes} if faults else set()
        # Nodes of jobs that are being stopped are not free yet. Jobs whose figures are wrong can't be planned, and keep
        # their nodes, unless another job of the plan holds the same ones.
        busy = [
            (name, job.plannable.member)
            for job in jobs
            if job.state is JobState.STOPPING or job.plannable.id in faults
            for name in (*job.plannable.current_nodes, *job.plannable.wanted_nodes)
            if name not in kept_by_others
        ]
        handed_over = self._handed_over(now)
        profiles = self._profiles.items()
        fixed = {job.plannable.id: len(job.plannable.current_nodes) for job in planned if job.keeps_scale}
        return PlanInput(
            nodes=tuple(self._nodes.values()),
            jobs=tuple(job.plannable for job in planned),
            busy_nodes=frozenset(name for name, member in busy if member is None) - handed_over,
            curves=curves,
            pins={
                **{job_id: profile.pin for job_id, profile in profiles if profile.pin and profile.pin.until > now},
                **{job_id: ScalePin(nodes, grow=False, until=inf) for job_id, nodes in fixed.items() if nodes},
            },
            busy_gpus={name: member.fleet_id for name, member in busy if member is not None},
            resting={
                job.plannable.id: job.plannable.member.fleet_id
                for job in jobs
                if job.plannable.member is not None and (not job.may_be_planned(now) or job.plannable.id in faults)
            },
            late_rates=self._late_rates,
            past_deadlines=frozenset(
                job.plannable.id for job in jobs if (due := job.plannable.value.due_at) is not None and due <= now
            ),
            stays=self._stays.copy(),
            faults=faults,
        )

    def _handed_over(self, now: float) -> frozenset[str]:
        """Nodes of jobs that are being stopped, not for long yet, which the newest plan has promised to others.

        Without them a plan would give those others a smaller scale for the moment, and they would rescale twice.
        """
        stopping = {
            name
            for job in self._jobs.values()
            if job.stopping_since is not None and now < job.stopping_since + _HANDOVER_SECONDS
            for name in job.plannable.current_nodes
        }
        if not stopping:
            return frozenset()
        promised = (job.plannable.wanted_nodes for job in self._jobs.values() if job.may_be_planned(now))
        return frozenset(name for nodes in promised for name in nodes if name in stopping)

    def next_overdue(self, now: float) -> float | None:
        """When the next job that is being stopped has taken long, in seconds since the epoch; None where none is."""
        begun = (job.stopping_since for job in self._jobs.values() if job.stopping_since is not None)
        return min((time + _HANDOVER_SECONDS for time in begun if time + _HANDOVER_SECONDS > now), default=None)

    def next_unpinned(self, now: float) -> float | None:
        """When the next scale pin ends by itself, in seconds since the epoch; None where there is none."""
        times = [profile.pin.until for profile in self._profiles.values() if profile.pin is not None]
        return min((time for time in times if time > now), default=None)

    def next_eligible(self, now: float) -> float | None:
        """When the next job's back-off ends, in seconds since the epoch; None where no job backs off."""
        times = [job.not_before for job in self._jobs.values() if job.not_before is not None]
        return min((time for time in times if time > now), default=None)


def _with_what_was_known(job: CachedJob, before: CachedJob | None) -> CachedJob:
    """A job as it is reported, with what JobManager does not tell: since when it is being stopped, its feed's rate."""
    if before is None:
        return job
    if job.stopping_since is not None and before.stopping_since is not None:
        job = replace(job, stopping_since=before.stopping_since)
    member, known = job.plannable.member, before.plannable.member
    if member is None or known is None or not known.feed_rate:
        return job
    return replace(job, plannable=replace(job.plannable, member=replace(member, feed_rate=known.feed_rate)))
