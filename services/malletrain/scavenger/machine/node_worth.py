"""Which nodes are worth holding, where jobs need certain nodes. Pure.

A node is of use if there is work for it besides that for the nodes before it: jobs and nodes are matched, and a node
that makes the matching larger is of use. Jobs with the same needs are one demand, and nodes that suit the same demands
are one kind, so that the matching is a small flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from malletrain.model.node_needs import NodeNeeds, TraitCensus, as_asked
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts

Kind = tuple[int, ...]
MAX_DEMANDS = 20
"""With more different needs, nodes are held by their number alone."""


@dataclass(frozen=True)
class NodeWorth:
    """Which nodes there is work for, by the kinds of nodes that jobs need.

    Attributes:
        demands: How many nodes jobs want, by what they need of each.
        facts: What nodes are.
    """

    demands: Mapping[NodeNeeds, int]
    facts: Mapping[str, NodeFacts]

    def useless(self, held: Iterable[str]) -> frozenset[str]:
        """Held nodes for which no work is left once the others have theirs."""
        return self._refused(_Matching(tuple(self.demands.values())), held)

    def useful(self, held: Iterable[str], candidates: Collection[str]) -> frozenset[str]:
        """Candidates for which there is work besides that for the nodes that are held, and the candidates before."""
        matching = _Matching(tuple(self.demands.values()))
        self._refused(matching, held)
        return frozenset(candidates) - self._refused(matching, candidates)

    def _refused(self, matching: _Matching, nodes: Iterable[str]) -> frozenset[str]:
        """Nodes that can't be given to a demand any more; the others are."""
        names = tuple(nodes)
        traits = as_asked({name: self.facts.get(name, NO_FACTS).traits for name in names}, self.demands)
        barred = TraitCensus(traits).kinds(tuple(self.demands))
        unsuited = {name: kind for kind, members in barred.items() for name in members}
        return frozenset(name for name in names if not matching.add(unsuited.get(name, ())))


@dataclass
class _Matching:
    """Nodes of each kind that each demand has been given. A kind is named by the demands that it does not suit."""

    wanted: tuple[int, ...]
    given: list[dict[Kind, int]] = field(init=False)
    totals: list[int] = field(init=False)
    suited: dict[Kind, tuple[int, ...]] = field(default_factory=dict)
    closed: set[Kind] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.given = [{} for _ in self.wanted]
        self.totals = [0] * len(self.wanted)

    def add(self, kind: Kind) -> bool:
        """Give a node of a kind to a demand that it suits, if need be by giving others other nodes."""
        if kind in self.closed:
            return False
        starts = self._suited(kind)
        before: dict[int, tuple[int, Kind] | None] = dict.fromkeys(starts)
        queue = deque(starts)
        while queue:
            demand = queue.popleft()
            if self.totals[demand] < self.wanted[demand]:
                self._shift(before, demand, kind)
                return True
            for other_kind, count in self.given[demand].items():
                for other in self._suited(other_kind) if count else ():
                    if other not in before:
                        before[other] = (demand, other_kind)
                        queue.append(other)
        self.closed.add(kind)  # what is given does not become less
        return False

    def _suited(self, kind: Kind) -> tuple[int, ...]:
        if kind not in self.suited:
            self.suited[kind] = tuple(index for index in range(len(self.wanted)) if index not in kind)
        return self.suited[kind]

    def _shift(self, before: Mapping[int, tuple[int, Kind] | None], last: int, kind: Kind) -> None:
        demand = last
        self.totals[last] += 1
        while (step := before[demand]) is not None:
            giver, moved = step
            self.given[giver][moved] -= 1
            self.given[demand][moved] = self.given[demand].get(moved, 0) + 1
            demand = giver
        self.given[demand][kind] = self.given[demand].get(kind, 0) + 1
