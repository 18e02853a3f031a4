"""One decision: which jobs of the window a method starts; several methods at one instant, side by side.

What is compiled is imported when it is first used: Numba takes a second to import and a hundred MiB of memory, which
the services and most verbs of the command can do without.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction

import numpy as np

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.arrays import Ints, ProblemArrays, arrays_of, share_units
from malletrain.selection.generations import GeneticParameters
from malletrain.selection.methods import ObjectiveWeights, SelectionMethod, check_method, weights_of
from malletrain.selection.problem import Objectives, SelectionProblem, objectives_of
from malletrain.selection.rule import (
    WasteReading,
    check_trade_off,
    choose,
    default_trade_off,
    gain_weights,
    score_weights,
)
from malletrain.selection.search import add, fits


def in_order(problem: SelectionProblem) -> tuple[int, ...]:
    """The jobs that fit beside those before them."""
    arrays, used, chosen = arrays_of(problem), np.zeros(7, dtype=np.int64), list[int]()
    for index in range(len(problem.jobs)):
        if fits(arrays.jobs, arrays.limits, used, index):
            add(arrays.jobs, used, index, 1)
            chosen.append(index)
    return tuple(chosen)


def pack(problem: SelectionProblem) -> tuple[int, ...]:
    """The jobs that bin packing starts, in the order of the window.

    The alignment of a job is the dot product of what it asks for and what is free, both as shares of the machine. Of
    equal jobs the first is taken.
    """
    arrays, machine = arrays_of(problem), problem.machine
    units = share_units(machine)
    used = np.zeros(7, dtype=np.int64)
    waiting, chosen = list(range(len(problem.jobs))), list[int]()
    while True:
        waiting = [index for index in waiting if fits(arrays.jobs, arrays.limits, used, index)]
        if not waiting:
            return tuple(sorted(chosen))
        small, large, burst_buffer = (int(amount) for amount in used[:3])
        spill = max(0, small - problem.free.small)
        free_small = problem.free.small - small + spill
        free_large = problem.free.large - large - spill
        free_ssd = free_small * machine.small_ssd_gb + free_large * machine.large_ssd_gb
        free = (free_small + free_large, problem.free.burst_buffer_gb - burst_buffer, free_ssd)
        # Python's whole numbers have no limit: products of two shares in 64 bits would overflow.
        weights = [unit * unit * amount for unit, amount in zip(units, free, strict=True)]

        def alignment(index: int, weights: list[int] = weights) -> int:
            job = problem.jobs[index]
            return weights[0] * job.nodes + weights[1] * job.burst_buffer_gb + weights[2] * job.nodes * job.ssd_gb

        best = max(waiting, key=alignment)
        add(arrays.jobs, used, best, 1)
        waiting.remove(best)
        chosen.append(best)


_UNBOUNDED = 2**61
_NO_WEIGHTS = ObjectiveWeights((0, 0, 0, 0))
_BURST_BUFFER = ObjectiveWeights((0, 1, 0, 0))
_NODES = ObjectiveWeights((1, 0, 0, 0))


class SelectionSolver(StrEnum):
    """How the selections of a method that optimises are found. AUTO: exact, and genetic where that takes too long."""

    EXACT = "exact"
    GENETIC = "genetic"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """How to select.

    Attributes:
        solver: Who searches.
        trade_off: Factor of BBSched's rule; None: 2, or 4 with SSDs.
        most_visits: Selections that one exact search may visit. Beyond that AUTO asks the genetic algorithm, and EXACT
            gives up.
        genetic: Parameters of the genetic algorithm.
        waste: What BBSched's rule takes a reduction of wasted SSD for a percentage of.

    Raises:
        InvalidInputError: a number is out of its range.
    """

    method: SelectionMethod = SelectionMethod.BBSCHED
    solver: SelectionSolver = SelectionSolver.AUTO
    trade_off: Fraction | None = None
    most_visits: int = 5_000_000
    genetic: GeneticParameters = field(default_factory=GeneticParameters)
    waste: WasteReading = WasteReading.FIRST_CHOICE

    def __post_init__(self) -> None:
        if self.most_visits < 1:
            raise InvalidInputError("most_visits", "at least 1", self.most_visits)


@dataclass(frozen=True, slots=True)
class SelectionAnswer:
    """The selected jobs.

    Attributes:
        chosen: Positions in the window, ascending.
        genetic: Whether the genetic algorithm answered.
        visits: Selections that the exact search visited.
    """

    chosen: tuple[int, ...]
    genetic: bool = False
    visits: int = 0


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A point of the Pareto set.

    Attributes:
        objectives: What it uses.
        chosen: The selection at the front of the window that reaches it.
    """

    objectives: Objectives
    chosen: tuple[int, ...]


