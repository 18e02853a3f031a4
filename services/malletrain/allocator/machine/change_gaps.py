"""How often jobs change their scale, as the Allocator has seen it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from malletrain.allocator.machine.cluster_cache import CachedJob
from malletrain.allocator.problem.forward_time import NOTHING_OBSERVED, ObservedChanges

_REMEMBERED = 200
"""About so many of the newest changes count: each one takes 1/200 off the weight of the earlier ones."""
_TOGETHER_SECONDS = 1.0
"""Changes of one job within this time count as one: a node that leaves, and the plan that follows it."""


@dataclass
class ChangeGaps:
    """Node-seconds of jobs, and changes of scale in them. A start is no change; the loss of the last node is one."""

    _counts: dict[str, int] = field(default_factory=dict)
    _changed_at: dict[str, float] = field(default_factory=dict)
    _running: int = 0
    _held: int = 0
    _now: float | None = None
    _observed: ObservedChanges = NOTHING_OBSERVED

    def note_scale(self, job_id: str, nodes: int, now: float) -> None:
        """A job has so many nodes at `now`, in seconds; times never fall."""
        self._advance(now)
        before = self._counts.get(job_id, 0)
        if nodes == before:
            self._counts[job_id] = nodes
            return
        if before and now - self._changed_at.get(job_id, float("-inf")) > _TOGETHER_SECONDS:
            self._changed_at[job_id] = now
            decay, seen = 1 - 1 / _REMEMBERED, self._observed
            self._observed = ObservedChanges(
                decay * seen.job_seconds, decay * seen.node_seconds, decay * seen.changed_nodes + before
            )
        self._set(job_id, nodes)

    def forget(self, job_id: str, now: float) -> None:
        """A job has ended, which is no change of its scale."""
        self._advance(now)
        self._set(job_id, 0)
        self._counts.pop(job_id, None)
        self._changed_at.pop(job_id, None)

    def keep_only(self, job_ids: Collection[str], now: float) -> None:
        """Forget all other jobs."""
        for job_id in [known for known in self._counts if known not in job_ids]:
            self.forget(job_id, now)

    def see_all(self, jobs: Collection[CachedJob], now: float, *, snapshot: bool) -> None:
        """Take in jobs as JobManager reports them.

        Args:
            now: Monotonic time in seconds.
            snapshot: Whether these are all jobs; changes since the last report are one change each.
        """
        if snapshot:
            self.keep_only({job.plannable.id for job in jobs}, now)
        for job in jobs:
            if job.state.final:
                self.forget(job.plannable.id, now)
            else:
                self.note_scale(job.plannable.id, len(job.plannable.current_nodes), now)

    def observed(self, now: float) -> ObservedChanges:
        """What has been seen until `now`, in seconds."""
        self._advance(now)
        return self._observed

    def _advance(self, now: float) -> None:
        if self._now is not None:
            passed, seen = now - self._now, self._observed
            self._observed = replace(
                seen,
                job_seconds=seen.job_seconds + self._running * passed,
                node_seconds=seen.node_seconds + self._held * passed,
            )
        self._now = now

    def _set(self, job_id: str, nodes: int) -> None:
        before = self._counts.get(job_id, 0)
        self._running += bool(nodes) - bool(before)
        self._held += nodes - before
        self._counts[job_id] = nodes
