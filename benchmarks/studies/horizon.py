"""U by T_fwd on the Summit log: `python benchmarks/studies/horizon.py [--quick]`.

The table of docs/horizon.md. Each day of each slice of 1024 nodes by itself; stalls a quarter as long, as published
and four times as long; both built-in job sets. `auto-tuned` begins each week with the default, and each day is replayed
with T_fwd as it was in force then. Needs the log beside the checkout (or in MALLETRAIN_SHARED).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.studies.auto_tuning import Past, constant, schedule
from benchmarks.studies.horizon_days import CONSTANTS, DAY_S, POLICIES, ROWS, SETS, Slice, summit_log
from malletrain.allocator.problem.forward_time import FORWARD_SECONDS
from malletrain.monitor.machine.throughput import student_quantile
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.evaluation import Scenario, free_options, outcome_of, static_outcome
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import ArrivalProcess, preset_jobs

_DAY_HOURS = 24
TUNED = "auto-tuned"
LEARNED = ("expected", "survival", TUNED)
"""What is compared with the best constant."""

Row = tuple[str, float]
"""A job set and a factor of its stalls."""
Place = tuple[int, int]
"""A slice and a day, both from 1."""
Shares = dict[str, dict[Row, dict[Place, float]]]
"""U in percent by label."""


def label(seconds: float) -> str:
    """Of a constant."""
    return f"constant {seconds} s"


def variants(options: ReplayOptions) -> dict[str, ReplayOptions]:
    """What is compared, by label."""
    found = {label(seconds): replace(options, forward_s=float(seconds)) for seconds in CONSTANTS}
    found |= {policy.value: replace(options, forward_policy=policy) for policy in POLICIES}
    return found


def samples(found: Scenario, row: Row, options: ReplayOptions) -> float:
    """Samples of a replay, net of all losses."""
    jobs = [job.with_costs(row[1]) for job in preset_jobs(row[0], arrivals=ArrivalProcess.FIXED)]
    return outcome_of(run_replay(found.events, found.nodes, jobs, options))


def table(trace: Trace, slices: Sequence[int], days: Sequence[int], nodes: int) -> Shares:
    """U in percent by label, row, slice and day."""
    shares: Shares = {}
    for number in slices:
        part = Slice(trace, number, nodes)
        for row in ROWS:
            jobs = [job.with_costs(row[1]) for job in preset_jobs(row[0], arrivals=ArrivalProcess.FIXED)]
            past = Past(part, jobs)
            in_force, steps = schedule(past, constant(FORWARD_SECONDS), _DAY_HOURS * max(days))
            print(f"slice {number}, {row[0]} x{row[1]:g}: {'; '.join(steps) or 'no step'}", file=sys.stderr)
            for day in days:
                found = part.scenario((day - 1) * DAY_S, DAY_S)
                options = ReplayOptions(duration_s=DAY_S)
                outcomes = {one: samples(found, row, variant) for one, variant in variants(options).items()}
                begin = (day - 1) * _DAY_HOURS
                outcomes[TUNED] = past.lived(begin, in_force[begin : begin + _DAY_HOURS])
                outcomes["zero-cost bound"] = samples(found, row, free_options(options))
                static = static_outcome(
                    preset_jobs(row[0], arrivals=ArrivalProcess.FIXED), found.equivalent_nodes, options
                )
                for one, outcome in outcomes.items():
                    shares.setdefault(one, {}).setdefault(row, {})[number, day] = 100 * outcome / static
    return shares


def best_constant(shares: Shares, row: Row, places: Sequence[Place]) -> str:
    """The constant with the largest mean there."""
    return max(map(label, CONSTANTS), key=lambda one: statistics.fmean(shares[one][row][place] for place in places))


def gains(shares: Shares, one: str, row: Row, *, held_out: bool) -> list[float]:
    """By day: U of a label less that of a constant, in points, as the mean over slices.

    Args:
        shares: U in percent.
        one: The label.
        row: The row.
        held_out: Whether the constant is the one that is best on all other days, else that of all days.
    """
    places = list(shares[one][row])
    found = []
    for day in sorted({day for _, day in places}):
        there = [place for place in places if place[1] == day]
        others = [place for place in places if place[1] != day]
        best = best_constant(shares, row, others if held_out and others else places)
        found.append(statistics.fmean(shares[one][row][place] - shares[best][row][place] for place in there))
    return found


def with_interval(values: Sequence[float]) -> str:
    """Mean and half-width of its 95 % interval (Student's t)."""
    if len(values) < 2:
        return f"{values[0]:+.2f}"
    width = student_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):+.2f} ± {width:.2f}"


def print_table(shares: Shares) -> None:
    """As Markdown."""
    print("| | " + " | ".join(f"{SETS[name]} ×{factor:g}" for name, factor in ROWS) + " | mean |")
    print("| --- |" + " ---: |" * (len(ROWS) + 1))
    for one, by_row in shares.items():
        means = [statistics.fmean(by_row[row].values()) for row in ROWS]
        print(f"| {one} | " + " | ".join(f"{mean:.2f}" for mean in [*means, statistics.fmean(means)]) + " |")
    for one in LEARNED:
        for held_out, name in ((False, "best constant"), (True, "constant that is best on the other days")):
            found = [gains(shares, one, row, held_out=held_out) for row in ROWS]
            mean = statistics.fmean(statistics.fmean(values) for values in found)
            cells = [*(with_interval(values) for values in found), f"{mean:+.2f}"]
            print(f"| {one} less the {name} | " + " | ".join(cells) + " |")


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one day, 128 nodes")
    parser.add_argument("--slices", type=int, nargs="*", default=[1, 3, 4], choices=range(1, 5))
    parser.add_argument("--days", type=int, nargs="*", default=list(range(1, 8)), choices=range(1, 8))
    arguments = parser.parse_args()
    trace = summit_log()
    if arguments.quick:
        shares = table(trace, arguments.slices[:1], arguments.days[:1], 128)
    else:
        shares = table(trace, arguments.slices, arguments.days, 1024)
    if arguments.json:
        named = {
            one: {
                f"{row[0]} x{row[1]:g}": {f"slice {s}, day {d}": u for (s, d), u in by_row[row].items()} for row in ROWS
            }
            for one, by_row in shares.items()
        }
        print(json.dumps(named, indent=2))
    else:
        print_table(shares)


if __name__ == "__main__":
    main()
