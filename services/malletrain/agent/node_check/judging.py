"""Whether a node is well, from what was measured there. Pure."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from malletrain.common.untrusted_json import UntrustedJsonError, texts_of

MAX_REASON_LENGTH = 400
"""Characters of why a node is not well; the rest is cut."""
_LOST_GPU_CODES = {15: "is lost", 16: "must be reset", 999: "does not answer"}
"""What NVIDIA's management library says of a GPU that cannot be used; other codes say nothing of its health."""
_FATAL_XIDS = frozenset({48, 79, 95, 119, 120})
"""Errors of the GPU itself, which no program causes: memory, bus, its own processor."""
_XID_SECONDS = 3600.0
# From the beginning of the message: what a user's program has the kernel log begins with its name, at most 15 bytes.
_XID = re.compile(r"\d+,\d+,(\d{1,20}),[^;]*;NVRM: Xid \(PCI:([0-9A-Fa-f:.]{1,20})\): (\d{1,4}),")


@dataclass(frozen=True)
class CheckLimits:
    """What a node must have, and how long that may take to find out.

    Attributes:
        seconds: Time limit of the measures.
        least_memory_mib: Memory that must be available.
        most_ecc_errors: Uncorrected memory errors of a GPU since its driver was loaded, at most.
        folders: Folders that must be writable.
        script: Path of the operator's own check on the node; empty: there is none.
        script_seconds: Its time limit.
        speed_seconds: How long its speed is measured; 0: it is not.
    """

    seconds: float = 1.0
    least_memory_mib: int = 256
    most_ecc_errors: int = 0
    folders: tuple[str, ...] = ()
    script: str = ""
    script_seconds: float = 5.0
    speed_seconds: float = 0.0


@dataclass(frozen=True)
class GpuMeasure:
    """What the management library says of one GPU.

    Attributes:
        code: What the management library answers when it is asked for the GPU; 0: all is well.
        ecc_errors: Uncorrected memory errors since the driver was loaded; None: not known.
    """

    code: int = 0
    ecc_errors: int | None = None


@dataclass(frozen=True)
class NodeMeasures:
    """What was measured.

    Attributes:
        memory_mib: Available memory; None: not known.
        folder_errors: Why folders can't be written to, one sentence each.
        gpus: The GPUs, in the library's order.
        xids: GPUs (PCI addresses) with errors of their own in the last hour of the kernel log, and the error's number.
    """

    memory_mib: int | None = None
    folder_errors: tuple[str, ...] = ()
    gpus: tuple[GpuMeasure, ...] = ()
    xids: tuple[str, ...] = ()


def reasons_against(measures: NodeMeasures, limits: CheckLimits) -> list[str]:
    """Why no work must start on a node; empty: nothing is known against it. What is not known is nothing against it."""
    reasons = list(measures.folder_errors)
    if measures.memory_mib is not None and measures.memory_mib < limits.least_memory_mib:
        reasons.append(f"{measures.memory_mib} MiB of memory are available, expected {limits.least_memory_mib}")
    for index, gpu in enumerate(measures.gpus):
        if gpu.code in _LOST_GPU_CODES:
            reasons.append(f"GPU {index} {_LOST_GPU_CODES[gpu.code]}")
        if gpu.ecc_errors is not None and gpu.ecc_errors > limits.most_ecc_errors:
            reasons.append(f"GPU {index} has {gpu.ecc_errors} uncorrected memory errors")
    reasons += [f"the kernel log has {xid}" for xid in measures.xids]
    return reasons


def fatal_xids(records: Iterable[str], uptime_seconds: float) -> tuple[str, ...]:
    """Errors of GPUs themselves in the last hour of the kernel log, each once.

    Args:
        records: As /dev/kmsg has them.
        uptime_seconds: Since the machine has started.
    """
    errors: dict[str, None] = {}
    for record in records:
        if (match := _XID.match(record)) is None:
            continue
        age = uptime_seconds - int(match[1]) / 1e6
        if int(match[3]) in _FATAL_XIDS and age <= _XID_SECONDS:
            errors[f"Xid {match[3]} of GPU {match[2]}"] = None
    return tuple(errors)


def read_measures(fields: Mapping[str, Any]) -> NodeMeasures:
    """What the measuring process has printed.

    Raises:
        UntrustedJsonError: it is of another form.
    """
    memory, gpus = fields.get("memory_mib"), fields.get("gpus")
    if not (memory is None or type(memory) is int) or not isinstance(gpus, list):
        raise UntrustedJsonError("expected memory_mib and gpus")
    return NodeMeasures(
        memory, texts_of(fields, "folder_errors", 16, 200), tuple(map(_gpu, gpus)), texts_of(fields, "xids", 16, 80)
    )


def _gpu(entry: object) -> GpuMeasure:
    match entry:
        case {"code": int(code), "ecc_errors": None | int() as errors}:
            return GpuMeasure(code, errors)
    raise UntrustedJsonError("expected code and ecc_errors of a GPU")


def text_for_people(text: str, max_length: int = MAX_REASON_LENGTH) -> str:
    """A text of a program for people: one line, without characters that terminals act on, cut."""
    return "".join(char if char.isprintable() else " " for char in text[:max_length]).strip()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser."""
    check, usual = parser.add_argument_group("check of the node before its first worker"), CheckLimits()
    check.add_argument("--check-seconds", type=float, default=0.0, help="time limit; 0: the node is not checked (0)")
    check.add_argument("--check-memory-mib", type=int, default=usual.least_memory_mib, help="least available memory")
    check.add_argument("--check-ecc-errors", type=int, default=usual.most_ecc_errors, help="most of a GPU's memory")
    check.add_argument("--check-folder", action="append", default=[], help="a folder that must be writable")
    check.add_argument(
        "--check-speed-seconds", type=float, default=0.0, help="how long speed is measured; 0: it is not (0)"
    )
    check.add_argument("--check-script", default="", help="program that ends with 0 if the node, its argument, is well")
    check.add_argument("--check-script-seconds", type=float, default=usual.script_seconds, help="its time limit")


def limits_of(arguments: argparse.Namespace) -> CheckLimits | None:
    """What the node must have; None: it is not checked."""
    if arguments.check_seconds <= 0:
        return None
    return CheckLimits(
        arguments.check_seconds,
        arguments.check_memory_mib,
        arguments.check_ecc_errors,
        tuple(arguments.check_folder),
        arguments.check_script,
        arguments.check_script_seconds,
        arguments.check_speed_seconds,
    )
