"""The genetic algorithm of Fan et al. (HPDC 2019, §3.2): its parameters, and over arrays where Numba is not.

SplitMix64 numbers its draws, and a generation takes as many whatever becomes of its children. So it finds what
`genetic` finds, to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.arrays import Ints
from malletrain.selection.levels import Flags, fitting, flags_of, uses_of

_MAX_POPULATION = 10_000
_MAX_GENERATIONS = 1_000_000


@dataclass(frozen=True, slots=True)
class GeneticParameters:
    """Parameters of the genetic algorithm.

    Attributes:
        population: Chromosomes, at least 2.
        generations: Generations, at least 0.
        mutation: Probability that a gene of a child flips, 0 to 1.
        seed: Seed of the random numbers, at least 0.

    Raises:
        InvalidInputError: a parameter is out of its range.
    """

    population: int = 20
    generations: int = 500
    mutation: float = 0.0005
    seed: int = 0

    def __post_init__(self) -> None:
        for field, minimum, maximum in (
            ("population", 2, _MAX_POPULATION),
            ("generations", 0, _MAX_GENERATIONS),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
                raise InvalidInputError(field, f"a whole number from {minimum} to {maximum}", value)
        if not 0 <= self.mutation <= 1:
            raise InvalidInputError("mutation", "a probability from 0 to 1", self.mutation)


_BLOCK = 64
MAX_COMPARED = 4_000_000
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]


class _Draws:
    """The numbers of `genetic._random`, which may be looked at before they are taken."""

    def __init__(self, seed: int) -> None:
        self._seed = np.uint64(seed)
        self._taken = 0

    def next(self, count: int) -> Floats:
        """The next numbers from 0 to 1, which are not taken yet."""
        index = np.arange(self._taken + 1, self._taken + count + 1, dtype=np.uint64)
        words = self._seed + index * np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words ^= words >> np.uint64(31)
        numbers: Floats = (words >> np.uint64(11)).astype(np.float64) / 9007199254740992.0
        return numbers

    def skip(self, count: int) -> None:
        """Take numbers."""
        self._taken += count

    def take(self, count: int) -> Floats:
        """The next numbers, taken."""
        numbers = self.next(count)
        self.skip(count)
        return numbers


class _Window:
    """The jobs, and what chromosomes of them are worth."""

    def __init__(self, jobs: Ints, limits: Ints, objectives: Ints, spill_gb: int) -> None:
        self.count = jobs.shape[1]
        self._uses, self._limits, self._objectives, self._spill_gb = uses_of(jobs), limits, objectives, spill_gb

    def points_of(self, words: Words) -> tuple[Flags, Ints]:
        """Whether each chromosome fits, and its f1 … f4; shape (chromosomes, 4)."""
        chosen = flags_of(words, self.count)
        used = self._uses @ chosen.T
        points = chosen @ self._objectives.T
        points[:, 3] -= self._spill_gb * np.maximum(0, used[0] - self._limits[0])
        return fitting(self._limits, used), points

    def first_chromosome(self, draws: _Draws) -> np.uint64:
        """Random genes, of which random ones are dropped until the rest fits."""
        bits = np.uint64(1) << np.arange(self.count, dtype=np.uint64)
        word = np.bitwise_or.reduce(bits[draws.take(self.count) < 0.5], initial=np.uint64(0))
        while True:
            dropped = ~bits[(draws.next(_BLOCK) * self.count).astype(np.int64)]
            words = np.bitwise_and.accumulate(np.concatenate(([word], dropped)))
            fits, _ = self.points_of(words)
            if fits.any():
                first = int(fits.argmax())
                draws.skip(first)
                return np.uint64(words[first])
            draws.skip(_BLOCK)
            word = words[-1]

    def children(self, words: Words, population: int, mutation: float, draws: _Draws) -> Words:
        """Two children of each random pair, by one-point crossover and mutation."""
        pairs, one = (population + 1) // 2, np.uint64(1)
        numbers = draws.take(pairs * (3 + 2 * self.count)).reshape(pairs, -1)
        mothers = words[(numbers[:, 0] * len(words)).astype(np.int64)]
        fathers = words[(numbers[:, 1] * len(words)).astype(np.int64)]
        low = (one << (1 + (numbers[:, 2] * max(1, self.count - 1)).astype(np.uint64))) - one
        born = np.stack(((mothers & ~low) | (fathers & low), (fathers & ~low) | (mothers & low)), axis=1).ravel()
        flips = (numbers[:, 3:].reshape(2 * pairs, self.count) < mutation).astype(np.uint64)
        flipped: Words = born ^ (flips << np.arange(self.count, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
        return flipped


def evolve(
    jobs: Ints,
    limits: Ints,
    objectives: Ints,
    spill_gb: int,
    population: int,
    generations: int,
    mutation: float,
    seed: np.uint64,
    draws: int,
) -> Ints:
    """What `genetic` compiles, with the same arguments and the same answer."""
    window, numbers = _Window(jobs, limits, objectives, spill_gb), _Draws(int(seed))
    words = _distinct(np.array([window.first_chromosome(numbers) for _ in range(population)], dtype=np.uint64))
    points, ages = window.points_of(words)[1], np.zeros(len(words), np.int64)
    best = words[:0]
    for generation in range(generations + 1):
        born = _born(window, words, population, mutation, numbers, draws) if generation else words[:0]
        words = np.concatenate((words, born))
        ages = np.concatenate((ages + 1, np.zeros(len(born), np.int64)))
        points = window.points_of(words)[1]
        order, first = survivors(points, ages, population)
        words, ages = words[order], ages[order]
        best = _not_dominated(window, np.union1d(best, words[:first]))
    return np.concatenate((window.points_of(best)[1], flags_of(best, window.count)), axis=1)


def _born(window: _Window, words: Words, population: int, mutation: float, numbers: _Draws, draws: int) -> Words:
    """New children that fit, at most as many as the population."""
    children = words[:0]
    for _ in range(draws):
        if len(children) < population:
            born = _distinct(window.children(words, population, mutation, numbers))
            born = born[~np.isin(born, words) & ~np.isin(born, children)]
            children = np.concatenate((children, born[window.points_of(born)[0]]))[:population]
    return children


def _not_dominated(window: _Window, words: Words) -> Words:
    points = window.points_of(words)[1]
    order, first = survivors(points, np.zeros(len(words), np.int64), len(words))
    return words[np.sort(order[:first])]


def _distinct(words: Words) -> Words:
    """Each word where it is met first."""
    return words[np.sort(np.unique(words, return_index=True)[1])]


def survivors(points: Ints, ages: Ints, max_points: int) -> tuple[Ints, int]:
    """Rows of those that survive: Set 1, then Set 2, each newest first; and how many are of Set 1."""
    dominated = np.zeros(len(ages), np.int64)
    rows = max(1, MAX_COMPARED // len(ages))
    for begin in range(0, len(ages), rows):
        block = points[begin : begin + rows, None, :]
        beaten: Flags = np.all(points >= block, axis=2) & np.any(points > block, axis=2)
        dominated[begin : begin + rows] = np.any(beaten, axis=1)
    ranked = np.argsort(dominated * (ages.max() + 1) + ages, kind="stable")[:max_points]
    return ranked, int(min(len(ranked), len(ages) - dominated.sum()))
