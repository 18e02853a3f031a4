"""The launcher for all backends that a supervisor process drives (`python -m malletrain.supervisor`)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from malletrain.job_manager.jobs import Backend, Spec
from malletrain.job_manager.launchers import environment as env
from malletrain.job_manager.launchers import ownership, processes
from malletrain.job_manager.launchers.base import Host, LaunchError, LaunchOrder
from malletrain.job_manager.launchers.folders import JobFolder, socket_path
from malletrain.job_manager.launchers.processes import ProcessId
from malletrain.job_manager.launchers.remote import Remote, Remotes
from malletrain.job_manager.logs import tail
from malletrain.job_manager.stimuli import Outcome, SupervisorEnded, SupervisorSeen
from malletrain.runtime.token import token_file

_POLL_SECONDS = 0.05
_LINGER_SECONDS = 5.0
_ANSWER_SECONDS = 2.0
_TAIL_LINES = 20


@dataclass(frozen=True)
class LaunchSettings:
    """Where things are.

    Attributes:
        state_dir: Folder of the jobs' folders.
        trainer_python: Interpreter of the training environment.
        monitor: Where reporters connect to.
        backend: What drives the workers of jobs that do not say.
        address: Address of this machine as the nodes see it.
        interfaces: Network interfaces by which workers reach each other.
    """

    state_dir: Path
    trainer_python: str
    monitor: env.Monitor
    backend: str = "horovod"
    address: str = "127.0.0.1"
    interfaces: tuple[str, ...] = ("lo",)


class SupervisedLauncher:
    """Starts, adopts, commands and ends supervisors. See `malletrain.job_manager.launchers.base.Launcher`."""

    def __init__(self, settings: LaunchSettings, own_environment: Mapping[str, str]) -> None:
        """Use a folder and an environment; nothing is touched yet."""
        self._settings = settings
        self._own = own_environment
        self._jobs = (settings.state_dir / "jobs").resolve()
        self._children: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._hosts: dict[str, Host] = {}
        self._hosts_known = False
        self._remotes = Remotes(self._hosts)
        self._log = structlog.get_logger(__name__)

    def folder(self, job_id: str) -> JobFolder:
        """A job's folder."""
        return JobFolder(self._jobs / job_id)

    def know_hosts(self, hosts: Mapping[str, Host]) -> None:
        """Take over what is known of nodes; see `Launcher`."""
        self._hosts.update(hosts)
        self._hosts_known = True

    async def start(self, job_id: str, incarnation: int, order: Callable[[], LaunchOrder | None]) -> None:
        """Make sure that this incarnation runs; see `Launcher`."""
        folder = self.folder(job_id)
        if self._launched(folder, incarnation):
            if folder.supervisor() is not None or folder.outcome() is not None:
                self._log.info("adopted", job=job_id, incarnation=incarnation)
                return
            booting = self._booting(job_id, incarnation)
            if booting is not None:
                await self._until_serving(folder, booting)
                return
        await processes.sweep(ownership.of_job(self._jobs, job_id))
        while not self._hosts_known and order() is not None:
            await asyncio.sleep(_POLL_SECONDS)
        # Nothing is awaited from here to the start: the order can't grow stale.
        wanted = order()
        if wanted is None:
            return
        try:
            started = self._launch(folder, wanted)
        except OSError as error:
            raise LaunchError(f"can't start {self._settings.trainer_python}: {error}") from error
        await self._until_serving(folder, started)

    def _launch(self, folder: JobFolder, order: LaunchOrder) -> ProcessId:
        spec = order.spec
        socket = socket_path(self._settings.state_dir, order.job_id, order.incarnation)
        socket.unlink(missing_ok=True)
        hosts = {node: self._hosts.get(node, Host()) for node in order.nodes}
        slots = spec.slots_on(host.gpus for host in hosts.values())
        worker = env.worker_environment(order.job_id, folder.path, spec, slots, self._settings.monitor)
        folder.prepare()
        folder.write_launch(
            {
                "job_id": order.job_id,
                "incarnation": order.incarnation,
                "backend": self._backend(spec),
                "command": list(spec.command),
                "working_directory": spec.working_directory,
                "environment": worker,
                "slots_per_node": slots,
                "max_nodes": spec.max_nodes,
                "socket": str(socket),
                "sequence": order.sequence,
                "hosts": [{"name": node, "slots": slots, "agent": host.agent} for node, host in hosts.items()],
                "token_file": self._token_file(),
                "address": self._settings.address,
                "interfaces": list(self._settings.interfaces),
            }
        )
        python = self._settings.trainer_python
        with folder.supervisor_log.open("ab") as log:
            child = subprocess.Popen(
                [python, "-m", "malletrain.supervisor", str(folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder.path,
                env=env.supervisor_environment(self._own, worker, order.incarnation, python),
                start_new_session=True,
            )
        self._children[order.job_id, order.incarnation] = child
        started = processes.start_time_of(child.pid)
        self._log.info("supervisor started", job=order.job_id, incarnation=order.incarnation, pid=child.pid)
        return ProcessId(child.pid, -1 if started is None else started)

    def _token_file(self) -> str:
        """The secret that node agents ask for, where there are any."""
        path = token_file(self._settings.state_dir)
        return str(path) if path.exists() else ""

    def _backend(self, spec: Spec) -> str:
        return self._settings.backend if spec.backend is Backend.DEFAULT else spec.backend.value.lower()

    async def _until_serving(self, folder: JobFolder, booting: ProcessId) -> None:
        """Wait until the supervisor has announced itself, or has ended without."""
        while folder.supervisor() is None and booting.alive():
            await asyncio.sleep(_POLL_SECONDS)

    async def watch(self, job_id: str, incarnation: int) -> AsyncIterator[SupervisorSeen]:
        """The supervisor's state, whenever it changes; see `Launcher`."""
        process = self._process(job_id, incarnation)
        remote = self._remote(job_id, incarnation)
        if process is None or remote is None:
            return
        while process.alive():
            async for seen in remote.watch():
                yield seen
            try:
                await asyncio.wait_for(process.wait(), _POLL_SECONDS if not remote.ended else _LINGER_SECONDS)
            except TimeoutError:
                if remote.ended:
                    self._log.warning("supervisor lingers after its end, killed", job=job_id, pid=process.pid)
                    process.kill()

    async def collect(self, job_id: str, incarnation: int) -> SupervisorEnded:
        """End whatever is left of the job, and tell how its supervisor ended; see `Launcher`."""
        folder = self.folder(job_id)
        child = self._children.pop((job_id, incarnation), None)
        status = None if child is None else await self._reap(child)
        strays = await processes.sweep(ownership.of_job(self._jobs, job_id))
        if strays:
            self._log.info("swept", job=job_id, processes=strays)
        await self._remotes.drop(job_id)
        if not self._launched(folder, incarnation):
            return SupervisorEnded(job_id, incarnation, Outcome.STOPPED, "it was not started", folder.completion(), ())
        Path(self._launched(folder, incarnation)["socket"]).unlink(missing_ok=True)
        outcome, message = folder.outcome() or (Outcome.FAILED, _without_word(status))
        lines = tail(folder.path, _TAIL_LINES)
        return SupervisorEnded(job_id, incarnation, outcome, message, folder.completion(), tuple(lines))

    async def set_hosts(
        self, job_id: str, incarnation: int, sequence: int, nodes: tuple[str, ...]
    ) -> SupervisorSeen | None:
        """Command nodes; see `Launcher`."""
        remote = self._remote(job_id, incarnation)
        if remote is None:
            return None
        return await remote.set_hosts(
            sequence, nodes, self._launched(self.folder(job_id), incarnation)["slots_per_node"]
        )

    async def release(self, job_id: str, incarnation: int, nodes: tuple[str, ...], grace_seconds: float) -> None:
        """End the job's processes on nodes; see `Launcher`.

        A supervisor that does not serve yet has no state to lose, and one that does not answer can't be waited for:
        both are killed with all that is theirs.
        """
        process = self._process(job_id, incarnation)
        remote = self._remote(job_id, incarnation)
        if process is not None and remote is not None:
            call = remote.release(nodes, grace_seconds, grace_seconds + _ANSWER_SECONDS)
            if await processes.unless_gone(process, call):
                return
        if process is not None and process.alive():
            self._log.warning("supervisor can't release, killed", job=job_id, nodes=nodes, pid=process.pid)
            process.kill()
            await process.wait()
        taken, mine, own = frozenset(nodes), ownership.of_job(self._jobs, job_id), str(incarnation)

        def to_end(found: Mapping[str, str]) -> bool:
            if env.NODE in found:
                return mine(found) and found[env.NODE] in taken
            # A supervisor: that of a later incarnation, which may have started meanwhile, is none of our business.
            return mine(found) and found.get(env.INCARNATION) == own

        await processes.sweep(to_end)

    async def stop(self, job_id: str, incarnation: int, grace_seconds: float) -> None:
        """End the job's processes and its supervisor; see `Launcher`."""
        process = self._process(job_id, incarnation)
        if process is None:
            return
        remote = self._remote(job_id, incarnation)
        if remote is not None:
            await processes.unless_gone(process, remote.stop(grace_seconds, grace_seconds + _ANSWER_SECONDS))
            try:
                await asyncio.wait_for(process.wait(), _LINGER_SECONDS)
            except TimeoutError:
                self._log.warning("supervisor does not end, killed", job=job_id, pid=process.pid)
        process.kill()

    def is_done(self, job_id: str) -> bool:
        """Whether the trainer has said that it is done."""
        return self.folder(job_id).is_done

    async def sweep_strays(self, supervised: Iterable[str]) -> int:
        """End every process of jobs that are not among the supervised ones; see `Launcher`."""
        return await processes.sweep(ownership.of_others(self._jobs, frozenset(supervised)))

    async def sweep_nodes(self, nodes: Iterable[str], supervised: Iterable[str]) -> None:
        """End processes on nodes of jobs that are not among the supervised ones; see `Launcher`."""
        await processes.sweep(ownership.of_others_on(self._jobs, frozenset(supervised), frozenset(nodes)))

    async def close(self) -> None:
        """Let go of connections; supervisors go on."""
        await self._remotes.close()

    def _remote(self, job_id: str, incarnation: int) -> Remote | None:
        """The supervisor's service; None while it has not announced itself, or where it has another incarnation."""
        folder = self.folder(job_id)
        launched = self._launched(folder, incarnation)
        if not launched or folder.supervisor() is None:
            return None
        return self._remotes.get(job_id, incarnation, str(launched["socket"]))

    def _process(self, job_id: str, incarnation: int) -> ProcessId | None:
        folder = self.folder(job_id)
        if not self._launched(folder, incarnation):
            return None
        return folder.supervisor() or self._booting(job_id, incarnation)

    def _launched(self, folder: JobFolder, incarnation: int) -> dict[str, Any]:
        """What this incarnation was launched with; empty where it was not."""
        launched = folder.launched()
        return launched if launched is not None and launched.get("incarnation") == incarnation else {}

    def _booting(self, job_id: str, incarnation: int) -> ProcessId | None:
        """A supervisor that was started and has not announced itself yet."""
        child = self._children.get((job_id, incarnation))
        if child is not None:
            started = processes.start_time_of(child.pid)
            return None if started is None else ProcessId(child.pid, started)
        supervisor = ownership.of_supervisor(self._jobs, job_id, incarnation)
        return next((found.process for found in processes.find(supervisor)), None)

    async def _reap(self, child: subprocess.Popen[bytes]) -> int:
        """Exit status of a child that has ended or is about to."""
        while (status := child.poll()) is None:
            await asyncio.sleep(_POLL_SECONDS)
        return status


def _without_word(status: int | None) -> str:
    ending = "" if status is None else f" (exit status {status})"
    return f"the supervisor ended without a word{ending}"
