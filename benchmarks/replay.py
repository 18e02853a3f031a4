"""How long replays take: `python benchmarks/replay.py [--json] [--quick]`.

The week of the Summit log on its first 1024 nodes with 10 jobs at once, and the whole machine with 100 for two weeks,
which are that week twice over. Where the log is not beside the checkout (or in MALLETRAIN_SHARED), a trace is drawn;
its nodes come and go one by one, which makes far more events, so that the whole machine is replayed for a day only.
Each replay is timed as it is; where the time goes is measured in another one, in which the parts are timed too.
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

from malletrain.allocator.menu import Menu
from malletrain.allocator.placement import rearrange
from malletrain.allocator.problem import CostModel
from malletrain.scavenger.fragments import Fragment, Trace, read_trace, window
from malletrain.scavenger.generate import generate
from malletrain.scavenger.stays import LearnedStay
from malletrain.simulator.replay import engine
from malletrain.simulator.replay.engine import play
from malletrain.simulator.replay.evaluation import Scene
from malletrain.simulator.replay.options import Accounting, Options, Policy
from malletrain.simulator.replay.presets import preset_jobs
from malletrain.simulator.replay.workload import TraceJob

_SHARED = Path(os.environ.get("MALLETRAIN_SHARED", Path(__file__).parents[2] / "shared"))
_LOG = _SHARED / "traces" / "summit-2021-02-week1.csv.gz"
_MACHINE, _IDLE_SHARE, _SEED = 4734, 0.083, 2021
_WEEK_S, _DAY_S = 604_800.0, 86_400.0
_JOBS_PER_PLACE = 200
"""More than can be done in any of these replays."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Stopwatch:
    """Adds up the seconds spent in functions, less those spent in other timed functions that they call."""

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
    """The same time once more; a node idle at the seam leaves and joins there."""
    first = window(trace, 0.0, trace.duration_s, cut_end=True).fragments
    later_s = trace.duration_s
    second = (Fragment(f.node, max(0.0, f.idle_from_s) + later_s, f.idle_until_s + later_s) for f in first)
    return Trace((*first, *second), trace.nodes, 2 * later_s, trace.earliest_s)


def shares(scene: Scene, jobs: tuple[TraceJob, ...], options: Options) -> dict[str, float]:
    """Share of a replay's time by part; what is left over is the engine's own accounting."""
    watch = Stopwatch()
    with (
        patch.object(Menu, "choose", watch.around("solving", Menu.choose)),
        patch.object(engine, "rearrange", watch.around("placing", rearrange)),
        patch.object(LearnedStay, "refit", watch.around("survival", LearnedStay.refit)),
    ):
        started = time.perf_counter()
        play(scene.events, scene.nodes, jobs, options)
        whole = time.perf_counter() - started
    found = {part: watch.seconds.get(part, 0.0) / whole for part in ("solving", "placing", "survival")}
    return {**found, "rest": 1.0 - sum(found.values())}


def measure(name: str, scene: Scene, options: Options, repeats: int) -> dict[str, object]:
    jobs = preset_jobs("hpo", _JOBS_PER_PLACE * options.max_parallel)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        played = play(scene.events, scene.nodes, jobs, options)
        seconds.append(time.perf_counter() - started)
    decisions = len(played.decisions["time_s"])
    median = statistics.median(seconds)
    return {
        "replay": name,
        "nodes": len(scene.nodes),
        "parallel": options.max_parallel,
        "events": played.node_events,
        "decisions": decisions,
        "median_s": median,
        "slowest_s": max(seconds),
        "events_per_s": played.node_events / median,
        "decisions_per_s": decisions / median,
        "shares": shares(scene, jobs, options),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one day, once")
    arguments = parser.parse_args()
    duration_s, repeats = (_DAY_S, 1) if arguments.quick else (_WEEK_S, 3)
    trace, source = whole_machine()
    part = Scene.of(window(trace, 0.0, duration_s, 1024), duration_s)
    machine_s = _DAY_S if arguments.quick or not _LOG.exists() else 2 * _WEEK_S
    machine = Scene.of(window(twice(trace), 0.0, machine_s), machine_s)
    stall = Options(duration_s=duration_s, forward_s=120.0, max_parallel=10)
    paper = replace(stall, cost_model=CostModel.PAPER, accounting=Accounting.PAPER)
    play(part.events[:20], part.nodes, preset_jobs("hpo", 10), stall)  # loads the compiled loops
    rows = [
        measure("milp, stall, event", part, stall, repeats),
        measure("milp, paper, paper", part, paper, repeats),
        measure("equal, stall, event", part, replace(stall, policy=Policy.EQUAL), repeats),
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
