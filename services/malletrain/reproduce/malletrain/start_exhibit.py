"""What MalleTrain's profiling costs at the start of jobs and when that pays: profiles always against never."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from malletrain.profiler.machine.options import ProfilingMode
from malletrain.profiler.machine.runs import ProfileRun, ProfileRunState
from malletrain.reproduce.exhibits import Exhibit, rounded
from malletrain.reproduce.malletrain.exhibits import interval
from malletrain.reproduce.malletrain.workloads import Mix
from malletrain.simulator.profiling.advisor import LearningOptions, ProfilingAdvisor
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.metrics import cumulative_samples
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.records import Columns
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import lines

START_SEEDS = 20
HOURS = (0.5, 1.0, 2.0, 4.0)
MODES = (ProfilingMode.ALWAYS, ProfilingMode.NEVER)


@dataclass(frozen=True)
class StartTrial:
    """One replay of the first hours: jobs that nobody knows, profiled or not."""

    mode: ProfilingMode
    mix: Mix
    options: ReplayOptions


@dataclass(frozen=True)
class StartScore:
    """What came of it.

    Attributes:
        samples: Samples processed, net, until each of HOURS that the replay has.
        profiles: Profile runs that were completed.
        seconds: Mean length of these in seconds.
        node_seconds: Node-seconds that a job had in its profile, in the mean.
        stalled: Those of them during which a change of scale was under way.
        growths: Growths of a profile, in the mean.
    """

    samples: tuple[float, ...]
    profiles: int = 0
    seconds: float = 0.0
    node_seconds: float = 0.0
    stalled: float = 0.0
    growths: float = 0.0


def start_score(scenario: Scenario, trial: StartTrial) -> StartScore:
    """Run one trial."""
    learning = LearningOptions(mode=trial.mode)
    advisor = ProfilingAdvisor(learning, trial.options, len(scenario.nodes), np.random.default_rng(trial.mix.seed))
    result = run_replay(scenario.events, scenario.nodes, trial.mix.jobs(), trial.options, advisor=advisor)
    times = [hours * 3600.0 for hours in HOURS if hours * 3600.0 <= scenario.duration_s]
    samples = _samples_until(result.decisions, times)
    runs: list[ProfileRun] = [*advisor.ended, *advisor.state.runs.values()]
    done = [run for run in runs if run.state is ProfileRunState.DONE]
    if not done:
        return StartScore(samples)
    means = (
        statistics.fmean(getattr(run, name) for run in done)
        for name in ("seconds", "node_seconds", "stalled_node_seconds", "growths")
    )
    return StartScore(samples, len(done), *means)


def _samples_until(decisions: Columns, times_s: Sequence[float]) -> tuple[float, ...]:
    """Samples processed until times in seconds; after the last decision, jobs go on at their rates."""
    last_s, rate = float(decisions["time_s"][-1]), float(decisions["rate"][-1])
    settled = cumulative_samples(decisions, times_s).tolist()
    return tuple(known + rate * max(0.0, time - last_s) for known, time in zip(settled, times_s, strict=True))


def start_exhibit(always: Sequence[StartScore], never: Sequence[StartScore]) -> Exhibit:
    """What profiles have cost or gained until some hours after the start.

    Args:
        always: Scores with profiles of every job, by seed.
        never: Those without any, of the same seeds.
    """
    hours = HOURS[: len(always[0].samples)]
    rows = []
    for place, hour in enumerate(hours):
        pairs = zip(always, never, strict=True)
        shares = [one.samples[place] / two.samples[place] - 1.0 for one, two in pairs if two.samples[place] > 0]
        mean, half = interval(shares) if shares else (0.0, 0.0)
        rows.append((hour, 100 * mean, 100 * half, len(shares)))
    ran = [one for one in always if one.profiles]
    costs = ""
    if ran:
        seconds, held, stalled, growths = (
            statistics.fmean(getattr(one, name) for one in ran)
            for name in ("seconds", "node_seconds", "stalled", "growths")
        )
        costs = (
            f" A profile took {seconds:.0f} s in the mean, {held:,.0f} node-seconds, of which {stalled:,.0f} stood "
            f"still, and {growths:.1f} growths."
        )
    return Exhibit(
        "start-cost",
        "What profiling costs at the start: always against never",
        ("hours", "samples until then, always against never, %", "± (95 %)", "seeds"),
        rounded(rows, 3),
        f"{len(always)} workloads of networks that nobody knows (NAS), from an empty machine on, with and without "
        f"profiles; without, curves are learned in ordinary running. The paper has no such figure.{costs}",
        lines(
            "Samples with profiles, against none",
            "hours since the start",
            Axis("%"),
            {"always against never": ([row[0] for row in rows], [row[1] for row in rows])},
        ),
    )
