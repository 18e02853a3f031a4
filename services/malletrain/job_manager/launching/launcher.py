"""Starts, adopts, commands and ends supervisors: `python -m malletrain.supervisor`, one process per job."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from malletrain.common.accounts import Account
from malletrain.common.files import NO_ROOM
from malletrain.common.job_folder import CHECKPOINTS_FOLDER, LOGS_FOLDER
from malletrain.common.mounts import MountTable
from malletrain.common.processes import ProcessId, identify
from malletrain.common.user_threads import UserBusyError, UserThreads
from malletrain.job_manager.launching import processes
from malletrain.job_manager.launching.accounts import AccountsOfOwners, JobAccounts
from malletrain.job_manager.launching.folder import (
    JobFolder,
    KnownLaunches,
    NoRoomError,
    SupervisorStartError,
    WrittenOutcome,
    launch_record,
    remove_socket,
    socket_path,
)
from malletrain.job_manager.launching.folder_identity import JobIdentity, fault_of_identifier, fault_of_owner
from malletrain.job_manager.launching.job_cgroups import JobCgroups
from malletrain.job_manager.launching.job_secrets import JobSecrets
from malletrain.job_manager.launching.launch_settings import LaunchSettings
from malletrain.job_manager.launching.processes import Predicate, ProcessSearch
from malletrain.job_manager.launching.starting import (
    ForkedSupervisor,
    LaunchOrder,
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
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.machine.stimuli import Outcome, SupervisorEnded, SupervisorSeen
from malletrain.runtime.errors import MalleTrainError

_POLL_SECONDS = 0.05
_STANDBY_SECONDS = 0.25
_LINGER_SECONDS = 5.0
_ANSWER_SECONDS = 2.0
_TAIL_LINES = 20
_MAX_TAIL_LINE_LENGTH = 500
"""The tail becomes part of the job, which every service is told."""
_MAX_SLOTS = 1024


class SupervisorLauncher:
    """Starts, commands and ends the supervisors: one process per job, which outlives JobManager.

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
        self._settings = settings
        self._accounts = accounts
        self._jobs = settings.jobs_dir.resolve()
        self._children: dict[tuple[str, int], StartedSupervisor] = {}
        self._hosts: dict[str, NodeHost] = {}
        self._hosts_known = False
        self._groups = JobCgroups(self._jobs)
        self._mounts = MountTable()
        self._starter = SupervisorStarter(settings, own_environment, secrets, self._hosts, self._groups)
        self._clients = SupervisorClients(self._hosts, take_reports)
        self.threads = UserThreads()
        self._search = ProcessSearch(accounts.may_end, self.threads)
        self._identity_of: Callable[[str], JobIdentity | None] = lambda _: None
        self._compared: dict[str, JobIdentity] = {}
        self.launches = KnownLaunches()
        self._log = structlog.get_logger(__name__)

    def folder(self, job_id: str) -> JobFolder:
        """A job's folder."""
        path = self._jobs / job_id
        if self._is_mounted_over(path):
            return self._not_looked_at(job_id)
        return self._folder_of(job_id, self._accounts.of_folder(path))

    def _is_mounted_over(self, *folders: Path) -> bool:
        """Whether a user has mounted a file system at one of these folders. Jobs of our own account are trusted."""
        return isinstance(self._accounts, AccountsOfOwners) and self._mounts.has_any_of(*folders)

    def _not_looked_at(self, job_id: str) -> JobFolder:
        """The folder of a job whose owner could keep this process waiting in it."""
        identity = self._identity_of(job_id)
        account = None
        if identity is not None:
            with contextlib.suppress(MalleTrainError):
                account = self._accounts.of_owner(identity.owner)
        path, record = self._jobs / job_id, launch_record(self._settings.state_dir, job_id)
        self._compared.pop(job_id, None)
        return JobFolder(path, account, record, fault=f"a file system is mounted in {path}")

    def identify_jobs(self, identity_of: Callable[[str], JobIdentity | None]) -> None:
        """Have folders compared with the jobs whose identifiers they have as names.

        Args:
            identity_of: Returns which job has an identifier; None: there is none.
        """
        self._identity_of = identity_of

    def _folder_of(self, job_id: str, account: Account | None) -> JobFolder:
        record = None if account is None else launch_record(self._settings.state_dir, job_id)
        identity = self._identity_of(job_id)
        folder = JobFolder(self._jobs / job_id, account, record, "" if identity is None else identity.instance_id)
        if identity is None or self._compared.get(job_id) == identity:
            return folder
        if fault := self._fault_of(folder, identity):
            return replace(folder, fault=fault)
        if folder.path.is_dir():
            self._compared[job_id] = identity  # its owner could change the identifier, and harm nobody else by that
        return folder

    def _fault_of(self, folder: JobFolder, identity: JobIdentity) -> str:
        """Why a folder is not that of a job; its owner first: root reads nothing before that is known."""
        if fault := fault_of_owner(folder.path, None if folder.account is None else identity.owner):
            return fault
        with folder.entered():
            return fault_of_identifier(folder.path, identity.instance_id)

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
        if self.launches.of(folder, incarnation):
            if folder.supervisor() is not None or folder.outcome() is not None:
                self._log.info("supervisor adopted", job=job_id, incarnation=incarnation)
                return
            booting = await self._booting(job_id, incarnation)
            if booting is not None:
                await self._until_serving(folder, booting)
                return
        await self._sweep(job_id, processes.of_job(self._jobs, job_id))
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
            account = self._accounts.of_owner(wanted.owner)
            path = self._jobs / wanted.job_id
            mounted = self._is_mounted_over(path, path / LOGS_FOLDER, path / CHECKPOINTS_FOLDER)
            folder = self._not_looked_at(wanted.job_id) if mounted else self._folder_of(wanted.job_id, account)
            if folder.fault:
                raise SupervisorStartError(f"{folder.fault}: nothing is started in it")
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
        process = await self._process(job_id, incarnation)
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
            last: Whether to stop waiting for processes of another account that do not end: who always begins new ones
                must not hold the job's nodes for ever.
        """
        folder = self.folder(job_id)
        child = self._children.pop((job_id, incarnation), None)
        status = None if child is None else await self._reap(child)
        await self._end_group(folder, job_id, incarnation)
        try:
            strays = await self._sweep(job_id, processes.of_job(self._jobs, job_id))
        except processes.ProcessesLeftError as error:
            if folder.account is None or not last:
                raise
            self._log.error("processes of a job are given up", job=job_id, error=str(error))
            strays = 0
        if strays:
            self._log.info("processes of a job ended", job=job_id, processes=strays)
        await self._clients.drop(job_id)
        launched = self.launches.of(folder, incarnation)
        self.launches.forget(job_id)
        if not launched:
            return SupervisorEnded(job_id, incarnation, Outcome.STOPPED, "it was not started", folder.completion(), ())
        self._remove_socket(job_id, incarnation, folder.account)
        try:
            return await self.threads.run(
                f"{_name_of(folder)} (ends)", lambda: _ended_as_written(folder, job_id, incarnation, status)
            )
        except UserBusyError as error:
            message = f"the supervisor ended, and the job's folder can't be read ({error})"
            return SupervisorEnded(job_id, incarnation, Outcome.FAILED, message, None, ())

    async def set_hosts(
        self, job_id: str, incarnation: int, sequence: int, nodes: tuple[str, ...]
    ) -> SupervisorSeen | None:
        """Command nodes. Returns the supervisor's state, or None if it can't be reached now."""
        client = self._client(job_id, incarnation)
        slots = self.launches.of(self.folder(job_id), incarnation).get("slots_per_node")
        if client is None or not isinstance(slots, int) or not 0 < slots <= _MAX_SLOTS:
            return None
        return await client.set_hosts(sequence, nodes, slots)

    def suits(self, job_id: str, incarnation: int, spec: JobSpec, nodes: tuple[str, ...]) -> bool:
        """Whether a supervisor without workers can use these nodes: it starts as many workers a node as ever."""
        slots = spec.slots_on(host_of(self._hosts, node).gpus for node in nodes)
        return self.launches.of(self.folder(job_id), incarnation).get("slots_per_node") == slots

    async def release(self, job_id: str, incarnation: int, nodes: tuple[str, ...], grace_seconds: float) -> None:
        """End the job's processes on some nodes. None is left when this returns.

        If the supervisor does not serve yet or does not answer in time, it is killed, and with it the whole job: the
        nodes can't wait.
        """
        process = await self._process(job_id, incarnation)
        client = self._client(job_id, incarnation)
        if process is not None and client is not None:
            call = client.release(nodes, grace_seconds, grace_seconds + _ANSWER_SECONDS)
            if await processes.call_unless_ended(process, call) and await self._confirms(job_id, nodes):
                return
        if process is not None and process.alive():
            self._log.warning("supervisor can't release, killed", job=job_id, nodes=nodes, pid=process.pid)
            process.kill()
            await processes.wait_for_end(process)
        # Without its supervisor nothing of it trains on, and a daemon of a worker is found in no other way.
        await self._end_group(self.folder(job_id), job_id, incarnation)
        is_meant = processes.of_incarnation_on(self._jobs, job_id, incarnation, frozenset(nodes))
        await self._sweep(job_id, is_meant)

    async def _confirms(self, job_id: str, nodes: tuple[str, ...] | None) -> bool:
        """Whether nodes of this machine (None: all) are free of a job, as its supervisor says; what is left is ended.

        A supervisor that runs as the job's owner may be in its hands, and say what it likes. On a node with an agent,
        the agent leaves nothing of any job when the node is wanted back.
        """
        if self.folder(job_id).account is None:
            return True
        here = None if nodes is None else frozenset(node for node in nodes if not host_of(self._hosts, node).agent)
        if here is not None and not here:
            return True
        is_meant = processes.of_workers_on(self._jobs, job_id, here)
        try:
            killed = await processes.sweep(
                is_meant, search=self._search, user_ids=self._users_of(job_id), patience_seconds=_ANSWER_SECONDS
            )
        except processes.ProcessesLeftError as error:
            self._log.error("supervisor starts workers where it says that there are none", job=job_id, error=str(error))
            return False
        if killed:
            self._log.error("supervisor has not told the truth", job=job_id, nodes=nodes, processes=killed)
        return True

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
        process = await self._process(job_id, incarnation)
        if process is None:
            return
        client = self._client(job_id, incarnation)
        if client is not None:
            call = client.stop(grace_seconds, grace_seconds + _ANSWER_SECONDS, keep_seconds, sequence)
            if await processes.call_unless_ended(process, call) and await self._confirms(job_id, None):
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

    async def sweep_strays(self, supervised: Callable[[], Iterable[str]]) -> int:
        """End every process of jobs that are not supervised; returns how many there were.

        Args:
            supervised: Returns the identifiers of those that are, as they change.
        """
        await self._groups.end_others(lambda: frozenset(supervised()))
        return await self._sweep_others(processes.of_other_jobs(self._jobs, frozenset()), supervised)

    async def sweep_nodes(self, nodes: Iterable[str], supervised: Callable[[], Iterable[str]]) -> None:
        """End every process on some nodes that belongs to a job that is not supervised.

        Args:
            supervised: As for `sweep_strays`.
        """
        is_meant = processes.of_other_jobs_on(self._jobs, frozenset(), frozenset(nodes))
        await self._sweep_others(is_meant, supervised)

    async def _sweep_others(self, is_meant: Predicate, supervised: Callable[[], Iterable[str]]) -> int:
        users = await self.threads.run("of all jobs", lambda: self._accounts.users_of(self._jobs))

        def still_meant(variables: Mapping[str, str]) -> bool:
            return processes.of_other_jobs(self._jobs, frozenset(supervised()))(variables)

        return await processes.sweep(is_meant, search=self._search, user_ids=users, still_meant=still_meant)

    async def keep_standby(self, specs: Callable[[], Iterable[JobSpec]], may_start: Callable[[], bool]) -> None:
        """Keep a standby process ready for new supervisors while there are jobs that can use one, until cancelled.

        Args:
            specs: Returns the specs of the jobs that have not ended.
            may_start: Returns whether it may be started now: its imports keep a processor busy for seconds.
        """
        while True:
            forkable = self._starter.forkable(specs())
            await self._starter.look_at_scripts(forkable)
            self._starter.tend_standby(forkable, may_start=may_start())
            await asyncio.sleep(_STANDBY_SECONDS)

    async def close(self) -> None:
        """Disconnect from the supervisors, and end the standby process. The supervisors go on."""
        self._starter.close()
        await self._clients.close()
        self._groups.close()
        self._mounts.close()

    def _client(self, job_id: str, incarnation: int) -> SupervisorClient | None:
        """The service of this incarnation; None if it does not serve yet."""
        folder = self.folder(job_id)
        if not self.launches.of(folder, incarnation) or folder.supervisor() is None:
            return None
        # The path is not taken from a file of the job: root connects to it.
        try:
            return self._clients.get(
                job_id, incarnation, self._socket(job_id, incarnation, folder.account), folder.account
            )
        except (OSError, SupervisorStartError) as error:
            self._log.warning("supervisor's socket can't be used", job=job_id, error=str(error))
            return None

    async def _process(self, job_id: str, incarnation: int) -> ProcessId | None:
        folder = self.folder(job_id)
        if not self.launches.of(folder, incarnation):
            return None
        return folder.supervisor() or await self._booting(job_id, incarnation)

    async def _booting(self, job_id: str, incarnation: int) -> ProcessId | None:
        """A supervisor that was started and does not serve yet."""
        child = self._children.get((job_id, incarnation))
        if child is not None:
            return identify(child.pid)
        supervisor = processes.of_supervisor(self._jobs, job_id, incarnation)
        supervisors = await self._search.find(supervisor, self._users_of(job_id))
        return supervisors[0].id if supervisors else None

    async def _end_group(self, folder: JobFolder, job_id: str, incarnation: int) -> None:
        await self._groups.end(job_id, incarnation, self.launches.of(folder, incarnation).get("cgroup", ""))

    async def _sweep(self, job_id: str, is_meant: Predicate) -> int:
        return await processes.sweep(is_meant, search=self._search, user_ids=self._users_of(job_id))

    def _users_of(self, job_id: str) -> frozenset[int]:
        """As whom a job's processes run."""
        account = self.folder(job_id).account
        return frozenset({os.geteuid() if account is None else account.user_id})

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


def _name_of(folder: JobFolder) -> str:
    return "" if folder.account is None else folder.account.name


def _ended_as_written(folder: JobFolder, job_id: str, incarnation: int, status: int | None) -> SupervisorEnded:
    """How a supervisor ended, by what it and its job have left in the folder."""
    written = folder.outcome() or WrittenOutcome(Outcome.FAILED, _unexplained_end(status))
    no_room = folder.has_failed_for_room
    newest = () if written.failure else tail(folder, _TAIL_LINES)
    lines = written.log or tuple(line[:_MAX_TAIL_LINE_LENGTH] for line in newest)
    return SupervisorEnded(
        job_id, incarnation, written.outcome, written.message, folder.completion(), lines, no_room, written.failure
    )


def _unexplained_end(status: int | None) -> str:
    ending = "" if status is None else f" (exit status {status})"
    return f"the supervisor ended, and has not said why{ending}"
