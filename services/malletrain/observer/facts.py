"""What the streams of the services say, as values. Pure.

Nothing is kept here that not every viewer may see: no command, no reason in words, no environment, no family.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NodeFact:
    """A node that is idle now.

    Attributes:
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
    """Whether the source of idle nodes works.

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
