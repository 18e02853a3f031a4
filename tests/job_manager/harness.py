"""Builds jobs and states, and drives the machine with stimuli."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from malletrain.job_manager.machine.effects import Effect
from malletrain.job_manager.machine.jobs import Job, JobSpec
from malletrain.job_manager.machine.state import JobEvent, ManagerPolicy, ManagerState
from malletrain.job_manager.machine.state_machine import TransactionResult, advance
from malletrain.job_manager.machine.stimuli import (
    Completion,
    IdleSetSeen,
    NodesChanged,
    NodesReleased,
    Outcome,
    PlanReceived,
    Stimulus,
    Submitted,
    SupervisorEnded,
    SupervisorSeen,
    Ticked,
)
from malletrain.job_manager.machine.usage import UsageAmounts, UsageRow, settle_usage
from malletrain.job_manager.machine.validation import check_result
from malletrain.job_manager.telemetry.node_use import UseCounter, moved_nodes
from malletrain.model.node_use import NodeUse
from tests.support.builders import job_spec


def count_uses(state: ManagerState) -> Mapping[NodeUse, int]:
    """Number of idle nodes by their use, counted from a state alone."""
    counter = UseCounter()
    counter.change(state, (), None)
    return counter.uses(state)


@dataclass
class MachineHarness:
    """A state that is advanced stimulus by stimulus, and all that came out on the way; invariants are checked.

    Attributes:
        uses: What nodes are used for, counted change by change.
        usage: Rows of the usage as they would be stored, by number of the job and day.
        observe: Told of each step: the stimulus, the state before, and the result.
    """

    policy: ManagerPolicy = field(default_factory=ManagerPolicy)
    now: float = 1000.0
    state: ManagerState = field(default_factory=ManagerState)
    events: list[JobEvent] = field(default_factory=list)
    ended: dict[str, Job] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    uses: UseCounter = field(default_factory=UseCounter)
    usage: dict[tuple[int, int], UsageRow] = field(default_factory=dict)
    observe: Callable[[Stimulus, ManagerState, TransactionResult], None] | None = None

    def __call__(self, stimulus: Stimulus) -> TransactionResult:
        result = advance(self.state, stimulus, self.now, self.policy)
        check_result(self.state, result)
        self.uses.change(result.state, result.changed, moved_nodes(stimulus, self.state, result.state))
        assert self.uses.uses(result.state) == count_uses(result.state)
        if self.observe is not None:
            self.observe(stimulus, self.state, result)
        self.state = result.state
        self.events += result.events
        self.usage.update({(row.job_number, row.day): row for row in result.usage})
        self.ended.update((job.id, job) for job in result.changed if job.state.final)
        self.effects = result.effects
        return result

    def used(self, job_id: str) -> UsageAmounts:
        """What a job has used until now: all its rows, the open one brought up to date."""
        job, total = self.job(job_id), UsageAmounts()
        for row in [row for row in self.usage.values() if row.job_number == job.number]:
            if row.open is None:
                total += row.amounts
                continue
            days, usage = settle_usage(row.open, self.now, job.samples, job.preemptions)
            total = sum((amounts for _, amounts in days), total + usage.counting(job.samples, job.preemptions))
        return total

    def job(self, job_id: str = "j000001") -> Job:
        return self.state.jobs.get(job_id) or self.ended[job_id]

    def submit(self, *specs: JobSpec, owner: str = "") -> None:
        self(Submitted(specs, owner))

    def idle(self, *nodes: str) -> None:
        self(IdleSetSeen(frozenset(nodes)))

    def join(self, *nodes: str) -> None:
        self(NodesChanged(frozenset(nodes), frozenset(), self.now))

    def leave(self, *nodes: str) -> None:
        self(NodesChanged(frozenset(), frozenset(nodes), self.now))

    def plan(self, **assignments: str) -> TransactionResult:
        """`plan(j1="a b")`: nodes by the job's number."""
        pairs = tuple((f"j{int(name[1:]):06d}", tuple(nodes.split())) for name, nodes in assignments.items())
        return self(PlanReceived(self.state.generation + 1, pairs))

    def confirm(self, job_id: str = "j000001", occupied: str | None = None) -> None:
        """The supervisor has done all that it was told."""
        job = self.job(job_id)
        workers = frozenset(job.commanded if occupied is None else occupied.split())
        self(SupervisorSeen(job_id, job.incarnation, job.sequence, job.sequence, frozenset(job.commanded), workers))

    def released(self, *nodes: str, job_id: str = "j000001") -> None:
        self(NodesReleased(job_id, self.job(job_id).incarnation, nodes))

    def end(
        self,
        job_id: str = "j000001",
        outcome: Outcome = Outcome.FAILED,
        message: str = "rank 0 died",
        completion: Completion | None = None,
        log_tail: tuple[str, ...] = (),
    ) -> None:
        self(SupervisorEnded(job_id, self.job(job_id).incarnation, outcome, message, completion, log_tail))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self(Ticked())


def running(nodes: str, *specs: JobSpec, policy: ManagerPolicy | None = None, spare: str = "") -> MachineHarness:
    """One job that trains on nodes, with spare idle nodes beside them."""
    machine = MachineHarness(policy or ManagerPolicy())
    machine.idle(*nodes.split(), *spare.split())
    machine.submit(*(specs or (job_spec(),)))
    machine.plan(j1=nodes)
    machine.confirm()
    return machine
