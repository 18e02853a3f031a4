"""Who divides GPUs among members while nodes join and leave: one GPU each, by remaining work, or flotillas.

Preprocessing is a limit of flotillas only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from malletrain.allocator.problem.forward_time import FORWARD_SECONDS
from malletrain.fleet.baselines import longest_first
from malletrain.fleet.flotilla import Flotilla, create_flotilla
from malletrain.fleet.makespan import Replanning
from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import RateTable
from malletrain.fleet.remaining_work import replanned
from malletrain.fleet.replan import after_join, after_leave
from malletrain.fleet.sharing import of_flotillas

STALL_S = Replanning().stall_s


@dataclass(frozen=True, slots=True)
class FleetMoment:
    """What a division is made from.

    Attributes:
        work: Samples that each member still needs, without those that are done.
        counts: GPUs that members have, fewer than they were given where nodes have left.
        gpus: GPUs that there are.
    """

    work: Mapping[int, float]
    counts: Mapping[int, int]
    gpus: int


@dataclass(frozen=True, slots=True)
class Division:
    """GPUs of members from now on.

    Attributes:
        counts: GPUs of each member that trains.
        stall_s: Seconds for which members whose GPUs change do not train.
        restarts: Whether all members stop for as long, also those whose GPUs stay.
    """

    counts: dict[int, int]
    stall_s: float = STALL_S
    restarts: bool = False


class GpuDivider(Protocol):
    """Divides GPUs at every event."""

    every_s: float
    """Seconds after which it wants to be asked again; infinite: only at events."""

    def divide(self, moment: FleetMoment) -> Division:
        """GPUs of members from now on."""

    def speeds(self, rates: Mapping[int, float]) -> Mapping[int, float]:
        """Samples/s of members from what each could do alone; 0 for one that is stalled."""


@dataclass
class OneEach:
    """One GPU each, the longest first."""

    table: RateTable
    every_s: float = float("inf")

    def divide(self, moment: FleetMoment) -> Division:
        """Those that have a GPU keep it."""
        waiting = {member: left for member, left in moment.work.items() if member not in moment.counts}
        free = moment.gpus - len(moment.counts)
        return Division(dict.fromkeys((*moment.counts, *longest_first(waiting, self.table)[:free]), 1))

    def speeds(self, rates: Mapping[int, float]) -> Mapping[int, float]:
        """Each at its own."""
        return rates


@dataclass
class ByRemainingWork:
    """So that the last member ends as early as possible."""

    table: RateTable
    every_s: float = Replanning().every_s

    def divide(self, moment: FleetMoment) -> Division:
        """Anew, if that is worth its stalls."""
        return Division(replanned(self.table, moment.work, moment.counts, moment.gpus, STALL_S))

    def speeds(self, rates: Mapping[int, float]) -> Mapping[int, float]:
        """Each at its own."""
        return rates


@dataclass
class InFlotillas:
    """Flotilla after flotilla, each on the GPUs that there are."""

    problem: FleetProblem
    table: RateTable
    every_s: float = float("inf")
    _flotilla: Flotilla | None = field(default=None, init=False)
    _gpus: int = field(default=0, init=False)

    def divide(self, moment: FleetMoment) -> Division:
        """The same flotilla while enough of it trains: on fewer GPUs after a leave, on more if that is worth it."""
        present, before = self._going_on(moment), self._gpus
        self._gpus = moment.gpus
        if moment.gpus == 0:
            return Division({})
        if present is None:
            self._flotilla = create_flotilla(self.table, tuple(moment.work), moment.gpus, self.problem.tolerance)
            counts = dict(zip(self._flotilla.members, self._flotilla.gpus, strict=True))
            return Division(counts, self.problem.checkpoint_seconds, restarts=True)
        given = dict(zip(present.members, present.gpus, strict=True))
        if any(moment.counts.get(member, 0) < count for member, count in given.items()):
            self._flotilla = present = after_leave(self.table, present, moment.gpus).flotilla
        elif moment.gpus > before:
            room = sum(present.gpus) + moment.gpus - before
            larger = after_join(self.table, present, room, of_flotillas(self.problem), FORWARD_SECONDS, STALL_S)
            # Members that are done count as long as the flotilla is as it was.
            if larger != present:
                self._flotilla = present = larger
        return Division(dict(zip(present.members, present.gpus, strict=True)))

    def _going_on(self, moment: FleetMoment) -> Flotilla | None:
        """Members of the flotilla that are not done; None if they have too few of its GPUs."""
        if self._flotilla is None:
            return None
        pairs = zip(self._flotilla.members, self._flotilla.gpus, strict=True)
        active = [(member, count) for member, count in pairs if member in moment.work]
        if not active or sum(count for _, count in active) < self.problem.active_share * sum(self._flotilla.gpus):
            return None
        return Flotilla(tuple(member for member, _ in active), tuple(count for _, count in active))

    def speeds(self, rates: Mapping[int, float]) -> Mapping[int, float]:
        """All at one pace, or each at its own; nobody trains while one is stalled at one pace."""
        return of_flotillas(self.problem).paces(rates)
