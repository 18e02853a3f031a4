"""Jobs, worlds and stimuli in few words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from malletrain.job_manager.effects import Effect
from malletrain.job_manager.jobs import Job, Spec
from malletrain.job_manager.machine import Step, advance
from malletrain.job_manager.stimuli import (
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
from malletrain.job_manager.world import JobEvent, Policy, World


def spec(low: int = 1, high: int = 4, **changes: Any) -> Spec:
    return Spec(name="job", command=("true",), working_directory="/", min_nodes=low, max_nodes=high, **changes)


@dataclass
class Play:
    """A world that goes from stimulus to stimulus, with what came out on the way."""

    policy: Policy = field(default_factory=Policy)
    now: float = 1000.0
    world: World = field(default_factory=World)
    events: list[JobEvent] = field(default_factory=list)
    ended: dict[str, Job] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()

    def __call__(self, stimulus: Stimulus) -> Step:
        step = advance(self.world, stimulus, self.now, self.policy)
        self.world = step.world
        self.events += step.events
        self.ended.update((job.id, job) for job in step.changed if job.state.final)
        self.effects = step.effects
        return step

    def job(self, job_id: str = "j000001") -> Job:
        return self.world.jobs.get(job_id) or self.ended[job_id]

    def submit(self, *specs: Spec) -> None:
        self(Submitted(specs))

    def idle(self, *nodes: str) -> None:
        self(IdleSetSeen(frozenset(nodes)))

    def join(self, *nodes: str) -> None:
        self(NodesChanged(frozenset(nodes), frozenset(), self.now))

    def leave(self, *nodes: str) -> None:
        self(NodesChanged(frozenset(), frozenset(nodes), self.now))

    def plan(self, **assignments: str) -> Step:
        """`plan(j1="a b")`: nodes by the job's number."""
        pairs = tuple((f"j{int(name[1:]):06d}", tuple(nodes.split())) for name, nodes in assignments.items())
        return self(PlanReceived(self.world.generation + 1, pairs))

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


def running(nodes: str, *specs: Spec, policy: Policy | None = None, spare: str = "") -> Play:
    """One job that trains on nodes, with spare idle nodes beside them."""
    play = Play(policy or Policy())
    play.idle(*nodes.split(), *spare.split())
    play.submit(*(specs or (spec(),)))
    play.plan(j1=nodes)
    play.confirm()
    return play
