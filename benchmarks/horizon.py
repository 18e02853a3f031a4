"""U by T_fwd on held-back days of the Summit log: `python benchmarks/horizon.py [--json] [--quick]`.

The table of docs/horizon.md: days 4 to 7, each day by itself; stalls a
quarter as long, as published and four times as long; both built-in job sets. Needs the log beside the checkout (or in
MALLETRAIN_SHARED).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from malletrain.allocator.forward_time import ForwardPolicy
from malletrain.monitor.throughput import student_quantile
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay.baselines import free_options, outcome_of, static_outcome
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import preset_jobs

_SHARED = Path(os.environ.get("MALLETRAIN_SHARED", Path(__file__).parents[2] / "shared"))
_LOG = _SHARED / "traces" / "summit-2021-02-week1.csv.gz"
_DAY_S = 86_400.0
CONSTANTS = (30, 60, 120, 240, 480, 960)
STALLS = (0.25, 1.0, 4.0)
SETS = {"hpo": "ShuffleNet", "imagenet": "seven networks"}

Row = tuple[str, float]
"""A job set and a factor of its stalls."""


def summit_log() -> Trace:
    """The first week of the Summit log; ends the program where it is missing."""
    if not _LOG.exists():
        sys.exit(f"error: {_LOG}: expected the Summit log (MALLETRAIN_SHARED names its folder)")
    return read_trace(_LOG)


def variants(options: ReplayOptions) -> dict[str, ReplayOptions]:
    """What is compared, by label."""
    found = {f"constant {seconds} s": replace(options, forward_s=float(seconds)) for seconds in CONSTANTS}
    found["survival"] = replace(options, forward_policy=ForwardPolicy.SURVIVAL)
    found["expected"] = replace(options, forward_policy=ForwardPolicy.EXPECTED)
    return found


def samples(scenario: Scenario, row: Row, options: ReplayOptions) -> float:
    """Samples of a replay, net of all losses."""
    jobs = [job.with_costs(row[1]) for job in preset_jobs(row[0])]
    result = run_replay(scenario.events, scenario.nodes, jobs, options)
    return outcome_of(result)


def shares(scenario: Scenario, row: Row) -> dict[str, float]:
    """U of each variant in percent, with the zero-cost bound."""
    options = ReplayOptions(duration_s=scenario.duration_s)
    static = static_outcome(preset_jobs(row[0]), scenario.equivalent_nodes, options)
    found = {label: samples(scenario, row, variant) for label, variant in variants(options).items()}
    found["zero-cost bound"] = samples(scenario, row, free_options(options))
    return {label: 100 * value / static for label, value in found.items()}


def table(trace: Trace, days: Sequence[int], rows: Sequence[Row], nodes: int) -> dict[str, dict[Row, list[float]]]:
    """U in percent by label, row and day."""
    found: dict[str, dict[Row, list[float]]] = {}
    for day in days:
        scenario = Scenario.of(window(trace, day * _DAY_S, _DAY_S, nodes), _DAY_S)
        for row in rows:
            for label, share in shares(scenario, row).items():
                found.setdefault(label, {}).setdefault(row, []).append(share)
            print(f"day {day + 1}, {row[0]} x{row[1]:g}", file=sys.stderr)
    return found


def differences(
    found: Mapping[str, Mapping[Row, Sequence[float]]], rows: Sequence[Row]
) -> dict[Row, tuple[float, float]]:
    """By row: `expected` less its best constant, in points, and half of the 95 % interval over days."""
    result = {}
    for row in rows:
        best = max(
            (f"constant {seconds} s" for seconds in CONSTANTS), key=lambda label: statistics.mean(found[label][row])
        )
        gains = [a - b for a, b in zip(found["expected"][row], found[best][row], strict=True)]
        width = math.nan
        if len(gains) > 1:
            width = student_quantile(0.975, len(gains) - 1) * statistics.stdev(gains) / math.sqrt(len(gains))
        result[row] = (statistics.mean(gains), width)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one day, 256 nodes")
    parser.add_argument("--from", dest="first", type=int, default=4, help="first day, from 1")
    parser.add_argument("--days", type=int, default=4)
    arguments = parser.parse_args()
    trace = summit_log()
    first, count = arguments.first - 1, 1 if arguments.quick else arguments.days
    if not 0 <= first < first + count <= trace.duration_s / _DAY_S:
        sys.exit(f"error: --from, --days: expected days within 1 to {trace.duration_s / _DAY_S:g}")
    rows = [(name, factor) for name in SETS for factor in STALLS]
    found = table(trace, range(first, first + count), rows, 256 if arguments.quick else 1024)
    gains = differences(found, rows)
    if arguments.json:
        named = {label: {f"{n} x{f:g}": by_row[n, f] for n, f in rows} for label, by_row in found.items()}
        print(json.dumps({"U": named, "gain": {f"{n} x{f:g}": gains[n, f] for n, f in rows}}, indent=2))
        return
    print("| | " + " | ".join(f"{SETS[name]} ×{factor:g}" for name, factor in rows) + " | mean |")
    print("| --- |" + " ---: |" * (len(rows) + 1))
    for label, by_row in found.items():
        means = [statistics.mean(by_row[row]) for row in rows]
        print(f"| {label} | " + " | ".join(f"{mean:.2f}" for mean in [*means, statistics.mean(means)]) + " |")
    print(
        "| expected less the best constant | "
        + " | ".join("{:+.2f} ± {:.2f}".format(*gains[row]) for row in rows)
        + " | |"
    )


if __name__ == "__main__":
    main()
