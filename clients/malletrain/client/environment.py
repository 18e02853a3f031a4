"""What the training process can tell about itself: its job, its rank, its world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

JOB_ID = "MALLETRAIN_JOB_ID"
_JOB_DIR = "MALLETRAIN_JOB_DIR"
_MONITOR = "MALLETRAIN_MONITOR"
_NODE = "MALLETRAIN_NODE"
_SLOTS = "MALLETRAIN_SLOTS_PER_NODE"
_TARGET = "MALLETRAIN_TARGET_SAMPLES"

# Rank and world size by launcher: torchrun's names first, then those of a Horovod launcher.
_LAUNCHERS = (("RANK", "WORLD_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE"))


@dataclass(frozen=True, slots=True)
class JobContext:
    """The MalleTrain job that this process trains for.

    Attributes:
        id: Job identifier.
        directory: The job's folder, shared by all its workers.
        checkpoint_directory: Where durable checkpoints belong (it may not exist yet).
        monitor: HOST:PORT of Monitor.
        node: Name of the node this process runs on; empty if the launcher did not say.
        slots_per_node: Worker processes per node, at least 1.
        target_samples: Samples after which the job counts as done; 0: no target.
    """

    id: str
    directory: Path
    checkpoint_directory: Path
    monitor: str
    node: str
    slots_per_node: int
    target_samples: int


class Membership(NamedTuple):
    """The place of this process among the workers of its job."""

    rank: int
    workers: int


def read_job(environ: Mapping[str, str]) -> JobContext | None:
    """The job in the environment; None outside MalleTrain.

    Raises:
        ValueError: a variable that belongs to a job is missing or not what it should be.
    """
    job_id = environ.get(JOB_ID)
    if not job_id:
        return None
    directory = Path(_required(environ, _JOB_DIR, "the job's folder"))
    return JobContext(
        id=job_id,
        directory=directory,
        checkpoint_directory=directory / "checkpoints",
        monitor=_required(environ, _MONITOR, "HOST:PORT of Monitor"),
        node=environ.get(_NODE, ""),
        slots_per_node=_whole_number(environ, _SLOTS, default=1, least=1),
        target_samples=_whole_number(environ, _TARGET, default=0, least=0),
    )


def read_membership(environ: Mapping[str, str], modules: Mapping[str, ModuleType]) -> Membership:
    """Rank and world size: from Horovod if it is loaded and initialised, else from the launcher's variables, else 0, 1.

    Args:
        environ: The process environment.
        modules: The loaded modules. Horovod is never imported from here.
    """
    return _horovod_membership(modules) or _launcher_membership(environ)


def _horovod_membership(modules: Mapping[str, ModuleType]) -> Membership | None:
    horovod = modules.get("horovod.torch")
    if horovod is None:
        return None
    try:
        if horovod.is_initialized():
            return Membership(int(horovod.rank()), max(1, int(horovod.size())))
    except (AttributeError, RuntimeError, ValueError):
        # Half imported, or shut down between the calls: the launcher's variables are the next best source.
        return None
    return None


def _launcher_membership(environ: Mapping[str, str]) -> Membership:
    for rank_name, size_name in _LAUNCHERS:
        rank = environ.get(rank_name, "")
        if rank.isdecimal():
            size = environ.get(size_name, "")
            return Membership(int(rank), max(1, int(size)) if size.isdecimal() else 1)
    return Membership(0, 1)


def _required(environ: Mapping[str, str], name: str, expected: str) -> str:
    value = environ.get(name)
    if not value:
        raise ValueError(f"{name}: expected {expected}, got nothing")
    return value


def _whole_number(environ: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name}: expected a whole number, at least {least}, got {text!r}")
    return int(text)
