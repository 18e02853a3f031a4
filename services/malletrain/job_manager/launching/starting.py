"""Starts a supervisor: what it is told in its job's folder, its secrets, its environment, and the process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import structlog

from malletrain.common import environment as env
from malletrain.common.accounts import account_environment
from malletrain.common.cgroups import Cgroup
from malletrain.common.child_process import ChildProcess
from malletrain.common.files import open_log
from malletrain.common.job_folder import AUTHORITY_FILE
from malletrain.common.launch_file import AgentAddress, Launch
from malletrain.common.processes import ProcessId, identify
from malletrain.common.python_command import PythonCommand, parse_python_command
from malletrain.common.standby.config import standby_config_for
from malletrain.common.standby.manager import StandbyManager
from malletrain.common.standby.processes import StandbyProcesses
from malletrain.common.start_process import start_process
from malletrain.common.user_threads import UserBusyError, UserThreads
from malletrain.job_manager.launching.folder import JobFolder, socket_path
from malletrain.job_manager.launching.job_cgroups import JobCgroups
from malletrain.job_manager.launching.job_secrets import JobSecrets
from malletrain.job_manager.launching.launch_settings import LaunchSettings, MonitorAddress
from malletrain.job_manager.launching.supervisor_client import NodeHost, host_of
from malletrain.job_manager.machine.jobs import DEFAULT_MAX_RESTARTS, JobSpec, LauncherBackend, first_member
from malletrain.runtime.tracing.propagation import present_context


def search_path(own: Mapping[str, str], trainer_python: str) -> str:
    """PATH of the workers: programs of the training environment first, so that `python` is its interpreter."""
    folder = str(Path(trainer_python).parent) if os.sep in trainer_python else ""
    return os.pathsep.join(part for part in (folder, own.get("PATH", os.defpath)) if part)


def worker_environment(
    job_id: str, folder: Path, spec: JobSpec, slots: int, monitor: MonitorAddress, node_gpus: int = 0
) -> dict[str, str]:
    """What is added to the workers' environment: the job's own variables, and those that the client library reads."""
    known = {
        env.NODE_GPUS: str(node_gpus or ""),
        env.MONITOR_FOR_NODES: monitor.for_nodes,
        env.MONITOR_AUTHORITY: str(monitor.authorities[0]) if monitor.authorities else "",
        env.MONITOR_WITH_TLS: monitor.address if monitor.authorities else "",
        env.MONITOR_NAME: monitor.name,
        env.BURST_BUFFER_GB: str(spec.burst_buffer_gb or ""),
        env.NODES_PER_REPLICA: str(spec.nodes_per_replica) if spec.nodes_per_replica > 1 else "",
    }
    measured = {env.GRADIENT_NOISE: "1"} if spec.value.goodput is not None else {}
    return {
        **measured,
        **spec.environment,
        env.JOB_ID: job_id,
        env.JOB_DIR: str(folder),
        env.MONITOR: monitor.address,
        **{name: value for name, value in known.items() if value},
        env.SLOTS_PER_NODE: str(slots),
        env.TARGET_SAMPLES: str(spec.target_samples),
    }


def supervisor_environment(
    own: Mapping[str, str], worker: Mapping[str, str], incarnation: int, trainer_python: str
) -> dict[str, str]:
    """The supervisor's environment: JobManager's own without its settings, then the workers'."""
    inherited = {name: value for name, value in own.items() if not name.startswith(env.PREFIX)}
    return {
        **inherited,
        "PATH": search_path(own, trainer_python),
        **worker,
        env.INCARNATION: str(incarnation),
    }


_SUPERVISOR = "malletrain.supervisor"
_MAX_SCRIPTS = 16
_MAX_COMMANDS = 10_000


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


@lru_cache(_MAX_COMMANDS)
def _parse(command: tuple[str, ...]) -> PythonCommand | None:
    """A command, taken apart once: those of all jobs are looked at several times a second."""
    return parse_python_command(command)


def _script_of(spec: JobSpec) -> Path | None:
    parsed = _parse(spec.command)
    return Path(spec.working_directory, parsed.target) if parsed is not None and parsed.kind == "script" else None


def _modification_times(scripts: Iterable[Path]) -> dict[Path, int]:
    """When scripts were modified, in nanoseconds since the epoch; without those that are not there."""
    changed_at = {}
    for script in scripts:
        with contextlib.suppress(OSError):
            changed_at[script] = script.stat().st_mtime_ns
    return changed_at


StartedSupervisor: TypeAlias = "ChildProcess | ForkedSupervisor"


