"""The scaling curves and rescale costs of all jobs, kept up to date as jobs are declared and measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from malletrain.model.goodput import GradientNoise
from malletrain.model.job_terms import JobTerms
from malletrain.model.scaling import MIN_RATE, RescaleStall
from malletrain.profiler.machine.curve import Prior, estimate, prior_rate, single_node_rate
from malletrain.profiler.machine.family_store import FamilyStore, filled_from_family, shared_points
from malletrain.profiler.machine.fits import best_fit
from malletrain.profiler.machine.options import ProfilerOptions, ProfilingMode
from malletrain.profiler.machine.points import CurvePoint, CurveSource, PointHistory, trusted_points


@dataclass(frozen=True, slots=True)
class RescaleCost:
    """The stall of a growth or of a shrink in seconds, and where the figure comes from."""

    seconds: float
    source: CurveSource


MIN_STALL_SECONDS = 0.05
"""No measured rescale counts as shorter. One that hid between two steps would make all further ones free: then the last
digits of the rates decide between plans, and hundreds of jobs lose their nodes to others for nothing."""


def rescale_cost(
    measured: float | None,
    declared: float | None,
    default: float,
    family: float | None = None,
    checkpoint: float = 0.0,
) -> RescaleCost:
    """The best known stall in seconds: measured, else of the family, else declared, else the default.

    Args:
        measured: What rescales of the job have taken; None: there was none.
        declared: What its user expects; None: nothing.
        default: What is assumed where nothing is known.
        family: What rescales of others of its family have taken; None: there was none.
        checkpoint: What saving its state and reading it again takes: nobody's expectation is below it. 0: not known.
    """
    if measured is not None:
        return RescaleCost(max(MIN_STALL_SECONDS, measured), CurveSource.MEASURED)
    if family is not None:
        return RescaleCost(max(MIN_STALL_SECONDS, family), CurveSource.FAMILY)
    expected = (
        RescaleCost(declared, CurveSource.DECLARED) if declared is not None else RescaleCost(default, CurveSource.PRIOR)
    )
    return RescaleCost(checkpoint, CurveSource.CHECKPOINT) if checkpoint > expected.seconds else expected


def median_growth_stall(rescales: Sequence[RescaleStall]) -> float | None:
    """Median stall of the growths in seconds; None where there was none."""
    stalls = [entry.seconds for entry in rescales if entry.to_nodes > entry.from_nodes]
    return statistics.median(stalls) if stalls else None


def median_shrink_stall(rescales: Sequence[RescaleStall]) -> float | None:
    """Median stall of the shrinks in seconds; None where there was none."""
    stalls = [entry.seconds for entry in rescales if entry.to_nodes < entry.from_nodes]
    return statistics.median(stalls) if stalls else None


def stalls_by_pair(
    measured: Iterable[RescaleStall], up: RescaleCost, down: RescaleCost, weight: float
) -> tuple[RescaleStall, ...]:
    """Expected stall of each pair of scales: a weighted mean of what was measured there and of R_up or R_down.

    Args:
        measured: One entry per measured rescale.
        up: R_up, the stall of growths in general.
        down: R_down, the stall of shrinks in general.
        weight: Number of measurements that the general figure counts as, above 0.

    Returns:
        One entry per measured pair, ascending by scales.
    """
    by_pair: dict[tuple[int, int], list[float]] = {}
    for entry in measured:
        by_pair.setdefault((entry.from_nodes, entry.to_nodes), []).append(entry.seconds)
    expected_stalls = []
    for (before, after), stalls in sorted(by_pair.items()):
        general = up if after > before else down
        expected = (sum(stalls) + weight * general.seconds) / (len(stalls) + weight)
        expected_stalls.append(RescaleStall(before, after, max(MIN_STALL_SECONDS, expected)))
    return tuple(expected_stalls)


@dataclass(frozen=True, kw_only=True)
class JobDeclaration(JobTerms):
    """What a user has declared of a job.

    Attributes:
        job_id: The job.
        curve: Declared scaling curve; may be empty.
        scale_up_seconds: Declared stall of a growth; None where absent.
        scale_down_seconds: Declared stall of a shrink; None where absent.
        mode: When its curve is profiled; None: as the settings say.
        family: Family that shares its curve; empty where there is none.
        fleet_id: Fleet that it is a member of; empty: none. Its scales are GPUs then.
        needs_certain_nodes: Whether not all nodes suit it. It is not measured on purpose: how many nodes of its pool it
            could have is not known here, and others would give up nodes in vain.
    """

    job_id: str
    curve: tuple[CurvePoint, ...] = ()
    scale_up_seconds: float | None = None
    scale_down_seconds: float | None = None
    mode: ProfilingMode | None = None
    family: str = ""
    fleet_id: str = ""
    needs_certain_nodes: bool = False


@dataclass(frozen=True, slots=True)
class JobMeasurements:
    """What Monitor has measured of a job.

    Attributes:
        points: One point per scale.
        scale_up_seconds: Median stall of its growths; None before the first.
        scale_down_seconds: Median stall of its shrinks; None before the first.
        rescales: Its single rescales, oldest first.
        checkpoint_seconds: What saving its state and reading it again takes at a rescale; 0: not known, or it does not.
        noise: What it tells of its gradients; None: nothing.
    """

    points: tuple[CurvePoint, ...] = ()
    scale_up_seconds: float | None = None
    scale_down_seconds: float | None = None
    rescales: tuple[RescaleStall, ...] = ()
    checkpoint_seconds: float = 0.0
    noise: GradientNoise | None = None


@dataclass(frozen=True, slots=True)
class JobProfile:
    """Curve and rescale costs of a job, as the allocator should use them.

    Attributes:
        job_id: The job.
        points: The curve, nodes ascending.
        scale_up: R_up.
        scale_down: R_down.
        stalls: Expected stall of each pair of scales that was measured.
        fit: Name of the fitted shape; empty where none was fitted.
        family: Family that shares the curve; empty where there is none or the job has left it.
        fit_line: The fitted shape up to the largest measured scale: nodes and samples/s.
        noise: What the training tells of its gradients; None: nothing. It is not shared with a family.
    """

    job_id: str
    points: tuple[CurvePoint, ...]
    scale_up: RescaleCost
    scale_down: RescaleCost
    stalls: tuple[RescaleStall, ...] = ()
    fit: str = ""
    family: str = ""
    fit_line: tuple[tuple[int, float], ...] = ()
    noise: GradientNoise | None = None


_MAX_ENDED = 500
"""Ended jobs whose last curves are kept."""


@dataclass
class CurveEstimator:
    """Profiles of all jobs. A profile is replaced only when a figure moves by more than noise or its source changes.

    Attributes:
        options: The operator's choices.
        families: What families share.
        histories: How the points of each job have changed.
    """

    options: ProfilerOptions
    families: FamilyStore
    histories: dict[str, PointHistory] = field(default_factory=dict)
    _declared: dict[str, JobDeclaration] = field(init=False, default_factory=dict)
    _measured: dict[str, JobMeasurements] = field(init=False, default_factory=dict)
    _learned: dict[str, JobMeasurements] = field(init=False, default_factory=dict)
    _profiles: dict[str, JobProfile] = field(init=False, default_factory=dict)
    _ended: dict[str, JobProfile] = field(init=False, default_factory=dict)
    _known_rates: dict[str, float] = field(init=False, default_factory=dict)
    _outdated: set[str] = field(init=False, default_factory=set)
    _prior_rates: dict[str, float] = field(init=False, default_factory=dict)
    _aged_at: float = field(init=False, default=0.0)

    @classmethod
    def of(cls, options: ProfilerOptions) -> CurveEstimator:
        """One that knows no family and no history."""
        return cls(options, FamilyStore(options.family_members))

    def put_job(self, declaration: JobDeclaration) -> None:
        """Add a job, or replace what is declared of it."""
        job_id = declaration.job_id
        if self._declared.get(job_id) != declaration:
            self._declared[job_id] = declaration
            self._learn(job_id)

    def put_measurements(self, job_id: str, measurements: JobMeasurements) -> None:
        """Replace what is measured of a job, which need not be known yet."""
        self._measured[job_id] = measurements
        learned = self._learned.get(job_id)
        if learned is None or has_moved(learned, measurements, self.options.least_change):
            self._learned[job_id] = measurements
            self._learn(job_id)

    def remove_job(self, job_id: str) -> None:
        """Forget a job that has ended. Its points stay with its family, and its last curve for those who look back."""
        if job_id in self._profiles:
            self._ended[job_id] = self._profiles[job_id]
            if len(self._ended) > _MAX_ENDED:
                del self._ended[next(iter(self._ended))]
        for by_job in (
            self._declared,
            self._measured,
            self._learned,
            self._profiles,
            self._known_rates,
            self.histories,
        ):
            by_job.pop(job_id, None)
        self.families.left.discard(job_id)
        self._outdated.discard(job_id)

    def keep_only(self, job_ids: Iterable[str]) -> None:
        """Forget all other jobs."""
        for job_id in set(self._declared) - set(job_ids):
            self.remove_job(job_id)

    def refresh(self, now: float = 0.0) -> list[JobProfile]:
        """Recompute the profiles that may have changed.

        Args:
            now: Seconds since the epoch. Points age; every `fade_seconds` all profiles are recomputed.

        Returns:
            The profiles that did change.
        """
        if now - self._aged_at >= self.options.fade_seconds:
            self._aged_at = now
            self._outdated.update(self._declared)
        outdated = self._outdated & set(self._declared)
        self._outdated.clear()
        changed = [job_id for job_id in sorted(outdated) if self._is_known(job_id) and self._update(job_id, now)]
        outdated |= self._refresh_priors()
        changed += [job_id for job_id in sorted(outdated) if not self._is_known(job_id) and self._update(job_id, now)]
        return [self._profiles[job_id] for job_id in sorted(changed)]

    def _refresh_priors(self) -> set[str]:
        """Bring the priors up to date; returns the jobs of which they have changed.

        A job on nodes says nothing of a member on GPUs, so each fleet has a prior of its own.
        """
        groups: dict[str, list[float]] = {declared.fleet_id: [] for declared in self._declared.values()}
        for job_id, rate in self._known_rates.items():
            groups[self._declared[job_id].fleet_id].append(rate)
        rates = {fleet_id: prior_rate(known, self.options.prior_rate) for fleet_id, known in groups.items()}
        before, self._prior_rates = self._prior_rates, rates
        default = self.options.prior_rate
        changed = {fleet_id for fleet_id, rate in rates.items() if rate != before.get(fleet_id, default)}
        return {job_id for job_id, declared in self._declared.items() if declared.fleet_id in changed}

    def declaration(self, job_id: str) -> JobDeclaration | None:
        """What is declared of a job; None where it is not known."""
        return self._declared.get(job_id)

    def profile(self, job_id: str) -> JobProfile | None:
        """The newest profile of a job; None where it is not known."""
        return self._profiles.get(job_id)

    def last_profile(self, job_id: str) -> JobProfile | None:
        """The profile of a job, or the last one of a job that has ended since the Profiler started; None: neither."""
        return self._profiles.get(job_id) or self._ended.get(job_id)

    def profiles(self) -> list[JobProfile]:
        """All profiles, ascending by job."""
        return [self._profiles[job_id] for job_id in sorted(self._profiles)]

    def measurements(self, job_id: str) -> JobMeasurements:
        """What is measured of a job; nothing where that is not known."""
        return self._measured.get(job_id, JobMeasurements())

    def measured_at(self, job_id: str, nodes: int) -> CurvePoint | None:
        """The point that was measured of the job itself at a scale."""
        return next((point for point in self.measurements(job_id).points if point.nodes == nodes), None)

    def known_points(self, job_id: str, now: float) -> list[CurvePoint]:
        """Points measured of a job or its family, with the errors that they have by now, nodes ascending."""
        history = self.histories.get(job_id, PointHistory())
        own = history.aged(self.measurements(job_id).points, now, self.options.drift_per_hour)
        own = [point for point in own if point.nodes > 0 and point.rate >= MIN_RATE]
        family = PointHistory().aged(self._family_points(job_id), now, self.options.drift_per_hour)
        return trusted_points(filled_from_family(own, family), self.options.most_error)

    def _learn(self, job_id: str) -> None:
        """Bring the job's history and its family up to date."""
        self._outdated.add(job_id)
        measured, declared = self.measurements(job_id), self._declared.get(job_id)
        history = self.histories.get(job_id, PointHistory())
        self.histories[job_id] = history.after(measured.points, self.options.contradiction)
        if declared is not None and self.families.update(job_id, declared.family, measured.points, measured.rescales):
            self._outdated |= {name for name, other in self._declared.items() if other.family == declared.family}

    def _is_known(self, job_id: str) -> bool:
        points = (
            *self._declared[job_id].curve,
            *self.measurements(job_id).points,
            *self._family_points(job_id),
        )
        return any(point.rate >= MIN_RATE and point.nodes > 0 for point in points)

    def _family_points(self, job_id: str) -> list[CurvePoint]:
        declared = self._declared.get(job_id)
        return [] if declared is None else shared_points(self.families.others(job_id, declared.family))

    def _update(self, job_id: str, now: float) -> bool:
        profile = self._compute(job_id, now)
        if self._is_known(job_id):
            self._known_rates[job_id] = single_node_rate(profile.points)
        before = self._profiles.get(job_id)
        if before is not None and not differs(before, profile, self.options):
            return False
        self._profiles[job_id] = profile
        return True

    def _compute(self, job_id: str, now: float) -> JobProfile:
        declared, measured, options = self._declared[job_id], self.measurements(job_id), self.options
        prior_of = self._prior_rates.get(declared.fleet_id, options.prior_rate)
        prior = Prior(prior_of, options.prior_exponent, options.prior_weight)
        known = self.known_points(job_id, now)
        fitted = [] if declared.curve else [point for point in known if point.nodes <= declared.max_nodes]
        fit = best_fit(fitted)
        points = estimate(declared.max_nodes, declared.min_nodes, declared.curve, known, prior, fit)
        members = self.families.others(job_id, declared.family)
        shared = [rescale for member in members for rescale in member.rescales]
        up = rescale_cost(
            measured.scale_up_seconds,
            declared.scale_up_seconds,
            options.scale_up_seconds,
            median_growth_stall(shared),
            measured.checkpoint_seconds,
        )
        down = rescale_cost(
            measured.scale_down_seconds,
            declared.scale_down_seconds,
            options.scale_down_seconds,
            median_shrink_stall(shared),
            measured.checkpoint_seconds,
        )
        stalls = stalls_by_pair((*shared, *measured.rescales), up, down, options.pair_stall_weight)
        family = "" if job_id in self.families.left else declared.family
        line = fit.line(min(declared.min_nodes, fitted[-1].nodes), fitted[-1].nodes) if fit else ()
        fit_name = fit.name if fit else ""
        return JobProfile(job_id, tuple(points), up, down, stalls, fit_name, family, line, measured.noise)


