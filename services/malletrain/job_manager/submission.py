"""Checks what users submit, jobs and fleets. Every error names the field."""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from malletrain.common.environment import FEED, OF_USERS, PREFIX, TRACKERS
from malletrain.common.job_limits import MAX_PHASE_SECONDS
from malletrain.common.python_command import parse_python_command
from malletrain.common.tracker_runs import parse_trackers
from malletrain.fleet.problem import FleetPlanner
from malletrain.fleet.spec import FleetSpec
from malletrain.job_manager.dependencies import check_form
from malletrain.job_manager.machine.jobs import (
    DEFAULT_MAX_RESTARTS,
    MAX_GPUS_PER_NODE,
    ArraySpec,
    JobProfileMode,
    JobSpec,
    LauncherBackend,
)
from malletrain.job_manager.projects import NO_PROJECTS, OwnerProjects
from malletrain.job_manager.settings import DEFAULT_GRACES, LongestGraces, check_limits
from malletrain.model.job_terms import MAX_WEIGHT, MIN_WEIGHT
from malletrain.model.job_value import LINEAR_VALUE, SpeedValue
from malletrain.model.node_needs import NeedError, NodeNeeds, check_needs, in_words
from malletrain.model.scaling import MAX_RATE, MIN_RATE, ScalingPoint
from malletrain.model.topology import TopologyPreference
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.fleet_messages import check_paces, check_planner, is_feed, spec_from_proto
from malletrain.runtime.job_value_messages import value_from_proto
from malletrain.runtime.job_values import check_value, value_text
from malletrain.runtime.node_needs_messages import needs_from_proto
from malletrain.runtime.topology_messages import level_from_proto, preference_from_proto
from malletrain.v1 import fleet_pb2, job_manager_pb2, resources_pb2

