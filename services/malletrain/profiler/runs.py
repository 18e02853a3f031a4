"""The measuring of one job's curve: where it stands and what it has cost so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "QUEUED"
    CLIMBING = "CLIMBING"
    MEASURING = "MEASURING"
    DONE = "DONE"

    @property
    def active(self) -> bool:
        """Whether it holds jobs at scales now."""
        return self in (RunState.CLIMBING, RunState.MEASURING)


@dataclass(frozen=True)
class Run:
    """A run. Times are in seconds since the epoch.

    Attributes:
        job_id: The job that is profiled.
        state: Where it stands.
        reason: Why; for people.
        asked: Somebody asked for it; it goes on whatever becomes known of the curve meanwhile.
        not_before: It is not tried again before this time.
        began: When it became active; the first time counts.
        top: Largest scale that it goes for, in nodes.
        nodes: The scale that is measured, or on the way there.
        arrived: When the job was first seen steady at that scale; None before.
        base_steps: Steps known at that scale before, that do not count.
        visited: Scales measured, in their order.
        donor: Who gives nodes at present.
        donor_nodes: What it is to keep, in nodes.
        donors: All that have given, in their order.
        growths: Growths of the job, starts from nothing not counted.
        shrinks: Shrinks of the job.
        node_seconds: Node-seconds that it held while the run was active.
        stalled_node_seconds: Those in which a change of scale was under way.
        seconds: How long the run has been active.
        seen: When the figures above were last brought up to date; None while it is not active.
        seen_nodes: Nodes that it held then.
        seen_steady: Whether it was steady then.
    """

    job_id: str
    state: RunState
    reason: str
    asked: bool = False
    not_before: float = 0.0
    began: float | None = None
    top: int = 0
    nodes: int = 0
    arrived: float | None = None
    base_steps: int = 0
    visited: tuple[int, ...] = ()
    donor: str = ""
    donor_nodes: int = 0
    donors: tuple[str, ...] = ()
    growths: int = 0
    shrinks: int = 0
    node_seconds: float = 0.0
    stalled_node_seconds: float = 0.0
    seconds: float = 0.0
    seen: float | None = None
    seen_nodes: int = 0
    seen_steady: bool = False

    def looked_at(self, now: float, nodes: int, steady: bool) -> Run:
        """Costs brought up to date, with the job on `nodes` nodes from now on."""
        elapsed = 0.0 if self.seen is None else max(0.0, now - self.seen)
        held = elapsed * self.seen_nodes
        known = self.seen is not None
        return replace(
            self,
            seconds=self.seconds + elapsed,
            node_seconds=self.node_seconds + held,
            stalled_node_seconds=self.stalled_node_seconds + (0.0 if self.seen_steady else held),
            growths=self.growths + (known and 0 < self.seen_nodes < nodes),
            shrinks=self.shrinks + (known and 0 < nodes < self.seen_nodes),
            seen=now,
            seen_nodes=nodes,
            seen_steady=steady,
        )

    def put_back(self, reason: str, not_before: float = 0.0) -> Run:
        """Back in the queue, in its place; what was measured stays measured."""
        return replace(
            self,
            state=RunState.QUEUED,
            reason=reason,
            not_before=not_before,
            arrived=None,
            donor="",
            donor_nodes=0,
            seen=None,
        )
