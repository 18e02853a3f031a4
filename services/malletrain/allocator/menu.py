"""All jobs' choices side by side, made once and chosen from at every event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from malletrain.allocator.compiled import compiled
from malletrain.allocator.knapsack import TIE, Floats, Ints, best_places
from malletrain.allocator.problem import CostModel
from malletrain.allocator.reduction import hopeful
from malletrain.allocator.worth import Choices

_SMALL = 8_000_000
"""Steps (sizes of all jobs x nodes) below which looking at every size costs less than leaving some out."""
NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Terms:
    """What a decision is made by.

    Attributes:
        forward_seconds: T_fwd in seconds.
        cost_model: How rescaling is charged.
        most_change: By how many nodes a job may change in one step.
    """

    forward_seconds: float
    cost_model: CostModel
    most_change: int = NO_LIMIT


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        counts: Nodes of each job.
        objective: What that is worth together, in weighted metric x seconds (Eq. 16).
    """

    counts: Ints
    objective: float


@dataclass(frozen=True)
class Menu:
    """The choices of several jobs, one after the other in flat arrays.

    Attributes:
        starts: Where each job's sizes start; the last entry is where they end.
        sizes: Permitted sizes in nodes.
        rates: What a second at each is worth.
        held_starts: Where each job's rates by nodes held start.
        held_rates: What a second at 0, 1, 2.. nodes is worth.
        up_seconds: R_up of each job.
        down_seconds: R_down of each job.
        choices: The choices themselves, where any of them knows the stalls of single pairs of scales.
    """

    starts: Ints
    sizes: Ints
    rates: Floats
    held_starts: Ints
    held_rates: Floats
    up_seconds: Floats
    down_seconds: Floats
    choices: Sequence[Choices]

    @classmethod
    def of(cls, choices: Sequence[Choices]) -> Menu:
        """The menu of some jobs, earlier jobs first."""
        return cls(
            _starts([len(entry.sizes) for entry in choices]),
            np.concatenate([np.zeros(0, np.int64), *(entry.sizes for entry in choices)]),
            np.concatenate([np.zeros(0), *(entry.rates for entry in choices)]),
            _starts([len(entry.held_rates) for entry in choices]),
            np.concatenate([np.zeros(0), *(entry.held_rates for entry in choices)]),
            np.asarray([entry.scale_up_seconds for entry in choices], dtype=np.float64),
            np.asarray([entry.scale_down_seconds for entry in choices], dtype=np.float64),
            tuple(choices) if any(entry.stalls for entry in choices) else (),
        )

    def choose(self, currents: Sequence[int], pool: int, terms: Terms) -> Choice:
        """The best sizes for jobs that hold so many nodes now, out of a pool of nodes (see `knapsack` for ties)."""
        held = np.asarray(currents, dtype=np.int64)
        values = _values(
            self.starts,
            self.sizes,
            self.rates,
            self.held_starts,
            self.held_rates,
            self.up_seconds,
            self.down_seconds,
            held,
            terms.forward_seconds,
            terms.cost_model is CostModel.PAPER,
            terms.most_change,
            self._known_stalls(currents, terms.cost_model),
        )
        places = best_of(self.starts, self.sizes, values, held, pool)
        return Choice(self.sizes[places], float(values[places].sum()))

    def _known_stalls(self, currents: Sequence[int], cost_model: CostModel) -> Floats:
        """Seconds by place, NaN where the job's general stall holds; empty where that is everywhere."""
        if not self.choices or cost_model is CostModel.PAPER:
            return np.zeros(0)
        known = np.full(len(self.sizes), np.nan)
        for first, entry, current in zip(self.starts.tolist(), self.choices, currents, strict=False):
            for place, seconds in entry.known_stalls(current):
                known[first + place] = seconds
        return known


def best_of(starts: Ints, sizes: Ints, values: Floats, currents: Ints, pool: int) -> Ints:
    """Where each job's best size stands; hopeless sizes are left out first where that is worth it."""
    if len(sizes) * pool <= _SMALL:
        return best_places(starts, sizes, values, currents, pool, TIE)
    kept = np.flatnonzero(hopeful(starts, sizes, values, pool))
    slim = np.searchsorted(kept, starts)
    places: Ints = kept[best_places(slim, sizes[kept], values[kept], currents, pool, TIE)]
    return places


def _starts(lengths: Sequence[int]) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, dtype=np.int64))))


@compiled(
    "f8[::1](i8[::1], i8[::1], f8[::1], i8[::1], f8[::1], f8[::1], f8[::1], i8[::1], f8, b1, i8, f8[::1])",
)
def _values(
    starts: Ints,
    sizes: Ints,
    rates: Floats,
    held_starts: Ints,
    held_rates: Floats,
    up_seconds: Floats,
    down_seconds: Floats,
    currents: Ints,
    forward_seconds: float,
    paper: bool,
    most_change: int,
    known_stalls: Floats,
) -> Floats:
    """As `Choices.worth`, for all jobs at once; sizes out of reach in one step are worth minus infinity."""
    values = np.empty(len(sizes))
    for job in range(len(currents)):
        current = currents[job]
        last = held_starts[job + 1] - held_starts[job] - 1
        old = held_rates[held_starts[job] + min(current, last)]
        for place in range(starts[job], starts[job + 1]):
            size, rate = sizes[place], rates[place]
            if size > 0 and abs(size - current) > most_change:
                values[place] = -np.inf
                continue
            stall = up_seconds[job] if size > current else (down_seconds[job] if size < current else 0.0)
            if len(known_stalls) and not np.isnan(known_stalls[place]):
                stall = known_stalls[place]
            values[place] = forward_seconds * rate - stall * (old if paper else rate)
    return values
