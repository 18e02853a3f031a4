"""When the next plan is due. Pure: times are passed in, and the caller does the waiting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from malletrain.allocator.machine.cluster_cache import ClusterCache
from malletrain.allocator.problem.planner import PlanInput
from malletrain.common.backoff import Backoff
from malletrain.runtime.kernel.documents import DERIVED

_FIRST_RETRY_SECONDS = 0.1
_MAX_RETRY_SECONDS = 2.0
_MAX_NAMES = 8


@dataclass(frozen=True)
class Signature:
    """What a plan was made for. A new plan is due when it differs; curves and our own rescales are not part of it.

    Attributes:
        nodes: Nodes that the plan could hand out.
        jobs: Jobs that it planned.
        pins: Pinned jobs with their scale in nodes; 0: the scale that the job has.
        busy_gpus: GPUs of members of fleets that were being stopped.
        rated: Members of fleets whose rates were known, with the numbers of GPUs where they were known well enough.
        late: Members of fleets whose rates did not come in time.
        scales: Jobs with their largest scale in nodes, and the permitted ones if these are not all.
        past: Jobs whose deadlines had passed.
    """

    nodes: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()
    pins: frozenset[tuple[str, int]] = frozenset()
    busy_gpus: frozenset[str] = frozenset()
    rated: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    late: frozenset[str] = frozenset()
    scales: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    past: frozenset[str] = frozenset()

    @classmethod
    def of(cls, plan_input: PlanInput) -> Signature:
        """The signature of a plan's input."""
        jobs, curves = plan_input.planned_jobs, plan_input.curves
        return cls(
            plan_input.node_names,
            frozenset(job.id for job in jobs),
            frozenset((job.id, plan_input.pins[job.id].nodes) for job in jobs if job.id in plan_input.pins),
            frozenset(plan_input.busy_gpus),
            frozenset((job.id, curves[job.id].sure) for job in jobs if job.member and curves[job.id].known),
            frozenset(plan_input.late_rates),
            frozenset((job.id, (job.max_nodes, *job.permitted_nodes)) for job in jobs if not job.member),
            plan_input.past_deadlines,
        )


