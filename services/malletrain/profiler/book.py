"""The profiles of all jobs, kept up to date from what peers say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from malletrain.profiler.curve import (
    LEAST_RATE,
    Cost,
    CurvePoint,
    Knot,
    PairStall,
    Prior,
    estimate,
    pair_stalls,
    prior_rate,
    rescale_cost,
    single_node_rate,
)
from malletrain.profiler.settings import ProfilerSettings


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a user has declared of a job.

    Attributes:
        job_id: The job.
        min_nodes: Smallest scale.
        max_nodes: Largest scale.
        curve: Declared scaling curve; may be empty.
        scale_up_seconds: Declared stall of a growth; None where absent.
        scale_down_seconds: Declared stall of a shrink; None where absent.
    """

    job_id: str
    min_nodes: int
    max_nodes: int
    curve: tuple[Knot, ...] = ()
    scale_up_seconds: float | None = None
    scale_down_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """What Monitor has measured of a job: points, median stalls in seconds (None before the first), single rescales."""

    points: tuple[Knot, ...] = ()
    scale_up_seconds: float | None = None
    scale_down_seconds: float | None = None
    rescales: tuple[PairStall, ...] = ()


@dataclass(frozen=True, slots=True)
class JobProfile:
    """What the allocator should believe about a job."""

    job_id: str
    points: tuple[CurvePoint, ...]
    scale_up: Cost
    scale_down: Cost
    stalls: tuple[PairStall, ...] = ()


class ProfileBook:
    """All profiles. A profile changes only when a figure moves by more than noise, or its source does."""

    def __init__(self, settings: ProfilerSettings) -> None:
        self._settings = settings
        self._facts: dict[str, JobFacts] = {}
        self._measurements: dict[str, Measurements] = {}
        self._profiles: dict[str, JobProfile] = {}
        self._known_rates: dict[str, float] = {}
        self._dirty: set[str] = set()
        self._prior_rate = settings.prior_rate

    def put_job(self, facts: JobFacts) -> None:
        """Add a job or what was newly declared of it."""
        if self._facts.get(facts.job_id) != facts:
            self._facts[facts.job_id] = facts
            self._dirty.add(facts.job_id)

    def remove_job(self, job_id: str) -> None:
        """Forget a job that has ended."""
        for holder in (self._facts, self._measurements, self._profiles, self._known_rates):
            holder.pop(job_id, None)
        self._dirty.discard(job_id)

    def keep_only(self, job_ids: Iterable[str]) -> None:
        """Forget all other jobs."""
        for job_id in set(self._facts) - set(job_ids):
            self.remove_job(job_id)

    def put_measurements(self, job_id: str, measurements: Measurements) -> None:
        """Note what is measured, perhaps before the job itself is known."""
        if self._measurements.get(job_id) != measurements:
            self._measurements[job_id] = measurements
            self._dirty.add(job_id)

    def refresh(self) -> list[JobProfile]:
        """Recompute what may have changed.

        Returns:
            The profiles that did change, in the order of their jobs.
        """
        dirty = self._dirty & set(self._facts)
        self._dirty.clear()
        changed = [job_id for job_id in sorted(dirty) if self._is_known(job_id) and self._update(job_id)]
        rate = prior_rate(self._known_rates.values(), self._settings.prior_rate)
        if rate != self._prior_rate:
            self._prior_rate = rate
            dirty = set(self._facts)
        changed += [job_id for job_id in sorted(dirty) if not self._is_known(job_id) and self._update(job_id)]
        return [self._profiles[job_id] for job_id in sorted(changed)]

    def profile(self, job_id: str) -> JobProfile | None:
        """The newest profile of a job; None where the job is not known."""
        return self._profiles.get(job_id)

    def profiles(self) -> list[JobProfile]:
        """All profiles, in the order of their jobs."""
        return [self._profiles[job_id] for job_id in sorted(self._profiles)]

    def _is_known(self, job_id: str) -> bool:
        knots = (*self._facts[job_id].curve, *self._measured(job_id).points)
        return any(knot.rate >= LEAST_RATE and knot.nodes > 0 for knot in knots)

    def _measured(self, job_id: str) -> Measurements:
        return self._measurements.get(job_id, Measurements())

    def _update(self, job_id: str) -> bool:
        profile = self._compute(job_id)
        if self._is_known(job_id):
            self._known_rates[job_id] = single_node_rate(profile.points)
        before = self._profiles.get(job_id)
        if before is not None and not differs(before, profile, self._settings):
            return False
        self._profiles[job_id] = profile
        return True

    def _compute(self, job_id: str) -> JobProfile:
        facts, measured, settings = self._facts[job_id], self._measured(job_id), self._settings
        prior = Prior(self._prior_rate, settings.prior_exponent, settings.prior_weight)
        points = estimate(facts.max_nodes, facts.min_nodes, facts.curve, measured.points, prior)
        up = rescale_cost(measured.scale_up_seconds, facts.scale_up_seconds, settings.scale_up_seconds)
        down = rescale_cost(measured.scale_down_seconds, facts.scale_down_seconds, settings.scale_down_seconds)
        stalls = pair_stalls(measured.rescales, up, down, settings.pair_stall_weight)
        return JobProfile(job_id, tuple(points), up, down, stalls)


def differs(before: JobProfile, after: JobProfile, settings: ProfilerSettings) -> bool:
    """Whether a profile has changed by more than noise.

    Args:
        before: The profile that others know.
        after: The profile as it would be now.
        settings: From which change on a rate or a stall is no noise.
    """
    if [(point.nodes, point.source) for point in before.points] != [
        (point.nodes, point.source) for point in after.points
    ]:
        return True
    rates = zip((point.rate for point in before.points), (point.rate for point in after.points), strict=True)
    if any(abs(new - old) > settings.least_change * max(old, new) for old, new in rates):
        return True
    if [(stall.from_nodes, stall.to_nodes) for stall in before.stalls] != [
        (stall.from_nodes, stall.to_nodes) for stall in after.stalls
    ]:
        return True
    pairs = zip(before.stalls, after.stalls, strict=True)
    if any(_moved(old.seconds, new.seconds, settings) for old, new in pairs):
        return True
    costs = ((before.scale_up, after.scale_up), (before.scale_down, after.scale_down))
    return any(old.source != new.source or _moved(old.seconds, new.seconds, settings) for old, new in costs)


def _moved(old: float, new: float, settings: ProfilerSettings) -> bool:
    return abs(new - old) > max(settings.least_stall_change_seconds, settings.least_change * max(old, new))
