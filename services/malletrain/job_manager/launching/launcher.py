"""Starts, adopts, commands and ends supervisors: `python -m malletrain.supervisor`, one process per job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import structlog

from malletrain.common.accounts import Account
from malletrain.common.files import NO_ROOM
from malletrain.common.processes import ProcessId, find_processes, identify
from malletrain.job_manager.jobs import JobSpec
from malletrain.job_manager.launching import processes
from malletrain.job_manager.launching.accounts import JobAccounts
from malletrain.job_manager.launching.folder import (
    JobFolder,
    NoRoomError,
    SupervisorStartError,
    launch_record,
    remove_socket,
    socket_path,
)
from malletrain.job_manager.launching.job_secrets import JobSecrets
from malletrain.job_manager.launching.process_search import Predicate, ProcessSearch
from malletrain.job_manager.launching.starting import (
    ForkedSupervisor,
    LaunchOrder,
    LaunchSettings,
    StartedSupervisor,
    SupervisorStarter,
)
from malletrain.job_manager.launching.supervisor_client import (
    NodeHost,
    SupervisorClient,
    SupervisorClients,
    TakeReports,
    host_of,
    ignore_reports,
)
from malletrain.job_manager.logs import tail
from malletrain.job_manager.stimuli import Outcome, SupervisorEnded, SupervisorSeen
from malletrain.runtime.errors import MalleTrainError

_POLL_SECONDS = 0.05
_STANDBY_SECONDS = 0.25
_LINGER_SECONDS = 5.0
_ANSWER_SECONDS = 2.0
_TAIL_LINES = 20
_LONGEST_TAIL_LINE = 500
"""The tail becomes part of the job, which every service is told."""
_MOST_SLOTS = 1024


class SupervisorLauncher:
    """Owns the supervisors: one process per job, which outlives JobManager.

    Every method may be called again. Those that end processes raise `ProcessesLeftError` if some do not end.
    """

    def __init__(
        self,
        settings: LaunchSettings,
        own_environment: Mapping[str, str],
        secrets: JobSecrets,
        accounts: JobAccounts,
        take_reports: TakeReports = ignore_reports,
    ) -> None:
        """Touch nothing yet.

        Args:
            settings: What all supervisors are started with.
            own_environment: JobManager's environment.
            secrets: Writes what a job's processes prove with who they are.
            accounts: As whom jobs run.
            take_reports: Called with what supervisors report of commands.
        """
        self._settings = settings
        self._accounts = accounts
        self._jobs = settings.jobs_dir.resolve()
        self._children: dict[tuple[str, int], StartedSupervisor] = {}
        self._hosts: dict[str, NodeHost] = {}
        self._hosts_known = False
        self._starter = SupervisorStarter(settings, own_environment, secrets, self._hosts)
        self._clients = SupervisorClients(self._hosts, take_reports)
        self._search = ProcessSearch(accounts.may_end)
        self._log = structlog.get_logger(__name__)

    def folder(self, job_id: str) -> JobFolder:
        """A job's folder."""
        path = self._jobs / job_id
        return self._folder_of(job_id, self._accounts.of_folder(path))

    def _folder_of(self, job_id: str, account: Account | None) -> JobFolder:
        record = None if account is None else launch_record(self._settings.state_dir, job_id)
        return JobFolder(self._jobs / job_id, account, record)

    def update_hosts(self, hosts: Mapping[str, NodeHost]) -> None:
        """Take over what is known of nodes, by name. No supervisor is started before the first call."""
        self._hosts.update(hosts)
        self._hosts_known = True

    async def start(self, job_id: str, incarnation: int, order: Callable[[], LaunchOrder | None]) -> None:
        """Make sure that this incarnation has been started: adopt it, or start it, once. Returns when it serves.

        Args:
            job_id: Job identifier.
            incarnation: Which of its supervisors.
            order: Called immediately before the start; None if the job shall not start any more.

        Raises:
            NoRoomError: it can't be started now, since a disk is full.
            SupervisorStartError: it can't be started.
        """
        folder = self.folder(job_id)
        if self._launched(folder, incarnation):
            if folder.supervisor() is not None or folder.outcome() is not None:
                self._log.info("adopted", job=job_id, incarnation=incarnation)
                return
            booting = self._booting(job_id, incarnation)
            if booting is not None:
                await self._until_serving(folder, booting)
                return
        await self._sweep(processes.of_job(self._jobs, job_id), self._search)
        while not self._hosts_known and order() is not None:
            await asyncio.sleep(_POLL_SECONDS)
        await self._await_standby(order)
        while (wanted := order()) is not None:
            folder, child = await self._start(wanted)
            if order() == wanted:
                self._children[job_id, incarnation] = child
                self._log.info("supervisor started", job=job_id, incarnation=incarnation, pid=child.pid)
                await self._until_serving(folder, identify(child.pid) or ProcessId(child.pid, -1))
                return
            # It knows of nodes that were taken while it was forked, and whoever took them has not found it.
            self._log.info("supervisor outdated, killed", job=job_id, incarnation=incarnation, pid=child.pid)
            if (process := identify(child.pid)) is not None:
                process.kill()
            await self._reap(child)

    async def _start(self, wanted: LaunchOrder) -> tuple[JobFolder, StartedSupervisor]:
        try:
            folder = self._folder_of(wanted.job_id, self._accounts.of_owner(wanted.owner))
            self._accounts.make_jobs_folder(self._jobs)
            return folder, await self._starter.start(folder, wanted)
        except MalleTrainError as error:
            raise SupervisorStartError(str(error)) from error
        except OSError as error:
            if error.errno in NO_ROOM:
                raise NoRoomError(f"the disk of the job's folder is full ({error})") from error
            raise SupervisorStartError(f"can't start {self._settings.trainer_python}: {error}") from error

    async def _await_standby(self, order: Callable[[], LaunchOrder | None]) -> None:
        """Wait for a standby process that boots: it forks the workers sooner than each of them would boot beside it."""
        while (wanted := order()) is not None and self._starter.awaits_standby(wanted):
            await asyncio.sleep(_POLL_SECONDS)

    async def _until_serving(self, folder: JobFolder, booting: ProcessId) -> None:
        """Wait until a supervisor serves, or has ended before it did."""
        while folder.supervisor() is None and booting.alive():
            await asyncio.sleep(_POLL_SECONDS)

    async def watch(self, job_id: str, incarnation: int) -> AsyncIterator[SupervisorSeen]:
        """The supervisor's state, whenever it changes. Ends when the supervisor has ended."""
        process = self._process(job_id, incarnation)
        client = self._client(job_id, incarnation)
        if process is None or client is None:
            return
        while process.alive():
            async for seen in processes.until_end(client.watch(), process):
                yield seen
            try:
                await asyncio.wait_for(
                    processes.wait_for_end(process), _POLL_SECONDS if not client.ended else _LINGER_SECONDS
                )
            except TimeoutError:
                if client.ended:
                    self._log.warning("supervisor lingers after its end, killed", job=job_id, pid=process.pid)
                    process.kill()

    async def collect(self, job_id: str, incarnation: int, *, last: bool = False) -> SupervisorEnded:
        """End all processes that are left of the job; returns how its supervisor ended.

        Args:
            job_id: Job identifier.
            incarnation: Which of its supervisors.
            last: Whether processes of a job that runs as its owner are given up if they do not end: an owner who always
                begins new ones on this machine must not keep the job's nodes for ever.
        """
        folder = self.folder(job_id)
        child = self._children.pop((job_id, incarnation), None)
        status = None if child is None else await self._reap(child)
        try:
            strays = await self._sweep(processes.of_job(self._jobs, job_id), self._search)
        except processes.ProcessesLeftError as error:
            if folder.account is None or not last:
                raise
            self._log.error("processes of a job are given up", job=job_id, error=str(error))
            strays = 0
        if strays:
            self._log.info("swept", job=job_id, processes=strays)
        await self._clients.drop(job_id)
        if not self._launched(folder, incarnation):
            return SupervisorEnded(job_id, incarnation, Outcome.STOPPED, "it was not started", folder.completion(), ())
        self._remove_socket(job_id, incarnation, folder.account)
        outcome, message = folder.outcome() or (Outcome.FAILED, _unexplained_end(status))
        no_room = folder.has_failed_for_room
        lines = [line[:_LONGEST_TAIL_LINE] for line in tail(folder, _TAIL_LINES)]
        return SupervisorEnded(job_id, incarnation, outcome, message, folder.completion(), tuple(lines), no_room)

    async def set_hosts(
        self, job_id: str, incarnation: int, sequence: int, nodes: tuple[str, ...]
    ) -> SupervisorSeen | None:
        """Command nodes. Returns the supervisor's state, or None if it can't be reached now."""
        client = self._client(job_id, incarnation)
        slots = self._launched(self.folder(job_id), incarnation).get("slots_per_node")
        if client is None or not isinstance(slots, int) or not 0 < slots <= _MOST_SLOTS:
            return None
        return await client.set_hosts(sequence, nodes, slots)

    def suits(self, job_id: str, incarnation: int, spec: JobSpec, nodes: tuple[str, ...]) -> bool:
        """Whether a supervisor without workers can use these nodes: it starts as many workers a node as ever."""
        slots = spec.slots_on(host_of(self._hosts, node).gpus for node in nodes)
        return self._launched(self.folder(job_id), incarnation).get("slots_per_node") == slots

    async def release(self, job_id: str, incarnation: int, nodes: tuple[str, ...], grace_seconds: float) -> None:
        """End the job's processes on some nodes. None is left when this returns.

        If the supervisor does not serve yet or does not answer in time, it is killed, and with it the whole job: the
        nodes can't wait.
        """
        process = self._process(job_id, incarnation)
        client = self._client(job_id, incarnation)
        if process is not None and client is not None:
            call = client.release(nodes, grace_seconds, grace_seconds + _ANSWER_SECONDS)
            if await processes.call_unless_ended(process, call):
                return
        if process is not None and process.alive():
            self._log.warning("supervisor can't release, killed", job=job_id, nodes=nodes, pid=process.pid)
            process.kill()
            await processes.wait_for_end(process)
        is_meant = processes.of_incarnation_on(self._jobs, job_id, incarnation, frozenset(nodes))
        await self._sweep(is_meant)

    async def stop(
        self,
        job_id: str,
        incarnation: int,
        grace_seconds: float,
        keep_seconds: float = 0.0,
        sequence: int = 0,
        is_pending: Callable[[], bool] = lambda: True,
    ) -> None:
        """End the job's processes and its supervisor. They are asked first, and killed at the end of the grace.

        Args:
            job_id: Job identifier.
            incarnation: Which of its supervisors.
            grace_seconds: How long the processes may take.
            keep_seconds: How long the supervisor itself may stay, and wait for nodes; 0: it ends.
            sequence: Number of the newest command about nodes.
            is_pending: Whether the stop is still wanted, asked immediately before a supervisor that may stay is killed:
                it may have stayed, and have new workers, though its answer was lost.
        """
        process = self._process(job_id, incarnation)
        if process is None:
            return
        client = self._client(job_id, incarnation)
        if client is not None:
            call = client.stop(grace_seconds, grace_seconds + _ANSWER_SECONDS, keep_seconds, sequence)
            if await processes.call_unless_ended(process, call):
                return  # it stays
            try:
                await asyncio.wait_for(processes.wait_for_end(process), _LINGER_SECONDS)
            except TimeoutError:
                self._log.warning("supervisor does not end", job=job_id, pid=process.pid)
        if keep_seconds > 0 and not is_pending():
            self._log.info("stop overtaken, supervisor not killed", job=job_id, pid=process.pid)
            return
        process.kill()

    def version_of(self, job_id: str) -> str:
        """Version of MalleTrain that a job's supervisor runs; empty where none is known."""
        return self._clients.version_of(job_id)

    def is_done(self, job_id: str) -> bool:
        """Whether the trainer has said that it is done."""
        return self.folder(job_id).is_done

    async def sweep_strays(self, supervised: Iterable[str]) -> int:
        """End every process of jobs that are not supervised; returns how many there were."""
        return await self._sweep(processes.of_other_jobs(self._jobs, frozenset(supervised)))

    async def sweep_nodes(self, nodes: Iterable[str], supervised: Iterable[str]) -> None:
        """End every process on some nodes that belongs to a job that is not supervised."""
        await self._sweep(processes.of_other_jobs_on(self._jobs, frozenset(supervised), frozenset(nodes)))

    async def keep_standby(self, specs: Callable[[], Iterable[JobSpec]], may_start: Callable[[], bool]) -> None:
        """Keep a standby process ready for new supervisors while there are jobs that can use one, until cancelled.

        Args:
            specs: Returns the specs of the jobs that have not ended.
            may_start: Returns whether it may be started now: its imports keep a processor busy for seconds.
        """
        while True:
            self._starter.tend_standby(specs(), may_start=may_start())
            await asyncio.sleep(_STANDBY_SECONDS)

    async def close(self) -> None:
        """Disconnect from the supervisors, and end the standby process. The supervisors go on."""
        self._starter.close()
        await self._clients.close()

    def _client(self, job_id: str, incarnation: int) -> SupervisorClient | None:
        """The service of this incarnation; None if it does not serve yet."""
        folder = self.folder(job_id)
        if not self._launched(folder, incarnation) or folder.supervisor() is None:
            return None
        # The path is not taken from a file of the job: root connects to it.
        try:
            return self._clients.get(
                job_id, incarnation, self._socket(job_id, incarnation, folder.account), folder.account
            )
        except (OSError, SupervisorStartError) as error:
            self._log.warning("supervisor's socket can't be used", job=job_id, error=str(error))
            return None

    def _process(self, job_id: str, incarnation: int) -> ProcessId | None:
        folder = self.folder(job_id)
        if not self._launched(folder, incarnation):
            return None
        return folder.supervisor() or self._booting(job_id, incarnation)

    def _launched(self, folder: JobFolder, incarnation: int) -> dict[str, Any]:
        """What this incarnation was started with; empty if it was not started."""
        launched = folder.launched()
        return launched if launched is not None and launched.get("incarnation") == incarnation else {}

    def _booting(self, job_id: str, incarnation: int) -> ProcessId | None:
        """A supervisor that was started and does not serve yet."""
        child = self._children.get((job_id, incarnation))
        if child is not None:
            return identify(child.pid)
        supervisor = processes.of_supervisor(self._jobs, job_id, incarnation)
        return next((found.id for found in find_processes(supervisor, self._accounts.may_end)), None)

    async def _sweep(self, is_meant: Predicate, search: ProcessSearch | None = None) -> int:
        return await processes.sweep(is_meant, self._accounts.may_end, search=search)

    def _socket(self, job_id: str, incarnation: int, account: Account | None) -> Path:
        return socket_path(self._settings.state_dir, job_id, incarnation, account)

    def _remove_socket(self, job_id: str, incarnation: int, account: Account | None) -> None:
        try:
            remove_socket(self._socket(job_id, incarnation, account), account)
        except (OSError, SupervisorStartError) as error:
            self._log.warning("socket not removed", job=job_id, error=str(error))

    async def _reap(self, child: StartedSupervisor) -> int | None:
        """Exit status of a supervisor that has ended or is about to; None if it is not known."""
        if isinstance(child, ForkedSupervisor):
            await processes.wait_for_end(child.id)
            return None
        while (status := child.poll()) is None:
            await asyncio.sleep(_POLL_SECONDS)
        return status


def _unexplained_end(status: int | None) -> str:
    ending = "" if status is None else f" (exit status {status})"
    return f"the supervisor ended, and has not said why{ending}"
