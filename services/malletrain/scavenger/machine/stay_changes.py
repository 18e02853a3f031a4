"""Tells the Allocator what expected stays are computed from, and of that only what it does not know yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.model.survival_curve import SurvivalCurve
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts, Observation
from malletrain.scavenger.machine.stays import LearnedStay


@dataclass(frozen=True, slots=True)
class StayingNode:
    """An idle node.

    Attributes:
        name: Its name.
        since: When its fragment began, in seconds since the epoch.
        until: When its idleness ends at the latest, in seconds since the epoch; None where that is not known.
        facts: What it is.
    """

    name: str
    since: float
    until: float | None
    facts: NodeFacts


@dataclass(frozen=True)
class StayNews:
    """What one reader does not know yet.

    Attributes:
        token: By which it says what it knows.
        horizon_seconds: How far stays look ahead.
        same_curve: Whether it knows the curve.
        curve: The curve; None where it knows it, or there is none.
        complete: Whether `nodes` are all.
        nodes: Nodes of which something has changed.
    """

    token: str
    horizon_seconds: float
    same_curve: bool
    curve: SurvivalCurve | None
    complete: bool
    nodes: tuple[StayingNode, ...]


class StayChanges:
    """Numbers the changes of idle nodes: ten thousand are compared in some milliseconds, and few are ever told."""

    def __init__(self, life: str) -> None:
        """Begin without nodes.

        Args:
            life: Names this life of the service: tokens of earlier ones are not known.
        """
        self._life = life
        self._number = 0
        self._nodes: dict[str, StayingNode] = {}
        self._changed: dict[str, int] = {}

    def news(self, known: str, since: Mapping[str, float], newest: Observation, learned: LearnedStay) -> StayNews:
        """What a reader does not know yet.

        Args:
            known: Token that it has got last; empty or unknown: it knows nothing.
            since: The nodes that count as idle, and when the fragment of each began.
            newest: What the source told last.
            learned: What has been learned of stays.
        """
        self._look(since, newest)
        fits, number = self._known(known)
        same_curve = fits == learned.fits
        return StayNews(
            f"{self._life}:{learned.fits}:{self._number}",
            learned.horizon_seconds,
            same_curve,
            None if same_curve else learned.curve,
            number < 0,
            tuple(self._nodes[name] for name, changed in self._changed.items() if changed > number),
        )

    def _look(self, since: Mapping[str, float], newest: Observation) -> None:
        ends, facts, nodes = newest.ends, newest.facts, self._nodes
        number = self._number + 1
        for name, began in since.items():
            node = nodes.get(name)
            end, about = ends.get(name), facts.get(name, NO_FACTS)
            if node is None or node.since != began or node.until != end or node.facts != about:
                nodes[name] = StayingNode(name, began, end, about)
                self._changed[name] = self._number = number
        if len(nodes) > len(since):
            for name in nodes.keys() - since.keys():
                del nodes[name], self._changed[name]

    def _known(self, token: str) -> tuple[int, int]:
        """Numbers of the fit and of the change that a reader knows; -1 each where it knows nothing of this life."""
        life, _, numbers = token.partition(":")
        fits, _, number = numbers.partition(":")
        if life != self._life or not fits.isdecimal() or not number.isdecimal():
            return -1, -1
        return int(fits), int(number)
