"""The reporters that are connected: the memory that they may take, and the commands that are sent to them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from malletrain.monitor.machine.progress import ReportedBatch
from malletrain.monitor.training_metrics.history import SamplesByTime
from malletrain.runtime.errors import InvalidInputError, LimitExceededError
from malletrain.v1 import monitor_pb2

MAX_COMMANDS = 16
"""That wait for a reporter, or for any of a job; older ones are forgotten."""


class ReportStream:
    """The responses to one connected reporter. Those that it does not take are few, however much it sends.

    Attributes:
        job_id: The reporter's job; empty before its first message.
        reporter_id: Its identifier; empty before its first message.
        counted: Whether it counts among the streams of its job.
        samples_by_time: How far the job was when, since the reporter has sent the first logged value; None before.
    """

    def __init__(self) -> None:
        self.job_id = ""
        self.reporter_id = ""
        self.counted = False
        self.samples_by_time: SamplesByTime | None = None
        self._acknowledged = self._metrics = 0
        self._sent = 0
        self._commands: deque[monitor_pb2.Command] = deque(maxlen=MAX_COMMANDS)
        self._ended = False
        self._news = asyncio.Event()

    def identify(self, batch: ReportedBatch) -> bool:
        """Take job and reporter from a message; returns whether it is the first one.

        Raises:
            InvalidInputError: the message names another job or reporter than the first one.
        """
        if not self.job_id:
            self.job_id, self.reporter_id = batch.job_id, batch.reporter_id
            return True
        for name, known, got in (
            ("job_id", self.job_id, batch.job_id),
            ("reporter_id", self.reporter_id, batch.reporter_id),
        ):
            if known != got:
                raise InvalidInputError(name, f"that of the stream's first message ({known!r})", got)
        return False

    def acknowledge(self, sequence: int, metrics: int = 0) -> None:
        """Tell the reporter that all records up to this sequence number are stored, and values up to this number."""
        self._acknowledged, self._sent = sequence, -1
        self._metrics = max(self._metrics, metrics)
        self._news.set()

    def command(self, command: monitor_pb2.Command) -> None:
        """Send a command to the reporter; of those that it has not taken, the newest."""
        self._commands.append(command)
        self._news.set()

    def end(self) -> None:
        """End the stream after the responses so far."""
        self._ended = True
        self._news.set()

    async def next(self) -> monitor_pb2.ReportResponse | None:
        """Wait for the next response, with all that is new since the last one; None at the end of the stream."""
        while self._sent == self._acknowledged and not self._commands:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        commands, self._sent = list(self._commands), self._acknowledged
        self._commands.clear()
        return monitor_pb2.ReportResponse(
            acknowledged_sequence=self._acknowledged, commands=commands, acknowledged_metrics=self._metrics
        )


@dataclass(frozen=True, slots=True)
class _PendingCommand:
    """A command that waits for a reporter until a monotonic time in seconds."""

    command: monitor_pb2.Command
    until: float


class CommandRouter:
    """Sends commands to all reporters of a job. If there is none, a command waits for one for a limited time."""

    def __init__(self, command_seconds: float, new_id: Callable[[], str]) -> None:
        """
        Args:
            command_seconds: How long a command waits for a reporter, in seconds.
            new_id: Makes identifiers of commands.
        """
        self._command_seconds = command_seconds
        self._new_id = new_id
        self._streams: dict[str, set[ReportStream]] = {}
        self._pending: dict[str, deque[_PendingCommand]] = {}

    def join(self, stream: ReportStream, now: float) -> None:
        """Add a stream and send it the commands that wait for its job.

        Args:
            stream: An identified stream.
            now: Monotonic time in seconds.
        """
        self._streams.setdefault(stream.job_id, set()).add(stream)
        for pending in self._pending.pop(stream.job_id, ()):
            if pending.until >= now:
                stream.command(pending.command)

    def leave(self, stream: ReportStream) -> None:
        """Remove a stream."""
        streams = self._streams.get(stream.job_id)
        if streams is not None:
            streams.discard(stream)
            if not streams:
                del self._streams[stream.job_id]

    def send(self, job_id: str, kind: monitor_pb2.CommandType.ValueType, now: float, nodes: int = 0) -> int:
        """Send a command to every reporter of a job, or keep it for the next one that connects.

        Args:
            job_id: The job.
            kind: The type of the command.
            now: Monotonic time in seconds.
            nodes: How many nodes the job is about to have; 0: not known.

        Returns:
            Number of connected reporters that it was sent to.
        """
        self._drop_expired(now)
        command = monitor_pb2.Command(id=self._new_id(), type=kind, nodes=nodes)
        streams = self._streams.get(job_id, set())
        for stream in streams:
            stream.command(command)
        if not streams:
            waiting = self._pending.setdefault(job_id, deque(maxlen=MAX_COMMANDS))
            waiting.append(_PendingCommand(command, now + self._command_seconds))
        return len(streams)

    def end_all(self) -> None:
        """End every stream."""
        for streams in self._streams.values():
            for stream in streams:
                stream.end()

    def _drop_expired(self, now: float) -> None:
        for job_id, entries in list(self._pending.items()):
            while entries and entries[0].until < now:
                entries.popleft()
            if not entries:
                del self._pending[job_id]


_MIB = 1 << 20


@dataclass(frozen=True)
class ReportLimits:
    """What may wait at a time.

    Attributes:
        job_bytes: Of one job, in bytes of messages; as values they take about ten times as much.
        owner_bytes: Of all jobs of one owner.
        all_bytes: Of all jobs.
        job_streams: Streams of one job: one reports, and those before it are ending.
    """

    job_bytes: int = 1 * _MIB
    owner_bytes: int = 4 * _MIB
    all_bytes: int = 16 * _MIB
    job_streams: int = 8


DEFAULT_LIMITS = ReportLimits()


class ReportBudget:
    """Bounds the bytes of reports in memory: each is reserved before it is read, and freed once it is counted.

    Where too much waits, nothing more is read of the stream, and gRPC's flow control slows its reporter down.
    """

    def __init__(self, limits: ReportLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._of_job: Counter[str] = Counter()
        self._of_owner: Counter[str] = Counter()
        self._in_all = 0
        self._owners: dict[str, str] = {}
        self._owner_when_taken: dict[str, str] = {}
        self._streams: Counter[str] = Counter()
        self._less = asyncio.Event()

    def note_owners(self, owners: Iterable[tuple[str, str]], *, snapshot: bool) -> None:
        """Jobs and their owners. A job that is not known yet is its own owner.

        Args:
            owners: Identifiers of jobs, each with its owner.
            snapshot: Whether these are all jobs.
        """
        if snapshot:
            self._owners = {}
        self._owners.update(owners)

    def owner_of(self, job_id: str) -> str:
        """The user who submitted a job; empty: not known."""
        return self._owners.get(job_id, "")

    def open(self, job_id: str) -> None:
        """Count a stream of a job.

        Raises:
            LimitExceededError: it has too many; this one is not counted.
        """
        if self._streams[job_id] >= self._limits.job_streams:
            raise LimitExceededError(f"job {job_id} reports by {self._streams[job_id]} streams already")
        self._streams[job_id] += 1

    def close(self, job_id: str) -> None:
        """A stream that was counted has ended."""
        self._streams[job_id] -= 1
        if self._streams[job_id] <= 0:
            del self._streams[job_id]

    async def wait_for_room(self, job_id: str, size: int) -> None:
        """Wait until a report of so many bytes fits. One that is alone always does."""
        while not self._fits(job_id, size):
            self._less.clear()
            await self._less.wait()
        # The owner under whom it is counted stays the same until it is given back, whatever becomes known meanwhile.
        owner = self._owner_when_taken.setdefault(job_id, self._owners.get(job_id, job_id))
        self._of_job[job_id] += size
        self._of_owner[owner] += size
        self._in_all += size

    def give_back(self, job_id: str, size: int) -> None:
        """A report that was taken is counted, or was no good."""
        owner = self._owner_when_taken.get(job_id, job_id)
        self._of_job[job_id] -= size
        self._of_owner[owner] -= size
        self._in_all -= size
        if self._of_job[job_id] <= 0:
            del self._of_job[job_id]
            self._owner_when_taken.pop(job_id, None)
        if self._of_owner[owner] <= 0:
            del self._of_owner[owner]
        self._less.set()

    def _fits(self, job_id: str, size: int) -> bool:
        owner = self._owner_when_taken.get(job_id) or self._owners.get(job_id, job_id)
        of_job, of_owner = self._of_job.get(job_id, 0), self._of_owner.get(owner, 0)
        return (
            (not of_job or of_job + size <= self._limits.job_bytes)
            and (not of_owner or of_owner + size <= self._limits.owner_bytes)
            and (not self._in_all or self._in_all + size <= self._limits.all_bytes)
        )
