"""What the page Now says of idle nodes: what they were used for, what was lost, how soon they were given back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from malletrain.allocator.utilization.definition import last_hour, utilization_of
from malletrain.dashboard.figures.colours import Colours
from malletrain.dashboard.pages.markup import Cell, Row, duration, number, number_cells, percent
from malletrain.model.node_use import NodeUse
from malletrain.observer.facts import ReleaseFact
from malletrain.observer.history import LOST, USES, History, Minute

USE_WORDS = {
    NodeUse.TRAINING: "trained on",
    NodeUse.BOOTING: "lost: workers boot",
    NodeUse.STALLED: "lost: stalled by rescales",
    NodeUse.STOPPING: "lost: a job stops",
    NodeUse.UNASSIGNED: "lost: no job has it",
}


@dataclass(frozen=True)
class Reclaims:
    """What the main queue could have noticed: nodes that it took back from jobs.

    Attributes:
        count: How many.
        median_s: Median time until no process of ours was left, in seconds.
        worst_s: The longest one.
        held_s: Node-seconds that ours were left on nodes that were wanted back.
    """

    count: int
    median_s: float | None
    worst_s: float | None
    held_s: float


def reclaims(releases: Iterable[ReleaseFact], since: float, until: float) -> Reclaims:
    """The reclaims of a period."""
    seconds = [release.seconds for release in releases if since <= release.time <= until]
    if not seconds:
        return Reclaims(0, None, None, 0.0)
    return Reclaims(len(seconds), median(seconds), max(seconds), sum(seconds))


def seconds_by_use(minutes: Sequence[Minute], since: float, until: float) -> dict[NodeUse, float]:
    """Node-seconds by use in a period, by whole minutes."""
    total = dict.fromkeys(USES, 0.0)
    for minute in minutes:
        if since - 59.0 <= minute.start < until:
            for use, seconds in zip(USES, minute.node_seconds, strict=True):
                total[use] += seconds
    return total


def now_tiles(history: History, since: float, until: float) -> list[tuple[str, str, str]]:
    """The figures at the top of the page Now."""
    counts = dict(zip(USES, history.counts, strict=True))
    jobs = [job for job in history.jobs.values() if not job.final]
    training = sum(job.state in ("RUNNING", "RESCALING") for job in jobs)
    reclaimed = reclaims(history.releases, since, until)
    rated = utilization_of(last_hour(history.utilization, history.now))
    covered = f"of the last {duration(rated.seconds)}" if rated else "two minutes after the start"
    return [
        ("Idle nodes", number(len(history.nodes) if history.nodes is not None else None), "that we may use"),
        ("Training", _count(counts[NodeUse.TRAINING]), f"nodes; {_count(counts[NodeUse.UNASSIGNED])} without a job"),
        ("Jobs", number(training), f"train; {len(jobs) - training} wait or start"),
        lost_tile(history, until),
        ("U", percent(rated.efficiency if rated else None), covered),
        ("U if rescaling were free", percent(rated.bound if rated else None), "same nodes, same jobs"),
        ("Nodes taken back", number(reclaimed.count), f"longest until free: {duration(reclaimed.worst_s)}"),
    ]


def _count(nodes: float) -> str:
    """Nodes for people; with a digit where members of a fleet share one."""
    return number(nodes, 0 if abs(nodes - round(nodes)) < 0.05 else 1)


def use_rows(history: History, colours: Colours, since: float, until: float) -> tuple[Row, ...]:
    """What became of the idle node-seconds of a period."""
    total = seconds_by_use(history.minutes, since, until)
    whole = sum(total.values())
    digits = 2 if whole >= 36_000.0 else 3
    return tuple(
        Row(
            f"use-{use}",
            (
                Cell(USE_WORDS[use], colour=colours.uses[use]),
                Cell(number(total[use] / 3600.0, digits), number=True),
                Cell(
                    percent(total[use] / whole if whole else None),
                    number=True,
                    share=total[use] / whole if whole else 0,
                ),
            ),
        )
        for use in (NodeUse.TRAINING, *LOST)
    )


def reclaim_rows(history: History, since: float, until: float) -> tuple[Row, ...]:
    """What the main queue could have noticed, of the period and of all that is kept."""
    rows = []
    for name, start in (("shown period", since), ("last 24 h", until - 86400.0)):
        reclaimed = reclaims(history.releases, start, until)
        cells = (
            Cell(name),
            *number_cells(number(reclaimed.count), duration(reclaimed.median_s), duration(reclaimed.worst_s)),
            *number_cells(number(reclaimed.held_s / 3600.0, 4)),
        )
        rows.append(Row(f"reclaims-{start == since}", cells))
    return tuple(rows)


def lost_tile(history: History, until: float) -> tuple[str, str, str]:
    """What idle nodes were lost to in the last hour, most of it first."""
    total = seconds_by_use(history.minutes, until - 3600.0, until)
    lost = {use: seconds for use, seconds in total.items() if use in LOST and seconds > 0}
    if not any(total.values()):
        return "Lost in the last hour", "–", "nothing is known yet"
    most = sorted(lost, key=lambda use: -lost[use])[:2]
    to = "; ".join(f"{USE_WORDS[use].removeprefix('lost: ')} {number(lost[use] / 3600.0, 2)}" for use in most)
    share = percent(sum(lost.values()) / sum(total.values()))
    return (
        "Lost in the last hour",
        f"{number(sum(lost.values()) / 3600.0, 2)}",
        f"node-hours, {share}: {to or 'nothing'}",
    )
