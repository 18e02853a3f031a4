"""Where nodes are: groups of nodes within groups, such as racks within rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_LEVELS = 8
MAX_GROUP_NAME = 128

GroupPath = tuple[str, ...]
"""The groups that a node is in, from the outermost level to the innermost; empty: not known."""


class TopologyPreference(StrEnum):
    """Whether it matters to a job how near its nodes are to each other."""

    NONE = "none"
    PREFER = "prefer"
    REQUIRE = "require"
    REQUIRE_REPLICA = "require-replica"

    @property
    def requires(self) -> bool:
        """Whether plans must keep to it: to one group for the whole job, or for each of its replicas."""
        return self in (TopologyPreference.REQUIRE, TopologyPreference.REQUIRE_REPLICA)


def group_of(path: GroupPath, level: int) -> GroupPath | None:
    """The group of a level that a node is in, by the names from the outermost level; None where it is not known.

    Args:
        path: The node's path.
        level: The level, from 1, the outermost; 0: the innermost that is known of the node.
    """
    if not level:
        return path or None
    return path[:level] if len(path) >= level else None


def level_in_words(level: int) -> str:
    """A level as `group_of` takes it, for people."""
    return f"group of level {level}" if level else "innermost group"


def requirement_in_words(preference: TopologyPreference, level: int, nodes_per_replica: int) -> str:
    """What must be in one group, for people.

    Args:
        preference: One that requires groups.
        level: The level, as `group_of` takes it.
        nodes_per_replica: Nodes of each replica of the job.
    """
    each = f"the {nodes_per_replica} nodes of each replica"
    what = each if preference is TopologyPreference.REQUIRE_REPLICA else "all its nodes"
    return f"{what} must be in one {level_in_words(level)}"


def path_problem(path: Sequence[str]) -> str:
    """What is expected of a path that can't be used; empty: it is usable."""
    if len(path) > MAX_LEVELS:
        return f"at most {MAX_LEVELS} levels"
    for name in path:
        if not name.strip() or name != name.strip() or len(name) > MAX_GROUP_NAME or not name.isprintable():
            return f"names of groups, of at most {MAX_GROUP_NAME} printable characters, without blanks around them"
    return ""


def shared_levels(paths: Iterable[GroupPath]) -> int | None:
    """The number of levels, from the outermost, of which all nodes are in one group.

    Args:
        paths: The path of each node.

    Returns:
        0: they are in different groups of level 1, or there are none. None: the path of a node is not known.
    """
    known = set(paths)
    if not all(known):
        return None
    first, last = min(known, default=()), max(known, default=())
    # Of all paths in order, no two differ sooner than the first and the last.
    for level, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return level
    return min(len(first), len(last))


@dataclass(frozen=True)
class NodeTree:
    """Nodes by the groups that they are in.

    Nodes of which a level is not known are one group together, within the group of the level above. Groups of one name
    in different groups are different ones.

    Attributes:
        depth: Number of levels, as many as the longest path has; at least 1.
        leaf_of: Innermost group of each node, as an index.
        groups: The groups of each innermost group, by level from the outermost; each level counts from 0.
        inner: The groups of the next level that each group has, by level; the last level has none.
    """

    depth: int
    leaf_of: Mapping[str, int]
    groups: tuple[tuple[int, ...], ...]
    inner: tuple[tuple[tuple[int, ...], ...], ...]

    @classmethod
    def of(cls, nodes: Iterable[str], paths: Mapping[str, GroupPath]) -> NodeTree:
        """The tree of some nodes; `paths` may lack some of them, and have others."""
        names = list(nodes)
        depth = max((len(paths.get(name, ())) for name in names), default=0) or 1
        numbers: list[dict[GroupPath, int]] = [{} for _ in range(depth)]
        leaf_of: dict[str, int] = {}
        for name in names:
            path = paths.get(name, ())
            whole = (*path, *("" for _ in range(depth - len(path))))
            for level, known in enumerate(numbers):
                known.setdefault(whole[: level + 1], len(known))
            leaf_of[name] = numbers[-1][whole]
        groups = tuple(tuple(numbers[level][whole[: level + 1]] for level in range(depth)) for whole in numbers[-1])
        inner: list[tuple[tuple[int, ...], ...]] = []
        for level in range(depth - 1):
            inner_of: list[list[int]] = [[] for _ in numbers[level]]
            for path, number in numbers[level + 1].items():
                inner_of[numbers[level][path[:-1]]].append(number)
            inner.append(tuple(map(tuple, inner_of)))
        return cls(depth, leaf_of, groups, tuple(inner))

    def spans(self, nodes: Iterable[str]) -> tuple[int, ...]:
        """How many groups of each level some nodes are in, from the outermost level."""
        leaves = {self.leaf_of[name] for name in nodes}
        return tuple(len({self.groups[leaf][level] for leaf in leaves}) for level in range(self.depth))

    def per_leaf(self, nodes: Iterable[str]) -> list[int]:
        """How many of some nodes are in each innermost group."""
        counts = [0] * len(self.groups)
        for name in nodes:
            counts[self.leaf_of[name]] += 1
        return counts


def spans_in_words(spans: Sequence[int]) -> str:
    """Numbers of groups by level, for people; level 1 is the outermost."""
    return ", ".join(f"{count} of level {level}" for level, count in enumerate(spans, start=1))
