"""`launch.json` of a job's folder: what JobManager asks of a supervisor. The one place that knows its form.

Files of earlier versions lack what came later, and supervisors of earlier versions leave out what they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from malletrain.common.job_limits import DEFAULT_LIMITS, JobLimits

_DEFAULT_RESTARTS = 3
"""For launches of versions that do not say it."""


@dataclass(frozen=True)
class AgentAddress:
    """Where an agent is, and by what it is known.

    Attributes:
        address: HOST:PORT on which it serves.
        name: DNS name that its certificate must have; empty: that of its role, which all agents have.
    """

    address: str
    name: str = ""


@dataclass(frozen=True)
class Launch:
    """One job's launch.

    Attributes:
        job_id: Job identifier.
        backend: Name of the launcher backend.
        command: Program and arguments of a worker.
        working_directory: Where workers start.
        environment: Environment of the workers, on top of the supervisor's own.
        slots_per_node: Worker processes on every node, at least 1.
        socket: Path of the Unix socket to serve on.
        sequence: Sequence of the first command.
        instance_id: Tells the job from others that had its number; empty: not known.
        incarnation: Number of this start of a supervisor.
        backend_named: Whether the job names the backend; otherwise it is the operator's default.
        min_nodes: Fewest nodes on which the job is to train.
        max_nodes: Most nodes that it may get.
        nodes_per_replica: Nodes that one copy of the model is divided among; workers are on whole replicas only.
        fixed_replicas: Whether each command names the hosts of one replica after the other, and these alone make one.
        hosts: Its hosts: name to worker processes there.
        agents: Where the agents of those hosts are that are not this machine, by name.
        certificate_file: File with the certificate that supervisors show agents; empty where there are none.
        address: Address of this machine as the hosts see it.
        interfaces: Network interfaces by which workers reach each other.
        cold_start: Whether each worker must be a new interpreter, never forked from a standby process.
        standby_memory_bytes: Largest share of memory of a standby process on this machine; 0: there is none.
        keep_seconds: How long the supervisor stays without workers after all hosts have been released; 0: it ends.
        limits: How long what the job does may take.
        idle_report_seconds: For how long all processes must do nothing until that is reported.
        user_id: The user that the supervisor must be, with no way back; None: any.
        restarts_left: How often the job may still be restarted after failures of its own.
        traceparent: The launch as a span, as W3C writes it; empty where nothing is traced.
        accepts_open_store: Whether torch's store may be served where the kernel keeps no other account out.
        cgroup: The folder of the cgroup that the supervisor has joined, in which it may make others; empty: in none.
    """

    job_id: str
    backend: str
    command: tuple[str, ...]
    working_directory: str
    environment: Mapping[str, str]
    slots_per_node: int
    socket: str
    sequence: int
    instance_id: str = ""
    incarnation: int = 0
    backend_named: bool = True
    min_nodes: int = 1
    max_nodes: int = 1
    nodes_per_replica: int = 1
    fixed_replicas: bool = False
    hosts: Mapping[str, int] = field(default_factory=dict)
    agents: Mapping[str, AgentAddress] = field(default_factory=dict)
    certificate_file: str = ""
    address: str = "127.0.0.1"
    interfaces: tuple[str, ...] = ("lo",)
    cold_start: bool = False
    standby_memory_bytes: int = 0
    keep_seconds: float = 0.0
    limits: JobLimits = DEFAULT_LIMITS
    idle_report_seconds: float = 30.0
    user_id: int | None = None
    restarts_left: int = _DEFAULT_RESTARTS
    traceparent: str = ""
    accepts_open_store: bool = False
    cgroup: str = ""


def launch_document(launch: Launch) -> dict[str, Any]:
    """The content of the file."""
    document = {entry.name: getattr(launch, entry.name) for entry in fields(Launch)}
    del document["agents"]
    nowhere = AgentAddress("")
    return document | {
        "command": list(launch.command),
        "environment": dict(launch.environment),
        "hosts": [
            {"name": name, "slots": slots, "agent": agent.address, "agent_name": agent.name}
            for name, slots in launch.hosts.items()
            for agent in (launch.agents.get(name, nowhere),)
        ],
        "interfaces": list(launch.interfaces),
        "limits": asdict(launch.limits),
    }


def launch_from_document(raw: Mapping[str, Any]) -> Launch:
    """What a file says.

    Raises:
        ValueError, KeyError, TypeError: it is no launch.
    """
    return Launch(
        job_id=raw["job_id"],
        backend=raw["backend"],
        command=tuple(raw["command"]),
        working_directory=raw["working_directory"],
        environment=dict(raw["environment"]),
        slots_per_node=int(raw["slots_per_node"]),
        socket=raw["socket"],
        sequence=int(raw["sequence"]),
        instance_id=str(raw.get("instance_id", "")),
        incarnation=int(raw.get("incarnation", 0)),
        backend_named=bool(raw.get("backend_named", True)),
        min_nodes=int(raw.get("min_nodes", 1)),
        max_nodes=int(raw.get("max_nodes", 1)),
        nodes_per_replica=int(raw.get("nodes_per_replica", 1)),
        fixed_replicas=bool(raw.get("fixed_replicas", False)),
        hosts={host["name"]: int(host["slots"]) for host in raw["hosts"]},
        agents={
            host["name"]: AgentAddress(str(host["agent"]), str(host.get("agent_name", "")))
            for host in raw["hosts"]
            if host.get("agent")
        },
        certificate_file=str(raw.get("certificate_file", "")),
        address=str(raw.get("address", "127.0.0.1")),
        interfaces=tuple(raw.get("interfaces", ("lo",))),
        cold_start=bool(raw.get("cold_start", False)),
        standby_memory_bytes=int(raw.get("standby_memory_bytes", 0)),
        keep_seconds=float(raw.get("keep_seconds", 0.0)),
        limits=_limits(raw.get("limits", {})),
        idle_report_seconds=float(raw.get("idle_report_seconds", 30.0)),
        user_id=None if raw.get("user_id") is None else int(raw["user_id"]),
        restarts_left=int(raw.get("restarts_left", _DEFAULT_RESTARTS)),
        traceparent=str(raw.get("traceparent", "")),
        accepts_open_store=raw.get("accepts_open_store") is True,
        cgroup=str(raw.get("cgroup", "")),
    )


def _limits(raw: Mapping[str, Any]) -> JobLimits:
    """Limits; those of a later version are left out."""
    known = {entry.name for entry in fields(JobLimits)}
    return JobLimits(**{name: float(value) for name, value in raw.items() if name in known})
