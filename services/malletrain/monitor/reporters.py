"""The reporters that are connected, and the commands on their way to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from malletrain.monitor.records import Batch
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import monitor_pb2


class ReportStream:
    """One connected reporter: what goes back to it."""

    def __init__(self) -> None:
        self.job_id = ""
        self.reporter_id = ""
        self._outbox: asyncio.Queue[monitor_pb2.ReportResponse | None] = asyncio.Queue()
        self._acknowledged = 0

    def identify(self, batch: Batch) -> bool:
        """Note whose stream this is; True at the first message.

        Raises:
            InvalidInputError: the message names another job or reporter than those before it.
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

    def acknowledge(self, sequence: int) -> None:
        """Tell the reporter that everything up to this sequence is stored."""
        self._acknowledged = sequence
        self._outbox.put_nowait(monitor_pb2.ReportResponse(acknowledged_sequence=sequence))

    def command(self, command: monitor_pb2.Command) -> None:
        """Pass a command on."""
        response = monitor_pb2.ReportResponse(acknowledged_sequence=self._acknowledged, commands=[command])
        self._outbox.put_nowait(response)

    def end(self) -> None:
        """Nothing more follows."""
        self._outbox.put_nowait(None)

    async def next(self) -> monitor_pb2.ReportResponse | None:
        """The next message to the reporter; None at the end."""
        return await self._outbox.get()


@dataclass(frozen=True, slots=True)
class _Waiting:
    command: monitor_pb2.Command
    until: float


class Switchboard:
    """Finds the streams of a job; keeps a command for a moment where there is none."""

    def __init__(self, command_seconds: float, new_id: Callable[[], str]) -> None:
        """Args: how long a command waits for a reporter, in seconds, and where identifiers come from."""
        self._command_seconds = command_seconds
        self._new_id = new_id
        self._streams: dict[str, set[ReportStream]] = {}
        self._waiting: dict[str, list[_Waiting]] = {}

    def join(self, stream: ReportStream, now: float) -> None:
        """Add a stream and hand it the commands that wait for its job.

        Args:
            stream: An identified stream.
            now: Monotonic time in seconds.
        """
        self._streams.setdefault(stream.job_id, set()).add(stream)
        for waiting in self._waiting.pop(stream.job_id, []):
            if waiting.until >= now:
                stream.command(waiting.command)

    def leave(self, stream: ReportStream) -> None:
        """Forget a stream."""
        streams = self._streams.get(stream.job_id)
        if streams is not None:
            streams.discard(stream)
            if not streams:
                del self._streams[stream.job_id]

    def send(self, job_id: str, kind: monitor_pb2.CommandType.ValueType, now: float) -> int:
        """Pass a command to every reporter of a job, or keep it for the next one to come.

        Args:
            job_id: The job.
            kind: What is asked.
            now: Monotonic time in seconds.

        Returns:
            Reporters that are connected and get it.
        """
        self._drop_expired(now)
        command = monitor_pb2.Command(id=self._new_id(), type=kind)
        streams = self._streams.get(job_id, set())
        for stream in streams:
            stream.command(command)
        if not streams:
            self._waiting.setdefault(job_id, []).append(_Waiting(command, now + self._command_seconds))
        return len(streams)

    def end_all(self) -> None:
        """End every stream."""
        for streams in self._streams.values():
            for stream in streams:
                stream.end()

    def _drop_expired(self, now: float) -> None:
        kept = {job: [entry for entry in entries if entry.until >= now] for job, entries in self._waiting.items()}
        self._waiting = {job: entries for job, entries in kept.items() if entries}
