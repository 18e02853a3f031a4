"""The profiles of all jobs, kept up to date from what peers say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from malletrain.profiler.curve import (
    Cost,
    CurvePoint,
    PairStall,
    Prior,
    estimate,
    pair_stalls,
    prior_rate,
    rescale_cost,
    single_node_rate,
)
from malletrain.profiler.evidence import believable
from malletrain.profiler.families import median_down, median_up, with_family
from malletrain.profiler.fits import best_fit
from malletrain.profiler.kinship import Kinship
from malletrain.profiler.knots import LEAST_RATE, Knot
from malletrain.profiler.modes import Mode
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
        permitted_nodes: Permitted scales; empty: every scale in the bounds.
        weight: Priority weight.
        mode: Whether its curve is measured on purpose; None: as the settings say.
        family: Shares its curve; empty where there is none.
    """

    job_id: str
    min_nodes: int
    max_nodes: int
    curve: tuple[Knot, ...] = ()
    scale_up_seconds: float | None = None
    scale_down_seconds: float | None = None
    permitted_nodes: tuple[int, ...] = ()
    weight: float = 1.0
    mode: Mode | None = None
    family: str = ""


@dataclass(frozen=True, slots=True)
class Measurements:
    """What Monitor has measured of a job: points, median stalls in seconds (None before the first), single rescales."""

    points: tuple[Knot, ...] = ()
    scale_up_seconds: float | None = None
    scale_down_seconds: float | None = None
    rescales: tuple[PairStall, ...] = ()


@dataclass(frozen=True, slots=True)
class JobProfile:
    """What the allocator should believe about a job; `fit` and `family` are empty where there is none."""

    job_id: str
    points: tuple[CurvePoint, ...]
    scale_up: Cost
    scale_down: Cost
    stalls: tuple[PairStall, ...] = ()
    fit: str = ""
    family: str = ""


