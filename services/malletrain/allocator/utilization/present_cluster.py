"""What the Allocator knows of nodes and jobs, as the meter of U takes it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from malletrain.allocator.machine.cluster_cache import CachedJob, ClusterCache
from malletrain.allocator.utilization.present import JobPresent, PresentUse, PresentUses
from malletrain.model.job_state import JobState

_TRAINING = (JobState.RUNNING, JobState.RESCALING)


def present_use(cluster: ClusterCache, uses: PresentUses, now: float) -> PresentUse | None:
    """What idle nodes are used for at `now`, in seconds since the epoch; None before nodes and jobs are known."""
    if not cluster.complete:
        return None
    nodes = {node.name: node.gpus for node in cluster.nodes}
    given = [job.plannable.member.terms.gpus_per_node for job in cluster.jobs if job.plannable.member is not None]
    most = max(nodes.values(), default=1)
    gpus = max((count or most for count in given), default=1)
    return uses.of(now, nodes.keys(), max(1, gpus), _jobs(cluster, now))


def _jobs(cluster: ClusterCache, now: float) -> Iterator[JobPresent]:
    for job in sorted(cluster.jobs, key=lambda job: job.plannable.id):
        if job.may_be_planned(now):
            plannable, curve = job.plannable, cluster.curve_of(job.plannable.id)
            yield JobPresent(
                id=plannable.id,
                min_nodes=plannable.min_nodes,
                max_nodes=plannable.max_nodes,
                permitted=plannable.permitted_nodes,
                curve=curve.points if curve is not None else (),
                in_fleet=plannable.member is not None,
                trains_on=_trains_on(job),
            )


def _trains_on(job: CachedJob) -> frozenset[str]:
    """Those of its nodes that its workers have confirmed and may keep; none before its first start has ended."""
    return job.confirmed_nodes.intersection(job.plannable.current_nodes) if job.state in _TRAINING else frozenset()
