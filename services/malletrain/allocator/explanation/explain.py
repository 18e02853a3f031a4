"""From a stored plan to its explanation, as messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from malletrain.allocator.explanation import sentences
from malletrain.allocator.explanation.forced_by_kind import MAX_KIND_STEPS, ByKinds, kind_steps
from malletrain.allocator.explanation.nodes import NodeAccount, node_account
from malletrain.allocator.explanation.plan_parts import parts_of
from malletrain.allocator.explanation.worth import (
    MAX_STEPS,
    JobAccount,
    PartAccount,
    PartExplainer,
    PlannedPart,
    Worth,
    steps,
)
from malletrain.allocator.problem.allocation_problem import AllocationProblem
from malletrain.allocator.problem.group_table import requires_group
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.model.topology import NodeTree, TopologyPreference
from malletrain.runtime.errors import NotFoundError, PreconditionError
from malletrain.runtime.messages import message_of
from malletrain.v1 import allocator_pb2


def explain_plan(plan: allocator_pb2.Plan, job_id: str = "", node: str = "") -> allocator_pb2.PlanExplanation:
    """Why a plan is as it is.

    Args:
        job_id: Only this job or fleet, with all its scales; of a member of a fleet, the whole fleet. Empty: every job.
        node: Only this node and the jobs that had or got it; empty: none.

    Raises:
        NotFoundError: the plan does not know the job or the node.
        PreconditionError: the job took no part in the plan, or the plan is too large to be solved again for this.
    """
    parts = parts_of(plan)
    named, job_id = job_id, _planned_as(plan, job_id)
    if job_id:
        parts = [part for part in parts if job_id in part.assignments]
    elif node:
        parts = [part for part in parts if node in part.problem.whole.nodes]
    if not parts and any(job.id == job_id for job in plan.problem.jobs):
        raise PreconditionError(
            f"job {named} took no part in plan {plan.generation}: no pool had a place for it "
            "(allocator.pools.NAME.max_parallel)"
        )
    if fault := plan.left_out.get(named):
        raise PreconditionError(
            f"job {named} was left out of plan {plan.generation} and kept its nodes: its figures are wrong ({fault})"
        )
    if not parts and (job_id or node):
        raise NotFoundError(f"plan {plan.generation} does not know {f'job {named}' if named else f'node {node}'}")
    of_kinds = sum(kind_steps(part, _explained_jobs(part, job_id, node), all_scales=bool(job_id)) for part in parts)
    if sum(steps(part.problem.whole) for part in parts) > MAX_STEPS or of_kinds > MAX_KIND_STEPS:
        raise PreconditionError(f"plan {plan.generation} is too large to be explained")
    explanation = allocator_pb2.PlanExplanation(
        generation=plan.generation,
        create_time=plan.create_time,
        trigger=plan.trigger,
        applied=plan.applied,
        refusal=plan.refusal,
        omissions=plan.omissions,
        status=plan.allocation.status,
        parts_known=bool(plan.parts),
        fleets=[fleet for fleet in plan.fleets if not node and job_id in ("", fleet.fleet_id)],
    )
    with closing(SolverProcess()) as process:
        for part in parts:
            _add_part(explanation, PartExplainer(part, ByKinds(process)), job_id, node)
    return explanation


def _add_part(explanation: allocator_pb2.PlanExplanation, explainer: PartExplainer, job_id: str, node: str) -> None:
    """Add what is to be said of a part: of one job, of one node with its jobs, or of all jobs."""
    part = explainer.part
    whole, account = part.problem.whole, explainer.account()
    explanation.parts.append(_part(account, whole, part.pool))
    if node:
        answer = node_account(part.problem, part.pool, part.assignments, node)
        explanation.node.CopyFrom(_node(answer, account, whole))
    accounts = (explainer.job(name, all_scales=bool(job_id)) for name in _explained_jobs(part, job_id, node))
    for entry in accounts:
        message = _job(entry, part.problem.rest)
        if entry.job.topology is not TopologyPreference.NONE:
            spans = _spans(whole, entry.job.id, part.assignments)
            if spanned := sentences.of_spans(spans, required=requires_group(entry.job)):
                message.sentences.append(spanned)
        explanation.jobs.append(message)


def _spans(problem: AllocationProblem, job_id: str, assignments: Mapping[str, Sequence[str]]) -> tuple[int, ...]:
    """Groups of each level that a job spans by the plan; empty where nothing is known of where nodes are."""
    nodes = [name for name in assignments[job_id] if name in problem.nodes]
    return NodeTree.of(problem.nodes, problem.paths).spans(nodes) if problem.paths else ()


def _explained_jobs(part: PlannedPart, job_id: str, node: str) -> Iterable[str]:
    """The jobs that are explained: one, those of a node, or all."""
    if job_id:
        return [job_id]
    if not node:
        return part.assignments
    holders = node_account(part.problem, part.pool, part.assignments, node)
    return dict.fromkeys(filter(None, (holders.before, holders.after)))


def _planned_as(plan: allocator_pb2.Plan, job_id: str) -> str:
    """What a job is in the plan: itself, or its fleet."""
    return next((one.fleet_id for one in plan.fleets for entry in one.members if entry.job_id == job_id), job_id)


def _part(account: PartAccount, part: AllocationProblem, pool: str) -> allocator_pb2.PartExplanation:
    return message_of(
        allocator_pb2.PartExplanation,
        account,
        pool=pool,
        nodes=len(part.nodes),
        unused_nodes=account.unused,
        pinned_nodes=account.pinned,
        forward_seconds=part.forward_seconds,
        sentences=sentences.of_part(account, part, pool),
    )


def _job(account: JobAccount, part: AllocationProblem) -> allocator_pb2.JobExplanation:
    return message_of(
        allocator_pb2.JobExplanation,
        account,
        job_id=account.job.id,
        owner=account.job.owner,
        nodes_before=len(account.job.current_nodes),
        chosen=_worth(account.chosen),
        more=_worth(account.more) if account.more else None,
        fewer=_worth(account.fewer) if account.fewer else None,
        scales=[_worth(worth) for worth in account.scales],
        sentences=sentences.of_job(account, part),
    )


def _worth(worth: Worth) -> allocator_pb2.ScaleWorth:
    loss = worth.loss if worth.possible else 0.0
    return message_of(allocator_pb2.ScaleWorth, worth, rescale_cost=worth.cost, loss=loss)


def _node(account: NodeAccount, price: PartAccount, part: AllocationProblem) -> allocator_pb2.NodeExplanation:
    return message_of(
        allocator_pb2.NodeExplanation,
        account,
        job_before=account.before,
        job_after=account.after,
        expected_stay_seconds=account.stay_seconds,
        sentences=sentences.of_node(account, price, part),
    )