def has_moved(before: JobMeasurements, after: JobMeasurements, least_change: float) -> bool:
    """Whether measurements have changed so much that the curve may.

    A job that trains has new measurements every second. A small part of the change of which watchers are told
    may be left out: such changes add up, and are noticed then.

    Args:
        before: The measurements that the curve rests on.
        after: The newest ones.
        least_change: Relative change of which watchers are told.
    """
    if [point.nodes for point in before.points] != [point.nodes for point in after.points]:
        return True
    if (before.scale_up_seconds, before.scale_down_seconds, before.rescales) != (
        after.scale_up_seconds,
        after.scale_down_seconds,
        after.rescales,
    ):
        return True
    step = least_change / 16
    if abs(after.checkpoint_seconds - before.checkpoint_seconds) > step * after.checkpoint_seconds:
        return True
    if _noise_moved(before.noise, after.noise, step):
        return True
    return any(
        abs(new.rate - old.rate) > step * max(old.rate, new.rate) or abs(new.relative_error - old.relative_error) > step
        for old, new in zip(before.points, after.points, strict=True)
    )


def differs(before: JobProfile, after: JobProfile, options: ProfilerOptions) -> bool:
    """Whether a profile has changed by more than noise.

    Args:
        before: The profile that watchers have.
        after: The profile computed now.
        options: Thresholds for rates and stalls.
    """
    if _without_figures(before) != _without_figures(after):
        return True
    if any(_curve_moved(old, new, options) for old, new in zip(before.points, after.points, strict=True)):
        return True
    if _noise_moved(before.noise, after.noise, options.least_change):
        return True
    stalls = [
        (before.scale_up.seconds, after.scale_up.seconds),
        (before.scale_down.seconds, after.scale_down.seconds),
        *((old.seconds, new.seconds) for old, new in zip(before.stalls, after.stalls, strict=True)),
    ]
    return any(_stall_moved(old, new, options) for old, new in stalls)


def _without_figures(profile: JobProfile) -> tuple[object, ...]:
    """The part of a profile of which every change counts."""
    return (
        [(point.nodes, point.source) for point in profile.points],
        [(stall.from_nodes, stall.to_nodes) for stall in profile.stalls],
        (profile.scale_up.source, profile.scale_down.source, profile.fit, profile.family),
    )


def _noise_moved(old: GradientNoise | None, new: GradientNoise | None, least_change: float) -> bool:
    if old is None or new is None or old.batch_per_node != new.batch_per_node:
        return old != new
    return abs(new.noise_scale - old.noise_scale) > least_change * max(old.noise_scale, new.noise_scale)


def _curve_moved(old: CurvePoint, new: CurvePoint, options: ProfilerOptions) -> bool:
    rate_moved = abs(new.rate - old.rate) > options.least_change * max(old.rate, new.rate)
    return rate_moved or abs(new.relative_error - old.relative_error) > options.least_change


def _stall_moved(old: float, new: float, options: ProfilerOptions) -> bool:
    return abs(new - old) > max(options.least_stall_change_seconds, options.least_change * max(old, new))