@dataclass
class PlanTrigger:
    """Decides when to look for changes and whether they call for a plan.

    It compares the present with what the last applied plan was made for, so that no event can be lost. Curves and
    weights that change by themselves lead to a plan at most every `replan_seconds`. A plan that was refused is made
    again after a pause that doubles.

    A deadline leads to a plan when it passes, and before that each time half of the time is over that was left at the
    last plan, at most every `replan_seconds`: the speed that a job needs for it has at most doubled meanwhile.

    Attributes:
        replan_seconds: Least seconds between plans for changed curves or weights alone, or for deadlines that have come
            nearer; 0: there are none.
        fleet_replan_seconds: Seconds after a plan at which fleets are divided by remaining work again; 0: never.
    """

    replan_seconds: float
    fleet_replan_seconds: float = 0.0
    _planned: Signature = Signature()
    _newest: tuple[PlanInput, Signature] | None = field(default=None, metadata=DERIVED)
    _curves_changed: bool = False
    _weights_changed: bool = False
    _values_before: tuple[bool, bool] = (False, False)
    _left: frozenset[str] = frozenset()
    _left_before: frozenset[str] = frozenset()
    _last_plan_at: float = -inf
    _backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS))

    def note_curves(self) -> None:
        """Curves have changed."""
        self._curves_changed = True

    def note_weights(self) -> None:
        """A job has another weight of its own."""
        self._weights_changed = True

    def note_left(self, nodes: Iterable[str]) -> None:
        """Nodes have left.

        One that is back before the next check looks unchanged, yet JobManager has taken it from its job: it lies idle
        until a plan follows.
        """
        self._left |= frozenset(nodes)

    @property
    def left_nodes(self) -> frozenset[str]:
        """Nodes that have left since the last plan that was applied as a whole was begun, or while it was made."""
        return self._left | self._left_before

    def wait_seconds(self, cache: ClusterCache, now: float, monotonic: float) -> float | None:
        """Seconds until something is due without any event; None where nothing is.

        Due are: a refused plan, the end of a job's back-off, the end of a scale pin, a stop that takes long, a deadline
        that passes or has come nearer, curves that have changed, and fleets whose work has been divided long ago.

        Args:
            cache: The present.
            now: Seconds since the epoch.
            monotonic: Seconds of a clock that never goes back.
        """
        if self._backoff.active:
            return self._backoff.seconds
        deadlines = min(cache.open_deadlines(now), default=None), self._next_review(cache, now, monotonic)
        times = (cache.next_eligible(now), cache.next_unpinned(now), cache.next_overdue(now), *deadlines)
        waits = [time - now for time in times if time is not None]
        if (self._curves_changed or self._weights_changed) and self.replan_seconds:
            waits.append(self._last_plan_at + self.replan_seconds - monotonic)
        if self._divides_again(cache, now):
            waits.append(self._last_plan_at + self.fleet_replan_seconds - monotonic)
        return max(0.0, min(waits)) if waits else None

    def reason(self, cache: ClusterCache, now: float, monotonic: float) -> str:
        """Why a plan is due now, for people; empty where none is. Arguments as for `wait_seconds`."""
        reason = self._reason(cache, now, monotonic)
        if not reason:
            # The present is again what was planned for: nothing that was refused is still to be done.
            self._backoff.succeed()
        return reason

    def _reason(self, cache: ClusterCache, now: float, monotonic: float) -> str:
        # Of some nodes or jobs only, a plan would take the others' nodes away.
        if not cache.complete:
            return ""
        plan_input = cache.plan_input(now)
        present = self._signature(plan_input)
        returned = _part("nodes came back", self._left & self._planned.nodes & present.nodes)
        if change := "; ".join(part for part in (describe_change(self._planned, present), returned) if part):
            return change
        every = self.replan_seconds
        if (values := self._changed_values()) and every and monotonic >= self._last_plan_at + every:
            return f"{values} changed" if plan_input.planned_jobs else ""
        if self._divides_again(cache, now) and monotonic >= self._last_plan_at + self.fleet_replan_seconds:
            return "remaining work of fleets"
        review = self._next_review(cache, now, monotonic)
        return "deadlines are nearer" if review is not None and review <= now else ""

    def _next_review(self, cache: ClusterCache, now: float, monotonic: float) -> float | None:
        """When a deadline that is to come calls for a plan, in seconds since the epoch; None: none does before it."""
        if not self.replan_seconds or self._last_plan_at == -inf or not cache.complete:
            return None
        planned = now - (monotonic - self._last_plan_at)
        reviews = (
            (planned + max(self.replan_seconds, (time - planned) / 2), time) for time in cache.open_deadlines(now)
        )
        return min((review for review, time in reviews if review < time), default=None)

    def _changed_values(self) -> str:
        changed = {"curves": self._curves_changed, "weights": self._weights_changed}
        return " and ".join(name for name, has_changed in changed.items() if has_changed)

    def _divides_again(self, cache: ClusterCache, now: float) -> bool:
        return bool(self.fleet_replan_seconds) and cache.complete and cache.replans_fleets(now)

    def begin(self) -> None:
        """A plan is being made from the present curves and nodes; what changes from now on is for the next."""
        self._values_before = self._curves_changed, self._weights_changed
        self._curves_changed = self._weights_changed = False
        self._left, self._left_before = frozenset(), self._left

    def note_applied(self, plan_input: PlanInput, monotonic: float, *, in_part: bool = False) -> None:
        """JobManager has applied the plan that was made from this input.

        Args:
            plan_input: The input.
            monotonic: Seconds of a clock that never goes back.
            in_part: Whether something was left out, because the world had moved on. Another plan follows after a
                pause, as after a refusal.
        """
        self._last_plan_at = monotonic
        if in_part:
            self.note_refused()
            return
        self._planned = self._signature(plan_input)
        self._values_before, self._left_before = (False, False), frozenset()
        self._backoff.succeed()

    def _signature(self, plan_input: PlanInput) -> Signature:
        """The signature of an input, computed once for the newest one: of ten thousand nodes it takes a millisecond."""
        if self._newest is None or self._newest[0] is not plan_input:
            self._newest = plan_input, Signature.of(plan_input)
        return self._newest[1]

    def note_refused(self) -> None:
        """JobManager has refused the plan, or could not be reached."""
        # A signature has no curves and weights, and a weight is told once: what the plan was for is still to be done.
        curves, weights = self._values_before
        self._curves_changed, self._weights_changed = self._curves_changed or curves, self._weights_changed or weights
        self._values_before = False, False
        self._left, self._left_before = self._left | self._left_before, frozenset()
        self._backoff.fail()


def describe_change(before: Signature, after: Signature) -> str:
    """The difference between two signatures, for people; empty where there is none."""
    parts = (
        _part("nodes joined", after.nodes - before.nodes),
        _part("nodes left", before.nodes - after.nodes),
        _part("jobs arrived", after.jobs - before.jobs),
        _part("jobs ended", before.jobs - after.jobs),
        _part("scale pinned", (_in_words(pin) for pin in after.pins - before.pins)),
        _part("scale no longer pinned", (_in_words(pin) for pin in before.pins - after.pins)),
        _part("deadlines passed", (after.past - before.past) & before.jobs & after.jobs),
        _part("GPUs released", before.busy_gpus - after.busy_gpus),
        _part("rates not measured in time", after.late - before.late),
        _part(
            "other scales permitted",
            {name for name, _ in after.scales ^ before.scales} & before.jobs & after.jobs,
        ),
        _part("rates measured", {job_id for job_id, _ in after.rated - before.rated} & before.jobs),
    )
    return "; ".join(part for part in parts if part)


def _in_words(pin: tuple[str, int]) -> str:
    job_id, nodes = pin
    return f"{job_id} at {nodes}" if nodes else f"{job_id} as it is"


def _part(label: str, names: Iterable[str]) -> str:
    ordered = sorted(names)
    if not ordered:
        return ""
    more = len(ordered) - _MAX_NAMES
    return f"{label}: {', '.join(ordered[:_MAX_NAMES])}" + (f" and {more} more" if more > 0 else "")
