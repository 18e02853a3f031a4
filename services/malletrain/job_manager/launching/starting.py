"""Starts a supervisor: what it is told in its job's folder, its secrets, its environment, and the process."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import structlog

from malletrain.common import environment as env
from malletrain.common.accounts import account_environment
from malletrain.common.files import open_log
from malletrain.common.job_folder import AUTHORITY_FILE
from malletrain.common.processes import ProcessId, identify
from malletrain.common.python_command import PythonCommand, parse_python_command
from malletrain.common.standby.keeper import StandbyKeeper
from malletrain.common.standby.recipe import recipe_for
from malletrain.common.standby.shelf import StandbyShelf
from malletrain.common.start_process import start_process
from malletrain.common.trace_context import HEADER
from malletrain.job_manager.fleets import first_member
from malletrain.job_manager.jobs import JobSpec, LauncherBackend
from malletrain.job_manager.launching.environment import MonitorAddress, supervisor_environment, worker_environment
from malletrain.job_manager.launching.folder import JobFolder, socket_path
from malletrain.job_manager.launching.job_secrets import JobSecrets
from malletrain.job_manager.launching.supervisor_client import NodeHost, host_of
from malletrain.runtime.tracing.propagation import present_context

_SUPERVISOR = "malletrain.supervisor"
_MOST_SCRIPTS = 16
_MOST_COMMANDS = 10_000


@dataclass(frozen=True)
class LaunchSettings:
    """What supervisors are started with, whatever the job.

    Attributes:
        state_dir: State folder of the installation.
        jobs_dir: Folder of the jobs' folders.
        trainer_python: Interpreter of the training environment.
        monitor: Where reporters connect to.
        backend: Launcher backend of jobs that do not name one.
        address: Address of this machine as the nodes see it.
        interfaces: Network interfaces by which workers reach each other.
        standby_memory_bytes: Largest share of memory of the standby processes of JobManager together, and of that of
            each supervisor; 0: none is kept.
        keep_seconds: How long a supervisor whose nodes were all released stays, and waits for others; 0: it ends.
        forks_supervisors: Whether supervisors run as this process does, so that they can be forked, too.
    """

    state_dir: Path
    jobs_dir: Path
    trainer_python: str
    monitor: MonitorAddress
    backend: str = "horovod"
    address: str = "127.0.0.1"
    interfaces: tuple[str, ...] = ("lo",)
    standby_memory_bytes: int = 0
    keep_seconds: float = 0.0
    forks_supervisors: bool = False


@dataclass(frozen=True)
class ForkedSupervisor:
    """A supervisor that a standby process has forked, which collects it.

    Attributes:
        id: The process.
    """

    id: ProcessId

    @property
    def pid(self) -> int:
        """Process id."""
        return self.id.pid


@lru_cache(_MOST_COMMANDS)
def _parsed(command: tuple[str, ...]) -> PythonCommand | None:
    """A command, taken apart once: those of all jobs are looked at several times a second."""
    return parse_python_command(command)


def _learn(keeper: StandbyKeeper, spec: JobSpec) -> None:
    parsed = _parsed(spec.command)
    if parsed is not None and parsed.kind == "script":
        keeper.learn(Path(spec.working_directory, parsed.target))


StartedSupervisor: TypeAlias = "subprocess.Popen[bytes] | ForkedSupervisor"


@dataclass(frozen=True)
class LaunchOrder:
    """What one supervisor is started with.

    Attributes:
        job_id: Job identifier.
        incarnation: Which of the job's supervisors.
        owner: Name of the user who submitted it.
        spec: What was submitted.
        sequence: Number of the command that gives it its first nodes.
        nodes: Those nodes.
        sharing_fleet: Its fleet, if feeds of its nodes share with each other; else empty.
    """

    job_id: str
    incarnation: int
    owner: str
    spec: JobSpec
    sequence: int
    nodes: tuple[str, ...]
    sharing_fleet: str = ""


class SupervisorStarter:
    """Starts supervisors, each in the folder of its job and as its account."""

    def __init__(
        self,
        settings: LaunchSettings,
        own_environment: Mapping[str, str],
        secrets: JobSecrets,
        hosts: Mapping[str, NodeHost],
    ) -> None:
        """Touch nothing yet.

        Args:
            settings: What all supervisors are started with.
            own_environment: JobManager's environment.
            secrets: Writes what a job's processes prove with who they are.
            hosts: What is known of nodes, by name; may change.
        """
        self._settings = settings
        self._own = own_environment
        self._secrets = secrets
        self._hosts = hosts
        self._log = structlog.get_logger(__name__)
        self._python = shutil.which(settings.trainer_python) or settings.trainer_python
        self._standby = self._open_standby()
        self._forking = asyncio.Lock()

    def _open_standby(self) -> StandbyShelf:
        settings = self._settings
        shelf = StandbyShelf(settings.standby_memory_bytes if settings.forks_supervisors else 0, self._log.info)
        if shelf.is_open:
            shelf.open(None, recipe_for(self._python, self._with_variables({})))
        return shelf

    def tend_standby(self, specs: Iterable[JobSpec], *, may_start: bool) -> None:
        """Look after the standby processes. The first starts once there is a node of this machine, or a job to use it.

        Args:
            specs: Specs of the jobs that have not ended.
            may_start: Whether the first may be started now; those that run are looked after in any case.
        """
        forkable = list(islice(filter(self._is_forkable, specs), _MOST_SCRIPTS))
        useful = self._settings.backend != "command" and not all(host.agent for host in self._hosts.values())
        if self._standby.pids or (may_start and (forkable or useful)):
            self._standby.tick(busy=False)
        for spec in forkable:
            if (keeper := self._keeper_for(spec, may_open=False)) is not None:
                _learn(keeper, spec)

    def awaits_standby(self, order: LaunchOrder) -> bool:
        """Whether a start on this machine gains by waiting for a standby process, which will be ready soon.

        One with the job's variables is started, if there is none and another one runs.
        """
        if not self._starts_here(order) or not self._is_forkable(order.spec):
            return False
        keeper = self._keeper_for(order.spec, may_open=bool(self._standby.pids))
        if keeper is None:
            return False
        if not keeper.pid and self._standby.pids:
            keeper.tick(busy=False)
        _learn(keeper, order.spec)
        return keeper.is_importing

    @property
    def can_fork(self) -> bool:
        """Whether a standby process is ready to fork a supervisor."""
        return self._standby.is_ready

    def _starts_here(self, order: LaunchOrder) -> bool:
        return any(not host_of(self._hosts, node).agent for node in order.nodes)

    def _keeper_for(self, spec: JobSpec, *, may_open: bool) -> StandbyKeeper | None:
        variables = self._with_variables(spec.environment)
        return self._standby.choose_for(None, self._python, variables, may_open=may_open)

    def _with_variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The environment of supervisors of jobs with some variables, but for what is one job's alone."""
        own = supervisor_environment(self._own, variables, 0, self._settings.trainer_python)
        return {**env.TRAINER_DEFAULTS, **own}

    def _is_forkable(self, spec: JobSpec) -> bool:
        return not spec.cold_start and self._backend(spec) != "command" and bool(_parsed(spec.command))

    def close(self) -> None:
        """End the standby processes."""
        self._standby.close()

    async def start(self, folder: JobFolder, order: LaunchOrder) -> StartedSupervisor:
        """Start one. Where it is forked, the order may be outdated when this returns.

        Args:
            folder: The job's folder, with the account as whom the job runs.
            order: The job, and the nodes that it begins with.

        Raises:
            SupervisorStartError: the folder, or that of the socket, is somebody else's.
            OSError: something can't be written or started.
            MalleTrainError: a secret can't be made.
        """
        socket = socket_path(self._settings.state_dir, order.job_id, order.incarnation, folder.account)
        with folder.entered():
            socket.unlink(missing_ok=True)
        hosts = {node: host_of(self._hosts, node) for node in order.nodes}
        slots = order.spec.slots_on(host.gpus for host in hosts.values())
        folder.prepare()
        self._secrets.write(order.job_id, folder, order.sharing_fleet)
        monitor = self._monitor_for(folder)
        gpus = order.spec.gpus_on(host.gpus for host in hosts.values())
        sharing = self._sharing_of(folder, order.sharing_fleet)
        worker = worker_environment(order.job_id, folder.path, order.spec, slots, monitor, gpus) | sharing
        folder.write_launch(
            {
                "job_id": order.job_id,
                "incarnation": order.incarnation,
                "backend": self._backend(order.spec),
                "command": list(order.spec.command),
                "working_directory": order.spec.working_directory,
                "environment": worker,
                "slots_per_node": slots,
                "min_nodes": order.spec.min_nodes,
                "max_nodes": order.spec.max_nodes,
                "socket": str(socket),
                "sequence": order.sequence,
                "hosts": [{"name": node, "slots": slots, "agent": host.agent} for node, host in hosts.items()],
                "certificate_file": str(self._secrets.certificate_file(folder)),
                "user_id": None if folder.account is None else folder.account.user_id,
                "cold_start": order.spec.cold_start,
                "standby_memory_bytes": self._settings.standby_memory_bytes,
                "keep_seconds": self._settings.keep_seconds,
                "address": self._settings.address,
                "interfaces": list(self._settings.interfaces),
                HEADER: context.traceparent if (context := present_context()) else "",
            }
        )
        own = self._own if folder.account is None else account_environment(self._own, folder.account)
        python = self._settings.trainer_python
        environment = supervisor_environment(own, worker, order.incarnation, python)
        if folder.account is None and self._is_forkable(order.spec):
            forked = await self._fork(folder, environment, may_open=self._starts_here(order))
            if forked is not None:
                return forked
        command = [python, "-m", _SUPERVISOR, str(folder.path)]
        return start_process(command, folder.path, environment, folder.supervisor_log, account=folder.account)

    async def _fork(
        self, folder: JobFolder, environment: Mapping[str, str], *, may_open: bool
    ) -> ForkedSupervisor | None:
        """Have a standby process fork it. What its workers import is read with their variables, so it gets them."""
        path, whole = str(folder.path), {**env.TRAINER_DEFAULTS, **environment}
        async with self._forking:
            keeper = self._standby.choose_for(None, self._python, whole, may_open=may_open)
            if keeper is None:
                return None
            with open_log(folder.supervisor_log) as log:
                pid = await keeper.fork_module(self._python, _SUPERVISOR, [path], path, whole, log.fileno())
        return None if pid is None else ForkedSupervisor(identify(pid) or ProcessId(pid, -1))

    def _sharing_of(self, folder: JobFolder, fleet_id: str) -> dict[str, str]:
        """What a worker's feed needs to know of those on other nodes of its fleet."""
        if not fleet_id:
            return {}
        feeds = folder.prepare_feeds(first_member(fleet_id))
        return {env.FEED_PEERS: str(feeds), env.FLEET: fleet_id, env.NODE_ADDRESS: self._settings.address}

    def _monitor_for(self, folder: JobFolder) -> MonitorAddress:
        """Where the job's trainer reports; its owner can't enter our state folder, and gets a copy of the CA's file."""
        monitor = self._settings.monitor
        if folder.account is None or not monitor.authority:
            return monitor
        folder.write_secret(AUTHORITY_FILE, Path(monitor.authority).read_text(encoding="ascii"))
        return monitor._replace(authority=str(folder.path / AUTHORITY_FILE))

    def _backend(self, spec: JobSpec) -> str:
        return self._settings.backend if spec.backend is LauncherBackend.DEFAULT else spec.backend.value.lower()
