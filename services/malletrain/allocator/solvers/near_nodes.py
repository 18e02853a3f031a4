"""How many nodes of which group each job gets, so that jobs span few groups. Pure.

What is smallest is the number of groups that the jobs span at the outermost level, all jobs together; then at the next
level, and so on. Small problems are solved exactly by a search, if that takes no more than `_MAX_STEPS` steps. Of
larger ones a good solution is taken: one job after the other gets the groups that fit it best, in two orders of the
jobs; then each job chooses anew among what the others have left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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

    @cached_property
    def shrinks(self) -> bool:
        """Whether it gives up nodes."""
        return self.count < sum(self.held)

    @cached_property
    def wanted(self) -> int:
        """How many nodes it chooses: those that it keeps, or those that it takes."""
        return self.count if self.shrinks else self.count - sum(self.held)

    @cached_property
    def touched(self) -> frozenset[int]:
        """Innermost groups that it is in, whatever it chooses."""
        return frozenset() if self.shrinks else frozenset(leaf for leaf, held in enumerate(self.held) if held)


@dataclass(frozen=True)
class GroupDivision:
    """The groups from which each job takes nodes, or in which it keeps them.

    Attributes:
        shares: By job, in the order of the moves: the nodes that it keeps where it shrinks, otherwise those it takes.
        spans: Groups that all jobs together span.
        proven: Whether none is better.
    """

    shares: tuple[Share, ...]
    spans: Spans
    proven: bool


def divide(tree: NodeTree, moves: Sequence[Move], free: Sequence[int]) -> GroupDivision:
    """Choose the groups of some jobs.

    Args:
        tree: The nodes' groups.
        moves: The jobs; there are enough nodes for them.
        free: Nodes of each innermost group that may be taken, without those that these jobs give up.
    """
    shrunk = {
        place: fewest_groups(tree, move.held, frozenset(), move.wanted)
        for place, move in enumerate(moves)
        if move.shrinks
    }
    pool, widest = list(free), list(free)
    for place, share in shrunk.items():
        for leaf, held in enumerate(moves[place].held):
            pool[leaf] += held - share.get(leaf, 0)
            widest[leaf] += held
    room = _Bounds(tree, widest)
    bounds = [(_Bounds(tree, move.held) if move.shrinks else room).least_spans(move) for move in moves]
    least = _total(bounds, tree.depth)
    growing = [place for place, move in enumerate(moves) if not move.shrinks]
    orders = [sorted(growing, key=lambda place: -moves[place].wanted), growing]
    best: GroupDivision | None = None
    for order in orders:
        shares = shrunk | _in_turn(tree, moves, order, pool, bounds)
        total = _total([_spans(tree, move, shares[place]) for place, move in enumerate(moves)], tree.depth)
        if best is None or total < best.spans:
            best = GroupDivision(tuple(shares[place] for place in range(len(moves))), total, proven=total == least)
        if best.proven or orders[0] == orders[1]:
            break
    assert best is not None
    if best.proven or len(moves) > _MAX_MOVES or len(tree.groups) > _MAX_LEAVES:
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
    return _Room(tree, free).choice(_groups_of(tree, touched), wanted)


def _groups_of(tree: NodeTree, leaves: Collection[int]) -> list[set[int]]:
    """The groups that some innermost groups are in, by level."""
    return [{tree.groups[leaf][level] for leaf in leaves} for level in range(tree.depth)]


class _Room:
    """How many nodes of each group of each level may be taken."""

    def __init__(self, tree: NodeTree, free: Sequence[int]) -> None:
        self._tree = tree
        self._free = _by_level(tree, free)

    def add(self, share: Share, sign: int = 1) -> None:
        """Nodes are given back, or taken with the sign -1."""
        for leaf, count in share.items():
            for level, group in enumerate(self._tree.groups[leaf]):
                self._free[level][group] += sign * count

    def choice(self, touched: Sequence[Collection[int]], wanted: int) -> Share:
        """See `fewest_groups`.

        Args:
            touched: Groups that the job is in already, by level.
            wanted: How many nodes.
        """
        return self._within(range(len(self._free[0])), 0, touched, wanted)[1] if wanted else {}

    def _within(
        self, groups: Iterable[int], level: int, touched: Sequence[Collection[int]], wanted: int
    ) -> tuple[Spans, Share]:
        """New groups by level from this one on, and the share, for nodes from some groups of a level."""
        free, deeper = self._free[level], self._tree.depth - 1 - level
        by_size = sorted((group for group in groups if free[group]), key=free.__getitem__)
        near = [group for group in by_size if group in touched[level]]
        far = [group for group in by_size if group not in touched[level]] if near else by_size
        spans, share = (0,) * (deeper + 1), Share()
        for candidates in (near, far):
            least = (int(candidates is far),) * deeper
            while candidates and wanted:
                if free[candidates[-1]] < wanted:
                    group = candidates.pop()
                    added, chosen = self._inside(group, level, touched, free[group])
                    wanted -= free[group]
                else:
                    added, chosen = self._best_fit(candidates, level, touched, wanted, least)
                    wanted = 0
                share |= chosen
                spans = _plus(spans, (int(candidates is far), *added))
        return spans, share

    def _best_fit(
        self, by_size: Sequence[int], level: int, touched: Sequence[Collection[int]], wanted: int, least: Spans
    ) -> tuple[Spans, Share]:
        """From the group that has enough and needs the fewest groups within it; `least`: fewer are not possible."""
        best: tuple[Spans, Share] | None = None
        for group in by_size:
            if self._free[level][group] >= wanted:
                fit = self._inside(group, level, touched, wanted)
                if best is None or fit[0] < best[0]:
                    best = fit
                if fit[0] <= least:
                    break
        assert best is not None
        return best

    def _inside(self, group: int, level: int, touched: Sequence[Collection[int]], wanted: int) -> tuple[Spans, Share]:
        if level == self._tree.depth - 1:
            return (), {group: wanted}
        return self._within(self._tree.inner[level][group], level + 1, touched, wanted)


def _in_turn(
    tree: NodeTree, moves: Sequence[Move], order: Sequence[int], pool: Sequence[int], bounds: Sequence[Spans]
) -> dict[int, Share]:
    """Shares of growing jobs: in an order, then each anew as long as that helps."""
    room, shares = _Room(tree, pool), dict[int, Share]()
    touched = {place: _groups_of(tree, moves[place].touched) for place in order}
    for place in order:
        shares[place] = room.choice(touched[place], moves[place].wanted)
        room.add(shares[place], -1)
    spans = {place: _spans(tree, moves[place], shares[place]) for place in order}
    open_ends = [place for place in order if spans[place] != bounds[place]]
    for _ in range(_ROUNDS):
        better = False
        for place in open_ends:
            room.add(shares[place])
            other = room.choice(touched[place], moves[place].wanted)
            if (spanned := _spans(tree, moves[place], other)) < spans[place]:
                shares[place], spans[place], better = other, spanned, True
            room.add(shares[place], -1)
        if not better:
            break
    return shares


def _by_level(tree: NodeTree, free: Sequence[int]) -> list[list[int]]:
    """How many nodes each group of each level has."""
    counts = [[0] * len(inner) for inner in tree.inner] + [list(free)]
    for leaf, count in enumerate(free):
        if count:
            for level, group in enumerate(tree.groups[leaf][:-1]):
                counts[level][group] += count
    return counts


def _spans(tree: NodeTree, move: Move, share: Share) -> Spans:
    leaves = move.touched.union(leaf for leaf, count in share.items() if count)
    return tuple(len(groups) for groups in _groups_of(tree, leaves))


def _total(spans: Sequence[Spans], depth: int) -> Spans:
    return tuple(map(sum, zip(*spans, strict=True))) if spans else (0,) * depth


class _Bounds:
    """Fewest groups of each level that jobs could span, if each alone chose from some nodes."""

    def __init__(self, tree: NodeTree, room: Sequence[int]) -> None:
        self._tree = tree
        self._sizes = _by_level(tree, room)
        self._largest = [sorted(range(len(sizes)), key=lambda group: -sizes[group]) for sizes in self._sizes]

    def least_spans(self, move: Move) -> Spans:
        """Fewest groups of each level for one job."""
        spans = []
        for sizes, largest, touched in zip(
            self._sizes, self._largest, _groups_of(self._tree, move.touched), strict=True
        ):
            missing, number = move.wanted - sum(sizes[group] for group in touched), len(touched)
            for group in largest:
                if missing <= 0:
                    break
                if group not in touched:
                    missing, number = missing - sizes[group], number + 1
            spans.append(number)
        return tuple(spans)


@dataclass
class _Search:
    """A search through all divisions, which leaves out what can't be better than the best one so far."""

    tree: NodeTree
    moves: Sequence[Move]
    bounds: Sequence[Spans]
    best: GroupDivision
    steps: int = 0
    order: list[int] = field(default_factory=list)
    rest: list[Spans] = field(default_factory=list)

    def run(self, free: Sequence[int]) -> GroupDivision:
        # Those that shrink come first: what they give up is what the others choose from.
        self.order = sorted(range(len(self.moves)), key=lambda place: (not self.moves[place].shrinks, place))
        self.rest = [
            _total([self.bounds[place] for place in self.order[first:]], self.tree.depth)
            for first in range(len(self.order) + 1)
        ]
        self._from(0, tuple(free), (0,) * self.tree.depth, {})
        best = self.best
        return GroupDivision(best.shares, best.spans, proven=self.steps <= _MAX_STEPS)

    def _from(self, index: int, pool: tuple[int, ...], spans: Spans, shares: dict[int, Share]) -> None:
        if _plus(spans, self.rest[index]) >= self.best.spans or self.steps > _MAX_STEPS:
            return
        if index == len(self.order):
            chosen = tuple(shares[place] for place in range(len(self.moves)))
            self.best = GroupDivision(chosen, spans, proven=False)
            return
        place = self.order[index]
        move = self.moves[place]
        room = move.held if move.shrinks else pool
        for share in self._shares(room, move.wanted):
            own = _plus(spans, _spans(self.tree, move, share))
            if _plus(own, self.rest[index + 1]) >= self.best.spans:
                continue
            remaining = (
                [count + held for count, held in zip(pool, move.held, strict=True)] if move.shrinks else list(pool)
            )
            for leaf, count in share.items():
                remaining[leaf] -= count
            self._from(index + 1, tuple(remaining), own, {**shares, place: share})

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
