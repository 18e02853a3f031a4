"""Options of jobs as keyword arguments: those of `malletrain submit`, typed, and checked before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypedDict

from malletrain.api.errors import in_python
from malletrain.caller.job_request import JobRequest, job_spec
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2


class JobOptions(TypedDict, total=False):
    """Options of a job; what is not named is as `malletrain submit` has it by default.

    Attributes:
        name: Name for people; by default the script's.
        min_nodes: Smallest scale in nodes.
        max_nodes: Largest scale in nodes; by default 8, and 1 for the backend `command`.
        permitted: Permitted scales in nodes.
        slots: Worker processes per node; 0: one for each GPU, or 1.
        curve: Samples per second by number of nodes, e.g. `{1: 100, 2: 190}`.
        scale_up: Stall of a growth in seconds.
        scale_down: Stall of a shrink in seconds.
        backend: `horovod`, `torchrun` or `command`; by default what the script shows.
        weight: Priority weight, above 0.
        target_samples: Samples after which it is complete.
        max_restarts: Restarts after failures before it is FAILED.
        profile: `auto`, `always` or `never`: whether its scaling curve is measured on purpose.
        family: Jobs of one family share scaling curve and rescale costs.
        project: Project that its usage is accounted to.
        gpu: Kind of GPU that each of its nodes must have, e.g. `a100`.
        gpu_memory: Least memory of each GPU, e.g. `40G`.
        gpus: Least number of GPUs of each node.
        cores: Least number of cores of each node.
        memory: Least memory of each node, e.g. `256G`.
        constraint: Features that each node must have, e.g. `ib&big`.
        pool: Pool or partition that its nodes must be of.
        exclude: Names of nodes that it must not have.
        topology: `prefer`: nodes near each other; `none`: any.
        burst_buffer: Burst buffer that it holds until its end, e.g. `2TB`.
        cold: Whether each worker is started as a new interpreter.
        env: Variables of the workers.
        workdir: Folder that the workers start in; by default the present one.
        start_limit: Longest start in seconds.
        step_limit: Longest time in seconds from one batch to the next.
        evaluation_limit: Longest evaluation in seconds.
        save_limit: Longest save of a checkpoint in seconds.
        release_grace: Seconds to save and end on a node that is taken.
        leave_grace: Seconds to save and end before a start at another scale.
    """

    name: str
    min_nodes: int
    max_nodes: int | None
    permitted: Sequence[int]
    slots: int
    curve: Mapping[int, float]
    scale_up: float | None
    scale_down: float | None
    backend: str
    weight: float
    target_samples: int
    max_restarts: int | None
    profile: str
    family: str
    project: str
    gpu: str
    gpu_memory: str | None
    gpus: int | None
    cores: int | None
    memory: str | None
    constraint: str
    pool: str
    exclude: Sequence[str]
    topology: str
    burst_buffer: str
    cold: bool
    env: Mapping[str, str]
    workdir: str | PathLike[str] | None
    start_limit: float
    step_limit: float
    evaluation_limit: float
    save_limit: float
    release_grace: float
    leave_grace: float


_OPTIONAL = frozenset(
    {"max_nodes", "scale_up", "scale_down", "max_restarts", "gpu_memory", "gpus", "cores", "memory", "workdir"}
)
_WHOLE = frozenset({"min_nodes", "max_nodes", "slots", "target_samples", "max_restarts", "gpus", "cores"})
_MAX_INTEGER = {"target_samples": 2**63 - 1}
_INT32 = 2**31 - 1


def _whole(name: str, value: object) -> int:
    most = _MAX_INTEGER.get(name, _INT32)
    if isinstance(value, bool) or not isinstance(value, int) or not -most <= value <= most:
        raise InvalidInputError(name, "a whole number", value)
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInputError(name, "a finite number", value)
    return float(value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(name, "a text", value)
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInputError(name, "True or False", value)
    return value


def _wholes(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInputError(name, "a list of whole numbers", value)
    return tuple(_whole(f"{name}[{place}]", number) for place, number in enumerate(value))


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInputError(name, "a list of texts", value)
    return tuple(_text(f"{name}[{place}]", entry) for place, entry in enumerate(value))


def _variables(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidInputError(name, "a dictionary of texts", value)
    # Values may be secrets, and are not quoted.
    for key, entry in value.items():
        _text(name, key)
        if not isinstance(entry, str):
            raise InvalidInputError(f"{name}[{key!r}]", f"a text, and not {type(entry).__name__}")
    return dict(value)


def _curve(name: str, value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, Mapping):
        raise InvalidInputError(name, "a dictionary of samples per second by number of nodes", value)
    return tuple((_whole(name, nodes), _number(f"{name}[{nodes}]", rate)) for nodes, rate in value.items())


def _folder(name: str, value: object) -> Path:
    if not isinstance(value, str | PathLike):
        raise InvalidInputError(name, "a path", value)
    return Path(fspath(value))


_OTHERS: dict[str, Callable[[str, Any], object]] = {
    "permitted": _wholes,
    "exclude": _texts,
    "env": _variables,
    "curve": _curve,
    "workdir": _folder,
    "cold": _flag,
}
_NUMBERS = frozenset(
    {
        *("scale_up", "scale_down", "weight", "start_limit", "step_limit", "evaluation_limit", "save_limit"),
        *("release_grace", "leave_grace"),
    }
)
NAMES = tuple(entry.name for entry in fields(JobRequest) if entry.name != "command")
"""Names of all options."""


def checked_options(options: Mapping[str, object]) -> dict[str, Any]:
    """The options as `JobRequest` takes them.

    Raises:
        InvalidInputError: there is no such option, and which is the nearest; or a value is of another type.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in NAMES:
            raise unknown_option(name, NAMES)
        if value is None and name in _OPTIONAL:
            continue
        kind = _whole if name in _WHOLE else _number if name in _NUMBERS else _OTHERS.get(name, _text)
        found[name] = kind(name, value)
    return found


def unknown_option(name: str, known: Sequence[str]) -> InvalidInputError:
    """The error about an option that there is not."""
    near = get_close_matches(name, known, 1)
    return InvalidInputError(
        name, f"an option of jobs; do you mean {near[0]}?" if near else f"one of {', '.join(known)}"
    )


def spec_of(command: Sequence[str], options: Mapping[str, object]) -> resources_pb2.JobSpec:
    """The specification of a job.

    Args:
        command: Program and arguments.
        options: As `JobOptions`.

    Raises:
        InvalidInputError: an argument is not as expected; the error names it.
    """
    words = _texts("command", command)
    if not words:
        raise InvalidInputError("command", "a program and its arguments", command)
    try:
        return job_spec(JobRequest(command=words, **checked_options(options)))
    except InvalidInputError as error:
        raise in_python(error) from None
