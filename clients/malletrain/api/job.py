"""A job, and a list of jobs, as one has them in Python, and the small tables that notebooks and terminals show."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, overload

from malletrain.api.errors import translate_errors
from malletrain.caller.log_lines import followed_log, log_lines, matching, since_ms_of
from malletrain.caller.metric_histories import metric_histories
from malletrain.caller.stubs import DEADLINE_SECONDS
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import MalleTrainError, NotFoundError, UnavailableError
from malletrain.runtime.messages import job_state_of, unix_seconds
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2

if TYPE_CHECKING:
    from malletrain.api.connection import Connection


from collections.abc import Collection, Mapping
from html import escape
from itertools import compress

_LOOK_SECONDS = 2.0
"""Between two tries to ask JobManager, where it does not answer."""
_COLUMNS = ("job", "name", "state", "nodes", "samples", "samples/s", "reason")
_OFTEN_CHANGED = ("samples", "samples/s")


class Job:
    """One job. Its attributes ask the services until it has ended, and remember what they said last.

    Attributes:
        id: Its identifier, e.g. `j000012`.
    """

    def __init__(self, connection: Connection, message: resources_pb2.Job) -> None:
        self.id = message.id
        self._connection = connection
        self._message = message

    def __repr__(self) -> str:
        return f"<malletrain.Job {self.id} {self.name!r} {job_state_of(self._message.state)}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self.id, self._connection) == (other.id, other._connection)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def name(self) -> str:
        """Its name for people."""
        return self._message.spec.name

    @property
    def owner(self) -> str:
        """Who submitted it."""
        return self._message.owner

    @property
    def command(self) -> tuple[str, ...]:
        """Program and arguments; empty where the caller may not see them."""
        return tuple(self._message.spec.command)

    @property
    def parameters(self) -> dict[str, str]:
        """By which values it differs from the other jobs of its array; empty where the caller may not see them."""
        return dict(self._message.spec.array_parameters)

    @property
    def array_id(self) -> str:
        """Identifier of its array, e.g. `a000012`; empty: it is a member of none."""
        return self._message.array_id

    @property
    def note(self) -> str:
        """What was found of how its script is started, and what to change where that does not fit; empty: nothing."""
        return self._message.spec.launch_note

    @property
    def submitted(self) -> datetime:
        """When it was submitted, in UTC."""
        return datetime.fromtimestamp(unix_seconds(self._message.create_time), UTC)

    @property
    def state(self) -> JobState:
        """Its state now, e.g. `RUNNING`; equal to that text, and `state.final` says whether it has ended.

        Raises:
            UnavailableError: JobManager does not answer.
        """
        return job_state_of(self.refresh()._message.state)

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.state.final

    @property
    def reason(self) -> str:
        """Why it is in its state, as of the last time that the services were asked."""
        if self._message.reason:
            return self._message.reason
        name = resources_pb2.JobReason.Name(self._message.reason_code).removeprefix("JOB_REASON_")
        return "" if name == "UNSPECIFIED" else name.replace("_", " ").lower()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that it trains on now."""
        return tuple(self.refresh()._message.confirmed_nodes)

    @property
    def samples(self) -> int:
        """Samples so far, net of rollbacks."""
        progress = self._connection.progress_of([self.id]).get(self.id)
        return max(self.refresh()._message.samples, progress.samples if progress is not None else 0)

    @property
    def samples_per_second(self) -> float:
        """Throughput at its present scale; 0: not known, or it does not train."""
        progress = self._connection.progress_of([self.id]).get(self.id)
        return progress.rate if progress is not None else 0.0

    @property
    def metrics(self) -> dict[str, float]:
        """What its trainer has reported at its end, e.g. `{"accuracy": 0.97}`; see `metric_history` for its course."""
        return dict(self.refresh()._message.metrics)

    def metric_history(self, name: str) -> LoggedHistory:
        """What its script has logged of one metric so far, e.g. `job.metric_history("loss").values`.

        Raises:
            NotFoundError: it has logged no metric of this name.
            PermissionDeniedError: the caller is neither its owner nor an operator.
            UnavailableError: Monitor does not answer.
        """
        histories = self._histories([name])
        if not histories:
            raise NotFoundError(f"{self.id} has logged no metric {name!r}")
        return histories[0]

    def metric_histories(self) -> dict[str, LoggedHistory]:
        """What its script has logged so far, by metric.

        Raises:
            PermissionDeniedError: the caller is neither its owner nor an operator.
            UnavailableError: Monitor does not answer.
        """
        return {history.name: history for history in self._histories(())}

    def _histories(self, names: Sequence[str]) -> list[LoggedHistory]:
        with translate_errors():
            return [history_of(history) for history in metric_histories(self._connection.stubs, self.id, names)]

    def refresh(self) -> Job:
        """Ask JobManager for it anew, unless it is known to have ended; returns the job itself.

        Raises:
            NotFoundError: it is no longer kept.
            UnavailableError: JobManager does not answer.
        """
        if not self._ended:
            request = job_manager_pb2.GetJobRequest(job_id=self.id)
            self._message = self._connection.call(self._connection.stubs.job_manager.GetJob, request).job
        return self

    def wait(self, timeout: float | None = None) -> JobState:
        """Wait until it has ended, also over restarts of JobManager; returns how.

        Args:
            timeout: Longest wait in seconds; None: for ever.

        Raises:
            TimeoutError: it has not ended in time; it goes on.
            UnavailableError: the connection was closed, or JobManager is not the one that it was.
        """
        ended, heard = threading.Event(), _Heard()

        def on_change(message: resources_pb2.Job | MalleTrainError) -> None:
            if heard.take_message(message):
                ended.set()

        with self._connection.watcher.watching(self.id, on_change):
            deadline = math.inf if timeout is None else time.monotonic() + timeout
            is_known = self._ask_whether_ended(heard)
            while not heard.is_final:
                remaining = min(deadline - time.monotonic(), _LOOK_SECONDS)
                if not ended.wait(max(0.0, remaining)) and time.monotonic() >= deadline:
                    raise TimeoutError(f"{self.id} has not ended after {timeout:g} s")
                is_known = is_known or self._ask_whether_ended(heard)
        self._message = heard.result()
        return job_state_of(self._message.state)

    async def wait_async(self) -> JobState:
        """As `wait`, for an event loop; limited by `asyncio.timeout`."""
        loop, heard = asyncio.get_running_loop(), _Heard()
        ended = asyncio.Event()

        def on_change(message: resources_pb2.Job | MalleTrainError) -> None:
            if heard.take_message(message) and not loop.is_closed():
                loop.call_soon_threadsafe(ended.set)

        with self._connection.watcher.watching(self.id, on_change):
            is_known = await asyncio.to_thread(self._ask_whether_ended, heard)
            while not heard.is_final:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await ended.wait()
                is_known = is_known or await asyncio.to_thread(self._ask_whether_ended, heard)
        self._message = heard.result()
        return job_state_of(self._message.state)

    def logs(
        self,
        follow: bool = False,
        tail: int = 0,
        *,
        since: str | float | timedelta | datetime | None = None,
        grep: str = "",
        timestamps: bool = False,
    ) -> Iterator[str]:
        """The lines of its log by time, each with the node that wrote it in front: `n017 | text`.

        Args:
            follow: Go on until the job has ended, over restarts of JobManager, too.
            tail: Only the last lines, this many; 0: all.
            since: Only lines written since then: a `datetime` (local time without a zone), or how long ago, as a
                `timedelta`, in seconds, or as `"90s"`, `"5m"`, `"2h"` or `"1d"`. Lines of which it is not known when
                they were written come, too.
            grep: Only lines in which this regular expression is found; with `tail`, of the last lines.
            timestamps: Put in front of each line when it was written, in local time:
                `2026-11-28 09:30:00  n017 | text`.

        Raises:
            InvalidInputError: `since` or `grep` is none.
            PermissionDeniedError: the caller is neither its owner nor an operator.
            UnavailableError: JobManager does not answer.
        """
        since_ms = since_ms_of(since, time.time(), "since")
        matching((), grep, "grep")  # a mistake is told at once, not with the first line
        return self._log_lines(follow, tail, since_ms, grep, timestamps)

    def _log_lines(self, follow: bool, tail: int, since_ms: int, grep: str, timestamps: bool) -> Iterator[str]:
        stubs = self._connection.stubs
        with translate_errors():
            if follow:
                lines = followed_log(stubs, self.id, tail, lambda text: print(text, file=sys.stderr), since_ms)
            else:
                lines = log_lines(stubs, self.id, tail, since_ms)
            for line in matching(lines, grep, "grep"):
                yield line.with_time if timestamps else line.text

    def cancel(self) -> Job:
        """End it; returns the job itself. Its checkpoints stay in its folder. Nothing happens where it has ended.

        Raises:
            PermissionDeniedError: the caller is neither its owner nor an operator.
        """
        request = job_manager_pb2.CancelJobRequest(job_id=self.id)
        self._message = self._connection.call(self._connection.stubs.job_manager.CancelJob, request).job
        return self

    def set_weight(self, weight: float) -> Job:
        """Give it another weight; returns the job itself. The next plan goes by it.

        Args:
            weight: Priority weight from now on, 0.000001 to 1000000.

        Raises:
            InvalidInputError: the weight is out of bounds.
            PermissionDeniedError: the caller is neither its owner nor an operator.
            PreconditionError: it has ended.
        """
        request = job_manager_pb2.UpdateJobRequest(job_id=self.id, weight=weight)
        self._message = self._connection.call(self._connection.stubs.job_manager.UpdateJob, request).job
        return self

    @property
    def _ended(self) -> bool:
        return job_state_of(self._message.state).final

    def _ask_whether_ended(self, heard: _Heard) -> bool:
        """Ask whether it has ended already; returns whether that is known. JobManager may be away."""
        request = job_manager_pb2.GetJobRequest(job_id=self.id)
        try:
            with translate_errors():
                message = self._message
                if not self._ended:
                    message = self._connection.stubs.job_manager.GetJob(request, timeout=DEADLINE_SECONDS).job
        except UnavailableError:
            return False
        heard.take_message(message)
        return True

    def _repr_html_(self) -> str:
        message, progress = self.refresh()._message, self._connection.progress_of([self.id]).get(self.id)
        labels = dict(zip(_COLUMNS, _row(message, progress), strict=True))
        metrics = {name: f"{value:g}" for name, value in sorted(message.metrics.items())}
        return facts_html({**labels, **metrics})


