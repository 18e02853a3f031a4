"""How near each other the nodes of jobs are, from what JobManager and the Scavenger tell. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from malletrain.common.gpus import node_of
from malletrain.model.topology import GroupPath, shared_levels
from malletrain.monitor.machine.throughput import JobSpan
from malletrain.monitor.stragglers.slow_nodes import JobPlace

Spans = tuple[tuple[str, JobSpan], ...]
"""Jobs of which it has changed, each with what it is now."""


@dataclass
class JobSpans:
    """The groups in which idle nodes are, and the jobs that are on them.

    Holds no more than there are nodes with a known path, and jobs on nodes. Where no path is known it says nothing of
    any job, and looks at none.
    """

    _paths: dict[str, GroupPath] = field(default_factory=dict)
    _nodes: dict[str, frozenset[str]] = field(default_factory=dict)
    _told: dict[str, JobSpan] = field(default_factory=dict)

    def note_nodes(
        self, joined: Iterable[tuple[str, GroupPath]], left: Collection[str] = (), *, all_nodes: bool
    ) -> Spans:
        """Take in a change of the idle nodes.

        Args:
            joined: Nodes that joined, with their paths.
            left: Nodes that left.
            all_nodes: Whether `joined` are all that there are.
        """
        if all_nodes:
            self._paths.clear()
        for name in left:
            self._paths.pop(name, None)
        fresh = {name: path for name, path in joined if path}
        self._paths |= fresh
        if all_nodes:
            return self._changes(self._nodes)
        # A job is told of its new nodes by another stream, which may come first.
        return self._changes([job for job in self._unknown() if any(node_of(one) in fresh for one in self._nodes[job])])

    def note_jobs(self, jobs: Iterable[JobPlace], *, all_jobs: bool) -> Spans:
        """Take in which nodes jobs are on.

        Args:
            jobs: Jobs that have changed.
            all_jobs: Whether these are all that there are.
        """
        placed = {job.job_id: job.nodes for job in jobs}
        if all_jobs:
            gone = self._nodes.keys() - placed.keys()
            placed |= dict.fromkeys(gone, frozenset[str]())
        changed = [job_id for job_id, nodes in placed.items() if self._nodes.get(job_id, frozenset()) != nodes]
        for job_id in changed:
            if nodes := placed[job_id]:
                self._nodes[job_id] = nodes
            else:
                del self._nodes[job_id]
        return self._changes(changed)

    def _unknown(self) -> Iterable[str]:
        return (job_id for job_id, span in self._told.items() if span.shared_levels is None)

    def _changes(self, job_ids: Iterable[str]) -> Spans:
        if not self._paths and not self._told:
            return ()
        changes = []
        for job_id in job_ids:
            span = self._span(job_id)
            if self._told.get(job_id, JobSpan(0, None)) == span:
                continue
            changes.append((job_id, span))
            if span.nodes:
                self._told[job_id] = span
            else:
                del self._told[job_id]
        return tuple(changes)

    def _span(self, job_id: str) -> JobSpan:
        nodes = self._nodes.get(job_id, frozenset())
        if len(nodes) < 2:  # one node is as near to itself anywhere
            return JobSpan(len(nodes), None)
        return JobSpan(len(nodes), shared_levels(self._paths.get(node_of(name), ()) for name in nodes))
