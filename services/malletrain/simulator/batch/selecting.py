"""How a batch scheduler selects jobs from the window at the front of its queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MAX_JOBS
from malletrain.selection.select import SelectionSettings

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
        adaptive: Whether the factor of BBSched's rule follows the workload (`malletrain.selection.adaptive`).

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
    """What selecting did.

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