class _Heard:
    """How a job ended, or why that is not known."""

    def __init__(self) -> None:
        self._last: resources_pb2.Job | MalleTrainError | None = None

    def take_message(self, message: resources_pb2.Job | MalleTrainError) -> bool:
        """Take in a change of the job; returns whether it is the last one: the job has ended, or is lost."""
        if isinstance(message, resources_pb2.Job) and not job_state_of(message.state).final:
            return False
        self._last = message
        return True

    @property
    def is_final(self) -> bool:
        """Whether the last change has come."""
        return self._last is not None

    def result(self) -> resources_pb2.Job:
        if isinstance(self._last, MalleTrainError):
            raise self._last
        assert self._last is not None
        return self._last


class JobList(Sequence[Job]):
    """Jobs, oldest first, as they were when they were asked for. A notebook shows them as a table."""

    def __init__(self, connection: Connection, jobs: Sequence[Job]) -> None:
        self._connection = connection
        self._jobs = tuple(jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, place: int) -> Job: ...
    @overload
    def __getitem__(self, place: slice) -> JobList: ...
    def __getitem__(self, place: int | slice) -> Job | JobList:
        if isinstance(place, slice):
            return JobList(self._connection, self._jobs[place])
        return self._jobs[place]

    def __repr__(self) -> str:
        return table_text(_COLUMNS, self._rows(refresh=False))

    def _repr_html_(self) -> str:
        return table_html(_COLUMNS, self._rows(refresh=True))

    def wait(self, timeout: float | None = None) -> list[JobState]:
        """Wait until all have ended; returns how, in their order.

        Args:
            timeout: Longest wait for all of them in seconds; None: for ever.

        Raises:
            TimeoutError: one has not ended in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        return [job.wait(None if deadline is None else max(0.0, deadline - time.monotonic())) for job in self._jobs]

    def cancel(self) -> None:
        """End all that have not ended."""
        for job in self._jobs:
            job.cancel()

    def watch(self, seconds: float = 1.0) -> None:
        """Show the table, and keep it up to date until all have ended.

        A notebook shows it in place. Elsewhere a job has another line whenever its state, nodes or reason change.

        An interrupt (Ctrl-C, or the notebook's stop button) ends the watching, and not the jobs.

        Args:
            seconds: Time between two looks.
        """
        show = _display()
        before: list[tuple[str, ...]] | None = None
        while True:
            rows = self._rows(refresh=True)
            if rows != before:
                show(table_html(_COLUMNS, rows), changed_lines(_COLUMNS, before, rows, _OFTEN_CHANGED))
            before = rows
            unfinished = [job for job in self._jobs if not job._ended]
            if not unfinished:
                return
            try:
                unfinished[0].wait(seconds)
            except TimeoutError:
                continue
            except KeyboardInterrupt:
                return

    def _rows(self, *, refresh: bool) -> list[tuple[str, ...]]:
        """A row for each job; `refresh`: as it is now."""
        progress: dict[str, monitor_pb2.Progress] = {}
        if refresh and self._jobs:
            for job in self._jobs:
                job.refresh()
            progress = self._connection.progress_of([job.id for job in self._jobs])
        return [_row(job._message, progress.get(job.id)) for job in self._jobs]


def _row(message: resources_pb2.Job, progress: monitor_pb2.Progress | None) -> tuple[str, ...]:
    samples = max(message.samples, progress.samples if progress is not None else 0)
    state = job_state_of(message.state)
    rate = progress.rate if progress is not None and not state.final else 0.0
    return (
        message.id,
        message.spec.name,
        state,
        f"{len(message.confirmed_nodes)}/{len(message.wanted_nodes)}",
        f"{samples:,}" + (f" of {message.spec.target_samples:,}" if message.spec.target_samples else ""),
        f"{rate:,.1f}" if rate else "",
        message.reason.partition("\n")[0],
    )


def _display() -> Callable[[str, str], None]:
    """Shows a table in place where a notebook runs this, else prints it. IPython is never imported for that."""
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None or not hasattr(ipython.get_ipython(), "kernel"):
        return lambda _, text: print(text, flush=True) if text else None
    display: Any = ipython.display.display(ipython.display.HTML(""), display_id=True)
    return lambda html, _: display.update(ipython.display.HTML(html))


_SHOWN = 20


@dataclass(frozen=True)
class LoggedHistory:
    """The points that are kept of one metric, oldest first, in columns of equal length.

    Where a script logs more values than are kept, a point stands for several that follow each other.

    Attributes:
        name: Name of the metric.
        steps: Step of each point: as the script gave it, otherwise the samples that the job had done.
        values: Value of each point: the last one that it stands for.
        unix_seconds: When that was logged, in seconds since the epoch.
        least: The least of the values that the point stands for.
        most: The greatest of them.
        counts: How many they are.
    """

    name: str
    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    unix_seconds: tuple[float, ...] = ()
    least: tuple[float, ...] = ()
    most: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Step and value of each point."""
        return zip(self.steps, self.values, strict=True)

    def __repr__(self) -> str:
        last = f", the last {self.values[-1]:g} at step {self.steps[-1]}" if self.values else ""
        return f"<malletrain.LoggedHistory {self.name!r}: {len(self)} points{last}>"

    def _repr_html_(self) -> str:
        rows = [(f"{step:,}", f"{value:g}") for step, value in self]
        return table_html(("step", self.name), rows[-_SHOWN:])


def history_of(message: monitor_pb2.MetricHistory) -> LoggedHistory:
    """A history as Monitor sends it."""
    points = message.points
    return LoggedHistory(
        message.name,
        tuple(point.step for point in points),
        tuple(point.value for point in points),
        tuple(point.unix_seconds for point in points),
        tuple(point.least for point in points),
        tuple(point.most for point in points),
        tuple(point.values for point in points),
    )


_MAX_CELL = 200
"""Characters of a cell: names and reasons are of users, and may be long."""
_STYLE = "text-align: left; padding: 0.2em 0.8em 0.2em 0; vertical-align: top"


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in HTML, without script or style sheet.

    Args:
        columns: Headings.
        rows: Cells, as many as there are headings.
    """
    head = "".join(f'<th style="{_STYLE}">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    if not rows:
        body = f'<tr><td style="{_STYLE}" colspan="{len(columns)}">no jobs</td></tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts_html(facts: Mapping[str, str]) -> str:
    """Labels with values in HTML, those without a value left out."""
    rows = (
        f'<tr><th style="{_STYLE}">{escape(label[:_MAX_CELL])}</th>{_cell(value)}</tr>'
        for label, value in facts.items()
        if value
    )
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain text, columns aligned; control characters are shown as `?`."""
    if not rows:
        return "no jobs"
    cells = [list(columns), *([_plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def changed_lines(
    columns: Sequence[str],
    before: Sequence[Sequence[str]] | None,
    rows: Sequence[Sequence[str]],
    ignored: Collection[str] = (),
) -> str:
    """The lines of a table in plain text that have changed; the whole table at first.

    Args:
        columns: Headings.
        before: The rows as they were shown before, as many; None: they were not.
        rows: Cells, as many as there are headings.
        ignored: Headings of columns that alone make no change.
    """
    text = table_text(columns, rows)
    if before is None:
        return text
    counted = [name not in ignored for name in columns]
    changed = (
        list(compress(old, counted)) != list(compress(new, counted)) for old, new in zip(before, rows, strict=True)
    )
    return "\n".join(compress(text.splitlines()[1:], changed))


def _cell(text: str) -> str:
    return f'<td style="{_STYLE}">{escape(_cut(text))}</td>'


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in _cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…"
