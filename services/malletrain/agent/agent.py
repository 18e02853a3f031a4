"""The agent of a node: serves supervisors, reports to the Scavenger, and leaves when the node is wanted back."""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from malletrain.agent.environment import JobOwner, worker_environment
from malletrain.agent.node_cgroups import NodeCgroups
from malletrain.agent.node_check.judging import CheckLimits
from malletrain.agent.node_check.running import check_node, measure_speed
from malletrain.agent.registration import Registration, RegistryAddress
from malletrain.agent.report_forwarder import ReportForwarder
from malletrain.agent.session import SupervisorSession
from malletrain.agent.stage_outs import StageOuts
from malletrain.agent.supervisor_server import Send, SupervisorServer
from malletrain.agent.sweeps import SweepsInThreads
from malletrain.common import environment as env
from malletrain.common.accounts import Account
from malletrain.common.commands import start_command
from malletrain.common.orphans import adopt_orphans, end_descendants, reap_orphans
from malletrain.common.stage_out import StageOutTerms
from malletrain.common.standby.config import standby_config_for
from malletrain.common.standby.processes import StandbyProcesses, WorkerForks
from malletrain.common.tasks import DEFECT_STATUS, Crew, start_thread
from malletrain.common.version import VERSION
from malletrain.tls.files import CertificateFileError
from malletrain.tls.sources import RenewableCertificate
from malletrain.v1 import agent_pb2 as pb

_POLL_SECONDS = 0.02
_REFUSED_SECONDS = 15.0
"""An agent that the Scavenger refuses for so long has no placeholder any more: its node may be others' at any time."""
_FAREWELL_SECONDS = 0.1
"""How long peers may take to hear that the agent ends. Its node is clean by then."""


@dataclass(frozen=True)
class AgentConfig:
    """How an agent works.

    Attributes:
        node: Name of the node.
        head: HOST:PORT on which the Scavenger listens for agents.
        certificate: The agent's certificate, which the Scavenger renews.
        listen: Address to serve supervisors on.
        placeholder: Identifier of the batch job that holds the node; empty if there is none.
        grace_seconds: Time that workers have to end by themselves once the node is wanted back.
        orphan_seconds: How long the agent stays without work if the Scavenger can't be reached.
        stay_seconds: When the agent leaves in any case, counted from its start: before the time limit of its
            placeholder, at which some schedulers only send SIGKILL.
        in_slurm: Whether the placeholder is a job of Slurm.
        standby_memory_bytes: Largest share of memory of all standby processes together; 0: there are none.
        check: What the node must have before the agent reports; None: it is not checked.
        stage_out: How long and how much of checkpoints may be copied from the node after its workers have gone; None:
            nothing.
        unfit: Why no work may start here, as far as is known before the check; empty: nothing is.
    """

    node: str
    head: str
    certificate: RenewableCertificate
    listen: str
    placeholder: str
    grace_seconds: float
    orphan_seconds: float
    stay_seconds: float = math.inf
    in_slurm: bool = False
    standby_memory_bytes: int = 0
    check: CheckLimits | None = None
    stage_out: StageOutTerms | None = None
    unfit: str = ""


