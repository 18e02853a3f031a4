"""What jobs would have needed to get more from a plan, from the Allocator's explanation. Pure but for the messages."""

from __future__ import annotations

from malletrain.observer.facts import RequirementFact
from malletrain.v1 import allocator_pb2

_WITHOUT_SCALE = {
    allocator_pb2.SCALE_REASON_PINNED: "the end of its measuring, or a save that succeeds: its scale is pinned",
    allocator_pb2.SCALE_REASON_MAXIMUM: "nothing: it has the largest scale that it was submitted for",
    allocator_pb2.SCALE_REASON_CURVE_END: "a curve that is known beyond this scale",
}


def requirement_facts(explanation: allocator_pb2.PlanExplanation) -> tuple[RequirementFact, ...]:
    """What each job of a plan would have needed, and why it has its scale."""
    return tuple(RequirementFact(job.job_id, _needs(job), tuple(job.sentences)) for job in explanation.jobs)


def _needs(job: allocator_pb2.JobExplanation) -> str:
    if not job.HasField("more"):
        return _WITHOUT_SCALE.get(job.more_reason, "–")
    more = job.more
    match job.more_reason:
        case allocator_pb2.SCALE_REASON_POOL_TOO_SMALL:
            return f"{_nodes(more.nodes)} in its pool: that is its next permitted scale"
        case allocator_pb2.SCALE_REASON_GROUP_TOO_SMALL:
            return f"{_nodes(more.nodes)} that suit it in one group"
        case allocator_pb2.SCALE_REASON_POOL_LIMIT:
            return "a higher limit of the pool (max_nodes)"
        case allocator_pb2.SCALE_REASON_OWNER_LIMIT:
            return f"a higher limit of {job.owner}" if job.owner else "a higher limit of its owner"
        case allocator_pb2.SCALE_REASON_TIE:
            return f"anything better on {_nodes(more.nodes)}: it would be just as good, and ties change nothing"
    if more.needed_rate > 0:
        return f"{more.needed_rate:,.4g} samples/s on {_nodes(more.nodes)}; its curve says {more.rate:,.4g}"
    return f"more than any rate on {_nodes(more.nodes)}"


def _nodes(count: int) -> str:
    return f"{count} node" + ("" if count == 1 else "s")
