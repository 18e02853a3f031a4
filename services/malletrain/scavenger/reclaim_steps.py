"""The steps of giving a node back, whose times are measured."""

from __future__ import annotations

from collections.abc import Callable

ReclaimStep = Callable[[str, float], None]
"""Told the name of a step and how long it has taken, in seconds."""

AGENT_LEFT = "agent_left"
"""From when an agent was told to leave, by the scheduler or by us, until no process of ours is on its node."""
CONFIRMED = "confirmed"
"""From a call of ReclaimNodes until JobManager has confirmed that the nodes are free."""


def unmeasured(step: str, seconds: float) -> None:
    """Nobody wants to know."""
    del step, seconds
