"""The queue of waiting jobs: its order, who may be backfilled, and how jobs of its front are selected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MAX_JOBS
from malletrain.selection.select import SelectionSettings
from malletrain.simulator.batch.workload import BatchJob

_FIRST_ROOM = 64

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class WaitQueue:
    """The waiting jobs as arrays, so that a decision on ten thousand jobs takes microseconds.

    Positions run from 0, the earliest submission, to `len() - 1`. When a job is removed, those behind it move up.
    """

    def __init__(self) -> None:
        self._count = 0
        self._index: Ints = np.empty(_FIRST_ROOM, dtype=np.int64)
        self._nodes: Ints = np.empty(_FIRST_ROOM, dtype=np.int64)
        self._estimate_s: Floats = np.empty(_FIRST_ROOM, dtype=np.float64)
        self._submit_s: Floats = np.empty(_FIRST_ROOM, dtype=np.float64)

    def __len__(self) -> int:
        return self._count

    @property
    def nodes(self) -> Ints:
        """Number of nodes of each job, shape (jobs,)."""
        return self._nodes[: self._count]

    @property
    def estimate_s(self) -> Floats:
        """Estimated run time of each job in seconds, shape (jobs,)."""
        return self._estimate_s[: self._count]

    @property
    def submit_s(self) -> Floats:
        """Submission of each job in seconds, shape (jobs,)."""
        return self._submit_s[: self._count]

    def job_at(self, position: int) -> int:
        """Index of the job at a position, as given to `add`."""
        return int(self._index[position])

    @property
    def indices(self) -> Ints:
        """Index of each job, ascending, as given to `add`; shape (jobs,)."""
        return self._index[: self._count]

    def position_of(self, index: int) -> int | None:
        """Position of a job by its index; None if it does not wait."""
        position = int(self.indices.searchsorted(index))
        return position if position < self._count and self._index[position] == index else None

    def add(self, first: int, jobs: Sequence[BatchJob]) -> None:
        """Append jobs with the indices `first`, `first + 1`, …"""
        begin, end = self._count, self._count + len(jobs)
        self._make_room(end)
        self._index[begin:end] = np.arange(first, first + len(jobs))
        self._nodes[begin:end] = [job.nodes for job in jobs]
        self._estimate_s[begin:end] = [job.estimate_s for job in jobs]
        self._submit_s[begin:end] = [job.submit_s for job in jobs]
        self._count = end

    def insert(self, index: int, job: BatchJob) -> None:
        """Put a job that was held back where its submission belongs."""
        place, end = int(self.indices.searchsorted(index)), self._count
        self._make_room(end + 1)
        values = (index, job.nodes, job.estimate_s, job.submit_s)
        for column, value in zip((self._index, self._nodes, self._estimate_s, self._submit_s), values, strict=True):
            column[place + 1 : end + 1] = column[place:end].copy()
            column[place] = value
        self._count = end + 1

    def remove(self, position: int) -> None:
        """Remove the job at a position."""
        end = self._count
        for column in (self._index, self._nodes, self._estimate_s, self._submit_s):
            column[position : end - 1] = column[position + 1 : end]
        self._count = end - 1

    def _make_room(self, wanted: int) -> None:
        room = len(self._index)
        if wanted <= room:
            return
        more = max(wanted, 2 * room) - room
        self._index = np.pad(self._index, (0, more))
        self._nodes = np.pad(self._nodes, (0, more))
        self._estimate_s = np.pad(self._estimate_s, (0, more))
        self._submit_s = np.pad(self._submit_s, (0, more))


class PolicyName(StrEnum):
    """Names of the policies."""

    FCFS = "fcfs"
    EASY = "easy"
    WFP = "wfp"


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """A policy of the batch scheduler.

    Attributes:
        backfills: Whether later jobs may start first if they do not delay the head by the estimates (EASY; Lifka 1995).
        scores: Priorities of the waiting jobs at a time in seconds; the highest is served first, ties by submission.
            None: jobs are served in the order of submission.
    """

    name: PolicyName
    backfills: bool
    scores: Callable[[WaitQueue, float], Floats] | None = None


def wfp_scores(waiting: WaitQueue, now_s: float) -> Floats:
    """Argonne's utility function: (wait / requested time)³ · nodes.

    Cobalt's `WFP`; Tang, Lan, Desai, Buettner, "Fault-aware, utility-based job scheduling on Blue Gene/P systems"
    (Cluster 2009). It favours large jobs, and jobs that have waited long relative to their length.
    """
    relative: Floats = (now_s - waiting.submit_s) / waiting.estimate_s
    # Products instead of pow(), which may round differently on other machines: equal jobs must have equal scores.
    scores: Floats = relative * relative * relative * waiting.nodes
    return scores


POLICIES: Mapping[PolicyName, BatchPolicy] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            BatchPolicy(PolicyName.FCFS, backfills=False),
            BatchPolicy(PolicyName.EASY, backfills=True),
            BatchPolicy(PolicyName.WFP, backfills=True, scores=wfp_scores),
        )
    }
)


def policy_named(name: str) -> BatchPolicy:
    """The policy of a name.

    Raises:
        InvalidInputError: there is no such policy.
    """
    try:
        return POLICIES[PolicyName(name)]
    except ValueError as error:
        raise InvalidInputError("policy", f"one of {', '.join(POLICIES)}", name) from error


def head_of(scores: Floats | None) -> int:
    """Position of the head of the queue, which is not empty."""
    return 0 if scores is None else int(scores.argmax())


def first_of(scores: Floats | None, eligible: Flags) -> int | None:
    """Position of the eligible job that is served first; None if no job is eligible."""
    position = int((eligible if scores is None else np.where(eligible, scores, -1.0)).argmax())
    return position if eligible[position] else None


QUEUE_PER_WINDOW = 4
"""With a size that follows the queue, a window has one of so many waiting jobs."""


class Starved(StrEnum):
    """What a job past the starvation bound gets: a start as soon as it fits, or a reservation besides."""

    FORCE = "force"
    RESERVE = "reserve"


class ReservedKinds(StrEnum):
    """What the reservation of EASY backfilling looks at: all resources, or nodes only."""

    ALL = "all"
    NODES = "nodes"


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Window and backfilling of a scheduler over several resources.

    Attributes:
        selection: How jobs are selected; None: in order, with backfilling, without a window.
        window: Jobs of the window; with `most_window` the fewest.
        starvation_bound: Passes that a job may stay in the window.
        starved: What a job past the bound gets.
        reserve: What reservations look at.
        backfill_depth: How many jobs from the front of the queue backfilling looks at; None: all.
        most_window: The most jobs of a window whose size follows the queue: a quarter of the jobs that wait; None: it
            has always as many.
        adaptive: Whether the factor of BBSched's rule follows the workload (`malletrain.selection.rule`).

    Raises:
        InvalidInputError: a number is out of its range.
    """

    selection: SelectionSettings | None = field(default_factory=SelectionSettings)
    window: int = 20
    starvation_bound: int = 50
    starved: Starved = Starved.FORCE
    reserve: ReservedKinds = ReservedKinds.ALL
    backfill_depth: int | None = None
    most_window: int | None = None
    adaptive: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.window <= MAX_JOBS:
            raise InvalidInputError("selection_window", f"1 to {MAX_JOBS} jobs", self.window)
        if self.starvation_bound < 1:
            raise InvalidInputError("starvation_bound", "at least 1 pass", self.starvation_bound)
        if self.backfill_depth is not None and self.backfill_depth < 1:
            raise InvalidInputError("backfill_depth", "at least 1 job", self.backfill_depth)
        if self.most_window is not None and not self.window <= self.most_window <= MAX_JOBS:
            raise InvalidInputError("most_window", f"{self.window} to {MAX_JOBS} jobs", self.most_window)

    def size_for(self, waiting: int) -> int:
        """Jobs of the window where so many wait (BBSched, §3.1: static, or by the length of the queue)."""
        if self.most_window is None:
            return self.window
        return min(self.most_window, max(self.window, -(-waiting // QUEUE_PER_WINDOW)))


@dataclass(slots=True)
class SelectionCounts:
    """How often jobs were started by selection, and by what.

    Attributes:
        forced_starts: Starts of jobs past the starvation bound, before all selection.
        selected_starts: Starts by selection.
        genetic_answers: Selections that the genetic algorithm answered.
        late_starts: Starts of jobs past the starvation bound that came later than first promised by their reservation.
        solve_s: Seconds that each selection took.
    """

    forced_starts: int = 0
    selected_starts: int = 0
    genetic_answers: int = 0
    late_starts: int = 0
    solve_s: list[float] = field(default_factory=list)
