"""Searches with the same node-hours: `python benchmarks/studies/search_budget.py [--seeds 10] [--curves FILE]`.

Run from the repository's root. The driver of `malletrain.search` chooses among 162 networks whose learning curves are
known (`search_curves.py` trains them all once; `--curves` keeps them in a file). Time is simulated: four trials at a
time share idle nodes that come and go, by plans of the Allocator's solver with the weights of the driver; or each has
two nodes that are always there. A trial stalls at each change of its nodes. A search ends when so many node-hours have
been there, used or not. Prints the best accuracy of a complete trial; `docs/search.md` has the figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.arguments import positive
from benchmarks.studies.search_curves import LEARNING_RATES, PASSES, Choice, all_curves
from examples.nasbench.space import Operation
from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand
from malletrain.allocator.solvers.solving import solve
from malletrain.caller.job_request import JobRequest
from malletrain.caller.searching.decisions import SearchPlan, TrialJob
from malletrain.caller.searching.driver import SearchDriver, SearchListeners, SearchSetup
from malletrain.caller.searching.space import parse_space
from malletrain.caller.searching.studies import distributions_of, open_study, pruner_of, sampler_of
from malletrain.model.job_state import JobState
from malletrain.model.scaling import ScalingPoint
from malletrain.monitor.machine.throughput import student_quantile
from malletrain.v1 import resources_pb2

AT_ONCE, MAX_NODES, FIXED_NODES = 4, 8, 2
POOL, MEAN_IDLE = 16, 8
"""Nodes that come and go, and how many of them are idle on average."""
IDLE_SECONDS = 1200.0
"""How long a node stays idle, and away, on average; exponential."""
PASS_SECONDS = 600.0
"""A pass on one node."""
LOOK_SECONDS, FORWARD_SECONDS, REPLAN_SECONDS = 30.0, 120.0, 60.0
GROW_SECONDS, SHRINK_SECONDS = 20.0, 5.0
CURVE = ((1, 1.0), (2, 1.9), (4, 3.5), (8, 6.0))
"""Speed by number of nodes, linear between these."""
MAX_TRIALS = 500


class BudgetOverError(Exception):
    """All node-hours of the budget have been there."""


@dataclass(frozen=True)
class Way:
    """A way to search.

    Attributes:
        sampler, pruner: As for `malletrain.search`.
        favour: As for `malletrain.search`.
        fixed: Whether each trial has two nodes that are always there.
        first_logged: After which pass a trial logs its accuracy for the first time.
    """

    sampler: str
    pruner: str
    favour: float = 1.0
    fixed: bool = False
    first_logged: int = 1


WAYS = {
    "TPE, median pruner, favour 4": Way("tpe", "median", 4.0),
    "TPE, median pruner": Way("tpe", "median"),
    "TPE, median pruner, favour 4, both from pass 3": Way("tpe", "median", 4.0, first_logged=3),
    "TPE, median pruner from pass 3": Way("tpe", "median", first_logged=3),
    "random": Way("random", "none"),
    "random, median pruner": Way("random", "median"),
    "TPE, median pruner, fixed nodes": Way("tpe", "median", fixed=True),
    "random, fixed nodes": Way("random", "none", fixed=True),
}


@dataclass
class Job:
    """A trial's job.

    Attributes:
        curve: Its accuracy after each pass.
        passes: How far it is.
        nodes: Those that it has.
        stalled_until: Until when it does not train, in simulated seconds.
        weight: Its weight.
        state: Its state.
    """

    curve: tuple[float, ...]
    passes: float = 0.0
    nodes: tuple[str, ...] = ()
    stalled_until: float = 0.0
    weight: float = 1.0
    state: JobState = JobState.RUNNING


def speed(nodes: int) -> float:
    """Speed on so many nodes; 1 is that of one node."""
    points = ((0, 0.0), *CURVE)
    for (left, low), (right, high) in itertools.pairwise(points):
        if nodes <= right:
            return low + (high - low) * (nodes - left) / (right - left)
    return points[-1][1]


@dataclass
class SimulatedCluster:
    """Jobs of a search on simulated nodes and time.

    Attributes:
        curves: What trials come to.
        fixed: Whether each job has two nodes that are always there.
        budget: Node-seconds.
        draw: Says when nodes come and go.
        first_logged: As for `Way`.
        now: Simulated seconds.
        spent: Node-seconds so far.
        jobs: All jobs, by identifier.
        idle: Nodes that jobs may have.
        best: Share of the budget that was gone, and the best accuracy of a complete trial by then.
    """

    curves: Mapping[Choice, tuple[float, ...]]
    fixed: bool
    budget: float
    draw: random.Random
    first_logged: int = 1
    now: float = 0.0
    spent: float = 0.0
    jobs: dict[str, Job] = field(default_factory=dict)
    best: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    idle: set[str] = field(default_factory=set)
    _changes: dict[str, float] = field(default_factory=dict)
    _is_due: bool = True
    _weighed: bool = False
    _planned_at: float = 0.0

    def __post_init__(self) -> None:
        names = [f"n{number:02}" for number in range(MEAN_IDLE if self.fixed else POOL)]
        self.idle = set(names if self.fixed else self.draw.sample(names, MEAN_IDLE))
        if not self.fixed:
            self._changes = {name: self.draw.expovariate(1 / IDLE_SECONDS) for name in names}

    # What the driver calls.

    def submit(self, spec: resources_pb2.JobSpec, request_id: str) -> str:
        if request_id not in self.jobs:
            values = dict(word.split("=", 1) for word in spec.command[1:])
            operations = (values["first"], values["second"], values["third"])
            choice = Choice(operations, values["extra"] == "True", float(values["lr"]))
            self.jobs[request_id] = Job(self.curves[choice])
            self._is_due = True
        return request_id

    def look(self, job_id: str, name: str) -> TrialJob | None:
        del name
        job = self.jobs[job_id]
        metrics = {"accuracy": job.curve[-1]} if job.state is JobState.COMPLETED else {}
        return TrialJob(job.state, metrics, weight=job.weight)

    def logged(self, job_id: str, metric: str) -> Mapping[int, float]:
        del metric
        job = self.jobs[job_id]
        return {step: job.curve[step - 1] for step in range(self.first_logged, int(job.passes) + 1)}

    def set_weight(self, job_id: str, weight: float) -> None:
        self.jobs[job_id].weight = weight
        self._weighed = True

    def cancel(self, job_id: str) -> None:
        job = self.jobs[job_id]
        if not job.state.final:
            job.state, job.nodes, self._is_due = JobState.CANCELLED, (), True

    def find(self, name: str) -> str:
        del name
        return ""

    # Time.

    def pass_time(self, _: float) -> None:
        """Let the time between two looks of the driver pass, second by second.

        Raises:
            BudgetOverError: the budget is used up.
        """
        for _second in range(int(LOOK_SECONDS)):
            self._move_nodes()
            if self._is_due or (self._weighed and self.now >= self._planned_at + REPLAN_SECONDS):
                self._plan()
            self._train()
            self.now += 1.0
            self.spent += len(self.idle)
            if self.spent >= self.budget:
                raise BudgetOverError

    def _active(self) -> dict[str, Job]:
        return {name: job for name, job in self.jobs.items() if not job.state.final}

    def _move_nodes(self) -> None:
        for name, when in sorted(self._changes.items()):
            if when > self.now:
                continue
            self._changes[name] = self.now + self.draw.expovariate(1 / IDLE_SECONDS)
            self.idle ^= {name}
            self._is_due = True
            for job in self._active().values():
                if name in job.nodes:
                    job.nodes = tuple(node for node in job.nodes if node != name)
                    job.stalled_until = max(job.stalled_until, self.now + SHRINK_SECONDS)

    def _plan(self) -> None:
        self._is_due, self._weighed, self._planned_at = False, False, self.now
        wanted = self._fixed_nodes() if self.fixed else self._solved_nodes()
        for name, job in self._active().items():
            nodes = wanted.get(name, ())
            if set(nodes) == set(job.nodes):
                continue
            stall = GROW_SECONDS if set(nodes) - set(job.nodes) else SHRINK_SECONDS
            job.nodes, job.stalled_until = tuple(nodes), max(job.stalled_until, self.now + stall)

    def _solved_nodes(self) -> Mapping[str, Sequence[str]]:
        demands = tuple(
            JobDemand(
                id=name,
                min_nodes=1,
                max_nodes=MAX_NODES,
                curve=tuple(ScalingPoint(nodes, rate) for nodes, rate in CURVE),
                scale_up_seconds=GROW_SECONDS,
                scale_down_seconds=SHRINK_SECONDS,
                weight=job.weight,
                current_nodes=job.nodes,
            )
            for name, job in self._active().items()
        )
        problem = AllocationProblem(tuple(sorted(self.idle)), FORWARD_SECONDS, demands)
        return {entry.job_id: entry.nodes for entry in solve(problem).assignments}

    def _fixed_nodes(self) -> Mapping[str, Sequence[str]]:
        free = sorted(self.idle - {node for job in self._active().values() for node in job.nodes})
        found: dict[str, Sequence[str]] = {}
        for name, job in self._active().items():
            found[name] = job.nodes or tuple(free[:FIXED_NODES])
            if not job.nodes:
                del free[:FIXED_NODES]
        return found

    def _train(self) -> None:
        for job in self._active().values():
            if job.nodes and self.now >= job.stalled_until:
                job.passes += speed(len(job.nodes)) / PASS_SECONDS
            if job.passes >= PASSES:
                job.state, job.nodes, self._is_due = JobState.COMPLETED, (), True
                self.best.append((self.spent / self.budget, max(self.best[-1][1], job.curve[-1])))


def space() -> dict[str, object]:
    """The space of `search_curves`, as a search has it."""
    names = [str(operation) for operation in Operation]
    return {
        **dict.fromkeys(("first", "second", "third"), names),
        "extra": [False, True],
        "lr": list(LEARNING_RATES),
    }


def run_search(way: Way, seed: int, curves: Mapping[Choice, tuple[float, ...]], node_hours: float) -> SimulatedCluster:
    """Search until the budget is used up; returns the cluster as it is then."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study, study_id = open_study("s", optuna.storages.InMemoryStorage(), "maximize", "accuracy")
    study.sampler, study.pruner = sampler_of(way.sampler, seed), pruner_of(way.pruner)
    cluster = SimulatedCluster(curves, way.fixed, node_hours * 3600, random.Random(seed), way.first_logged)
    setup = SearchSetup(
        request=JobRequest(command=["train", *(f"{name}={{{name}}}" for name in space())], name="s", backend="command"),
        distributions=distributions_of(parse_space(space())),
        plan=SearchPlan("accuracy", MAX_TRIALS, AT_ONCE),
        study_id=study_id,
        failures=0,
        cancel_on_exit=False,
        favour=way.favour,
    )
    try:
        SearchDriver(study, setup, cluster, SearchListeners(), pause=cluster.pass_time).run()
    except BudgetOverError:
        return cluster
    raise RuntimeError(f"{MAX_TRIALS} trials ended before the budget")


