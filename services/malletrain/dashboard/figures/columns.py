"""The data of the figures as columns, worked out once for many viewers, and as CSV. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from malletrain.allocator.utilization.definition import MINUTE_S, MinuteUse
from malletrain.dashboard.figures.colours import Colours
from malletrain.observer.facts import HeldFact, StallFact
from malletrain.observer.history import USES, History, Minute, NodePeriod, RatePoint, changed_fragments
from malletrain.observer.job_facts import CurveFact
from malletrain.scavenger.machine.stays import fit

Columns = dict[str, list[Any]]

BEYOND_S = 86400.0
"""How far a fragment that lasts is drawn beyond now; the figure ends at now."""
_MINUTE_MS = 60_000.0
_MAX_NAMED = 8
"""Jobs of one node that are named, members of a fleet."""
_DIGITS = re.compile(r"([0-9]+)")


def by_name(names: Iterable[str]) -> list[str]:
    """Names in the order that people expect: n2 before n10."""
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in _DIGITS.split(name)])


def fragment_columns(
    fragments: Iterable[NodePeriod],
    rows: Mapping[str, int],
    labels: dict[str, int],
    names: Mapping[str, str],
    colours: Colours,
    chosen: str,
    now: float,
) -> Columns:
    """Bars of node × time, all of them numbers: edges in milliseconds since the epoch, and places of what is shown.

    Args:
        rows: Row of each node.
        labels: Place of each text that names jobs; new ones are added.
        names: Name of each job.
        colours: Theme.
        chosen: Job that stands out; empty: none.
        now: Seconds since the epoch.
    """
    bars: Columns = {name: [] for name in ("row", "left", "right", "colour", "label")}
    for fragment in fragments:
        end = now + BEYOND_S if fragment.end is None else fragment.end
        faded = bool(chosen) and chosen not in fragment.jobs
        text = jobs_in_words(fragment.jobs) or "no job"
        if fragment.job_id and not fragment.others:
            text = f"{text} {names.get(fragment.job_id, '')}"
        bars["row"].append(rows[fragment.node])
        bars["left"].append(1000.0 * fragment.start)
        bars["right"].append(1000.0 * end)
        bars["colour"].append(colours.place_of_job(fragment.job_id) + faded * (len(colours.palette) // 2))
        bars["label"].append(labels.setdefault(text, len(labels)))
    return bars


def jobs_in_words(jobs: Sequence[str]) -> str:
    """The jobs of a node: one, or the members of a fleet that share it. Empty: none."""
    return ", ".join(jobs[:_MAX_NAMED]) + (f" and {len(jobs) - _MAX_NAMED} more" if len(jobs) > _MAX_NAMED else "")


def minute_columns(minutes: Iterable[Minute], now: float) -> Columns:
    """Mean nodes of each minute by use, at its begin; of the present one so far."""
    known = list(minutes)
    means: Columns = {"time": [1000.0 * minute.start for minute in known]}
    for place, use in enumerate(USES):
        means[use.value] = [minute.node_seconds[place] / min(60.0, max(1.0, now - minute.start)) for minute in known]
    return means


def sample_columns(minutes: Iterable[MinuteUse]) -> Columns:
    """Samples per second of each minute, at its begin: trained, if rescaling were free, and on nodes of one's own."""
    known = list(minutes)
    return {
        "time": [1000.0 * minute.start for minute in known],
        "trained": [minute.trained / MINUTE_S for minute in known],
        "free": [minute.free / MINUTE_S for minute in known],
        "static": [minute.static / MINUTE_S for minute in known],
    }


def as_steps(columns: Columns, missing: float, until: float = math.inf) -> Columns:
    """Values of minutes as steps that hold until the next row.

    Args:
        columns: Begins of minutes in milliseconds, oldest first, and values.
        missing: Value of minutes that are not among them.
        until: When the last minute ends at the latest, in seconds since the epoch.
    """
    times = columns["time"]
    steps: Columns = {name: [] for name in columns}
    for place, time in enumerate(times):
        last = place + 1 == len(times)
        for name, values in columns.items():
            steps[name].append(values[place])
        if last or times[place + 1] > time + _MINUTE_MS:
            end = min(time + _MINUTE_MS, 1000.0 * until)
            for name, values in columns.items():
                steps[name].append(end if name == "time" else values[place])
            if not last:
                for name in columns:
                    steps[name].append(end if name == "time" else missing)
    return steps


