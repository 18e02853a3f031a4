"""Counts what is skipped of a log, says when it is too much, and reports how a trace was made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.log_window import DAY_S, LogWindow, UnendedRuns
from malletrain.simulator.traces.presence import NodeCount, Presence
from malletrain.simulator.traces.runs import OtherRow, Run, SkippedRow

MAX_SKIPPED = 0.01
"""Share of rows, and of node-hours, that may be skipped unless the user allows more."""
_HOPELESS_ROWS = 10_000
_HOUR_S = 3600.0
_Found = TypeVar("_Found")


@dataclass
class SkippedRows:
    """The rows that were skipped for one reason.

    Attributes:
        first: The error of the first of them.
        rows: How many.
        node_s: Node-seconds that they concern, as far as they are known.
        unknown: How many of them concern node-seconds that are not known.
    """

    first: InvalidInputError
    rows: int = 0
    node_s: float = 0.0
    unknown: int = 0


class RowCounts:
    """Counts the rows of one conversion.

    Args:
        strict: Whether the first row that would be skipped, or of which something is assumed, is an error instead.
        max_skipped: Share of rows, and of node-hours, that may be skipped. A single row is always allowed: in a log of
            fewer than 100 rows it is more than a per cent.
        option: What allows more, for errors; empty if there is nothing.

    Attributes:
        used: Rows that were used.
    """

    def __init__(
        self, *, strict: bool = False, max_skipped: float = MAX_SKIPPED, option: str = "--max-skipped"
    ) -> None:
        self._option = option
        self._strict = strict
        self._max_skipped = max_skipped
        self.used = 0
        self._held_node_s = 0.0
        self._skipped: dict[str, SkippedRows] = {}
        self._others: dict[str, int] = {}
        self._assumed: dict[str, int] = {}

    def used_of(self, rows: Iterable[_Found | SkippedRow | OtherRow]) -> Iterator[_Found]:
        """What is found in a log, without the rows that are not used, which are counted.

        Raises:
            InvalidInputError: a row can't be used and the conversion is strict, or hardly any row can be used.
        """
        for row in rows:
            if isinstance(row, SkippedRow):
                self.skip(row)
            elif isinstance(row, OtherRow):
                self._others[row.reason] = self._others.get(row.reason, 0) + 1
            else:
                self.used += 1
                if isinstance(row, Run):
                    if row.assumed and self._strict:
                        raise InvalidInputError(row.line.place, f"a row that needs no assumption ({row.assumed})")
                    if row.until_s is not None:
                        self._held_node_s += len(row.nodes) * (row.until_s - row.from_s)
                    if row.assumed:
                        self.assume(row.assumed)
                yield row

    def use(self) -> None:
        """Count a row that is used."""
        self.used += 1

    def skip(self, row: SkippedRow) -> None:
        """Count a row that can't be used.

        Raises:
            InvalidInputError: the conversion is strict, or hardly any row can be used.
        """
        if self._strict:
            raise row.error
        counted = self._skipped.setdefault(row.reason, SkippedRows(row.error))
        counted.rows += 1
        if row.node_s is None:
            counted.unknown += 1
        else:
            counted.node_s += row.node_s
        if counted.rows >= _HOPELESS_ROWS and counted.rows > self.used and self._max_skipped < 0.5:
            raise self._too_much(f"{counted.rows:,} rows and more")

    def assume(self, what: str, rows: int = 1) -> None:
        """Count rows of which something had to be assumed."""
        self._assumed[what] = self._assumed.get(what, 0) + rows

    @property
    def others(self) -> str:
        """The rows that tell of no run, for people."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self._others.items()) or "none"

    @property
    def first_skipped(self) -> InvalidInputError | None:
        """The error of a row that was skipped; None if none was."""
        return next((entry.first for entry in self._skipped.values()), None)

    @property
    def skipped_rows(self) -> int:
        """Rows that were skipped."""
        return sum(entry.rows for entry in self._skipped.values())

    @property
    def skipped_row_share(self) -> float:
        """Share of the rows that tell of runs."""
        return self.skipped_rows / max(1, self.skipped_rows + self.used)

    @property
    def skipped_node_s(self) -> float:
        """Node-seconds of the rows that were skipped, as far as they are known."""
        return sum(entry.node_s for entry in self._skipped.values())

    @property
    def skipped_time_share(self) -> float:
        """Share of the node-seconds of all rows."""
        return self.skipped_node_s / max(1.0, self.skipped_node_s + self._held_node_s)

    def check(self) -> None:
        """Refuse a log of which too much was skipped.

        Raises:
            InvalidInputError: more rows than allowed, or more node-hours.
        """
        if self.skipped_rows <= 1:
            return
        if self.skipped_row_share > self._max_skipped:
            raise self._too_much(f"{self.skipped_rows:,} rows, {_percent(self.skipped_row_share)}")
        if self.skipped_time_share > self._max_skipped:
            hours = self.skipped_node_s / _HOUR_S
            raise self._too_much(f"{hours:,.1f} node-hours, {_percent(self.skipped_time_share)}")

    def sentences(self) -> list[str]:
        """What was skipped and assumed, for people."""
        sentences = []
        for reason, entry in self._by_size():
            hours = "" if entry.unknown == entry.rows else f", {entry.node_s / _HOUR_S:,.1f} node-hours"
            sentences.append(f"skipped {_rows(entry.rows)}{hours}: {reason} (first: {entry.first})")
        if sentences:
            shares = f"{_percent(self.skipped_row_share)} of all rows"
            if self.skipped_node_s:
                shares += f", {_percent(self.skipped_time_share)} of all node-hours in jobs"
            sentences.append(f"skipped in all: {shares}")
        sentences += [f"assumed of {_rows(count)}: {what}" for what, count in self._assumed.items()]
        return sentences

    def metadata(self) -> dict[str, object]:
        """The counts for the trace's JSON."""
        return {
            "rows_used": self.used,
            "rows_without_run": dict(self._others),
            "skipped": [
                {
                    "reason": reason,
                    "rows": entry.rows,
                    "node_hours": None if entry.unknown == entry.rows else round(entry.node_s / _HOUR_S, 3),
                    "first": str(entry.first),
                }
                for reason, entry in self._by_size()
            ],
            "skipped_row_share": self.skipped_row_share,
            "skipped_node_hour_share": self.skipped_time_share,
            "assumed_of_rows": dict(self._assumed),
        }

    def _by_size(self) -> list[tuple[str, SkippedRows]]:
        return sorted(self._skipped.items(), key=lambda item: -item[1].rows)

    def _too_much(self, what: str) -> InvalidInputError:
        _, most = self._by_size()[0]
        first = str(most.first).removeprefix(f"{most.first.field}: expected ")
        hint = f" ({self._option} allows more)" if self._option else ""
        limit = _percent(self._max_skipped)
        expected = f"at most {limit} of a log to be skipped, not {what}{hint}; the first: {first}"
        return InvalidInputError(most.first.field, expected)


