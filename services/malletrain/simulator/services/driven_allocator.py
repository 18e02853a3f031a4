"""The Allocator's machine on a simulated clock. Its peers answer at once; only plans take time to arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from math import inf
from types import MappingProxyType

from malletrain.allocator.machine.cluster_cache import CachedJob, offered_scales
from malletrain.allocator.machine.machine import AllocatorMachine
from malletrain.allocator.machine.stimuli import (
    ApplyPlan,
    AskPeers,
    Due,
    PeersAnswered,
    PlanAnswered,
    Solve,
    Solved,
    Stimulus,
)
from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem
from malletrain.allocator.problem.planner import LINEAR_PLAN, PlannableJob, PlannableNode, PlannedValue
from malletrain.allocator.problem.training_environment import training_environment
from malletrain.allocator.solvers.choice_table import choose
from malletrain.allocator.solvers.placement import place
from malletrain.job_manager.machine.jobs import Job, JobSpec, LauncherBackend
from malletrain.model.job_state import JobState
from malletrain.model.job_value import LINEAR_VALUE
from malletrain.model.topology import TopologyPreference
from malletrain.runtime.kernel.recording import Moment
from malletrain.simulator.services.event_queue import EventQueue

AskSamples = Callable[[Sequence[str]], Mapping[str, int]]
"""From jobs with a deadline to how many samples they have trained on."""


class DrivenAllocator:
    """Tells the machine what happens, and does what it wants done, as `malletrain.allocator.loop` does."""

    def __init__(
        self,
        queue: EventQueue,
        machine: AllocatorMachine,
        plan_seconds: float,
        nodes: Callable[[], Iterable[PlannableNode]],
        apply_plan: Callable[[ApplyPlan], PlanAnswered],
        samples: AskSamples = lambda _: {},
        late_plans: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """
        Args:
            plan_seconds: Seconds from a plan's input to its arrival at JobManager.
            samples: Tells how many samples jobs with a deadline have trained on.
            late_plans: Of plans that take another time than `plan_seconds`, by generation.
        """
        self._queue = queue
        self._machine = machine
        self._plan_seconds = plan_seconds
        self._late_plans = late_plans
        self._nodes = nodes
        self._samples = samples
        self._apply_plan = apply_plan
        self._next_due = inf

    def apply(self, stimulus: Stimulus) -> None:
        """Tell the machine what has happened."""
        for effect in self._machine.advance(stimulus, Moment(self._queue.now, self._queue.now)):
            match effect:
                case AskPeers():
                    self.apply(PeersAnswered(nodes=tuple(self._nodes()), samples=self._samples(effect.deadlines)))
                case Solve():
                    self.apply(Solved(tuple(map(solve_problem, effect.problems))))
                case ApplyPlan():
                    seconds = self._late_plans.get(effect.plan.generation, self._plan_seconds)
                    self._queue.at(self._queue.now + seconds, partial(self._send, effect))
                case _:
                    pass  # nobody stores plans here, or watches them
        due = self._machine.due_at
        if due != self._next_due:
            self._next_due = due
            if due < inf:
                self._queue.at(due, partial(self._tell_due, due))

    def _tell_due(self, due: float) -> None:
        if due == self._next_due == self._machine.due_at:
            self._next_due = inf
            self.apply(Due())

    def _send(self, question: ApplyPlan) -> None:
        self.apply(self._apply_plan(question))


def solve_problem(problem: AllocationProblem) -> Allocation:
    """As `malletrain.allocator.solvers.solving.solve` by default."""
    choice = choose(problem)
    return Allocation(choice.objective, "OPTIMAL", "dp", 0.0, place(problem, choice.counts.tolist()))


def job_as_reported(job: Job) -> CachedJob:
    """What the Allocator hears of a job: what `job_manager/wire.py` and `allocator/wire/messages.py` make of it.

    Made without a message, which would take five times as long (30 and 150 µs), and a replay reports each change of a
    job. `tests/simulator/services/test_driven_allocator.py` requires that both ways give the same of any job: a field
    that plans depend on belongs in `JobTerms`, or in all three. How near its nodes are to be to each
    other is left out: replays do not know where nodes are.
    """
    spec = job.usable_spec
    return CachedJob(
        plannable=PlannableJob(
            **spec.terms(
                permitted_nodes=offered_scales(spec, job.left_out_scales),
                topology=TopologyPreference.NONE,
                topology_level=0,
            ),
            id=job.id,
            current_nodes=job.commanded,
            owner=job.owner,
            share_weight=job.share_weight,
            value=PlannedValue(spec.value, job.create_time, spec.target_samples, job.samples)
            if spec.value != LINEAR_VALUE
            else LINEAR_PLAN,
            needs=spec.needs,
            wanted_nodes=job.wanted,
        ),
        state=job.state,
        admitted=job.admitted,
        not_before=job.not_before,
        plan_generation=job.plan_generation,
        confirmed_nodes=frozenset(job.confirmed),
        environment=_environment(spec),
        stopping_since=job.update_time if job.state is JobState.STOPPING else None,
        keeps_scale=bool(job.save_error),
    )


def _environment(spec: JobSpec) -> str:
    backend = "" if spec.backend is LauncherBackend.DEFAULT else spec.backend.value.lower()
    # As services are told: of the command the program alone.
    return _cached_environment(
        spec.command[:1], spec.working_directory, spec.environment.get("PATH", ""), backend, spec.cold_start
    )


@lru_cache(maxsize=1024)
def _cached_environment(command: tuple[str, ...], folder: str, path: str, backend: str, cold: bool) -> str:
    return training_environment(command, folder, {"PATH": path}, backend, cold=cold)
