"""What the streams of the services say, as values. Pure.

Nothing is kept here that not every viewer may see: no command, no reason in words, no environment, no family.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NodeFact:
    """A node that is idle now.

    Attributes:
        name: Its name.
        idle_since: When its idle fragment began, in seconds since the epoch.
        expected_stay_s: Expected further stay when it joined, in seconds; 0 where nothing is known.
        idle_until: When its idleness ends at the latest, in seconds since the epoch; None where nobody says.
        pool: Pool that it belongs to; empty where there is one only.
        gpus: Kind and number of its GPUs; empty without.
        held: Whether a placeholder of ours holds it.
        gpu_count: How many GPUs it has.
    """

    name: str
    idle_since: float
    expected_stay_s: float = 0.0
    idle_until: float | None = None
    pool: str = ""
    gpus: str = ""
    held: bool = False
    gpu_count: int = 0


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
class StallFact:
    """A measured rescale.

    Attributes:
        job_id: The job.
        from_nodes: Scale before.
        to_nodes: Scale after.
        seconds: How long training stood still.
        time: When it went on, in seconds since the epoch.
    """

    job_id: str
    from_nodes: int
    to_nodes: int
    seconds: float
    time: float


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


@dataclass(frozen=True, slots=True)
class RowOfPlan:
    """What a plan says of one job.

    Attributes:
        job_id: The job.
        before: Nodes that it held.
        after: Nodes that it gets.
    """

    job_id: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class PlanFact:
    """A plan.

    Attributes:
        generation: Its number.
        time: When it was made, in seconds since the epoch.
        trigger: What led to it.
        nodes: Nodes of its problem.
        forward_s: T_fwd in seconds.
        objective: Value of the objective.
        status: OPTIMAL, FEASIBLE or UNCHANGED.
        solver: What solved it.
        solve_s: How long that took, in seconds.
        applied: Whether JobManager took it.
        refusal: Why not.
        omissions: What JobManager left out.
        rows: What each job got.
        problem: The problem as a protobuf message, in bytes.
    """

    generation: int
    time: float = 0.0
    trigger: str = ""
    nodes: int = 0
    forward_s: float = 0.0
    objective: float = 0.0
    status: str = ""
    solver: str = ""
    solve_s: float = 0.0
    applied: bool = True
    refusal: str = ""
    omissions: tuple[str, ...] = ()
    rows: tuple[RowOfPlan, ...] = ()
    problem: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class RequirementFact:
    """Why a job has its scale in a plan, by the Allocator's explanation.

    Attributes:
        job_id: The job.
        needs: What it would have needed to get more.
        why: The explanation in sentences, of which each is true by itself.
    """

    job_id: str
    needs: str
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReleaseFact:
    """A node that the main scheduler took is free of our processes.

    Attributes:
        time: When, in seconds since the epoch.
        job_id: The job that had it.
        seconds: From the leave until no process of ours was left.
    """

    time: float
    job_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HeldFact:
    """A row of the journal: which nodes a job was told to use from a moment on.

    Attributes:
        time: In seconds since the epoch.
        job_id: The job.
        nodes: Its nodes.
        state: Its state, as `JobFact.state`.
        confirmed: Whether its workers have confirmed these nodes with this row.
    """

    time: float
    job_id: str
    nodes: frozenset[str]
    state: str = ""
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class IdleFact:
    """A change of the idle set, or the whole set.

    Attributes:
        time: In seconds since the epoch.
        joined: Nodes that joined, or all that there are.
        left: Nodes that left.
        whole: Whether `joined` is the whole set.
    """

    time: float
    joined: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class NodeTrouble:
    """A node that is left out for a while.

    Attributes:
        name: Its name; empty where all nodes are meant.
        kind: `quarantined` or `drained`.
        text: Since or until when, by whom and why; for people.
    """

    name: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class SourceFact:
    """How the source of idle nodes fares.

    Attributes:
        source: Its name, e.g. "slurm".
        stale: Whether its last good answer is too old.
        placeholders: A line for each scheduler whose nodes are held.
        troubles: Nodes that are quarantined or drained.
    """

    source: str = ""
    stale: bool = False
    placeholders: tuple[str, ...] = ()
    troubles: tuple[NodeTrouble, ...] = ()
