"""Keeps the ledger of the owners in step with the jobs, and says what it comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum

from malletrain.common.gpus import node_of
from malletrain.job_manager.machine.fair_share import settle_ledger, weigh_owners
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import ManagerState
from malletrain.job_manager.machine.transaction import Transaction


def keep_ledger(transaction: Transaction, *, weigh: bool) -> None:
    """Charge the owners for the nodes that their jobs have held, and give the jobs the weights that follow.

    Args:
        transaction: The transaction, at its end.
        weigh: Whether the weights may change. Ticks and progress leave them alone, so that they change only with the
            events that may lead to a plan.
    """
    if not (weigh or transaction.changed):
        return
    half_life, now = transaction.policy.fair_share_half_life_seconds, transaction.now
    owners = transaction.jobs.owners
    held = {owner: owners[owner].nodes for owner in sorted(owners)}
    if half_life <= 0:
        transaction.ledger = {}
    else:
        transaction.ledger = settle_ledger(transaction.ledger, held, now, half_life)
        if weigh:
            transaction.ledger = weigh_owners(transaction.ledger, frozenset(held), now, half_life)
    alone = len(held) < 2 or half_life <= 0
    weights = {}
    for owner, tally in owners.items():
        weight = transaction.ledger[owner].weight if owner in transaction.ledger else 1.0
        weight /= 1.0 if alone else _mean(tally.weights)
        if tally.shares.keys() != {weight}:
            weights[owner] = weight
    if weights:
        _weigh(transaction, weights)


def _weigh(transaction: Transaction, weights: Mapping[str, float]) -> None:
    """Give the admitted jobs of owners their weights."""
    for job in transaction.active():
        weight = weights.get(job.owner, job.share_weight) if job.admitted else job.share_weight
        if job.share_weight != weight:
            transaction.put(job, share_weight=weight)


def _held_nodes(jobs: Iterable[Job]) -> Counter[str]:
    """Nodes that jobs hold, by owner. A node whose GPUs members of a fleet have counts once."""
    held: Counter[str] = Counter()
    shared: dict[str, str] = {}
    for job in jobs:
        if job.fleet_number is None:
            held[job.owner] += len(job.held)
        else:
            held[job.owner] += 0
            shared.update((node_of(name), job.owner) for name in job.held)
    held.update(shared.values())
    return held


def _mean(weights: Mapping[float, int]) -> float:
    """Mean of the weights that the admitted jobs of an owner were submitted with, from the number of jobs of each.

    Divided by it, they count among the jobs of their owner, and nobody gets more by asking for large ones. A value
    curve counts with the most that it makes of a sample, a deadline with its urgency, also once it has passed.
    `JobSpec.most_weight` is 1e-15 to 1e15, so that the mean and what it divides are finite and above 0.
    """
    return fsum(weight * count for weight, count in weights.items()) / sum(weights.values())


@dataclass(frozen=True)
class OwnerShare:
    """What one owner uses and has used; fields as in `malletrain.v1.OwnerShare`."""

    owner: str
    jobs: int
    admitted_jobs: int
    nodes: int
    used_node_seconds: float
    used_fraction: float
    weight: float
    burst_buffer_gb: int = 0


def owner_shares(state: ManagerState, now: float, half_life: float) -> list[OwnerShare]:
    """The owners who have jobs or whose use still counts, by name.

    Args:
        state: What JobManager knows.
        now: Seconds since the epoch.
        half_life: In seconds; 0: there is no fair share.
    """
    jobs = Counter(job.owner for job in state.jobs.values())
    admitted = Counter(job.owner for job in state.jobs.values() if job.admitted)
    nodes = _held_nodes(state.jobs.values())
    burst_buffer: Counter[str] = Counter()
    for job in state.jobs.values():
        burst_buffer[job.owner] += job.spec.burst_buffer_gb if job.admitted else 0
    uses = {owner: use.at(now, half_life) for owner, use in state.ledger.items()} if half_life > 0 else {}
    total = sum(used for owner, used in uses.items() if owner in admitted)
    return [
        OwnerShare(
            owner=owner,
            jobs=jobs[owner],
            admitted_jobs=admitted[owner],
            nodes=nodes[owner],
            used_node_seconds=uses.get(owner, 0.0),
            used_fraction=uses.get(owner, 0.0) / total if total > 0 and owner in admitted else 0.0,
            weight=state.ledger[owner].weight if owner in uses else 1.0,
            burst_buffer_gb=burst_buffer[owner],
        )
        for owner in sorted(jobs.keys() | uses.keys())
    ]
