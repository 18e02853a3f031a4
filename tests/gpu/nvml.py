"""What NVIDIA's management library says of the GPUs, asked independently of the code that is tested."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_MAX_PROCESSES = 256


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@cache
def _library() -> Any:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlInit_v2() == 0
    return library


def _device(index: int) -> ctypes.c_void_p:
    device = ctypes.c_void_p()
    assert _library().nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
    return device


def memory_mib(index: int = 0) -> tuple[float, float]:
    """Memory of a GPU, and how much of it is used, by whomever, in MiB."""
    memory = _Memory()
    assert _library().nvmlDeviceGetMemoryInfo(_device(index), ctypes.byref(memory)) == 0
    return memory.total / 2**20, memory.used / 2**20


def processes(index: int = 0) -> set[int]:
    """Ids of the processes that have a context on a GPU."""
    found, count = (_Process * _MAX_PROCESSES)(), ctypes.c_uint(_MAX_PROCESSES)
    assert _library().nvmlDeviceGetComputeRunningProcesses_v3(_device(index), ctypes.byref(count), found) == 0
    return {found[number].pid for number in range(count.value)}
