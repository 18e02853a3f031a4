"""Whether a GPU is at work, asked of NVIDIA's management library where there is one."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from functools import cache

_LIBRARY = "libnvidia-ml.so.1"
_MAX_PROCESSES = 1024


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(_LIBRARY)
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None


def gpu_is_busy(pids: Collection[int]) -> bool:
    """Whether a GPU that one of these processes uses is at work, or may be.

    In a container, process ids are not those that the library knows. Where it knows none of these, any GPU counts.
    """
    library = _library()
    count = ctypes.c_uint(0)
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return False
    devices = [device for index in range(count.value) if (device := _device(library, index)) is not None]
    own = [device for device in devices if _users(library, device).intersection(pids)]
    return any(_is_busy(library, device) for device in own or devices)


def _device(library: ctypes.CDLL, index: int) -> ctypes.c_void_p | None:
    device = ctypes.c_void_p()
    return None if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) else device


def _is_busy(library: ctypes.CDLL, device: ctypes.c_void_p) -> bool:
    used = _Utilization()
    if library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(used)):
        return bool(_users(library, device))  # as with MIG: it may be
    return bool(used.gpu > 0)


def _users(library: ctypes.CDLL, device: ctypes.c_void_p) -> frozenset[int]:
    processes = (_Process * _MAX_PROCESSES)()
    count = ctypes.c_uint(_MAX_PROCESSES)
    try:
        failed = library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), processes)
    except AttributeError:  # an old library
        return frozenset()
    return frozenset() if failed else frozenset(processes[index].pid for index in range(count.value))