def select(problem: SelectionProblem, settings: SelectionSettings) -> SelectionAnswer:
    """The jobs that a method starts.

    Raises:
        InvalidInputError: the method does not suit the machine, the factor is out of its range, or an exact search was
            asked for and visited more than `most_visits` selections.
    """
    from malletrain.selection.select import in_order, pack

    check_method(settings.method, problem.machine)
    if settings.method is SelectionMethod.BIN_PACKING:
        return SelectionAnswer(pack(problem))
    if settings.method is SelectionMethod.IN_ORDER:
        return SelectionAnswer(in_order(problem))
    factor = settings.trade_off if settings.trade_off is not None else default_trade_off(problem.machine)
    check_trade_off(factor, problem.machine)
    arrays = arrays_of(problem)
    if settings.solver is not SelectionSolver.GENETIC:
        answer = _exact(problem, arrays, settings, factor)
        if answer is not None:
            return answer
        if settings.solver is SelectionSolver.EXACT:
            raise InvalidInputError(
                "most_visits",
                "more (--most-visits), a smaller window, or the solver auto (the search is too long)",
                settings.most_visits,
            )
    return SelectionAnswer(_genetic(problem, arrays, settings, factor), genetic=True)


def front_of(problem: SelectionProblem, most_visits: int = 5_000_000) -> tuple[FrontPoint, ...]:
    """The exact Pareto set: its distinct points, fewest nodes first.

    Raises:
        InvalidInputError: the search visited more than `most_visits` selections.
    """
    from malletrain.selection.search import pareto_front

    arrays = arrays_of(problem)
    rows = pareto_front(arrays.jobs, arrays.limits, arrays.objectives, arrays.spill_gb, 0, most_visits)
    if not len(rows):
        raise InvalidInputError("most_visits", "more, or a smaller window (the search is too long)", most_visits)
    return front_points(rows)


def genetic_front_of(problem: SelectionProblem, parameters: GeneticParameters) -> tuple[FrontPoint, ...]:
    """The distinct points that the genetic algorithm finds, fewest nodes first."""
    from malletrain.selection.genetic import genetic_front

    return front_points(genetic_front(arrays_of(problem), parameters))


def front_points(rows: Ints) -> tuple[FrontPoint, ...]:
    """Points from rows of f1 … f4 and selections; of equal points the selection at the front of the window."""
    ordered = sorted(rows.tolist(), key=lambda row: (row[:4], row[4:]))
    by_point = {tuple(row[:4]): row for row in ordered}
    return tuple(
        FrontPoint(Objectives(row[0], row[1], row[2], -row[3]), _positions(np.array(row[4:], dtype=np.int64)))
        for row in by_point.values()
    )


def _exact(
    problem: SelectionProblem, arrays: ProblemArrays, settings: SelectionSettings, factor: Fraction
) -> SelectionAnswer | None:
    """The exact answer; None if the search was given up."""
    if settings.method is not SelectionMethod.BBSCHED:
        answer = _search(problem, arrays, settings, weights_of(settings.method, problem))
        return None if answer is None else SelectionAnswer(_positions(answer[2:]), visits=int(answer[0]))
    if problem.machine.has_ssd and settings.waste is WasteReading.FIRST_CHOICE:
        return _by_whole_front(problem, arrays, settings, factor)
    first = _first_choice(problem, arrays, settings)
    if first is None:
        return None
    score = score_weights(problem.machine, factor)
    score_above = int(score.of_points(_point(arrays, first[2:]))[0])
    gain = gain_weights(problem.machine)
    other = _search(problem, arrays, settings, gain, second=_NODES, score=score, score_above=score_above)
    if other is None:
        return None
    chosen = other if other[1] else first
    return SelectionAnswer(_positions(chosen[2:]), visits=int(first[0] + other[0]))


def _by_whole_front(
    problem: SelectionProblem, arrays: ProblemArrays, settings: SelectionSettings, factor: Fraction
) -> SelectionAnswer | None:
    """The rule's answer where a gain depends on the first choice, so that no search can look for the largest alone."""
    from malletrain.selection.search import pareto_front

    rows = pareto_front(arrays.jobs, arrays.limits, arrays.objectives, arrays.spill_gb, 0, settings.most_visits)
    if not len(rows):
        return None
    points, selections = np.ascontiguousarray(rows[:, :4]), rows[:, 4:]
    return SelectionAnswer(_positions(selections[choose(points, selections, problem.machine, factor, settings.waste)]))


