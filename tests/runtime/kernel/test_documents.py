"""Documents come back as they were, and say which of their fields is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, NamedTuple

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.kernel.documents import DERIVED, copy_state, from_document, to_document


class Colour(StrEnum):
    """By value."""

    RED = "red"
    BLUE = "blue"


class Phase(Enum):
    """By name."""

    WAITING = "for something"


class Point(NamedTuple):
    """A list."""

    x: int
    name: str = ""


ORIGIN = Point(0)


@dataclass(frozen=True)
class Leaf:
    """A value."""

    count: int
    share: float = 0.5
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Tree:
    """Everything that there is."""

    leaf: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    names: frozenset[str] = frozenset()
    pair: tuple[int, str] = (0, "")
    by_name: Mapping[str, Leaf] = field(default_factory=dict)
    by_pair: Mapping[tuple[str, int], float] = field(default_factory=dict)
    point: Point = ORIGIN
    phase: Phase = Phase.WAITING
    done: bool = False


TREE = Tree(
    Leaf(1, 2, Colour.BLUE),
    (Leaf(3), Leaf(4)),
    frozenset("ab"),
    (5, "c"),
    {"d": Leaf(6)},
    {("e", 7): 8.0, ("f", 9): float("inf")},
    Point(10, "g"),
    Phase.WAITING,
    True,
)


@dataclass
class Names:
    """Changes in place."""

    names: set[str] = field(default_factory=set)


@dataclass
class Counter:
    """Changes in place."""

    step: int
    counts: dict[str, int] = field(default_factory=dict)
    inner: Names = field(default_factory=Names)
    total: int = field(init=False, default=0)
    newest: str = field(init=False, default="", metadata=DERIVED)

    def count(self, name: str) -> None:
        """Count once more."""
        self.counts[name] = self.counts.get(name, 0) + self.step
        self.total += self.step
        self.newest = name


def read(kind: type[Any], value: object, **options: bool) -> Any:
    return from_document(kind, json.loads(json.dumps(value)), **options)


@pytest.mark.parametrize("value", [TREE, Tree()])
def test_values_come_back_as_they_were(value: Tree) -> None:
    assert read(Tree, to_document(value)) == value


def test_a_machine_that_changes_in_place_comes_back_without_what_follows_from_the_rest() -> None:
    counter = Counter(2, inner=Names({"b"}))
    counter.count("a")
    found = read(Counter, to_document(counter))
    assert (found.total, found.counts, found.inner, found.newest) == (2, {"a": 2}, Names({"b"}), "")


def test_copies_share_nothing_that_changes_and_all_that_does_not() -> None:
    counter = Counter(1)
    counter.count("a")
    twin = copy_state(counter)
    counter.count("a")
    counter.inner.names.add("b")
    assert (twin.counts, twin.total, twin.newest, twin.inner) == ({"a": 1}, 1, "", Names())
    assert copy_state(TREE) is TREE


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"leaf": {"count": "x"}}, "leaf.count: expected a whole number, got 'x'"),
        ({"leaf": {}}, "leaf.count: expected a value, and there is none"),
        ({"leaf": {"count": 1, "size": 2}}, "leaf.size: expected nothing: Leaf has no such field"),
        ({"leaf": 7}, "leaf: expected an object, got 7"),
        ({"leaves": [{"count": 1}, {"count": None}]}, "leaves[1].count: expected a whole number, got None"),
        ({"leaves": [{"count": 1, "colour": "green"}]}, "leaves[0].colour: expected one of red, blue, got 'green'"),
        ({"phase": "for something"}, "phase: expected one of WAITING, got 'for something'"),
        ({"pair": [1]}, "pair: expected a list of 2, got [1]"),
        ({"pair": [1, 2]}, "pair[1]: expected a text, got 2"),
        ({"names": "ab"}, "names: expected a list, got 'ab'"),
        ({"by_name": {"d": {"count": []}}}, "by_name[d].count: expected a whole number, got []"),
        ({"by_pair": [[["e", 7]]]}, "by_pair: expected a list of 2, got [['e', 7]]"),
        ({"point": [1, "a", 2]}, "point: expected a list of 1 to 2, got [1, 'a', 2]"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], error: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read(Tree, to_document(TREE) | changes)
    assert str(caught.value) == error


def test_fields_of_later_versions_can_be_left_out() -> None:
    later = to_document(TREE) | {"new": 1}
    later["leaves"][0]["new"] = 2
    assert read(Tree, later, ignore_unknown=True) == TREE


def test_what_no_document_has_is_refused() -> None:
    with pytest.raises(TypeError, match="documents have no object"):
        to_document(Leaf(object()))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [int, float])
def test_true_is_no_number(kind: type) -> None:
    with pytest.raises(InvalidInputError, match="number"):
        from_document(kind, True)
    assert from_document(bool, True) is True
