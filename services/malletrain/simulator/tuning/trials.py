"""Which settings are tried, replays of each day with each of them, and their comparison with the present ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from malletrain.allocator.auto_tuning.machine import FORWARD_S, MIN_GAIN
from malletrain.allocator.problem.forward_time import ForwardPolicy
from malletrain.monitor.machine.throughput import student_quantile
from malletrain.simulator.journal.conversion import journal_input
from malletrain.simulator.journal.record import Journal
from malletrain.simulator.replay.evaluation import outcome_of
from malletrain.simulator.replay.fast_engine import Progress, run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.node_events import NodeEvent, node_events
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.records import ReplayResult, work_ended_s
from malletrain.simulator.services.engine import run_services_replay, services_options

PLACES = (5, 10, 15, 20, 30)
COALESCE_S = (0.05, 0.25, 1.0)


@dataclass(frozen=True, slots=True)
class TunedSettings:
    """Settings that tuning may change, with the names and units that they have in the configuration.

    Attributes:
        forward_policy: `allocator.forward_policy`.
        forward_seconds: `allocator.forward_seconds`.
        max_parallel: `job_manager.max_parallel`.
        coalesce_seconds: `allocator.coalesce_seconds`.
    """

    forward_policy: ForwardPolicy
    forward_seconds: float
    max_parallel: int
    coalesce_seconds: float

    def changes(self, present: TunedSettings) -> dict[tuple[str, str], str | float | int]:
        """What differs from the present settings: values by section and name."""
        changes: dict[tuple[str, str], str | float | int] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != getattr(present, field.name):
                section = "job_manager" if field.name == "max_parallel" else "allocator"
                changes[section, field.name] = value.value if isinstance(value, ForwardPolicy) else value
        return changes

    def options(self, options: ReplayOptions) -> ReplayOptions:
        """Options of a replay with these settings. The fast engine does not know `coalesce_seconds`."""
        return replace(
            options,
            forward_policy=self.forward_policy,
            forward_s=self.forward_seconds,
            max_parallel=self.max_parallel,
        )


def settings_grid(present: TunedSettings, jobs: int, max_places: int) -> list[TunedSettings]:
    """The settings to try, the present ones first.

    Args:
        present: The settings in force.
        jobs: Number of jobs: more places than that make no difference.
        max_places: The largest `max_parallel` that is permitted.
    """
    forwards = [(ForwardPolicy.CONSTANT, seconds) for seconds in FORWARD_S]
    forwards += [(policy, present.forward_seconds) for policy in (ForwardPolicy.SURVIVAL, ForwardPolicy.EXPECTED)]
    forwards.append((present.forward_policy, present.forward_seconds))
    enough = next((count for count in PLACES if count >= jobs), PLACES[-1])
    places = [count for count in PLACES if count <= min(enough, max_places)]
    grid = [present]
    for policy, seconds in forwards:
        for count in dict.fromkeys((present.max_parallel, *places)):
            variant = replace(present, forward_policy=policy, forward_seconds=seconds, max_parallel=count)
            if variant not in grid:
                grid.append(variant)
    return grid


def coalescing_grid(best: TunedSettings) -> list[TunedSettings]:
    """The settings with each time of coalescing; those given come first."""
    others = [replace(best, coalesce_seconds=seconds) for seconds in COALESCE_S if seconds != best.coalesce_seconds]
    return [best, *others]


def distance(settings: TunedSettings, present: TunedSettings) -> int:
    """Number of settings that differ."""
    return len(settings.changes(present))


def nearest(candidates: Sequence[TunedSettings], present: TunedSettings) -> TunedSettings:
    """The candidate that differs least from the present settings; of several the first."""
    return min(candidates, key=lambda settings: distance(settings, present))


_TIE = 1e-9
_LEVEL = 0.95
_FEW_DAYS = {1: 12.706, 2: 4.303}
"""Quantiles of Student's t at 97.5 % by degrees of freedom, where its expansion is not close."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Gains of some settings over the present ones, as a share of the samples.

    Attributes:
        by_day: Gain of each day.
        half_width: Half-width of the 95 % interval of the mean over days; None with one day, which tells none.
    """

    by_day: tuple[float, ...]
    mean: float
    half_width: float | None

    @classmethod
    def of(cls, by_day: Sequence[float]) -> Gain:
        """Gains of at least one day (Student's t over days)."""
        days = len(by_day)
        half = None
        if days > 1:
            quantile = _FEW_DAYS.get(days - 1) or student_quantile(0.5 + _LEVEL / 2, days - 1)
            half = quantile * statistics.stdev(by_day) / math.sqrt(days)
        return cls(tuple(by_day), statistics.fmean(by_day), half)

    @property
    def may_be_none(self) -> bool:
        """Whether the interval contains 0."""
        return self.half_width is not None and abs(self.mean) <= self.half_width


@dataclass(frozen=True)
class SettingsComparison:
    """All settings that were tried.

    Attributes:
        present: The settings in force.
        gains: Gain of each of the settings over the present ones.
        best: The settings with the largest mean gain; of equal ones, those that change least.
        held_out: Gain on each day of what was best on all the others; None with one day.
    """

    present: TunedSettings
    gains: Mapping[TunedSettings, Gain]
    best: TunedSettings
    held_out: Gain | None

    @property
    def counting_gain(self) -> Gain:
        """The gain that counts: on held-out days; with one day only, on the day that the settings were chosen on."""
        return self.gains[self.best] if self.held_out is None else self.held_out

    @property
    def recommended(self) -> TunedSettings:
        """The best settings if they gain enough, else the present ones."""
        return self.best if self.counting_gain.mean >= MIN_GAIN else self.present


def compare(present: TunedSettings, samples: Mapping[TunedSettings, Sequence[float]]) -> SettingsComparison:
    """Compare settings.

    Args:
        present: The settings in force, which are among them.
        samples: Samples of each day with each of the settings; the same days, at least one.
    """
    reference = samples[present]
    by_day = {
        settings: [_gain(value, base) for value, base in zip(values, reference, strict=True)]
        for settings, values in samples.items()
    }
    days = range(len(reference))
    held_out = None
    if len(reference) > 1:
        held_out = Gain.of(
            [by_day[_best(by_day, present, [other for other in days if other != day])][day] for day in days]
        )
    gains = {settings: Gain.of(values) for settings, values in by_day.items()}
    return SettingsComparison(present, gains, _best(by_day, present, days), held_out)


def _gain(value: float, base: float) -> float:
    """Relative gain; from nothing to anything counts as 100 %."""
    if base <= 0:
        return 1.0 if value > 0 else 0.0
    return value / base - 1


def _best(
    by_day: Mapping[TunedSettings, Sequence[float]], present: TunedSettings, days: Sequence[int]
) -> TunedSettings:
    means = {settings: statistics.fmean(values[day] for day in days) for settings, values in by_day.items()}
    most = max(means.values())
    return nearest([settings for settings, mean in means.items() if mean >= most - _TIE], present)


DAY_S = 86400.0
_MIN_PART = 0.25
"""A rest of less than this part of a day is left out, where there is a whole day."""


@dataclass(frozen=True)
class TuningDay:
    """A day of a journal, or what there is of one.

    Attributes:
        begin_unix: When it begins, in seconds since the epoch.
        duration_s: Its length in seconds.
        nodes: Nodes that were idle in it.
        events: Changes of the idle set.
        jobs: In the order of submission.
    """

    begin_unix: float
    duration_s: float
    nodes: tuple[str, ...]
    events: tuple[NodeEvent, ...]
    jobs: tuple[ReplayJob, ...]

    def until(self, seconds: float) -> TuningDay:
        """The day until an earlier end, in seconds."""
        events = tuple(event for event in self.events if event.time_s < seconds)
        return replace(self, duration_s=seconds, events=events)


@dataclass(frozen=True, slots=True)
class DayOutcome:
    """What a day's replay gives.

    Attributes:
        samples: In the unit of the metric.
        node_hours: Node-hours that jobs held.
        work_ended_s: When all of the day's jobs were done, in seconds; None: there was work until the end.
    """

    samples: float
    node_hours: float
    work_ended_s: float | None = None

    @classmethod
    def of(cls, result: ReplayResult) -> DayOutcome:
        """The outcome of a replay."""
        node_hours = sum(job.node_seconds for job in result.jobs) / 3600
        return cls(outcome_of(result), node_hours, work_ended_s(result))


def tuning_days(journal: Journal, begin_unix: float, end_unix: float) -> list[TuningDay]:
    """The days of a part of a journal, from its beginning; those without jobs or idle nodes are left out."""
    spans: list[tuple[float, float]] = []
    first = begin_unix
    while first < end_unix:
        last = min(first + DAY_S, end_unix)
        if last - first >= _MIN_PART * DAY_S or not spans:
            spans.append((first, last))
        first = last
    return [day for span in spans if (day := day_of(journal, *span)) is not None]


def day_of(journal: Journal, begin_unix: float, end_unix: float) -> TuningDay | None:
    """A part of a journal; None: it has no jobs or no idle nodes."""
    past, duration_s = journal_input(journal, begin_unix, end_unix), end_unix - begin_unix
    events = tuple(node_events(past.trace, duration_s))
    if not events or not past.jobs:
        return None
    return TuningDay(begin_unix, duration_s, past.trace.nodes, events, past.jobs)


def replay_day(
    day: TuningDay, settings: TunedSettings, options: ReplayOptions, progress: Progress = lambda _: None
) -> DayOutcome:
    """A day with these settings, by the fast engine; `progress` is called after every decision."""
    options = replace(settings.options(options), duration_s=day.duration_s)
    return DayOutcome.of(run_replay(day.events, day.nodes, day.jobs, options, progress))


def replay_day_with_services(day: TuningDay, settings: TunedSettings, options: ReplayOptions) -> DayOutcome:
    """A day with these settings, by the services engine, which knows `coalesce_seconds`."""
    options = replace(settings.options(options), duration_s=day.duration_s)
    services = services_options(options, day.jobs)
    allocator = services.allocator.model_copy(update={"coalesce_seconds": settings.coalesce_seconds})
    services = replace(services, allocator=allocator)
    return DayOutcome.of(run_services_replay(day.events, day.nodes, day.jobs, options, settings=services))


Replay = Callable[[TuningDay, TunedSettings], DayOutcome]


def replay_alike(
    day: TuningDay, grid: Iterable[TunedSettings], replay: Replay, progress: Callable[[], None] = lambda: None
) -> tuple[TuningDay, dict[TunedSettings, DayOutcome]]:
    """A day with each of several settings, for as long as there was work with all of them.

    Whoever is done with all jobs early trains no more than the others in the end, however much faster it was.

    Args:
        grid: The settings.
        replay: Replays a day.
        progress: Called after each of the settings.

    Returns:
        The day until the first of the settings had no work left, and the outcomes until then.
    """
    outcomes = {}
    for settings in grid:
        outcomes[settings] = replay(day, settings)
        progress()
    ended = min(
        (outcome.work_ended_s for outcome in outcomes.values() if outcome.work_ended_s is not None), default=None
    )
    if ended is None:
        return day, outcomes
    shorter = day.until(ended)
    return shorter, {settings: replay(shorter, settings) for settings in outcomes}


@dataclass(frozen=True)
class Trials:
    """A comparison of settings.

    Attributes:
        node_hours: Node-hours that jobs held on each day under the present settings.
        compared_s: How much of each day was compared, in seconds: until the first of the settings had no work left.
    """

    comparison: SettingsComparison
    node_hours: tuple[float, ...]
    compared_s: tuple[float, ...]


def try_settings(
    days: Sequence[TuningDay],
    grid: Sequence[TunedSettings],
    replay: Replay,
    progress: Callable[[], None] = lambda: None,
) -> Trials:
    """Replay every day with each of the settings.

    Args:
        days: At least one day.
        grid: The settings; the first ones are the present ones.
        replay: Replays a day.
        progress: Called once for each day with each of the settings.
    """
    replayed = [replay_alike(day, grid, replay, progress) for day in days]
    samples = {settings: [outcomes[settings].samples for _, outcomes in replayed] for settings in grid}
    return Trials(
        compare(grid[0], samples),
        tuple(outcomes[grid[0]].node_hours for _, outcomes in replayed),
        tuple(day.duration_s for day, _ in replayed),
    )
