"""A Scavenger that holds nodes of a real Slurm."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from malletrain.v1 import scavenger_pb2
from tests.scavenger.running import Running, releasing, running_scavenger
from tests.support.ports import free_port

NODES = 3
PLACEHOLDER = "malletrain"
DELAYS = {"backoff_seconds": 1, "backoff_max_seconds": 4, "pause_after_failures": 2}
BRIEF = {"patience_seconds": 3, "refusal_seconds": 0.5, "calm_seconds": 0}


@asynccontextmanager
async def holding(folder: Path, **hold: object) -> AsyncIterator[Running]:
    """A Scavenger that has work for all nodes."""
    how = {
        "queue": "scavenge",
        "agents_address": f"127.0.0.1:{free_port()}",
        "python": sys.executable,
        "log": str(folder / "%j.log"),
        "grace_seconds": 0.5,
        "standby_memory_mib": 0,
        **DELAYS,
        **BRIEF,
        **hold,
    }
    slurm = {"partitions": ["main"], "interval_seconds": 0.5, "hold": how}
    section = {"source": "slurm", "debounce_seconds": 0, "slurm": slurm}
    async with releasing(NODES) as (_, job_manager), running_scavenger(folder, section, job_manager) as scavenger:
        yield scavenger


async def placeholders(scavenger: Running) -> scavenger_pb2.PlaceholderStatus:
    status = await scavenger.stub.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=10)
    (found,) = status.placeholders
    return found
