"""The Allocator's machine as its recorder sees it, and what is checked after each stimulus."""

from __future__ import annotations

import typing
from collections import Counter
from math import isfinite

from malletrain.allocator.machine.machine import AllocatorMachine, Effects, PlanPhase
from malletrain.allocator.machine.stimuli import ApplyPlan, AskPeers, Plan, Solve, Stimulus
from malletrain.allocator.problem.kinds import suitable_nodes
from malletrain.common.gpus import node_of
from malletrain.runtime.errors import InvariantError
from malletrain.runtime.kernel.recording import Moment, RecordedMachine


class RecordedAllocator(RecordedMachine[AllocatorMachine, Stimulus, Effects]):
    """How the flight recorder runs and checks the Allocator's machine. Its state has no secrets."""

    service = "allocator"
    file_prefix = "allocator-stimuli"
    state_type = AllocatorMachine
    stimulus_types = typing.get_args(Stimulus)

    def advance(self, state: AllocatorMachine, stimulus: Stimulus, now: Moment) -> Effects:
        """Have the machine handle a stimulus; its state changes in place."""
        return state.advance(stimulus, now)

    def check(self, before: AllocatorMachine, result: Effects) -> None:
        """Check the machine as it is now, and what it has just wanted done."""
        check_advance(before, result)


_ASKING = {
    PlanPhase.ASKING_AHEAD: AskPeers,
    PlanPhase.ASKING: AskPeers,
    PlanPhase.SOLVING_AHEAD: Solve,
    PlanPhase.SOLVING: Solve,
    PlanPhase.APPLYING: ApplyPlan,
}


def check_advance(machine: AllocatorMachine, effects: Effects) -> None:
    """Check a machine and what it has just wanted done.

    Raises:
        InvariantError: something contradicts itself; the message says what.
    """
    questions = [effect for effect in effects if isinstance(effect, AskPeers | Solve | ApplyPlan)]
    if questions and (len(questions) > 1 or effects[-1] is not questions[0]):
        raise InvariantError(f"expected one question at the end, got {effects}")
    if questions and not isinstance(questions[0], _ASKING.get(machine.phase, ())):
        raise InvariantError(
            f"{type(questions[0]).__name__} is asked while the machine waits for {machine.phase.value}"
        )
    if machine.phase in _ASKING and isfinite(machine.due_at):
        raise InvariantError("a Due is wanted while an answer is awaited")
    if machine.phase in (PlanPhase.YIELDING, PlanPhase.COALESCING) and not isfinite(machine.due_at):
        raise InvariantError("no Due is wanted while events may still join a plan")
    for effect in questions:
        if isinstance(effect, ApplyPlan):
            check_plan(effect.plan, machine.generation)


def check_plan(plan: Plan, generation: int) -> None:
    """Check a plan before it goes out.

    Args:
        generation: Generation of the plan before.

    Raises:
        InvariantError: it contradicts itself or its problem.
    """
    if plan.generation <= generation:
        raise InvariantError(f"generation {plan.generation} follows {generation}")
    uses = Counter(name for entry in plan.assignments for name in entry.nodes)
    if twice := [name for name, count in uses.items() if count > 1]:
        raise InvariantError(f"plan {plan.generation} gives {', '.join(sorted(twice))} twice")
    idle = set(plan.problem.whole.nodes)
    if unknown := [name for name in uses if name not in idle and node_of(name) not in idle]:
        raise InvariantError(f"plan {plan.generation} gives {', '.join(sorted(unknown))}, which are not idle")
    jobs = {job.id: job for job in plan.problem.whole.jobs}
    for entry in plan.allocation.assignments:
        job, count = jobs[entry.job_id], len(entry.nodes)
        new = set(entry.nodes).difference(job.current_nodes) if job.unsuitable_kinds else set()
        if new and (unsuitable := new - suitable_nodes(plan.problem.whole, job)):
            raise InvariantError(
                f"plan {plan.generation} gives {', '.join(sorted(unsuitable))} to {job.id}, which they do not suit"
            )
        if count and not (job.min_nodes <= count <= job.max_nodes):
            raise InvariantError(
                f"plan {plan.generation} gives {count} nodes to {job.id}, which may have "
                f"{job.min_nodes} to {job.max_nodes}"
            )
        if count and job.permitted_nodes and count not in job.permitted_nodes:
            raise InvariantError(f"plan {plan.generation} gives {count} nodes to {job.id}, which is not permitted")
