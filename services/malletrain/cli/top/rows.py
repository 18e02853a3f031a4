"""The jobs as `malletrain top` lists them, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from malletrain.observer.history import History
from malletrain.observer.job_facts import JobFact
from malletrain.observer.outlook import Outlook, outlook_of


class SortBy(Enum):
    """By what jobs are sorted: the key that is pressed, and what is shown for it."""

    JOB = ("j", "job")
    NAME = ("n", "name")
    OWNER = ("o", "owner")
    STATE = ("s", "state")
    NODES = ("c", "nodes")
    RATE = ("r", "samples/s")
    PROGRESS = ("p", "progress")
    LEFT = ("t", "time left")


@dataclass(frozen=True)
class TopRow:
    """A job.

    Attributes:
        fact: The job.
        outlook: How far it is, how fast, and how much longer it takes.
    """

    fact: JobFact
    outlook: Outlook


def row_of(history: History, fact: JobFact) -> TopRow:
    """What is known of a job."""
    stays = None if history.nodes is None else [node.expected_stay_s for node in history.nodes.values()]
    return TopRow(fact, outlook_of(fact, history.progress.get(fact.id), history.curves.get(fact.id), stays))


def rows_of(history: History, sort: SortBy, *, reverse: bool) -> list[TopRow]:
    """All jobs, in this order; those that have ended come last."""
    rows = [row_of(history, fact) for fact in history.jobs.values()]
    rows.sort(key=lambda row: row.fact.id)
    rows.sort(key=lambda row: _key(row, sort), reverse=reverse)
    return sorted(rows, key=lambda row: row.fact.final)


def _key(row: TopRow, sort: SortBy) -> tuple[bool, float | str]:
    """By numbers, the largest first; what is not known comes last. Time left: the shortest first."""
    fact, outlook = row.fact, row.outlook
    texts = {SortBy.JOB: fact.id, SortBy.NAME: fact.name, SortBy.OWNER: fact.owner, SortBy.STATE: fact.state}
    if sort in texts:
        return (False, texts[sort])
    numbers = {
        SortBy.NODES: -float(len(fact.confirmed)),
        SortBy.RATE: None if outlook.rate is None else -outlook.rate,
        SortBy.PROGRESS: None if outlook.share is None else -outlook.share,
        SortBy.LEFT: None if outlook.left is None else outlook.left.expected,
    }
    number = numbers[sort]
    return (number is None, 0.0 if number is None else number)


@dataclass(frozen=True)
class View:
    """What the user has chosen.

    Attributes:
        sort: By what jobs are sorted.
        reverse: Whether the other way round.
        selected: Identifier of the job that the keys are at; empty: the first one.
        opened: Whether that job is shown alone.
        over: Whether the user has had enough.
    """

    sort: SortBy = SortBy.JOB
    reverse: bool = False
    selected: str = ""
    opened: bool = False
    over: bool = False


_MOVES = {"up": -1, "down": 1, "page up": -10, "page down": 10, "home": -(10**9), "end": 10**9}


def pressed(view: View, key: str, listed: Sequence[str]) -> View:
    """The view after a key.

    Args:
        view: The view.
        key: A character, or the name of a key, such as "up".
        listed: Identifiers of the listed jobs, in order.
    """
    at = listed.index(view.selected) if view.selected in listed else 0
    selected = listed[at] if listed else ""
    if key == "q" and not view.opened:
        return View(view.sort, view.reverse, selected, over=True)
    if key in ("escape", "backspace", "q"):
        return View(view.sort, view.reverse, selected)
    if key == "enter":
        return View(view.sort, view.reverse, selected, bool(selected))
    if key in _MOVES and listed:
        moved = listed[min(len(listed) - 1, max(0, at + _MOVES[key]))]
        return View(view.sort, view.reverse, moved, view.opened)
    for sort in SortBy:
        if key == sort.value[0]:
            return View(sort, sort is view.sort and not view.reverse, selected, view.opened)
    return view
