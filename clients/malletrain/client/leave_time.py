"""How long a process that was asked to leave has at most, by what its job's folder and its commands say.

A worker that is asked to leave at a change of scale gets the job's leave grace, and once it shows that it saves, the
limit of a save as well. On a node that is released it gets the release grace only. Under the backend torchrun the
supervisor has written which nodes these are, and how long they have. Elsewhere SIGTERM does not say which of the two
it is, and the command that nodes are released does not say which nodes: it is certain where the job has one node;
otherwise the longer time counts, so that no save is left out that might have been finished.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from malletrain.client.job_context import JobContext
from malletrain.common.handover_memory import read_leave_notice
from malletrain.common.job_folder import LAUNCH_FILE
from malletrain.common.job_limits import JobLimits
from malletrain.common.launch_file import launch_from_document


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
    """How long a process has at most from the request to its end, in seconds."""
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
