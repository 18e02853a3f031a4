"""The source `slurm`: which commands are run, and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.machine.gpu_units import GpuShare, by_node
from malletrain.scavenger.sources.base import PlaceholderView
from malletrain.scavenger.sources.schedulers.commands import RunCommand, run_command
from malletrain.scavenger.sources.schedulers.hostlists import node_filter
from malletrain.scavenger.sources.schedulers.polled import (
    NodeSelection,
    PolledSource,
    SchedulerQueries,
    StalenessPolicy,
    forecast_validity,
)
from malletrain.scavenger.sources.schedulers.query import Query, QueryTiming
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm_gpus import parse_gpus
from malletrain.scavenger.sources.schedulers.slurm_text import (
    parse_classes,
    parse_planned,
    parse_reservations,
    parse_states,
    parse_topology,
)
from malletrain.scavenger.state_file import ScavengerStateFile

AnswerT = TypeVar("AnswerT")
_NOT_TOLD: Mapping[str, int] = MappingProxyType({})


def slurm_source(
    section: SlurmSettings,
    clock: Clock,
    run: RunCommand = run_command,
    placeholders: PlaceholderView | None = None,
    state_file: ScavengerStateFile | None = None,
    gpu_memory_mib: Mapping[str, int] = _NOT_TOLD,
) -> PolledSource:
    """The source of the idle nodes of a Slurm cluster; `state_file` keeps idle ages over a restart.

    `gpu_memory_mib` is the memory of a GPU of each kind in MiB.

    Raises:
        InvalidInputError: no partition is named, one twice, or a pattern can't be read.
    """
    partitions = section.partitions
    if not partitions or len(set(partitions)) < len(partitions):
        raise InvalidInputError("scavenger.slurm.partitions", "at least one partition, each once", list(partitions))

    def query(name: str, argv: list[str], parse: Callable[[str], AnswerT], interval: float) -> Query[AnswerT]:
        timing = QueryTiming(interval, section.timeout_seconds, section.longest_pause_seconds)
        return Query("slurm", name, argv, parse, timing, clock, run)

    names = ",".join(partitions)
    several = len(partitions) > 1
    by_gpu = section.units == "gpus"
    states = ["-o", "%R|%T|%N" if several else "%T|%N"]
    pools = {name: name for name in partitions} if several else None
    share = GpuShare(section.gpu_share.cpus, section.gpu_share.memory_mib)
    held = placeholders.nodes if placeholders is not None else tuple
    queries = SchedulerQueries(
        nodes=query(
            "nodes",
            [section.scontrol, "-o", "-d", "show", "nodes"] if by_gpu else [section.sinfo, "-h", "-p", names, *states],
            partial(parse_gpus, partitions=partitions, wanted=share, held=held, gpu_memory_mib=gpu_memory_mib)
            if by_gpu
            else partial(parse_states, pools=pools),
            section.interval_seconds,
        ),
        planned=query(
            "queue",
            [section.squeue, "-h", "-t", "PD", "-o", "%i|%S|%Y"],
            parse_planned,
            section.queue_interval_seconds,
        ),
        reservations=query(
            "reservations",
            [section.scontrol, "-o", "show", "reservations"],
            parse_reservations,
            section.reservations_interval_seconds,
        ),
        # What GPUs are, the answer about nodes says.
        classes=None
        if by_gpu
        else query(
            "classes",
            [section.sinfo, "-h", "-e", "-p", names, "-o", "%G|%f|%c|%m|%N"],
            partial(parse_classes, gpu_memory_mib=gpu_memory_mib),
            section.classes_interval_seconds,
        ),
        topology=query(
            "topology",
            [section.scontrol, "-o", "show", "topology"],
            parse_topology,
            section.classes_interval_seconds,
        )
        if section.topology
        else None,
    )
    slowest = max(section.queue_interval_seconds, section.reservations_interval_seconds)
    staleness = StalenessPolicy(section.stale_seconds, forecast_validity(slowest, section.stale_seconds))
    wanted = node_filter(section.include, section.exclude, "scavenger.slurm")
    selection = NodeSelection(by_node(wanted) if by_gpu else wanted, pool=partitions[0])
    return PolledSource(queries, staleness, selection, clock, placeholders, state_file)
