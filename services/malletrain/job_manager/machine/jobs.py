"""A job: what was submitted, and all that is known of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from malletrain.common import environment as env
from malletrain.common.job_limits import DEFAULT_LIMITS, JobLimits
from malletrain.fleet.spec import FleetSpec
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.model.job_terms import JobTerms, bounded_weight
from malletrain.model.job_value import LINEAR_VALUE, SpeedValue
from malletrain.model.node_needs import NO_NEEDS, NodeNeeds
from malletrain.model.scaling import ScaleCommand, ScalingPoint

DEFAULT_MAX_RESTARTS = 3
MAX_GPUS_PER_NODE = 1024


class LauncherBackend(StrEnum):
    """How workers are started and find each other. DEFAULT leaves it to the script, and to the settings."""

    DEFAULT = "UNSPECIFIED"
    HOROVOD = "HOROVOD"
    TORCHRUN = "TORCHRUN"
    COMMAND = "COMMAND"


class JobProfileMode(StrEnum):
    """Whether the job's curve is measured on purpose. DEFAULT leaves it to the Profiler's settings."""

    DEFAULT = "UNSPECIFIED"
    AUTO = "AUTO"
    ALWAYS = "ALWAYS"
    NEVER = "NEVER"


@dataclass(frozen=True)
class ArraySpec:
    """What the jobs of one array have in common.

    Attributes:
        max_admitted: Most of them that take part in plans at the same time; 0: as many as there are places.
    """

    max_admitted: int = 0


@dataclass(frozen=True)
class Dependencies:
    """Jobs that a job waits for, and arrays, of which it waits for all jobs.

    Attributes:
        after: Identifiers of those that are to have ended, however.
        after_ok: Identifiers of those that are to be COMPLETED.
    """

    after: tuple[str, ...] = ()
    after_ok: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.after or self.after_ok)

    @property
    def names(self) -> tuple[str, ...]:
        """Identifiers of all of them."""
        return self.after + self.after_ok


NO_DEPENDENCIES = Dependencies()


@dataclass(frozen=True, kw_only=True)
class JobSpec(JobTerms):
    """What a user submitted, checked and with defaults filled in. Fields and units as in `malletrain.v1.JobSpec`."""

    name: str
    command: tuple[str, ...]
    working_directory: str
    environment: Mapping[str, str] = field(default_factory=dict)
    slots_per_node: int = 0
    scale_up_seconds: float | None = None
    scale_down_seconds: float | None = None
    curve: tuple[ScalingPoint, ...] = ()
    target_samples: int = 0
    max_restarts: int = DEFAULT_MAX_RESTARTS
    profile: JobProfileMode = JobProfileMode.DEFAULT
    family: str = ""
    backend: LauncherBackend = LauncherBackend.DEFAULT
    cold_start: bool = False
    burst_buffer_gb: int = 0
    fleet: FleetSpec | None = None
    limits: JobLimits = DEFAULT_LIMITS
    launch_note: str = ""
    project: str = ""
    needs: NodeNeeds = NO_NEEDS
    array: ArraySpec | None = None
    array_parameters: Mapping[str, str] = field(default_factory=dict)
    dependencies: Dependencies = NO_DEPENDENCIES
    value: SpeedValue = LINEAR_VALUE

    @property
    def most_weight(self) -> float:
        """The most that one of its samples can count for: above 0 and finite, so that means of it can divide."""
        return bounded_weight(self.weight) * self.value.max_sample_value

    def slots_on(self, gpus: Iterable[int]) -> int:
        """Worker processes per node: what was submitted; otherwise the smallest number of GPUs of a node, at least 1.

        A member of a fleet has one for each of its GPUs.

        Args:
            gpus: Number of GPUs of each of its nodes.
        """
        if self.fleet is not None:
            return 1
        return self.slots_per_node or max(1, min(gpus, default=1))

    def gpus_on(self, gpus: Iterable[int]) -> int:
        """GPUs of a node that members of its fleet may have, at least 1; 0 of a job that is no member.

        Args:
            gpus: Number of GPUs of each of its nodes.
        """
        if self.fleet is None:
            return 0
        return self.fleet.gpus_per_node or max(1, min(gpus, default=1))

    @property
    def shares_across_nodes(self) -> bool:
        """Whether the feed of a node shares samples with those of the other nodes of its fleet."""
        fleet, environment = self.fleet, self.environment
        if fleet is None or fleet.max_nodes < 2 or not environment.get(env.FEED):
            return False
        return environment.get(env.FEED_ACROSS_NODES) != "0"


class StopIntent(StrEnum):
    """Why a job's processes are being ended: it decides the next state. The last one has the highest rank."""

    WAIT = "WAIT"
    RESTART = "RESTART"
    COMPLETE = "COMPLETE"
    CANCEL = "CANCEL"

    def outranks(self, other: StopIntent | None) -> bool:
        """Whether this intent replaces another one that is under way."""
        order = list(StopIntent)
        return other is None or order.index(self) > order.index(other)


