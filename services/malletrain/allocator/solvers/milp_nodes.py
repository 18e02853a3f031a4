"""BFTrainer's node-level MILP (Eq. 4, 5, 9-16), an independent formulation that verifies the others. Pure.

It differs from the paper and its published code in three points:

- HiGHS has no special ordered sets of type 2. The curve has one binary per segment instead, and only the weights at the
  two ends of the chosen segment may be above 0.
- The big-M of the migration rows is 2|N|. The published code uses |N| + 1, with which a job can change by at most half
  of the pool in one step.
- The big-M of the size rows is max(|N|, N_min). Otherwise one job whose minimum exceeds the pool makes the whole model
  infeasible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, JobDemand
from malletrain.allocator.problem.objective import (
    max_start_seconds,
    metric_scale,
    permitted_sizes,
    scale_rates,
    trains_on,
    worths,
)
from malletrain.allocator.solvers.milp import Floats, MilpBuilder, MilpModel
from malletrain.allocator.solvers.owner_knapsack import owner_groups


@dataclass(frozen=True)
class NodeModel:
    """The model, and the indices of its variables x_jn by job and node."""

    model: MilpModel
    assigned: tuple[tuple[int, ...], ...]


def node_model(problem: AllocationProblem) -> NodeModel:
    """The model of a valid problem."""
    builder = MilpBuilder()
    scale = _scale(problem)
    assigned = tuple(tuple(builder.variables(len(problem.nodes))) for _ in problem.jobs)
    for node in range(len(problem.nodes)):
        builder.row([(row[node], 1.0) for row in assigned], upper=1.0)  # Eq. 5
    for job, row in zip(problem.jobs, assigned, strict=True):
        _JobRows(builder, problem, job, row, scale).add()
    if problem.max_nodes is not None:
        everything = [(variable, 1.0) for row in assigned for variable in row]
        builder.row(everything, upper=float(problem.max_nodes))
    for group in owner_groups([job.owner for job in problem.jobs], problem.owner_limits):
        builder.row([(variable, 1.0) for job in group.jobs for variable in assigned[job]], upper=float(group.limit))
    return NodeModel(builder.build(), assigned)


def read_node_counts(model: NodeModel, solution: Floats) -> list[int]:
    """Number of nodes of each job in a solution."""
    return [int(np.rint(solution[list(row)]).sum()) if row else 0 for row in model.assigned]


def read_node_map(model: NodeModel, problem: AllocationProblem, solution: Floats) -> list[tuple[str, ...]]:
    """Names of the nodes of each job in a solution."""
    return [
        tuple(name for name, variable in zip(problem.nodes, row, strict=True) if solution[variable] > 0.5)
        for row in model.assigned
    ]


def _scale(problem: AllocationProblem) -> float:
    """Largest value that any job can reach; divided by it, the objective's coefficients are about 1 at most."""
    tops = [
        metric_scale(job, problem.objective_metric)
        * problem.forward_seconds
        * float(worths(job, permitted_sizes(job, len(problem.nodes))).max())
        for job in problem.jobs
    ]
    return max(tops, default=1.0) or 1.0