def best_at(cluster: SimulatedCluster, share: float) -> float:
    """The best accuracy of a complete trial when this share of the budget was gone."""
    return max(value for when, value in cluster.best if when <= share)


def row(name: str, found: Sequence[SimulatedCluster]) -> str:
    """A line of the table: mean and standard deviation after thirds of the budget, and trials."""
    cells = []
    for share in (1 / 3, 2 / 3, 1.0):
        best = [best_at(cluster, share) for cluster in found]
        spread = statistics.stdev(best) if len(best) > 1 else 0.0
        cells.append(f"{statistics.mean(best):.3f} ± {spread:.3f}")
    complete = statistics.mean(sum(job.state is JobState.COMPLETED for job in one.jobs.values()) for one in found)
    return f"| {name} | {' | '.join(cells)} | {statistics.mean(len(one.jobs) for one in found):.0f} | {complete:.0f} |"


def difference(first: Sequence[SimulatedCluster], second: Sequence[SimulatedCluster]) -> str:
    """Mean difference at the end and its 95 % interval, by Student's t over pairs of the same seed."""
    gaps = [best_at(one, 1.0) - best_at(other, 1.0) for one, other in zip(first, second, strict=True)]
    mean = statistics.mean(gaps)
    if len(gaps) < 2:
        return f"{mean:+.3f}"
    half = student_quantile(0.975, len(gaps) - 1) * statistics.stdev(gaps) / len(gaps) ** 0.5
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"


