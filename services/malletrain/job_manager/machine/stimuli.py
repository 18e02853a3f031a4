"""Stimuli: everything that can happen to JobManager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from malletrain.job_manager.machine.jobs import JobSpec


@dataclass(frozen=True)
class Submitted:
    """Jobs were submitted. Their specs have been checked.

    Attributes:
        specs: What was submitted.
        owner: Name of the user who submitted them; empty in recordings of versions without owners, and in simulations.
        instance_ids: A random identifier for each; empty in recordings of versions without them, and in simulations.
    """

    specs: tuple[JobSpec, ...]
    owner: str = ""
    instance_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cancelled:
    """A user cancelled a job that is not in a final state.

    Attributes:
        job_id: The job.
        by: Name of the user; empty in recordings of versions without owners.
    """

    job_id: str
    by: str = ""


@dataclass(frozen=True)
class WeightSet:
    """A user gave another weight to a job that is not in a final state.

    Attributes:
        job_id: The job.
        weight: Its priority weight from now on, above 0.
        by: Name of the user.
    """

    job_id: str
    weight: float
    by: str


@dataclass(frozen=True)
class IdleSetSeen:
    """The whole idle set as it is now; the first message of the Scavenger's stream.

    Attributes:
        nodes: The idle nodes.
        gpus: Number of GPUs of those of them that have any.
    """

    nodes: frozenset[str]
    gpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NodesChanged:
    """One event of the idle set.

    Attributes:
        joined: Nodes that are idle from now on.
        left: Nodes that the main scheduler has taken.
        event_time: When, in seconds since the epoch.
        gpus: Number of GPUs of those joined that have any.
    """

    joined: frozenset[str]
    left: frozenset[str]
    event_time: float
    gpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanReceived:
    """A plan of the Allocator.

    Attributes:
        generation: Grows with every plan.
        assignments: Pairs of a job identifier and its nodes.
        partial: Whether the part that fits may be applied if the rest does not fit any more.
    """

    generation: int
    assignments: tuple[tuple[str, tuple[str, ...]], ...]
    partial: bool = False


@dataclass(frozen=True)
class SupervisorSeen:
    """The state of a job's supervisor.

    Attributes:
        job_id: Job identifier.
        incarnation: Which of the job's supervisors.
        commanded_sequence: Number of the newest command that it has taken over, or that a stop has overtaken.
        confirmed_sequence: Number of the newest command whose nodes the workers have confirmed.
        confirmed: Nodes that the workers have confirmed.
        occupied: Nodes with a live worker process.
        failures: Pairs of a node and how many workers have failed on it by themselves.
        kept: Whether it has no workers, no node is left to it, and it waits for others.
        idle_seconds: For how long its processes did nothing when it first said so; 0: they are at work.
        deadlocked: Whether, doing nothing, they wait for each other.
        most_nodes: Most nodes that its program can use; 0: not known.
        message: What went wrong and is not mended yet, for people; empty: nothing.
    """

    job_id: str
    incarnation: int
    commanded_sequence: int
    confirmed_sequence: int
    confirmed: frozenset[str]
    occupied: frozenset[str]
    failures: tuple[tuple[str, int], ...] = ()
    kept: bool = False
    idle_seconds: float = 0.0
    deadlocked: bool = False
    most_nodes: int = 0
    message: str = ""


@dataclass(frozen=True)
class NodesReleased:
    """The last process of a job on these nodes has ended."""

    job_id: str
    incarnation: int
    nodes: tuple[str, ...]


class Outcome(StrEnum):
    """How a supervisor's workers ended.

    EXITED: the training is over, by rank 0's exit status 0. STOPPED: ended on command. FAILED: everything else.
    """

    EXITED = "EXITED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


@dataclass(frozen=True)
class Completion:
    """What the trainer said at its end.

    Attributes:
        samples: Samples processed; None if it does not say.
        metrics: What it reports, e.g. its accuracy.
    """

    samples: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerFailure:
    """The failure that ended a supervisor's workers: that of the worker that failed first.

    Attributes:
        node: Where it ran: a node, or a GPU of a member of a fleet.
        by_script: Whether the script ended by itself, with an exit status or by a signal for what it did.
        scale: On how many nodes the workers trained; GPUs for a member of a fleet.
        seconds: For how long, in seconds.
        count: How many failures of the job's own the supervisor has seen, this one included.
    """

    node: str
    by_script: bool
    scale: int
    seconds: float
    count: int = 1


@dataclass(frozen=True)
class SupervisorEnded:
    """A job's supervisor and every process of the job have ended.

    Attributes:
        job_id: Job identifier.
        incarnation: Which of the job's supervisors.
        outcome: How the workers ended.
        message: How they ended, for people.
        completion: Present when the trainer said that it is done.
        log_tail: The last lines of the log of the worker that failed first, up to its error, or of the job's log.
        no_room: Whether it could not be started by no fault of the job, such as want of room on a disk.
        failure: The failure that ended the workers; None: none did, or it is not known.
    """

    job_id: str
    incarnation: int
    outcome: Outcome
    message: str
    completion: Completion | None
    log_tail: tuple[str, ...]
    no_room: bool = False
    failure: WorkerFailure | None = None


@dataclass(frozen=True)
class Progressed:
    """Monitor reported the progress of a job.

    Attributes:
        job_id: The job.
        samples: Samples net of rollbacks.
        stalled: Whether no batch has come for much longer than usual.
        phase: The phase that it says it is in; empty: none.
        seconds: For how long it has been in that phase, or silent.
        positions_known: Whether its trainer tells its position.
        save_error: Why its newest save failed; empty: it succeeded; None: that is not known.
    """

    job_id: str
    samples: int
    stalled: bool
    phase: str = ""
    seconds: float = 0.0
    positions_known: bool = False
    save_error: str | None = None


@dataclass(frozen=True)
class ProgressNoted:
    """The progress of jobs that decides nothing: pairs of a job identifier and its samples. Others are ignored."""

    samples: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class TrainerDone:
    """The trainer says that it is done, and its processes still run."""

    job_id: str


@dataclass(frozen=True)
class Ticked:
    """Time has passed; time limits are to be checked."""


@dataclass(frozen=True)
class ClockStepped:
    """The wall clock was set.

    Attributes:
        seconds: By how much; below 0 where it was set back.
    """

    seconds: float


@dataclass(frozen=True)
class Shutdown:
    """JobManager ends in good order and stops the jobs."""


Stimulus = (
    Submitted
    | Cancelled
    | WeightSet
    | IdleSetSeen
    | NodesChanged
    | PlanReceived
    | SupervisorSeen
    | NodesReleased
    | SupervisorEnded
    | Progressed
    | ProgressNoted
    | TrainerDone
    | Ticked
    | ClockStepped
    | Shutdown
)

REQUESTS = (Submitted, Cancelled, WeightSet)
"""Stimuli that are done only if they are stored. All others are done at once and stored soon."""
