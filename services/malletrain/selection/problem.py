"""The problem: a machine, what of it is free, and the first jobs of a queue (Fan et al., HPDC 2019, §3).

Nodes are of one class, or of two that differ in their local SSD. A job with little SSD per node takes nodes of the
small class first, and *spills* into the large class where those do not suffice. Others take nodes of the large class.
"""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.runtime.errors import InvalidInputError

MAX_JOBS = 64
"""Longest window: the genetic algorithm keeps a selection in one word of 64 bits."""
_MAX_AMOUNT = 10**12


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What a job asks for.

    Attributes:
        nodes: Nodes, at least 1.
        burst_buffer_gb: Shared burst buffer in GB, at least 0.
        ssd_gb: Local SSD of each node in GB, at least 0.
    """

    nodes: int
    burst_buffer_gb: int = 0
    ssd_gb: int = 0


@dataclass(frozen=True, slots=True)
class MachineResources:
    """What a machine has.

    Attributes:
        nodes: All nodes.
        burst_buffer_gb: Shared burst buffer in GB; 0: none.
        large_nodes: Nodes of the class with the larger SSD.
        small_ssd_gb: Local SSD of a node of the small class in GB.
        large_ssd_gb: Local SSD of a node of the large class in GB; 0: SSDs are not scheduled, all nodes are equal.
    """

    nodes: int
    burst_buffer_gb: int = 0
    large_nodes: int = 0
    small_ssd_gb: int = 0
    large_ssd_gb: int = 0

    @property
    def has_ssd(self) -> bool:
        """Whether local SSDs are scheduled."""
        return self.large_ssd_gb > 0

    @property
    def small_nodes(self) -> int:
        """Nodes of the class with the smaller SSD."""
        return self.nodes - self.large_nodes

    @property
    def ssd_gb(self) -> int:
        """Local SSD of all nodes together in GB."""
        return self.small_nodes * self.small_ssd_gb + self.large_nodes * self.large_ssd_gb

    def wants_large(self, request: ResourceRequest) -> bool:
        """Whether a job needs nodes of the large class."""
        return self.has_ssd and request.ssd_gb > self.small_ssd_gb

    def __post_init__(self) -> None:
        for field in ("nodes", "burst_buffer_gb", "large_nodes", "small_ssd_gb", "large_ssd_gb"):
            _check_amount(field, getattr(self, field), minimum=1 if field == "nodes" else 0)
        if self.large_nodes > self.nodes:
            raise InvalidInputError("large_nodes", f"at most {self.nodes}, all nodes", self.large_nodes)
        if self.large_ssd_gb and not self.small_ssd_gb < self.large_ssd_gb:
            raise InvalidInputError(
                "large_ssd_gb", f"more than the {self.small_ssd_gb} GB of the small class", self.large_ssd_gb
            )
        if not self.large_ssd_gb and (self.large_nodes or self.small_ssd_gb):
            raise InvalidInputError("large_ssd_gb", "GB of the large class's SSDs", self.large_ssd_gb)


@dataclass(frozen=True, slots=True)
class FreeResources:
    """What is free at an instant.

    Attributes:
        small: Nodes of the small class, or all nodes where they are equal.
        large: Nodes of the large class.
        burst_buffer_gb: Burst buffer in GB.
    """

    small: int
    large: int = 0
    burst_buffer_gb: int = 0

    @property
    def nodes(self) -> int:
        """Nodes of both classes."""
        return self.small + self.large


@dataclass(frozen=True, slots=True)
class ReservedResources:
    """A job for which resources are reserved, and which the selection must leave able to start then.

    Attributes:
        job: What it needs.
        free_then: What will be free when it is to start, if nothing else starts before.
        late: For each job of the window, whether it would still run then.
    """

    job: ResourceRequest
    free_then: FreeResources
    late: tuple[bool, ...]


@dataclass(frozen=True)
class SelectionProblem:
    """Which of these jobs start now?

    Attributes:
        machine: What the machine has.
        free: What of it is free.
        jobs: The window: jobs in their order.
        reserved: A job that must not be delayed; None: there is none.
        places: How many jobs may start at most; None: any number.

    Raises:
        InvalidInputError: an amount is negative or not whole, or the window is too long.
    """

    machine: MachineResources
    free: FreeResources
    jobs: tuple[ResourceRequest, ...]
    reserved: ReservedResources | None = None
    places: int | None = None

    def __post_init__(self) -> None:
        if len(self.jobs) > MAX_JOBS:
            raise InvalidInputError("jobs", f"at most {MAX_JOBS}, the longest window", len(self.jobs))
        for index, job in enumerate(self.jobs):
            check_request(job, f"jobs[{index}]")
        for field in ("small", "large", "burst_buffer_gb"):
            _check_amount(f"free.{field}", getattr(self.free, field))
        if self.places is not None:
            _check_amount("places", self.places)
        if self.reserved is not None:
            check_request(self.reserved.job, "reserved.job")
            if len(self.reserved.late) != len(self.jobs):
                raise InvalidInputError(
                    "reserved.late", f"one for each of {len(self.jobs)} jobs", len(self.reserved.late)
                )


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a selection uses.

    Attributes:
        nodes: f1: nodes.
        burst_buffer_gb: f2: burst buffer in GB.
        ssd_gb: f3: requested SSD in GB; 0 where SSDs are not scheduled.
        wasted_gb: −f4: SSD in GB of the selection's nodes beyond what its jobs asked for.
    """

    nodes: int
    burst_buffer_gb: int
    ssd_gb: int = 0
    wasted_gb: int = 0


def objectives_of(problem: SelectionProblem, chosen: tuple[int, ...]) -> Objectives:
    """What a selection, given as positions in the window, uses."""
    machine, jobs = problem.machine, [problem.jobs[index] for index in chosen]
    nodes = sum(job.nodes for job in jobs)
    burst_buffer = sum(job.burst_buffer_gb for job in jobs)
    if not machine.has_ssd:
        return Objectives(nodes, burst_buffer)
    requested = sum(job.nodes * job.ssd_gb for job in jobs)
    large = sum(job.nodes for job in jobs if machine.wants_large(job))
    spill = max(0, nodes - large - problem.free.small)
    held = machine.small_ssd_gb * (nodes - large - spill) + machine.large_ssd_gb * (large + spill)
    return Objectives(nodes, burst_buffer, requested, held - requested)


def check_request(request: ResourceRequest, field: str) -> None:
    """Refuse a request with a negative, fractional or absurd amount.

    Raises:
        InvalidInputError: an amount is out of its range.
    """
    _check_amount(f"{field}.nodes", request.nodes, minimum=1)
    _check_amount(f"{field}.burst_buffer_gb", request.burst_buffer_gb)
    _check_amount(f"{field}.ssd_gb", request.ssd_gb)


def _check_amount(field: str, value: int, minimum: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _MAX_AMOUNT:
        raise InvalidInputError(field, f"a whole number from {minimum} to {_MAX_AMOUNT}", value)
