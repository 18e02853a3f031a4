"""What `allocator.auto_tune = "apply"` does in the first Summit week: `python benchmarks/auto_tuning.py [--quick]`.

The same decisions as in the Allocator, with replays of the hours before: parts of six hours, one step at a time, on
trial. A step is looked at every hour; to save replays, the next one is looked for every six hours only. Then the week
is replayed with T_fwd as it was in force in each hour, and compared with constants. Steps go between constants only;
each starts from a short, the default and a long T_fwd. Needs the log beside the checkout (or in MALLETRAIN_SHARED).
"""

from __future__ import annotations

import argparse
import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.horizon import SETS, STALLS, summit_log
from malletrain.allocator.auto_tuning.machine import (
    FORWARD_S,
    AutoTune,
    ForwardChoice,
    ReplayedGain,
    TuningAnswer,
    TuningBounds,
    TuningEvent,
    TuningQuestion,
    TuningState,
    decide,
    question,
)
from malletrain.allocator.choice_table import ChoiceTable, ObjectiveParameters
from malletrain.allocator.forward_time import ForwardPolicy
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.simulator.replay.baselines import outcome_of, static_outcome
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import preset_jobs
from malletrain.simulator.replay.running_job import RunningJob
from malletrain.simulator.tuning.comparison import compare
from malletrain.simulator.tuning.settings_grid import TunedSettings

_HOUR_S = 3600.0
_PART_HOURS = 6
_PARTS = 28
_BOUNDS = TuningBounds(FORWARD_S[0], FORWARD_S[-1])
_STARTS_S = (30.0, 120.0, 960.0)


def constant(seconds: float) -> ForwardChoice:
    """A constant T_fwd."""
    return ForwardChoice(ForwardPolicy.CONSTANT, seconds)


class Past:
    """Samples of spans of the week with a constant T_fwd; nothing is replayed twice."""

    def __init__(self, trace: Trace, nodes: int, jobs: Sequence[ReplayJob]) -> None:
        """The week of some nodes with some jobs."""
        self._trace = trace
        self._nodes = nodes
        self._jobs = jobs
        self._known: dict[tuple[int, int, ForwardChoice], float] = {}

    def samples(self, begin: int, end: int, choice: ForwardChoice) -> float:
        """Samples from one hour to another."""
        key = begin, end, choice
        if key not in self._known:
            seconds = (end - begin) * _HOUR_S
            found = Scenario.of(window(self._trace, begin * _HOUR_S, seconds, self._nodes), seconds)
            options = ReplayOptions(duration_s=seconds, forward_s=choice.seconds)
            self._known[key] = outcome_of(run_replay(found.events, found.nodes, self._jobs, options))
        return self._known[key]

    def answer(self, asked: TuningQuestion, hour: int) -> TuningAnswer:
        """What the Allocator's replays would answer."""
        if asked.before is not None:
            begin = round(asked.since_unix / _HOUR_S)
            now, then = (self.samples(begin, hour, choice) for choice in (asked.in_force, asked.before))
            gain = then / now - 1 if now else float(then > 0)
            return TuningAnswer(back=ReplayedGain(asked.before, gain, None, hour - begin))
        spans = [(end - _PART_HOURS, end) for end in range(hour, _PART_HOURS - 1, -_PART_HOURS)][:_PARTS]
        if len(spans) < 2:
            return TuningAnswer(note="too little of the past")
        settings = {choice: _settings(choice) for choice in (asked.in_force, *asked.candidates)}
        found = compare(
            settings[asked.in_force],
            {one: [self.samples(*span, choice) for span in spans] for choice, one in settings.items()},
        )
        if found.best == settings[asked.in_force]:
            return TuningAnswer()
        best, judged = constant(found.best.forward_seconds), found.judged
        return TuningAnswer(ReplayedGain(best, judged.mean, judged.half_width, len(spans) * _PART_HOURS))


