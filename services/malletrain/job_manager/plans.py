"""Plans: whether one fits the present state, and what it changes."""

from __future__ import annotations

from collections import Counter

from malletrain.job_manager.jobs import StopIntent
from malletrain.job_manager.stimuli import PlanReceived
from malletrain.job_manager.transaction import Transaction
from malletrain.runtime.errors import StalePlanError


def apply_plan(transaction: Transaction, plan: PlanReceived) -> tuple[str, ...]:
    """Make the nodes of a plan the wanted nodes of its jobs, or refuse the whole plan.

    Returns:
        Identifiers of the jobs whose scale it changes.

    Raises:
        StalePlanError: the plan does not fit the present state; the message names the job or the node.
    """
    check_plan(transaction, plan)
    transaction.generation = plan.generation
    rescaled = []
    for job_id, nodes in plan.assignments:
        job = transaction.jobs.get(job_id)
        if job is None:
            continue
        if set(nodes) != set(job.wanted):
            rescaled.append(job_id)
        transaction.put(job, wanted=nodes, plan_generation=plan.generation)
    return tuple(rescaled)


def check_plan(transaction: Transaction, plan: PlanReceived) -> None:
    """Refuse a plan that does not fit the present state.

    Raises:
        StalePlanError: the plan does not fit; the message names the job or the node.
    """
    if plan.generation <= transaction.generation:
        raise StalePlanError(
            f"generation {plan.generation}: expected above {transaction.generation}, the last one applied"
        )
    if transaction.idle is None:
        raise StalePlanError("the idle nodes are not known yet: Scavenger has not told them")
    named = Counter(job_id for job_id, _ in plan.assignments)
    if twice := sorted(job_id for job_id, count in named.items() if count > 1):
        raise StalePlanError(f"job {twice[0]} is named twice")
    for job_id, nodes in plan.assignments:
        _check_job(transaction, job_id, nodes)
    _check_nodes(transaction, plan, transaction.idle)


def _check_job(transaction: Transaction, job_id: str, nodes: tuple[str, ...]) -> None:
    job = transaction.jobs.get(job_id)
    if not nodes:
        return
    if job is None:
        raise StalePlanError(f"job {job_id} is unknown or has ended")
    if not job.admitted:
        raise StalePlanError(f"job {job_id} is not admitted")
    if job.stop in (StopIntent.CANCEL, StopIntent.COMPLETE) or job.target_reached:
        raise StalePlanError(f"job {job_id} is ending: {job.reason}")
    if job.not_before is not None and transaction.now < job.not_before:
        raise StalePlanError(
            f"job {job_id} gets no nodes for another {job.not_before - transaction.now:.1f} s: {job.reason}"
        )
    spec = job.spec
    if not spec.permits(len(nodes)):
        sizes = f"one of {list(spec.permitted_nodes)}" if spec.permitted_nodes else f"{spec.min_nodes}-{spec.max_nodes}"
        raise StalePlanError(f"job {job_id}: expected {sizes} nodes, got {len(nodes)}")
    if _migrates(job.wanted, nodes) and _migrates(job.commanded, nodes):
        raise StalePlanError(f"job {job_id}: expected to gain or to lose nodes, not both at once")


def _migrates(before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    return bool(set(before) - set(after)) and bool(set(after) - set(before))


def _check_nodes(transaction: Transaction, plan: PlanReceived, idle: frozenset[str]) -> None:
    named = {job_id for job_id, _ in plan.assignments}
    owner = {node: job.id for job in transaction.active() if job.id not in named for node in job.wanted}
    leaving = {release.node for job in transaction.active() for release in job.releases if release.left}
    for job_id, nodes in plan.assignments:
        for node in nodes:
            if node not in idle:
                raise StalePlanError(f"node {node} (for job {job_id}) is not idle")
            if node in leaving:
                raise StalePlanError(f"node {node} (for job {job_id}) is still being released")
            if node in owner:
                raise StalePlanError(f"node {node} (for job {job_id}) is job {owner[node]}'s")
            owner[node] = job_id