def _rows(count: int) -> str:
    return f"{count:,} row" if count == 1 else f"{count:,} rows"


def _percent(share: float) -> str:
    return f"{share:.2%}" if share < 0.1 else f"{share:.1%}"


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
    sentences = [_of_window(facts.window, calendar), *facts.counts.sentences(), *_of_unended(facts, calendar)]
    sentences += [f"outages: {sentence}" for sentence in facts.down.sentences()]
    if facts.left_out:
        sentences.append(f"nodes of the log that --only-nodes leaves out: {facts.left_out:,}")
    late, gone, booted = facts.presence.late, facts.presence.gone, facts.presence.booted
    if late.nodes:
        sentences.append(
            f"{_nodes(late.nodes)} no job for long after the window begins ({late.example} none before "
            f"{calendar.text(late.time_s)}): left out until the first job of each. {_hours(late.node_s)} before these"
            f" would be {_share(late, facts.idle_s + late.node_s)} of what is idle; --nodes FILE says who was there"
        )
    if gone.nodes:
        sentences.append(
            f"{_nodes(gone.nodes)} no job for long before the window ends ({gone.example} none after "
            f"{calendar.text(gone.time_s)}): counted to the end. {_hours(gone.node_s)} after these are up to "
            f"{_share(gone, facts.idle_s)} of what is idle; if they were taken away, --nodes FILE says until when"
        )
    if booted.nodes:
        sentences.append(
            f"{_nodes(booted.nodes)} no job before the last boot: not idle before it, which leaves out "
            f"{_hours(booted.node_s)}"
        )
    sentences += _of_edges(facts)
    if not facts.listed:
        sentences.append("no list of nodes (--nodes): nodes that no job used are not in the trace")
    return sentences