MAX_SPECS = 1000
"""In a step of JobManager in which it does nothing else."""
_MAX_LOOKS = 20_000
"""At files, for one submission: what its specs have in common is looked at once."""
_MAX_NODES = 1_000_000
_MAX_SPEC_BYTES = 128 * 1024
_MAX_SCALES = 512
"""Permitted scales, and points of a curve: everybody is told of them, and all services keep them."""
_MAX_NAME_LENGTH = 128
_MAX_NOTE_LENGTH = 512
_EXECUTABLE = 0o111
_DIVIDING = (resources_pb2.LAUNCHER_BACKEND_TORCHRUN, resources_pb2.LAUNCHER_BACKEND_COMMAND)
"""Backends whose workers may divide a model among them. Under Horovod each has a whole copy."""
_MAX_ADMITTED = 1_000_000
_MAX_PARAMETERS = 32
_MAX_PARAMETER_LENGTH = 256
_PARAMETER = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_MAX_FOLDERS = 100
"""How many folders of PATH are searched for a program."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


MAX_MEMBERS = 1000
_WEIGHTS = f"{MIN_WEIGHT:f} to {MAX_WEIGHT:.0f}"


def check_specs(
    specs: Sequence[resources_pb2.JobSpec],
    search_path: str,
    burst_buffer_gb: int = 0,
    longest_graces: LongestGraces = DEFAULT_GRACES,
    projects: OwnerProjects = NO_PROJECTS,
) -> tuple[JobSpec, ...]:
    """The specs of a submission with their defaults filled in.

    Args:
        specs: What was submitted.
        search_path: Where the workers look for programs, as in PATH.
        burst_buffer_gb: The quota of burst buffer in GB.
        longest_graces: What the operator allows of that by which jobs delay nodes.
        projects: The projects of the owner.

    Raises:
        InvalidInputError: a field can't be used; it is named like `specs[0].min_nodes`.
    """
    if not 1 <= len(specs) <= MAX_SPECS:
        raise InvalidInputError("specs", f"1 to {MAX_SPECS} jobs", len(specs))
    fleet = check_fleet(specs, burst_buffer_gb)
    check_array(specs)
    files = _Files()
    return tuple(
        _check_spec(f"specs[{index}]", spec, search_path, burst_buffer_gb, fleet, longest_graces, projects, files)
        for index, spec in enumerate(specs)
    )


def check_weight(request: job_manager_pb2.UpdateJobRequest) -> float:
    """The weight that a job is to have.

    Raises:
        InvalidInputError: there is none, or it is out of bounds.
    """
    if not request.HasField("weight"):
        raise InvalidInputError("weight", "what is to be changed")
    if not MIN_WEIGHT <= request.weight <= MAX_WEIGHT:  # neither is NaN
        raise InvalidInputError("weight", _WEIGHTS, request.weight)
    return request.weight


def digest(specs: Iterable[resources_pb2.JobSpec]) -> str:
    """A digest of the specs of a submission, which tells a repeated submission from another one with the same id."""
    whole = hashlib.sha256()
    for spec in specs:
        body = spec.SerializeToString(deterministic=True)
        whole.update(len(body).to_bytes(8, "big") + body)
    return whole.hexdigest()


def _check_spec(
    at: str,
    spec: resources_pb2.JobSpec,
    search_path: str,
    quota_gb: int,
    fleet: FleetSpec | None,
    longest_graces: LongestGraces,
    projects: OwnerProjects,
    files: _Files,
) -> JobSpec:
    if spec.ByteSize() > _MAX_SPEC_BYTES:
        raise InvalidInputError(at, f"at most {_MAX_SPEC_BYTES} bytes in all", spec.ByteSize())
    if not spec.name.strip() or len(spec.name) > _MAX_NAME_LENGTH or not spec.name.isprintable():
        raise InvalidInputError(f"{at}.name", f"1 to {_MAX_NAME_LENGTH} printable characters", spec.name)
    _check_bounds(at, spec)
    _check_permitted(at, spec)
    _check_figures(at, spec)
    _check_burst_buffer(at, spec.burst_buffer_gb, quota_gb)
    _check_working_directory(at, spec.working_directory, files)
    environment = _check_environment(at, spec)
    check_command(at, spec.command, spec.working_directory, environment.get("PATH", search_path), files)
    return JobSpec(
        name=spec.name,
        command=tuple(spec.command),
        working_directory=spec.working_directory,
        environment=environment,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        permitted_nodes=_check_replicas(at, spec),
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
        limits=check_limits(f"{at}.limits", spec.limits, longest_graces),
        launch_note=_check_note(at, spec.launch_note),
        project=projects.check(f"{at}.project", spec.project),
        needs=_check_needs(f"{at}.needs", spec),
        topology=_check_topology(f"{at}.topology", spec),
        topology_level=level_from_proto(spec, at),
        array=ArraySpec(spec.array.max_admitted) if spec.HasField("array") else None,
        array_parameters=_check_parameters(f"{at}.array_parameters", spec),
        nodes_per_replica=spec.nodes_per_replica or 1,
        dependencies=check_form(f"{at}.dependencies", spec),
        value=_check_value(f"{at}.value", spec),
    )


def _check_value(at: str, spec: resources_pb2.JobSpec) -> SpeedValue:
    value = value_from_proto(spec)
    check_value(at, value, spec.target_samples)
    if value != LINEAR_VALUE and spec.HasField("fleet"):
        raise InvalidInputError(at, "none: members of a fleet have none", value_text(value))
    if spec.value.WhichOneof("form") == "points" and not value.curve.points:
        raise InvalidInputError(f"{at}.points", "at least one point", "none")
    return value


def _check_topology(at: str, spec: resources_pb2.JobSpec) -> TopologyPreference:
    preference = preference_from_proto(spec.topology, at)
    if preference is not TopologyPreference.NONE and spec.HasField("fleet"):
        raise InvalidInputError(at, "no preference: members of a fleet have none", preference.value)
    if preference is TopologyPreference.REQUIRE_REPLICA and spec.nodes_per_replica < 2:
        expected = f"at least 2, as topology {preference} says"
        raise InvalidInputError(f"{at.rpartition('.')[0]}.nodes_per_replica", expected, spec.nodes_per_replica)
    return preference


def _check_needs(at: str, spec: resources_pb2.JobSpec) -> NodeNeeds:
    needs = needs_from_proto(spec.needs)
    try:
        check_needs(needs)
    except NeedError as error:
        raise InvalidInputError(f"{at}.{error.field}", error.expected, error.got) from None
    return needs


def _check_profile(at: str, spec: resources_pb2.JobSpec) -> JobProfileMode:
    if spec.profile not in resources_pb2.ProfileMode.values():
        raise InvalidInputError(f"{at}.profile", "a known profile mode", spec.profile)
    return JobProfileMode(resources_pb2.ProfileMode.Name(spec.profile).removeprefix("PROFILE_MODE_"))


def _check_backend(at: str, spec: resources_pb2.JobSpec) -> LauncherBackend:
    if spec.backend not in resources_pb2.LauncherBackend.values():
        raise InvalidInputError(f"{at}.backend", "a known launcher backend", spec.backend)
    return LauncherBackend(resources_pb2.LauncherBackend.Name(spec.backend).removeprefix("LAUNCHER_BACKEND_"))


def _backend_name(spec: resources_pb2.JobSpec) -> str:
    name = resources_pb2.LauncherBackend.Name(spec.backend).removeprefix("LAUNCHER_BACKEND_").lower()
    return "the operator's default" if name == "unspecified" else name


def _check_note(at: str, note: str) -> str:
    if len(note) > _MAX_NOTE_LENGTH or (note and not note.isprintable()):
        raise InvalidInputError(f"{at}.launch_note", f"at most {_MAX_NOTE_LENGTH} printable characters", note)
    return note


def _check_family(at: str, family: str) -> str:
    if len(family) > _MAX_NAME_LENGTH or (family and not family.isprintable()):
        raise InvalidInputError(f"{at}.family", f"at most {_MAX_NAME_LENGTH} printable characters", family)
    return family.strip()


def _check_bounds(at: str, spec: resources_pb2.JobSpec) -> None:
    if not 1 <= spec.min_nodes <= _MAX_NODES:
        raise InvalidInputError(f"{at}.min_nodes", f"1 to {_MAX_NODES}", spec.min_nodes)
    if not 1 <= spec.max_nodes <= _MAX_NODES:
        raise InvalidInputError(f"{at}.max_nodes", f"1 to {_MAX_NODES}", spec.max_nodes)
    if spec.min_nodes > spec.max_nodes:
        raise InvalidInputError(f"{at}.min_nodes", f"at most max_nodes ({spec.max_nodes})", spec.min_nodes)


def _check_permitted(at: str, spec: resources_pb2.JobSpec) -> None:
    _check_few(f"{at}.permitted_nodes", len(spec.permitted_nodes))
    before = 0
    for index, nodes in enumerate(spec.permitted_nodes):
        field = f"{at}.permitted_nodes[{index}]"
        if not spec.min_nodes <= nodes <= spec.max_nodes:
            raise InvalidInputError(field, f"{spec.min_nodes} to {spec.max_nodes}, the job's bounds", nodes)
        if nodes <= before:
            raise InvalidInputError(field, f"above the entry before ({before})", nodes)
        before = nodes


def _check_replicas(at: str, spec: resources_pb2.JobSpec) -> tuple[int, ...]:
    """Permitted scales: those that were submitted, or all whole numbers of replicas."""
    field, nodes = f"{at}.nodes_per_replica", spec.nodes_per_replica
    if not 0 <= nodes <= _MAX_NODES:
        raise InvalidInputError(field, f"1 to {_MAX_NODES}", nodes)
    if nodes <= 1:
        return tuple(spec.permitted_nodes)
    if spec.HasField("fleet"):
        raise InvalidInputError(field, "1: a member of a fleet has a copy of the model on each GPU", nodes)
    if spec.backend not in _DIVIDING:
        raise InvalidInputError(f"{at}.backend", "torchrun or command, as nodes_per_replica says", _backend_name(spec))
    scales = {f"permitted_nodes[{index}]": scale for index, scale in enumerate(spec.permitted_nodes)}
    for name, scale in {"min_nodes": spec.min_nodes, "max_nodes": spec.max_nodes, **scales}.items():
        if scale % nodes:
            raise InvalidInputError(f"{at}.{name}", f"a multiple of nodes_per_replica ({nodes})", scale)
    permitted = tuple(spec.permitted_nodes) or tuple(range(spec.min_nodes, spec.max_nodes + 1, nodes))
    if len(permitted) > _MAX_SCALES:
        most = spec.min_nodes + nodes * (_MAX_SCALES - 1)
        raise InvalidInputError(f"{at}.max_nodes", f"at most {most}, or {_MAX_SCALES} permitted_nodes", spec.max_nodes)
    return permitted


def _check_figures(at: str, spec: resources_pb2.JobSpec) -> None:
    if not 0 <= spec.slots_per_node <= 1024:
        raise InvalidInputError(f"{at}.slots_per_node", "1 to 1024 (0: one for each GPU)", spec.slots_per_node)
    for name in ("scale_up_seconds", "scale_down_seconds"):
        _check_amount(f"{at}.{name}", getattr(spec, name), MAX_PHASE_SECONDS)
    if spec.weight and not MIN_WEIGHT <= spec.weight <= MAX_WEIGHT:  # NaN is true, and in no bounds
        raise InvalidInputError(f"{at}.weight", f"{_WEIGHTS} (0 means 1)", spec.weight)
    if spec.target_samples < 0:
        raise InvalidInputError(f"{at}.target_samples", "at least 0", spec.target_samples)
    if spec.max_restarts < 0:
        raise InvalidInputError(f"{at}.max_restarts", "at least 0", spec.max_restarts)


def _check_burst_buffer(at: str, asked_gb: int, quota_gb: int) -> None:
    if not 0 <= asked_gb <= quota_gb:
        granted = f"0 to {quota_gb} GB, the quota" if quota_gb else "0, since no burst buffer is granted"
        raise InvalidInputError(f"{at}.burst_buffer_gb", f"{granted} (job_manager.burst_buffer_gb)", asked_gb)


def _check_amount(field: str, value: float, maximum: float) -> None:
    if not 0 <= value <= maximum:
        raise InvalidInputError(field, f"a finite number, at least 0 and at most {maximum:g}", value)


def _check_few(field: str, entries: int) -> None:
    if entries > _MAX_SCALES:
        raise InvalidInputError(field, f"at most {_MAX_SCALES} entries", entries)


def _check_curve(at: str, curve: Sequence[resources_pb2.ScalingPoint]) -> tuple[ScalingPoint, ...]:
    _check_few(f"{at}.curve", len(curve))
    before = -1
    for index, point in enumerate(curve):
        field = f"{at}.curve[{index}]"
        if point.nodes < 0:
            raise InvalidInputError(f"{field}.nodes", "at least 0", point.nodes)
        if point.nodes <= before:
            raise InvalidInputError(f"{field}.nodes", f"above the point before ({before})", point.nodes)
        _check_amount(f"{field}.rate", point.rate, MAX_RATE)
        if 0 < point.rate < MIN_RATE:
            raise InvalidInputError(f"{field}.rate", f"0, or at least {MIN_RATE:g} samples/s", point.rate)
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
        if name == TRACKERS:
            _check_trackers(field, value)
    return dict(spec.environment)


def _check_trackers(field: str, value: str) -> None:
    try:
        parse_trackers(value)
    except ValueError as error:
        raise InvalidInputError(field, str(error)) from None


def _check_working_directory(at: str, directory: str, files: _Files) -> None:
    field = f"{at}.working_directory"
    if not Path(directory).is_absolute():
        raise InvalidInputError(field, "an absolute path", directory)
    if not files.is_kind(field, stat.S_ISDIR, Path(directory)):
        raise InvalidInputError(field, "an existing directory", directory)


def check_command(
    at: str, command: Sequence[str], directory: str, search_path: str, files: _Files | None = None
) -> None:
    """Refuse a command whose program or Python script does not exist, so that the user is told at once.

    Args:
        at: Path of the job's spec, for errors.
        command: Program and arguments.
        directory: The working directory.
        search_path: Where programs are looked for, as in PATH.
        files: What was looked at for the same submission.

    Raises:
        InvalidInputError: it can't be started.
    """
    files = _Files() if files is None else files
    if not command or not command[0]:
        raise InvalidInputError(f"{at}.command", "a program and its arguments", list(command))
    for index, word in enumerate(command):
        if "\0" in word:
            raise InvalidInputError(f"{at}.command[{index}]", "text without zero bytes", word)
    program = command[0]
    as_script = f", or `python {program}`" if program.endswith(".py") else ""
    if os.sep in program:
        path = Path(directory, program)
        if not is_program(at, path, files):
            if not as_script and files.is_kind(at, stat.S_ISREG, path):
                as_script = f" (chmod +x {program}), or `sh {program}`"
            raise InvalidInputError(f"{at}.command[0]", f"an executable file{as_script}", program)
    elif not any(is_program(at, Path(folder, program), files) for folder in _folders(search_path)):
        if not as_script and len(command) == 1 and len(program.split()) > 1:
            as_script = "; its arguments are words of their own, without quotes around all"
        elif not as_script and files.is_kind(at, stat.S_ISREG, Path(directory, program)):
            as_script = f", or `./{program}`"
        expected = f"a path, or a program that is on the services' PATH{as_script}"
        raise InvalidInputError(f"{at}.command[0]", expected, program)
    python = parse_python_command(command)
    if (
        python is not None
        and python.kind == "script"
        and not files.is_kind(at, stat.S_ISREG, Path(directory, python.target))
    ):
        field = f"{at}.command[{len(python.interpreter)}]"
        raise InvalidInputError(field, f"an existing script (relative ones in {directory})", python.target)


def _folders(search_path: str) -> list[str]:
    return [folder for folder in search_path.split(os.pathsep)[:_MAX_FOLDERS] if folder]


def is_program(at: str, path: Path, files: _Files) -> bool:
    """Whether a file looks like a program. Not by access(2), which asks for the real user, whoever we act as."""
    return files.is_kind(at, lambda mode: stat.S_ISREG(mode) and bool(mode & _EXECUTABLE), path)


class _Files:
    """The files that one submission names, each looked at once, and so many at most."""

    def __init__(self) -> None:
        self._modes: dict[Path, int] = {}

    def is_kind(self, at: str, kind: Callable[[int], bool], path: Path) -> bool:
        """Whether there is a file of a kind, as far as can be seen.

        Raises:
            InvalidInputError: the submission names too many.
        """
        if path not in self._modes:
            if len(self._modes) >= _MAX_LOOKS:
                raise InvalidInputError(at, f"jobs for which at most {_MAX_LOOKS} files have to be looked at in all")
            self._modes[path] = mode_of(path)
        return kind(self._modes[path])


def mode_of(path: Path) -> int:
    """Mode of a file; 0 where there is none."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def check_array(specs: Sequence[resources_pb2.JobSpec]) -> None:
    """Check what the jobs of an array have in common.

    Raises:
        InvalidInputError: some have it and others not, its limit makes no sense, or they are members of a fleet.
    """
    first = specs[0]
    for index, spec in enumerate(specs):
        if spec.HasField("array") != first.HasField("array") or spec.array != first.array:
            raise InvalidInputError(f"specs[{index}].array", "the same array in all specs of a submission, or in none")
    if not first.HasField("array"):
        return
    if first.HasField("fleet"):
        raise InvalidInputError(
            "specs[0].array", "no array: members of a fleet are listed and cancelled as one already"
        )
    if not 0 <= first.array.max_admitted <= _MAX_ADMITTED:
        expected = f"a whole number from 0 to {_MAX_ADMITTED}"
        raise InvalidInputError("specs[0].array.max_admitted", expected, first.array.max_admitted)


