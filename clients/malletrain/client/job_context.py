"""What the environment tells a training process: its job, its rank, the number of workers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from malletrain.common import environment as env
from malletrain.common.handover_memory import read_leave_notice
from malletrain.common.job_folder import CHECKPOINTS_FOLDER, LAUNCH_FILE
from malletrain.common.job_limits import DEFAULT_LIMITS, JobLimits
from malletrain.common.launch_file import launch_from_document

_LAUNCHERS = (("RANK", "WORLD_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE"))
"""Variables for rank and world size: torchrun's first, then those of Horovod's launchers."""
HOROVOD_MODULES = ("horovod.torch", "horovod.tensorflow", "horovod.mxnet")
"""Those of Horovod that know a rank; others, as `horovod.tensorflow.keras`, take it from these."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """The MalleTrain job of this process.

    Attributes:
        id: Job identifier.
        directory: The job's folder, shared by all its workers.
        checkpoint_directory: Folder for checkpoints. It may not exist yet.
        monitor: HOST:PORT of Monitor.
        node: Name of the node that this process runs on; empty if the launcher does not tell.
        slots_per_node: Worker processes per node, at least 1.
        target_samples: Samples after which the job is complete; 0 without a target.
        lineage: Identifies those processes of the job that hand the model on in memory; empty: not known.
        beside_release_0_1: Whether the job's supervisor is of release 0.1, and so perhaps other workers: with them this
            one has to train as that release did, to the end of the job's present start.
    """

    id: str
    directory: Path
    checkpoint_directory: Path
    monitor: str
    node: str
    slots_per_node: int
    target_samples: int
    lineage: str = ""
    beside_release_0_1: bool = False


class WorkerRank(NamedTuple):
    """Rank of this process and number of workers of its job."""

    rank: int
    workers: int


def read_job(environ: Mapping[str, str]) -> JobContext | None:
    """Read the job from the environment; None outside MalleTrain.

    Raises:
        ValueError: a variable of the job is missing or has an invalid value.
    """
    job_id = environ.get(env.JOB_ID)
    if not job_id:
        return None
    directory = Path(_require(environ, env.JOB_DIR, "the job's folder"))
    return JobContext(
        id=job_id,
        directory=directory,
        checkpoint_directory=directory / CHECKPOINTS_FOLDER,
        monitor=_require(environ, env.MONITOR, "HOST:PORT of Monitor"),
        node=environ.get(env.NODE, ""),
        slots_per_node=_whole_number(environ, env.SLOTS_PER_NODE, default=1, minimum=1),
        target_samples=_whole_number(environ, env.TARGET_SAMPLES, default=0, minimum=0),
        lineage=_lineage(environ),
        # Supervisors of later versions tell each worker its lineage.
        beside_release_0_1=bool(environ.get(env.SUPERVISOR)) and not environ.get(env.LINEAGE),
    )


def _lineage(environ: Mapping[str, str]) -> str:
    supervisor, number = environ.get(env.SUPERVISOR, ""), environ.get(env.LINEAGE, "")
    return f"{supervisor}/{number}" if supervisor and number else ""


def read_batch_per_worker(environ: Mapping[str, str]) -> int | None:
    """Samples per worker and pass that the job was submitted with; None: the script decides.

    Raises:
        ValueError: the variable is not a whole number, at least 1.
    """
    if not environ.get(env.BATCH_PER_WORKER):
        return None
    return _whole_number(environ, env.BATCH_PER_WORKER, default=1, minimum=1)


def read_workers_per_replica(environ: Mapping[str, str]) -> int:
    """Workers that one copy of the job's model is divided among; 0: the job does not say.

    Raises:
        ValueError: a variable is not a whole number, at least 1.
    """
    if not environ.get(env.NODES_PER_REPLICA):
        return 0
    nodes = _whole_number(environ, env.NODES_PER_REPLICA, default=1, minimum=1)
    return nodes * _whole_number(environ, env.SLOTS_PER_NODE, default=1, minimum=1)


def read_collective_seconds(environ: Mapping[str, str]) -> float:
    """How long a collective of the training's workers may take, in seconds.

    Raises:
        ValueError: the variable is not a whole number, at least 1.
    """
    return float(_whole_number(environ, env.COLLECTIVE_SECONDS, default=int(DEFAULT_LIMITS.collective), minimum=1))


def read_rank(environ: Mapping[str, str], modules: Mapping[str, ModuleType]) -> WorkerRank:
    """Rank and number of workers: from Horovod if it is initialised, else from the launcher's variables, else 0 and 1.

    Args:
        environ: Environment of the process.
        modules: Loaded modules. Horovod is never imported here.
    """
    return horovod_rank(modules) or _launcher_rank(environ)


def horovod_rank(modules: Mapping[str, ModuleType]) -> WorkerRank | None:
    """Rank and number of workers of Horovod; None where it is not initialised."""
    for horovod in filter(None, map(modules.get, HOROVOD_MODULES)):
        try:
            if horovod.is_initialized():
                return WorkerRank(int(horovod.rank()), max(1, int(horovod.size())))
        except (AttributeError, RuntimeError, ValueError):
            # Not fully imported, or shut down between the calls: the launcher's variables are used instead.
            continue
    return None


def _launcher_rank(environ: Mapping[str, str]) -> WorkerRank:
    for rank_name, size_name in _LAUNCHERS:
        rank = environ.get(rank_name, "")
        if rank.isdecimal():
            size = environ.get(size_name, "")
            return WorkerRank(int(rank), max(1, int(size)) if size.isdecimal() else 1)
    # Backend `command`: one program for all its hosts, which may not have told its processes their ranks.
    size = environ.get(env.WORLD_SIZE, "")
    return WorkerRank(0, max(1, int(size)) if size.isdecimal() else 1)


def _require(environ: Mapping[str, str], name: str, expected: str) -> str:
    value = environ.get(name)
    if not value:
        raise ValueError(f"{name}: expected {expected}, got nothing")
    return value


def _whole_number(environ: Mapping[str, str], name: str, default: int, minimum: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal() or int(text) < minimum:
        raise ValueError(f"{name}: expected a whole number, at least {minimum}, got {text!r}")
    return int(text)


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """That a process was asked to leave.

    Attributes:
        monotonic_seconds: When that was noticed.
        released: Whether the newest command says that nodes of the job are released.
        one_node: Whether all workers of the job are on one node.
        node_seconds: How long the nodes concerned have at most from then on, as the supervisor has written; None: they
            are not released, or it is not known.
    """

    monotonic_seconds: float
    released: bool = False
    one_node: bool = False
    node_seconds: float | None = None


def leave_seconds(request: LeaveRequest, limits: JobLimits) -> float:
    """How long a process has at most from the request to its end, in seconds.

    A worker that is asked to leave at a change of scale gets the job's leave grace, and once it shows that it saves,
    the limit of a save as well. On a node that is released it gets the release grace only. Under the backend torchrun
    the supervisor has written which nodes these are, and how long they have. Elsewhere SIGTERM does not say which of
    the two it is, and the command that nodes are released does not say which nodes: it is certain where the job has one
    node; otherwise the longer time counts, so that no save is left out that might have been finished.
    """
    if request.node_seconds is not None:
        return min(request.node_seconds, limits.leave_grace + limits.save)
    if request.released and request.one_node and limits.release_grace_seconds > 0:
        return limits.release_grace_seconds
    return limits.leave_grace + limits.save


def released_seconds(job: JobContext, *, all_nodes: bool = False) -> float | None:
    """How long a worker's node has from the request to its end, in seconds; None: it is not given back, or not known.

    Args:
        job: The worker's job.
        all_nodes: The least time that any node has that is given back.
    """
    number = job.lineage.rpartition("/")[2]
    if not number.isdecimal():
        return None
    released = read_leave_notice(job.directory, int(number)).released
    return min(released.values(), default=None) if all_nodes else released.get(job.node)


def read_limits(job_folder: Path) -> JobLimits | None:
    """The limits of a job; None where its folder does not say them to this process."""
    try:
        document = json.loads((job_folder / LAUNCH_FILE).read_text(encoding="utf-8"))
        return launch_from_document(document).limits
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def seconds_left(request: LeaveRequest, job_folder: Path, clock: Callable[[], float] = time.monotonic) -> float | None:
    """How much of that time is left, in seconds; None: it is not known.

    Args:
        request: What the process was asked.
        job_folder: The job's folder.
        clock: Monotonic clock in seconds.
    """
    limits = read_limits(job_folder)
    return None if limits is None else request.monotonic_seconds + leave_seconds(request, limits) - clock()
