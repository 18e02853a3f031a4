"""What is to be known of how a trace was made from a log of jobs: sentences for people, metadata for programs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.log_window import DAY_S, LogWindow
from malletrain.simulator.traces.presence import NodeCount, Presence
from malletrain.simulator.traces.row_counts import RowCounts
from malletrain.simulator.traces.unended_runs import UnendedRuns

_HOUR_S = 3600.0
_MANY_ROWS = 200
_FEW = 0.5
"""A log with less than this of the usual use at its begin or end probably lacks jobs there."""


@dataclass(frozen=True)
class Facts:
    """What a conversion found.

    Attributes:
        counts: Rows that were used and skipped.
        down: The same of outages.
        window: The window of the trace.
        presence: From when until when nodes count.
        unended: Runs without an end.
        oldest_place: Where the oldest runaway run stands in the log.
        listed: Whether there was a list of nodes.
        left_out: Nodes of the log that `--only-nodes` leaves out.
        idle_s: Node-seconds that are idle.
        busy: Share of the nodes that is not idle, at the begin of the window, on average, and at its end.
    """

    counts: RowCounts
    down: RowCounts
    window: LogWindow
    presence: Presence
    unended: UnendedRuns
    oldest_place: str
    listed: bool
    left_out: int
    idle_s: float
    busy: tuple[float, float, float]


def sentences_of(facts: Facts, calendar: CalendarReader) -> list[str]:
    """What was chosen, skipped and assumed, for people."""
    found = [_of_window(facts.window, calendar), *facts.counts.sentences(), *_of_unended(facts, calendar)]
    found += [f"outages: {sentence}" for sentence in facts.down.sentences()]
    if facts.left_out:
        found.append(f"nodes of the log that --only-nodes leaves out: {facts.left_out:,}")
    late, gone, booted = facts.presence.late, facts.presence.gone, facts.presence.booted
    if late.nodes:
        found.append(
            f"{_nodes(late.nodes)} no job for long after the window begins ({late.example} none before "
            f"{calendar.told(late.time_s)}): left out until the first job of each. {_hours(late.node_s)} before these"
            f" would be {_share(late, facts.idle_s + late.node_s)} of what is idle; --nodes FILE says who was there"
        )
    if gone.nodes:
        found.append(
            f"{_nodes(gone.nodes)} no job for long before the window ends ({gone.example} none after "
            f"{calendar.told(gone.time_s)}): counted to the end. {_hours(gone.node_s)} after these are up to "
            f"{_share(gone, facts.idle_s)} of what is idle; if they were taken away, --nodes FILE says until when"
        )
    if booted.nodes:
        found.append(
            f"{_nodes(booted.nodes)} no job before the last boot: not idle before it, which leaves out "
            f"{_hours(booted.node_s)}"
        )
    found += _of_edges(facts)
    if not facts.listed:
        found.append("no list of nodes (--nodes): nodes that no job used are not in the trace")
    return found


def metadata_of(facts: Facts, calendar: CalendarReader) -> dict[str, object]:
    """The same for the trace's JSON, under its key `conversion`."""
    window, presence, unended = facts.window, facts.presence, facts.unended
    return {
        "window": {
            "from": calendar.told(window.begin),
            "until": calendar.told(window.end),
            "chosen": window.chosen,
            "log_from": calendar.told(window.log[0]),
            "log_until": calendar.told(window.log[1]),
        },
        **facts.counts.metadata(),
        "busy_at_begin_mean_and_end": list(facts.busy),
        "nodes_listed": facts.listed,
        "nodes_left_out_by_choice": facts.left_out,
        "nodes_left_out_until_first_job": _of_nodes(presence.late, calendar),
        "nodes_without_job_to_the_end": _of_nodes(presence.gone, calendar),
        "nodes_without_job_before_boot": _of_nodes(presence.booted, calendar),
        "runs_without_end": {
            "going_on": unended.going_on,
            "taken_as_ended": unended.runaway,
            "taken_as_ended_node_hours": round(unended.runaway_node_s / _HOUR_S, 3),
        },
        "notes": sentences_of(facts, calendar),
    }


def _of_window(window: LogWindow, calendar: CalendarReader) -> str:
    begin, end = calendar.told(window.begin), calendar.told(window.end)
    hours = (window.end - window.begin) / _HOUR_S
    text = f"window: {begin} to {end} ({hours:,.1f} h), {window.chosen}"
    log_from, log_until = (calendar.told(time) for time in window.log)
    if window.log != window.bounds:
        text += f"; the log has times from {log_from} to {log_until}, of which --window FROM TO chooses"
    covered = window.covered
    if window.chosen == "as given" and (window.begin < covered[0] or window.end > covered[1]):
        first, last = (calendar.told(time) for time in covered)
        text += f". Jobs that ended before {first} or began after {last} are in it only if its query asked for them"
    if window.quiet:
        quiet_from, quiet_until = (calendar.told(time) for time in window.quiet)
        text += f". No job began or ended from {quiet_from} to {quiet_until}: is a part of the log missing?"
    return text


def _of_edges(facts: Facts) -> list[str]:
    begin, mean, end = facts.busy
    found = list[str]()
    if facts.counts.used < _MANY_ROWS or facts.window.end - facts.window.begin < DAY_S:
        return found
    if begin < _FEW * mean:
        found.append(
            f"{begin:.0%} of the nodes are in use when the window begins, {mean:.0%} on average: are jobs that began"
            " before missing? Then what is idle there is overstated; --window FROM TO leaves it out"
        )
    if end < _FEW * mean:
        found.append(
            f"{end:.0%} of the nodes are in use when the window ends, {mean:.0%} on average: are the jobs that had not"
            " ended missing? Then what is idle there is overstated; --window FROM TO leaves it out"
        )
    return found


def _of_unended(facts: Facts, calendar: CalendarReader) -> list[str]:
    unended = facts.unended
    found = []
    if unended.going_on:
        found.append(f"jobs without an end, which go on to the end of the window: {unended.going_on:,}")
    if unended.superseded:
        found.append(f"rows without an end of jobs that another row ends: {unended.superseded:,}")
    if unended.runaway:
        found.append(
            f"jobs without an end, but with later jobs on their nodes (runaway jobs; the oldest began "
            f"{calendar.told(unended.oldest_s)}, {facts.oldest_place}): {unended.runaway:,}, taken as ended when "
            f"these began, which holds {_hours(unended.runaway_node_s)}"
        )
    return found


def _of_nodes(count: NodeCount, calendar: CalendarReader) -> dict[str, object]:
    found: dict[str, object] = {"nodes": count.nodes, "node_hours": round(count.node_s / _HOUR_S, 3)}
    if count.nodes:
        known = math.isfinite(count.time_s)
        found |= {"example": count.example, "time": calendar.told(count.time_s) if known else None}
    return found


def _nodes(count: int) -> str:
    return "1 node has" if count == 1 else f"{count:,} nodes have"


def _hours(node_s: float) -> str:
    return f"{node_s / _HOUR_S:,.1f} node-hours"


def _share(count: NodeCount, idle_s: float) -> str:
    return f"{min(1.0, count.node_s / idle_s) if idle_s else 0.0:.1%}"
