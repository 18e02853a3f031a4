"""From settings to what holds nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from malletrain.runtime.clock import Clock
from malletrain.runtime.token import installation_token, token_file
from malletrain.scavenger.acquisition.batch import AgentCommand, Batch, SlurmBatch
from malletrain.scavenger.acquisition.demand import Demand
from malletrain.scavenger.acquisition.desk import AgentDesk
from malletrain.scavenger.acquisition.held_source import Acquisition, HeldSource
from malletrain.scavenger.acquisition.keeper import Keeper
from malletrain.scavenger.acquisition.ledger import Rules
from malletrain.scavenger.acquisition.pbs_batch import PbsBatch
from malletrain.scavenger.acquisition.ssh_start import SshStart
from malletrain.scavenger.reclaim_steps import ReclaimStep, unmeasured
from malletrain.scavenger.sources.base import Source
from malletrain.scavenger.sources.schedulers.commands import run_command
from malletrain.scavenger.sources.schedulers.holdings import Holdings, NoHoldings
from malletrain.scavenger.sources.schedulers.settings import HoldSettings


def hold_nodes(
    scheduler: str,
    section: HoldSettings,
    open_inner: Callable[[Holdings], Source],
    demand: Demand,
    state_dir: Path,
    debounce_seconds: float,
    clock: Clock,
    reclaim_step: ReclaimStep = unmeasured,
) -> HeldSource:
    """A source of the nodes that are held.

    Args:
        scheduler: "slurm" or "pbs".
        section: How they are held.
        open_inner: Makes the source that tells which nodes are idle.
        demand: How many nodes there is work for.
        state_dir: Where the installation's secret is kept; agents on the nodes read it there.
        debounce_seconds: How long a node must be idle before it is taken.
        clock: Wall clock.
        reclaim_step: Told how long each step of giving nodes back has taken, in seconds.

    Raises:
        InvalidInputError: the secret can't be made, or used.
    """
    token = installation_token(state_dir)
    host, _, port = section.agents_address.rpartition(":")
    agent = AgentCommand(
        section.python,
        section.head or section.agents_address,
        str(token_file(state_dir)),
        section.listen,
        section.grace_seconds,
        section.marks if section.ssh else "",
    )
    rules = Rules(
        section.shortest_seconds,
        section.longest_seconds,
        section.patience_seconds,
        section.refusal_seconds,
        section.surplus_seconds,
        section.most_pending,
        section.calm_seconds,
    )
    desk = AgentDesk(token, lambda: source.changed(), reclaim_step)
    by_ssh = bool(section.ssh)
    keeper = Keeper(_batch(scheduler, section, agent, desk), desk, rules, demand.nodes, clock)
    acquisition = Acquisition(desk, keeper, (host, int(port)), demand.follow, watched_only=by_ssh)
    # A node without a placeholder is ours for as long as the scheduler calls it idle.
    source = HeldSource(open_inner(NoHoldings() if by_ssh else keeper), acquisition, debounce_seconds, clock)
    return source


def _batch(scheduler: str, section: HoldSettings, agent: AgentCommand, desk: AgentDesk) -> Batch:
    if section.ssh:
        return SshStart(run_command, agent, desk, section.ssh, section.log)
    kind = SlurmBatch if scheduler == "slurm" else PbsBatch
    return kind(run_command, agent, section.queue, section.name, section.options, section.log)