def _check_parameters(at: str, spec: resources_pb2.JobSpec) -> dict[str, str]:
    parameters = dict(spec.array_parameters)
    if parameters and not spec.HasField("array"):
        raise InvalidInputError(at, "none where there is no array", sorted(parameters))
    if len(parameters) > _MAX_PARAMETERS:
        raise InvalidInputError(at, f"at most {_MAX_PARAMETERS} parameters", len(parameters))
    for name, value in parameters.items():
        if not _PARAMETER.match(name):
            raise InvalidInputError(at, "names of 1 to 64 letters, digits, _ and -", name)
        if len(value) > _MAX_PARAMETER_LENGTH or not value.isprintable():
            raise InvalidInputError(f"{at}.{name}", f"at most {_MAX_PARAMETER_LENGTH} printable characters", value)
    return parameters


def check_fleet(specs: Sequence[resources_pb2.JobSpec], burst_buffer_gb: int) -> FleetSpec | None:
    """What the members of a fleet have in common; None if the jobs of this submission are no fleet.

    Args:
        specs: What was submitted, at least one.
        burst_buffer_gb: The quota of burst buffer in GB.

    Raises:
        InvalidInputError: it is no fleet that could train; the field is named like `specs[0].fleet.max_nodes`.
    """
    first = specs[0]
    for index, spec in enumerate(specs):
        if spec.HasField("fleet") != first.HasField("fleet"):
            raise InvalidInputError(f"specs[{index}].fleet", "a fleet in all specs of a submission, or in none")
    if not first.HasField("fleet"):
        return None
    fleet = _check_common("specs[0].fleet", first.fleet)
    for index, spec in enumerate(specs):
        if spec.fleet != first.fleet:
            raise InvalidInputError(f"specs[{index}].fleet", "the same as specs[0].fleet")
        if (needs := needs_from_proto(spec.needs)) != needs_from_proto(first.needs):
            expected = "the same as specs[0].needs: members of a fleet share nodes"
            raise InvalidInputError(f"specs[{index}].needs", expected, in_words(needs) or "nothing")
    _check_members(specs, fleet, burst_buffer_gb)
    return fleet


