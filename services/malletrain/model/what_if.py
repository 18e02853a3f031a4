"""What a what-if gave: written as JSON by the process that replays the past, and read by the dashboard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PastOutcome:
    """What a part of the past has trained.

    Attributes:
        samples: Samples, net.
        efficiency: U, by minute; None where it is not known.
        bound: U if rescaling were free, in the same minutes.
        rescales: How often a plan changed a job's scale; None where that means nothing.
        preemptions: How often a job lost nodes to the main scheduler; None where that means nothing.
        course: Samples up to each time of the comparison.
    """

    samples: float
    efficiency: float | None
    bound: float | None
    rescales: int | None
    preemptions: int | None
    course: tuple[float, ...]


@dataclass(frozen=True)
class ComparedJob:
    """A job in reality and in the replay.

    Attributes:
        job_id: Identifier.
        name: Name.
        owner: Owner.
        really: Samples in this part of the past.
        replayed: Samples in the replay.
    """

    job_id: str
    name: str
    owner: str
    really: float
    replayed: float


@dataclass(frozen=True)
class WhatIfComparison:
    """What really happened, what would have happened, and what free rescaling would have given with the same settings.

    Attributes:
        times_unix: Times of the courses, in seconds since the epoch; the first and the last are the ends of this part.
        node_hours: Node-hours that were idle.
        held: Share of these that jobs held in the replay.
        really: What happened: samples of the jobs that are replayed, and U of all.
        replay: What would have happened.
        free: The same if rescaling were free.
        jobs: Jobs that are replayed, those with the most samples first.
        notes: What of the past could not be taken over.
    """

    times_unix: tuple[float, ...]
    node_hours: float
    held: float
    really: PastOutcome
    replay: PastOutcome
    free: PastOutcome
    jobs: tuple[ComparedJob, ...]
    notes: tuple[str, ...]