def read_curves(path: Path | None, processes: int) -> Mapping[Choice, tuple[float, ...]]:
    """The curves: from a file if there is one, else trained now, and kept there."""
    if path is not None and path.exists():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return {Choice(tuple(choice[0]), choice[1], choice[2]): tuple(curve) for choice, curve in lines}
    curves = all_curves(processes)
    if path is not None:
        path.write_text("".join(f"{json.dumps(entry)}\n" for entry in curves.items()))
    return curves


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=positive, default=10, help="seeds (10)")
    parser.add_argument("--node-hours", type=positive, default=16, help="budget of a search (16)")
    parser.add_argument("--only", default="", help="ways to search whose names have this in them")
    parser.add_argument("--curves", type=Path, help="file with the learning curves; made if it is not there")
    parser.add_argument("--processes", type=positive, default=2, help="networks that are trained at the same time (2)")
    options = parser.parse_args()
    curves = read_curves(options.curves, options.processes)
    best = sorted((curve[-1] for curve in curves.values()), reverse=True)
    print(f"{len(curves)} networks; best {best[0]:.3f}, fifth {best[4]:.3f}, median {statistics.median(best):.3f}\n")
    print("| search | after a third | after two thirds | at the end | trials | complete |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    found = {}
    ways = {name: way for name, way in WAYS.items() if options.only in name}
    for name, way in ways.items():
        found[name] = [run_search(way, seed, curves, options.node_hours) for seed in range(options.seeds)]
        print(row(name, found[name]), flush=True)
    first = next(iter(ways))
    print(f"\n{first}, less:")
    for name in list(ways)[1:]:
        print(f"- {name}: {difference(found[first], found[name])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
