"""How the end of a worker is judged where all are restarted at every change: torchrun, and other programs. Pure."""

from __future__ import annotations

from malletrain.supervisor.restarting.generation_state import GenerationState
from malletrain.supervisor.workers.worker_exit import Consequence, ExitFacts, Verdict, WorkerExit, WorkerRole

_TRIES_TO_WARM = 3


def member_role(ended: WorkerExit, generation: GenerationState) -> WorkerRole:
    """What a member of a generation was to its job."""
    return WorkerRole.RANK_ZERO if generation.members[:1] == (ended.slot,) else WorkerRole.MEMBER


def member_asked(ended: WorkerExit, generation: GenerationState, facts: ExitFacts) -> bool:
    """Whether a member had been asked to leave.

    While the next generation only gets ready, no member has been asked for anything. A batch system that takes a node
    back may signal the workers there itself, and scripts often agree to stop together.
    """
    if facts.asked or generation.leaving:
        return True
    hosts = {host for host, _ in generation.hosts}
    return ended.code == 0 and bool(hosts & facts.leaving)


def next_role(ended: WorkerExit, generation: GenerationState) -> WorkerRole:
    """What a worker of the next generation was to its job.

    Between two generations, a script that ends before it looks for the others has no rank, and needs none.
    """
    return WorkerRole.RANK_ZERO if ended.started and not generation.living else WorkerRole.NEW_WORKER


def next_asked(ended: WorkerExit, facts: ExitFacts) -> bool:
    """Whether a worker of the next generation had been asked to leave."""
    return facts.asked or (ended.code == 0 and ended.slot.host in facts.leaving)


def next_failure(ended: WorkerExit, generation: GenerationState, count: int) -> Verdict:
    """What the failure of a worker of the next generation means for the job."""
    if generation.living:
        return Verdict(Consequence.NOTE, ended.how)
    if ended.code > 0 and not ended.lost:
        return Verdict(Consequence.FAIL, f"{ended.how} before it was warm")
    if count > _TRIES_TO_WARM:
        return Verdict(Consequence.FAIL, f"{ended.how} before it was warm, {count} times")
    return Verdict(Consequence.NOTE, ended.how)
