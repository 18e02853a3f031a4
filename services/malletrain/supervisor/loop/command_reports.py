"""How the newest commands were carried out, for those that came with a trace context."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.common.trace_context import parse_traceparent
from malletrain.supervisor.workers.slot import Slot
from malletrain.v1 import resources_pb2, supervisor_pb2

_MAX_REPORTS = 16
_MAX_OPEN = 16
_MAX_STEPS = 256

Kind: TypeAlias = "supervisor_pb2.CommandKind.ValueType"
SET_HOSTS = supervisor_pb2.COMMAND_KIND_SET_HOSTS
RELEASE_HOSTS = supervisor_pb2.COMMAND_KIND_RELEASE_HOSTS
STOP = supervisor_pb2.COMMAND_KIND_STOP


@dataclass
class _OpenCommand:
    """A command that is being carried out.

    Attributes:
        report: What will be reported.
        sequence: Of SetHosts; 0 for others.
        waiting: Hosts where the workers are not yet as they shall be: name to workers that shall be there.
    """

    report: supervisor_pb2.CommandReport
    sequence: int
    waiting: dict[str, int] = field(default_factory=dict)


class CommandReports:
    """Follows commands. Used from the supervisor's main thread only; without trace contexts it does nothing."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Begin with none.

        Args:
            clock: Seconds since the epoch.
        """
        self._clock = clock
        self._open: list[_OpenCommand] = []
        self._finished: deque[supervisor_pb2.CommandReport] = deque(maxlen=_MAX_REPORTS)

    @property
    def following(self) -> bool:
        """Whether a command is being carried out that is reported."""
        return bool(self._open)

    @property
    def finished(self) -> Sequence[supervisor_pb2.CommandReport]:
        """The newest commands that are over."""
        return self._finished

    def begin(self, kind: Kind, traceparent: str, hosts: Mapping[str, int], sequence: int = 0) -> None:
        """A command is taken.

        Args:
            kind: What is commanded.
            traceparent: What came with it; anything but a trace context that is sampled is ignored.
            hosts: The hosts that it is about: name to workers that shall be there.
            sequence: Of SetHosts.
        """
        if kind == SET_HOSTS:
            self._end([command for command in self._open if command.sequence], done=False)
        context = parse_traceparent(traceparent)
        if context is None or not context.sampled or len(self._open) >= _MAX_OPEN:
            return
        report = supervisor_pb2.CommandReport(
            trace_context=resources_pb2.TraceContext(traceparent=context.traceparent),
            kind=kind,
            begin_time=self._now(),
        )
        self._open.append(_OpenCommand(report, sequence, dict(hosts)))

    def follow(self, workers: Iterable[tuple[Slot, int]], confirmed_sequence: int) -> None:
        """Note how far the open commands are.

        Args:
            workers: Slot and process id of each worker; 0 where it is being started.
            confirmed_sequence: Of the newest SetHosts that was carried out.
        """
        found = list(workers)
        there = Counter(slot.host for slot, _ in found)
        started = Counter(slot.host for slot, pid in found if pid > 0)
        for command in self._open:
            for host, wanted in list(command.waiting.items()):
                if (started[host] >= wanted) if wanted else not there[host]:
                    del command.waiting[host]
                    self._note(command.report, host, started=wanted > 0)
        done = [command for command in self._open if command.sequence and command.sequence <= confirmed_sequence]
        self._end(done, done=True)

    def released(self, hosts: frozenset[str]) -> None:
        """Nothing is left on hosts, as was commanded."""
        self._end(
            [
                command
                for command in self._open
                if command.report.kind == RELEASE_HOSTS
                and hosts >= {*command.waiting, *(step.host for step in command.report.steps)}
            ],
            done=True,
        )

    def close(self) -> None:
        """No worker is left."""
        self._end([command for command in self._open if command.sequence], done=False)
        self._end(list(self._open), done=True)

    def _end(self, commands: list[_OpenCommand], *, done: bool) -> None:
        for command in commands:
            if not command.sequence:
                for host in list(command.waiting):
                    self._note(command.report, host, started=False)
            command.report.done = done
            command.report.end_time.CopyFrom(self._now())
            self._open.remove(command)
            self._finished.append(command.report)

    def _note(self, report: supervisor_pb2.CommandReport, host: str, *, started: bool) -> None:
        if len(report.steps) < _MAX_STEPS:
            report.steps.add(host=host, started=started, time=self._now())

    def _now(self) -> Timestamp:
        stamp = Timestamp()
        stamp.FromNanoseconds(round(self._clock() * 1e9))
        return stamp
