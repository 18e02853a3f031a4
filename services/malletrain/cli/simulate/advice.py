"""What `malletrain advise` says: from a queue and free resources to the jobs that would start now. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.schedulers.burst_buffers import BYTES_PER_GB, BurstBufferPool
from malletrain.scavenger.sources.schedulers.slurm_queue import WAITING, NodeCounts, QueuedJob
from malletrain.selection.problem import FreeResources, MachineResources, ResourceRequest, SelectionProblem
from malletrain.selection.select import SelectionSettings, StartChoice, compare_starts

_STARTABLE = frozenset({"None", "Priority", "Resources", "BurstBufferResources", "BurstBufferStageIn"})
"""Reasons of jobs that wait for their turn or for resources. Others wait for another job, a date, a person, a limit."""
_RESERVED = (
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
    "ReqNodeNotAvail, May be reserved for other job",
)
"""What Slurm says of a job whose nodes it keeps for one that is served before. Both are whole texts: others that begin
so tell of nodes that are down or being serviced (job_scheduler.c)."""
_MAX_REASON_LENGTH = 60


class QueueOrder(StrEnum):
    """Values of --policy: Slurm's own priority, first come first served, or Argonne's WFP."""

    PRIORITY = "priority"
    FCFS = "fcfs"
    WFP = "wfp"


@dataclass(frozen=True, slots=True)
class WindowJob:
    """A job of the window.

    Attributes:
        job: Its identifier.
        request: What it still needs to start.
        held_gb: Burst buffer that it has already, in GB.
    """

    job: str
    request: ResourceRequest
    held_gb: int = 0


@dataclass(frozen=True)
class Advice:
    """Which jobs would start now.

    Attributes:
        machine: All nodes of the partitions, and the burst buffer.
        free: What of it is free.
        buffer: Name of the burst buffer; empty: there is none.
        waiting: Waiting jobs in the partitions.
        left_out: How many of them are not considered, by reason.
        window: The first of the others.
        starts: What each way starts; the method asked for comes last.
        startable: All jobs that wait for their turn or for resources, in the window or not, and those whose nodes are
            kept for jobs that are served before them.
    """

    machine: MachineResources
    free: FreeResources
    buffer: str
    waiting: int
    left_out: Mapping[str, int]
    window: tuple[WindowJob, ...]
    starts: tuple[StartChoice, ...]
    startable: frozenset[str] = frozenset()

    def gain(self, over: StartChoice) -> tuple[float, float]:
        """Points of the machine's nodes and burst buffer that the method uses more than another way."""
        uses = self.starts[-1].uses
        nodes = 100 * (uses.nodes - over.uses.nodes) / self.machine.nodes
        capacity = self.machine.burst_buffer_gb
        buffer = 100 * (uses.burst_buffer_gb - over.uses.burst_buffer_gb) / capacity if capacity else 0.0
        return nodes, buffer


def choose_pool(pools: tuple[BurstBufferPool, ...], wanted: str | None) -> BurstBufferPool | None:
    """The burst buffer of that name; without a name the only one, or None where there is none.

    Raises:
        InvalidInputError: there are several, or none of that name.
    """
    names = ", ".join(pool.name for pool in pools)
    if wanted is None:
        if len(pools) > 1:
            raise InvalidInputError("--burst-buffer-name", f"one of the burst buffers that Slurm has: {names}")
        return pools[0] if pools else None
    matching = [pool for pool in pools if wanted in (pool.name, pool.plugin, pool.pool)]
    exact = [pool for pool in matching if pool.name == wanted] or matching
    if len(exact) != 1:
        raise InvalidInputError("--burst-buffer-name", f"one of {names or 'none, Slurm has no burst buffer'}", wanted)
    return exact[0]


def given_pool(total_gb: int, jobs: Iterable[QueuedJob]) -> BurstBufferPool:
    """A burst buffer of that size, of which the jobs that do not wait have what they ask for."""
    whole = BurstBufferPool("--burst-buffer", "", True, total_gb * BYTES_PER_GB, 0)
    used = sum(whole.size_gb(job.requests or (), job.nodes) for job in jobs if job.state != WAITING)
    return BurstBufferPool(whole.plugin, "", True, whole.total_bytes, max(0, total_gb - used) * BYTES_PER_GB)


