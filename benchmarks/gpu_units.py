"""What idle GPUs of partly used nodes are worth: `python benchmarks/gpu_units.py [--json] [--quick]`.

A generated GPU cluster: nodes of eight GPUs, a main queue of jobs of 1 to 64 GPUs (most of them small, their times with
a long tail), started in order of submission with backfill, small jobs where they fit best. What it leaves idle is
replayed twice, by the same jobs: whole idle nodes (of eight GPUs each), and single idle GPUs, those of partly used ones
included.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from malletrain.model.scaling import ScalingPoint
from malletrain.scavenger.idle_trace import Fragment, Trace, window
from malletrain.scavenger.machine.gpu_units import unit_name
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions

GPUS = 8
_SIZES = {1: 0.52, 2: 0.14, 4: 0.14, 8: 0.13, 16: 0.04, 32: 0.02, 64: 0.01}
"""GPUs of main jobs, and their shares of all jobs."""
_MEDIAN_S, _SPREAD = 1200.0, 1.8
_MAX_S = 3 * 86_400.0
_PATIENCE_S = 7200.0
"""After so long a wait of the first job in the queue, nothing is started before it."""
_MAX_GPUS = 64
_MAX_PARALLEL = 20
_UP_S, _DOWN_S = 18.0, 12.0
_WARM_UP_S = 4 * 86_400.0
"""The cluster is empty at first."""
_MIN_S = 120.0
"""Shorter idle times are left alone, as with `hold.shortest_seconds`."""


@dataclass(frozen=True)
class MainJob:
    """A job of the main queue: when it is submitted, how long it runs, and on how many GPUs."""

    submit_s: float
    seconds: float
    gpus: int


def main_jobs(nodes: int, duration_s: float, load: float, chance: random.Random) -> list[MainJob]:
    """Jobs that would keep a share `load` of all GPUs busy."""
    jobs: list[MainJob] = []
    sizes, shares = list(_SIZES), list(_SIZES.values())
    mean_s = _MEDIAN_S * math.exp(_SPREAD**2 / 2)
    mean_gpus = sum(size * share for size, share in _SIZES.items())
    every_s = mean_s * mean_gpus / (load * nodes * GPUS)
    now = 0.0
    while (now := now + chance.expovariate(1 / every_s)) < duration_s:
        seconds = min(_MAX_S, chance.lognormvariate(math.log(_MEDIAN_S), _SPREAD))
        jobs.append(MainJob(now, max(10.0, seconds), chance.choices(sizes, shares)[0]))
    return jobs


class Cluster:
    """Which GPUs of each node the main queue uses, over time."""

    def __init__(self, nodes: int) -> None:
        self._free = [GPUS] * nodes
        self.history: list[list[tuple[float, int]]] = [[(0.0, GPUS)] for _ in range(nodes)]

    def start(self, job: MainJob, now: float) -> list[tuple[int, int]] | None:
        """Nodes and numbers of GPUs that it gets; None if it does not fit."""
        if job.gpus >= GPUS:
            whole = [node for node, free in enumerate(self._free) if free == GPUS][: job.gpus // GPUS]
            parts = [(node, GPUS) for node in whole] if len(whole) == job.gpus // GPUS else []
        else:
            fitting = [(free, node) for node, free in enumerate(self._free) if free >= job.gpus]
            parts = [(min(fitting)[1], job.gpus)] if fitting else []
        for node, gpus in parts:
            self._change(node, -gpus, now)
        return parts or None

    def end(self, parts: Iterable[tuple[int, int]], now: float) -> None:
        """Give them back."""
        for node, gpus in parts:
            self._change(node, gpus, now)

    def _change(self, node: int, by: int, now: float) -> None:
        self._free[node] += by
        self.history[node].append((now, self._free[node]))


def run_main_queue(jobs: Sequence[MainJob], nodes: int) -> Cluster:
    """In order of submission; a job that does not fit lets others go first until it has waited for too long."""
    cluster, queue = Cluster(nodes), list[MainJob]()
    ends: list[tuple[float, int, list[tuple[int, int]]]] = []
    arrivals, number = iter(jobs), 0
    coming = next(arrivals, None)
    while coming is not None or ends:
        if coming is not None and (not ends or coming.submit_s <= ends[0][0]):
            now, coming = coming.submit_s, (queue.append(coming), next(arrivals, None))[1]
        else:
            now, _, parts = heapq.heappop(ends)
            cluster.end(parts, now)
        waiting = []
        for place, job in enumerate(queue):
            barred = bool(waiting) and now - waiting[0].submit_s > _PATIENCE_S
            given = None if barred else cluster.start(job, now)
            if given is None:
                waiting.append(job)
                if barred:
                    waiting += queue[place + 1 :]
                    break
            else:
                number += 1
                heapq.heappush(ends, (now + job.seconds, number, given))
        queue = waiting
    return cluster


def idle_times(history: Sequence[tuple[float, int]], least: int, duration_s: float) -> list[tuple[float, float]]:
    """When at least so many GPUs of a node were free, for long enough to be used."""
    found, begin = [], None
    for now, free in [*history, (duration_s, 0)]:
        moment = min(now, duration_s)
        if free >= least and begin is None:
            begin = moment
        elif free < least and begin is not None:
            if moment - begin >= _MIN_S:
                found.append((begin, moment))
            begin = None
    return found


def trace_of(cluster: Cluster, duration_s: float, *, by_gpu: bool) -> Trace:
    """What is idle: whole nodes, or single GPUs. Of a node's GPUs, so many are idle as are free."""
    fragments, names = [], []
    for node, history in enumerate(cluster.history):
        for number in range(GPUS if by_gpu else 1):
            name = unit_name(f"n{node}", number) if by_gpu else f"n{node}"
            names.append(name)
            least = number + 1 if by_gpu else GPUS
            fragments += [Fragment(name, *time) for time in idle_times(history, least, duration_s)]
    order = {name: place for place, name in enumerate(names)}
    fragments.sort(key=lambda fragment: (fragment.idle_from_s, order[fragment.node]))
    return Trace(tuple(fragments), tuple(names), duration_s)