def _check_common(at: str, spec: fleet_pb2.FleetSpec) -> FleetSpec:
    if not spec.name.strip() or len(spec.name) > _MAX_NAME_LENGTH or not spec.name.isprintable():
        raise InvalidInputError(f"{at}.name", f"1 to {_MAX_NAME_LENGTH} printable characters", spec.name)
    if not 1 <= spec.max_nodes <= _MAX_NODES:
        raise InvalidInputError(f"{at}.max_nodes", f"1 to {_MAX_NODES}", spec.max_nodes)
    if not 0 <= spec.gpus_per_node <= MAX_GPUS_PER_NODE:
        expected = f"1 to {MAX_GPUS_PER_NODE} (0: as many as a node has)"
        raise InvalidInputError(f"{at}.gpus_per_node", expected, spec.gpus_per_node)
    for name in ("rate_tolerance", "samples_per_epoch", "preprocess_rate", "checkpoint_seconds"):
        value = getattr(spec, name)
        if not math.isfinite(value) or value < 0:
            raise InvalidInputError(f"{at}.{name}", "a finite number, at least 0", value)
    if spec.HasField("active_share") and not 0 <= spec.active_share <= 1:
        raise InvalidInputError(f"{at}.active_share", "0 to 1", spec.active_share)
    if spec.feed and not is_feed(spec.feed):
        raise InvalidInputError(f"{at}.feed", "MODULE:FUNCTION, or nothing", spec.feed)
    try:
        check_planner(spec.planner)
        check_paces(spec)
    except InvalidInputError as error:
        raise error.at(f"{at}.{error.field}") from None
    fleet = spec_from_proto(spec)
    if not fleet.samples_per_epoch and fleet.planner is not FleetPlanner.MILP:
        raise InvalidInputError(f"{at}.samples_per_epoch", "above 0, which planners other than MILP need", 0)
    return fleet