class ProfileBook:
    """All profiles. A profile changes only when a figure moves by more than noise, or its source does."""

    def __init__(self, settings: ProfilerSettings, kinship: Kinship | None = None) -> None:
        """Know no job yet, but perhaps what families have learned."""
        self._settings = settings
        self._facts: dict[str, JobFacts] = {}
        self._measurements: dict[str, Measurements] = {}
        self._profiles: dict[str, JobProfile] = {}
        self._known_rates: dict[str, float] = {}
        self._dirty: set[str] = set()
        self._prior_rate = settings.prior_rate
        self.kinship = kinship or Kinship(settings.family_members)

    def put_job(self, facts: JobFacts) -> None:
        """Add a job or what was newly declared of it."""
        if self._facts.get(facts.job_id) != facts:
            self._facts[facts.job_id] = facts
            self._dirty.add(facts.job_id)
            self._learn(facts.job_id)

    def remove_job(self, job_id: str) -> None:
        """Forget a job that has ended; its family remembers its points."""
        for holder in (self._facts, self._measurements, self._profiles, self._known_rates):
            holder.pop(job_id, None)
        self.kinship.forget(job_id)
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
            self._learn(job_id)

    def facts(self, job_id: str) -> JobFacts | None:
        """What is declared of a job; None where it is not known."""
        return self._facts.get(job_id)

    def grow_old(self) -> None:
        """Time has passed: every profile is to be looked at again."""
        self._dirty.update(self._facts)

    def refresh(self, now: float = 0.0) -> list[JobProfile]:
        """Recompute what may have changed.

        Args:
            now: Seconds since the epoch: points fade from when they were measured.

        Returns:
            The profiles that did change, in the order of their jobs.
        """
        dirty = self._dirty & set(self._facts)
        self._dirty.clear()
        changed = [job_id for job_id in sorted(dirty) if self._is_known(job_id) and self._update(job_id, now)]
        rate = prior_rate(self._known_rates.values(), self._settings.prior_rate)
        if rate != self._prior_rate:
            self._prior_rate = rate
            dirty = set(self._facts)
        changed += [job_id for job_id in sorted(dirty) if not self._is_known(job_id) and self._update(job_id, now)]
        return [self._profiles[job_id] for job_id in sorted(changed)]

    def profile(self, job_id: str) -> JobProfile | None:
        """The newest profile of a job; None where the job is not known."""
        return self._profiles.get(job_id)

    def profiles(self) -> list[JobProfile]:
        """All profiles, in the order of their jobs."""
        return [self._profiles[job_id] for job_id in sorted(self._profiles)]

    def measured_at(self, job_id: str, nodes: int) -> Knot | None:
        """What has been measured of a job itself at a scale."""
        return next((knot for knot in self._measured(job_id).points if knot.nodes == nodes), None)

    def known(self, job_id: str, now: float) -> list[Knot]:
        """Points measured of a job or its family, with the errors that they have by now, nodes ascending."""
        own = self.kinship.faded(job_id, self._measured(job_id).points, now, self._settings.drift_per_hour)
        own = [knot for knot in own if knot.nodes > 0 and knot.rate >= LEAST_RATE]
        facts = self._facts.get(job_id)
        family = self.kinship.shared(job_id, facts.family) if facts is not None else []
        family = self.kinship.faded("", family, now, self._settings.drift_per_hour)
        together = sorted(with_family(own, family), key=lambda knot: knot.nodes)
        return believable(together, self._settings.most_error)

    def _learn(self, job_id: str) -> None:
        """Pass a job's points on to its family, whose other members then know more."""
        measured, facts = self._measured(job_id), self._facts.get(job_id)
        family = "" if facts is None else facts.family
        if self.kinship.learn(job_id, family, measured.points, measured.rescales, self._settings.contradiction):
            self._dirty.update(name for name, other in self._facts.items() if family and other.family == family)

    def _is_known(self, job_id: str) -> bool:
        facts = self._facts[job_id]
        knots = (*facts.curve, *self._measured(job_id).points, *self.kinship.shared(job_id, facts.family))
        return any(knot.rate >= LEAST_RATE and knot.nodes > 0 for knot in knots)

    def _measured(self, job_id: str) -> Measurements:
        return self._measurements.get(job_id, Measurements())

    def _update(self, job_id: str, now: float) -> bool:
        profile = self._compute(job_id, now)
        if self._is_known(job_id):
            self._known_rates[job_id] = single_node_rate(profile.points)
        before = self._profiles.get(job_id)
        if before is not None and not differs(before, profile, self._settings):
            return False
        self._profiles[job_id] = profile
        return True

    def _compute(self, job_id: str, now: float) -> JobProfile:
        facts, measured, settings = self._facts[job_id], self._measured(job_id), self._settings
        prior = Prior(self._prior_rate, settings.prior_exponent, settings.prior_weight)
        known = self.known(job_id, now)
        fit = None if facts.curve else best_fit([knot for knot in known if knot.nodes <= facts.max_nodes])
        points = estimate(facts.max_nodes, facts.min_nodes, facts.curve, known, prior, fit)
        kin = self.kinship.rescales(job_id, facts.family)
        up = rescale_cost(measured.scale_up_seconds, facts.scale_up_seconds, settings.scale_up_seconds, median_up(kin))
        down = rescale_cost(
            measured.scale_down_seconds, facts.scale_down_seconds, settings.scale_down_seconds, median_down(kin)
        )
        stalls = pair_stalls((*kin, *measured.rescales), up, down, settings.pair_stall_weight)
        family = "" if self.kinship.has_left(job_id) else facts.family
        return JobProfile(job_id, tuple(points), up, down, stalls, fit.name if fit else "", family)


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
    if (before.fit, before.family) != (after.fit, after.family):
        return True
    errors = zip((point.error for point in before.points), (point.error for point in after.points), strict=True)
    if any(abs(new - old) > settings.least_change for old, new in errors):
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
