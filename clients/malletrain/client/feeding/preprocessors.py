"""How many processes a feed prepares samples with, from profile and demand. Pure: no I/O and no clock.

FLEET (Guan et al., MLSys 2020, section 4) profiles the throughput of 1, 2, 4, ... 32 preprocessing cores before it
trains, and takes the fewest that can feed the DNNs of a flotilla. Here ordinary running is the profile: a number is
measured while the feed runs with it, and before that it is assumed from the nearest numbers measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_PROCESSES = 32
"""Most processes, as in the paper."""
MARGIN = 0.1
"""By this share more is prepared than demanded."""
LOWER_MARGIN = 0.25
"""The same for a lower number than the present one: else noise would have it raised again."""
_ALIKE = 0.95
"""Where no number feeds the demand, this share of the best one's supply is as good as the best one's."""


def candidates(limit: int) -> list[int]:
    """Numbers of processes to choose from: 1, 2, 4, ... and the limit itself.

    Args:
        limit: Most processes, at least 1; more than 32 count as 32.
    """
    limit = max(1, min(limit, MAX_PROCESSES))
    return sorted({1 << exponent for exponent in range(limit.bit_length())} | {limit})


def assumed_supply(measured: Mapping[int, float], number: int) -> float:
    """Samples/s that a number of processes prepares: as measured, else between its neighbours, else in proportion.

    Args:
        measured: Samples/s by number of processes, at least one entry; all above 0.
        number: Number of processes, at least 1.
    """
    if number in measured:
        return measured[number]
    below = max((each for each in measured if each < number), default=None)
    above = min((each for each in measured if each > number), default=None)
    if below is None or above is None:
        nearest = below or above
        if nearest is None:
            raise ValueError("measured: expected at least one number of processes, got none")
        return measured[nearest] * number / nearest
    share = (number - below) / (above - below)
    return measured[below] + share * (measured[above] - measured[below])


def choose_preprocessors(demand: float, measured: Mapping[int, float], limit: int, *, margin: float = MARGIN) -> int:
    """The fewest of 1, 2, 4, ... and the limit that prepare what is demanded, and a margin more.

    Where none does, the fewest that prepare about as much as any.

    Args:
        demand: Samples/s that trainings would take if they never waited, at least 0.
        measured: Samples/s by number of processes; see `assumed_supply`.
        limit: Most processes, at least 1.
        margin: Share by which more is to be prepared.
    """
    supply = {number: assumed_supply(measured, number) for number in candidates(limit)}
    wanted = min(demand * (1.0 + margin), _ALIKE * max(supply.values()))
    return next(number for number, rate in supply.items() if rate >= wanted)


@dataclass(frozen=True, slots=True)
class CoreUse:
    """What the processor cores of a node are wanted for, by one group of trainings.

    Attributes:
        cores: Cores that the group may use, trainings and processes that prepare together; at least 1.
        trainer_seconds: CPU time of all its trainings for each sample that is prepared, in seconds.
        trainer_cores: Cores of trainings whose CPU time is not known.
    """

    cores: int
    trainer_seconds: float = 0.0
    trainer_cores: int = 0

    @property
    def max_processes(self) -> int:
        """Most processes, whatever trainings use."""
        return max(1, min(self.cores, MAX_PROCESSES))

    def limit(self, demand: float, measured: Mapping[int, float]) -> int:
        """Most processes that leave to the trainings the cores that they use at the pace that results; at least 1.

        Arguments as of `choose_preprocessors`.
        """
        fits = 1
        for number in range(2, self.max_processes + 1):
            pace = min(demand, assumed_supply(measured, number))
            if number + round(self.trainer_cores + self.trainer_seconds * pace) > self.cores:
                break
            fits = number
        return fits


@dataclass(frozen=True, slots=True)
class GroupMeasured:
    """What a feed has measured of a group of trainings.

    Attributes:
        demand: Samples/s prepared if its trainings never waited, above 0: the slowest one's pace.
        waits: Whether even the training that waits least waits for samples.
        measured: Samples/s by number of processes, at least one entry.
        cores: What cores are wanted for.
    """

    demand: float
    waits: bool
    measured: Mapping[int, float]
    cores: CoreUse


@dataclass(frozen=True, slots=True)
class ProcessChoice:
    """A number of processes, and whether a lower one would do.

    Attributes:
        number: Number of processes.
        calm_since: Since when a lower one would do, in monotonic seconds; None: it would not.
        calm_most: The largest of the lower numbers that would have done since.
    """

    number: int
    calm_since: float | None = None
    calm_most: int = 1

    def within(self, max_processes: int) -> ProcessChoice:
        """The same, but no more than so many."""
        return self if self.number <= max_processes else ProcessChoice(max_processes)

    def after(self, seen: GroupMeasured, now: float, calm_seconds: float) -> ProcessChoice:
        """What to run with from now on.

        The number is raised at once while trainings wait. It is lowered once a lower one would have done for
        `calm_seconds`, to the largest that was needed in that time.

        Args:
            seen: What was measured.
            now: Monotonic time in seconds.
            calm_seconds: How long a lower number must do.
        """
        held = self.within(seen.cores.max_processes)
        limit = seen.cores.limit(seen.demand, seen.measured)
        if seen.waits and held.number < limit:
            wanted = choose_preprocessors(seen.demand, seen.measured, limit)
            if wanted > held.number:
                return ProcessChoice(wanted)
        lower = choose_preprocessors(seen.demand, seen.measured, limit, margin=LOWER_MARGIN)
        if held.number > limit:
            lower = min(lower, limit)
        elif seen.waits or lower >= held.number:
            return ProcessChoice(held.number)
        if held.calm_since is None:
            return ProcessChoice(held.number, now, lower)
        most = max(held.calm_most, lower)
        if now - held.calm_since < calm_seconds:
            return ProcessChoice(held.number, held.calm_since, most)
        return ProcessChoice(min(most, held.number))
