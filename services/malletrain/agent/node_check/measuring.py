"""`python -m malletrain.agent.node_check.measuring FOLDER ...`: measures this node, and prints what it finds.

It is a process of its own, since a file system or a driver that hangs would hold a thread of the agent for ever. Before
each step it prints the step's name, so that the agent can say what hangs; the last line is the result.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from malletrain.agent.node_check.judging import GpuMeasure, NodeMeasures, fatal_xids

STEPS = ("memory", "folders", "kernel log", "GPUs")
_AVAILABLE = re.compile(r"^MemAvailable: *(\d+) kB$", re.MULTILINE)
_WRITTEN_BYTES = 4096
_MAX_RECORDS = 50_000
_RECORD_BYTES = 8192
_MAX_GPUS = 64
_NVML = "libnvidia-ml.so.1"
_UNCORRECTED, _SINCE_DRIVER = 1, 0


def available_memory_mib(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that new programs could have; None: not known."""
    try:
        match = _AVAILABLE.search(meminfo.read_text())
    except OSError:
        return None
    return None if match is None else int(match[1]) >> 10


def folder_errors(folders: Sequence[str]) -> tuple[str, ...]:
    """Why folders can't be written to."""
    errors = []
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(_WRITTEN_BYTES))
                file.flush()
        except OSError as error:
            errors.append(f"{folder} can't be written to ({error.strerror})")
    return tuple(errors)


def kernel_records(path: str = "/dev/kmsg") -> Iterator[str]:
    """What the kernel has logged; nothing where this user may not read it."""
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(log, _RECORD_BYTES)
            except BrokenPipeError:  # it was overwritten meanwhile; the next read goes on after it
                continue
            except OSError:  # there is no other one
                return
            if not record:
                return
            yield record.decode(errors="replace")
    finally:
        os.close(log)


def gpus() -> tuple[GpuMeasure, ...]:
    """The GPUs that NVIDIA's management library shows; none where there is no library or no driver."""
    try:
        library = ctypes.CDLL(_NVML)
        if library.nvmlInit_v2():
            return ()
        count = ctypes.c_uint(0)
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return ()
        return tuple(_gpu(library, index) for index in range(min(count.value, _MAX_GPUS)))
    except (OSError, AttributeError):
        return ()


def _gpu(library: Any, index: int) -> GpuMeasure:
    device = ctypes.c_void_p()
    if code := library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
        return GpuMeasure(code)
    degrees, errors = ctypes.c_uint(0), ctypes.c_ulonglong(0)
    code = library.nvmlDeviceGetTemperature(device, 0, ctypes.byref(degrees))
    unknown = library.nvmlDeviceGetTotalEccErrors(device, _UNCORRECTED, _SINCE_DRIVER, ctypes.byref(errors))
    return GpuMeasure(code, None if unknown else errors.value)


def main(folders: Sequence[str]) -> None:
    """Measure, and print."""
    memory, in_folders, kernel_log, of_gpus = STEPS
    _begin(memory)
    memory_mib = available_memory_mib()
    _begin(in_folders)
    errors = folder_errors(folders)
    _begin(kernel_log)
    xids = fatal_xids(kernel_records(), time.monotonic())
    _begin(of_gpus)
    print(json.dumps(asdict(NodeMeasures(memory_mib, errors, gpus(), xids))), flush=True)


def _begin(step: str) -> None:
    print(step, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(sys.argv[1:])
    # A driver's library may take its time to end.
    os._exit(0)
