"""Best objectives under conditions, as `forced` has them, where more than numbers of nodes constrains the jobs.

Not all nodes suit all jobs, or the nodes of some must be in one group. HiGHS solves for each condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from malletrain.allocator.explanation.forced import IMPOSSIBLE
from malletrain.allocator.explanation.worth import ByCounts, Optima, PlannedPart
from malletrain.allocator.problem.allocation_problem import AllocationProblem
from malletrain.allocator.problem.group_table import GroupTable, requires_group
from malletrain.allocator.problem.objective import ScaleValues, objective_of
from malletrain.allocator.solvers.choice_table import groups_of
from malletrain.allocator.solvers.kind_flow import KindTable
from malletrain.allocator.solvers.milp_counts import read_counts
from malletrain.allocator.solvers.milp_kinds import kinds_model
from malletrain.allocator.solvers.required_groups import kind_table
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.runtime.errors import PreconditionError

MAX_KIND_STEPS = 500_000
"""Most variables of all solves of one explanation: some 50 s."""
_SECONDS = 10.0
"""Wall-clock limit of one solve."""


def kind_steps(part: PlannedPart, wanted: Iterable[str], *, all_scales: bool = False) -> int:
    """About how many variables all solves have that explain a part; 0 where HiGHS is not needed.

    Args:
        wanted: Jobs that are explained.
        all_scales: Whether all their scales are.
    """
    problem, job_ids = part.problem.rest, frozenset(wanted)
    if not _is_constrained(problem):
        return 0
    table = GroupTable.of(problem)
    kinds = len(table.cells) if table.options else len(problem.kinds) + 1
    variables, solves = sum(map(len, table.options.values())), 3
    for job in problem.jobs:
        scales = min(job.max_nodes, job.curve[-1].nodes, len(problem.nodes)) - job.min_nodes + 2
        variables += scales + kinds
        if job.id in job_ids:
            solves += scales if all_scales or not part.count(job.id) else 2
            solves += requires_group(job)
    return variables * solves


def _is_constrained(problem: AllocationProblem) -> bool:
    """Whether more than numbers of nodes constrains the jobs."""
    return bool(problem.kinds) or any(map(requires_group, problem.jobs))


class ByKinds:
    """Solves by dynamic programs where only numbers of nodes constrain the jobs, and else by HiGHS."""

    def __init__(self, process: SolverProcess) -> None:
        """HiGHS runs in this process."""
        self._process = process

    def optima(self, problem: AllocationProblem, per_job: Sequence[ScaleValues]) -> Optima:
        """See `worth.Solving`."""
        if not _is_constrained(problem):
            return ByCounts().optima(problem, per_job)
        return KindOptima(problem, per_job, self._process)

    def counts(self, problem: AllocationProblem) -> list[int]:
        """See `worth.Solving`."""
        return [len(entry.nodes) for entry in solve(problem, process=self._process).assignments]


class KindOptima:
    """Best objectives of one problem. One node more is one that suits all jobs; one less is any."""

    def __init__(self, problem: AllocationProblem, per_job: Sequence[ScaleValues], process: SolverProcess) -> None:
        """
        Args:
            problem: A valid problem.
            per_job: Scales of each job, of up to one node more than there are.
            process: Where HiGHS runs.
        """
        groups = GroupTable.of(problem)
        self._all_scales = list(per_job)
        # The model leaves out scales that are worth less than smaller ones: these must be possible.
        self._per_job = [
            groups.possible_scales(job, scales) if job in groups.options and groups.replica(job) else scales
            for job, scales in enumerate(per_job)
        ]
        self._table = kind_table(groups) if groups.options else KindTable.of(problem)
        self._in_groups = groups
        self._max_nodes = problem.capacity
        self._groups = groups_of(problem)
        self._pool = len(problem.nodes)
        self._process = process
        self._known: dict[int, float] = {}

    def best(self, nodes: int) -> float:
        """The best objective on so many nodes.

        Raises:
            PreconditionError: HiGHS does not find it in time.
        """
        if nodes not in self._known:
            *kinds, free = self._table.capacity
            table = replace(self._table, capacity=(*kinds, free + max(0, nodes - self._pool)))
            self._known[nodes] = self._solve(self._per_job, table, nodes)
        return self._known[nodes]

    def with_scale(self, job: int, place: int) -> float:
        """The best objective with a job at a scale; minus infinity where it does not fit.

        Raises:
            PreconditionError: HiGHS does not find it in time.
        """
        scales = self._all_scales[job]
        size, one = int(scales.sizes[place]), slice(place, place + 1)
        limit = min((group.limit for group in self._groups if job in group.jobs), default=size)
        if job in self._in_groups.options:
            fits = self._in_groups.possible(job, size)
        else:
            fits = size <= max(self._table.suitable_nodes(job), sum(self._table.held[job]))
        if not fits or size > min(limit, self._max_nodes):
            return IMPOSSIBLE
        only = replace(scales, sizes=scales.sizes[one], values=scales.values[one], costs=scales.costs[one])
        return self._solve([*self._per_job[:job], only, *self._per_job[job + 1 :]], self._table, self._max_nodes)

    def _solve(self, per_job: Sequence[ScaleValues], table: KindTable, max_nodes: int) -> float:
        answer = self._process.solve(kinds_model(per_job, table, self._groups, max_nodes), _SECONDS)
        if answer.solution is None or not answer.proven:
            raise PreconditionError(f"the plan takes too long to be explained ({answer.problem or 'no proof'})")
        return objective_of(per_job, read_counts(per_job, answer.solution))
