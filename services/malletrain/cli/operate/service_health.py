"""Whether a service that runs still answers: it is asked again and again, and what counts as hung is decided here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from malletrain.cli.shared.stubs import is_unverified
from malletrain.common.backoff import Backoff
from malletrain.runtime.channel import open_blocking_channel
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.peer import Peer
from malletrain.runtime.watchdog import BUSY_FACTOR

_ASK_SECONDS = 1.0
_FIRST_ASK_SECONDS = 0.05
_MAX_FIRST_ASK_SECONDS = 0.25
_ANSWER_SECONDS = 2.0
_MIN_UNANSWERED = 3
_MAX_TURN_SECONDS = 0.5
_BUSY_STATES = frozenset("RD")
_SILENT_CODES = frozenset(
    (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
)  # fmt: skip


class HealthAnswer(Enum):
    """What has come of a question."""

    SERVING = "serving"
    ALIVE = "alive"
    """It answers that it does not serve, or not us."""
    NONE = "none"
    """There was no answer in time."""


@dataclass(frozen=True)
class Activity:
    """How busy a process is, by the kernel.

    Attributes:
        state: State of its first thread, in which the event loop of a service runs: a letter as in /proc/PID/stat.
        cpu_ticks: CPU time of all its threads so far.
    """

    state: str
    cpu_ticks: int

    def is_busy(self, before: Activity | None) -> bool:
        """Whether it works, or would if the machine let it; not: it waits for something, or is stopped.

        Args:
            before: What it has done at the turn before; None: that is not known.
        """
        return self.state in _BUSY_STATES or (before is not None and self.cpu_ticks > before.cpu_ticks)


@dataclass(frozen=True)
class Silence:
    """How long a service has not answered, counted by whoever asks.

    Each turn of the loop that asks counts for half a second at most: while this machine was suspended, or had no time
    for the loop, a service had no time to answer either.

    Attributes:
        seconds: Time since the last answer, that in which the service was busy by a fifth.
        unanswered: How many questions had no answer since then.
    """

    seconds: float = 0.0
    unanswered: int = 0

    def after_turn(self, seconds: float, answer: HealthAnswer | None, *, busy: bool) -> Silence:
        """The silence after one more turn.

        Args:
            seconds: Time since the turn before.
            answer: What has come of a question in this turn; None: nothing yet.
            busy: Whether the service was busy.
        """
        if answer in (HealthAnswer.SERVING, HealthAnswer.ALIVE):
            return Silence()
        counted = min(max(0.0, seconds), _MAX_TURN_SECONDS) / (BUSY_FACTOR if busy else 1.0)
        return Silence(self.seconds + counted, self.unanswered + (answer is HealthAnswer.NONE))

    def is_too_long(self, limit_seconds: float) -> bool:
        """Whether the service has hung: several questions in a row without an answer, and the time is over."""
        return self.unanswered >= _MIN_UNANSWERED and self.seconds >= limit_seconds


class HealthQuestions:
    """Asks one service whether it serves (grpc.health.v1), over TLS; never waits.

    Attributes:
        peer: Address of the service.
    """

    def __init__(self, peer: Peer) -> None:
        """Nothing happens before `look`."""
        self.peer = peer
        self._channel: grpc.Channel | None = None
        self._call: Any = None
        self._ask_at = 0.0
        self._first_asks = Backoff(_FIRST_ASK_SECONDS, _MAX_FIRST_ASK_SECONDS)

    def look(self, now: float, *, served: bool) -> HealthAnswer | None:
        """Take in an answer, if one has come, and ask again when it is time.

        Args:
            now: Monotonic time in seconds.
            served: Whether it has served before: while it has not, each question is asked on a connection of its own.

        Returns:
            What has come of the last question; None: nothing yet, or it can't be asked.
        """
        answer = None
        if self._call is not None and self._call.done():
            answer, self._call = _answer_of(self._call), None
            if not served and answer is not HealthAnswer.SERVING:
                self._disconnect()
        if self._call is None and now >= self._ask_at:
            self._ask(now)
        return answer

    def _ask(self, now: float) -> None:
        # Soon where it has just begun; less often where that takes long, for each time is a connection.
        self._ask_at = now + (_ASK_SECONDS if self._channel is not None else self._first_asks.fail())
        try:
            self._channel = self._channel or open_blocking_channel(self.peer, None)
            stub = health_pb2_grpc.HealthStub(self._channel)
            self._call = stub.Check.future(health_pb2.HealthCheckRequest(), timeout=_ANSWER_SECONDS)
        except InvalidInputError:
            return  # there is no certificate to know it by: it may not have begun
        except RuntimeError:  # so says Python where the machine has no room for another thread
            self._disconnect()

    def close(self) -> None:
        """Forget the connection, e.g. since there is another process."""
        self._disconnect()
        self._first_asks.succeed()

    def _disconnect(self) -> None:
        self._call = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _answer_of(call: Any) -> HealthAnswer:
    error = call.exception()
    if error is None:
        serving = call.result().status == health_pb2.HealthCheckResponse.SERVING
        return HealthAnswer.SERVING if serving else HealthAnswer.ALIVE
    silent = error.code() in _SILENT_CODES and not is_unverified(error)
    return HealthAnswer.NONE if silent else HealthAnswer.ALIVE


def activity_of(pid: int) -> Activity | None:
    """What a process does; None: it has ended, and its parent knows."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return Activity(fields[0], int(fields[11]) + int(fields[12]))