def metadata_of(facts: Facts, calendar: CalendarReader) -> dict[str, object]:
    """The counts for the trace's JSON, under its key `conversion`."""
    window, presence, unended = facts.window, facts.presence, facts.unended
    return {
        "window": {
            "from": calendar.text(window.begin),
            "until": calendar.text(window.end),
            "chosen": window.chosen,
            "log_from": calendar.text(window.log[0]),
            "log_until": calendar.text(window.log[1]),
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
    begin, end = calendar.text(window.begin), calendar.text(window.end)
    hours = (window.end - window.begin) / _HOUR_S
    text = f"window: {begin} to {end} ({hours:,.1f} h), {window.chosen}"
    log_from, log_until = (calendar.text(time) for time in window.log)
    if window.log != window.bounds:
        text += f"; the log has times from {log_from} to {log_until}, of which --window FROM TO chooses"
    covered = window.covered
    if window.chosen == "as given" and (window.begin < covered[0] or window.end > covered[1]):
        first, last = (calendar.text(time) for time in covered)
        text += f". Jobs that ended before {first} or began after {last} are in it only if its query asked for them"
    if window.quiet:
        quiet_from, quiet_until = (calendar.text(time) for time in window.quiet)
        text += f". No job began or ended from {quiet_from} to {quiet_until}: is a part of the log missing?"
    return text


def _of_edges(facts: Facts) -> list[str]:
    begin, mean, end = facts.busy
    sentences = list[str]()
    if facts.counts.used < _MANY_ROWS or facts.window.end - facts.window.begin < DAY_S:
        return sentences
    if begin < _FEW * mean:
        sentences.append(
            f"{begin:.0%} of the nodes are in use when the window begins, {mean:.0%} on average: are jobs that began"
            " before missing? Then what is idle there is overstated; --window FROM TO leaves it out"
        )
    if end < _FEW * mean:
        sentences.append(
            f"{end:.0%} of the nodes are in use when the window ends, {mean:.0%} on average: are the jobs that had not"
            " ended missing? Then what is idle there is overstated; --window FROM TO leaves it out"
        )
    return sentences


def _of_unended(facts: Facts, calendar: CalendarReader) -> list[str]:
    unended = facts.unended
    sentences = []
    if unended.going_on:
        sentences.append(f"jobs without an end, which go on to the end of the window: {unended.going_on:,}")
    if unended.superseded:
        sentences.append(f"rows without an end of jobs that another row ends: {unended.superseded:,}")
    if unended.runaway:
        sentences.append(
            f"jobs without an end, but with later jobs on their nodes (runaway jobs; the oldest began "
            f"{calendar.text(unended.oldest_s)}, {facts.oldest_place}): {unended.runaway:,}, taken as ended when "
            f"these began, which holds {_hours(unended.runaway_node_s)}"
        )
    return sentences


def _of_nodes(count: NodeCount, calendar: CalendarReader) -> dict[str, object]:
    entry: dict[str, object] = {"nodes": count.nodes, "node_hours": round(count.node_s / _HOUR_S, 3)}
    if count.nodes:
        known = math.isfinite(count.time_s)
        entry |= {"example": count.example, "time": calendar.text(count.time_s) if known else None}
    return entry


def _nodes(count: int) -> str:
    return "1 node has" if count == 1 else f"{count:,} nodes have"


def _hours(node_s: float) -> str:
    return f"{node_s / _HOUR_S:,.1f} node-hours"


def _share(count: NodeCount, idle_s: float) -> str:
    return f"{min(1.0, count.node_s / idle_s) if idle_s else 0.0:.1%}"