def training(*, by_gpu: bool) -> ReplayJob:
    """A job of 1 to 64 GPUs, or of 1 to 8 nodes of eight; more GPUs are a little less worth each."""
    gpus = [1, 2, 4, 8, 16, 32, 64] if by_gpu else [8, 16, 32, 64]
    unit = 1 if by_gpu else GPUS
    curve = tuple(ScalingPoint(count // unit, 100.0 * count**0.95) for count in gpus)
    return ReplayJob("J", "model", 0.0, _UP_S, _DOWN_S, 1, _MAX_GPUS // unit, 4e7, curve)


def measure(nodes: int, days: float, load: float, seed: int) -> dict[str, float]:
    """One cluster: what was idle, and what the trainings made of it."""
    duration_s = days * 86_400.0
    whole_s = _WARM_UP_S + duration_s
    cluster = run_main_queue(main_jobs(nodes, whole_s, load, random.Random(seed)), nodes)
    found: dict[str, float] = {"load": load, "seed": seed}
    for by_gpu, name in ((False, "nodes"), (True, "gpus")):
        trace = window(trace_of(cluster, whole_s, by_gpu=by_gpu), _WARM_UP_S, duration_s)
        scenario = Scenario.of(trace, duration_s)
        jobs = tuple(replace(training(by_gpu=by_gpu), id=f"J{number}") for number in range(2000))
        result = run_replay(
            scenario.events, scenario.nodes, jobs, ReplayOptions(duration_s=duration_s, max_parallel=_MAX_PARALLEL)
        )
        found[f"{name}_idle_gpu_hours"] = scenario.node_hours * (1 if by_gpu else GPUS)
        found[f"{name}_samples"] = sum(job.samples for job in result.jobs)
        found[f"{name}_preemptions"] = sum(job.preemptions for job in result.jobs)
    found["all_gpu_hours"] = nodes * GPUS * days * 24
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="16 nodes, one day, one load")
    arguments = parser.parse_args()
    nodes, days, loads, seeds = (16, 1.0, (0.7,), (1,)) if arguments.quick else (64, 7.0, (0.6, 0.75, 0.9), (1, 2, 3))
    rows = [measure(nodes, days, load, seed) for load in loads for seed in seeds]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{nodes} nodes of {GPUS} GPUs, {days:g} days")
    print(f"{'load':>6}{'seed':>6}{'idle: nodes':>14}{'idle: GPUs':>14}{'samples x':>12}{'preemptions x':>16}")
    for row in rows:
        whole, single = (row[f"{name}_idle_gpu_hours"] / row["all_gpu_hours"] for name in ("nodes", "gpus"))
        print(
            f"{row['load']:>6g}{row['seed']:>6g}{whole:>14.1%}{single:>14.1%}"
            f"{row['gpus_samples'] / row['nodes_samples']:>12.2f}"
            f"{row['gpus_preemptions'] / max(1.0, row['nodes_preemptions']):>16.2f}"
        )


if __name__ == "__main__":
    main()
