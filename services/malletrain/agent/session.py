"""The workers that one supervisor has on this node."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path

from malletrain.agent.environment import JobOwner, worker_environment
from malletrain.agent.node_cgroups import NodeCgroups
from malletrain.agent.stage_outs import StageOuts
from malletrain.agent.sweeps import Sweeps, SweepsAtOnce
from malletrain.agent.wire import has_unknown_fields
from malletrain.common import environment as env
from malletrain.common.activity import ActivityWatch, IdleReport
from malletrain.common.connections import cut_remote
from malletrain.common.gpu_use import gpu_is_busy
from malletrain.common.handover_memory import HandoverMemories
from malletrain.common.job_folder import DELIVERY_SECONDS, LAST_DELIVERY_SECONDS
from malletrain.common.log_times import LogTimesWriter
from malletrain.common.oom_kills import OomKills, may_be_for_memory
from malletrain.common.standby.processes import WorkerForks
from malletrain.common.worker_process import WorkerProcess, kill_workers
from malletrain.tls.names import name_of
from malletrain.v1 import agent_pb2 as pb

_MAX_WORKERS = 1024
_SWEEP_PAUSE_SECONDS = 0.005
_SWEEP_SECONDS = 1.0
"""Processes that always begin others are left to the end of the agent, and to the scheduler's own means."""
_DELIVERY_SECONDS = DELIVERY_SECONDS + 2.0
"""How long a sidecar has after the end of its trainer on a node that is wanted back."""
_LAST_DELIVERY_SECONDS = LAST_DELIVERY_SECONDS + 2 * _DELIVERY_SECONDS
"""The same on any other node, should the supervisor not sweep before."""
_IDLE_SECONDS = 4.0
"""Shorter pauses are not worth a message."""
_REQUIRED = (env.JOB_ID, env.JOB_DIR)
_USUAL_GRACE_SECONDS = 60.0


class WorkerRequestError(Exception):
    """A supervisor asks for something that makes no sense. The message says what was expected."""


