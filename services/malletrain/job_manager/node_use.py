"""What idle nodes are used for, node by node and moment by moment. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from malletrain.job_manager.jobs import Job
from malletrain.job_manager.state import ManagerState
from malletrain.job_manager.stimuli import NodesChanged, Stimulus
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


class UseCounter:
    """The same as `count_uses`, kept up to date from change to change."""

    def __init__(self) -> None:
        """Begin without jobs."""
        self._by_job: dict[str, Counter[NodeUse]] = {}
        self._total: Counter[NodeUse] = Counter()

    def change(self, state: ManagerState, changed: Iterable[Job], moved: frozenset[str] | None) -> None:
        """Take over a change.

        Args:
            state: What JobManager knows now.
            changed: Jobs that changed.
            moved: Nodes that have joined or left; None: any may have.
        """
        idle = state.idle or frozenset()
        affected = state.jobs.values() if moved is None else list(changed)
        if moved is None:
            self._by_job, self._total = {}, Counter()
        elif moved:
            affected = [*changed, *(job for job in state.jobs.values() if not moved.isdisjoint(job.held))]
        for job in affected:
            self._total.subtract(self._by_job.pop(job.id, Counter()))
            if job.id in state.jobs and job.held:
                known = state.jobs[job.id]
                self._by_job[job.id] = Counter(_use(known, node) for node in known.held if node in idle)
                self._total.update(self._by_job[job.id])

    def uses(self, state: ManagerState) -> Mapping[NodeUse, int]:
        """Number of idle nodes by their use."""
        found = {use: self._total[use] for use in NodeUse}
        return found | {NodeUse.UNASSIGNED: max(0, len(state.idle or ()) - self._total.total())}


def moved_nodes(stimulus: Stimulus, before: ManagerState, after: ManagerState) -> frozenset[str] | None:
    """Nodes that have joined or left; None where the whole idle set was replaced."""
    if before.idle is after.idle:
        return frozenset()
    if isinstance(stimulus, NodesChanged) and before.idle is not None:
        return stimulus.joined | stimulus.left
    return None


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
