"""How many idle nodes are used for what, kept up to date from change to change, and node-seconds of that. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set

from malletrain.common.gpus import node_of
from malletrain.job_manager.machine.job_table import JobTable
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import ManagerState
from malletrain.job_manager.machine.stimuli import NodesChanged, Stimulus
from malletrain.model.job_state import JobState
from malletrain.model.node_use import NodeUse, use_of


class UseCounter:
    """Number of idle nodes by their use, kept up to date from change to change.

    What a rescale costs the nodes on which a job trains is for Monitor to measure. Nodes that have left are not offered
    any more and count nowhere, even if a job still holds them.
    """

    def __init__(self) -> None:
        self._by_unit: dict[str, Counter[NodeUse]] = {}
        self._total: Counter[NodeUse] = Counter()

    def change(self, state: ManagerState, changed: Iterable[Job], moved: frozenset[str] | None) -> None:
        """Take over a change.

        Args:
            state: What JobManager knows now.
            changed: Jobs that changed.
            moved: Nodes that have joined or left; None: any may have.
        """
        idle = state.idle or frozenset()
        affected: Iterable[Job] = state.jobs.values() if moved is None else list(changed)
        if moved is None:
            self._by_unit, self._total = {}, Counter()
        elif moved:
            affected = [*changed, *JobTable.over(state.jobs).on_nodes(moved)]
        units = {_unit(job) for job in affected}
        fleets = {job.fleet_id for job in affected if job.fleet_id}
        members = [job for job in state.jobs.values() if job.fleet_id in fleets] if fleets else []
        known = (state.jobs[job.id] for job in affected if job.id in state.jobs and not job.fleet_id)
        sharing = _sharing({job.id: job for job in (*known, *members)}.values())
        for unit in units:
            self._total.subtract(self._by_unit.pop(unit, Counter()))
            if unit in sharing:
                self._by_unit[unit] = Counter(_uses(sharing[unit], idle))
                self._total.update(self._by_unit[unit])

    def uses(self, state: ManagerState) -> Mapping[NodeUse, int]:
        """Number of idle nodes by their use."""
        counts = {use: self._total[use] for use in NodeUse}
        return counts | {NodeUse.UNASSIGNED: max(0, len(state.idle or ()) - self._total.total())}


def moved_nodes(stimulus: Stimulus, before: ManagerState, after: ManagerState) -> frozenset[str] | None:
    """Nodes that have joined or left; None where the whole idle set was replaced."""
    if before.idle is after.idle:
        return frozenset()
    if isinstance(stimulus, NodesChanged) and before.idle is not None:
        return stimulus.joined | stimulus.left
    return None


def _unit(job: Job) -> str:
    """What has nodes to itself: a job, or a fleet."""
    return job.fleet_id or job.id


def _sharing(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Jobs that hold something, by who has its nodes to itself."""
    by_unit: dict[str, list[Job]] = {}
    for job in jobs:
        if job.held:
            by_unit.setdefault(_unit(job), []).append(job)
    return by_unit


def _uses(jobs: list[Job], idle: Set[str]) -> list[NodeUse]:
    """Uses of the idle nodes that jobs hold which share nodes. That of a node is the first of its GPUs' uses."""
    if jobs[0].fleet_number is None:
        return [use for job in jobs for node, use in _uses_of(job) if node in idle]
    order = list(NodeUse)
    use_by_node: dict[str, NodeUse] = {}
    for job in jobs:
        for name, use in _uses_of(job):
            node = node_of(name)
            if node in idle:
                use_by_node[node] = min(use, use_by_node.get(node, use), key=order.index)
    return list(use_by_node.values())


def _uses_of(job: Job) -> Iterator[tuple[str, NodeUse]]:
    """What a job holds, each with its use."""
    stopping, stalled = job.state is JobState.STOPPING, job.stalled_since is not None
    commanded, confirmed = frozenset(job.commanded), frozenset(job.confirmed)
    for name in job.held:
        yield name, use_of(name, stopping=stopping, stalled=stalled, commanded=commanded, confirmed=confirmed)


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
