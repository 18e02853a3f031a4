"""What `malletrain top` draws: from a history and a view to renderables of rich, without I/O."""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from malletrain.allocator.utilization.definition import MINUTE_S, last_hour, utilization_of
from malletrain.cli.jobs.outlook import eta_in_words, rate_in_words, samples_in_words
from malletrain.model.node_use import NodeUse
from malletrain.observer.eta import Outlook, outlook_of
from malletrain.observer.facts import PlanFact
from malletrain.observer.history import LOST, USES, History
from malletrain.observer.job_facts import JobFact
from malletrain.observer.troubles import NAMES

_MAX_NAMED = 6


@dataclass(frozen=True)
class Event:
    """A line of the list of events.

    Attributes:
        time: When it was seen, in seconds since the epoch.
        text: What.
    """

    time: float
    text: str


def events_between(before: History, after: History, time: float) -> list[Event]:
    """What has changed. What is heard first of a service is its present state and no event.

    Args:
        before: What was known before.
        after: What is known now.
        time: Seconds since the epoch.
    """
    texts: list[str] = []
    if before.nodes is not None and after.nodes is not None:
        texts += _list_names(after.nodes.keys() - before.nodes.keys(), "joined")
        texts += _list_names(before.nodes.keys() - after.nodes.keys(), "left")
    if before.heard_jobs and before.jobs is not after.jobs:
        texts += [text for job in after.jobs.values() for text in _of_job(before.jobs.get(job.id), job)]
    known = {plan.generation for plan in before.plans}
    for plan in after.plans if before.plans else ():
        if plan.generation not in known:
            outcome = "" if plan.applied else f" was refused ({plan.refusal})"
            texts.append(f"plan {plan.generation}{outcome}: {plan.trigger}")
    return [Event(time, text) for text in texts]


def service_events(before: Mapping[str, bool | None], after: Mapping[str, bool | None], time: float) -> list[Event]:
    """Services that have stopped or begun to answer.

    Args:
        before: Whether each answered, by name; None: not known.
        after: Whether each answers now.
        time: Seconds since the epoch.
    """
    return [
        Event(time, f"{NAMES[name]} {'answers again' if answers else 'does not answer'}")
        for name, answers in after.items()
        if answers is not None and answers != before.get(name) and (before.get(name) is not None or not answers)
    ]


def _list_names(names: Iterable[str], what: str) -> list[str]:
    known = sorted(names)
    if not known:
        return []
    more = f" and {len(known) - _MAX_NAMED} more" if len(known) > _MAX_NAMED else ""
    return [f"{', '.join(known[:_MAX_NAMED])}{more} {what}"]


def _of_job(before: JobFact | None, now: JobFact) -> list[str]:
    if before is now:
        return []
    why = f": {now.reason}" if now.reason else ""
    if before is None:
        return [f"{now.id} {now.name} is {now.state}{why}"]
    if before.state != now.state:
        return [f"{now.id} {before.state} → {now.state}{why}"]
    if before.confirmed != now.confirmed and now.confirmed:
        return [f"{now.id} trains on {len(now.confirmed)}, {len(before.confirmed)} before{why}"]
    return []


class SortBy(Enum):
    """What jobs are sorted by: the key that is pressed, and what is shown for it."""

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
    """A job."""

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
    """Sort key of a row: largest numbers first, unknown ones last; of times left the shortest first."""
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


def view_after(view: View, key: str, listed: Sequence[str]) -> View:
    """The view after a key.

    Args:
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


_STATES = {"RUNNING": "green", "RESCALING": "yellow", "STARTING": "yellow", "FAILED": "red", "STOPPING": "yellow"}
_MAX_EVENTS = 8
_FRAME_LINES = 5
"""Lines beside jobs, events and troubles: two of figures, headings of jobs and of events, keys."""
_MIN_HEIGHT_OF_U = 12
_KEYS = "↑↓ choose  ⏎ open  q quit   sort: " + "  ".join(f"{sort.value[0]} {sort.value[1]}" for sort in SortBy)
_KEYS_OF_JOB = "↑↓ other job  Esc back"
_MAX_NODES = 200


def screen(
    history: History, view: View, troubles: Sequence[str], events: Sequence[Event], height: int
) -> RenderableType:
    """All lines of the terminal.

    Args:
        history: What is known.
        view: What the user has chosen.
        troubles: What keeps us from knowing more.
        events: Oldest first.
        height: Lines of the terminal.
    """
    used = [_line(_utilization(history))] if height >= _MIN_HEIGHT_OF_U else []
    lines: list[RenderableType] = [_figures(history), *(Text(plain(line), "bold red") for line in troubles), *used]
    free_lines = height - _FRAME_LINES - len(used) - len(troubles)
    if view.opened and view.selected in history.jobs:
        lines += [*_job(history, row_of(history, history.jobs[view.selected]), events), Text(_KEYS_OF_JOB, "dim")]
        return Group(*lines[: max(1, height)])
    newest = events[-min(_MAX_EVENTS, max(0, free_lines // 3)) :] if free_lines >= 6 else []
    lines.append(_jobs(history, view, max(1, free_lines - len(newest))))
    if newest:
        lines += [Text("events", "bold"), *(_event(event) for event in newest)]
    return Group(*lines, _line(_KEYS, "dim"))


def plain(text: str) -> str:
    """A text of others without what would steer the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _line(text: str, style: str = "") -> Text:
    return Text(plain(text), style, no_wrap=True, overflow="ellipsis")


