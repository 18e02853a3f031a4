"""What the services say of jobs, as values: all that `malletrain jobs` needs of `malletrain.observer.facts`. Pure.

Nothing is kept here that not every viewer may see: no command, no reason in words, no environment, no family.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobFact:
    """A job as everybody may see it.

    Attributes:
        id: Identifier.
        name: Name for people.
        owner: Who submitted it.
        state: State, as `malletrain.model.job_state`.
        reason: Reason code in plain words.
        admitted: Whether it takes part in plans.
        wanted: Number of nodes that the newest plan wants for it.
        commanded: Nodes that its supervisor was told to use.
        confirmed: Nodes that its workers train on.
        min_nodes: Smallest scale.
        max_nodes: Largest scale.
        permitted: Permitted scales; empty: all in the bounds.
        target_samples: Samples after which it is complete; 0: no target.
        samples: Samples so far, as JobManager knows.
        samples_known: Whether they are exact; if not, they are those since it was last started from disk.
        rescales: Rescales so far.
        preemptions: Preemptions so far.
        restarts: Restarts so far.
        submitted: When, in seconds since the epoch.
        ended: When it ended; None before.
        not_before: No nodes before this time; None where it may have nodes now.
        changed: When it last changed.
        fleet: The fleet that it is a member of, whose scale counts GPUs; empty: none.
        fleet_gpus: GPUs of each node that members may have; 0: as many as it has, or no member.
        needs: What it needs of each of its nodes, in words; empty: any node suits.
        array: The array that it is a member of; empty: none.
    """

    id: str
    name: str = ""
    owner: str = ""
    state: str = "QUEUED"
    reason: str = ""
    admitted: bool = False
    wanted: int = 0
    commanded: frozenset[str] = frozenset()
    confirmed: frozenset[str] = frozenset()
    min_nodes: int = 1
    max_nodes: int = 1
    permitted: tuple[int, ...] = ()
    target_samples: int = 0
    samples: int = 0
    samples_known: bool = True
    rescales: int = 0
    preemptions: int = 0
    restarts: int = 0
    submitted: float = 0.0
    ended: float | None = None
    not_before: float | None = None
    changed: float = 0.0
    fleet: str = ""
    fleet_gpus: int = 0
    needs: str = ""
    array: str = ""

    @property
    def final(self) -> bool:
        """Whether it has ended."""
        return self.state in ("COMPLETED", "FAILED", "CANCELLED")


@dataclass(frozen=True, slots=True)
class ProgressFact:
    """How far a job is, by Monitor.

    Attributes:
        job_id: The job.
        samples: Samples, net of rollbacks.
        samples_lost: Samples that rollbacks have lost.
        rate: Samples per second at the present scale; 0 while unknown.
        nodes: Scale as reported.
        stalled: Whether no record has come for much longer than usual, and it is in no phase.
        phase: The phase that its script says it is in; empty: none.
        phase_s: For how long it has been in that phase, in seconds.
        slow_workers: Workers that hold up the others, for people; empty: none, or not known.
    """

    job_id: str
    samples: int = 0
    samples_lost: int = 0
    rate: float = 0.0
    nodes: int = 0
    stalled: bool = False
    phase: str = ""
    phase_s: float = 0.0
    slow_workers: str = ""


@dataclass(frozen=True, slots=True)
class PointFact:
    """A point of a curve.

    Attributes:
        nodes: Scale.
        rate: Samples per second.
        source: Where the rate comes from: prior, declared, measured, extrapolated or family.
        error: Half-width of the 95 % interval, relative to the rate.
        steps: Steps that it rests on.
    """

    nodes: int
    rate: float
    source: str = "declared"
    error: float = 0.0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class CurveFact:
    """What the Allocator believes about a job.

    Attributes:
        job_id: The job.
        points: Nodes and rates ascending.
        up_s: Stall of a growth in seconds.
        down_s: Stall of a shrink in seconds.
        fit: Shape that fills the gaps between measured points; empty with fewer than three.
        fit_line: That shape: nodes and samples per second, ascending.
    """

    job_id: str
    points: tuple[PointFact, ...] = ()
    up_s: float = 0.0
    down_s: float = 0.0
    fit: str = ""
    fit_line: tuple[tuple[int, float], ...] = ()

    def rate(self, nodes: float, error: float = 0.0) -> float:
        """Samples per second at a scale: linear between points and from 0 at 0 nodes, constant above the last.

        Args:
            nodes: Scale.
            error: By how many half-widths of its interval each point is moved; -1 for the lower end, 1 for the upper.
        """
        before, below = 0.0, 0.0
        for point in self.points:
            rate = max(0.0, point.rate * (1.0 + error * min(point.error, 1.0)))
            if nodes <= point.nodes:
                share = (nodes - before) / (point.nodes - before) if point.nodes > before else 1.0
                return below + share * (rate - below)
            before, below = point.nodes, rate
        return below
