"""What runs want to know of curves, answered from the book."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from malletrain.profiler.book import JobFacts, ProfileBook
from malletrain.profiler.curve import DECLARED_ERROR, CurvePoint, single_node_rate
from malletrain.profiler.decision import best_size, rest_values
from malletrain.profiler.evidence import is_usable
from malletrain.profiler.knots import Knot
from malletrain.profiler.modes import Mode
from malletrain.profiler.settings import ProfilerSettings
from malletrain.profiler.sizes import (
    PlanSize,
    Strategy,
    fleet_scales,
    next_adaptive,
    next_listed,
    permitted_scales,
)


class BookKnowledge:
    """`desk.Knowledge` at one moment."""

    def __init__(self, book: ProfileBook, settings: ProfilerSettings, planned: Sequence[str], now: float) -> None:
        """Look at the book.

        Args:
            book: All profiles.
            settings: Strategy and errors.
            planned: Jobs that take part in plans.
            now: Seconds since the epoch.
        """
        self._book = book
        self._settings = settings
        self._planned = planned
        self._now = now

    def wants(self, job_id: str) -> bool:
        """See `desk.Knowledge`."""
        facts = self._book.facts(job_id)
        if facts is None:
            return False
        mode = facts.mode or self._settings.default_mode
        return mode is Mode.ALWAYS or (mode is Mode.AUTO and not self._is_usable(facts))

    def largest(self, job_id: str, scales: Sequence[int]) -> int:
        """See `desk.Knowledge`."""
        del job_id
        return self._fleet(scales)[-1] if self._settings.strategy is Strategy.FLEET else scales[-1]

    def knot(self, job_id: str, nodes: int) -> Knot | None:
        """See `desk.Knowledge`."""
        return self._book.measured_at(job_id, nodes)

    def next_scale(self, job_id: str, present: int, top: int, visited: Sequence[int], pool: int) -> int | None:
        """See `desk.Knowledge`."""
        facts = self._book.facts(job_id)
        if facts is None:
            return None
        scales = [
            scale
            for scale in permitted_scales(facts.min_nodes, facts.max_nodes, facts.permitted_nodes)
            if scale <= max(top, present)
        ]
        if self._settings.strategy is Strategy.EVERY:
            return next_listed(scales, present, visited)
        if self._settings.strategy is Strategy.FLEET:
            return next_listed(self._fleet(scales), present, visited)
        known = self._book.known(job_id, self._now)
        plan_size = self._plan_size(facts, pool)
        return next_adaptive(scales, present, known, visited, self._settings.curve_error, plan_size)

    def _fleet(self, scales: Sequence[int]) -> list[int]:
        rates = [single_node_rate(profile.points) for profile in self._book.profiles()]
        return fleet_scales(rates, self._settings.fleet_nodes, scales)

    def _is_usable(self, facts: JobFacts) -> bool:
        # Declared curves are taken at their word: who gives one does not ask for a profile.
        declared = [replace(knot, error=min(DECLARED_ERROR, self._settings.target_error)) for knot in facts.curve]
        known = [*declared, *self._book.known(facts.job_id, self._now)]
        return is_usable(facts.min_nodes, facts.max_nodes, known, self._settings.target_error)

    def _plan_size(self, facts: JobFacts, pool: int) -> PlanSize:
        scales = permitted_scales(facts.min_nodes, facts.max_nodes, facts.permitted_nodes)
        others = [self._values(other, pool) for other in self._planned if other != facts.job_id]
        rest = rest_values(others, pool)

        def size(rate: Callable[[int], float]) -> int:
            return best_size(lambda nodes: facts.weight * rate(nodes), scales, rest)

        return size

    def _values(self, job_id: str, pool: int) -> list[float]:
        facts, profile = self._book.facts(job_id), self._book.profile(job_id)
        if facts is None or profile is None:
            return [0.0]
        scales = permitted_scales(facts.min_nodes, min(facts.max_nodes, pool), facts.permitted_nodes)
        values = [0.0, *[-np.inf] * pool]
        for scale, rate in zip(scales, _rates(profile.points, scales), strict=True):
            if scale <= pool:
                values[scale] = facts.weight * rate
        return values


def _rates(points: Sequence[CurvePoint], scales: Sequence[int]) -> list[float]:
    nodes, rates = [0, *(point.nodes for point in points)], [0.0, *(point.rate for point in points)]
    found: list[float] = np.interp(scales, nodes, rates).tolist()
    return found
