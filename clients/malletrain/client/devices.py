"""On which device a worker trains, and how workers exchange tensors that share a GPU. Needs torch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

SHARED_GPUS = "cpu:gloo,cuda:gloo"
"""Backends of a process group whose workers share GPUs. NCCL refuses a second worker on a GPU."""
APPLIED_SECONDS = 1.0
"""How long a GPU has for the last step after a loss. The supervisor waits for 2 s until it hears of a save."""
_LOCAL_RANKS = ("LOCAL_RANK", "HOROVOD_LOCAL_RANK")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PLACE = "malletrain/gpu/"
_POLL_SECONDS = 0.005


def local_rank(environ: Mapping[str, str]) -> int:
    """Number of a worker among those of its host, as its launcher says; 0 where none does."""
    told = (environ.get(name, "") for name in _LOCAL_RANKS)
    return next((int(text) for text in told if text.isdecimal()), 0)


def worker_device() -> torch.device:
    """Where this worker trains, which is made torch's present device: a GPU, or the CPU where it can use no GPU.

    Each worker of a host has a GPU of its own as far as there are enough of them. Others share them, as do those of
    virtual nodes, which are all on one machine.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank(os.environ) % count)
    torch.cuda.set_device(device)
    return device


def present_device() -> torch.device:
    """The GPU that the script has chosen already; else `worker_device`."""
    if torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return worker_device()


def share_gpus(places: Collection[str]) -> bool:
    """Whether several workers use one GPU.

    Args:
        places: The GPU of each worker; empty for one that has none.
    """
    used = [place for place in places if place]
    return len(used) != len(set(used))


def group_backend(store: dist.Store, rank: int, workers: int, device: torch.device) -> str | None:
    """Backend of the process group of workers on these devices; None: torch's default, NCCL for tensors on GPUs.

    Each worker tells the others by the store which GPU it uses. All of them find the same.

    Raises:
        dist.DistStoreError: another worker has not told within the store's time limit.
    """
    store.set(f"{_PLACE}{rank}", gpu_place(device))
    places = [bytes(store.get(f"{_PLACE}{other}")).decode() for other in range(workers)]
    if not share_gpus(places):
        return None
    if rank == 0:
        print(
            f"malletrain: workers share a GPU, which NCCL does not allow: {SHARED_GPUS} exchanges their gradients",
            file=sys.stderr,
        )
    return SHARED_GPUS


def gpu_place(device: torch.device) -> str:
    """Machine and bus address of a GPU, by which NCCL tells GPUs apart; instances of one GPU (MIG) have the same."""
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    try:
        machine = _BOOT_ID.read_text().strip()
    except OSError:
        machine = os.uname().nodename
    address = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    # Torch before 2.8 does not tell the address.
    return f"{machine}/{properties.uuid if None in address else ':'.join(map(str, address))}"


class AppliedSteps:
    """Whether a GPU has done the steps that the script has made: with NCCL it may wait there for a lost worker."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Nothing has been done."""
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def note(self) -> None:
        """The script has made a step. Costs some microseconds; nothing is waited for."""
        if self._event is not None:
            self._event.record()

    def wait(self, seconds: float = APPLIED_SECONDS) -> bool:
        """Wait until the last step has been done; whether it has.

        Args:
            seconds: How long at most.
        """
        deadline = time.monotonic() + seconds
        while self._event is not None and not self._event.query():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True
