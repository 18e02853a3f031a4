"""What one step of JobManager's state machine costs: `python benchmarks/steps.py [--sizes 100x1000 1000x10000]`.

All jobs train on all nodes but one. Each kind of step is timed by itself, in CPU time of this process, with what the
metrics count of it. Nothing is stored, and nothing is commanded.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.machine.state import ManagerPolicy, ManagerState
from malletrain.job_manager.machine.state_machine import TransactionResult, advance
from malletrain.job_manager.machine.stimuli import (
    IdleSetSeen,
    NodesChanged,
    NodesReleased,
    PlanReceived,
    ProgressNoted,
    Stimulus,
    Submitted,
    SupervisorSeen,
    Ticked,
)
from malletrain.job_manager.telemetry.node_use import UseCounter, moved_nodes

_NOBODY: frozenset[str] = frozenset()


@dataclass
class Steps:
    """A state that is advanced, and how long that took.

    Attributes:
        seconds: CPU time of each step, by its kind.
    """

    policy: ManagerPolicy
    state: ManagerState = field(default_factory=ManagerState)
    uses: UseCounter = field(default_factory=UseCounter)
    now: float = 1000.0
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def take(self, stimulus: Stimulus, kind: str = "") -> TransactionResult:
        """Apply one stimulus; timed as a step of a kind, if there is one."""
        self.now += 0.01
        begin = time.process_time()
        result = advance(self.state, stimulus, self.now, self.policy)
        if not isinstance(stimulus, ProgressNoted):
            self.uses.change(result.state, result.changed, moved_nodes(stimulus, self.state, result.state))
        if kind:
            self.seconds.setdefault(kind, []).append(time.process_time() - begin)
        self.state = result.state
        return result

    def plan(self, changed: dict[str, tuple[str, ...]], kind: str = "") -> TransactionResult:
        """A plan that names every job, as the first of an Allocator does; later ones name what they change."""
        nodes = {name: changed.get(name, job.wanted) for name, job in self.state.jobs.items()}
        return self.take(PlanReceived(self.state.generation + 1, tuple(nodes.items())), kind)

    def confirm(self, job_id: str, kind: str = "") -> None:
        """Its supervisor has done all that it was told."""
        job = self.state.jobs[job_id]
        nodes = frozenset(job.commanded)
        self.take(SupervisorSeen(job.id, job.incarnation, job.sequence, job.sequence, nodes, nodes), kind)


def _chunks(names: list[str], jobs: int) -> Iterator[tuple[str, ...]]:
    size = len(names) // jobs
    return (tuple(names[size * number : size * (number + 1)]) for number in range(jobs))


def measured(jobs: int, nodes: int, rounds: int) -> dict[str, float]:
    """Median and largest CPU time of each kind of step, in ms."""
    steps = Steps(ManagerPolicy(max_parallel=jobs, fair_share_half_life_seconds=604_800.0, meters_usage=True))
    names = [f"n{number:05d}" for number in range(nodes)]
    steps.take(IdleSetSeen(frozenset(names)))
    steps.take(
        Submitted(
            (JobSpec(name="job", command=("true",), working_directory="/", min_nodes=1, max_nodes=nodes),) * jobs, "ada"
        )
    )
    ids = list(steps.state.jobs)
    steps.plan(dict(zip(ids, _chunks(names, jobs), strict=True)))
    for job_id in ids:
        steps.confirm(job_id)
    for number in range(rounds):
        job = steps.state.jobs[ids[number * 7919 % jobs]]
        lost = job.commanded[-1]
        steps.take(NodesChanged(_NOBODY, frozenset((lost,)), steps.now), "leave")
        steps.take(NodesReleased(job.id, job.incarnation, (lost,)), "released")
        steps.confirm(job.id, "confirmed")
        steps.take(NodesChanged(frozenset((lost,)), _NOBODY, steps.now), "join")
        steps.plan({job.id: (*steps.state.jobs[job.id].wanted, lost)}, "plan")
        steps.confirm(job.id)
        steps.take(Ticked(), "tick")
        samples = tuple((name, number + 1) for name in ids)
        steps.take(ProgressNoted(samples), "progress of all")
    found = {}
    for kind, seconds in steps.seconds.items():
        found[kind] = round(1000 * median(seconds), 3)
        found[f"{kind}, most"] = round(1000 * max(seconds), 3)
    return found


def main() -> None:
    """Measure and print a line of JSON for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["100x1000", "1000x10000"], help="JOBSxNODES")
    parser.add_argument("--rounds", type=positive, default=30)
    options = parser.parse_args()
    for size in options.sizes:
        jobs, nodes = map(positive, size.split("x"))
        if nodes < 2 * jobs:
            parser.error(f"{size}: expected at least two nodes for each job")
        print(json.dumps({"jobs": jobs, "nodes": nodes, "cpu_ms": measured(jobs, nodes, options.rounds)}), flush=True)


if __name__ == "__main__":
    main()
