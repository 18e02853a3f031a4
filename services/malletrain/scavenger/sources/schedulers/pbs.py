"""The source `pbs`: which commands are run, and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from malletrain.runtime.clock import Clock
from malletrain.scavenger.machine.gpu_units import GpuShare, by_node
from malletrain.scavenger.sources.base import PlaceholderView
from malletrain.scavenger.sources.schedulers.commands import RunCommand, run_command
from malletrain.scavenger.sources.schedulers.hostlists import node_filter
from malletrain.scavenger.sources.schedulers.pbs_gpus import parse_gpus
from malletrain.scavenger.sources.schedulers.pbs_hosts import GpuResources
from malletrain.scavenger.sources.schedulers.pbs_json import (
    QSTAT_FULL,
    parse_jobs,
    parse_reservations,
    parse_vnodes,
)
from malletrain.scavenger.sources.schedulers.polled import (
    NodeSelection,
    PolledSource,
    SchedulerQueries,
    StalenessPolicy,
    forecast_validity,
)
from malletrain.scavenger.sources.schedulers.query import Query, QueryTiming
from malletrain.scavenger.sources.schedulers.settings import PbsSettings
from malletrain.scavenger.state_file import ScavengerStateFile

AnswerT = TypeVar("AnswerT")
_NOT_TOLD: Mapping[str, int] = MappingProxyType({})


def pbs_source(
    section: PbsSettings,
    clock: Clock,
    run: RunCommand = run_command,
    placeholders: PlaceholderView | None = None,
    state_file: ScavengerStateFile | None = None,
    gpu_memory_mib: Mapping[str, int] = _NOT_TOLD,
) -> PolledSource:
    """The source of the idle nodes of a PBS cluster; `state_file` keeps idle ages over a restart.

    `gpu_memory_mib` is the memory of a GPU of each kind in MiB.

    Raises:
        InvalidInputError: a pattern can't be read.
    """

    def query(name: str, argv: list[str], parse: Callable[[str], AnswerT], interval: float) -> Query[AnswerT]:
        timing = QueryTiming(interval, section.timeout_seconds, section.longest_pause_seconds)
        return Query("pbs", name, argv, parse, timing, clock, run)

    by_gpu = section.units == "gpus"
    how: dict[str, Any] = {
        "queues": section.queues,
        "pool": section.pool,
        "gpu_resources": GpuResources(section.gpu_type_resource, section.gpu_memory_resource, gpu_memory_mib),
        "topology_resources": section.topology_resources,
    }
    share = GpuShare(section.gpu_share.cpus, section.gpu_share.memory_mib)
    held = placeholders.nodes if placeholders is not None else tuple
    vnodes = partial(parse_gpus, wanted=share, held=held, **how) if by_gpu else partial(parse_vnodes, **how)
    queries = SchedulerQueries(
        nodes=query("nodes", [section.pbsnodes, "-av", "-F", "json"], vnodes, section.interval_seconds),
        planned=query("queue", [section.qstat, *QSTAT_FULL], parse_jobs, section.queue_interval_seconds),
        reservations=query(
            "reservations", [section.pbs_rstat, "-f"], parse_reservations, section.reservations_interval_seconds
        ),
    )
    slowest = max(section.queue_interval_seconds, section.reservations_interval_seconds)
    staleness = StalenessPolicy(section.stale_seconds, forecast_validity(slowest, section.stale_seconds))
    wanted = node_filter(section.include, section.exclude, "scavenger.pbs")
    selection = NodeSelection(by_node(wanted) if by_gpu else wanted, pool=section.pool)
    return PolledSource(queries, staleness, selection, clock, placeholders, state_file)