@dataclass(frozen=True)
class LaunchOrder:
    """The job, incarnation and hosts that one supervisor is started with.

    Attributes:
        job_id: Job identifier.
        incarnation: Which of the job's supervisors.
        owner: Name of the user who submitted it.
        spec: What was submitted.
        sequence: Number of the command that gives it its first nodes.
        nodes: Those nodes.
        sharing_fleet: Its fleet, if feeds of its nodes share with each other; else empty.
        restarts_left: How often it may still be restarted after failures of its own.
    """

    job_id: str
    incarnation: int
    owner: str
    spec: JobSpec
    sequence: int
    nodes: tuple[str, ...]
    sharing_fleet: str = ""
    restarts_left: int = DEFAULT_MAX_RESTARTS


class SupervisorStarter:
    """Starts supervisors, each in the folder of its job and as its account."""

    def __init__(
        self,
        settings: LaunchSettings,
        own_environment: Mapping[str, str],
        secrets: JobSecrets,
        hosts: Mapping[str, NodeHost],
        groups: JobCgroups | None = None,
    ) -> None:
        """Nothing happens before `start`.

        Args:
            settings: What all supervisors are started with.
            own_environment: JobManager's environment.
            secrets: Writes what a job's processes prove with who they are.
            hosts: What is known of nodes, by name; may change.
            groups: The cgroups of supervisors; None: they are in that of this process.
        """
        self._settings = settings
        self._own = own_environment
        self._secrets = secrets
        self._hosts = hosts
        self._groups = groups
        self._log = structlog.get_logger(__name__)
        self._python = shutil.which(settings.trainer_python) or settings.trainer_python
        self._standby = self._open_standby()
        self._forking = asyncio.Lock()
        self._scripts: dict[Path, int] = {}
        self._threads = UserThreads(at_once=1)

    def _open_standby(self) -> StandbyProcesses:
        settings = self._settings
        standbys = StandbyProcesses(settings.standby_memory_bytes if settings.forks_supervisors else 0, self._log.info)
        if standbys.is_open:
            standbys.open(None, standby_config_for(self._python, self._with_variables({})))
        return standbys

    @property
    def standby_pids(self) -> set[int]:
        """Process identifiers of the standby processes that run."""
        return self._standby.pids

    def forkable(self, specs: Iterable[JobSpec]) -> list[JobSpec]:
        """The first ones of jobs that standby processes can serve: one look at a thousand jobs takes milliseconds."""
        return list(islice(filter(self._is_forkable, specs), _MAX_SCRIPTS))

    def tend_standby(self, forkable: Sequence[JobSpec], *, may_start: bool) -> None:
        """Look after the standby processes. The first starts once there is a node of this machine, or a job to use it.

        Args:
            forkable: Of the jobs that have not ended, as `forkable` returns them.
            may_start: Whether the first may be started now; those that run are looked after in any case.
        """
        useful = self._settings.backend != "command" and not all(host.agent for host in self._hosts.values())
        if self.standby_pids or (may_start and (forkable or useful)):
            self._standby.tick(busy=False)
        for spec in forkable:
            if (manager := self._manager_for(spec, may_open=False)) is not None:
                self._learn(manager, spec)

    async def look_at_scripts(self, forkable: Sequence[JobSpec]) -> None:
        """Look, in a thread, at the scripts that standby processes may learn: they may lie on any disk.

        Args:
            forkable: As for `tend_standby`.
        """
        scripts = {script for spec in forkable if (script := _script_of(spec)) is not None}
        if not self.standby_pids or not scripts:
            return
        try:
            self._scripts = await self._threads.run("scripts", lambda: _modification_times(scripts))
        except UserBusyError as error:
            self._scripts = {}
            self._log.info("scripts are not learned ahead", error=str(error))

    def _learn(self, manager: StandbyManager, spec: JobSpec) -> None:
        script = _script_of(spec)
        if script is not None and (modified_ns := self._scripts.get(script)) is not None:
            manager.learn(script, modified_ns)

    def awaits_standby(self, order: LaunchOrder) -> bool:
        """Whether a start on this machine gains by waiting for a standby process, which will be ready soon.

        One with the job's variables is started, if there is none and another one runs.
        """
        if not self._starts_here(order) or not self._is_forkable(order.spec):
            return False
        manager = self._manager_for(order.spec, may_open=bool(self.standby_pids))
        if manager is None:
            return False
        if not manager.pid and self.standby_pids:
            manager.tick(busy=False)
        self._learn(manager, order.spec)
        return manager.is_importing

    @property
    def can_fork(self) -> bool:
        """Whether a standby process is ready to fork a supervisor."""
        return self._standby.is_ready

    def _starts_here(self, order: LaunchOrder) -> bool:
        return any(not host_of(self._hosts, node).agent for node in order.nodes)

    def _manager_for(self, spec: JobSpec, *, may_open: bool) -> StandbyManager | None:
        variables = self._with_variables(spec.environment)
        return self._standby.choose_for(None, self._python, variables, may_open=may_open)

    def _with_variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The environment of supervisors of jobs with some variables, but for what is one job's alone."""
        own = supervisor_environment(self._own, variables, 0, self._settings.trainer_python)
        return {**env.TRAINER_DEFAULTS, **own}

    def _is_forkable(self, spec: JobSpec) -> bool:
        return not spec.cold_start and self._backend(spec) != "command" and bool(_parse(spec.command))

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
        group = None if self._groups is None else self._groups.make(order.job_id, order.incarnation, folder.account)
        context = present_context()
        folder.write_launch(
            Launch(
                job_id=order.job_id,
                backend=self._backend(order.spec),
                command=order.spec.command,
                working_directory=order.spec.working_directory,
                environment=worker,
                slots_per_node=slots,
                socket=str(socket),
                sequence=order.sequence,
                instance_id=folder.instance_id,
                incarnation=order.incarnation,
                backend_named=order.spec.backend is not LauncherBackend.DEFAULT,
                min_nodes=order.spec.min_nodes,
                max_nodes=order.spec.max_nodes,
                nodes_per_replica=order.spec.nodes_per_replica,
                fixed_replicas=order.spec.grouped_nodes > 1,
                hosts=dict.fromkeys(hosts, slots),
                agents={node: AgentAddress(host.agent, host.agent_name) for node, host in hosts.items() if host.agent},
                certificate_file=str(self._secrets.certificate_file(folder)),
                address=self._settings.address,
                interfaces=tuple(self._settings.interfaces),
                cold_start=order.spec.cold_start,
                standby_memory_bytes=self._settings.standby_memory_bytes,
                keep_seconds=self._settings.keep_seconds,
                limits=order.spec.limits,
                idle_report_seconds=self._settings.idle_report_seconds,
                user_id=None if folder.account is None else folder.account.user_id,
                restarts_left=order.restarts_left,
                traceparent=context.traceparent if context else "",
                accepts_open_store=self._settings.accepts_open_store,
                cgroup="" if group is None else str(group.folder),
            )
        )
        own = self._own if folder.account is None else account_environment(self._own, folder.account)
        python = self._settings.trainer_python
        environment = supervisor_environment(own, worker, order.incarnation, python)
        if folder.account is None and self._is_forkable(order.spec):
            forked = await self._fork(folder, environment, may_open=self._starts_here(order), group=group)
            if forked is not None:
                return forked
        command = [python, "-m", _SUPERVISOR, str(folder.path)]
        log, account = folder.supervisor_log, folder.account
        return start_process(command, folder.path, environment, log, account=account, group=group)

    async def _fork(
        self, folder: JobFolder, environment: Mapping[str, str], *, may_open: bool, group: Cgroup | None
    ) -> ForkedSupervisor | None:
        """Have a standby process fork it. What its workers import is read with their variables, so it gets them."""
        path, whole = str(folder.path), {**env.TRAINER_DEFAULTS, **environment}
        async with self._forking:
            manager = self._standby.choose_for(None, self._python, whole, may_open=may_open)
            if manager is None:
                return None
            with open_log(folder.supervisor_log) as log:
                pid = await manager.fork_module(self._python, _SUPERVISOR, [path], path, whole, log.fileno(), group)
        return None if pid is None else ForkedSupervisor(identify(pid) or ProcessId(pid, -1))

    def _sharing_of(self, folder: JobFolder, fleet_id: str) -> dict[str, str]:
        """What a worker's feed needs to know of those on other nodes of its fleet."""
        if not fleet_id:
            return {}
        feeds = folder.prepare_feeds(first_member(fleet_id))
        return {env.FEED_PEERS: str(feeds), env.FLEET: fleet_id, env.NODE_ADDRESS: self._settings.address}

    def _monitor_for(self, folder: JobFolder) -> MonitorAddress:
        """Monitor's address for a job's trainers, with copies of files in our state folder that they can't read."""
        monitor = self._settings.monitor
        if not monitor.authorities:
            return monitor
        content = "".join(file.read_text(encoding="ascii") for file in monitor.authorities)
        folder.write_secret(AUTHORITY_FILE, content)
        return monitor._replace(authorities=(folder.path / AUTHORITY_FILE,))

    def _backend(self, spec: JobSpec) -> str:
        return self._settings.backend if spec.backend is LauncherBackend.DEFAULT else spec.backend.value.lower()
