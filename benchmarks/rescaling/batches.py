"""What the trainings' logs say about a rescale. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Batch(NamedTuple):
    """One batch of rank 0: when it was done (monotonic seconds), workers of its world, number, name of its world."""

    time: float
    size: int
    number: int
    world: str


@dataclass(frozen=True)
class Change:
    """What a change of a job's hosts has cost.

    Attributes:
        latency: From the command (or the kill) to the end of the first batch of the new world, in seconds.
        pause: From the end of the last batch of the old world to the end of the first of the new one, in seconds.
    """

    latency: float
    pause: float


def parse(text: str) -> list[Batch]:
    """Read a log; a last line that is not whole is left out.

    Raises:
        ValueError: a line is no batch.
    """
    found = []
    for line in text.rpartition("\n")[0].splitlines():
        moment, size, number, world = line.split()
        found.append(Batch(float(moment), int(size), int(number), world))
    return found


def change(batches: Sequence[Batch], since: float, size: int | None) -> Change | None:
    """The first change of world after a moment; None as long as there is none.

    Args:
        batches: The log, in order of time.
        since: When the change was commanded, in monotonic seconds.
        size: Workers of the new world; None: any.
    """
    before = [batch for batch in batches if batch.time <= since]
    if not before:
        return None
    old = before[-1].world
    last = max(batch.time for batch in batches if batch.world == old)
    for batch in batches:
        if batch.time > since and batch.world != old and size in (None, batch.size):
            return Change(batch.time - since, batch.time - last)
    return None
