"""What JobManager asks of a supervisor: the launch file in the job's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from malletrain.common.accounts import may_gain_nothing
from malletrain.common.job_folder import LAUNCH_FILE
from malletrain.common.trace_context import HEADER


class LaunchError(Exception):
    """The launch file can't be used."""


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
        min_nodes: Fewest nodes on which the job is to train.
        socket: Path of the Unix socket to serve on.
        sequence: Sequence of the first command.
        hosts: Its hosts: name to worker processes there.
        agents: Where the agents of those hosts are that are not this machine: name to HOST:PORT.
        certificate_file: File with the certificate that supervisors show agents; empty where there are none.
        address: Address of this machine as the hosts see it.
        interfaces: Network interfaces by which workers reach each other.
        cold_start: Whether each worker must be a new interpreter, never forked from a standby process.
        standby_memory_bytes: Largest share of memory of a standby process on this machine; 0: there is none.
        keep_seconds: How long this process stays without workers after all hosts have been released; 0: it ends.
        user_id: The user that this process must be, with no way back; None: any.
        traceparent: The launch as a span, as W3C writes it; empty where nothing is traced.
    """

    job_id: str
    backend: str
    command: tuple[str, ...]
    working_directory: str
    environment: Mapping[str, str]
    slots_per_node: int
    socket: str
    sequence: int
    min_nodes: int = 1
    hosts: Mapping[str, int] = field(default_factory=dict)
    agents: Mapping[str, str] = field(default_factory=dict)
    certificate_file: str = ""
    address: str = "127.0.0.1"
    interfaces: tuple[str, ...] = ("lo",)
    cold_start: bool = False
    standby_memory_bytes: int = 0
    keep_seconds: float = 0.0
    user_id: int | None = None
    traceparent: str = ""


def read_launch(folder: Path) -> Launch:
    """Read `launch.json` of a job's folder.

    Raises:
        LaunchError: the file is missing, no JSON, or lacks a field.
    """
    path = folder / LAUNCH_FILE
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Launch(
            job_id=raw["job_id"],
            backend=raw["backend"],
            command=tuple(raw["command"]),
            working_directory=raw["working_directory"],
            environment=dict(raw["environment"]),
            slots_per_node=int(raw["slots_per_node"]),
            min_nodes=int(raw.get("min_nodes", 1)),
            socket=raw["socket"],
            sequence=int(raw["sequence"]),
            hosts={host["name"]: int(host["slots"]) for host in raw["hosts"]},
            agents={host["name"]: str(host["agent"]) for host in raw["hosts"] if host.get("agent")},
            certificate_file=str(raw.get("certificate_file", "")),
            address=str(raw.get("address", "127.0.0.1")),
            interfaces=tuple(raw.get("interfaces", ("lo",))),
            cold_start=bool(raw.get("cold_start", False)),
            standby_memory_bytes=int(raw.get("standby_memory_bytes", 0)),
            keep_seconds=float(raw.get("keep_seconds", 0.0)),
            user_id=None if raw.get("user_id") is None else int(raw["user_id"]),
            traceparent=str(raw.get(HEADER, "")),
        )
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{path}: expected a launch file, got {error!r}") from error


def check_user(launch: Launch) -> None:
    """Refuse to run a user's program with any other rights than the user's.

    Raises:
        LaunchError: this process is somebody else, or could become somebody else.
    """
    if launch.user_id is None:
        return
    if launch.user_id == 0 or set(os.getresuid()) != {launch.user_id} or not may_gain_nothing():
        raise LaunchError(f"expected to run as user id {launch.user_id} for good, got {os.getresuid()}")
