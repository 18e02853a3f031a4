"""What `allocator.auto_tune = "apply"` does in the first Summit week: `python benchmarks/studies/auto_tuning.py`.

The same decisions as in the Allocator, with replays of the hours before: parts of six hours, one step at a time, on
trial. A step is looked at every hour; to save replays, the next one is looked for every six hours only. Then the week
is replayed with T_fwd as it was in force in each hour, and compared with constants. Each starts from a short, the
default and a long T_fwd. Needs the log beside the checkout (or in MALLETRAIN_SHARED).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.studies.horizon_days import SETS, STALLS, Slice, summit_log
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
from malletrain.allocator.machine.change_gaps import ChangeGaps
from malletrain.allocator.problem.forward_time import ForwardPolicy, ForwardTime, start_seconds
from malletrain.allocator.solvers.choice_table import ChoiceTable, ObjectiveParameters
from malletrain.scavenger.machine.stays import LearnedStay
from malletrain.simulator.replay.evaluation import outcome_of, static_outcome
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.node_events import NodeEvent
from malletrain.simulator.replay.options import STAY_HORIZON_S, ReplayOptions
from malletrain.simulator.replay.presets import ArrivalProcess, preset_jobs
from malletrain.simulator.replay.running_job import RunningJob
from malletrain.simulator.tuning.trials import TunedSettings, compare

_HOUR_S = 3600.0
_PART_HOURS = 6
_PARTS = 28
_BOUNDS = TuningBounds(FORWARD_S[0], FORWARD_S[-1])
_STARTS_S = (30.0, 120.0, 960.0)
_REFIT_SHARE = 0.1
"""As in a replay."""


def constant(seconds: float) -> ForwardChoice:
    """A constant T_fwd."""
    return ForwardChoice(ForwardPolicy.CONSTANT, seconds)


class Past:
    """Samples of spans of the week by T_fwd; nothing is replayed twice."""

    def __init__(self, part: Slice, jobs: Sequence[ReplayJob]) -> None:
        """The week of some nodes with some jobs."""
        self._part = part
        self._jobs = jobs
        self._known: dict[tuple[int, int, ForwardChoice], float] = {}

    def samples(self, begin: int, end: int, choice: ForwardChoice) -> float:
        """Samples from one hour to another."""
        key = begin, end, choice
        if key not in self._known:
            seconds = (end - begin) * _HOUR_S
            found = self._part.scenario(begin * _HOUR_S, seconds)
            options = ReplayOptions(duration_s=seconds, forward_s=choice.seconds, forward_policy=choice.policy)
            self._known[key] = outcome_of(run_replay(found.events, found.nodes, self._jobs, options))
        return self._known[key]

    def lived(self, begin: int, in_force: Sequence[ForwardChoice]) -> float:
        """Samples of a span that begins at an hour, with T_fwd as it was in force in each of its hours."""
        seconds = len(in_force) * _HOUR_S
        found = self._part.scenario(begin * _HOUR_S, seconds)
        options = ReplayOptions(duration_s=seconds)
        advisor = ScheduledForward(in_force, found.events, options)
        return outcome_of(run_replay(found.events, found.nodes, self._jobs, options, advisor=advisor))

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
        best = ForwardChoice(found.best.forward_policy, found.best.forward_seconds)
        judged = found.counting_gain
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
        decided = decide(state, asked, past.answer(asked, hour + 1), AutoTune.APPLY, now, _HOUR_S)
        if decided.event in (TuningEvent.STEP, TuningEvent.WENT_BACK):
            back = "back " if decided.event is TuningEvent.WENT_BACK else ""
            steps.append(f"hour {hour + 1}: {back}to {decided.state.in_force}")
        state = decided.state
    return in_force, steps


class ScheduledForward:
    """The production allocator, with T_fwd as it was in force in each hour, whatever it comes from."""

    def __init__(self, in_force: Sequence[ForwardChoice], events: Sequence[NodeEvent], options: ReplayOptions) -> None:
        """Where T_fwd comes from in each hour, and what happens to the nodes."""
        self._in_force = in_force
        self._options = options
        self._events = iter(events)
        self._next = next(self._events, None)
        self._stays = LearnedStay(horizon_seconds=STAY_HORIZON_S, refit_share=_REFIT_SHARE, refit_seconds=math.inf)
        self._idle_since: dict[str, float] = {}
        self._changes = ChangeGaps()
        self._jobs: Sequence[RunningJob] = ()
        self._table = ChoiceTable.of(())

    def next_look_s(self) -> float:
        """Only events lead to decisions."""
        return math.inf

    def counts(self, now_s: float, jobs: Sequence[RunningJob], pool: int) -> Sequence[int]:
        """The optimum."""
        self._learn(now_s)
        self._changes.keep_only({run.job.id for run in jobs}, now_s)
        self._see(jobs, [run.count for run in jobs], now_s)
        if jobs != self._jobs:
            self._jobs = list(jobs)
            self._table = ChoiceTable.of([run.choices for run in jobs])
        parameters = ObjectiveParameters(self._forward_s(now_s, jobs), self._options.cost_model)
        found: list[int] = self._table.choose([run.count for run in jobs], pool, parameters).counts.tolist()
        self._see(jobs, found, now_s)
        return found

    def _forward_s(self, now_s: float, jobs: Sequence[RunningJob]) -> float:
        choice = self._in_force[int(now_s // _HOUR_S)]
        stays: Iterable[float] = ()
        if choice.policy is ForwardPolicy.SURVIVAL:
            self._stays.refit(now_s, self._idle_since.values())
            stays = [self._stays.expected_stay(now_s - since) for since in self._idle_since.values()]
        forward = ForwardTime(choice.seconds, choice.policy)
        return forward.of(stays, self._changes.observed(now_s), [start_seconds(run.job.scale_up_s) for run in jobs])

    def _see(self, jobs: Sequence[RunningJob], counts: Sequence[int], now_s: float) -> None:
        for run, count in zip(jobs, counts, strict=True):
            self._changes.note_scale(run.job.id, count, now_s)

    def _learn(self, now_s: float) -> None:
        while self._next is not None and self._next.time_s <= now_s:
            for node in self._next.left:
                self._stays.learn(self._next.time_s - self._idle_since.pop(node))
            self._idle_since.update(self._next.joined)
            self._next = next(self._events, None)


def report(part: Slice, hours: int, name: str, stall: float) -> None:
    """Print the rows of a job set."""
    jobs = [job.with_costs(stall) for job in preset_jobs(name, arrivals=ArrivalProcess.FIXED)]
    past = Past(part, jobs)
    seconds = hours * _HOUR_S
    equivalent = part.scenario(0.0, seconds).equivalent_nodes
    static = static_outcome(
        preset_jobs(name, arrivals=ArrivalProcess.FIXED), equivalent, ReplayOptions(duration_s=seconds)
    )
    fixed = {one: 100 * past.samples(0, hours, constant(one)) / static for one in FORWARD_S}
    best = max(fixed, key=lambda one: fixed[one])
    for start in _STARTS_S:
        in_force, steps = schedule(past, constant(start), hours)
        cells = (
            f"{SETS[name]} ×{stall:g}",
            f"{start:g} s",
            f"{fixed[start]:.2f}",
            f"{100 * past.lived(0, in_force) / static:.2f}",
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
    print("| jobs | T_fwd at first | U with that | U with auto_tune | U with the best constant | steps |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    nodes, hours = (128, 48) if arguments.quick else (1024, 168)
    part = Slice(summit_log(), 1, nodes)
    for name in arguments.sets[: 1 if arguments.quick else None]:
        for stall in STALLS[1:2] if arguments.quick else STALLS:
            report(part, hours, name, stall)


if __name__ == "__main__":
    main()