def _first_choice(problem: SelectionProblem, arrays: ProblemArrays, settings: SelectionSettings) -> Ints | None:
    """The point of the Pareto set with the most nodes, of several the front of the window; as from `best_selection`."""
    from malletrain.selection.search import pareto_front

    first = _search(problem, arrays, settings, _NODES, second=_BURST_BUFFER)
    if first is None or not problem.machine.has_ssd:
        return first
    min_nodes = int(arrays.objectives[0] @ first[2:])
    rows = pareto_front(arrays.jobs, arrays.limits, arrays.objectives, arrays.spill_gb, min_nodes, settings.most_visits)
    if not len(rows):
        return None
    first[2:] = max(rows[:, 4:].tolist())
    return first


def _search(
    problem: SelectionProblem,
    arrays: ProblemArrays,
    settings: SelectionSettings,
    value: ObjectiveWeights,
    second: ObjectiveWeights = _NO_WEIGHTS,
    score: ObjectiveWeights = _NO_WEIGHTS,
    score_above: int = -1,
) -> Ints | None:
    from malletrain.selection.search import best_selection

    rows = (value, second, score)
    cap = _UNBOUNDED
    if not value.weights[2] and not value.weights[3]:
        cap = value.weights[0] * problem.free.nodes + value.weights[1] * problem.free.burst_buffer_gb
    answer = best_selection(
        arrays.jobs,
        arrays.limits,
        np.array([row.of_jobs(arrays) for row in rows], dtype=np.int64),
        np.array([row.spill_cost(arrays) for row in rows], dtype=np.int64),
        cap,
        score_above,
        settings.most_visits,
    )
    return None if answer[0] < 0 else answer


def _genetic(
    problem: SelectionProblem, arrays: ProblemArrays, settings: SelectionSettings, factor: Fraction
) -> tuple[int, ...]:
    from malletrain.selection.genetic import genetic_front

    if settings.method is SelectionMethod.BBSCHED:
        rows = genetic_front(arrays, settings.genetic)
        points, selections = np.ascontiguousarray(rows[:, :4]), rows[:, 4:]
        return _positions(selections[choose(points, selections, problem.machine, factor, settings.waste)])
    weights = weights_of(settings.method, problem)
    alone = np.zeros_like(arrays.objectives)
    alone[3] = weights.of_jobs(arrays)
    rows = genetic_front(replace(arrays, objectives=alone, spill_gb=weights.spill_cost(arrays)), settings.genetic)
    return _positions(np.array(max(rows[:, 4:].tolist()), dtype=np.int64))


def _point(arrays: ProblemArrays, chosen: Ints) -> Ints:
    """f1 … f4 of a selection, shape (1, 4)."""
    point = arrays.objectives @ chosen
    small = int(((1 - arrays.jobs[2]) * arrays.jobs[0]) @ chosen)
    point[3] -= arrays.spill_gb * max(0, small - int(arrays.limits[0]))
    return point.reshape(1, 4)


def _positions(chosen: Ints) -> tuple[int, ...]:
    return tuple(np.flatnonzero(chosen).tolist())


FIRST_MISFIT = "until-first-misfit"
"""Name of the way that starts jobs in order until one does not fit."""


@dataclass(frozen=True, slots=True)
class StartChoice:
    """Which jobs of the window one way starts.

    Attributes:
        name: Name of the method, or FIRST_MISFIT.
        chosen: Positions in the window, ascending.
        uses: What they use.
        genetic: Whether the genetic algorithm answered.
    """

    name: str
    chosen: tuple[int, ...]
    uses: Objectives
    genetic: bool = False


def compare_starts(problem: SelectionProblem, settings: SelectionSettings) -> tuple[StartChoice, ...]:
    """The jobs that start until the first does not fit, in order within the window, and by a method.

    Raises:
        InvalidInputError: the method does not suit the machine, or its factor is out of its range.
    """
    from malletrain.selection.select import in_order

    check_method(settings.method, problem.machine)
    ordered = in_order(problem) if problem.jobs else ()
    # In order, the first that is missing is the first that did not fit.
    until = tuple(index for position, index in enumerate(ordered) if index == position)
    selection = select(problem, settings) if problem.jobs else None
    ways = [(FIRST_MISFIT, until, False), (SelectionMethod.IN_ORDER.value, ordered, False)]
    if settings.method is not SelectionMethod.IN_ORDER:
        ways.append(
            (settings.method.value, selection.chosen if selection else (), bool(selection and selection.genetic))
        )
    return tuple(StartChoice(name, chosen, objectives_of(problem, chosen), genetic) for name, chosen, genetic in ways)
