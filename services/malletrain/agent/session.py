"""The workers that one supervisor has on this node."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from malletrain.agent.environment import worker_environment
from malletrain.common import environment as env
from malletrain.common.agent_protocol import AgentProtocolError, Message
from malletrain.common.connections import cut_remote
from malletrain.common.worker_process import WorkerProcess, kill_workers


class SupervisorSession:
    """Starts, controls and ends the workers of one supervisor.

    Use from one thread, which must live as long as the workers: the kernel kills a worker when the thread that started
    it ends.
    """

    def __init__(self, node: str, head: str, send: Callable[[Message], None], relay_to: Callable[[str], str]) -> None:
        """Begin without workers.

        Args:
            node: Name of this node.
            head: Address of the head node, as seen from here.
            send: Sends a message to the supervisor.
            relay_to: Returns the address on this node that leads to Monitor's proxy, given the proxy's address.
        """
        self._node = node
        self._head = head
        self._send = send
        self._relay_to = relay_to
        self._workers: dict[int, WorkerProcess] = {}
        self._ended_well: dict[int, WorkerProcess] = {}
        self._reported: dict[tuple[int, str], str | bool] = {}
        self._job_folders: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def handle(self, message: Mapping[str, Any]) -> None:
        """Do what a message of the supervisor asks for.

        Raises:
            AgentProtocolError: the message is not understood.
        """
        try:
            match message["op"]:
                case "start":
                    self._start(message)
                case "sweep":
                    self._kill_all_of(str(message["job_id"]))
                    self._send({"event": "swept", "request": message["request"]})
                case "cut":
                    cut_remote((worker.pid for worker in self._workers.values()), self._head)
                case "go":
                    self._with_worker(message, lambda worker: worker.go(message["environment"]))
                case "terminate":
                    self._with_worker(message, lambda worker: worker.terminate())
                case "kill":
                    if (ended := self._ended_well.get(int(message["id"]))) is not None:
                        ended.kill()
                    self._with_worker(message, lambda worker: worker.kill())
                case other:
                    raise AgentProtocolError(f"op: expected start, go, terminate, kill, cut or sweep, got {other!r}")
        except OSError as error:
            self._send({"event": "failed", "id": 0, "error": str(error)})
        except (KeyError, TypeError, ValueError) as error:
            raise AgentProtocolError(f"can't do {message!r:.200}: {error!r}") from error

    def report_leaving(self) -> None:
        """Report that the node is wanted back, before any worker is reported that ends because of that."""
        self._send({"event": "leaving", "id": 0})

    def poll(self) -> None:
        """Report what has changed since the last call.

        When a worker ends with exit status 0, the rest of its process group is not killed yet: its sidecar may still
        deliver records. The supervisor says when to kill it.
        """
        for number, worker in list(self._workers.items()):
            worker.is_warm()
            self._report(number, "said", worker.status.decode("ascii", "replace"))
            self._report(number, "stopped", worker.is_stopped())
            code = worker.poll()
            if code is not None:
                worker.close()
                if code == 0:
                    self._ended_well[number] = worker
                else:
                    worker.kill()
                del self._workers[number]
                self._send({"event": "ended", "id": number, "code": code})
        for number, worker in list(self._ended_well.items()):
            if not worker.has_group():
                del self._ended_well[number]
                self._send({"event": "cleared", "id": number})

    def kill(self) -> None:
        """Kill all workers, and all other processes of their jobs on this node."""
        for worker in (*self._workers.values(), *self._ended_well.values()):
            worker.kill()
        for job_id in self._job_folders:
            self._kill_all_of(job_id)

    def _start(self, message: Mapping[str, Any]) -> None:
        number = int(message["id"])
        given = {str(name): str(value) for name, value in message["environment"].items()}
        programs, cpus = str(Path(sys.executable).parent), len(os.sched_getaffinity(0))
        environment = worker_environment(os.environ, given, programs, cpus)
        self._job_folders[environment[env.JOB_ID]] = environment[env.JOB_DIR]
        try:
            if gate := environment.get(env.MONITOR_GATE):
                environment[env.MONITOR] = self._relay_to(gate)
            worker = WorkerProcess(
                [str(word) for word in message["command"]],
                str(message["folder"]),
                environment,
                Path(message["log"]),
                warm=bool(message["warm"]),
            )
        except OSError as error:
            self._send({"event": "failed", "id": number, "error": str(error)})
            return
        self._workers[number] = worker
        self._send({"event": "started", "id": number, "pid": worker.pid})

    def _kill_all_of(self, job_id: str) -> None:
        """Kill all processes of a job on this node until none is left.

        Jobs of another installation may have the same identifiers, so the job's folder must be the same, too.
        """
        marks = {env.JOB_DIR: self._job_folders[job_id]} if job_id in self._job_folders else None
        while kill_workers(job_id, {self._node}, marks):
            for worker in self._workers.values():
                worker.poll()

    def _with_worker(self, message: Mapping[str, Any], act: Callable[[WorkerProcess], None]) -> None:
        worker = self._workers.get(int(message["id"]))
        if worker is not None:  # it may have ended while the message was on its way
            act(worker)

    def _report(self, number: int, name: str, value: str | bool) -> None:
        """Report a value of a worker if it has changed; empty or False at first."""
        if self._reported.get((number, name), type(value)()) != value:
            self._reported[number, name] = value
            self._send({"event": name, "id": number, name: value})
