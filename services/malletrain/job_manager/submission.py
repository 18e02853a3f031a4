"""Checks what users submit. Every error names the field."""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from malletrain.common.environment import OF_USERS, PREFIX
from malletrain.common.python_command import parse_python_command
from malletrain.fleet.spec import FleetSpec
from malletrain.job_manager.fleet_submission import check_fleet
from malletrain.job_manager.jobs import DEFAULT_MAX_RESTARTS, JobProfileMode, JobSpec, LauncherBackend
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2

MOST_SPECS = 10_000
_MOST_NODES = 1_000_000
_LARGEST_SPEC_BYTES = 128 * 1024
"""All services are told of all jobs, in one message at first."""
_LONGEST_NAME = 128
_EXECUTABLE = 0o111
_MOST_FOLDERS = 100
"""In PATH."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def check_specs(
    specs: Sequence[resources_pb2.JobSpec], search_path: str, burst_buffer_gb: int = 0
) -> tuple[JobSpec, ...]:
    """The specs of a submission with their defaults filled in.

    Args:
        specs: What was submitted.
        search_path: Where the workers look for programs, as in PATH.
        burst_buffer_gb: The quota of burst buffer in GB.

    Raises:
        InvalidInputError: a field can't be used; it is named like `specs[0].min_nodes`.
    """
    if not 1 <= len(specs) <= MOST_SPECS:
        raise InvalidInputError("specs", f"1 to {MOST_SPECS} jobs", len(specs))
    fleet = check_fleet(specs, burst_buffer_gb)
    return tuple(
        _check_spec(f"specs[{index}]", spec, search_path, burst_buffer_gb, fleet) for index, spec in enumerate(specs)
    )


def digest(specs: Iterable[resources_pb2.JobSpec]) -> str:
    """A digest of the specs of a submission, which tells a repeated submission from another one with the same id."""
    whole = hashlib.sha256()
    for spec in specs:
        body = spec.SerializeToString(deterministic=True)
        whole.update(len(body).to_bytes(8, "big") + body)
    return whole.hexdigest()


def _check_spec(
    at: str, spec: resources_pb2.JobSpec, search_path: str, quota_gb: int, fleet: FleetSpec | None
) -> JobSpec:
    if spec.ByteSize() > _LARGEST_SPEC_BYTES:
        raise InvalidInputError(at, f"at most {_LARGEST_SPEC_BYTES} bytes in all", spec.ByteSize())
    if not spec.name.strip() or len(spec.name) > _LONGEST_NAME or not spec.name.isprintable():
        raise InvalidInputError(f"{at}.name", f"1 to {_LONGEST_NAME} printable characters", spec.name)
    _check_bounds(at, spec)
    _check_permitted(at, spec)
    _check_figures(at, spec)
    _check_burst_buffer(at, spec.burst_buffer_gb, quota_gb)
    _check_working_directory(at, spec.working_directory)
    environment = _check_environment(at, spec)
    check_command(at, spec.command, spec.working_directory, environment.get("PATH", search_path))
    return JobSpec(
        name=spec.name,
        command=tuple(spec.command),
        working_directory=spec.working_directory,
        environment=environment,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        permitted_nodes=tuple(spec.permitted_nodes),
        slots_per_node=spec.slots_per_node,
        scale_up_seconds=spec.scale_up_seconds if spec.HasField("scale_up_seconds") else None,
        scale_down_seconds=spec.scale_down_seconds if spec.HasField("scale_down_seconds") else None,
        curve=_check_curve(at, spec.curve),
        weight=spec.weight or 1.0,
        target_samples=spec.target_samples,
        max_restarts=spec.max_restarts if spec.HasField("max_restarts") else DEFAULT_MAX_RESTARTS,
        profile=_check_profile(at, spec),
        family=_check_family(at, spec.family),
        backend=_check_backend(at, spec),
        cold_start=spec.cold_start,
        burst_buffer_gb=spec.burst_buffer_gb,
        fleet=fleet,
    )


def _check_profile(at: str, spec: resources_pb2.JobSpec) -> JobProfileMode:
    if spec.profile not in resources_pb2.ProfileMode.values():
        raise InvalidInputError(f"{at}.profile", "a known profile mode", spec.profile)
    return JobProfileMode(resources_pb2.ProfileMode.Name(spec.profile).removeprefix("PROFILE_MODE_"))


def _check_backend(at: str, spec: resources_pb2.JobSpec) -> LauncherBackend:
    if spec.backend not in resources_pb2.LauncherBackend.values():
        raise InvalidInputError(f"{at}.backend", "a known launcher backend", spec.backend)
    return LauncherBackend(resources_pb2.LauncherBackend.Name(spec.backend).removeprefix("LAUNCHER_BACKEND_"))


def _check_family(at: str, family: str) -> str:
    if len(family) > _LONGEST_NAME or (family and not family.isprintable()):
        raise InvalidInputError(f"{at}.family", f"at most {_LONGEST_NAME} printable characters", family)
    return family.strip()


def _check_bounds(at: str, spec: resources_pb2.JobSpec) -> None:
    if not 1 <= spec.min_nodes <= _MOST_NODES:
        raise InvalidInputError(f"{at}.min_nodes", f"1 to {_MOST_NODES}", spec.min_nodes)
    if not 1 <= spec.max_nodes <= _MOST_NODES:
        raise InvalidInputError(f"{at}.max_nodes", f"1 to {_MOST_NODES}", spec.max_nodes)
    if spec.min_nodes > spec.max_nodes:
        raise InvalidInputError(f"{at}.min_nodes", f"at most max_nodes ({spec.max_nodes})", spec.min_nodes)


def _check_permitted(at: str, spec: resources_pb2.JobSpec) -> None:
    before = 0
    for index, nodes in enumerate(spec.permitted_nodes):
        field = f"{at}.permitted_nodes[{index}]"
        if not spec.min_nodes <= nodes <= spec.max_nodes:
            raise InvalidInputError(field, f"{spec.min_nodes} to {spec.max_nodes}, the job's bounds", nodes)
        if nodes <= before:
            raise InvalidInputError(field, f"above the entry before ({before})", nodes)
        before = nodes


def _check_figures(at: str, spec: resources_pb2.JobSpec) -> None:
    if not 0 <= spec.slots_per_node <= 1024:
        raise InvalidInputError(f"{at}.slots_per_node", "1 to 1024 (0: one for each GPU)", spec.slots_per_node)
    for name in ("scale_up_seconds", "scale_down_seconds"):
        _check_finite(f"{at}.{name}", getattr(spec, name))
    _check_finite(f"{at}.weight", spec.weight, "a finite number above 0 (0 means 1)")
    if spec.target_samples < 0:
        raise InvalidInputError(f"{at}.target_samples", "at least 0", spec.target_samples)
    if spec.max_restarts < 0:
        raise InvalidInputError(f"{at}.max_restarts", "at least 0", spec.max_restarts)


def _check_burst_buffer(at: str, asked_gb: int, quota_gb: int) -> None:
    if not 0 <= asked_gb <= quota_gb:
        granted = f"0 to {quota_gb} GB, the quota" if quota_gb else "0, since no burst buffer is granted"
        raise InvalidInputError(f"{at}.burst_buffer_gb", f"{granted} (job_manager.burst_buffer_gb)", asked_gb)


def _check_finite(field: str, value: float, expected: str = "a finite number, at least 0") -> None:
    if not math.isfinite(value) or value < 0:
        raise InvalidInputError(field, expected, value)


def _check_curve(at: str, curve: Sequence[resources_pb2.ScalingPoint]) -> tuple[ScalingPoint, ...]:
    before = -1
    for index, point in enumerate(curve):
        field = f"{at}.curve[{index}]"
        if point.nodes < 0:
            raise InvalidInputError(f"{field}.nodes", "at least 0", point.nodes)
        if point.nodes <= before:
            raise InvalidInputError(f"{field}.nodes", f"above the point before ({before})", point.nodes)
        _check_finite(f"{field}.rate", point.rate)
        if point.nodes == 0 and point.rate != 0:
            raise InvalidInputError(f"{field}.rate", "0, as at 0 nodes by definition", point.rate)
        before = point.nodes
    return tuple(ScalingPoint(point.nodes, point.rate) for point in curve)


def _check_environment(at: str, spec: resources_pb2.JobSpec) -> dict[str, str]:
    for name, value in spec.environment.items():
        field = f"{at}.environment[{name!r}]"
        if not _VARIABLE.match(name):
            raise InvalidInputError(field, "a name of letters, digits and _ that does not begin with a digit", name)
        if name.startswith(PREFIX) and name not in OF_USERS:
            raise InvalidInputError(field, f"a name that does not begin with {PREFIX}, which is reserved", name)
        if "\0" in value:
            raise InvalidInputError(field, "a value without zero bytes")  # which may be a secret, so it is not quoted
    return dict(spec.environment)


def _check_working_directory(at: str, directory: str) -> None:
    field = f"{at}.working_directory"
    if not Path(directory).is_absolute():
        raise InvalidInputError(field, "an absolute path", directory)
    if not _is(stat.S_ISDIR, Path(directory)):
        raise InvalidInputError(field, "an existing directory", directory)


def check_command(at: str, command: Sequence[str], directory: str, search_path: str) -> None:
    """Refuse a command whose program or Python script does not exist, so that the user is told at once.

    Args:
        at: Path of the job's spec, for errors.
        command: Program and arguments.
        directory: The working directory.
        search_path: Where programs are looked for, as in PATH.

    Raises:
        InvalidInputError: it can't be started.
    """
    if not command or not command[0]:
        raise InvalidInputError(f"{at}.command", "a program and its arguments", list(command))
    for index, word in enumerate(command):
        if "\0" in word:
            raise InvalidInputError(f"{at}.command[{index}]", "text without zero bytes", word)
    program = command[0]
    if os.sep in program:
        if not _is_program(Path(directory, program)):
            raise InvalidInputError(f"{at}.command[0]", "an executable file", program)
    elif not any(_is_program(Path(folder, program)) for folder in _folders(search_path)):
        raise InvalidInputError(f"{at}.command[0]", "a program that is found on PATH", program)
    python = parse_python_command(command)
    if python is not None and python.kind == "script" and not _is(stat.S_ISREG, Path(directory, python.target)):
        field = f"{at}.command[{len(python.interpreter)}]"
        raise InvalidInputError(field, f"an existing script (relative ones in {directory})", python.target)


def _folders(search_path: str) -> list[str]:
    return [folder for folder in search_path.split(os.pathsep)[:_MOST_FOLDERS] if folder]


def _is_program(path: Path) -> bool:
    """Whether a file looks like a program. Not by access(2), which asks for the real user, whoever we act as."""
    return _is(lambda mode: stat.S_ISREG(mode) and bool(mode & _EXECUTABLE), path)


def _is(kind: Callable[[int], bool], path: Path) -> bool:
    """Whether there is a file of a kind, as far as can be seen."""
    try:
        return kind(path.stat().st_mode)
    except (OSError, ValueError):
        return False
