"""Where the time of releases and joins went, from what the services have logged. Pure, but for reading the logs.

A release has three parts: until the Scavenger has told of the leave, until JobManager has given the command (it logs
that immediately after), and until the stand-in has noted it. The last part is the benchmark's own.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.looping.measuring import TimedEvent, summary

SERVICES = ("scavenger", "job_manager", "allocator", "profiler", "monitor")
_SLOWEST = 5
_STALL_LEAD_SECONDS = 0.25
_PREEMPTED, _LEFT = "preempted: ", " left"
_MARKS = str.maketrans(",;", "  ")


@dataclass(frozen=True)
class LogLine:
    """What a service has logged, and when in seconds since the epoch."""

    time: float
    service: str
    entry: dict[str, Any]


@dataclass
class Logged:
    """When services said what.

    Attributes:
        told: Times at which the Scavenger told of a node, by node.
        released: Times at which JobManager had given the command that releases a node, by node.
        planned: Times at which a plan for a node that joined was applied, by node.
        stalls: Steps that took long, in order of time; only where services log them (`log_stalls_ms`).
    """

    told: dict[str, list[float]] = field(default_factory=dict)
    released: dict[str, list[float]] = field(default_factory=dict)
    planned: dict[str, list[float]] = field(default_factory=dict)
    stalls: list[LogLine] = field(default_factory=list)


def read_lines(folder: Path) -> Iterator[LogLine]:
    """The lines of the services' logs; text that is none is left out."""
    for service in SERVICES:
        for text in (folder / f"{service}.log").read_text().splitlines():
            try:
                entry = json.loads(text)
                yield LogLine(datetime.fromisoformat(entry["timestamp"]).timestamp(), service, entry)
            except (ValueError, KeyError, TypeError):
                continue


def logged(lines: Iterable[LogLine]) -> Logged:
    """What is needed of the logs."""
    found = Logged()
    for line in sorted(lines, key=lambda line: line.time):
        entry = line.entry
        match line.service, entry.get("event"):
            case _, "stall":
                found.stalls.append(line)
            case "scavenger", "idle nodes changed":
                for node in (*entry["joined"], *entry["left"]):
                    found.told.setdefault(node, []).append(line.time)
            case "job_manager", "job state changed" if entry["reason"].startswith(_PREEMPTED):
                for node in entry["reason"].removeprefix(_PREEMPTED).removesuffix(_LEFT).split(", "):
                    found.released.setdefault(node, []).append(line.time)
            case "allocator", "plan made" if entry["applied"]:
                for word in entry["trigger"].translate(_MARKS).split():
                    found.planned.setdefault(word, []).append(line.time)
    return found


def parts_of(events: Sequence[TimedEvent], known: Logged, middle: dict[str, list[float]], name: str) -> dict[str, Any]:
    """How long each part of some events took, in ms, and the slowest of them with the stalls beside them.

    Args:
        events: The events.
        known: What was logged.
        middle: By node, when the service had done its part that stands between the Scavenger and the stand-in.
        name: What that part is called.
    """
    rows = []
    for event in events:
        told = _first(known.told.get(event.node, []), event)
        done = _first(middle.get(event.node, []), event)
        if told is not None and done is not None:
            # The command may be noted before the line is logged.
            done = min(done, event.end)
            rows.append((event, {"scavenger": told - event.begin, name: done - told, "stand_in": event.end - done}))
    slowest = sorted(rows, key=lambda row: row[0].begin - row[0].end)[:_SLOWEST]
    return {
        "parts": {part: summary([row[part] for _, row in rows]) for part in ("scavenger", name, "stand_in")},
        "slowest": [
            {
                "node": event.node,
                "ms": _milliseconds(event.end - event.begin),
                **{f"{part}_ms": _milliseconds(seconds) for part, seconds in row.items()},
                "stalls": _beside(known.stalls, event),
            }
            for event, row in slowest
        ],
    }


def _first(times: Sequence[float], event: TimedEvent) -> float | None:
    """The first of ascending times that follows an event, if it is near."""
    place = bisect_left(times, event.begin)
    return times[place] if place < len(times) and times[place] < event.end + 1.0 else None


def _beside(stalls: Sequence[LogLine], event: TimedEvent) -> list[str]:
    """Stalls that ended during an event, in words."""
    times = [line.time for line in stalls]
    return [
        f"{_milliseconds(line.time - event.begin)} ms: {line.service}, {line.entry['ms']} ms "
        f"({line.entry['cpu_ms']} of CPU time), {line.entry['step'][:80]}"
        for line in stalls[bisect_left(times, event.begin) : bisect_right(times, event.end + _STALL_LEAD_SECONDS)]
        if line.time - line.entry["ms"] / 1000 <= event.end
    ]


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)
