"""The jobs as the profile scheduler sees them, made anew only for jobs that have changed."""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.common.gpus import node_of
from malletrain.profiler.messages import view_of
from malletrain.profiler.profile_scheduler import JobView
from malletrain.v1 import resources_pb2


class JobViews:
    """Remembers the view of each job. Messages and mappings of nodes are replaced rather than changed."""

    def __init__(self) -> None:
        """Know no job."""
        self._known: dict[str, tuple[resources_pb2.Job, Mapping[str, str], JobView]] = {}

    def of(self, jobs: Mapping[str, resources_pb2.Job], now: float, pools: Mapping[str, str]) -> tuple[JobView, ...]:
        """Views of the admitted jobs, by identifier; members of fleets are none of them.

        The plan of a fleet measures its members while they train, and their scales are GPUs.

        Args:
            jobs: All jobs.
            now: Seconds since the epoch.
            pools: Pool of each idle node.
        """
        before, self._known = self._known, {}
        for job_id, job in sorted(jobs.items()):
            if job.admitted and not job.fleet_id:
                entry = before.get(job_id)
                # Whether a job backs off depends on the time, too.
                if entry is None or entry[0] is not job or entry[1] is not pools or job.HasField("not_before"):
                    entry = (job, pools, view_of(job, now, pools))
                self._known[job_id] = entry
        return tuple(view for _, _, view in self._known.values())


def without_fleets(nodes: Mapping[str, str], jobs: Mapping[str, resources_pb2.Job]) -> Mapping[str, str]:
    """The nodes that no member of a fleet has; the same mapping where there are no fleets.

    Args:
        nodes: Pool of each idle node.
        jobs: All jobs.
    """
    held = {node_of(gpu) for job in jobs.values() if job.fleet_id for gpu in (*job.commanded_nodes, *job.wanted_nodes)}
    return {name: pool for name, pool in nodes.items() if name not in held} if held else nodes