def _figures(history: History) -> Group:
    counts = dict(zip(USES, history.counts, strict=True))
    idle = "not known yet" if history.nodes is None else str(len(history.nodes))
    lost = ", ".join(f"{counts[use]} {use.value}" for use in LOST if counts[use])
    unfinished = [job for job in history.jobs.values() if not job.final]
    rate = sum(row.outlook.rate or 0.0 for row in (row_of(history, job) for job in unfinished))
    plan = _plan(history.plans[-1]) if history.plans else "no plan yet"
    nodes = f"idle nodes: {idle}, {counts[NodeUse.TRAINING]} training" + (f", {lost}" if lost else "")
    training = sum(job.state in ("RUNNING", "RESCALING") for job in unfinished)
    jobs = f"jobs: {training} train, {len(unfinished) - training} wait or start; {rate:,.1f} samples/s"
    now = clock.strftime("%H:%M:%S", clock.localtime(history.now)) if history.now else ""
    return Group(_line(f"{now}  {nodes}", "bold"), _line(f"{jobs}; {plan}"))


def _utilization(history: History) -> str:
    """U of the last hour, as the dashboard has it."""
    utilization = utilization_of(last_hour(history.utilization, history.now))
    if utilization is None:
        return "U: not known yet"
    minutes = f"{utilization.seconds / MINUTE_S:.0f} min"
    if utilization.efficiency is None or utilization.bound is None:
        return f"U: no job could train in the last {minutes}"
    return (
        f"U {utilization.efficiency:.1%} of what the jobs could have trained in the last {minutes} on as many nodes "
        f"that are always there; {utilization.bound:.1%} if rescaling were free"
    )


def _plan(plan: PlanFact) -> str:
    return f"plan {plan.generation}" if plan.applied else f"plan {plan.generation} refused"


_MIN_WIDTHS = {SortBy.JOB: 7, SortBy.STATE: 9, SortBy.RATE: 9}
"""Columns that a narrow terminal does not cut: one needs them whole to give another command."""


def _jobs(history: History, view: View, max_rows: int) -> Table:
    rows = rows_of(history, view.sort, reverse=view.reverse)
    place = next((at for at, row in enumerate(rows) if row.fact.id == view.selected), 0)
    first = max(0, min(place - max_rows // 2, len(rows) - max_rows))
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 2, 0, 0))
    for sort in (SortBy.JOB, SortBy.NAME, SortBy.OWNER, SortBy.STATE, SortBy.NODES, SortBy.PROGRESS, SortBy.RATE):
        right = sort in (SortBy.NODES, SortBy.PROGRESS, SortBy.RATE)
        table.add_column(
            _heading(sort, view),
            no_wrap=True,
            justify="right" if right else "left",
            overflow="ellipsis",
            min_width=_MIN_WIDTHS.get(sort),
        )
    table.add_column(_heading(SortBy.LEFT, view), no_wrap=True, overflow="ellipsis")
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for at, row in enumerate(rows[first : first + max_rows], first):
        table.add_row(*_cells(row), style="reverse" if at == place else "")
    return table


def _heading(sort: SortBy, view: View) -> str:
    return sort.value[1] + (("▴" if view.reverse else "▾") if sort is view.sort else "")


def _cells(row: TopRow) -> tuple[Text, ...]:
    fact = row.fact
    nodes = str(len(fact.confirmed))
    if fact.commanded != fact.confirmed:
        nodes += f"→{len(fact.commanded)}"
    share = f"{row.outlook.samples:,}" if row.outlook.share is None else f"{int(100 * row.outlook.share)}%"
    return (
        Text(fact.id),
        Text(plain(fact.name)[:32]),
        Text(plain(fact.owner)[:16]),
        Text(fact.state, _STATES.get(fact.state, "")),
        Text(nodes),
        Text(share),
        Text(rate_in_words(row.outlook)),
        Text("" if fact.final else eta_in_words(row.outlook)),
        Text(plain(fact.reason)),
    )


def _event(event: Event) -> Text:
    return _line(f"{clock.strftime('%H:%M:%S', clock.localtime(event.time))}  {event.text}")


def _job(history: History, row: TopRow, events: Iterable[Event]) -> list[RenderableType]:
    fact, curve = row.fact, history.curves.get(row.fact.id)
    progress = history.progress.get(fact.id)
    facts = [
        ("job", f"{fact.id}  {fact.name}"),
        ("owner", fact.owner),
        ("state", f"{fact.state}: {fact.reason}" if fact.reason else fact.state),
        ("scale", f"{fact.min_nodes} to {fact.max_nodes}; the plan wants {fact.wanted}"),
        ("trains on", " ".join(sorted(fact.confirmed)[:_MAX_NODES]) or "nothing"),
        ("samples", samples_in_words(row.outlook, fact.target_samples)),
        ("samples/s", rate_in_words(row.outlook)),
        ("time left", "" if fact.final else eta_in_words(row.outlook)),
        ("changes", f"{fact.rescales} rescales, {fact.preemptions} preemptions, {fact.restarts} restarts"),
    ]
    if progress is not None:
        lost = f"{progress.samples_lost:,} samples by rollbacks"
        facts.append(("lost", lost if fact.samples_known else "not known: it reports no position"))
    if curve is not None and curve.points:
        points = ", ".join(f"{point.nodes}: {point.rate:,.1f} ({point.source})" for point in curve.points[:12])
        facts.append(("curve", points))
    for stall in history.stalls.get(fact.id, ())[-3:]:
        facts.append(("stall", f"{stall.seconds:.1f} s from {stall.from_nodes} to {stall.to_nodes}"))
    lines = [Text.assemble((f"{label:>10}  ", "bold"), plain(value)) for label, value in facts]
    own = [event for event in events if event.text.startswith(f"{fact.id} ")][-5:]
    return [*lines, *([Text("events", "bold")] if own else []), *(_event(event) for event in own)]
