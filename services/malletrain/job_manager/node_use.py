"""What idle nodes are used for, node by node and moment by moment. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from malletrain.job_manager.jobs import Job
from malletrain.job_manager.state import ManagerState
from malletrain.model.job_state import JobState


class NodeUse(StrEnum):
    """What an idle node is used for. All uses together are what the main scheduler has offered."""

    TRAINING = "training"
    BOOTING = "booting"
    STALLED = "stalled"
    STOPPING = "stopping"
    UNASSIGNED = "unassigned"


def count_uses(state: ManagerState) -> Mapping[NodeUse, int]:
    """Number of idle nodes by their use; nothing before the idle set is known.

    A job trains on the nodes that its workers have confirmed, also while others join; what a rescale costs the former
    is for Monitor to measure. Nodes that have left are not offered any more and count nowhere, even if a job still
    holds them.
    """
    idle = state.idle or frozenset()
    uses: Counter[NodeUse] = Counter(dict.fromkeys(NodeUse, 0))
    for job in state.jobs.values():
        for node in job.held:
            if node in idle:
                uses[_use(job, node)] += 1
    uses[NodeUse.UNASSIGNED] = max(0, len(idle) - uses.total())
    return uses


def _use(job: Job, node: str) -> NodeUse:
    if job.state is JobState.STOPPING or node not in job.commanded:
        return NodeUse.STOPPING
    if node not in job.confirmed:
        return NodeUse.BOOTING
    return NodeUse.TRAINING if job.stalled_since is None else NodeUse.STALLED


class NodeTime:
    """Integral of the uses over time, in node-seconds."""

    def __init__(self, now: float) -> None:
        """Begin at a monotonic time in seconds, without nodes."""
        self._since = now
        self._uses: Mapping[NodeUse, int] = {}
        self._node_seconds = dict.fromkeys(NodeUse, 0.0)

    def change(self, uses: Mapping[NodeUse, int], now: float) -> None:
        """From now on, nodes are used like this."""
        self._node_seconds = self.at(now)
        self._uses = uses
        self._since = max(now, self._since)

    def at(self, now: float) -> dict[NodeUse, float]:
        """Node-seconds by use until now."""
        passed = max(0.0, now - self._since)
        return {use: total + passed * self._uses.get(use, 0) for use, total in self._node_seconds.items()}
