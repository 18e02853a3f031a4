"""What was seen from outside. All times are seconds of the monotonic clock since the start of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NodeChange:
    """A message of the Scavenger's stream.

    Attributes:
        at: When it was received.
        snapshot: Whether `joined` is the whole present set.
        joined: Nodes that joined.
        left: Nodes that left.
    """

    at: float
    snapshot: bool
    joined: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True)
class JobSeen:
    """A job in a message of JobManager's stream.

    Attributes:
        at: When it was received.
        job_id: Its identifier.
        state: Its state.
        nodes: Nodes that it was told to use or trains on.
    """

    at: float
    job_id: str
    state: str
    nodes: frozenset[str]


@dataclass(frozen=True)
class JournalRow:
    """A row of the journal.

    Attributes:
        at: When it was first seen here, some time after it was written.
        sequence: Its number.
        job_id: The job.
        before: State before.
        after: State after.
        nodes: Nodes commanded after it.
        reason: Why, for scripts.
        text: Why, for people.
        release_s: For the confirmation of a release, the time that it took by JobManager's clock.
        since: When the newest look at the journal began that did not show it.
        unix_s: When it was written, by JobManager's wall clock, which steps.
    """

    at: float
    sequence: int
    job_id: str
    before: str
    after: str
    nodes: frozenset[str]
    reason: str
    text: str = ""
    release_s: float = 0.0
    since: float = 0.0
    unix_s: float = 0.0


@dataclass(frozen=True)
class Scan:
    """Processes of jobs on nodes that lived when a look at /proc began, and still at its end.

    Attributes:
        begin: When it began.
        end: When it ended.
        processes: Job, node and process id of each.
    """

    begin: float
    end: float
    processes: frozenset[tuple[str, str, int]]


@dataclass(frozen=True)
class Use:
    """What a service's process uses.

    Attributes:
        at: When.
        service: Name of the service.
        pid: Its process.
        rss_bytes: Resident memory.
        descriptors: Open file descriptors.
    """

    at: float
    service: str
    pid: int
    rss_bytes: int
    descriptors: int


@dataclass(frozen=True)
class Sizes:
    """Sizes of all files that the services write.

    Attributes:
        at: When.
        bytes_by_name: Bytes by path below the state folder; databases with their write-ahead logs.
    """

    at: float
    bytes_by_name: Mapping[str, int]


@dataclass(frozen=True)
class FaultDone:
    """A fault that was injected.

    Attributes:
        begin: When it began.
        end: When it was over.
        kind: What it was.
        victim: What was hit; empty if there was nothing to hit.
    """

    begin: float
    end: float
    kind: str
    victim: str


@dataclass(frozen=True)
class FinalJob:
    """A job at the end.

    Attributes:
        job_id: Its identifier.
        name: Its name.
        state: Its state.
        samples: Samples by JobManager.
        monitor_samples: Samples by Monitor; None if it does not know the job.
        trained: The counter that its training has kept; None if there is none.
        wanted: Samples that it was submitted for.
        restarts: Failures that led to a restart.
        preemptions: Events at which nodes were taken from it.
        used_node_s: Node-seconds that its usage has.
        used_samples: Samples that its usage has.
        used_preemptions: Preemptions that its usage has.
    """

    job_id: str
    name: str
    state: str
    samples: int
    monitor_samples: int | None
    trained: int | None
    wanted: int
    restarts: int = 0
    preemptions: int = 0
    used_node_s: float = 0.0
    used_samples: int = 0
    used_preemptions: int = 0


@dataclass
class Observations:
    """Everything that was seen.

    Attributes:
        submitted: Names of the jobs whose submission was answered, with the moment.
        nodes: The Scavenger's stream.
        jobs: JobManager's stream.
        rows: The journal as it was followed.
        last_rows: The whole journal, read at the end.
        scans: Looks at /proc.
        uses: What the services used.
        sizes: What they have written.
        faults: What was done to them.
        commands: Lines of the stand-ins: moment, kind, job and nodes.
        final_jobs: All jobs at the end.
        gauges: Metrics at the end that must be 0.
        left_processes: Command lines of processes of jobs that were there at the end.
        silent_services: Services that did not answer at the end.
        ends: Services that have ended, as NAME:STATUS; -9 is a kill.
        defects: Tracebacks in logs of services and supervisors: file and last line.
    """

    submitted: dict[str, float] = field(default_factory=dict)
    nodes: list[NodeChange] = field(default_factory=list)
    jobs: list[JobSeen] = field(default_factory=list)
    rows: list[JournalRow] = field(default_factory=list)
    last_rows: list[JournalRow] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    sizes: list[Sizes] = field(default_factory=list)
    faults: list[FaultDone] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    final_jobs: list[FinalJob] = field(default_factory=list)
    gauges: dict[str, float] = field(default_factory=dict)
    left_processes: list[str] = field(default_factory=list)
    silent_services: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)