def use_steps(history: History) -> Columns:
    """Mean nodes by use as steps. Never without a row: before the first minute, zeros at time 0."""
    steps = as_steps(minute_columns(history.minutes, history.now), 0.0, history.now)
    return steps if steps["time"] else {name: [0.0] for name in steps}


def release_columns(history: History) -> Columns:
    """How long it took until nodes that were taken back were free."""
    return {
        "time": [1000.0 * release.time for release in history.releases],
        "seconds": [release.seconds for release in history.releases],
        "job": [release.job_id for release in history.releases],
    }


def rate_columns(points: Sequence[RatePoint]) -> Columns:
    """Rate of a job over time."""
    return {
        "time": [1000.0 * point.time for point in points],
        "rate": [point.rate for point in points],
        "nodes": [point.nodes for point in points],
    }


def scale_columns(rows: Iterable[HeldFact], now: float) -> Columns:
    """Commanded nodes of a job over time, by its journal, as steps."""
    known = [(row.time, len(row.nodes)) for row in rows]
    if known:
        known.append((now, known[-1][1]))
    return {"time": [1000.0 * time for time, _ in known], "nodes": [nodes for _, nodes in known]}


def curve_columns(curve: CurveFact | None) -> Columns:
    """Points of a curve with the ends of their intervals."""
    points = curve.points if curve is not None else ()
    return {
        "nodes": [point.nodes for point in points],
        "rate": [point.rate for point in points],
        "low": [max(0.0, point.rate * (1.0 - point.error)) for point in points],
        "high": [point.rate * (1.0 + point.error) for point in points],
        "source": [point.source for point in points],
        "steps": [point.steps for point in points],
    }


def fit_columns(curve: CurveFact | None) -> Columns:
    """The shape that was fitted to the measured points of a curve."""
    line = curve.fit_line if curve is not None else ()
    return {"nodes": [nodes for nodes, _ in line], "rate": [rate for _, rate in line]}


def curve_rows(curve: CurveFact | None) -> Columns:
    """Points of a curve, then those of the fit, which have no interval."""
    points, line = curve_columns(curve), fit_columns(curve)
    count = len(line["nodes"])
    line |= {"source": ["fit"] * count, **{name: [""] * count for name in ("low", "high", "steps")}}
    return {name: [*values, *line[name]] for name, values in points.items()}


def stall_columns(stalls: Iterable[StallFact]) -> Columns:
    """Measured rescales of a job."""
    known = list(stalls)
    return {
        "time": [1000.0 * stall.time for stall in known],
        "seconds": [stall.seconds for stall in known],
        "change": [f"{stall.from_nodes} → {stall.to_nodes}" for stall in known],
        "kind": ["growth" if stall.to_nodes > stall.from_nodes else "shrink" for stall in known],
    }


def survival_columns(ended: Sequence[float], lasting: Sequence[float]) -> Columns:
    """How long nodes stay idle: share of periods that last longer (Kaplan-Meier), and expected stay within a day.

    Args:
        ended: Lengths of periods that have ended, in seconds.
        lasting: Lengths so far of those that last.
    """
    if not any(length > 0 for length in (*ended, *lasting)):
        return {"seconds": [], "share": [], "stay": []}
    curve = fit(ended, lasting)
    longest = max((*ended, *lasting))
    ages = [longest * (place / 120.0) ** 2 for place in range(121)]
    return {
        "seconds": ages,
        "share": [curve.at(age) for age in ages],
        "stay": [curve.expected_stay(age, 86400.0) for age in ages],
    }


def at_age(columns: Columns, age: float) -> Columns:
    """The point of `survival_columns` at an age in seconds, between its rows; none where the age is beyond them."""
    ages = columns.get("seconds", [])
    if not ages or not 0.0 <= age <= ages[-1]:
        return {"seconds": [], "share": [], "stay": []}
    point = {name: float(np.interp(age, ages, columns[name])) for name in ("share", "stay")}
    return {"seconds": [age], **{name: [value] for name, value in point.items()}}


def change_columns(rows: Iterable[HeldFact]) -> Columns:
    """Commanded nodes of a job, or GPUs of a member of a fleet, from each change of their number on."""
    known = [(1000.0 * row.time, len(row.nodes)) for row in rows]
    changes = [
        (time, nodes) for (_, before), (time, nodes) in itertools.pairwise([(0.0, -1), *known]) if nodes != before
    ]
    return {"time": [time for time, _ in changes], "nodes": [nodes for _, nodes in changes]}


