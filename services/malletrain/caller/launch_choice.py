"""What `malletrain submit` makes of a command: the backend and the largest scale that fit its script."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from malletrain.common.launch_advice import LaunchAdvice, advise
from malletrain.common.script_reading import read_script
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2

Backend: TypeAlias = "resources_pb2.LauncherBackend.ValueType"

_UNSPECIFIED = resources_pb2.LAUNCHER_BACKEND_UNSPECIFIED
_MAX_NODES = 8
"""Largest scale of a job that names none."""
_MAX_NOTE_LENGTH = 512


@dataclass(frozen=True)
class AskedLaunch:
    """What the options of a submission say.

    Attributes:
        backend: Launcher backend.
        min_nodes: Smallest scale in nodes.
        max_nodes: Largest scale in nodes; None: not said.
        permitted: Permitted scales in nodes; empty: all.
        slots: Worker processes per node; 0: not said.
    """

    backend: Backend
    min_nodes: int
    max_nodes: int | None
    permitted: Sequence[int]
    slots: int


@dataclass(frozen=True)
class ChosenLaunch:
    """What the job is submitted with.

    Attributes:
        backend: Launcher backend.
        max_nodes: Largest scale in nodes.
        permitted: Permitted scales in nodes.
        note: What the submitter should know, in one sentence; empty: nothing.
    """

    backend: Backend
    max_nodes: int
    permitted: Sequence[int]
    note: str


def choose_launch(
    command: Sequence[str], directory: Path, asked: AskedLaunch, environment: Mapping[str, str] = os.environ
) -> ChosenLaunch:
    """Look at the command's files, which are never run, and choose what was not asked for.

    Args:
        command: Program and arguments.
        directory: Folder that the workers start in.
        asked: What was asked for.
        environment: The job's variables; PATH and PYTHONPATH say where its files are.

    Raises:
        InvalidInputError: more nodes are asked for than the script can use.
    """
    named = "" if asked.backend == _UNSPECIFIED else _name(asked.backend)
    most = max(asked.max_nodes or max((asked.min_nodes, *asked.permitted)), asked.slots)
    several = most > 1 or (asked.max_nodes is None and not asked.permitted and named != "command")
    script = read_script(command, directory, environment.get("PATH"), environment.get("PYTHONPATH", ""))
    advice = advise(script, named, several=several, scale_named=(asked.max_nodes or 0) > 1)
    if advice.one_node and asked.min_nodes > 1:
        raise InvalidInputError("--min", f"1, or a --backend: {advice.note}", asked.min_nodes)
    most_nodes = _max_nodes(advice, asked)
    return ChosenLaunch(
        resources_pb2.LauncherBackend.Value(f"LAUNCHER_BACKEND_{advice.backend.upper() or 'UNSPECIFIED'}"),
        most_nodes,
        [nodes for nodes in asked.permitted if not advice.one_node or nodes <= most_nodes],
        "".join(letter if letter.isprintable() else "?" for letter in advice.note)[:_MAX_NOTE_LENGTH],
    )


def _max_nodes(advice: LaunchAdvice, asked: AskedLaunch) -> int:
    if advice.one_node:
        return 1
    if asked.max_nodes is not None:
        return asked.max_nodes
    return max((asked.min_nodes, *asked.permitted)) if advice.usually_one_node else max(asked.min_nodes, _MAX_NODES)


def _name(backend: Backend) -> str:
    return resources_pb2.LauncherBackend.Name(backend).removeprefix("LAUNCHER_BACKEND_").lower()