def _check_members(specs: Sequence[resources_pb2.JobSpec], fleet: FleetSpec, quota_gb: int) -> None:
    if len(specs) > MAX_MEMBERS:
        raise InvalidInputError("specs", f"at most {MAX_MEMBERS} members of a fleet", len(specs))
    names: dict[str, int] = {}
    burst_buffer_gb = 0
    for index, spec in enumerate(specs):
        at = f"specs[{index}]"
        if (earlier := names.setdefault(spec.name, index)) != index:
            raise InvalidInputError(f"{at}.name", f"another name than that of specs[{earlier}]", spec.name)
        burst_buffer_gb += spec.burst_buffer_gb
        _check_member(at, spec, fleet)
        if burst_buffer_gb > quota_gb >= spec.burst_buffer_gb:
            expected = f"at most {quota_gb} GB of all members together, the quota (job_manager.burst_buffer_gb)"
            raise InvalidInputError(f"{at}.burst_buffer_gb", expected, burst_buffer_gb)


def _check_member(at: str, spec: resources_pb2.JobSpec, fleet: FleetSpec) -> None:
    gpus = fleet.max_nodes * (fleet.gpus_per_node or MAX_GPUS_PER_NODE)
    for name in ("min_nodes", "max_nodes"):
        if getattr(spec, name) > gpus:
            what = f"at most {gpus}, the GPUs of fleet.max_nodes ({fleet.max_nodes}) nodes"
            raise InvalidInputError(f"{at}.{name}", what, getattr(spec, name))
    if fleet.feed is not None and spec.environment.get(FEED) != fleet.feed:
        expected = f"{fleet.feed!r}, as fleet.feed"
        raise InvalidInputError(f"{at}.environment[{FEED}]", expected, spec.environment.get(FEED, "nothing"))
    if spec.slots_per_node not in (0, 1):
        raise InvalidInputError(f"{at}.slots_per_node", "1: a member has one worker a GPU", spec.slots_per_node)
    for index, point in enumerate(spec.curve):
        if point.nodes > 0 and not point.rate > 0:
            raise InvalidInputError(f"{at}.curve[{index}].rate", "above 0, as for every member", point.rate)
