"""How long replays take: `python benchmarks/replay.py [--json] [--quick]`.

Replays the week of the Summit log on its first 1024 nodes with 10 parallel jobs, and that week twice on the whole
machine with 100 jobs. If the log is not beside the checkout (or in MALLETRAIN_SHARED), a trace is drawn instead. Its
nodes join and leave one by one, which makes far more events, so that the whole machine is replayed for one day only.
Each replay is timed without instruments; the shares of its parts are measured in another run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar
from unittest.mock import patch

from malletrain.allocator.problem.allocation_problem import CostModel
from malletrain.allocator.solvers.choice_table import ChoiceTable
from malletrain.allocator.solvers.placement import rearrange
from malletrain.scavenger.generate import generate
from malletrain.scavenger.idle_trace import Fragment, Trace, window
from malletrain.scavenger.machine.stays import LearnedStay
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay import fast_engine
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import Accounting, ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.presets import preset_jobs

_SHARED = Path(os.environ.get("MALLETRAIN_SHARED", Path(__file__).parents[2] / "shared"))
_LOG = _SHARED / "traces" / "summit-2021-02-week1.csv.gz"
_MACHINE, _IDLE_SHARE, _SEED = 4734, 0.083, 2021
_WEEK_S, _DAY_S = 604_800.0, 86_400.0
_JOBS_PER_PLACE = 200
"""More jobs than can be done in any of these replays."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Stopwatch:
    """Sums the seconds spent in functions, without those spent in other timed functions that they call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def around(self, part: str, function: Callable[_P, _T]) -> Callable[_P, _T]:
        def timed(*arguments: _P.args, **named: _P.kwargs) -> _T:
            self._inner.append(0.0)
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                took = time.perf_counter() - started
                self.seconds[part] = self.seconds.get(part, 0.0) + took - self._inner.pop()
                self._inner[-1] += took

        return timed


def whole_machine() -> tuple[Trace, str]:
    if _LOG.exists():
        return read_trace(_LOG), _LOG.name
    return generate(_MACHINE, _WEEK_S, _IDLE_SHARE, random.Random(_SEED)), f"drawn with seed {_SEED}"


def twice(trace: Trace) -> Trace:
    """The trace twice in a row; a node that is idle where they meet leaves and joins there."""
    first = window(trace, 0.0, trace.duration_s, cut_end=True).fragments
    later_s = trace.duration_s
    second = (Fragment(f.node, max(0.0, f.idle_from_s) + later_s, f.idle_until_s + later_s) for f in first)
    return Trace((*first, *second), trace.nodes, 2 * later_s, trace.earliest_s)


def shares(scenario: Scenario, jobs: tuple[ReplayJob, ...], options: ReplayOptions) -> dict[str, float]:
    """Share of a replay's time by part; the rest is the engine's accounting."""
    watch = Stopwatch()
    with (
        patch.object(ChoiceTable, "choose", watch.around("solving", ChoiceTable.choose)),
        patch.object(fast_engine, "rearrange", watch.around("placing", rearrange)),
        patch.object(LearnedStay, "refit", watch.around("survival", LearnedStay.refit)),
    ):
        started = time.perf_counter()
        run_replay(scenario.events, scenario.nodes, jobs, options)
        whole = time.perf_counter() - started
    found = {part: watch.seconds.get(part, 0.0) / whole for part in ("solving", "placing", "survival")}
    return {**found, "rest": 1.0 - sum(found.values())}


def measure(name: str, scenario: Scenario, options: ReplayOptions, repeats: int) -> dict[str, object]:
    jobs = preset_jobs("hpo", _JOBS_PER_PLACE * options.max_parallel)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = run_replay(scenario.events, scenario.nodes, jobs, options)
        seconds.append(time.perf_counter() - started)
    decisions = len(result.decisions["time_s"])
    median = statistics.median(seconds)
    return {
        "replay": name,
        "nodes": len(scenario.nodes),
        "parallel": options.max_parallel,
        "events": result.node_events,
        "decisions": decisions,
        "median_s": median,
        "slowest_s": max(seconds),
        "events_per_s": result.node_events / median,
        "decisions_per_s": decisions / median,
        "shares": shares(scenario, jobs, options),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one day, once")
    arguments = parser.parse_args()
    duration_s, repeats = (_DAY_S, 1) if arguments.quick else (_WEEK_S, 3)
    trace, source = whole_machine()
    part = Scenario.of(window(trace, 0.0, duration_s, 1024), duration_s)
    machine_s = _DAY_S if arguments.quick or not _LOG.exists() else 2 * _WEEK_S
    machine = Scenario.of(window(twice(trace), 0.0, machine_s), machine_s)
    stall = ReplayOptions(duration_s=duration_s, forward_s=120.0, max_parallel=10)
    paper = replace(stall, cost_model=CostModel.PAPER, accounting=Accounting.PAPER)
    run_replay(part.events[:20], part.nodes, preset_jobs("hpo", 10), stall)  # loads the compiled loops
    rows = [
        measure("milp, stall, event", part, stall, repeats),
        measure("milp, paper, paper", part, paper, repeats),
        measure("equal, stall, event", part, replace(stall, policy=ReplayPolicy.EQUAL), repeats),
        measure("milp, whole machine", machine, replace(stall, duration_s=machine_s, max_parallel=100), 1),
    ]
    if arguments.json:
        print(json.dumps({"trace": source, "load": os.getloadavg()[0], "replays": rows}, indent=2))
        return
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}")
    days = f"{duration_s / _DAY_S:.0f} and {machine_s / _DAY_S:.0f} days"
    print(f"{source}, {days}; peak memory {rows[-1]['peak_mib']:.0f} MiB")
    heads = ("nodes", "jobs", "events", "decisions", "median s", "events/s", "solving", "placing", "survival", "rest")
    print(f"{'replay':<20}" + "".join(f"{head:>10}" for head in heads))
    for row in rows:
        parts = row["shares"]
        assert isinstance(parts, dict)
        print(
            f"{row['replay']:<20}{row['nodes']:>10}{row['parallel']:>10}{row['events']:>10}{row['decisions']:>10}"
            f"{row['median_s']:>10.2f}{row['events_per_s']:>10.0f}" + "".join(f"{parts[p]:>10.0%}" for p in parts)
        )


if __name__ == "__main__":
    main()
