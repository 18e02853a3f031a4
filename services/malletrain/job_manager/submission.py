"""Checking what users submit; every complaint names the field."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence

from malletrain.job_manager.commands import check_command, check_working_directory
from malletrain.job_manager.jobs import DEFAULT_MAX_RESTARTS, Backend, CurvePoint, ProfileMode, Spec
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2

_MOST_NODES = 1_000_000
_LONGEST_NAME = 128
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = "MALLETRAIN_"


def check_specs(specs: Sequence[resources_pb2.JobSpec], search_path: str) -> tuple[Spec, ...]:
    """The specs with their defaults filled in; all of them or none.

    Args:
        specs: What was submitted.
        search_path: Where the workers look for programs, as in PATH.

    Raises:
        InvalidInputError: a field can't be used; it is named like `specs[0].min_nodes`.
    """
    if not specs:
        raise InvalidInputError("specs", "at least one job", [])
    return tuple(_check_spec(f"specs[{index}]", spec, search_path) for index, spec in enumerate(specs))


def digest(specs: Iterable[resources_pb2.JobSpec]) -> str:
    """A fingerprint of the specs of a submission, to tell a repetition from a mix-up."""
    whole = hashlib.sha256()
    for spec in specs:
        body = spec.SerializeToString(deterministic=True)
        whole.update(len(body).to_bytes(8, "big") + body)
    return whole.hexdigest()


def _check_spec(at: str, spec: resources_pb2.JobSpec, search_path: str) -> Spec:
    if not spec.name.strip() or len(spec.name) > _LONGEST_NAME:
        raise InvalidInputError(f"{at}.name", f"1 to {_LONGEST_NAME} characters", spec.name)
    _check_bounds(at, spec)
    _check_permitted(at, spec)
    _check_figures(at, spec)
    check_working_directory(at, spec.working_directory)
    environment = _check_environment(at, spec)
    check_command(at, spec.command, spec.working_directory, environment.get("PATH", search_path))
    return Spec(
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
    )


def _check_profile(at: str, spec: resources_pb2.JobSpec) -> ProfileMode:
    if spec.profile not in resources_pb2.ProfileMode.values():
        raise InvalidInputError(f"{at}.profile", "a known profile mode", spec.profile)
    return ProfileMode(resources_pb2.ProfileMode.Name(spec.profile).removeprefix("PROFILE_MODE_"))


def _check_backend(at: str, spec: resources_pb2.JobSpec) -> Backend:
    if spec.backend not in resources_pb2.LauncherBackend.values():
        raise InvalidInputError(f"{at}.backend", "a known launcher backend", spec.backend)
    return Backend(resources_pb2.LauncherBackend.Name(spec.backend).removeprefix("LAUNCHER_BACKEND_"))


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


def _check_finite(field: str, value: float, expected: str = "a finite number, at least 0") -> None:
    if not math.isfinite(value) or value < 0:
        raise InvalidInputError(field, expected, value)


def _check_curve(at: str, curve: Sequence[resources_pb2.ScalingPoint]) -> tuple[CurvePoint, ...]:
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
    return tuple(CurvePoint(point.nodes, point.rate) for point in curve)


def _check_environment(at: str, spec: resources_pb2.JobSpec) -> dict[str, str]:
    for name, value in spec.environment.items():
        field = f"{at}.environment[{name!r}]"
        if not _VARIABLE.match(name):
            raise InvalidInputError(field, "a name of letters, digits and _ that does not begin with a digit", name)
        if name.startswith(_RESERVED):
            raise InvalidInputError(field, f"a name that does not begin with {_RESERVED}, which is reserved", name)
        if "\0" in value:
            raise InvalidInputError(field, "a value without zero bytes", value)
    return dict(spec.environment)
