"""The most that jobs can train on some nodes if rescaling is free, by the production allocator. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from malletrain.allocator.problem.allocation_problem import CostModel, JobDemand, ObjectiveMetric
from malletrain.allocator.problem.objective import scale_rates
from malletrain.allocator.solvers.choice_table import ChoiceTable, ObjectiveParameters

_MAX_KEPT = 64
_EXACT_NODES = 256
"""Up to so many nodes, each number of them is solved for itself. Beyond, some are, and the others lie between these: of
10,000 nodes and 1,000 jobs a solve takes 0.3 s."""
_FREE = ObjectiveParameters(1.0, CostModel.STALL)


@dataclass
class _Known:
    """What is worked out for some jobs: a table for so many nodes at most, and rates by number of nodes."""

    jobs: tuple[JobDemand, ...]
    most: int = -1
    table: ChoiceTable | None = None
    rates: dict[int, float] = field(default_factory=dict)


class BestRates:
    """A `definition.BestRate` that remembers what it has worked out for the newest jobs.

    Jobs are known again by their tuple itself, not by what is in it: to compare all their curves takes longer.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._newest = _Known(())

    def __call__(self, jobs: tuple[JobDemand, ...], nodes: int) -> float:
        """Most samples per second of jobs without stalls, all of the same weight, on a number of nodes."""
        if not jobs or nodes <= 0:
            return 0.0
        known, grain = self._of(jobs), max(1, nodes // _EXACT_NODES)
        low = nodes - nodes % grain
        rate = _solve(known, low)
        return rate if low == nodes else rate + (nodes - low) / grain * (_solve(known, low + grain) - rate)

    def _of(self, jobs: tuple[JobDemand, ...]) -> _Known:
        # The entry holds the tuple, so that no other one gets its identity meanwhile.
        known = self._known.setdefault(id(jobs), _Known(jobs))
        if known is not self._newest:
            # A table of a thousand jobs has up to hundreds of megabytes; rates are what is worth keeping.
            self._newest.table = None
            self._newest = known
        self._known.move_to_end(id(jobs))
        while len(self._known) > _MAX_KEPT:
            self._known.popitem(last=False)
        return known


def _solve(known: _Known, nodes: int) -> float:
    if nodes not in known.rates:
        known.rates[nodes] = _table(known, nodes).choose([0] * len(known.jobs), nodes, _FREE).objective
    return known.rates[nodes]


def _table(known: _Known, nodes: int) -> ChoiceTable:
    if known.table is None or known.most < nodes:
        known.most = nodes + max(1, nodes // 4)
        rates = [scale_rates(job, ObjectiveMetric.THROUGHPUT, known.most) for job in known.jobs]
        known.table = ChoiceTable.of(rates)
    return known.table
