"""Settings tuned day by day on the first Summit week: `python benchmarks/studies/horizon_by_day.py`.

Each day from the second is judged with what was best on the days before it; so no day is tuned on that judges. The
tables of docs/horizon.md: U by T_fwd, T_fwd by the stall of a job, and T_fwd with places. Replays that were made are
kept in --cache, so that a run that was interrupted goes on. Needs the log beside the checkout (or in
MALLETRAIN_SHARED).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.studies.horizon_days import CONSTANTS, DAY_S, SETS, STALLS, Slice, summit_log
from malletrain.allocator.problem.forward_time import ForwardPolicy
from malletrain.allocator.problem.objective import ScaleRates
from malletrain.allocator.solvers.choice_table import ChoiceTable, ObjectiveParameters
from malletrain.simulator.replay.evaluation import Scenario, free_options, outcome_of, static_outcome
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import ArrivalProcess, preset_jobs
from malletrain.simulator.replay.running_job import RunningJob
from malletrain.simulator.tuning.trials import PLACES, Gain, TunedSettings, compare

T = TypeVar("T")

_SAVED = 20
DAYS = 7
MIXED = "mixed"
"""A third of the jobs each has stalls a quarter as long as published, as published, and four times as long."""
FAMILY_S = ((30.0, 120.0, 480.0), (30.0, 120.0, 480.0), (120.0, 480.0))
"""T_fwd that each family of jobs may have: those with a stall of 4.5, 18 and 72 s. None starts with less than that."""
FORWARDS = [f"constant {seconds} s" for seconds in CONSTANTS] + ["survival", "expected"]
_WITH_PLACES = [f"constant {seconds} s" for seconds in (60, 120, 240, 480)] + ["expected"]
_BOUND = "zero-cost bound"
_TUNED = "tuned day by day"
_BY_FAMILY = "T_fwd by stall, tuned day by day"
_PRESENT = "constant 120 s"


def as_measured(name: str) -> tuple[ReplayJob, ...]:
    """A built-in job set with the arrivals that the figures of the docs were measured with."""
    return preset_jobs(name, arrivals=ArrivalProcess.FIXED)


@dataclass(frozen=True)
class JobSet:
    """Jobs whose stalls are those published times `stall`, or a mixture."""

    name: str
    stall: float | str

    @property
    def label(self) -> str:
        """Head of a column."""
        return f"{SETS[self.name]} {self.stall if isinstance(self.stall, str) else f'×{self.stall:g}'}"

    def jobs(self) -> list[ReplayJob]:
        """The jobs."""
        if isinstance(self.stall, float):
            return [job.with_costs(self.stall) for job in preset_jobs(self.name, arrivals=ArrivalProcess.FIXED)]
        return [
            job.with_costs(STALLS[index % len(STALLS)])
            for index, job in enumerate(preset_jobs(self.name, arrivals=ArrivalProcess.FIXED))
        ]


SETS_OF_JOBS = [JobSet(name, stall) for name in SETS for stall in (*STALLS, MIXED)]
MIXED_SETS = [jobs for jobs in SETS_OF_JOBS if jobs.stall == MIXED]
Forward = dict[str, dict[str, list[float]]]
"""U in percent of each judging day, by variant and job set."""
Families = dict[str, tuple[list[float], list[tuple[float, ...]]]]
"""U in percent of each judging day, and what was chosen, by job set."""
PlacesGains = dict[str, tuple[Gain, list[str]]]
"""The gain, and what was chosen on each day, by job set."""


class ForwardByStall:
    """The production allocator with a T_fwd for each job.

    A job's gain of samples/s is weighed against its stall over its own T_fwd: the same as a stall longer or shorter by
    the ratio of the common T_fwd to its own.
    """

    def __init__(self, seconds: Mapping[float, float], options: ReplayOptions) -> None:
        """T_fwd in seconds by R_up in seconds."""
        self._seconds = seconds
        self._parameters = ObjectiveParameters(options.forward_s, options.cost_model)
        self._jobs: Sequence[RunningJob] = ()
        self._table = ChoiceTable.of(())

    def next_look_s(self) -> float:
        """Only events lead to decisions."""
        return math.inf

    def counts(self, now_s: float, jobs: Sequence[RunningJob], pool: int) -> Sequence[int]:
        """The optimum."""
        del now_s
        if jobs != self._jobs:
            self._jobs = list(jobs)
            self._table = ChoiceTable.of([self._choices(run) for run in jobs])
        found: list[int] = self._table.choose([run.count for run in jobs], pool, self._parameters).counts.tolist()
        return found

    def _choices(self, run: RunningJob) -> ScaleRates:
        factor = self._parameters.forward_seconds / self._seconds[run.job.scale_up_s]
        known = run.choices
        return replace(
            known,
            scale_up_seconds=known.scale_up_seconds * factor,
            scale_down_seconds=known.scale_down_seconds * factor,
        )


class Replays:
    """Replays of days; what has been replayed is read from a file and added to it."""

    def __init__(self, cache: Path, nodes: int, days: int) -> None:
        """Days of the log, each by itself."""
        self._cache = cache
        self._key = f"{nodes} nodes"
        self._known: dict[str, float] = json.loads(cache.read_text()) if cache.exists() else {}
        part = Slice(summit_log(), 1, nodes)
        self._scenarios = [part.scenario(day * DAY_S, DAY_S) for day in range(days)]
        self.days = range(days)

    def save(self) -> None:
        """Write what is known."""
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        self._cache.write_text(json.dumps(self._known))

    def _get(self, label: str, day: int, make: Callable[[Scenario, ReplayOptions], float]) -> float:
        key = f"{self._key}, {label}, day {day + 1}"
        if key not in self._known:
            self._known[key] = make(self._scenarios[day], ReplayOptions(duration_s=DAY_S))
            if len(self._known) % _SAVED == 0:
                self.save()
        return self._known[key]

    def static(self, jobs: JobSet, day: int) -> float:
        """A_s of a day, in samples."""
        return self._get(
            f"{jobs.name}, static",
            day,
            lambda found, options: static_outcome(
                preset_jobs(jobs.name, arrivals=ArrivalProcess.FIXED), found.equivalent_nodes, options
            ),
        )

    def samples(self, jobs: JobSet, variant: str, day: int, places: int = 10) -> float:
        """Samples of a day, with T_fwd as a label says."""

        def make(found: Scenario, options: ReplayOptions) -> float:
            options = _options(variant, replace(options, max_parallel=places))
            return outcome_of(run_replay(found.events, found.nodes, jobs.jobs(), options))

        return self._get(f"{jobs.label}, {variant}, {places} places", day, make)

    def by_family(self, jobs: JobSet, seconds: Sequence[float], day: int) -> float:
        """Samples of a day, with T_fwd by the stall of each job."""

        def make(found: Scenario, options: ReplayOptions) -> float:
            published = preset_jobs(jobs.name, arrivals=ArrivalProcess.FIXED)[0].scale_up_s
            forward = {published * factor: one for factor, one in zip(STALLS, seconds, strict=True)}
            advisor = ForwardByStall(forward, options)
            return outcome_of(run_replay(found.events, found.nodes, jobs.jobs(), options, advisor=advisor))

        return self._get(f"{jobs.label}, families {seconds}", day, make)


def _options(variant: str, options: ReplayOptions) -> ReplayOptions:
    if variant == _BOUND:
        return free_options(options)
    if variant.startswith("constant"):
        return replace(options, forward_s=float(variant.split()[1]))
    return replace(options, forward_policy=ForwardPolicy(variant))


def tuned(values: Mapping[T, Sequence[float]]) -> tuple[list[float], list[T]]:
    """For each day from the second the value of what was best on all days before (mean of ratios), and its name."""
    found, names = [], []
    length = len(next(iter(values.values())))
    best_of_day = [max(one[day] for one in values.values()) or 1.0 for day in range(length)]
    for day in range(1, length):
        name = max(
            values, key=lambda one: statistics.fmean(values[one][past] / best_of_day[past] for past in range(day))
        )
        found.append(values[name][day])
        names.append(name)
    return found, names


def forward_table(replays: Replays, sets: Sequence[JobSet] = SETS_OF_JOBS) -> Forward:
    """U in percent of the judging days, by variant and job set; with the choices of each day."""
    found: Forward = {}
    for jobs in sets:
        static = [replays.static(jobs, day) for day in replays.days]
        by_variant = {
            name: [100 * replays.samples(jobs, name, day) / static[day] for day in replays.days]
            for name in (*FORWARDS, _BOUND)
        }
        values, names = tuned({name: by_variant[name] for name in FORWARDS})
        for name, column in by_variant.items():
            found.setdefault(name, {})[jobs.label] = column[1:]
        found.setdefault(_TUNED, {})[jobs.label] = values
        print(f"{jobs.label}: {', '.join(names)}", file=sys.stderr)
        replays.save()
    return found


def family_table(replays: Replays) -> Families:
    """For job sets with mixed stalls: U in percent with T_fwd by stall, tuned day by day, and what was chosen."""
    found = {}
    for jobs in MIXED_SETS:
        values: dict[tuple[float, ...], list[float]] = {
            seconds: [100 * replays.by_family(jobs, seconds, day) / replays.static(jobs, day) for day in replays.days]
            for seconds in product(*FAMILY_S)
        }
        found[jobs.label] = tuned(values)
        replays.save()
    return found


def places_table(replays: Replays) -> PlacesGains:
    """For published stalls: gain over 120 s and ten places of what `malletrain tune` recommends day after day."""
    found = {}
    for jobs in SETS_OF_JOBS:
        if jobs.stall != 1.0:
            continue
        samples = {
            _settings(variant, places): [replays.samples(jobs, variant, day, places) for day in replays.days]
            for variant in _WITH_PLACES
            for places in PLACES
        }
        replays.save()
        present = first = _settings(_PRESENT, 10)
        gains, names = [], []
        for day in replays.days[1:]:
            past = {one: values[:day] for one, values in samples.items()}
            present = compare(present, past).recommended
            gains.append(samples[present][day] / samples[first][day] - 1)
            names.append(f"{present.forward_policy} {present.forward_seconds:g} s, {present.max_parallel} places")
        found[jobs.label] = (Gain.of(gains), names)
    return found


def _settings(variant: str, places: int) -> TunedSettings:
    if variant.startswith("constant"):
        return TunedSettings(ForwardPolicy.CONSTANT, float(variant.split()[1]), places, 0.05)
    return TunedSettings(ForwardPolicy(variant), 120.0, places, 0.05)


def _difference(values: Sequence[float], others: Sequence[float]) -> str:
    gain = Gain.of([one - other for one, other in zip(values, others, strict=True)])
    return f"{gain.mean:+.2f}" + ("" if gain.half_width is None else f" ± {gain.half_width:.2f}")


def print_forward(forward: Forward) -> None:
    """U by T_fwd, as Markdown."""
    labels = list(forward[_TUNED])
    print("| | " + " | ".join(labels) + " | mean |")
    print("| --- |" + " ---: |" * (len(labels) + 1))
    for name, columns in forward.items():
        means = [statistics.fmean(columns[label]) for label in labels]
        print(f"| {name} | " + " | ".join(f"{mean:.2f}" for mean in [*means, statistics.fmean(means)]) + " |")
    for other in (_PRESENT, "expected"):
        cells = [_difference(forward[_TUNED][label], forward[other][label]) for label in labels]
        print(f"| tuned less {other} | " + " | ".join(cells) + " | |")


def print_families(forward: Forward, families: Families) -> None:
    """T_fwd by the stall of a job, compared with one for all."""
    for label, (values, chosen) in families.items():
        print(f"\n{label}: {_BY_FAMILY}: {statistics.fmean(values):.2f}; by day {chosen}")
        for other in (_TUNED, "expected", _PRESENT):
            print(f"  less {other}: {_difference(values, forward[other][label])}")


def print_places(places: PlacesGains) -> None:
    """T_fwd and places, compared with the default."""
    for label, (gain, names) in places.items():
        width = "" if gain.half_width is None else f" ± {gain.half_width:.2%}"
        print(f"\n{label}: T_fwd and places: {gain.mean:+.2%}{width} over {_PRESENT} and 10 places")
        for day, name, one in zip(range(2, len(names) + 2), names, gain.by_day, strict=True):
            print(f"  day {day}: {name}: {one:+.2%}")


def main() -> None:
    """Replay, choose, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three days, 128 nodes")
    parser.add_argument("--cache", type=Path, default=Path("build/horizon-by-day.json"))
    parser.add_argument("--slice", choices=("forward", "families", "places"), help="only this part of the replays")
    arguments = parser.parse_args()
    replays = Replays(arguments.cache, 128 if arguments.quick else 1024, 3 if arguments.quick else DAYS)
    parts = [arguments.slice] if arguments.slice else ["forward", "families", "places"]
    if "forward" in parts:
        print_forward(forward_table(replays))
    if "families" in parts:
        print_families(forward_table(replays, MIXED_SETS), family_table(replays))
    if "places" in parts:
        print_places(places_table(replays))


if __name__ == "__main__":
    main()
