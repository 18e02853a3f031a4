"""A source of nodes that are ours: an agent runs on each, in a placeholder or started over ssh."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shlex
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.common.tasks import Crew
from malletrain.runtime.access.certificate_renewal import CertificateRenewal
from malletrain.runtime.access.keys import installation_id
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.scavenger.acquisition.agent_registry import AgentRegistry, agent_placeholder_id
from malletrain.scavenger.acquisition.batch_client import AgentCommand, BatchClient
from malletrain.scavenger.acquisition.demand import NodeDemand
from malletrain.scavenger.acquisition.node_certificates import NodeCertificates
from malletrain.scavenger.acquisition.pbs_batch_client import PbsBatchClient
from malletrain.scavenger.acquisition.placeholder_controller import PlaceholderController
from malletrain.scavenger.acquisition.slurm_batch_client import SlurmBatchClient
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts, Observation
from malletrain.scavenger.machine.placeholder_machine import RecordedPlaceholders
from malletrain.scavenger.machine.placeholder_validation import validate_held
from malletrain.scavenger.machine.placeholders import (
    EndedPlaceholder,
    ListedPlaceholder,
    PlaceholderPhase,
    PlaceholderPolicy,
)
from malletrain.scavenger.machine.slow_nodes import SpeedTold
from malletrain.scavenger.machine.submission_backoff import BackoffPolicy
from malletrain.scavenger.sources.base import NodeSource, NoPlaceholders, PlaceholderView, SourceStatus, WrappingSource
from malletrain.scavenger.sources.schedulers.commands import Input, RunCommand, run_command
from malletrain.scavenger.sources.schedulers.settings import HoldSettings, NodeCheckSettings
from malletrain.scavenger.telemetry.metrics import ReclaimTimer

_RETURN_SECONDS = 3.0
"""How long the agents of an earlier life of this service have to report before the first observation."""
_LOOK_SECONDS = 0.05
_OWN_ROLE = "scavenger"
_MIN_RECORDED = 100
"""Stimuli of placeholders that are kept for a replay: with each decision all nodes that could be held are kept."""
_LEAVE_SECONDS = 2.0
"""How long agents may take to leave, beyond the grace of their workers, when this service ends."""


class HeldSource(WrappingSource):
    """Offers the nodes that another source calls idle to the controller, and tells the nodes on which agents are."""

    def __init__(
        self,
        inner: NodeSource,
        registry: AgentRegistry,
        controller: PlaceholderController,
        demand: NodeDemand,
        address: tuple[str, int],
        debounce_seconds: float,
        clock: Clock,
        certificates: CertificateRenewal,
        *,
        margin_seconds: float = 0.0,
        grace_seconds: float = 0.0,
        give_back: bool = False,
        watched_only: bool = False,
        validate: bool = False,
    ) -> None:
        """
        Args:
            inner: Tells which nodes are idle. It knows the nodes that the controller holds.
            registry: Where agents report.
            controller: Submits and cancels placeholders.
            demand: How many nodes there is work for.
            address: Host and port of the registry.
            debounce_seconds: How long a node must be idle before it is taken.
            clock: Wall clock.
            certificates: Keeps that of the Scavenger.
            margin_seconds: How long before a reservation a node is left.
            grace_seconds: How long the workers of an agent that leaves may take.
            give_back: Whether all nodes are given back at a graceful end.
            watched_only: No placeholder holds the nodes: they are ours only while they are idle.
            validate: Whether invariants are checked.
        """
        super().__init__(inner)
        self._registry = registry
        self._controller = controller
        self._demand = demand
        self._address = address
        self._debounce = debounce_seconds
        self._clock = clock
        self._certificates = certificates
        self._margin = margin_seconds
        self._grace = grace_seconds
        self._give_back = give_back
        self._excluded: dict[str, float] = {}
        self._drained: Container[str] = frozenset()
        self._watched_only = watched_only
        self._validate = validate
        self._listening = False
        self._seen: Observation | None = None
        self._since: dict[str, float] = {}
        self._news = asyncio.Event()

    def status(self) -> SourceStatus:
        """As the inner source, with the placeholders."""
        return replace(self._inner.status(), placeholders=(self._controller.status(),))

    def exclude(self, until: Mapping[str, float], drained: Container[str] = frozenset()) -> None:
        """See `NodeSource`."""
        self._excluded = dict(until)
        self._drained = drained
        self._news.set()

    def move_times(self, seconds: float) -> None:
        """See `NodeSource`. Excluded nodes are told anew."""
        self._inner.move_times(seconds)
        self._controller.move_times(seconds)
        self._since = {node: since + seconds for node, since in self._since.items()}
        self._seen = None if self._seen is None else self._seen.moved(seconds)

    async def close(self) -> None:
        """Give all nodes back, unless the next Scavenger is to find their placeholders again."""
        if self._give_back:
            self._registry.ask_to_leave(list(self._registry.present))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._grace + _LEAVE_SECONDS):
                    while self._registry.leaving:
                        self._news.clear()
                        await self._news.wait()
            await self._controller.give_all_back()
        await self._registry.close()
        await self._inner.close()

    def agents_changed(self) -> None:
        """Agents have come, gone, or been told to leave: tell at once."""
        self._controller.agents_changed()
        self._news.set()

    async def observations(self) -> AsyncIterator[Observation]:
        """The nodes that are held, whenever that changes; see `NodeSource`."""
        if not self._listening:
            await self._registry.open(*self._address)
            self._listening = True
        crew = Crew(self._news.set)
        crew.start(self._follow_inner(), "observations of the scheduler")
        crew.start(self._controller.run(), "placeholders")
        crew.start(self._demand.follow(), "demand")
        crew.start(self._certificates.keep_renewed(), "certificates")
        crew.start(self._registry.keep_certificates(), "certificates of agents")
        try:
            await self._wait_for_earlier_agents(crew)
            while True:
                await self._news.wait()
                self._news.clear()
                crew.check()
                self._give_nodes_back()
                self._offer_candidates()
                if self._seen is not None:
                    held = self._with_agents(self._seen)
                    self._check(held)
                    yield held
        finally:
            await crew.close()

    async def _follow_inner(self) -> None:
        try:
            async for observation in self._inner.observations():
                self._seen = observation
                self._news.set()
        finally:
            self._news.set()

    async def _wait_for_earlier_agents(self, crew: Crew) -> None:
        """Wait for the agents of an earlier life: without them, the first observation would make jobs shrink.

        Placeholders tell which agents there are. Without placeholders the whole time is waited: an agent that has not
        reported by then would be started a second time.
        """
        deadline = self._clock.monotonic() + _RETURN_SECONDS
        while self._clock.monotonic() < deadline and crew.failure is None:
            known = self._controller.has_listed and not self._watched_only
            if known and self._controller.state.running <= self._controller.nodes():
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _offer_candidates(self) -> None:
        seen = self._seen
        if seen is None or seen.stale:
            self._controller.set_candidates({}, {})
            return
        latest = self._clock.time() - self._debounce
        # Where an agent still leaves, the next one would be beside it if its placeholder has ended before it.
        leaving = {agent.node for agent in self._registry.leaving}
        barred = self._registry.present.keys() | self._controller.unwanted | leaving
        usable = (node for node, since in seen.idle.items() if since <= latest and node not in self._drained)
        free = (node for node in usable if node not in barred)
        self._controller.set_candidates({node: seen.ends.get(node, float("inf")) for node in free}, seen.facts)

    def _give_nodes_back(self) -> None:
        """Have agents leave nodes that we may not use, and cancel placeholders there."""
        unwanted = self._unwanted()
        self._controller.set_unwanted(unwanted)
        leaving = unwanted & self._registry.present.keys()
        if self._watched_only and self._seen is not None:
            leaving |= self._registry.present.keys() - self._seen.idle.keys()
        self._registry.ask_to_leave(sorted(leaving))

    def _unwanted(self) -> frozenset[str]:
        """Nodes that operators have taken out of use or back, and nodes whose reservation is about to begin."""
        now = self._clock.time()
        excluded = {node for node, until in self._excluded.items() if until > now}
        ours = self._registry.present.keys() | self._controller.state.nodes
        excluded |= {node for node in ours if node in self._drained}
        if self._seen is None or self._seen.stale:
            return frozenset(excluded)
        soon = (node for node, start in self._seen.reserved.items() if start - now <= self._margin)
        return frozenset(excluded.union(self._seen.offline, soon))

    def _with_agents(self, seen: Observation) -> Observation:
        """The nodes with agents. One that was just taken may not be in what the inner source has seen."""
        now = self._clock.time()
        present = self._registry.present
        self._since = {node: self._since.get(node, seen.idle.get(node, now)) for node in sorted(present)}
        return replace(
            seen,
            time=now,
            idle=dict(self._since),
            watched=seen.idle,
            agents={node: agent.address for node, agent in present.items()},
            agent_names={node: agent.name for node, agent in present.items()},
            unfit=self._registry.take_unfit(),
        )

    def _check(self, held: Observation) -> None:
        if self._validate:
            placeholders = {node: agent.placeholder for node, agent in self._registry.present.items()}
            validate_held(held.idle, held.agents, placeholders, self._controller.state)


def build_held_source(
    scheduler: str,
    section: HoldSettings,
    open_inner: Callable[[PlaceholderView], NodeSource],
    settings: Settings,
    debounce_seconds: float,
    clock: Clock,
    demand: NodeDemand,
    reclaim_timer: ReclaimTimer = lambda *_: None,
    check: NodeCheckSettings | None = None,
    gpu_nice: int | None = None,
    speed_told: SpeedTold = lambda *_: None,
) -> HeldSource:
    """A source of the nodes that are held.

    Args:
        scheduler: "slurm" or "pbs".
        section: How they are held.
        open_inner: Makes the source that tells which nodes are idle.
        settings: Common settings.
        debounce_seconds: How long a node must be idle before it is taken.
        clock: Wall clock.
        demand: How many nodes there is work for.
        reclaim_timer: Told how long agents take to leave.
        check: How nodes are checked before their first worker; None: they are not.
        gpu_nice: Where single GPUs are held, by how much what runs there yields CPU time to others.
        speed_told: Told how fast nodes are.

    Raises:
        InvalidInputError: the certificates can't be made or used.
    """
    lifespan = settings.tls.lifespan_seconds
    certificates = CertificateRenewal(settings.state_dir, (_OWN_ROLE,), clock, lifespan)
    certificates.renew()
    of_nodes = NodeCertificates(settings.state_dir, clock, lifespan, section.patience_seconds)
    by_ssh = bool(section.ssh)
    installation = installation_id(settings.state_dir)
    registry = AgentRegistry(
        certificates.path(_OWN_ROLE),
        lambda: source.agents_changed(),
        reclaim_timer,
        settings.limits,
        settings.monitor_as_nodes_see_it,
        of_nodes,
        # Over ssh no scheduler says which agents there are.
        lambda node: by_ssh or controller.expects(node),
        clock,
        check.most_clock_seconds if check is not None and check.enabled else math.inf,
        speed_told,
    )
    client = _batch_client(scheduler, section, of_nodes.issue, installation, registry, check, gpu_nice)
    validate = settings.validate_state
    policy = _policy(section)
    recorder = FlightRecorder(
        settings.state_dir / "debug", RecordedPlaceholders(policy), validate, min_stimuli=_MIN_RECORDED
    )
    controller = PlaceholderController(
        scheduler, client, registry, policy, demand.nodes, clock, recorder, demands=demand.by_needs
    )
    host, _, port = section.agents_address.rpartition(":")
    source = HeldSource(
        # A node without a placeholder is ours only while the scheduler calls it idle.
        open_inner(NoPlaceholders() if by_ssh else controller),
        registry,
        controller,
        demand,
        (host, int(port)),
        debounce_seconds,
        clock,
        certificates,
        margin_seconds=section.margin_seconds,
        grace_seconds=section.grace_seconds,
        give_back=section.give_back_at_exit,
        watched_only=by_ssh,
        validate=validate,
    )
    return source


def _policy(section: HoldSettings) -> PlaceholderPolicy:
    return PlaceholderPolicy(
        shortest_seconds=section.shortest_seconds,
        longest_seconds=section.longest_seconds,
        patience_seconds=section.patience_seconds,
        refusal_seconds=section.refusal_seconds,
        surplus_seconds=section.surplus_seconds,
        most_pending=section.most_pending,
        calm_seconds=section.calm_seconds,
        margin_seconds=section.margin_seconds,
        backoff=BackoffPolicy(section.backoff_seconds, section.backoff_max_seconds, section.pause_after_failures),
        starts_at_once=bool(section.ssh),
    )


def _batch_client(
    scheduler: str,
    section: HoldSettings,
    issue: Callable[[str], str],
    installation: str,
    registry: AgentRegistry,
    check: NodeCheckSettings | None,
    gpu_nice: int | None,
) -> BatchClient:
    agent = AgentCommand(
        section.python,
        section.head or section.agents_address,
        issue,
        section.listen,
        section.grace_seconds,
        installation,
        section.margin_seconds,
        section.marks if section.ssh else "",
        section.standby_memory_mib,
        (section.stage_out_seconds, section.stage_out_mib),
        () if check is None else check.agent_options(alone=gpu_nice is None),
    )
    if section.ssh:
        return SshAgentStarter(run_command, agent, registry, section.ssh, section.log)
    common = run_command, agent, section.queue, section.name, section.options, section.log
    if scheduler == "pbs":
        return PbsBatchClient(*common, by_gpu=gpu_nice is not None, nice=gpu_nice or 0)
    return SlurmBatchClient(*common, by_gpu=gpu_nice is not None, nice=gpu_nice or 0)


@dataclass(frozen=True)
class SshAgentStarter:
    """A `BatchClient` without a scheduler: each agent counts as its own placeholder.

    Attributes:
        run: Runs a command.
        agent: How the agent is started.
        registry: Where agents report.
        ssh: Command that runs another one on a node. The node and a command line of the shell are appended.
        log: File on the node to which the agent writes.
        timeout_seconds: Time limit of each command.
    """

    run: RunCommand
    agent: AgentCommand
    registry: AgentRegistry
    ssh: tuple[str, ...]
    log: str = "/dev/null"
    timeout_seconds: float = 10.0

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        """Start an agent that outlives the connection, without a time limit. See `BatchClient`."""
        del seconds, facts
        certificate = Input(f"{await self.agent.certificate_line(node)}\n")
        await self.run([*self.ssh, node, self._start_line(node)], self.timeout_seconds, certificate)
        return agent_placeholder_id(node)

    def _start_line(self, node: str) -> str:
        """What the shell on the node does: it reads the certificate and hands it to the agent by a pipe.

        It ends once the pipe holds the certificate and the agent's session has begun, not before: the end of the
        connection, or of the command that stands in for ssh, may be that of everything in the shell's session.
        """
        agent, log = shlex.join(self.agent.on(node, "stdin")), shlex.quote(self.log)
        give = "{ printf '%s\\n' \"$line\"; echo given >&3; }"
        start = f"setsid sh -c 'echo begun; exec \"$@\" >&2' sh {agent} 2>>{log} 3>&-"
        return f"IFS= read -r line && {{ {give} | {start} & }} 3>&1 | {{ read -r one && read -r other; }}"

    async def find(self) -> Mapping[str, ListedPlaceholder]:
        """All agents that have reported."""
        agents = [*self.registry.present.values(), *self.registry.leaving]
        return {agent.placeholder: ListedPlaceholder(agent.node, PlaceholderPhase.RUNNING) for agent in agents}

    async def explain(self, identifiers: Sequence[str]) -> Mapping[str, EndedPlaceholder]:
        """Nothing: agents that never reported are not known."""
        del identifiers
        return {}

    async def cancel(self, identifiers: Sequence[str]) -> None:
        """Tell agents to leave. One that has not reported yet is adopted when it does, as after a restart."""
        present = list(self.registry.present.values())
        self.registry.ask_to_leave(agent.node for agent in present if agent.placeholder in identifiers)