class Agent:
    """The agent of one node."""

    def __init__(self, config: AgentConfig) -> None:
        """Nothing happens before `run`, but an event loop must be running."""
        self._config = config
        self._forwarder = ReportForwarder(config.certificate, self._log)
        self._server = SupervisorServer(self._open_session, self._log)
        self._registration = Registration(
            RegistryAddress(config.head, config.certificate),
            lambda: sum(len(session) for session in self._server.sessions),
            self._begin_to_leave,
            self._log,
            self._forwarder.lead_only_to,
            self._renew_certificate,
        )
        self._groups = NodeCgroups()
        self._standbys = Standbys(config.standby_memory_bytes, self._log, self._groups)
        self._sweeps = SweepsInThreads(self._log)
        self._stage_outs = StageOuts(config.stage_out, self._log)
        self._leave_by: float | None = None
        self._stay_until = time.monotonic() + config.stay_seconds
        self._left = asyncio.Event()
        self._crew = Crew(self._left.set)

    async def run(self) -> None:
        """Work until the node is wanted back, or until there has been neither work nor Scavenger for too long.

        However it ends, nothing of ours is left on the node then: also when a defect has ended one of its tasks.

        Raises:
            CertificateFileError: the certificate can't be used.
            RuntimeError: the address to serve supervisors on can't be used.
            Exception: a defect; what has ended a task of the agent.
        """
        config, loop = self._config, asyncio.get_running_loop()
        adopt_orphans()
        self._groups.open(config.head, config.node, self._log)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._begin_to_leave)
        port = await self._server.start(config.listen, config.certificate)
        self._log(f"node {config.node} is served on {config.listen}:{port}")
        introduction = pb.AgentIntroduction(
            node=config.node, port=port, placeholder=config.placeholder, version=VERSION
        )
        watch = StandstillWatch(self._leave_at_standstill)
        self._crew.start(self._check_and_register(introduction), "registration")
        self._crew.start(self._poll(), "poll")
        if config.in_slurm:
            self._crew.start(self._leave_if_preempted(), "preemption", may_end=True)
        await self._left.wait()
        if self._crew.failure is not None:
            self._log(f"ends by a defect: {self._crew.failure!r}")
        self._clear_node()
        farewell = (
            self._registration.report_gone(_FAREWELL_SECONDS),
            self._server.stop(_FAREWELL_SECONDS),
            self._forwarder.close(),
        )
        await asyncio.gather(*farewell, return_exceptions=True)
        await self._crew.close()
        watch.close()
        self._crew.check()

    async def _check_and_register(self, introduction: pb.AgentIntroduction) -> None:
        """Check the node, while a standby process boots, and then stay registered.

        Only what is found at the agent's start counts: a node on which workers are is never given up for it.
        """
        config = self._config
        introduction.unfit = config.unfit
        if config.check is not None and not config.unfit:
            unfit, speed = await asyncio.gather(check_node(config.node, config.check), measure_speed(config.check))
            introduction.unfit = unfit
            if speed is not None:
                introduction.speed.hash_seconds, introduction.speed.copy_seconds = speed
        if introduction.unfit:
            self._log(f"no worker must start here: {introduction.unfit}")
        await self._registration.run(introduction)

    def _renew_certificate(self, content: bytes) -> None:
        try:
            self._config.certificate.renew(content)
        except CertificateFileError as error:
            self._log(f"the certificate stays as it was: {error}")

    def _leave_at_standstill(self) -> None:
        """What a job has on its disk may keep the event loop waiting for ever: then nobody looks after the node."""
        self._log("ends by a defect: the event loop stands still, or nobody watches it")
        end_descendants(kill_groups=self._groups.kill_all)
        os._exit(DEFECT_STATUS)

    def _clear_node(self) -> None:
        """End everything of ours. A step that fails leaves the next ones to do: the last one finds all processes."""
        for step in (self._stage_outs.close, self._kill_all, self._standbys.close):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - whatever it is, the node must be left
                self._log(f"{step.__name__} has failed: {error!r}")
        if ended := end_descendants(kill_groups=self._groups.kill_all):
            self._log(f"ended {ended} processes that workers have left behind")
        self._groups.remove()

    def _open_session(self, send: Send, owner: JobOwner | None) -> SupervisorSession:
        head = self._config.head.rpartition(":")[0].strip("[]")
        account = None if owner is None else owner.account
        user_id = os.geteuid() if account is None else account.user_id

        def monitor_at(monitor: str, with_tls: bool) -> str:
            return self._forwarder.address_for(monitor, user_id, with_tls=with_tls)

        standby, address = self._standbys.of(account), self._config.listen.strip("[]")
        session = SupervisorSession(
            self._config.node,
            head,
            send,
            monitor_at,
            owner,
            standby,
            address,
            self._sweeps,
            self._groups,
            self._log,
            self._stage_outs,
        )
        if self._leave_by is not None:
            session.report_leaving()
        return session

    def _begin_to_leave(self) -> None:
        if self._leave_by is not None:
            return
        self._log(f"node {self._config.node} is wanted back")
        self._leave_by = time.monotonic() + self._config.grace_seconds
        self._standbys.kill()
        self._registration.report_leaving()
        for session in self._server.sessions:
            session.report_leaving()

    async def _leave_if_preempted(self) -> None:
        try:
            if await was_preempted(self._config.placeholder):
                self._begin_to_leave()
        except PreemptionQueryError as error:
            self._log(f"whether the node is wanted back is not known: {error}")

    async def _poll(self) -> None:
        while True:
            try:
                self._server.poll()
            except OSError as error:  # without free descriptors, for example; the node must be left all the same
                self._log(f"workers can't be looked at: {error}")
            if self._leave_by is None:
                self._standbys.tick(self._server.sessions)
            self._stage_outs.poll(time.monotonic())
            workers = {pid for session in self._server.sessions for pid in session.worker_pids}
            reap_orphans(workers | self._standbys.pids | self._stage_outs.pids)
            self._leave_if_due(time.monotonic())
            await asyncio.sleep(_POLL_SECONDS)

    def _leave_if_due(self, now: float) -> None:
        if now >= self._stay_until:
            self._begin_to_leave()
        if self._leave_by is None and self._registration.refused_seconds(now) >= _REFUSED_SECONDS:
            self._log(f"the Scavenger has refused this agent for {_REFUSED_SECONDS:g} s")
            self._begin_to_leave()
        busy = any(len(session) for session in self._server.sessions) or self._stage_outs.under_way
        if self._leave_by is not None:
            delivers = any(session.delivers for session in self._server.sessions)
            if now >= self._leave_by or not (busy or delivers):
                self._left.set()
        elif not busy and self._registration.disconnected_seconds(now) >= self._config.orphan_seconds:
            self._log("the Scavenger can't be reached, and there is no work")
            self._left.set()

    def _kill_all(self) -> None:
        for session in self._server.sessions:
            session.kill()

    def _log(self, text: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        print(f"{now} malletrain.agent: {text}", file=sys.stderr, flush=True)


_PREEMPTED = re.compile(r"\bPreemptTime=(?!None\b|Unknown\b|\(null\))\S")
_SECONDS = 10.0


class PreemptionQueryError(Exception):
    """Slurm does not answer, or answers with an error."""


async def was_preempted(job: str, scontrol: str = "scontrol") -> bool:
    """Ask Slurm once. Call when the handler of SIGTERM is installed.

    Slurm sends SIGTERM to the steps of a job. If a job is preempted before its step runs, its step gets no signal, and
    the main job waits until GraceTime is over (19 s instead of 1 s, measured with GraceTime=10).

    Args:
        job: Slurm's identifier of the placeholder.
        scontrol: Path of the command.

    Raises:
        PreemptionQueryError: the command fails, or does not end within 10 s.
    """
    command = (scontrol, "--oneliner", "show", "job", job)
    try:
        # In this session: what is in another one counts as a worker's, and the agent collects it.
        process = await start_command(command, os.environ, seconds=_SECONDS, own_session=False)
    except OSError as error:
        raise PreemptionQueryError(f"{scontrol}: {error.strerror}") from error
    try:
        async with asyncio.timeout(_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise PreemptionQueryError(f"{scontrol} has not answered within {_SECONDS:g} s") from error
    finally:
        await process.close()
    if process.returncode:
        raise PreemptionQueryError(f"{scontrol}: {errors.decode(errors='replace').strip()}")
    return is_preempted(output.decode(errors="replace"))


def is_preempted(text: str) -> bool:
    """Whether the output of `scontrol show job` has a time of preemption."""
    return _PREEMPTED.search(text) is not None


_LOOK_SECONDS = 1.0
_MAX_LOOKS = 30


class StandstillWatch:
    """Looks once a second whether the loop has turned since. Looks count, not time: the machine may have slept."""

    def __init__(
        self, on_standstill: Callable[[], object], look_seconds: float = _LOOK_SECONDS, max_looks: int = _MAX_LOOKS
    ) -> None:
        """Watch the running event loop from now on.

        Args:
            on_standstill: Called in another thread, once, when the loop stands still.
            look_seconds: Time between two looks.
            max_looks: How many looks in a row may find that it has not turned.
        """
        self._on_standstill = on_standstill
        self._look_seconds = look_seconds
        self._max_looks = max_looks
        self._loop = asyncio.get_running_loop()
        self._turned = threading.Event()
        self._closed = threading.Event()
        # Without this thread nobody would notice: its end counts as a standstill, which has the node left, too.
        start_thread(self._watch, "standstill", self._note_failure)

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()

    def _note_failure(self, error: BaseException) -> None:
        traceback.print_exception(error, file=sys.stderr)
        self._on_standstill()

    def _watch(self) -> None:
        missed = 0
        self._loop.call_soon_threadsafe(self._turned.set)
        while not self._closed.wait(self._look_seconds):
            if self._turned.is_set():
                missed = 0
                self._turned.clear()
                if self._loop.is_closed():
                    return
                self._loop.call_soon_threadsafe(self._turned.set)
                continue
            missed += 1
            if missed >= self._max_looks:
                self._on_standstill()
                return


class Standbys:
    """Standby processes of an agent, one for each user as whom workers run here. Use from the agent's main thread only.

    The first one of a user has the agent's interpreter and what workers usually have in their environment. Others
    follow as workers need them.
    """

    def __init__(self, memory_bytes: int, say: Callable[[str], None], groups: NodeCgroups) -> None:
        """Start nothing before `tick`.

        Args:
            memory_bytes: Largest share of memory of all together; 0: there are none.
            say: Called with a line of text about what happens.
        """
        self._groups = groups
        self._standbys = StandbyProcesses(memory_bytes, say, group_of=groups.of_standbys)
        self._open(None)

    @property
    def pids(self) -> set[int]:
        """Process ids of the standby processes."""
        return self._standbys.pids

    def of(self, account: Account | None) -> WorkerForks:
        """What forks the workers of an account; None: of the agent's own.

        Where workers run as their owners, the agent needs no standby process of its own.
        """
        if account is not None:
            self._standbys.end({os.geteuid()})
        if (os.geteuid() if account is None else account.user_id) not in self._standbys.user_ids:
            self._open(account)
        return self._standbys.of(account)

    def tick(self, sessions: Iterable[SupervisorSession]) -> None:
        """Look after them. Those of owners end with the last session for their workers."""
        present = list(sessions)
        served = {session.user_id for session in present}
        for user_id in self._standbys.user_ids - served - {os.geteuid()}:
            self._standbys.end({user_id})
            self._groups.end_standbys(user_id)
        self._standbys.tick(busy=any(session.is_booting for session in present))

    def kill(self) -> None:
        """Kill all, and start none any more. They may end a moment later."""
        self._standbys.kill()

    def close(self) -> None:
        """End all; none is started any more."""
        self._standbys.close()

    def _open(self, account: Account | None) -> None:
        self._standbys.open(account, standby_config_for(sys.executable, usual_environment(os.environ, account)))


def usual_environment(own: Mapping[str, str], account: Account | None) -> dict[str, str]:
    """What workers have in their environment, as far as it is known before there is a job.

    Args:
        own: Environment of the agent.
        account: As whom they run; None: as the agent.
    """
    # How many threads a worker may have is known here; the rest comes from its supervisor.
    defaults = {name: value for name, value in env.TRAINER_DEFAULTS.items() if name != "OMP_NUM_THREADS"}
    programs, cpus = str(Path(sys.executable).parent), len(os.sched_getaffinity(0))
    return worker_environment(own, defaults, programs, cpus, account)
