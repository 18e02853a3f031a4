"""How many nodes of which group each job gets, so that jobs span few groups. Pure.

What is smallest is the number of groups that the jobs span at the outermost level, all jobs together; then at the next
level, and so on. Small problems are solved exactly by a search, if that takes no more than `_MAX_STEPS` steps. Of
larger ones a good solution is taken: one job after the other gets the groups that fit it best, in two orders of the
jobs; then each job chooses anew among what the others have left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from malletrain.model.topology import NodeTree

_MAX_MOVES = 6
_MAX_LEAVES = 16
_MAX_STEPS = 20_000
_ROUNDS = 3

Spans = tuple[int, ...]
"""Numbers of groups by level, from the outermost."""
Share = dict[int, int]
"""Number of nodes by innermost group."""


@dataclass(frozen=True)
class Move:
    """A job whose number of nodes changes.

    Attributes:
        held: Its present nodes by innermost group.
        count: How many nodes it is to have. If it has more, it keeps so many of them; otherwise it keeps all.
    """

    held: tuple[int, ...]
    count: int

    @property
    def shrinks(self) -> bool:
        """Whether it gives up nodes."""
        return self.count < sum(self.held)

    @property
    def wanted(self) -> int:
        """How many nodes it chooses: those that it keeps, or those that it takes."""
        return self.count if self.shrinks else self.count - sum(self.held)

    @property
    def touched(self) -> frozenset[int]:
        """Innermost groups that it is in, whatever it chooses."""
        return frozenset() if self.shrinks else frozenset(leaf for leaf, held in enumerate(self.held) if held)


@dataclass(frozen=True)
class Division:
    """What each job chooses.

    Attributes:
        shares: By job, in the order of the moves: the nodes that it keeps where it shrinks, otherwise those it takes.
        spans: Groups that all jobs together span.
        proven: Whether none is better.
    """

    shares: tuple[Share, ...]
    spans: Spans
    proven: bool


def divide(tree: NodeTree, moves: Sequence[Move], free: Sequence[int]) -> Division:
    """Choose the groups of some jobs.

    Args:
        tree: The nodes' groups.
        moves: The jobs; there are enough nodes for them.
        free: Nodes of each innermost group that may be taken, without those that these jobs give up.
    """
    kept = {
        place: fewest_groups(tree, move.held, frozenset(), move.wanted)
        for place, move in enumerate(moves)
        if move.shrinks
    }
    pool = list(free)
    for place, share in kept.items():
        for leaf, held in enumerate(moves[place].held):
            pool[leaf] += held - share.get(leaf, 0)
    growing = [place for place, move in enumerate(moves) if not move.shrinks]
    orders = [growing, sorted(growing, key=lambda place: -moves[place].wanted)]
    best: Division | None = None
    for order in orders[: 1 + (orders[0] != orders[1])]:
        shares = {**kept, **_in_turn(tree, moves, order, pool)}
        found = Division(
            tuple(shares[place] for place in range(len(moves))), _all_spans(tree, moves, shares), proven=False
        )
        if best is None or found.spans < best.spans:
            best = found
    assert best is not None
    bounds = [_least_spans(tree, move, moves, free) for move in moves]
    if best.spans == _total(bounds, tree.depth):
        return Division(best.shares, best.spans, proven=True)
    if len(moves) > _MAX_MOVES or len(tree.groups) > _MAX_LEAVES:
        return best
    return _Search(tree, moves, bounds, best).run(free)


def fewest_groups(tree: NodeTree, free: Sequence[int], touched: Collection[int], wanted: int) -> Share:
    """Nodes for one job, from groups that it is in already, and from few others.

    Where a group has enough for all that is missing, the one is taken that needs the fewest groups within it, and among
    these the one with the fewest nodes to spare. Otherwise the one with the most nodes is used up.

    Args:
        tree: The nodes' groups.
        free: Nodes of each innermost group that may be taken; together at least as many as are wanted.
        touched: Innermost groups that the job is in already.
        wanted: How many nodes.
    """
    return _Choice(tree, free, touched).take(wanted)


class _Choice:
    """The choice of one job."""

    def __init__(self, tree: NodeTree, free: Sequence[int], touched: Collection[int]) -> None:
        self._tree = tree
        self._free: list[list[int]] = [[0] * len(inner) for inner in tree.inner] + [list(free)]
        self._touched = [{tree.groups[leaf][level] for leaf in touched} for level in range(tree.depth)]
        for leaf, count in enumerate(free):
            if count:
                for level, group in enumerate(tree.groups[leaf][:-1]):
                    self._free[level][group] += count

    def take(self, wanted: int) -> Share:
        return self._within(range(len(self._free[0])), 0, wanted)[1] if wanted else {}

    def _within(self, groups: Sequence[int], level: int, wanted: int) -> tuple[Spans, Share]:
        """New groups by level from this one on, and the share, for nodes from some groups of a level."""
        free, touched = self._free[level], self._touched[level]
        near = [group for group in groups if free[group] and group in touched]
        far = [group for group in groups if free[group] and group not in touched]
        far.sort(key=lambda group: -free[group])
        spans, share = (0,) * (self._tree.depth - level), Share()
        for candidates in (near, far):
            while candidates and wanted:
                fitting = [group for group in candidates if free[group] >= wanted]
                if fitting:
                    added, chosen, _ = min(
                        ((*self._inside(group, level, wanted), (free[group], group)) for group in fitting),
                        key=lambda entry: (entry[0], entry[2]),
                    )
                    wanted = 0
                else:
                    largest = max(candidates, key=lambda group: (free[group], -group))
                    candidates.remove(largest)
                    added, chosen = self._inside(largest, level, free[largest])
                    wanted -= free[largest]
                share |= chosen
                spans = tuple(map(sum, zip(spans, (int(candidates is far), *added), strict=True)))
        return spans, share

    def _inside(self, group: int, level: int, wanted: int) -> tuple[Spans, Share]:
        if level == self._tree.depth - 1:
            return (), {group: wanted}
        return self._within(self._tree.inner[level][group], level + 1, wanted)


def _in_turn(tree: NodeTree, moves: Sequence[Move], order: Sequence[int], pool: Sequence[int]) -> dict[int, Share]:
    """Shares of growing jobs: in an order, then each anew as long as that helps."""
    left, shares = list(pool), dict[int, Share]()
    for place in order:
        shares[place] = fewest_groups(tree, left, moves[place].touched, moves[place].wanted)
        for leaf, count in shares[place].items():
            left[leaf] -= count
    for _ in range(_ROUNDS):
        better = False
        for place in order:
            move, share = moves[place], shares[place]
            if _spans(tree, move, share) == (1,) * tree.depth:
                continue
            for leaf, count in share.items():
                left[leaf] += count
            other = fewest_groups(tree, left, move.touched, move.wanted)
            if _spans(tree, move, other) < _spans(tree, move, share):
                shares[place], better = other, True
            for leaf, count in shares[place].items():
                left[leaf] -= count
        if not better:
            break
    return shares


def _spans(tree: NodeTree, move: Move, share: Share) -> Spans:
    leaves = move.touched.union(leaf for leaf, count in share.items() if count)
    return tuple(len({tree.groups[leaf][level] for leaf in leaves}) for level in range(tree.depth))


def _all_spans(tree: NodeTree, moves: Sequence[Move], shares: dict[int, Share]) -> Spans:
    return _total([_spans(tree, move, shares[place]) for place, move in enumerate(moves)], tree.depth)


def _total(spans: Sequence[Spans], depth: int) -> Spans:
    return tuple(map(sum, zip(*spans, strict=True))) if spans else (0,) * depth


def _least_spans(tree: NodeTree, move: Move, moves: Sequence[Move], free: Sequence[int]) -> Spans:
    """Fewest groups of each level that a job could span, if it alone chose."""
    if move.shrinks:
        room = list(move.held)
    else:
        room = list(free)
        for other in moves:
            if other.shrinks:
                room = [count + held for count, held in zip(room, other.held, strict=True)]
    found = []
    for level in range(tree.depth):
        sizes: dict[int, int] = {}
        for leaf, count in enumerate(room):
            group = tree.groups[leaf][level]
            sizes[group] = sizes.get(group, 0) + count
        touched = {tree.groups[leaf][level] for leaf in move.touched}
        missing, number = move.wanted - sum(sizes[group] for group in touched), len(touched)
        for size in sorted((size for group, size in sizes.items() if group not in touched), reverse=True):
            if missing <= 0:
                break
            missing, number = missing - size, number + 1
        found.append(number)
    return tuple(found)


@dataclass
class _Search:
    """A search through all divisions, which leaves out what can't be better than the best one so far."""

    tree: NodeTree
    moves: Sequence[Move]
    bounds: Sequence[Spans]
    best: Division
    steps: int = 0
    order: list[int] = field(default_factory=list)
    rest: list[Spans] = field(default_factory=list)

    def run(self, free: Sequence[int]) -> Division:
        # Those that shrink come first: what they give up is what the others choose from.
        self.order = sorted(range(len(self.moves)), key=lambda place: (not self.moves[place].shrinks, place))
        self.rest = [
            _total([self.bounds[place] for place in self.order[first:]], self.tree.depth)
            for first in range(len(self.order) + 1)
        ]
        self._from(0, tuple(free), (0,) * self.tree.depth, {})
        best = self.best
        return Division(best.shares, best.spans, proven=self.steps <= _MAX_STEPS)

    def _from(self, index: int, pool: tuple[int, ...], spans: Spans, shares: dict[int, Share]) -> None:
        if _plus(spans, self.rest[index]) >= self.best.spans or self.steps > _MAX_STEPS:
            return
        if index == len(self.order):
            chosen = tuple(shares[place] for place in range(len(self.moves)))
            self.best = Division(chosen, spans, proven=False)
            return
        place = self.order[index]
        move = self.moves[place]
        room = move.held if move.shrinks else pool
        for share in self._shares(room, move.wanted):
            own = _plus(spans, _spans(self.tree, move, share))
            if _plus(own, self.rest[index + 1]) >= self.best.spans:
                continue
            left = [count + held for count, held in zip(pool, move.held, strict=True)] if move.shrinks else list(pool)
            for leaf, count in share.items():
                left[leaf] -= count
            self._from(index + 1, tuple(left), own, {**shares, place: share})

    def _shares(self, room: Sequence[int], wanted: int, first: int = 0) -> Iterator[Share]:
        """All ways to take so many nodes from the innermost groups from one on."""
        self.steps += 1
        if self.steps > _MAX_STEPS:
            return
        if not wanted:
            yield {}
            return
        if sum(room[first:]) < wanted:
            return
        for count in range(min(room[first], wanted), -1, -1):
            for others in self._shares(room, wanted - count, first + 1):
                yield {first: count, **others} if count else others


def _plus(one: Spans, other: Spans) -> Spans:
    return tuple(a + b for a, b in zip(one, other, strict=True))
