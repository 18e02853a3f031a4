"""The workers that one supervisor has on this node."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from malletrain.agent.relay import GATE, MONITOR
from malletrain.agent.wire import Message, WireError
from malletrain.supervisor.connections import cut_off
from malletrain.supervisor.membership import Slot
from malletrain.supervisor.processes import JOB_FOLDER, WorkerProcess, sweep

_BATCH_VARIABLES = ("SLURM_", "PBS_", "PMI_", "PMIX_")
"""Those of the placeholder: frameworks that see them believe that they were started by srun or mpirun."""


class Workers:
    """Starts, drives and ends them. Use from one thread that lives as long as they shall."""

    def __init__(self, node: str, head: str, say: Callable[[Message], None], relay_to: Callable[[str], str]) -> None:
        """Begin with none.

        Args:
            node: Name of this node.
            head: Address of the head node, as seen from here.
            say: Tells the supervisor something.
            relay_to: From the gate of Monitor to the address on this node that leads there.
        """
        self._node = node
        self._head = head
        self._say = say
        self._relay_to = relay_to
        self._workers: dict[int, WorkerProcess] = {}
        self._stopped: dict[int, bool] = {}
        self._said: dict[int, bytes] = {}
        self._folders: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def obey(self, message: Mapping[str, Any]) -> None:
        """Do what the supervisor says.

        Raises:
            WireError: that is not understood.
        """
        try:
            match message["op"]:
                case "start":
                    self._start(message)
                case "sweep":
                    self._sweep(str(message["job_id"]))
                    self._say({"event": "swept", "request": message["request"]})
                case "cut":
                    cut_off((worker.pid for worker in self._workers.values()), self._head)
                case "go":
                    self._of(message, lambda worker: worker.go(message["environment"]))
                case "terminate":
                    self._of(message, lambda worker: worker.terminate())
                case "kill":
                    self._of(message, lambda worker: worker.kill())
                case other:
                    raise WireError(f"op: expected start, go, terminate, kill, cut or sweep, got {other!r}")
        except OSError as error:
            self._say({"event": "failed", "id": 0, "error": str(error)})
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"can't do {message!r:.200}: {error!r}") from error

    def look(self) -> None:
        """Tell what has become of the workers since the last look."""
        for number, worker in list(self._workers.items()):
            worker.is_warm()
            self._tell(number, "said", self._said, worker.said)
            self._tell(number, "stopped", self._stopped, worker.is_stopped())
            code = worker.poll()
            if code is not None:
                worker.close()
                worker.kill()
                del self._workers[number]
                self._say({"event": "ended", "id": number, "code": code})

    def kill(self) -> None:
        """Kill all, and whatever they have started on this node."""
        for worker in self._workers.values():
            worker.kill()
        for job_id in self._folders:
            self._sweep(job_id)

    def _start(self, message: Mapping[str, Any]) -> None:
        number = int(message["id"])
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_BATCH_VARIABLES)}
        environment = inherited | {str(name): str(value) for name, value in message["environment"].items()}
        self._folders[environment["MALLETRAIN_JOB_ID"]] = environment[JOB_FOLDER]
        try:
            if gate := environment.get(GATE):
                environment[MONITOR] = self._relay_to(gate)
            worker = WorkerProcess(
                Slot(self._node, int(message["local_rank"])),
                [str(word) for word in message["command"]],
                str(message["folder"]),
                environment,
                Path(message["log"]),
                warm=bool(message["warm"]),
            )
        except OSError as error:
            self._say({"event": "failed", "id": number, "error": str(error)})
            return
        self._workers[number] = worker
        self._say({"event": "started", "id": number, "pid": worker.pid})

    def _sweep(self, job_id: str) -> None:
        """Kill what bears the job's mark on this node, until nothing is left.

        Not what another installation calls by the same names: identifiers of jobs begin anew in each.
        """
        marks = {JOB_FOLDER: self._folders[job_id]} if job_id in self._folders else None
        while sweep(job_id, {self._node}, marks):
            for worker in self._workers.values():
                worker.poll()

    def _of(self, message: Mapping[str, Any], act: Callable[[WorkerProcess], None]) -> None:
        worker = self._workers.get(int(message["id"]))
        if worker is not None:  # it may have ended while the message was under way
            act(worker)

    def _tell(self, number: int, name: str, known: dict[int, Any], value: Any) -> None:
        if known.get(number) != value and (value or number in known):
            known[number] = value
            shown = value.decode("ascii", "replace") if isinstance(value, bytes) else value
            self._say({"event": name, "id": number, name: shown})
