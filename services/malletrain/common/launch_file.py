"""`launch.json` of a job's folder: what JobManager asks of a supervisor. The one place that knows its form.

Files of earlier versions lack what came later, and supervisors of earlier versions leave out what they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from malletrain.common.job_limits import DEFAULT_LIMITS, JobLimits

_DEFAULT_RESTARTS = 3
"""For launches of versions that do not say it."""


@dataclass(frozen=True)
class AgentAddress:
    """Address of an agent, and how its caller verifies it.

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


_PLAIN: Mapping[Any, Callable[[Any], Any]] = {"str": str, "int": int, "float": float, "bool": bool}
"""What makes a plain field, by its annotation. Other fields are made by hand."""


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
    plain: dict[str, Any] = {
        entry.name: _PLAIN[entry.type](raw[entry.name])
        for entry in fields(Launch)
        if entry.type in _PLAIN and (entry.name in raw or entry.default is MISSING)
    }
    # Protection is given up by nothing else that counts as true.
    plain["accepts_open_store"] = raw.get("accepts_open_store") is True
    return Launch(
        **plain,
        command=tuple(raw["command"]),
        environment=dict(raw["environment"]),
        hosts={host["name"]: int(host["slots"]) for host in raw["hosts"]},
        agents={
            host["name"]: AgentAddress(str(host["agent"]), str(host.get("agent_name", "")))
            for host in raw["hosts"]
            if host.get("agent")
        },
        interfaces=tuple(raw.get("interfaces", ("lo",))),
        limits=_limits(raw.get("limits", {})),
        user_id=None if raw.get("user_id") is None else int(raw["user_id"]),
    )


def _limits(raw: Mapping[str, Any]) -> JobLimits:
    """Limits; those of a later version are left out."""
    known = {entry.name for entry in fields(JobLimits)}
    return JobLimits(**{name: float(value) for name, value in raw.items() if name in known})
