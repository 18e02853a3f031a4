"""What a caller asks for when it submits a job, and the specification that comes of it.

The backend and the largest scale are those that fit the script, where they are not named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

from malletrain.common.launch_advice import advise
from malletrain.common.script_reading import read_script
from malletrain.model.burst_buffer import GB_PER_TB
from malletrain.model.node_needs import MAX_AMOUNTS
from malletrain.model.topology import MAX_LEVELS, TopologyPreference
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.job_value_messages import value_to_proto
from malletrain.runtime.job_values import parse_value
from malletrain.runtime.topology_messages import preference_to_proto
from malletrain.v1 import resources_pb2

Backend: TypeAlias = "resources_pb2.LauncherBackend.ValueType"

_MAX_NODES = 8
"""Largest scale of a job that names none."""
_MAX_NOTE_LENGTH = 512


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


def choose_launch(request: JobRequest, directory: Path) -> ChosenLaunch:
    """Look at the files of a job's command, which are never run, and choose what was not asked for.

    Args:
        request: What was asked for. PATH and PYTHONPATH of its variables say where its files are.
        directory: Folder that the workers start in.

    Raises:
        InvalidInputError: there is no such backend, or more nodes are asked for than the script can use.
    """
    parse_backend(request.backend)
    least, option = smallest_scale(request)
    most = max(request.max_nodes or max((least, *request.permitted)), request.slots)
    several = most > 1 or (request.max_nodes is None and not request.permitted and request.backend != "command")
    script = read_script(request.command, directory, request.env.get("PATH"), request.env.get("PYTHONPATH", ""))
    advice = advise(script, request.backend, several=several, scale_named=(request.max_nodes or 0) > 1)
    if advice.one_node and least > 1:
        raise InvalidInputError(option, f"1, or a --backend: {advice.note}", least)
    if advice.one_node:
        most_nodes = 1
    elif request.max_nodes is not None:
        most_nodes = request.max_nodes
    else:
        most_nodes = max((least, *request.permitted)) if advice.usually_one_node else max(least, _MAX_NODES)
    return ChosenLaunch(
        resources_pb2.LauncherBackend.Value(f"LAUNCHER_BACKEND_{advice.backend.upper() or 'UNSPECIFIED'}"),
        most_nodes,
        [nodes for nodes in request.permitted if not advice.one_node or nodes <= most_nodes],
        "".join(letter if letter.isprintable() else "?" for letter in advice.note)[:_MAX_NOTE_LENGTH],
    )


def smallest_scale(request: JobRequest) -> tuple[int, str]:
    """The smallest scale in nodes, a replica's where none was asked for; and the option that says it."""
    by_replica = request.min_nodes == 1 and request.nodes_per_replica > 1
    return (request.nodes_per_replica, "--nodes-per-replica") if by_replica else (request.min_nodes, "--min")


