"""Training by remaining work: GPUs are divided anew at ends of members and now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from malletrain.fleet.lifecycle import FleetRun, train_to_next_end
from malletrain.fleet.lower_bound import above_bound, lower_bound
from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import RateTable, rate_table
from malletrain.fleet.remaining_work import replan_counts
from malletrain.fleet.sharing import of_others

Guess = Callable[[int, float], float]
"""From a member and the samples that it has trained on: how many more it is believed to need."""

_MAX_TIMES = 1000
"""How often a plan is made anew in a simulation at most, in the time of the lower bound."""


@dataclass(frozen=True, slots=True)
class Replanning:
    """How plans by remaining work change.

    Attributes:
        every_s: Seconds after which a plan is made anew, beside the ends of members; longer for ensembles that take
            long.
        stall_s: Seconds for which a member whose GPUs change does not train.
    """

    every_s: float = 900.0
    stall_s: float = 30.0


def makespan(
    problem: FleetProblem, guess: Guess | None = None, rules: Replanning | None = None, actual: RateTable | None = None
) -> FleetRun:
    """Train an ensemble by remaining work. Who preprocesses is as in a list.

    Plans are made anew at ends of members and now and then. A plan that changes GPUs of running members is taken if the
    last end is earlier by more than the stall. Where there are more members than GPUs, those with the most remaining
    work go first on one GPU each.

    Args:
        problem: The ensemble; plans are made by its rates.
        guess: What is believed of remaining work; None: it is known.
        rules: How plans change; None: the defaults.
        actual: Rates at which members really train; None: those of the problem.
    """
    table, rules = rate_table(problem), rules or Replanning()
    total, preprocessing = problem.samples(), of_others(problem)
    remaining_samples = dict(enumerate(total))
    every_s = _every_s(problem, rules)
    counts: dict[int, int] = {}
    stalled: dict[int, float] = {}
    ends, now = [0.0] * len(total), 0.0
    while remaining_samples:
        work = {m: guess(m, total[m] - rest) if guess else rest for m, rest in remaining_samples.items()}
        wanted = replan_counts(table, work, counts, problem.gpus, rules.stall_s)
        stalled |= {m: rules.stall_s for m, count in counts.items() if wanted[m] != count}
        counts = wanted
        until = now + every_s
        while remaining_samples and now < until:
            able = {m: (actual or table).rate(m, count) for m, count in counts.items() if m not in stalled}
            rates = preprocessing.paces(able, {m: total[m] - remaining_samples[m] for m in able}) if able else {}
            longest = min([until - now, *stalled.values()])
            seconds, done = train_to_next_end(remaining_samples, rates, problem.samples_per_epoch, longest)
            now += seconds
            stalled = {m: rest - seconds for m, rest in stalled.items() if rest > seconds}
            for member in done:
                ends[member] = now
                del remaining_samples[member], counts[member]
            if done:
                break
    return FleetRun(now, tuple(ends))


def _every_s(problem: FleetProblem, rules: Replanning) -> float:
    """After how many seconds a plan is made anew. The bound, which takes long, is computed only where it matters."""
    if above_bound(problem) <= rules.every_s * _MAX_TIMES:
        return rules.every_s
    return max(rules.every_s, lower_bound(problem) / _MAX_TIMES)
