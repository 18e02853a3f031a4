"""What JobManager asks of a supervisor: the launch file in the job's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
        socket: Path of the Unix socket to serve on.
        sequence: Sequence of the first command.
        hosts: Its hosts: name to worker processes there.
    """

    job_id: str
    backend: str
    command: tuple[str, ...]
    working_directory: str
    environment: Mapping[str, str]
    slots_per_node: int
    socket: str
    sequence: int
    hosts: Mapping[str, int] = field(default_factory=dict)


def read_launch(folder: Path) -> Launch:
    """Read `launch.json` of a job's folder.

    Raises:
        LaunchError: the file is missing, no JSON, or lacks a field.
    """
    path = folder / "launch.json"
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Launch(
            job_id=raw["job_id"],
            backend=raw["backend"],
            command=tuple(raw["command"]),
            working_directory=raw["working_directory"],
            environment=dict(raw["environment"]),
            slots_per_node=int(raw["slots_per_node"]),
            socket=raw["socket"],
            sequence=int(raw["sequence"]),
            hosts={host["name"]: int(host["slots"]) for host in raw["hosts"]},
        )
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{path}: expected a launch file, got {error!r}") from error