class _JobRows:
    """Adds the variables and rows of one job."""

    def __init__(
        self, builder: MilpBuilder, problem: AllocationProblem, job: JobDemand, row: tuple[int, ...], scale: float
    ) -> None:
        self.builder = builder
        self.problem = problem
        self.job = job
        self.row = row
        self.pool = len(problem.nodes)
        self.size = [(variable, 1.0) for variable in row]  # N_j
        self.current = len(job.current_nodes)
        self.trains = trains_on(permitted_sizes(job, self.pool), self.current)
        self.top = float(worths(job, permitted_sizes(job, self.pool)).max()) or 1.0
        # Rates are kept relative to the job's top rate: coefficients stay near 1.
        self.unit = metric_scale(job, problem.objective_metric) * self.top / scale

    def add(self) -> None:
        """Add all constraints and terms of the job to the model."""
        self._size_bounds()
        self._no_migration()
        rate = self._curve()
        self._rescale_cost(rate)

    def _size_bounds(self) -> None:
        """Eq. 4; a list of permitted sizes needs one binary per size."""
        if self.job.permitted_nodes:
            sizes = permitted_sizes(self.job, self.pool).tolist()
            picks = self.builder.variables(len(sizes))
            self.builder.row([(pick, 1.0) for pick in picks], 1.0, 1.0)
            self.builder.row(
                [*self.size, *((pick, -float(size)) for pick, size in zip(picks, sizes, strict=True))], 0.0, 0.0
            )
            return
        big = float(max(self.pool, self.job.min_nodes))
        (waits,) = self.builder.variables(1)
        self.builder.row([*self.size, (waits, big)], lower=float(self.job.min_nodes))
        self.builder.row([*self.size, (waits, big)], upper=big)
        self.builder.row(self.size, upper=float(self.job.max_nodes))

    def _no_migration(self) -> None:
        """Eq. 9 and 10: as many nodes change hands as the size changes by: the job only gains or only loses nodes."""
        held = set(self.job.current_nodes)
        changed = self.builder.variables(self.pool, integer=False)
        for name, assigned, change in zip(self.problem.nodes, self.row, changed, strict=True):
            has = float(name in held)
            self.builder.row([(change, 1.0), (assigned, -1.0)], upper=has)
            self.builder.row([(change, 1.0), (assigned, -1.0)], lower=-has)
            self.builder.row([(change, 1.0), (assigned, 1.0)], lower=has)
            self.builder.row([(change, 1.0), (assigned, 1.0)], upper=2.0 - has)
        (shrinks,) = self.builder.variables(1)
        big = 2.0 * self.pool
        losses = [(change, -1.0) for change in changed]
        gains = [(change, 1.0) for change in changed]
        self.builder.row([*self.size, *losses, (shrinks, big)], lower=float(self.current))
        self.builder.row([*self.size, *gains, (shrinks, big)], upper=self.current + big)

    def _curve(self) -> list[tuple[int, float]]:
        """Eq. 11 and 12, with one binary per segment. Returns the terms of O_j(N_j), relative to the job's top rate."""
        points = self._points()
        weights = self.builder.variables(len(points), integer=False)
        segments = self.builder.variables(len(points) - 1)
        self.builder.row([(weight, 1.0) for weight in weights], 1.0, 1.0)
        self.builder.row([(segment, 1.0) for segment in segments], 1.0, 1.0)
        for index, weight in enumerate(weights):
            beside = [segments[near] for near in (index - 1, index) if 0 <= near < len(segments)]
            self.builder.row([(weight, 1.0), *((segment, -1.0) for segment in beside)], upper=0.0)
        nodes = [(weight, -float(count)) for weight, (count, _) in zip(weights, points, strict=True)]
        self.builder.row([*self.size, *nodes], 0.0, 0.0)
        terms = [(weight, rate / self.top) for weight, (_, rate) in zip(weights, points, strict=True)]
        for weight, relative in terms:
            self.builder.cost[weight] += self.unit * self.problem.forward_seconds * relative
        return terms

    def _points(self) -> list[tuple[int, float]]:
        """The curve's points, with what they count for; with a value curve of its own, one for each permitted scale."""
        sizes = permitted_sizes(self.job, self.pool)
        if self.job.value.linear or len(sizes) == 1:  # a curve needs a segment, even where the job can only wait
            return [(0, 0.0), *((point.nodes, point.rate) for point in self.job.curve if point.nodes > 0)]
        return list(zip(sizes.tolist(), worths(self.job, sizes).tolist(), strict=True))

    def _rescale_cost(self, rate: list[tuple[int, float]]) -> None:
        """Eq. 13-16 for `paper`. For `stall`, R x O(N) x z is linearised: a cost bounded from below if z = 1.

        A boot before a growth costs boot x (O(N) - O(C)): it counts as part of R_up, and gives back boot x O(C).
        """
        grows, shrinks = self.builder.variables(2)
        current, pool = float(self.current), float(self.pool)
        self.builder.row([*self.size, (grows, current - pool)], upper=current)
        self.builder.row([*self.size, (grows, -(current + 1.0))], lower=0.0)
        self.builder.row([*self.size, (shrinks, pool - (current - 1.0))], upper=pool)
        self.builder.row([*self.size, (shrinks, current)], lower=current)
        stalls = ((grows, self.job.scale_up_seconds), (shrinks, self.job.scale_down_seconds))
        before = float(worths(self.job, [self.current])[0]) / self.top
        if self.problem.cost_model is CostModel.PAPER:
            for direction, seconds in stalls:
                self.builder.cost[direction] -= self.unit * before * seconds
            return
        (cost,) = self.builder.variables(1, -self.unit, np.inf, integer=False)
        if self.trains:
            self.builder.cost[grows] += self.unit * before * self.job.boot_seconds
        growth = self._growth_seconds(self.job.scale_up_seconds)
        for direction, seconds in ((grows, growth), (shrinks, self.job.scale_down_seconds)):
            loss = [(weight, -seconds * relative) for weight, relative in rate]
            self.builder.row([(cost, 1.0), *loss, (direction, -seconds)], lower=-seconds)
        self._known_stalls()

    def _growth_seconds(self, stall_seconds: float) -> float:
        """What a growth is charged with `stall`, in seconds: of one from nothing at most nearly all of T_fwd."""
        whole = stall_seconds + self.job.boot_seconds
        return whole if self.trains else min(whole, max_start_seconds(self.problem.forward_seconds))

    def _known_stalls(self) -> None:
        """A stall measured from C to a size replaces R: the difference is charged if N is that size."""
        choices = scale_rates(self.job, self.problem.objective_metric, self.pool)
        for place, seconds in choices.known_stalls(self.current):
            size = int(choices.sizes[place])
            more = seconds - self.job.scale_down_seconds
            if size > self.current:
                more = self._growth_seconds(seconds) - self._growth_seconds(self.job.scale_up_seconds)
            rate = float(worths(self.job, [size])[0]) / self.top
            (equal,) = self.builder.variables(1, cost=-self.unit * rate * more)
            below, above = self.builder.variables(2)
            pool = float(self.pool)
            self.builder.row([(below, 1.0), (equal, 1.0), (above, 1.0)], 1.0, 1.0)
            self.builder.row([*self.size, (below, pool + 1.0 - size), (equal, pool - size)], upper=pool)
            self.builder.row([*self.size, (above, -(size + 1.0)), (equal, -float(size))], lower=0.0)