def advise_on(
    jobs: tuple[QueuedJob, ...],
    nodes: NodeCounts,
    pool: BurstBufferPool | None,
    *,
    order: QueueOrder,
    window: int,
    selection: SelectionSettings,
    now_s: float,
    any_pool: bool = False,
) -> Advice:
    """Compare which jobs would start.

    Args:
        jobs: The queue.
        nodes: Nodes.
        pool: The burst buffer; None: there is none.
        order: Which jobs come first.
        window: Jobs of the window.
        selection: The method.
        now_s: Seconds since the epoch, for WFP.
        any_pool: Whether every request is for this burst buffer, whatever pool it names.

    Raises:
        InvalidInputError: the method does not suit the machine, or its factor is out of its range.
    """
    total_gb = pool.total_bytes // BYTES_PER_GB if pool else 0
    machine = MachineResources(nodes.total, total_gb)
    free = FreeResources(nodes.free, burst_buffer_gb=pool.free_bytes // BYTES_PER_GB if pool else 0)
    waiting = [job for job in jobs if job.state == WAITING]
    left_out: Counter[str] = Counter()
    eligible = []
    for job in sorted(waiting, key=lambda job: (*_rank(job, order, now_s), job_number(job.job))):
        why = _why_not(job, pool, any_pool=any_pool)
        candidate = None if why else _window_job(job, pool)
        if candidate and (candidate.request.nodes > nodes.total or candidate.request.burst_buffer_gb > total_gb):
            why = "asks for more than the machine has"
        if why or candidate is None:
            left_out[why] += 1
        else:
            eligible.append(candidate)
    chosen = tuple(eligible[:window])
    problem = SelectionProblem(machine, free, tuple(job.request for job in chosen))
    starts = compare_starts(problem, selection)
    startable = frozenset(job.job for job in eligible) | {job.job for job in waiting if is_reserved(job.reason)}
    name = pool.name if pool else ""
    return Advice(machine, free, name, len(waiting), dict(left_out), chosen, starts, startable)


def is_reserved(reason: str) -> bool:
    """Whether a job could start if its nodes were not kept for another one, by Slurm's reason."""
    return reason.replace("_", " ") in _RESERVED


def job_number(job: str) -> tuple[int, ...]:
    """Of jobs with the same priority and second of submission, Slurm serves the smaller number first."""
    return tuple(int(part) for part in job.replace("+", "_").split("_") if part)


def _rank(job: QueuedJob, order: QueueOrder, now_s: float) -> tuple[float, float]:
    """Sort key of waiting jobs: the job with the smallest rank comes first."""
    if order is QueueOrder.FCFS:
        return 0.0, job.submit_s
    if order is QueueOrder.PRIORITY:
        return -job.priority, job.submit_s
    relative = max(0.0, now_s - job.submit_s) / job.limit_s if job.limit_s else 0.0
    return -math.prod((relative, relative, relative, job.nodes)), job.submit_s


def _why_not(job: QueuedJob, pool: BurstBufferPool | None, *, any_pool: bool) -> str:
    """Why a waiting job is not considered; empty: it is."""
    if job.reason not in _STARTABLE:
        printable = "".join(character if character.isprintable() else "?" for character in job.reason.split(",")[0])
        return printable[:_MAX_REASON_LENGTH] or "waits for no reason that Slurm tells"
    if "+" in job.job:
        return "part of a heterogeneous job"
    if job.requests is None:
        return "burst-buffer request can't be read"
    if pool is None:
        return "asks for burst buffer, and Slurm tells of none" if job.requests else ""
    if not any_pool and any(not pool.takes(request) for request in job.requests):
        return "asks for another burst buffer"
    return ""


def _window_job(job: QueuedJob, pool: BurstBufferPool | None) -> WindowJob:
    asked_gb = pool.size_gb(job.requests or (), job.nodes) if pool else 0
    held_gb = -(-pool.held_bytes.get(job.job, 0) // BYTES_PER_GB) if pool else 0
    return WindowJob(job.job, ResourceRequest(job.nodes, max(0, asked_gb - held_gb)), min(held_gb, asked_gb))
