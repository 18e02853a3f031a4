"""Who gets how many nodes: the production allocator, and two others to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from malletrain.allocator.horizon import ForwardPolicy
from malletrain.allocator.menu import NO_LIMIT, Menu, Terms
from malletrain.simulator.replay.options import Options, Policy
from malletrain.simulator.replay.running import Running

Decide = Callable[[Sequence[Running], int], Sequence[int]]
"""New counts of the jobs that take part, first come first, out of a pool of nodes."""


class Advisor(Protocol):
    """Decides with a mind of its own: it may believe other curves than hold, and look again when nothing happens."""

    def next_look_s(self) -> float:
        """When it wants to decide again although nothing may have happened, in seconds; infinity: never."""

    def counts(self, now_s: float, jobs: Sequence[Running], pool: int) -> Sequence[int]:
        """As `Decide`, at a time in seconds."""


def decider(options: Options, stays: Callable[[], Iterable[float]] = tuple) -> Decide:
    """The policy of a replay; `stays` gives the expected stays of the idle nodes, in seconds."""
    if options.policy is Policy.EQUAL:
        return lambda jobs, pool: equal_counts(
            [(run.job.min_nodes, run.most) for run in jobs], pool, options.paper_quirks
        )
    if options.policy is Policy.FIXED:
        return lambda jobs, pool: fixed_counts([(run.count, run.broken, run.fixed) for run in jobs], pool)
    return _Allocator(options, stays)


class _Allocator:
    """The production allocator; the menu is made anew only when other jobs take part."""

    def __init__(self, options: Options, stays: Callable[[], Iterable[float]]) -> None:
        self._options = options
        self._stays = stays
        self._jobs: Sequence[Running] = ()
        self._menu = Menu.of(())

    def __call__(self, jobs: Sequence[Running], pool: int) -> Sequence[int]:
        if jobs != self._jobs:
            self._jobs = list(jobs)
            self._menu = Menu.of([run.choices for run in jobs])
        options = self._options
        # The published code's big-M is |N| + 1, which lets a job change by half of that in one solve.
        most = (pool + 1) // 2 if options.paper_quirks else NO_LIMIT
        survival = options.forward_policy is ForwardPolicy.SURVIVAL
        forward_s = options.forward.of(self._stays()) if survival else options.forward_s
        terms = Terms(forward_s, options.cost_model, most)
        counts: list[int] = self._menu.choose([run.count for run in jobs], pool, terms).counts.tolist()
        return counts


def equal_counts(bounds: Sequence[tuple[int, int]], pool: int, paper_quirks: bool = False) -> list[int]:
    """BFTrainer's baseline (section 5.1): equal shares, and what is left over first come first served.

    Args:
        bounds: Smallest and largest scale of each job, in nodes, first come first.
        pool: Number of nodes.
        paper_quirks: As in the published code, a share that equals the smallest scale counts as none.
    """
    if not bounds:
        return []
    share = pool // len(bounds)
    counts = [
        min(share, most) if share > least or (share == least and not paper_quirks) else 0 for least, most in bounds
    ]
    rest = pool - sum(counts)
    for index, (least, most) in enumerate(bounds):
        more = min(most - counts[index], rest)
        if counts[index] + more >= least:
            counts[index] += more
            rest -= more
    return counts


def fixed_counts(jobs: Sequence[tuple[int, bool, int]], pool: int) -> list[int]:
    """Summit's killable queue (BFTrainer, section 2.2): a job runs at exactly its size, and is killed with any node.

    Args:
        jobs: Of each job, first come first: the nodes that it holds, whether it has just lost one, and its size.
        pool: Number of nodes.
    """
    counts = [count if count == size and not broken else 0 for count, broken, size in jobs]
    rest = pool - sum(counts)
    for index, (_, broken, size) in enumerate(jobs):
        if counts[index] == 0 and not broken and size <= rest:
            counts[index] = size
            rest -= size
    return counts
