"""A job: what was asked for, and all that is known of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from malletrain.job_manager.states import JobState

DEFAULT_MAX_RESTARTS = 3


class Backend(StrEnum):
    """What keeps the workers together; DEFAULT leaves it to JobManager's settings."""

    DEFAULT = "UNSPECIFIED"
    HOROVOD = "HOROVOD"
    TORCHRUN = "TORCHRUN"
    COMMAND = "COMMAND"


class ProfileMode(StrEnum):
    """Whether the job's curve is measured on purpose; DEFAULT leaves it to the Profiler's settings."""

    DEFAULT = "UNSPECIFIED"
    AUTO = "AUTO"
    ALWAYS = "ALWAYS"
    NEVER = "NEVER"


@dataclass(frozen=True)
class CurvePoint:
    """Throughput in samples/s at a scale in nodes."""

    nodes: int
    rate: float


@dataclass(frozen=True)
class Spec:
    """What a user submitted, checked and with its defaults filled in. Units as in `malletrain.v1.JobSpec`."""

    name: str
    command: tuple[str, ...]
    working_directory: str
    min_nodes: int
    max_nodes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    permitted_nodes: tuple[int, ...] = ()
    slots_per_node: int = 0
    scale_up_seconds: float | None = None
    scale_down_seconds: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    weight: float = 1.0
    target_samples: int = 0
    max_restarts: int = DEFAULT_MAX_RESTARTS
    profile: ProfileMode = ProfileMode.DEFAULT
    family: str = ""
    backend: Backend = Backend.DEFAULT

    def slots_on(self, gpus: Iterable[int]) -> int:
        """Worker processes on each of its nodes, by the nodes' GPUs: what was asked for, else one a GPU, at least 1."""
        return self.slots_per_node or max(1, min(gpus, default=1))

    def permits(self, nodes: int) -> bool:
        """Whether the job may run at a scale, in nodes."""
        return self.min_nodes <= nodes <= self.max_nodes and (not self.permitted_nodes or nodes in self.permitted_nodes)

    def largest_within(self, nodes: int) -> int:
        """The largest permitted scale that needs no more than so many nodes; 0 where none does."""
        return next((scale for scale in range(min(nodes, self.max_nodes), 0, -1) if self.permits(scale)), 0)

    @property
    def smallest(self) -> int:
        """The smallest permitted scale in nodes."""
        return self.permitted_nodes[0] if self.permitted_nodes else self.min_nodes


class StopIntent(StrEnum):
    """What becomes of a job once the processes that are being ended have ended."""

    WAIT = "WAIT"
    RESTART = "RESTART"
    COMPLETE = "COMPLETE"
    CANCEL = "CANCEL"

    def outranks(self, other: StopIntent | None) -> bool:
        """Whether this intent replaces another that is already under way."""
        order = list(StopIntent)
        return other is None or order.index(self) > order.index(other)


@dataclass(frozen=True)
class Release:
    """A node that is being cleared of a job's processes.

    Attributes:
        node: Its name.
        since: When it was wanted back, in seconds since the epoch.
        left: True where the main scheduler took it; False where the job itself shrank and its worker lingers.
    """

    node: str
    since: float
    left: bool


@dataclass(frozen=True)
class Job:
    """A job as it is now. Times are in seconds since the epoch.

    Three sets of nodes are kept apart: `wanted` (by the newest plan), `commanded` (what the launcher was told),
    `confirmed` (what the workers train on). `held` is what nobody else may use yet: the commanded nodes and those not
    confirmed to be free of the job's processes.

    Attributes:
        trained: Nodes of the newest scale that was confirmed, less those that left: their workers have the state.
        incarnation: Counts the supervisors started for the job.
        supervised: A supervisor is recorded as started, and its end is not recorded.
        serving: That supervisor has answered.
        sequence: Of the newest command about hosts.
        taken_sequence: The newest one that the supervisor has taken over.
        stop: Why the supervisor is being ended; None while it is not.
        preempted: The change that is not yet confirmed was forced by a leave.
        strikes: Failures that count against `max_restarts`; forgiven after a long good run, unlike `restarts`.
        changed_at: When the newest change was commanded.
        good_since: Since when the present processes have trained without a failure.
        stalled_since: Since when Monitor calls the job stalled.
        done_since: When the trainer was first seen to have said that it is done.
    """

    number: int
    spec: Spec
    state: JobState
    reason: str
    create_time: float
    update_time: float
    wanted: tuple[str, ...] = ()
    commanded: tuple[str, ...] = ()
    confirmed: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    releases: tuple[Release, ...] = ()
    plan_generation: int = 0
    incarnation: int = 0
    supervised: bool = False
    serving: bool = False
    sequence: int = 0
    taken_sequence: int = 0
    stop: StopIntent | None = None
    preempted: bool = False
    restarts: int = 0
    strikes: int = 0
    not_before: float | None = None
    changed_at: float = 0.0
    good_since: float | None = None
    stalled_since: float | None = None
    done_since: float | None = None
    samples: int = 0
    rescales: int = 0
    preemptions: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    start_time: float | None = None
    end_time: float | None = None

    @property
    def id(self) -> str:
        """Identifier, e.g. "j000012"."""
        return job_id(self.number)

    @property
    def admitted(self) -> bool:
        """Whether the job takes part in plans."""
        return self.state is not JobState.QUEUED and not self.state.final

    @property
    def target_reached(self) -> bool:
        """Whether the job has processed as many samples as it was submitted for."""
        return 0 < self.spec.target_samples <= self.samples


def nodes_in_words(count: int) -> str:
    """A number of nodes for people."""
    return f"{count} node" if count == 1 else f"{count} nodes"


def job_id(number: int) -> str:
    """Identifier of the job with a number."""
    return f"j{number:06d}"
