"""The paper's genetic algorithm, compiled (Fan et al., HPDC 2019, §3.2).

A chromosome is a word whose highest used bit is the first job of the window. Children that do not fit are dropped, and
so are children that equal a chromosome that is there. Survivors are those that no other dominates, then the others,
the newest first; of too many that are not dominated, the newest.

In two points more is done than the paper says, since small populations lose what they had found: a generation draws
children up to four times until as many as the population fit, and the answer is what no other dominates in Set 1 of
all generations, not only of the last one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from malletrain.runtime.jit import jit
from malletrain.selection import generations as array_generations
from malletrain.selection.arrays import Ints, ProblemArrays
from malletrain.selection.generations import GeneticParameters
from malletrain.selection.search import add, fits

Words = NDArray[np.uint64]
_DRAWS = 4
"""How often a generation draws children until as many as the population fit."""


def genetic_front(arrays: ProblemArrays, parameters: GeneticParameters) -> Ints:
    """The points that the solutions of all generations reach, none of which dominates another.

    Returns:
        Shape (solutions, 4 + jobs): f1 … f4, then 0 or 1 for each job.
    """
    count = arrays.jobs.shape[1]
    nothing = np.zeros(7, dtype=np.int64)
    fitting = [job for job in range(count) if fits(arrays.jobs, arrays.limits, nothing, job)]
    if not fitting:
        return np.zeros((1, 4 + count), dtype=np.int64)
    points = evolve(
        np.ascontiguousarray(arrays.jobs[:, fitting]),
        arrays.limits,
        np.ascontiguousarray(arrays.objectives[:, fitting]),
        arrays.spill_gb,
        parameters.population,
        parameters.generations,
        parameters.mutation,
        np.uint64(parameters.seed),
        _DRAWS,
    )
    answer = np.zeros((len(points), 4 + count), dtype=np.int64)
    answer[:, :4] = points[:, :4]
    answer[:, 4 + np.array(fitting)] = points[:, 4:]
    return answer


@jit("f8(u8[::1])")
def _random(state: Words) -> float:
    """The next number from 0 to 1 (SplitMix64; Steele, Lea, Flood, 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    word = state[0]
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word = word ^ (word >> np.uint64(31))
    return float(word >> np.uint64(11)) / 9007199254740992.0


@jit("b1(i8[:, ::1], i8[::1], i8[:, ::1], i8, u8, i8[::1])")
def _evaluate(jobs: Ints, limits: Ints, objectives: Ints, spill_gb: int, word: np.uint64, point: Ints) -> bool:
    """Whether a chromosome fits; its f1 … f4 into `point`."""
    count = jobs.shape[1]
    used = np.zeros(7, np.int64)
    point[:] = 0
    for job in range(count):
        if (word >> np.uint64(count - 1 - job)) & np.uint64(1):
            if not fits(jobs, limits, used, job):
                return False
            add(jobs, used, job, 1)
            for row in range(4):
                point[row] += objectives[row, job]
    point[3] -= spill_gb * max(0, used[0] - limits[0])
    return True


@jit("u8(i8[:, ::1], i8[::1], i8[:, ::1], i8, i8[::1], u8[::1])")
def _first_chromosome(
    jobs: Ints, limits: Ints, objectives: Ints, spill_gb: int, point: Ints, state: Words
) -> np.uint64:
    """Random genes, of which random ones are dropped until the rest fits."""
    count = jobs.shape[1]
    word = np.uint64(0)
    for job in range(count):
        if _random(state) < 0.5:
            word |= np.uint64(1) << np.uint64(job)
    while not _evaluate(jobs, limits, objectives, spill_gb, word, point):
        bit = np.uint64(1) << np.uint64(int(_random(state) * count))
        word &= ~bit
    return word


@jit("b1(i8[::1], i8[::1])")
def _dominates(one: Ints, two: Ints) -> bool:
    """Whether a point is at least as good as another in all objectives, and better in one."""
    better = False
    for column in range(4):
        if one[column] < two[column]:
            return False
        better = better or one[column] > two[column]
    return better


@jit("i8(i8[:, ::1], i8[::1], i8, i8[::1])")
def _survivors(points: Ints, ages: Ints, max_points: int, order: Ints) -> int:
    """Rows of those that survive into `order`: Set 1, then Set 2, each newest first. Returns how many are of Set 1."""
    count = len(ages)
    dominated = np.zeros(count, np.int64)
    for row in range(count):
        for rival in range(count):
            if _dominates(points[rival], points[row]):
                dominated[row] = 1
                break
    keys = dominated * (ages.max() + 1) + ages
    ranked = np.argsort(keys, kind="mergesort")
    survivors = min(max_points, count)
    order[:survivors] = ranked[:survivors]
    return int(min(survivors, count - dominated.sum()))


@jit("i8(u8[::1], i8[:, ::1], i8, u8, i8[::1])")
def _with_best(words: Words, points: Ints, size: int, word: np.uint64, point: Ints) -> int:
    """Add a chromosome to those that no other one dominates; returns how many there are then."""
    for row in range(size):
        if words[row] == word:
            return size
    for row in range(size):
        if _dominates(points[row], point):
            return size
    count = 0
    for row in range(size):
        if not _dominates(point, points[row]):
            words[count] = words[row]
            points[count] = points[row]
            count += 1
    words[count] = word
    points[count] = point
    return count + 1


@jit("i8[:, ::1](i8[:, ::1], i8[::1], i8[:, ::1], i8, i8, i8, f8, u8, i8)", otherwise=array_generations.evolve)
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
    """The compiled form of `generations.evolve`."""
    count = jobs.shape[1]
    state = np.full(1, seed, np.uint64)
    words = np.zeros(2 * population + 1, np.uint64)
    points = np.zeros((2 * population + 1, 4), np.int64)
    ages, order = np.zeros(2 * population + 1, np.int64), np.zeros(population, np.int64)
    size = 0
    for _ in range(population):
        words[size] = _first_chromosome(jobs, limits, objectives, spill_gb, points[size], state)
        known = False
        for row in range(size):
            known = known or words[row] == words[size]
        if not known:
            size += 1
    best_words, best_points = np.zeros(4 * population, np.uint64), np.zeros((4 * population, 4), np.int64)
    best = 0
    old_words, old_points, old_ages = words.copy(), points.copy(), ages.copy()
    for generation in range(generations + 1):
        parents = size
        for row in range(parents):
            ages[row] += 1
        for pair in range(draws * ((population + 1) // 2) if generation else 0):
            if pair % ((population + 1) // 2) == 0 and size >= parents + population:
                break
            one = words[int(_random(state) * parents)]
            two = words[int(_random(state) * parents)]
            low = (np.uint64(1) << np.uint64(1 + int(_random(state) * max(1, count - 1)))) - np.uint64(1)
            for child in range(2):
                word = (one & ~low) | (two & low) if child == 0 else (two & ~low) | (one & low)
                for gene in range(count):
                    if _random(state) < mutation:
                        word ^= np.uint64(1) << np.uint64(gene)
                known = size >= parents + population
                for row in range(size):
                    known = known or words[row] == word
                if not known and _evaluate(jobs, limits, objectives, spill_gb, word, points[size]):
                    words[size] = word
                    ages[size] = 0
                    size += 1
        first = _survivors(points[:size], ages[:size], population, order)
        size = min(size, population)
        old_words[:], old_points[:], old_ages[:] = words, points, ages
        for row in range(size):
            words[row] = old_words[order[row]]
            points[row] = old_points[order[row]]
            ages[row] = old_ages[order[row]]
        for row in range(first):
            if best == len(best_words):
                best_words = np.concatenate((best_words, np.zeros(best, np.uint64)))
                best_points = np.concatenate((best_points, np.zeros((best, 4), np.int64)))
            best = _with_best(best_words, best_points, best, words[row], points[row])
    ranked = np.argsort(best_words[:best])
    answer = np.zeros((best, 4 + count), np.int64)
    for index in range(best):
        row = ranked[index]
        answer[index, :4] = best_points[row]
        for job in range(count):
            answer[index, 4 + job] = (best_words[row] >> np.uint64(count - 1 - job)) & np.uint64(1)
    return answer
