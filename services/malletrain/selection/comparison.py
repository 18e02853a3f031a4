"""One instant, several ways to start jobs of the window: in order until one does not fit, in order, or by a method."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.selection.methods import SelectionMethod, check_method
from malletrain.selection.problem import Objectives, SelectionProblem, objectives_of
from malletrain.selection.select import SelectionSettings, select

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
    from malletrain.selection.packing import in_order

    check_method(settings.method, problem.machine)
    ordered = in_order(problem) if problem.jobs else ()
    # In order, the first that is missing is the first that did not fit.
    until = tuple(index for position, index in enumerate(ordered) if index == position)
    asked = select(problem, settings) if problem.jobs else None
    ways = [(FIRST_MISFIT, until, False), (SelectionMethod.IN_ORDER.value, ordered, False)]
    if settings.method is not SelectionMethod.IN_ORDER:
        ways.append((settings.method.value, asked.chosen if asked else (), bool(asked and asked.genetic)))
    return tuple(StartChoice(name, chosen, objectives_of(problem, chosen), genetic) for name, chosen, genetic in ways)
