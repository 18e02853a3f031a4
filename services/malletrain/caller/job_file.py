"""Job files: one job in TOML, each option by its name on the command line. Read with line numbers, and written."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from malletrain.caller.dependencies import parse_names
from malletrain.caller.job_array import parse_array
from malletrain.caller.job_request import JobRequest, needs_of, parse_burst_buffer
from malletrain.caller.option_values import NAMES, checked_command, checked_options, nearest
from malletrain.caller.other_names import own_options, why_absent
from malletrain.model.topology import TopologyPreference
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.job_value_messages import value_from_proto
from malletrain.runtime.job_values import parse_value, value_text
from malletrain.runtime.topology_messages import known_preference
from malletrain.v1 import resources_pb2

MAX_BYTES = 256 * 1024
"""More than a job's specification may have in all."""
_FIELDS = {"min": "min_nodes", "max": "max_nodes"}
_KEYS = {name: name.replace("_", "-") for name in NAMES} | {field: key for key, field in _FIELDS.items()}
"""Key of each option by its name in Python."""
_OPTIONS = {key: name for name, key in _KEYS.items()}
JOB_KEYS = ("command", *_KEYS.values(), "array")
"""Keys of a job file."""
_TEXT_LISTS = frozenset({"exclude"})
_NAMES_OF_JOBS = frozenset({"after", "after-ok"})
_LIMITS = ("start", "step", "evaluation", "save")
_GRACES = ("release", "leave")
_MIB = (("T", 1 << 20), ("G", 1 << 10), ("M", 1))