def _settings(choice: ForwardChoice) -> TunedSettings:
    return TunedSettings(choice.policy, choice.seconds, 10, 0.05)


def schedule(past: Past, start: ForwardChoice, hours: int) -> tuple[list[ForwardChoice], list[str]]:
    """What is in force in each hour, and the steps."""
    state = TuningState(start, start)
    in_force, steps = [], []
    for hour in range(hours):
        in_force.append(state.in_force)
        now = (hour + 1) * _HOUR_S
        if state.trial is None and (hour + 1) % _PART_HOURS:
            continue
        asked = question(state, _BOUNDS, now)
        asked = replace(
            asked, candidates=tuple(one for one in asked.candidates if one.policy is ForwardPolicy.CONSTANT)
        )
        decided = decide(state, asked, past.answer(asked, hour + 1), AutoTune.APPLY, now, _HOUR_S)
        if decided.event in (TuningEvent.STEP, TuningEvent.WENT_BACK):
            back = "back " if decided.event is TuningEvent.WENT_BACK else ""
            steps.append(f"hour {hour + 1}: {back}to {decided.state.in_force}")
        state = decided.state
    return in_force, steps


class ScheduledForward:
    """The production allocator, with T_fwd as it was in force in each hour."""

    def __init__(self, in_force: Sequence[ForwardChoice], options: ReplayOptions) -> None:
        """T_fwd of each hour."""
        self._in_force = in_force
        self._begins = [hour * _HOUR_S for hour in range(len(in_force))]
        self._options = options
        self._jobs: Sequence[RunningJob] = ()
        self._table = ChoiceTable.of(())

    def next_look_s(self) -> float:
        """Only events lead to decisions."""
        return math.inf

    def counts(self, now_s: float, jobs: Sequence[RunningJob], pool: int) -> Sequence[int]:
        """The optimum."""
        if jobs != self._jobs:
            self._jobs = list(jobs)
            self._table = ChoiceTable.of([run.choices for run in jobs])
        forward = self._in_force[bisect_right(self._begins, now_s) - 1].seconds
        parameters = ObjectiveParameters(forward, self._options.cost_model)
        found: list[int] = self._table.choose([run.count for run in jobs], pool, parameters).counts.tolist()
        return found


def report(trace: Trace, nodes: int, hours: int, name: str, stall: float) -> None:
    """Print the rows of a job set."""
    jobs = [job.with_costs(stall) for job in preset_jobs(name)]
    past = Past(trace, nodes, jobs)
    seconds = hours * _HOUR_S
    week = Scenario.of(window(trace, 0.0, seconds, nodes), seconds)
    options = ReplayOptions(duration_s=seconds)
    static = static_outcome(preset_jobs(name), week.equivalent_nodes, options)
    fixed = {one: 100 * past.samples(0, hours, constant(one)) / static for one in FORWARD_S}
    best = max(fixed, key=lambda one: fixed[one])
    for start in _STARTS_S:
        in_force, steps = schedule(past, constant(start), hours)
        advisor = ScheduledForward(in_force, options)
        lived = outcome_of(run_replay(week.events, week.nodes, jobs, options, advisor=advisor))
        cells = (
            f"{SETS[name]} ×{stall:g}",
            f"{start:g} s",
            f"{fixed[start]:.2f}",
            f"{100 * lived / static:.2f}",
            f"{fixed[best]:.2f} ({best:g} s)",
            "; ".join(steps) or "none",
        )
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two days, 128 nodes, one job set")
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    arguments = parser.parse_args()
    trace = summit_log()
    print("| jobs | T_fwd at first | U with that | U with auto_tune | U with the best constant | steps |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    nodes, hours = (128, 48) if arguments.quick else (1024, 168)
    for name in arguments.sets[: 1 if arguments.quick else None]:
        for stall in STALLS[1:2] if arguments.quick else STALLS:
            report(trace, nodes, hours, name, stall)


if __name__ == "__main__":
    main()
