"""The log of a job, as its readers get it: whole or followed, its lines with their times."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from malletrain.caller.reconnecting import across_restarts
from malletrain.caller.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import job_manager_pb2

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
_NO_TIME = "-" * len("2026-01-31 12:00:00")
_LATEST_MS = 250_000_000_000_000
"""In the year 9892: Python knows no dates after 9999."""


@dataclass(frozen=True)
class LogLine:
    """A line of a job's log.

    Attributes:
        text: With the node that wrote it in front: "n017 | text".
        unix_ms: By when it was written, in milliseconds since the epoch; 0: not known.
    """

    text: str
    unix_ms: int = 0

    @property
    def with_time(self) -> str:
        """The text after its time, as this machine's clock would show it; dashes where it is not known."""
        if not 0 < self.unix_ms < _LATEST_MS:
            return f"{_NO_TIME}  {self.text}"
        at = datetime.fromtimestamp(self.unix_ms / 1000, UTC).astimezone()
        return f"{at:{_TIME_FORMAT}}  {self.text}"


def since_ms_of(since: str | float | timedelta | datetime | None, now: float, field: str) -> int:
    """The moment from which on lines are wanted, in milliseconds since the epoch; 0: all.

    Args:
        since: How long ago (a number of seconds, a timedelta, or a text such as "90s", "5m", "2h", "1d" or "1w"), or
            when (a datetime, or a text such as "2026-11-28 09:30"; without a zone it is local time). None: always.
        now: Seconds since the epoch.
        field: Its name, for errors.

    Raises:
        InvalidInputError: it is none of these.
    """
    if since is None or since == "":
        return 0
    if isinstance(since, timedelta):
        return _before(now, since.total_seconds())
    if isinstance(since, int | float):
        if not 0 <= since < _LATEST_MS:
            raise InvalidInputError(field, "seconds, at least 0", since)
        return _before(now, since)
    if isinstance(since, str) and (match := _SPAN.fullmatch(since.strip())):
        return _before(now, float(match[1]) * _UNIT_SECONDS[match[2]])
    try:
        at = since if isinstance(since, datetime) else datetime.fromisoformat(since.strip())
        return max(1, int(at.timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise InvalidInputError(field, "a time such as 5m, 2h or 2026-11-28T09:30", since) from None


def _before(now: float, seconds: float) -> int:
    return max(1, int((now - seconds) * 1000))


def matching(lines: Iterable[LogLine], grep: str, field: str) -> Iterator[LogLine]:
    """The lines in which a regular expression is found.

    Args:
        grep: The expression; empty: all lines.
        field: Its name, for errors.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        wanted = re.compile(grep)
    except re.error as error:
        raise InvalidInputError(field, f"a regular expression ({error})", grep) from None
    return (line for line in lines if wanted.search(line.text))


def log_lines(stubs: ServiceStubs, job_id: str, tail: int = 0, since_ms: int = 0) -> Iterator[LogLine]:
    """The lines of a job's log so far.

    Args:
        stubs: The services.
        job_id: The job.
        tail: Only the last lines, this many; 0: all.
        since_ms: Without lines that are known to have been written before, in milliseconds since the epoch; 0: all.

    Raises:
        grpc.RpcError: JobManager refuses, or does not answer.
    """
    request = job_manager_pb2.StreamLogsRequest(job_id=job_id, tail_lines=tail, since_unix_ms=since_ms)
    for response in stubs.job_manager.StreamLogs(request, timeout=6 * DEADLINE_SECONDS):
        yield from _lines_of(response)


def followed_log(
    stubs: ServiceStubs, job_id: str, tail: int, say: Callable[[str], None], since_ms: int = 0
) -> Iterator[LogLine]:
    """The lines of a job's log until it has ended, over restarts of JobManager: no line comes twice or is left out.

    Args:
        stubs: The services.
        job_id: The job.
        tail: Only the last lines of those that there are, this many; 0: all.
        say: Told that JobManager does not answer, and that it does again.
        since_ms: As `log_lines`.

    Raises:
        grpc.RpcError: the call fails for a reason that does not pass.
    """
    stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=DEADLINE_SECONDS)
    positions: dict[str, int] = {}
    for part in across_restarts("JobManager", lambda: _log_parts(stubs, job_id, tail, since_ms, positions), say):
        yield from _lines_of(part)
        positions.update(part.positions)
        if part.ended:
            return


def _log_parts(
    stubs: ServiceStubs, job_id: str, tail: int, since_ms: int, positions: Mapping[str, int]
) -> Generator[job_manager_pb2.StreamLogsResponse, None, None]:
    """What comes after some positions; a new JobManager is asked for what begins where the printed lines end."""
    missing = 0 if positions else tail  # the first part says where the last lines begin
    request = job_manager_pb2.StreamLogsRequest(
        job_id=job_id, follow=True, tail_lines=missing, positions=positions, since_unix_ms=since_ms
    )
    stream = stubs.job_manager.StreamLogs(request)
    earlier_version = True  # of JobManager: it sends neither positions nor parts without lines, nor says the end
    try:
        for part in stream:
            earlier_version = earlier_version and bool(part.lines) and not part.positions
            yield part
    finally:
        stream.cancel()
    if earlier_version:
        yield job_manager_pb2.StreamLogsResponse(ended=True)


def _lines_of(part: job_manager_pb2.StreamLogsResponse) -> Iterator[LogLine]:
    """The lines of one message; without times from a JobManager of an earlier version."""
    times = list(part.unix_ms) or [0] * len(part.lines)
    return map(LogLine, part.lines, times)
