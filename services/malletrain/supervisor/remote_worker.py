"""A worker on another node, which the agent there starts and ends."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping

from malletrain.supervisor.membership import Slot
from malletrain.v1 import agent_pb2 as pb

_NOT_STARTED = 127
"""Exit status of a worker that could not be started, as of a shell."""

log = logging.getLogger(__name__)


class RemoteWorker:
    """A worker on another node; see `malletrain.supervisor.worker.Worker`.

    Attributes:
        number: Identifies it to the agent.
        started: Whether the job's own code runs.
    """

    def __init__(
        self,
        slot: Slot,
        number: int,
        here: bool,
        send: Callable[[pb.ControlWorkersRequest], None],
        lost: threading.Event,
    ) -> None:
        """It has been asked for.

        Args:
            slot: Its slot.
            number: Identifies it to the agent.
            here: Whether the agent is on this machine.
            send: Sends a message to the agent.
            lost: Set once the agent is lost.
        """
        self.slot = slot
        self.here = here
        self.number = number
        self.pid = 0
        self.started = False
        self.going = False
        self.killed = False
        self.hung = False
        self._warm = False
        self._send = send
        self._lost = lost
        self._stopped = False
        self._group_ended = False
        self._code: int | None = None

    def handle(self, response: pb.ControlWorkersResponse) -> None:
        """Take in what the agent reports of this worker."""
        match response.WhichOneof("response"):
            case "started":
                self.pid = response.started.pid
            case "status_changed":
                self._warm = response.status_changed.warm
                self.started = response.status_changed.code_started
            case "stopped_changed":
                self._stopped = response.stopped_changed.stopped
            case "ended":
                self._code = response.ended.exit_status
                self._group_ended = self._code != 0  # the agent kills the group of a worker that failed
            case "group_ended":
                self._group_ended = True
            case "start_failed":
                log.warning("worker on %s can't be started: %s", self.slot.host, response.start_failed.error)
                self._code = _NOT_STARTED
                self._group_ended = True

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs. It is killed if the connection is lost."""
        return -signal.SIGKILL if self._code is None and self._lost.is_set() else self._code

    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped it."""
        return self._stopped

    def is_warm(self) -> bool:
        """Whether it has booted."""
        return self._warm

    def go(self, environment: Mapping[str, str]) -> None:
        """Let the job's own code run, with these variables added to its environment."""
        self.going = True
        start = pb.StartCode(worker=self.number, environment=environment)
        self._send(pb.ControlWorkersRequest(start_code=start))

    def terminate(self) -> None:
        """Send SIGTERM: the worker may save its state, and then ends."""
        self._send(pb.ControlWorkersRequest(terminate=pb.TerminateWorker(worker=self.number)))

    def kill(self) -> None:
        """Kill its process group."""
        self.killed = True
        self._send(pb.ControlWorkersRequest(kill=pb.KillWorker(worker=self.number)))

    def has_group(self) -> bool:
        """Whether any process of its process group still runs, as far as is known."""
        return not (self._group_ended or self._lost.is_set())

    def close(self) -> None:
        """Nothing to release."""