def read_job_file(
    text: str, name: str, expand_nodes: Callable[[str], tuple[str, ...]], others: Collection[str] = ()
) -> JobRequest:
    """The job that a file describes.

    Args:
        text: Its content.
        name: Its name, for errors.
        expand_nodes: Names in a list of nodes such as `n07,n[11-13]`.
        others: Further keys that it may have, which somebody else reads.

    Raises:
        InvalidInputError: it is no TOML, a key is not known, or a value is not as expected. The error names the line.
    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+)", str(error))
        hint = "; texts stand in quotes" if str(error).startswith("Invalid value") else ""
        raise InvalidInputError(f"{name}:{match[1]}" if match else name, f"TOML ({error}){hint}") from None
    except RecursionError:
        raise InvalidInputError(name, "TOML that is not nested without end") from None
    tree = {key: value for key, value in tree.items() if key not in others}
    for key in tree:
        if key not in JOB_KEYS:
            raise InvalidInputError(f"{name}:{line_of(text, key)}", _checked_key(key, tree[key]), key)
    if "command" not in tree:
        raise InvalidInputError(name, 'a key command, e.g. command = ["python", "train.py"]')
    values: dict[str, Any] = {}
    for key, value in tree.items():
        try:
            if key == "command":
                command = checked_command(value)
            elif key == "array":
                values["array"] = _array(value)
            else:
                values |= checked_options({_OPTIONS[key]: _as_option(key, value, expand_nodes)})
                _check_value(_OPTIONS[key], values)
        except InvalidInputError as error:
            inner = _inner(error.field)
            at, which = f"{name}:{line_of(text, key, inner)}", f"{key}.{inner}" if inner else key
            raise InvalidInputError(at, f"{which} to be {_in_toml(error.expected, value)}", *_got(value)) from None
    return JobRequest(command=command, **values)


def line_of(text: str, key: str, inner: str = "") -> int:
    """The line of a key at the top of a file, or of a key in its table, from 1. Of what is not found: 1."""
    named = re.compile(rf"""^\s*(\[\s*)?["']?{re.escape(key)}["']?\s*(=|\.|\])""")
    lines = text.split("\n")
    first = next((place for place, line in enumerate(lines) if named.match(line)), 0)
    if not inner:
        return first + 1
    within = re.compile(rf"""(^|[\s{{,.]){re.escape(inner)}["']?\s*=|["']{re.escape(inner)}["']\s*=""")
    return next((place for place in range(first, len(lines)) if within.search(lines[place])), first) + 1


def job_file_text(spec: resources_pb2.JobSpec) -> str:
    """A specification as a job file, without what is as by default.

    Raises:
        InvalidInputError: it is a member of a fleet, which a job file can't describe.
    """
    if spec.HasField("fleet"):
        raise InvalidInputError("--toml", "a job that is no member of a fleet")
    lines = [f"{key} = {_toml(value)}" for key, value in _entries(spec)]
    return "\n".join(lines) + "\n"


def _entries(spec: resources_pb2.JobSpec) -> Iterator[tuple[str, Any]]:
    yield "command", list(spec.command)
    yield "name", spec.name
    yield "workdir", spec.working_directory
    yield "min", spec.min_nodes
    yield "max", spec.max_nodes
    backend = resources_pb2.LauncherBackend.Name(spec.backend).removeprefix("LAUNCHER_BACKEND_").lower()
    profile = resources_pb2.ProfileMode.Name(spec.profile).removeprefix("PROFILE_MODE_").lower()
    needs, limits = spec.needs, spec.limits
    others: dict[str, Any] = {
        "permitted": list(spec.permitted_nodes),
        "slots": spec.slots_per_node,
        "nodes-per-replica": spec.nodes_per_replica,
        "curve": {str(point.nodes): point.rate for point in spec.curve},
        "backend": "" if backend == "unspecified" else backend,
        "weight": 0 if spec.weight == 1 else spec.weight,
        "value": value_text(value_from_proto(spec)) if spec.HasField("value") else "",
        "target-samples": spec.target_samples,
        "profile": "" if profile == "unspecified" else profile,
        "family": spec.family,
        "project": spec.project,
        "gpu": needs.gpu,
        "gpu-memory": _size(needs.gpu_memory_mib),
        "gpus": needs.gpus,
        "cores": needs.cores,
        "memory": _size(needs.memory_mib),
        "constraint": needs.constraint,
        "pool": needs.pool,
        "exclude": list(needs.excluded_nodes),
        "topology": _topology(spec),
        "burst-buffer": f"{spec.burst_buffer_gb}GB" if spec.burst_buffer_gb else "",
        "cold": spec.cold_start,
        **{f"{name}-limit": getattr(limits, f"{name}_seconds") for name in _LIMITS},
        **{f"{name}-grace": getattr(limits, f"{name}_grace_seconds") for name in _GRACES},
        "after": list(spec.dependencies.after),
        "after-ok": list(spec.dependencies.after_ok),
    }
    for name in ("scale_up_seconds", "scale_down_seconds", "max_restarts"):
        if spec.HasField(name):
            yield name.removesuffix("_seconds").replace("_", "-"), getattr(spec, name)
    yield from ((key, value) for key, value in others.items() if value)
    if spec.environment:
        yield "env", dict(sorted(spec.environment.items()))


def _topology(spec: resources_pb2.JobSpec) -> str:
    preference = known_preference(spec.topology)
    if preference is TopologyPreference.NONE:
        return ""
    return f"{preference}={spec.topology_level}" if spec.topology_level else str(preference)


def _as_option(key: str, value: object, expand_nodes: Callable[[str], tuple[str, ...]]) -> object:
    """A value as Python has it: nodes and jobs may also be one text, and numbers of nodes are keys of a table."""
    if key in _TEXT_LISTS and isinstance(value, str):
        return expand_nodes(value)
    if key in _NAMES_OF_JOBS and isinstance(value, str):
        return parse_names(key, value)
    if key == "curve" and isinstance(value, dict):
        return {int(nodes) if nodes.isascii() and nodes.isdecimal() else nodes: rate for nodes, rate in value.items()}
    return value


def _array(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInputError("array", "a text such as 'lr=0.1,0.01 depth=18,50 %2'", value)
    parse_array(value)
    return value


def _check_value(name: str, values: Mapping[str, Any]) -> None:
    """Refuse here, with its line, what would otherwise be refused when the job is made of all options."""
    if name == "burst_buffer" and values[name]:
        parse_burst_buffer(values[name])
    elif name == "value":
        parse_value(values[name])
    elif name in ("gpu_memory", "gpus", "cores", "memory") and name in values:
        needs_of(JobRequest(command=("",), **{name: values[name]}))


def _checked_key(key: str, value: object) -> str:
    if isinstance(value, dict) and "command" in value:
        return f"the keys at the top of the file, without a table [{key}]"
    if absent := why_absent(key):
        return f"a known key; {absent}"
    near = _KEYS.get(key) or " and ".join(own_options(key)) or nearest(key.replace("_", "-"), JOB_KEYS)
    return f"a known key, such as {near}" if near else f"one of {', '.join(JOB_KEYS)}"


def _in_toml(expected: str, value: object) -> str:
    """What is expected, with how TOML writes it where a value is of the other kind."""
    if expected.startswith("a text"):
        return expected.replace("a text", "a text in quotes", 1)
    is_number = expected.startswith(("a whole number", "a finite number"))
    return f"{expected} without quotes" if is_number and isinstance(value, str) else expected


def _inner(field: str) -> str:
    match = re.search(r"\['?(.*?)'?\]$", field)
    return match[1] if match and not match[1].isdecimal() else ""


def _got(value: object) -> tuple[object, ...]:
    """What was got, where it can't be a secret of the job's environment."""
    return () if isinstance(value, dict) else (value,)


def _size(mib: int) -> str:
    return next((f"{mib // unit}{letter}" for letter, unit in _MIB if mib and mib % unit == 0), "")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml(entry)}" for key, entry in value.items()) + " }"
    return str(value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def read_job_text(path: Path) -> str:
    """The text of a job file, whose size is bounded.

    Raises:
        InvalidInputError: it can't be read, is too large, or is no text in UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(str(path), f"a readable file ({error.strerror})") from None
    if len(content) > MAX_BYTES:
        raise InvalidInputError(str(path), f"at most {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(f"{path}:{line}", "text in UTF-8") from None
