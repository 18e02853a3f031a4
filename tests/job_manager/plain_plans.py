"""What of a plan fits, found the plain way: all parts are gone through, again from the start after each that changes.

`malletrain.job_manager.machine.plans` looks at what a plan changes only, and must come to the same.
"""

from __future__ import annotations

from malletrain.job_manager.machine.job_table import Claims
from malletrain.job_manager.machine.plans import (
    idle_of,
    lost_nodes,
    migrates,
    migration_refusal,
    objection_to,
    reduce_part,
    unusable_nodes,
    with_present_nodes,
)
from malletrain.job_manager.machine.state import ManagerPolicy, ManagerState, Omission
from malletrain.job_manager.machine.stimuli import PlanReceived
from malletrain.job_manager.machine.transaction import Transaction


def plain_outcome(
    state: ManagerState, plan: PlanReceived, now: float, policy: ManagerPolicy
) -> tuple[tuple[str, ...], tuple[Omission, ...]]:
    """Jobs whose scale the plan changes, and what is left out. Its header is not checked."""
    transaction = Transaction(state, policy, now)
    parts: dict[str, tuple[str, ...]] = {}
    omissions: list[Omission] = []
    for job_id, nodes in plan.assignments:
        if objection := objection_to(transaction, job_id, nodes):
            omissions.append(Omission(job_id, nodes, objection))
        elif (job := transaction.jobs.get(job_id)) is not None:
            parts[job_id] = nodes
            if migrates(job, idle_of(transaction, nodes)):
                parts[job_id] = with_present_nodes(job, nodes)
                left_out = tuple(node for node in nodes if node not in parts[job_id])
                omissions.append(Omission(job_id, left_out, migration_refusal(job_id)))
    unusable = unusable_nodes(transaction)
    while True:
        owners = Claims.of((job for job in transaction.active() if job.id not in parts), lambda job: job.wanted)
        before = dict(parts)
        for job_id, nodes in before.items():
            job = transaction.jobs[job_id]
            lost = lost_nodes(transaction, job, nodes, unusable, owners)
            fitting = reduce_part(job, nodes, lost) if lost else nodes
            if fitting is None:
                del parts[job_id]
                left_out = tuple(node for node in nodes if node not in job.wanted)
                omissions.append(Omission(job_id, left_out, next(iter(lost.values()))))
                break
            if lost:
                parts[job_id] = fitting
                left_out = tuple(node for node in nodes if node not in fitting)
                omissions.append(Omission(job_id, left_out, next(iter(lost.values()))))
            owners.add(job, fitting)
        if parts == before:
            break
    jobs = transaction.jobs
    rescaled = tuple(job_id for job_id, nodes in parts.items() if set(nodes) != set(jobs[job_id].wanted))
    return rescaled, tuple(omissions)
