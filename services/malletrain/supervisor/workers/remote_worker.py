"""A worker on another node, which the agent there starts and ends."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping

from malletrain.supervisor.workers.slot import Slot
from malletrain.v1 import agent_pb2 as pb

_NOT_STARTED = 127
"""Exit status of a worker that could not be started, as of a shell."""

log = logging.getLogger(__name__)


class RemoteWorker:
    """A worker on another node; see `malletrain.supervisor.workers.worker.Worker`.

    Attributes:
        number: Identifies it to the agent.
        started: Whether the job's own code runs.
        out_of_memory: Whether the kernel killed processes on its node for want of memory when it was killed.
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
            number: Identifies it to the agent.
            here: Whether the agent is on this machine.
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
        self.place: Mapping[str, str] | None = None
        self.out_of_memory = False
        self._not_started = False
        self._warm = False
        self._can_prepare = False
        self._prepared = False
        self._send = send
        self._lost = lost
        self._stopped = False
        self._session_ended = False
        self._code: int | None = None

    def handle(self, response: pb.ControlWorkersResponse) -> None:
        """Take in what the agent reports of this worker."""
        match response.WhichOneof("response"):
            case "started":
                self.pid = response.started.pid
                self._can_prepare = response.started.can_prepare
            case "status_changed":
                self._warm = response.status_changed.warm
                self.started = response.status_changed.code_started
                self._prepared = response.status_changed.prepared
            case "stopped_changed":
                self._stopped = response.stopped_changed.stopped
            case "ended":
                self._code = response.ended.exit_status
                self.out_of_memory = response.ended.out_of_memory
            case "group_ended":
                self._session_ended = True
            case "start_failed":
                log.warning("worker on %s can't be started: %s", self.slot.host, response.start_failed.error)
                self._code = _NOT_STARTED
                self._not_started = True
                self._session_ended = True

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs. It is killed if the connection is lost."""
        return -signal.SIGKILL if self._code is None and self._lost.is_set() else self._code

    @property
    def lost(self) -> bool:
        """Whether it has ended with the agent of its node, or could not be started there."""
        return self._not_started or (self._code is None and self._lost.is_set())

    @property
    def of_release_0_1(self) -> bool:
        """Whether its agent is of release 0.1: those of later ones can prepare workers."""
        return self.pid != 0 and not self._can_prepare

    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped it."""
        return self._stopped

    def is_warm(self) -> bool:
        """Whether it has booted."""
        return self._warm

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Have it get ready for a place."""
        self.place = dict(environment)
        if self._can_prepare:
            prepare = pb.PrepareCode(worker=self.number, environment=environment)
            self._send(pb.ControlWorkersRequest(prepare_code=prepare))

    def is_prepared(self) -> bool:
        """Whether it has got ready for its place. Where the agent does not know how, it does that after its start."""
        return self.place is not None and (self._prepared or not self._can_prepare)

    def go(self, environment: Mapping[str, str]) -> None:
        """Let the job's own code run, with these variables added to its environment."""
        self.going = True
        start = pb.StartCode(worker=self.number, environment=environment)
        self._send(pb.ControlWorkersRequest(start_code=start))

    def terminate(self, grace: float) -> None:
        """Send SIGTERM: the worker may save its state, and then ends."""
        asked = pb.TerminateWorker(worker=self.number, grace_seconds=grace)
        self._send(pb.ControlWorkersRequest(terminate=asked))

    def kill(self) -> None:
        """Kill its process group."""
        self.killed = True
        self._send(pb.ControlWorkersRequest(kill=pb.KillWorker(worker=self.number)))

    def has_session(self) -> bool:
        """Whether any process of its session still runs, as far as is known."""
        return not (self._session_ended or self._lost.is_set())

    def kill_session(self) -> None:
        """The agent does, in time; nobody waits for that any more."""
        self._session_ended = True

    def close(self) -> None:
        """Nothing to release."""