_MAX_NAME_LENGTH = 128
_LEVELS = frozenset(map(str, range(1, MAX_LEVELS + 1)))
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job as its submitter asks for it: `malletrain submit`, and `malletrain.submit` in Python.

    Most attributes are the options that `malletrain.api.options.JobOptions` describes, with their units and defaults.

    Attributes:
        command: Program and arguments.
        max_nodes: Largest scale in nodes; None: 8, and 1 for the backend `command`.
        permitted: Permitted scales in nodes; empty: all within these bounds.
        slots: Worker processes per node; 0: one for each GPU, or 1.
        nodes_per_replica: Nodes that one copy of the model is divided among. 0 or 1: each node has whole copies.
        curve: Numbers of nodes, each with samples per second; empty: it is measured.
        scale_up, scale_down: Stall of a growth and of a shrink in seconds; None: it is measured.
        max_restarts: Restarts after failures before it is FAILED; None: JobManager's default.
        exclude: Names of nodes that it must not have.
        start_limit, step_limit, evaluation_limit, save_limit: Longest start, step, evaluation and save, in seconds; 0:
            the defaults.
        after, after_ok: Identifiers or names of jobs that are to have ended, or to have completed, before it starts.
        array: Parameters and their values (`malletrain.caller.job_array`), e.g. `lr=0.1,0.01 %2`; empty: it is one job.
        release_grace, leave_grace: Seconds to save and end on a node that is taken, and before a start at another
            scale; 0: the defaults.
    """

    command: Sequence[str]
    name: str = ""
    min_nodes: int = 1
    max_nodes: int | None = None
    permitted: Sequence[int] = ()
    slots: int = 0
    nodes_per_replica: int = 0
    curve: Sequence[tuple[int, float]] = ()
    scale_up: float | None = None
    scale_down: float | None = None
    backend: str = ""
    weight: float = 1.0
    value: str = "linear"
    target_samples: int = 0
    max_restarts: int | None = None
    profile: str = ""
    family: str = ""
    project: str = ""
    gpu: str = ""
    gpu_memory: str | None = None
    gpus: int | None = None
    cores: int | None = None
    memory: str | None = None
    constraint: str = ""
    pool: str = ""
    exclude: Sequence[str] = ()
    topology: str = "none"
    burst_buffer: str = ""
    cold: bool = False
    env: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    workdir: Path | None = None
    start_limit: float = 0.0
    step_limit: float = 0.0
    evaluation_limit: float = 0.0
    save_limit: float = 0.0
    release_grace: float = 0.0
    leave_grace: float = 0.0
    after: Sequence[str] = ()
    after_ok: Sequence[str] = ()
    array: str = ""


def job_spec(request: JobRequest) -> resources_pb2.JobSpec:
    """The specification of a job, its `array` left out. The files of its command are looked at, and never run.

    What it waits for is as it was given: see `malletrain.caller.dependencies` for names.

    Raises:
        InvalidInputError: a value is not as expected; the error names the option of `malletrain submit`.
    """
    directory = (request.workdir or Path.cwd()).resolve()
    replica = max(request.nodes_per_replica, 1)
    launch = choose_launch(request, directory)
    near, level = parse_topology(request.topology)
    return resources_pb2.JobSpec(
        name=request.name or default_name(request.command),
        command=request.command,
        working_directory=str(directory),
        environment=request.env,
        min_nodes=smallest_scale(request)[0],
        max_nodes=launch.max_nodes if request.max_nodes is not None else max(launch.max_nodes // replica, 1) * replica,
        permitted_nodes=launch.permitted,
        slots_per_node=request.slots,
        nodes_per_replica=request.nodes_per_replica,
        scale_up_seconds=request.scale_up,
        scale_down_seconds=request.scale_down,
        curve=[resources_pb2.ScalingPoint(nodes=nodes, rate=rate) for nodes, rate in request.curve],
        weight=request.weight,
        value=value_to_proto(parse_value(request.value)),
        target_samples=request.target_samples,
        max_restarts=request.max_restarts,
        backend=launch.backend,
        launch_note=launch.note,
        profile=parse_profile(request.profile),
        family=request.family,
        project=request.project,
        needs=needs_of(request),
        topology=near,
        topology_level=level,
        cold_start=request.cold,
        burst_buffer_gb=parse_burst_buffer(request.burst_buffer) if request.burst_buffer else 0,
        limits=resources_pb2.JobLimits(
            start_seconds=request.start_limit,
            step_seconds=request.step_limit,
            evaluation_seconds=request.evaluation_limit,
            save_seconds=request.save_limit,
            release_grace_seconds=request.release_grace,
            leave_grace_seconds=request.leave_grace,
        ),
        dependencies=resources_pb2.Dependencies(after=request.after, after_ok=request.after_ok)
        if request.after or request.after_ok
        else None,
    )


def default_name(command: Sequence[str]) -> str:
    """The name of a job that was given none: its script's, or its program's where that is no interpreter."""
    runs_script = Path(command[0]).name.startswith(("python", "torchrun"))
    script = next((word for word in command[1:] if not word.startswith("-")), command[0]) if runs_script else command[0]
    printable = "".join(letter if letter.isprintable() else " " for letter in Path(script).stem)
    return " ".join(printable.split())[:_MAX_NAME_LENGTH]


def parse_backend(name: str) -> resources_pb2.LauncherBackend.ValueType:
    """A launcher backend by its name; empty: the operator's choice.

    Raises:
        InvalidInputError: there is no such backend.
    """
    if not name:
        return resources_pb2.LAUNCHER_BACKEND_UNSPECIFIED
    backends = resources_pb2.LauncherBackend.items()
    known = {long.removeprefix("LAUNCHER_BACKEND_").lower(): value for long, value in backends if value}
    if name not in known:
        raise InvalidInputError("--backend", f"one of {', '.join(known)}", name)
    return known[name]


def parse_profile(mode: str) -> resources_pb2.ProfileMode.ValueType:
    """`auto` as a profile mode; nothing leaves it to the operator's default.

    Raises:
        InvalidInputError: there is no such mode.
    """
    names = {"": "UNSPECIFIED", "auto": "AUTO", "always": "ALWAYS", "never": "NEVER"}
    if mode.lower() not in names:
        raise InvalidInputError("--profile", "auto, always or never", mode)
    return resources_pb2.ProfileMode.Value(f"PROFILE_MODE_{names[mode.lower()]}")


def parse_topology(text: str) -> tuple[resources_pb2.TopologyPreference.ValueType, int]:
    """The preference that `--topology` names, and the level: `prefer`, `require`, `require-replica` or `require=2`.

    Raises:
        InvalidInputError: it is not known.
    """
    name, equals, level = text.partition("=")
    known = name in list(TopologyPreference) and (not equals or TopologyPreference(name).requires)
    if not known or (equals and level not in _LEVELS):
        forms = "none, prefer, require, require-replica, require=LEVEL or require-replica=LEVEL"
        expected = f"{forms} with a level of 1 to {MAX_LEVELS}"
        raise InvalidInputError("--topology", expected, text)
    return preference_to_proto(TopologyPreference(name)), int(level or 0)


def needs_of(request: JobRequest) -> resources_pb2.NodeNeeds | None:
    """What a job needs of each of its nodes; None: nothing.

    Raises:
        InvalidInputError: an amount is none.
    """
    needs = resources_pb2.NodeNeeds(
        gpu=request.gpu,
        constraint=request.constraint,
        pool=request.pool,
        excluded_nodes=request.exclude,
        gpu_memory_mib=_memory("gpu_memory_mib", "--gpu-memory", request.gpu_memory),
        gpus=_count("gpus", "--gpus", request.gpus),
        cores=_count("cores", "--cores", request.cores),
        memory_mib=_memory("memory_mib", "--memory", request.memory),
    )
    return needs if needs.ByteSize() else None


def _memory(field_name: str, option: str, text: str | None) -> int:
    return 0 if text is None else parse_memory(option, text, MAX_AMOUNTS[field_name])


def _count(field_name: str, option: str, number: int | None) -> int:
    if number is not None and not 1 <= number <= MAX_AMOUNTS[field_name]:
        raise InvalidInputError(option, f"a whole number from 1 to {MAX_AMOUNTS[field_name]}", number)
    return number or 0


_SIZE = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))? ?([MGT])(?:i?B)?", re.IGNORECASE)
_AMOUNT = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,3}))? ?(GB|TB)?\Z", re.IGNORECASE)
_MIB = {"M": 1, "G": 1 << 10, "T": 1 << 20}


def parse_memory(option: str, text: str, most_mib: int) -> int:
    """`40G`, `1.5T` or `512M` in MiB, rounded up: a G is 1024 MiB. Also with B or iB after the letter.

    Args:
        option: Its option, for errors.
        text: What was given.
        most_mib: The most that is meant, in MiB.

    Raises:
        InvalidInputError: it is something else, none, or more than that.
    """
    expected = f"a size such as 40G, 512M or 1.5T, at least 1M and at most {most_mib // _MIB['T']}T"
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(option, expected, text)
    whole, fraction, unit = match.groups()
    parts: int = 10 ** len(fraction or "")
    mib = -(-int(whole + (fraction or "")) * _MIB[unit.upper()] // parts)
    if not 1 <= mib <= most_mib:
        raise InvalidInputError(option, expected, text)
    return mib


def parse_burst_buffer(text: str) -> int:
    """`2TB`, `1.5TB`, `500GB` or `2000` in GB.

    Raises:
        InvalidInputError: it is something else, negative, or no whole number of GB.
    """
    match = _AMOUNT.match(text.strip())
    if match is not None:
        whole, thousandths, unit = match.groups()
        if (unit or "").upper() == "TB":
            return int(whole) * GB_PER_TB + int((thousandths or "").ljust(3, "0"))
        if not int(thousandths or 0):
            return int(whole)
    raise InvalidInputError("--burst-buffer", "whole GB, such as 2000, 500GB or 1.5TB", text)
