"""Replays of each day with each of the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from malletrain.simulator.journal.conversion import journal_input
from malletrain.simulator.journal.record import Journal
from malletrain.simulator.replay.baselines import outcome_of
from malletrain.simulator.replay.fast_engine import Progress, run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.node_events import NodeEvent, node_events
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.records import ReplayResult, work_ended_s
from malletrain.simulator.services.engine import run_services_replay, services_options
from malletrain.simulator.tuning.comparison import SettingsComparison, compare
from malletrain.simulator.tuning.settings_grid import TunedSettings

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
        """The same until an earlier end, in seconds."""
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
    found, duration_s = journal_input(journal, begin_unix, end_unix), end_unix - begin_unix
    events = tuple(node_events(found.trace, duration_s))
    if not events or not found.jobs:
        return None
    return TuningDay(begin_unix, duration_s, found.trace.nodes, events, found.jobs)


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
        day: The day.
        grid: The settings.
        replay: Replays a day.
        progress: Called after each of the settings.

    Returns:
        The day until the first of the settings had no work left, and the outcomes until then.
    """
    found = {}
    for settings in grid:
        found[settings] = replay(day, settings)
        progress()
    ended = min((outcome.work_ended_s for outcome in found.values() if outcome.work_ended_s is not None), default=None)
    if ended is None:
        return day, found
    shorter = day.until(ended)
    return shorter, {settings: replay(shorter, settings) for settings in found}


@dataclass(frozen=True)
class Trials:
    """A comparison of settings.

    Attributes:
        comparison: The comparison.
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
    found = [replay_alike(day, grid, replay, progress) for day in days]
    samples = {settings: [outcomes[settings].samples for _, outcomes in found] for settings in grid}
    return Trials(
        compare(grid[0], samples),
        tuple(outcomes[grid[0]].node_hours for _, outcomes in found),
        tuple(day.duration_s for day, _ in found),
    )
