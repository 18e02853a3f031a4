"""How the end of a worker is judged where workers stay while others join and leave: Elastic Horovod. Pure."""

from __future__ import annotations

from malletrain.supervisor.elastic.membership import Membership
from malletrain.supervisor.workers.worker_exit import Consequence, ExitFacts, Verdict, WorkerExit, WorkerRole

_TRIES_TO_WARM = 3


def elastic_role(ended: WorkerExit, membership: Membership) -> WorkerRole:
    """What a worker was to its job.

    Args:
        ended: The worker.
        membership: The membership before its end.
    """
    if ended.slot in membership.living:
        return WorkerRole.RANK_ZERO if ended.slot == membership.members[0] else WorkerRole.MEMBER
    # A script that ends before it looks for the others has no rank, and needs none.
    return WorkerRole.RANK_ZERO if ended.started and not membership.hosts else WorkerRole.NEW_WORKER


def elastic_asked(ended: WorkerExit, membership: Membership, facts: ExitFacts) -> bool:
    """Whether a worker had been asked to leave.

    A rescale in which its node stays asks it to come back to the rendezvous, not to leave. A batch system that takes a
    node back may signal the workers there itself, and scripts often agree to stop together.

    Args:
        ended: The worker.
        membership: The membership before its end.
        facts: What the event loop knows.
    """
    if facts.asked or membership.closing or ended.slot.host not in membership.commanded:
        return True
    hosts = {ended.slot.host, *(host for host, _ in membership.hosts)}
    return ended.code == 0 and bool(hosts & facts.leaving)


def elastic_failure(ended: WorkerExit, membership: Membership, count: int) -> Verdict:
    """What the failure of a worker means for the job.

    Args:
        ended: The worker.
        membership: The membership after its end.
        count: How often its slot has failed lately, this time included.
    """
    if membership.hosts:
        return Verdict(Consequence.NOTE, ended.how)  # the others go on, unless they are found to be lost, too
    if ended.started or ended.going:
        return Verdict(Consequence.FAIL, ended.how)
    if ended.code > 0 and not ended.lost:
        return Verdict(Consequence.FAIL, f"{ended.how} before it was warm")
    if count > _TRIES_TO_WARM:
        return Verdict(Consequence.FAIL, f"{ended.how} before it was warm, {count} times")
    return Verdict(Consequence.NOTE, ended.how)


def left_with_hosts(membership: Membership, leaving: frozenset[str]) -> bool:
    """Whether the workers may have ended because hosts of theirs were taken.

    Args:
        membership: The membership after their end.
        leaving: Nodes whose agents have reported that they are wanted back.
    """
    return any(host not in membership.commanded or host in leaving for host, _ in membership.hosts)
