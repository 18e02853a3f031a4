"""Explanations as sentences, whose figures are those of the accounts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.allocator.explanation.nodes import NodeAccount
from malletrain.allocator.explanation.worth import JobAccount, PartAccount, Reason, Worth
from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand, ObjectiveMetric
from malletrain.allocator.problem.group_table import requires_group
from malletrain.model.topology import (
    TopologyPreference,
    level_in_words,
    requirement_in_words,
    spans_in_words,
)


def in_units(amount: float) -> str:
    """An amount with four significant digits at least, e.g. `12,340` or `0.5127`."""
    size = abs(amount)
    if size >= 1000 or amount == int(amount):
        return f"{amount:,.0f}"
    return f"{amount:.4g}"


def unit_of(problem: AllocationProblem) -> str:
    """What amounts are counted in."""
    if problem.objective_metric is ObjectiveMetric.SCALING_EFFICIENCY:
        return "seconds of one node"
    return "samples" if all(job.weight == 1 and job.value.linear for job in problem.jobs) else "weighted samples"


def of_part(account: PartAccount, part: AllocationProblem, pool: str) -> list[str]:
    """What the nodes of a part are worth."""
    unit, seconds = unit_of(part), part.forward_seconds
    where = f"pool {pool}" if pool else "the pool"
    sentences = [
        f"{where}: {_nodes(len(part.nodes))}, {account.unused} of them given to no job; the jobs on them are worth "
        f"{in_units(account.objective)} {unit} in the {seconds:g} s that the plan looks ahead"
    ]
    which = ", if it suits every job," if any(job.needs or requires_group(job) for job in part.jobs) else ""
    sentences.append(f"one free node more{which} would be worth {in_units(account.one_more_gain)} {unit}")
    if part.nodes:
        sentences.append(f"one node less to give would cost {in_units(account.one_fewer_loss)} {unit}")
    if part.max_nodes is not None:
        sentences.append(f"jobs may have {_nodes(part.capacity)} of it together")
    if account.pinned:
        cost = f"without that the plan would be worth {in_units(account.pin_cost)} {unit} more"
        sentences.append(f"the scale of jobs with {_nodes(account.pinned)} is pinned: {cost}")
    return sentences


def of_job(account: JobAccount, part: AllocationProblem) -> list[str]:
    """Why a job has its scale.

    Args:
        account: The job's account.
        part: The part of the problem in which the job is, without scale pins.
    """
    sentences = [_scale_sentence(account, part)]
    if account.more_reason is Reason.PINNED:
        return [*sentences, "its scale is pinned: the Profiler measures how the job scales, or its saves fail"]
    sentences.append(_more(account, part))
    if account.job.needs:
        sentences.append(f"it takes such nodes only: {_needs(account.job)}")
    if requires_group(account.job):
        cost = f"without that the plan would be worth {in_units(account.group_cost)} {unit_of(part)} more"
        costs = cost if account.group_cost else "that costs the plan nothing"
        job = account.job
        sentences.append(f"{requirement_in_words(job.topology, job.topology_level, job.nodes_per_replica)}: {costs}")
    if account.fewer is not None:
        sentences.append(_fewer(account, account.fewer, part))
    if account.more is not None and account.more.possible:
        sentences.append(
            f"its next node: worth {in_units(account.next_node_value)} {unit_of(part)} to the job itself"
            + _needs_clause(account.more)
        )
    if account.equal_nodes is not None:
        sentences.append(_share(account, account.equal_nodes))
    return sentences


def of_spans(spans: Sequence[int], *, required: bool = False) -> str:
    """How many groups a job spans that prefers nodes near each other, or requires them."""
    if required:
        return f"groups that its nodes are in: {spans_in_words(spans)}" if any(spans) else ""
    if not spans:
        return "it prefers nodes near each other; where nodes are is not known"
    if not any(spans):
        return "it prefers nodes near each other"
    return f"it prefers nodes near each other; groups that its nodes are in: {spans_in_words(spans)}"


def _share(account: JobAccount, equal: int) -> str:
    """What fair share changes: the plan is solved with equal shares."""
    same = "as many" if equal == account.chosen.nodes else _nodes(equal)
    return f"its owner's fair share counts {account.job.share_weight:.4g}; with equal shares it would have {same}"


def _scale_sentence(account: JobAccount, part: AllocationProblem) -> str:
    chosen, before = account.chosen, len(account.job.current_nodes)
    if not chosen.nodes:
        return "waits on 0 nodes" + (f", it had {before}" if before else "")
    change = f", {before} before" if before != chosen.nodes else ", as before"
    cost = f", of which the rescale costs {in_units(chosen.cost)}" if chosen.cost else ""
    worth = f"worth {in_units(chosen.value + chosen.cost)} {unit_of(part)} in {part.forward_seconds:g} s{cost}"
    return f"has {_nodes(chosen.nodes)}{change}: {in_units(chosen.rate)} samples/s, {worth}"


def _more(account: JobAccount, part: AllocationProblem) -> str:
    more, chosen, job = account.more, account.chosen, account.job
    if more is None:
        if account.more_reason is Reason.MAXIMUM:
            return f"not more: {chosen.nodes} is the largest scale that it was submitted for"
        return f"not more: its curve is known up to {_nodes(job.curve[-1].nodes)}"
    head = f"not {more.nodes}: "
    unit, gain = unit_of(part), more.value - chosen.value
    match account.more_reason:
        case Reason.POOL_TOO_SMALL:
            return f"{head}the pool has {_nodes(len(part.nodes))}, and {more.nodes} is its next permitted scale"
        case Reason.POOL_LIMIT:
            shared = f"jobs may have {_nodes(part.capacity)} of the pool together"
            return f"{head}{shared}, and {more.nodes} is its next permitted scale"
        case Reason.UNSUITABLE_NODES:
            return (
                f"{head}{account.suitable} of the pool's {_nodes(len(part.nodes))} suit it; {_binding(job, more.nodes)}"
            )
        case Reason.GROUP_TOO_SMALL:
            return f"{head}{_largest(account)}"
        case Reason.OWNER_LIMIT:
            limit = part.owner_limits[job.owner]
            text = f"{head}{job.owner} may have {_nodes(limit)} here, and has {account.owner_nodes}"
            if not more.possible:
                return text
            return f"{text}; {_loss(more, unit)}"
        case Reason.NO_FASTER:
            return f"{head}it trains no faster there, {in_units(more.rate)} samples/s; {_loss(more, unit)}"
        case Reason.RESCALE_COST:
            return (
                f"{head}the rescale costs {in_units(more.cost)} {unit}, more than {in_units(more.rate)} samples/s gain "
                f"in {part.forward_seconds:g} s; {_loss(more, unit)}"
            )
        case Reason.OTHERS_GAIN_MORE:
            return (
                f"{head}it would gain {in_units(gain)} {unit}, the others would lose {in_units(more.others_loss)}; "
                f"{_loss(more, unit)}"
            )
        case Reason.TIE:
            return f"{head}it would be just as good; ties go to fewer changes, fewer nodes, earlier jobs"
        case _:
            return f"{head}it would be {in_units(-more.loss)} {unit} better: the plan is not an optimum"


def _binding(job: JobDemand, nodes: int) -> str:
    """Which of its needs keeps a job from having so many nodes."""
    scarce = [need for need in job.needs if need.nodes < nodes]
    if len(scarce) == 1:
        return f"what binds is {scarce[0].text}"
    if scarce:
        return f"what binds is each of {', '.join(need.text for need in scarce)}"
    return "too few of one pool meet all that it needs" if len(job.needs) == 1 else "too few meet all that it needs"


def _largest(account: JobAccount) -> str:
    """What keeps a job from having more nodes that must be in groups."""
    if account.job.topology is TopologyPreference.REQUIRE_REPLICA:
        return _most_replicas(account)
    if account.job.current_nodes:
        return f"its group has {_nodes(account.suitable)} for it, and it stays there while it has nodes"
    level = level_in_words(account.job.topology_level)
    if not account.suitable:
        return f"no {level} has as many nodes as it needs at least, or it is not known where nodes are"
    return f"the largest {level} has {_nodes(account.suitable)} that suit it"


def _most_replicas(account: JobAccount) -> str:
    """What keeps a job from having more replicas whose nodes must be in one group each."""
    job, level = account.job, level_in_words(account.job.topology_level)
    each = f"{job.nodes_per_replica} nodes in one {level}"
    if account.more is not None and account.more.nodes <= account.suitable:
        return f"it gives up or completes what it has of replicas: each of them needs {each}"
    if not account.suitable:
        return f"a replica needs {each}: none has as many that suit it, or it is not known where nodes are"
    return f"each replica needs {each}, and all together have {_nodes(account.suitable)} for whole replicas of it"


def _needs(job: JobDemand) -> str:
    return ", ".join(f"{need.text} ({_nodes(need.nodes)} idle)" for need in job.needs)


def _fewer(account: JobAccount, fewer: Worth, part: AllocationProblem) -> str:
    head, unit = f"not {fewer.nodes}: ", unit_of(part)
    loss = account.chosen.value - fewer.value
    match account.fewer_reason:
        case Reason.TIE:
            return f"{head}it would be just as good; ties go to fewer changes, fewer nodes, earlier jobs"
        case Reason.NOT_OPTIMAL:
            return f"{head}it would be {in_units(-fewer.loss)} {unit} better: the plan is not an optimum"
        case _:
            others = f"the others would gain {in_units(abs(fewer.others_loss))}"
            return f"{head}it would lose {in_units(loss)} {unit}, {others}; {_loss(fewer, unit)}"


def _loss(worth: Worth, unit: str) -> str:
    return f"the plan would lose {in_units(worth.loss)} {unit}"


def _needs_clause(more: Worth) -> str:
    if not more.needed_rate:
        return ""
    rates = f"{in_units(more.needed_rate)} samples/s there, not {in_units(more.rate)}"
    return f"; it would have got {more.nodes} with {rates}"


def of_node(account: NodeAccount, price: PartAccount, part: AllocationProblem) -> list[str]:
    """Why a job has a node."""
    stay = (
        f"expected to stay {account.stay_seconds:,.0f} s" if account.stay_seconds else "its expected stay is not known"
    )
    sentences = [_holder(account), stay]
    if part.nodes:
        sentences.append(f"one node less to give would cost {in_units(price.one_fewer_loss)} {unit_of(part)}")
    return sentences


def _holder(account: NodeAccount) -> str:
    before, after, place = account.before, account.after, f"number {account.rank} of {account.of}"
    was, now = account.scale
    shrinks = f"{before} shrinks from {was} to {now} and gives up the nodes that are expected to leave first"
    if account.near and before and after in ("", before) and now < was:
        holder = f"stays with {after}" if after else f"given up by {before}"
        return f"{holder}: {before} shrinks from {was} to {now} and keeps nodes that are near each other"
    if after and before == after:
        if account.rank:
            return f"stays with {after}: {shrinks}; by expected stay this is {place}"
        return f"stays with {after}: a job keeps its nodes as long as it does not shrink"
    if before and not after:
        return f"given up by {before}: {shrinks}; by expected stay this was {place}"
    if not after:
        return f"given to no job: none gains by it; by expected stay it is {place} free nodes"
    if account.near:
        holder = f"goes to {after}, which grows from {was} to {now}" + (f"; given up by {before}" if before else "")
        return (
            f"{holder}: it prefers nodes near each other; of equally near ones it takes those expected to stay longest"
        )
    holder = f"goes to {after}, which grows from {was} to {now}" + (f"; given up by {before}" if before else "")
    if account.pinned:
        return f"{holder}; its scale is pinned"
    rule = "growing jobs take, earlier jobs first, the free nodes that are expected to stay longest"
    return f"{holder}: {rule}; this is {place}"


def _nodes(count: int) -> str:
    return f"{count} node" + ("" if count == 1 else "s")
