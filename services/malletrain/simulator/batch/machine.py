"""What a machine has besides nodes: from options, from a log's header, or from the JSON beside a job table."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources

_CLASS = re.compile(r"\s*(\d{1,12})\s*[:*]\s*(\d{1,12})\s*")
_AMOUNT = re.compile(r"\d{1,12}")
SSD_CLASSES_GB = 128, 256
"""SSD of a node of the small and of the large class of a job table."""


@dataclass(frozen=True, slots=True)
class SsdClasses:
    """Two classes of nodes by local SSD."""

    small_gb: int
    small_nodes: int
    large_gb: int
    large_nodes: int


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """What is known of a machine; None: not known.

    Attributes:
        nodes: All nodes.
        burst_buffer_gb: Shared burst buffer in GB.
        ssd: Node classes by local SSD.
        measured_s: From which second until which one metrics are measured.
    """

    nodes: int | None = None
    burst_buffer_gb: int | None = None
    ssd: SsdClasses | None = None
    measured_s: tuple[float, float] | None = None


def parse_ssd(text: str, field: str) -> SsdClasses:
    """Two classes from `128:2196,256:2196`: GB and nodes.

    Raises:
        InvalidInputError: it is not two classes of different size.
    """
    matches = [_CLASS.fullmatch(part) for part in text.split(",")]
    values = sorted((int(match[1]), int(match[2])) for match in matches if match)
    if len(matches) != 2 or len(values) != 2 or not values[0][0] < values[1][0]:
        raise InvalidInputError(field, "two classes of nodes as GB and number, such as 128:2196,256:2196", text)
    return SsdClasses(*values[0], *values[1])


def parse_burst_buffer(text: str, field: str) -> int:
    """The size of the one burst buffer in GB.

    Raises:
        InvalidInputError: it is no whole number, or a list of several burst buffers.
    """
    if "," in text:
        raise InvalidInputError(field, "one burst buffer (several are not supported)", text)
    if not _AMOUNT.fullmatch(text.strip()):
        raise InvalidInputError(field, "the machine's burst buffer as whole GB", text)
    return int(text)


def read_machine(path: Path, nodes: int | None = None) -> MachineSpec:
    """The machine in the JSON beside a job table.

    Args:
        path: The file.
        nodes: All nodes; None: as the file says.

    Raises:
        InvalidInputError: the file can't be read, or a value is not what it should be.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(str(path), f"a readable JSON file with the machine ({error})") from error
    if not isinstance(values, dict):
        raise InvalidInputError(str(path), "one JSON object", values)
    known = _whole(values, "nodes", path, minimum=1)
    nodes = known if nodes is None else nodes
    ssd = values.get("ssd", False)
    if not isinstance(ssd, bool):
        raise InvalidInputError(f"{path}: ssd", "true or false", ssd)
    classes = None
    if ssd:
        if nodes is None:
            raise InvalidInputError(f"{path}: nodes", "the number of nodes, as ssd is true")
        large = _whole(values, "nodes_with_256gb_ssd", path) or 0
        if large > nodes:
            raise InvalidInputError(f"{path}: nodes_with_256gb_ssd", f"at most {nodes}, all nodes", large)
        small_gb, large_gb = SSD_CLASSES_GB
        classes = SsdClasses(small_gb, nodes - large, large_gb, large)
    return MachineSpec(nodes, _whole(values, "burst_buffer_gb", path), classes, _measured_period(values, path))


def machine_of(nodes: int, spec: MachineSpec, field: str = "ssd") -> MachineResources | None:
    """The machine; None if it has nodes only.

    Args:
        nodes: All nodes.
        spec: What it has besides.
        field: Where the classes come from, for errors.

    Raises:
        InvalidInputError: the classes do not add up to all nodes.
    """
    if spec.burst_buffer_gb is None and spec.ssd is None:
        return None
    if spec.ssd is None:
        return MachineResources(nodes, spec.burst_buffer_gb or 0)
    ssd = spec.ssd
    if ssd.small_nodes + ssd.large_nodes != nodes:
        raise InvalidInputError(field, f"classes that add up to the {nodes} nodes", ssd.small_nodes + ssd.large_nodes)
    return MachineResources(nodes, spec.burst_buffer_gb or 0, ssd.large_nodes, ssd.small_gb, ssd.large_gb)


class Requesting(Protocol):
    """What asks for resources."""

    @property
    def nodes(self) -> int:
        """How many nodes it asks for."""

    @property
    def burst_buffer_gb(self) -> int:
        """Shared burst buffer in GB."""

    @property
    def ssd_gb(self) -> int:
        """Local SSD of each node in GB."""


def beyond(job: Requesting, machine: MachineResources | None) -> tuple[str, str, int] | None:
    """The first resource besides nodes of which a job wants more than there is: its column, what is there, its wish."""
    burst_buffer = machine.burst_buffer_gb if machine else 0
    if job.burst_buffer_gb > burst_buffer:
        return "burst_buffer_gb", f"at most {burst_buffer} GB, the machine's burst buffer", job.burst_buffer_gb
    largest = machine.large_ssd_gb if machine else 0
    if job.ssd_gb > largest:
        return "ssd_gb", f"at most {largest} GB, the largest local SSD", job.ssd_gb
    if machine and job.ssd_gb > machine.small_ssd_gb and job.nodes > machine.large_nodes:
        return (
            "nodes",
            f"at most {machine.large_nodes} nodes with more than {machine.small_ssd_gb} GB of SSD",
            job.nodes,
        )
    return None


def _whole(values: dict[str, object], name: str, path: Path, minimum: int = 0) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= 10**12:
        raise InvalidInputError(f"{path}: {name}", f"a whole number, at least {minimum}", value)
    return value


def _measured_period(values: dict[str, object], path: Path) -> tuple[float, float] | None:
    bounds = [values.get(name) for name in ("measure_from_s", "measure_until_s")]
    if bounds == [None, None]:
        return None
    first, last = bounds
    if not (_is_second(first) and _is_second(last)):
        raise InvalidInputError(f"{path}: measure_from_s, measure_until_s", "both as seconds", bounds)
    return check_measured(float(str(first)), float(str(last)), str(path))


def _is_second(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_measured(first_s: float, last_s: float, field: str) -> tuple[float, float]:
    """The measured seconds.

    Raises:
        InvalidInputError: they are no period.
    """
    if not (math.isfinite(first_s) and math.isfinite(last_s) and 0 <= first_s < last_s):
        raise InvalidInputError(field, "a first second from 0 and a later last one", (first_s, last_s))
    return first_s, last_s
