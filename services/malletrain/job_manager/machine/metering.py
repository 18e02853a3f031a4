"""Keeps the usage of jobs in step with what they hold. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from malletrain.common.gpus import node_of
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.usage import NOTHING, Holding, OpenUsage, UsageRow, day_of, settle_usage
from malletrain.model.job_state import JobState


def meter(transaction: Transaction, before: Mapping[str, Job], *, nodes_told: bool) -> None:
    """Account for what jobs have held until now, where that changes, and once a day for all.

    Args:
        transaction: The transaction, at its end.
        before: The jobs before it.
        nodes_told: Whether the GPUs of nodes have been told anew.
    """
    if not transaction.policy.meters_usage:
        return
    affected = {job.id: job for job in transaction.changed.values() if _differs(before.get(job.id), job)}
    _add_sharing(transaction, before, affected)
    if nodes_told:
        affected |= {job.id: job for job in transaction.active() if job.commanded}
    shares = GpuShares(transaction)
    today = day_of(transaction.now)
    if today > transaction.usage_day:
        transaction.usage_day = today
        affected |= {job.id: job for job in transaction.active() if _has_news(transaction, job, today)}
    for job in affected.values():
        usage = transaction.usage_of(job.id)
        held = holding(job, usage.holding if usage is not None else NOTHING, transaction, shares)
        if usage is None and held == NOTHING and not (job.samples or job.preemptions):
            continue
        usage = usage or OpenUsage(today, transaction.now)
        if held != usage.holding or job.state.final or usage.day < today:
            _account(transaction, job, usage, held)


def move_usage(transaction: Transaction, seconds: float) -> None:
    """Leave a step of the wall clock, in seconds, out of what is accounted for."""
    for job in transaction.active():
        usage = transaction.usage_of(job.id)
        if usage is not None and usage.holding != NOTHING:
            transaction.put_usage(job, replace(usage, since=usage.since + seconds))


def holding(job: Job, previous: Holding, transaction: Transaction, shares: GpuShares) -> Holding:
    """What a job holds now.

    Args:
        previous: What it held before.
        transaction: Knows nodes and their GPUs.
        shares: Knows what a GPU is of a node.
    """
    names = job.commanded
    if not names:
        return NOTHING
    trains = job.state is not JobState.STOPPING and job.stalled_since is None
    training = frozenset(job.confirmed) if trains else frozenset()
    if job.fleet_number is not None:
        parts = {name: shares.of(name) for name in names}
        lost = sum(part for name, part in parts.items() if name not in training)
        return Holding(sum(parts.values()), float(len(names)), lost)
    lost = sum(name not in training for name in names)
    return Holding(float(len(names)), _gpus(names, previous, transaction), float(lost))


def _gpus(names: tuple[str, ...], previous: Holding, transaction: Transaction) -> float:
    """GPUs of nodes. Until the nodes are told after a start, as many a node as were known before it."""
    if transaction.idle is None and not all(name in transaction.gpus for name in names):
        return len(names) * previous.gpus / previous.nodes if previous.nodes else 0.0
    return float(sum(transaction.gpus.get(name, 0) for name in names))


class GpuShares:
    """What a GPU is of its node: its equal part among those that members of a fleet are commanded to use there."""

    def __init__(self, transaction: Transaction) -> None:
        """`transaction`: knows who is commanded to use what."""
        self._transaction = transaction
        self._used: Counter[str] = Counter()
        self._counted: set[str] = set()

    def of(self, name: str) -> float:
        """Use of a GPU, by its name."""
        node = node_of(name)
        # Each job counts once, on all its nodes: a member may have thousands of GPUs.
        for job in self._transaction.jobs.on_nodes((node,)):
            if job.id not in self._counted:
                self._counted.add(job.id)
                self._used.update(map(node_of, job.commanded))
        return 1.0 / max(1, self._used[node])


def _differs(before: Job | None, job: Job) -> bool:
    """Whether what a job holds may differ. Of a job that has ended, samples may be new."""
    if before is None or job.state.final:
        return True
    return (
        job.commanded != before.commanded
        or job.confirmed != before.confirmed
        or (job.state is JobState.STOPPING) != (before.state is JobState.STOPPING)
        or (job.stalled_since is None) != (before.stalled_since is None)
    )


def _add_sharing(transaction: Transaction, before: Mapping[str, Job], affected: dict[str, Job]) -> None:
    """Add members of fleets that share nodes with those that have got or lost GPUs there."""
    nodes: set[str] = set()
    for job in affected.values():
        if job.fleet_number is not None:
            old = before[job.id].commanded if job.id in before else ()
            nodes |= _nodes(set(old).symmetric_difference(job.commanded))
    if nodes:
        affected |= {job.id: job for job in transaction.jobs.on_nodes(nodes) if job.id not in affected}


def _nodes(names: Iterable[str]) -> set[str]:
    return {node_of(name) for name in names}


def _has_news(transaction: Transaction, job: Job, today: int) -> bool:
    """Whether a new day begins for a job with anything to tell of the one before."""
    usage = transaction.usage_of(job.id)
    if usage is None:
        return bool(job.samples or job.preemptions)
    return usage.day < today and (
        usage.holding != NOTHING or (job.samples, job.preemptions) != (usage.samples, usage.preemptions)
    )


def _account(transaction: Transaction, job: Job, usage: OpenUsage, held: Holding) -> None:
    ended, usage = settle_usage(usage, transaction.now, job.samples, job.preemptions)
    for day, amounts in ended:
        transaction.add_usage(UsageRow(job.number, day, job.owner, job.spec.project, amounts))
    transaction.put_usage(job, replace(usage, holding=held))