@dataclass(frozen=True)
class NodeRelease:
    """A node on which a job's processes are being ended.

    Attributes:
        node: Its name.
        since: When it left or was given up, in seconds since the epoch.
        left: True if the main scheduler took it; False if the job shrank and its worker has not ended by itself.
    """

    node: str
    since: float
    left: bool


@dataclass(frozen=True)
class ScaleFault:
    """A scale at which a job's script has failed soon after a start.

    Attributes:
        scale: In nodes.
        count: How often.
        until: Until when the job does not get it, in seconds since the epoch; None: it may be tried.
    """

    scale: int
    count: int
    until: float | None


@dataclass(frozen=True)
class Job:
    """A job as it is now. Times are in seconds since the epoch.

    Three fields with nodes are kept apart: `wanted` (by the newest plan), `commanded` (what the supervisor was told)
    and `confirmed` (what the workers train on). `held` contains the nodes that no other job may use yet: the commanded
    ones, and those that may still have processes of the job.

    Attributes:
        owner: Name of the user who submitted it.
        instance_id: Its random identifier, by which its folder is known; empty: a version without them has taken it.
        share_weight: Factor of its weight that comes from its owner's fair share; 1 until it is admitted.
        trained: Nodes of the newest confirmed scale, less those that left: their workers have the training state.
        incarnation: Number of supervisors that were started for the job.
        supervised: Whether a supervisor was started that has not ended; False while it is kept without nodes.
        serving: Whether that supervisor has answered.
        sequence: Number of the newest command about nodes.
        taken_sequence: Number of the newest command that the supervisor has taken over.
        kept: Whether its supervisor has no workers, and has taken no command since. It waits for nodes, for a while.
        stop: Why its supervisor is being ended, which decides the next state; None: it is not being ended.
        preempted: Whether a preemption led to the change that is not confirmed yet.
        counted_failures: Failures that count against `max_restarts`. Reset after a long good run, unlike `restarts`.
        changed_at: When the newest change was commanded.
        scale_command: The newest command of a scale; None before the first.
        positions_known: Whether its trainer tells its position, by which its samples are known.
        save_error: Why its newest save failed; empty: none has failed since one succeeded, as far as is known.
        most_nodes: Most nodes that its program can use, as its supervisor says; 0: not known.
        worker_failures: Failures of workers that the present supervisor has counted.
        good_since: Since when the present processes have trained without a failure.
        stalled_since: Since when Monitor calls the job stalled.
        idle_since: Since when its processes do nothing, as far as its supervisor knows.
        deadlocked: Whether, doing nothing, they wait for each other.
        phase: The phase that it says it is in, once that has taken long; otherwise empty.
        phase_since: Since when it is in that phase.
        done_since: When it was first noticed that the trainer says that it is done.
        passed_over: How many times a job behind it was given burst buffer while it waited for its own.
        fleet_number: Number of the first member of its fleet; None: it is a member of none. The nodes of a member are
            GPUs (`malletrain.common.gpus`), and its scale counts them.
        array_number: Number of the first job of its array; None: it is a member of none.
        waits_for: Those of its dependencies that do not hold yet; it is not in line for admission before they all do.
        last_failure: Why its processes have failed the last time, for people; empty: they have not.
        scale_since: Since when its workers train at the present scale.
        scale_faults: Scales at which its script has failed soon after a start, ascending.
        good_scales: Scales at which it has trained well, ascending.
    """

    number: int
    spec: JobSpec
    state: JobState
    reason: str
    create_time: float
    update_time: float
    reason_code: JobReason = JobReason.UNSPECIFIED
    wanted: tuple[str, ...] = ()
    commanded: tuple[str, ...] = ()
    confirmed: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    releases: tuple[NodeRelease, ...] = ()
    plan_generation: int = 0
    incarnation: int = 0
    supervised: bool = False
    serving: bool = False
    sequence: int = 0
    taken_sequence: int = 0
    stop: StopIntent | None = None
    kept: bool = False
    preempted: bool = False
    restarts: int = 0
    counted_failures: int = 0
    not_before: float | None = None
    changed_at: float = 0.0
    scale_command: ScaleCommand | None = None
    most_nodes: int = 0
    worker_failures: int = 0
    positions_known: bool = False
    save_error: str = ""
    good_since: float | None = None
    stalled_since: float | None = None
    idle_since: float | None = None
    deadlocked: bool = False
    phase: str = ""
    phase_since: float | None = None
    done_since: float | None = None
    samples: int = 0
    rescales: int = 0
    preemptions: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    start_time: float | None = None
    end_time: float | None = None
    instance_id: str = ""
    owner: str = ""
    share_weight: float = 1.0
    passed_over: int = 0
    fleet_number: int | None = None
    last_failure: str = ""
    scale_since: float | None = None
    scale_faults: tuple[ScaleFault, ...] = ()
    good_scales: tuple[int, ...] = ()
    array_number: int | None = None
    waits_for: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Identifier, e.g. "j000012"."""
        return job_id(self.number)

    @property
    def fleet_id(self) -> str:
        """Identifier of its fleet, e.g. "f000012"; empty: it is a member of none."""
        return "" if self.fleet_number is None else fleet_id(self.fleet_number)

    @property
    def array_id(self) -> str:
        """Identifier of its array, e.g. "a000012"; empty: it is a member of none."""
        return "" if self.array_number is None else array_id(self.array_number)

    @property
    def admitted(self) -> bool:
        """Whether the job takes part in plans."""
        return self.state is not JobState.QUEUED and not self.state.final

    @property
    def has_supervisor(self) -> bool:
        """Whether there is a supervisor, be it one that is kept without nodes."""
        return self.supervised or self.kept

    @property
    def usable_spec(self) -> JobSpec:
        """The spec with the scales that the job's program can use: more nodes would be idle.

        Who submits by `malletrain submit` has been told before; others say what they want without anybody looking at
        the program. Where none of the scales would be left, all are.
        """
        spec = self.spec
        if not 0 < self.most_nodes < spec.max_nodes or self.fleet_number is not None:
            return spec
        permitted = tuple(nodes for nodes in spec.permitted_nodes if nodes <= self.most_nodes)
        if self.most_nodes < spec.min_nodes or (spec.permitted_nodes and not permitted):
            return spec
        return replace(spec, max_nodes=self.most_nodes, permitted_nodes=permitted)

    def whole(self, nodes: Sequence[str], others: Iterable[str]) -> tuple[str, ...]:
        """The job's nodes that are among others, in their order.

        Where all nodes of each replica must be in one group, that is replicas with all their nodes only.

        Args:
            nodes: As a plan names them, or as it is commanded: the nodes of such a replica follow each other.
            others: Nodes.
        """
        return whole_replicas(nodes, others, self.spec.grouped_nodes)

    @property
    def left_out_scales(self) -> tuple[int, ...]:
        """Scales that it does not get for a while, since its script has failed there."""
        return tuple(fault.scale for fault in self.scale_faults if fault.until is not None)

    def may_have(self, nodes: int) -> bool:
        """Whether the job may run at a scale now, in nodes."""
        return self.usable_spec.permits(nodes) and nodes not in self.left_out_scales

    def max_within(self, nodes: int) -> int:
        """The largest scale of at most `nodes` nodes that it may have now; 0 if there is none."""
        scale = self.usable_spec.max_within(nodes)
        while scale in self.left_out_scales:
            scale = self.usable_spec.max_within(scale - 1)
        return scale

    def in_words(self, scale: int) -> str:
        """A scale of this job in words, e.g. "1 node", or "2 GPUs" of a member of a fleet."""
        unit = "node" if self.fleet_number is None else "GPU"
        return f"{scale} {unit}" if scale == 1 else f"{scale} {unit}s"

    def commanding(self, nodes: int, now: float) -> ScaleCommand:
        """The next command of a scale, in nodes; given at `now`, in seconds since the epoch."""
        starts = self.state in (JobState.WAITING, JobState.STARTING)
        return ScaleCommand(
            number=self.sequence + 1,
            unix_seconds=now,
            from_nodes=0 if starts else len(self.commanded),
            to_nodes=nodes,
            disturbed_unix_seconds=now if self.state is JobState.RESCALING else 0.0,
        )

    @property
    def keeps_scale(self) -> bool:
        """Whether no plan may change its nodes: its saves fail, and a change would lose what is not saved."""
        return bool(self.save_error) and self.supervised and self.stop is None

    @property
    def samples_known(self) -> bool:
        """Whether its samples are exact: without positions, only until other processes go on with its model."""
        return self.positions_known or (max(self.incarnation, self.sequence) <= 1 and not self.worker_failures)

    def disturbed_command(self, now: float) -> ScaleCommand | None:
        """The newest command, now that something else has happened; `now` is in seconds since the epoch."""
        command = self.scale_command
        if command is None or command.disturbed_unix_seconds:
            return command
        return replace(command, disturbed_unix_seconds=now)

    @property
    def target_reached(self) -> bool:
        """Whether the job has processed as many samples as it was submitted for."""
        return 0 < self.spec.target_samples <= self.samples


def job_number(identifier: str) -> int:
    """Number of the job with an identifier that `job_id` made."""
    return int(identifier[1:])


def job_id(number: int) -> str:
    """Identifier of the job with a number, e.g. "j000012"."""
    return f"j{number:06d}"


def array_id(first_number: int) -> str:
    """Identifier of the array whose first job has a number, e.g. "a000012"."""
    return f"a{first_number:06d}"


def after_failure(job: Job) -> str:
    """What is added to the reason of a job that has failed and does not train again yet."""
    return f" (after: {job.last_failure})" if job.last_failure and job.counted_failures else ""


def fleet_id(first_number: int) -> str:
    """Identifier of the fleet whose first member is the job with a number, e.g. "f000012"."""
    return f"f{first_number:06d}"


def first_member(fleet_id: str) -> str:
    """Identifier of the first member of a fleet, e.g. "j000012" of "f000012"."""
    return f"j{fleet_id[1:]}"


# Of lists of nodes. A job may have a thousand: what is looked up in the other list is a set.


def within(nodes: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """The nodes that are among the others, in their order."""
    known = frozenset(others)
    return tuple(node for node in nodes if node in known)


def whole_replicas(nodes: Sequence[str], others: Iterable[str], size: int) -> tuple[str, ...]:
    """The nodes of those replicas that are among the others with all their nodes, in their order.

    Args:
        nodes: The nodes of each replica follow each other.
        others: Nodes.
        size: Nodes of each replica; 1: it is the same as `within`.
    """
    known = frozenset(others)
    replicas = (nodes[first : first + size] for first in range(0, len(nodes) - len(nodes) % size, size))
    return tuple(node for replica in replicas if known.issuperset(replica) for node in replica)


def without(nodes: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """The nodes that are not among the others, in their order."""
    known = frozenset(others)
    return tuple(node for node in nodes if node not in known)
