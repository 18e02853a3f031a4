"""A profile run: the measurement of one job's curve, how far it is and what it has cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class ProfileRunState(StrEnum):
    """State of a run: waiting, growing to its largest scale, measuring downwards, or complete."""

    QUEUED = "QUEUED"
    CLIMBING = "CLIMBING"
    MEASURING = "MEASURING"
    DONE = "DONE"

    @property
    def active(self) -> bool:
        """Whether it asks for scales now."""
        return self in (ProfileRunState.CLIMBING, ProfileRunState.MEASURING)


@dataclass(frozen=True)
class ProfileRun:
    """A run. Times are in seconds since the epoch, scales in nodes. The store writes these fields by their names.

    Attributes:
        job_id: The job that is profiled.
        state: Where it stands.
        reason: Why it stands there, for people.
        asked: Whether a user asked for it. It then continues even if the curve becomes known otherwise.
        not_before: Earliest time of the next attempt.
        began: When it became active the last time; None before the first.
        top: Largest scale that it aims for.
        nodes: Scale that is being measured or approached.
        arrived: When the job was first seen steady at that scale; None before.
        base_steps: Steps known at that scale before, which do not count.
        visited: Scales measured so far, in order.
        donor: Job that is giving nodes now; empty where there is none.
        donor_nodes: Scale that the donor keeps.
        donors: All jobs that have given nodes, in order.
        growths: Number of growths of the job; starts from zero nodes do not count.
        shrinks: Number of shrinks of the job.
        node_seconds: Node-seconds that the job had while the run was active.
        stalled_node_seconds: Part of them during which a change of scale was under way.
        seconds: How long the run has been active.
        seen: When these figures were last updated; None while it is not active.
        seen_nodes: Number of nodes that the job had then.
        seen_steady: Whether it was steady then.
    """

    job_id: str
    state: ProfileRunState
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

    def updated(self, now: float, nodes: int, steady: bool) -> ProfileRun:
        """The run with its costs up to now; from now on the job has `nodes` nodes."""
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

    def requeued(self, reason: str, not_before: float = 0.0) -> ProfileRun:
        """The run queued again at its place. What it has measured stays measured."""
        return replace(
            self,
            state=ProfileRunState.QUEUED,
            reason=reason,
            not_before=not_before,
            arrived=None,
            donor="",
            donor_nodes=0,
            seen=None,
        )
