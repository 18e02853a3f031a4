"""The jobs as the profile scheduler sees them, made anew only for jobs that have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from malletrain.common.gpus import node_of
from malletrain.profiler.messages import only_pool, pool_of, view_of
from malletrain.profiler.profile_scheduler import JobView
from malletrain.v1 import resources_pb2


@dataclass(frozen=True, slots=True)
class _Known:
    """The view of a job. Its nodes alone depend on the pools: a list, since fields of messages are slow to read."""

    job: resources_pb2.Job
    nodes: tuple[str, ...]
    view: JobView


class JobViews:
    """Remembers the view of each job. Messages and mappings of nodes are replaced rather than changed."""

    def __init__(self) -> None:
        """Know no job."""
        self._known: dict[str, _Known] = {}
        self._pools: Mapping[str, str] = {}

    def of(self, jobs: Mapping[str, resources_pb2.Job], now: float, pools: Mapping[str, str]) -> tuple[JobView, ...]:
        """Views of the admitted jobs, by identifier; members of fleets are none of them.

        The plan of a fleet measures its members while they train, and their scales are GPUs.

        Args:
            jobs: All jobs.
            now: Seconds since the epoch.
            pools: Pool of each idle node.
        """
        before, self._known = self._known, {}
        moved, self._pools = self._pools is not pools, pools
        only = only_pool(pools) if moved else None
        for job_id, job in sorted(jobs.items()):
            if job.admitted and not job.fleet_id:
                entry = before.get(job_id)
                # Whether a job backs off depends on the time, too.
                if entry is None or entry.job is not job or job.HasField("not_before"):
                    entry = _Known(job, tuple(job.commanded_nodes), view_of(job, now, pools))
                elif moved and (pool := pool_of(entry.nodes, pools, only)) != entry.view.pool:
                    entry = replace(entry, view=replace(entry.view, pool=pool))
                self._known[job_id] = entry
        return tuple(entry.view for entry in self._known.values())


def without_fleets(nodes: Mapping[str, str], jobs: Mapping[str, resources_pb2.Job]) -> Mapping[str, str]:
    """The nodes that no member of a fleet has; the same mapping where there are no fleets.

    Args:
        nodes: Pool of each idle node.
        jobs: All jobs.
    """
    held = {node_of(gpu) for job in jobs.values() if job.fleet_id for gpu in (*job.commanded_nodes, *job.wanted_nodes)}
    return {name: pool for name, pool in nodes.items() if name not in held} if held else nodes