class SupervisorSession:
    """Starts, controls and ends the workers of one supervisor.

    Use from one thread, which must live as long as the workers: the kernel kills a worker when the thread that started
    it ends.

    Attributes:
        ended: Whether the supervisor is gone. The session is over when it then has no worker.
    """

    def __init__(
        self,
        node: str,
        head: str,
        send: Callable[[pb.ControlWorkersResponse], None],
        monitor_at: Callable[[str, bool], str],
        owner: JobOwner | None = None,
        standby: WorkerForks | None = None,
        address: str = "127.0.0.1",
        sweeps: Sweeps | None = None,
        groups: NodeCgroups | None = None,
        warn: Callable[[str], object] = print,
        stage_outs: StageOuts | None = None,
    ) -> None:
        """
        Args:
            send: Sends a message to the supervisor.
            monitor_at: Returns the address on this node that leads to Monitor, given Monitor's address for nodes, and
                whether it is served with TLS.
            owner: For which job the supervisor may speak, and as whom the workers run; None: for any, and as the agent.
            sweeps: Does sweeps; None: each at once.
            groups: The cgroups of the workers; None: there are none.
            warn: Told what can't be done and changes nothing for the workers.
            stage_outs: Copies checkpoints that workers leave in memory; None: nothing does.
        """
        self.ended = False
        self._leaving = False
        self._node = node
        self._head = head
        self._address = address
        self._sweeps = SweepsAtOnce() if sweeps is None else sweeps
        self._groups = NodeCgroups() if groups is None else groups
        self._send = send
        self._monitor_at = monitor_at
        self._owner = owner
        self._standby = standby
        self._account = None if owner is None else owner.account
        self._log_times = LogTimesWriter(warn, self._account)
        self._logs: dict[int, Path] = {}  # of workers, also of those that have ended and left other processes
        self._waiting: dict[int, tuple[pb.StartWorker, dict[str, str]]] = {}
        self._workers: dict[int, WorkerProcess] = {}
        self._ended: dict[int, tuple[WorkerProcess, float]] = {}
        self._statuses: dict[int, bytes] = {}
        self._stopped: set[int] = set()
        self._oom_kills = OomKills()
        self._job_folders: dict[str, str] = {}
        self._watch = ActivityWatch(gpu_is_busy)
        self._idle_report = IdleReport(_IDLE_SECONDS)
        self._reported_idle = pb.IdleChanged()
        self._asked_sweeps, self._swept_job = 0, ""
        self._handovers = HandoverMemories()
        self._stage_outs = StageOuts(None, warn) if stage_outs is None else stage_outs
        self._names = set[str]()  # of this node and its GPUs, for which there have been workers

    def __len__(self) -> int:
        return len(self._workers) + len(self._waiting)

    @property
    def delivers(self) -> bool:
        """Whether a sidecar of a worker that has ended may still deliver records."""
        return bool(self._ended)

    @property
    def owes_answers(self) -> bool:
        """Whether a sweep goes on that the supervisor has asked for."""
        return self._asked_sweeps > 0 and self._sweeps.is_under_way(self._swept_job)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that run, or whose end has not been reported yet."""
        return [worker.pid for worker in self._workers.values()]

    @property
    def user_id(self) -> int:
        """The user as whom the workers run."""
        return os.geteuid() if self._account is None else self._account.user_id

    @property
    def is_booting(self) -> bool:
        """Whether there is a worker that is not ready for the job's own code yet."""
        return any(not worker.is_warm() for worker in self._workers.values())

    def handle(self, request: pb.ControlWorkersRequest) -> None:
        """Do what the supervisor asks for.

        Raises:
            WorkerRequestError: it can't be done, whatever the state of the workers.
            OSError: the kernel does not let us cut connections.
        """
        match request.WhichOneof("request"):
            case "start":
                self._start(request.start)
            case "start_code":
                if (worker := self._workers.get(request.start_code.worker)) is not None:
                    worker.go(request.start_code.environment)
            case "prepare_code":
                if (worker := self._workers.get(request.prepare_code.worker)) is not None:
                    worker.prepare(request.prepare_code.environment)
            case "terminate":
                self._drop_waiting([request.terminate.worker])
                if (worker := self._workers.get(request.terminate.worker)) is not None:
                    worker.terminate(_grace_of(request.terminate))
            case "kill":
                self._kill_worker(request.kill.worker)
            case "sweep":
                self._check_job("sweep.job_id", request.sweep.job_id)
                swept = pb.ControlWorkersResponse(swept=pb.JobSwept(request=request.sweep.request))
                names = {request.sweep.node or self._node}
                self._asked_sweeps, self._swept_job = self._asked_sweeps + 1, request.sweep.job_id
                self._kill_all_of(request.sweep.job_id, names, lambda: self._answer_sweep(swept, names))
            case "cut_connections":
                cut_remote((worker.pid for worker in self._workers.values()), self._head)
            case _ if has_unknown_fields(request):
                pass  # a supervisor of a later version asks for something that this one can't do
            case _:
                raise WorkerRequestError("request: expected one of those of ControlWorkersRequest, got none")

    def _answer_sweep(self, swept: pb.ControlWorkersResponse, names: Set[str]) -> None:
        self._send(swept)
        self._asked_sweeps -= 1
        self._free_memory(names)  # now that no worker is left; whoever wants the node does not wait for that

    def report_leaving(self) -> None:
        """Report that the node is wanted back, before any worker is reported that ends because of that.

        No worker is started from here on.
        """
        self._leaving = True
        self._send(pb.ControlWorkersResponse(leaving=pb.NodeLeaving()))

    def poll(self) -> None:
        """Report what has changed since the last call.

        When a worker ends with exit status 0, the rest of its process group is not killed yet: the supervisor says
        when. Its sidecar, in a group of its own, may still deliver records, for a while.
        """
        self._oom_kills.look(time.monotonic())
        for start, environment in list(self._waiting.values()):
            self._start_unless_waiting(start, environment)
        for number, worker in list(self._workers.items()):
            self._report_status(number, worker)
            code = worker.poll()
            if code is not None:
                self._take_end(number, worker, code)
        self._report_idleness()
        for number, (worker, since) in list(self._ended.items()):
            if time.monotonic() >= since + (_DELIVERY_SECONDS if self._leaving else _LAST_DELIVERY_SECONDS):
                worker.kill_session()
            if not worker.has_session():
                del self._ended[number]
                self._forget_log(number)
                self._send(pb.ControlWorkersResponse(group_ended=pb.WorkerGroupEnded(worker=number)))
        if self._leaving and not len(self):
            self._free_memory(None)  # nobody comes after them, and the agent ends soon

    def kill(self) -> None:
        """Kill all workers, and all other processes of their jobs on this node."""
        self._log_times.close()
        self._drop_waiting()
        for worker in self._workers.values():
            worker.kill()
        for worker, _ in self._ended.values():
            worker.kill_session()
        for job_id in self._job_folders:
            self._kill_all_of(job_id, {self._node, *self._names})
        self._free_memory(None)

    def _free_memory(self, names: Set[str] | None) -> None:
        """Free the memory of places to which no worker comes any more, unless there is a checkpoint to be copied."""
        folder = next(iter(self._job_folders.values()), "")
        self._handovers.close(names, lambda descriptor: self._stage_outs.take(descriptor, folder, self._account))

    def _start(self, start: pb.StartWorker) -> None:
        self._check(start)
        programs, cpus = str(Path(sys.executable).parent), len(os.sched_getaffinity(0))
        environment = worker_environment(os.environ, dict(start.environment), programs, cpus, self._account)
        environment[env.PYTHON] = sys.executable
        environment.pop(env.STAGE_OUT, None)
        if self._stage_outs.terms is not None:
            environment[env.STAGE_OUT] = self._stage_outs.terms.to_text()
        if env.FEED_PEERS in environment:
            environment[env.NODE_ADDRESS] = self._address
        self._job_folders[environment[env.JOB_ID]] = environment[env.JOB_DIR]
        self._names.add(environment.get(env.NODE, self._node))
        self._waiting[start.worker] = start, environment
        self._start_unless_waiting(start, environment)

    def _start_unless_waiting(self, start: pb.StartWorker, environment: dict[str, str]) -> None:
        """Start a worker, unless a standby process can fork it soon."""
        if self._sweeps.is_under_way(environment[env.JOB_ID]):
            return  # which would end it, too
        standby = None if start.cold_start or not start.warm or self._leaving else self._standby
        if standby is not None and standby.is_worth_waiting(start.command, start.folder, environment):
            return
        del self._waiting[start.worker]
        try:
            if self._leaving:
                raise ValueError(f"node {self._node} is wanted back")
            if monitor := environment.get(env.MONITOR_FOR_NODES):
                with_tls = env.MONITOR_WITH_TLS in environment
                environment[env.MONITOR] = self._monitor_at(monitor, with_tls)
                if with_tls:
                    environment[env.MONITOR_WITH_TLS] = environment[env.MONITOR]
                    environment[env.MONITOR_NAME] = name_of("agent")
            worker = WorkerProcess(
                start.command,
                start.folder,
                environment,
                Path(start.log),
                warm=start.warm,
                account=self._account,
                standby=standby,
                group=self._groups.of(environment[env.JOB_ID], environment.get(env.NODE, self._node)),
                handover=self._handovers.of(environment.get(env.NODE, self._node), start.local_rank),
            )
        except (OSError, ValueError) as error:
            failed = pb.WorkerStartFailed(worker=start.worker, error=str(error))
            self._send(pb.ControlWorkersResponse(start_failed=failed))
            return
        self._logs[start.worker] = Path(start.log)
        self._log_times.watch(Path(start.log))
        self._workers[start.worker] = worker
        self._send(
            pb.ControlWorkersResponse(started=pb.WorkerStarted(worker=start.worker, pid=worker.pid, can_prepare=True))
        )

    def _forget_log(self, number: int) -> None:
        log = self._logs.pop(number, None)
        if log is not None and log not in self._logs.values():
            self._log_times.forget(log)

    def _check(self, start: pb.StartWorker) -> None:
        known = self._workers.keys() | self._ended.keys() | self._waiting.keys()
        if start.worker < 1 or start.worker in known:
            raise WorkerRequestError(f"start.worker: expected a new number of at least 1, got {start.worker}")
        if len(self) >= _MAX_WORKERS:
            raise WorkerRequestError(f"start: expected at most {_MAX_WORKERS} workers in a session")
        if not start.command:
            raise WorkerRequestError("start.command: expected at least a program")
        if missing := [name for name in _REQUIRED if not start.environment.get(name)]:
            raise WorkerRequestError(f"start.environment: expected values of {' and '.join(missing)}")
        self._check_job(f"start.environment[{env.JOB_ID!r}]", start.environment[env.JOB_ID])

    def _check_job(self, field: str, job_id: str) -> None:
        if self._owner is not None and job_id != self._owner.job_id:
            raise WorkerRequestError(
                f"{field}: expected {self._owner.job_id}, the job of the certificate, got {job_id!r}"
            )

    def _drop_waiting(self, numbers: Iterable[int] | None = None) -> None:
        """Start these workers, or all, no more; they count as killed."""
        for number in self._waiting.keys() & (self._waiting.keys() if numbers is None else set(numbers)):
            del self._waiting[number]
            ended = pb.WorkerEnded(worker=number, exit_status=-signal.SIGKILL)
            self._send(pb.ControlWorkersResponse(ended=ended))

    def _kill_worker(self, number: int) -> None:
        self._drop_waiting([number])
        ended, _ = self._ended.get(number, (None, 0.0))
        for worker in (ended, self._workers.get(number)):
            if worker is not None:  # it may have ended while the message was on its way
                worker.kill()

    def _take_end(self, number: int, worker: WorkerProcess, code: int) -> None:
        worker.close()
        for_memory = may_be_for_memory(code) and not worker.killed and self._oom_kills.recent(time.monotonic())
        if code != 0:
            worker.kill()
        self._ended[number] = worker, time.monotonic()
        del self._workers[number]
        self._statuses.pop(number, None)
        self._stopped.discard(number)
        ended = pb.WorkerEnded(worker=number, exit_status=code, out_of_memory=for_memory)
        self._send(pb.ControlWorkersResponse(ended=ended))

    def _report_status(self, number: int, worker: WorkerProcess) -> None:
        """Report how far a worker is, and whether it is stopped, if that has changed."""
        warm = worker.is_warm()
        if worker.status != self._statuses.get(number, b""):
            self._statuses[number] = worker.status
            changed = pb.WorkerStatusChanged(
                worker=number, warm=warm, code_started=worker.started, prepared=worker.is_prepared()
            )
            self._send(pb.ControlWorkersResponse(status_changed=changed))
        stopped = worker.is_stopped()
        if stopped != (number in self._stopped):
            (self._stopped.add if stopped else self._stopped.discard)(number)
            change = pb.WorkerStoppedChanged(worker=number, stopped=stopped)
            self._send(pb.ControlWorkersResponse(stopped_changed=change))

    def _report_idleness(self) -> None:
        """Report whether the processes of the workers do nothing, if that has changed."""
        now = time.monotonic()
        self._idle_report = self._idle_report.after_look(self._watch.look(self.worker_pids, now), now)
        report = self._idle_report
        change = pb.IdleChanged(idle_seconds=report.seconds, wait=pb.ProcessWait.ValueType(report.wait or 0))
        if change != self._reported_idle:
            self._reported_idle = change
            self._send(pb.ControlWorkersResponse(idle_changed=change))

    def _kill_all_of(self, job_id: str, names: Set[str], done: Callable[[], None] = lambda: None) -> None:
        """Kill all processes of a job on this node, or on some of its GPUs, until none is left.

        Jobs of another installation may have the same identifiers, so the job's folder must be the same, too.

        Args:
            names: The node, or GPUs of it.
            done: Called when none is left.
        """
        meant = {number for number, (_, own) in self._waiting.items() if own[env.JOB_ID] == job_id}
        self._drop_waiting(number for number in meant if self._waiting[number][1].get(env.NODE, self._node) in names)
        marks: Mapping[str, str] | None = None
        if job_id in self._job_folders:
            marks = {env.JOB_DIR: self._job_folders[job_id]}

        def sweep() -> None:
            self._groups.end(job_id, names)
            deadline = time.monotonic() + _SWEEP_SECONDS
            while kill_workers(job_id, names, marks, self._account) and time.monotonic() < deadline:
                time.sleep(_SWEEP_PAUSE_SECONDS)

        self._sweeps.begin(self.user_id, job_id, sweep, done)


def _grace_of(terminate: pb.TerminateWorker) -> float:
    """How long a worker has to end; a supervisor of an earlier version does not say."""
    grace = terminate.grace_seconds
    return grace if math.isfinite(grace) and grace > 0 else _USUAL_GRACE_SECONDS