def in_period(columns: Columns, since: float, until: float) -> Columns:
    """The rows of a period, their times as seconds since the epoch; columns without times as they are.

    Args:
        columns: Columns; `time` in milliseconds.
        since: Begin of the period in seconds since the epoch.
        until: Its end.
    """
    times = columns.get("time")
    if times is None:
        return columns
    places = [place for place, time in enumerate(times) if 1000.0 * since <= time <= 1000.0 * until]
    times_in_seconds: Columns = {"unix_s": [times[place] / 1000.0 for place in places]}
    return times_in_seconds | {
        name: [values[place] for place in places] for name, values in columns.items() if name != "time"
    }


Patch = dict[str, list[tuple[int, Any]]]


@dataclass(frozen=True)
class Delta:
    """How columns have changed.

    Attributes:
        patch: Places and new values, by column.
        added: Values that follow, by column.
        whole: All columns anew; None: patch and added say it all.
    """

    patch: Patch
    added: Columns
    whole: Columns | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed."""
        return self.whole is None and not self.patch and not any(self.added.values())


def delta_of(before: Mapping[str, Sequence[object]], after: Columns) -> Delta:
    """What has changed from columns to later ones that may be longer."""
    old = len(next(iter(before.values()), ()))
    new = len(next(iter(after.values()), ()))
    if new < old or before.keys() != after.keys():
        return Delta({}, {}, after)
    patch: Patch = {}
    for name, values in after.items():
        places = [(place, value) for place, value in enumerate(values[:old]) if value != before[name][place]]
        if len(places) > 64:
            return Delta({}, {}, after)
        if places:
            patch[name] = places
    return Delta(patch, {name: values[old:] for name, values in after.items()} if new > old else {})


class Series:
    """Columns of one figure with their version, and how they came from the version before."""

    def __init__(self, make: Callable[[History], Columns]) -> None:
        """
        Args:
            make: The columns, from a history.
        """
        self.columns: Columns = {}
        self.version = 0
        self.delta = Delta({}, {}, {})
        self._make = make

    def refresh(self, history: History) -> None:
        """Take over what has happened."""
        after = self._make(history)
        self._changed(delta_of(self.columns, after) if self.version else Delta({}, {}, after), after)

    def _changed(self, delta: Delta, after: Columns) -> None:
        if not delta.is_empty:
            self.columns, self.delta = after, delta
            self.version += 1


class FragmentSeries(Series):
    """The fragments of all nodes: what has changed is found by identity, since there may be many thousand."""

    def __init__(self, colours: Colours, chosen: str) -> None:
        """
        Args:
            chosen: Job that stands out; empty: none.
        """
        super().__init__(lambda history: self._of(history, 0))
        self.rows: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self._colours, self._chosen = colours, chosen
        self._seen: History | None = None

    @property
    def names(self) -> list[str]:
        """Names of nodes, by row."""
        return list(self.rows)

    @property
    def texts(self) -> dict[str, list[str]]:
        """What the numbers of rows and labels stand for."""
        return {"node": list(self.rows), "job": list(self.labels)}

    def refresh(self, history: History) -> None:
        """Take over what has happened."""
        change = changed_fragments(self._seen, history) if self._seen is not None else None
        self._seen = history
        if change is None:
            self.rows = {
                name: row for row, name in enumerate(by_name({fragment.node for fragment in history.fragments}))
            }
            self.labels = {}
            whole = self._of(history, 0)
            self._changed(Delta({}, {}, whole), whole)
            return
        changed, first = change
        for fragment in history.fragments[first:]:
            self.rows.setdefault(fragment.node, len(self.rows))
        added = self._of(history, first) if first < len(history.fragments) else {}
        ends = [(place, _right(history, place)) for place in changed]
        for place, right in ends:
            self.columns["right"][place] = right
        for name, values in added.items():
            self.columns[name].extend(values)
        self._changed(Delta({"right": ends} if ends else {}, added), self.columns)

    def _of(self, history: History, first: int) -> Columns:
        names = {job.id: job.name for job in history.jobs.values()}
        fragments = history.fragments[first:]
        return fragment_columns(fragments, self.rows, self.labels, names, self._colours, self._chosen, history.now)


def _right(history: History, place: int) -> float:
    end = history.fragments[place].end
    return 1000.0 * (history.now + BEYOND_S if end is None else end)
