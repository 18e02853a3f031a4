"""The source `slurm`: which commands are asked, and how often."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.schedulers.commands import RunCommand, run_command
from malletrain.scavenger.sources.schedulers.holdings import Holdings
from malletrain.scavenger.sources.schedulers.memory import Memory
from malletrain.scavenger.sources.schedulers.patterns import node_filter
from malletrain.scavenger.sources.schedulers.polled import PolledSource, Questions, Trust, believed_seconds
from malletrain.scavenger.sources.schedulers.query import Pace, Query
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm_text import (
    parse_classes,
    parse_planned,
    parse_reservations,
    parse_states,
)

AnswerT = TypeVar("AnswerT")


def slurm_source(
    section: SlurmSettings,
    clock: Clock,
    run: RunCommand = run_command,
    holdings: Holdings | None = None,
    memory: Path | None = None,
) -> PolledSource:
    """The source of a Slurm cluster's idle nodes; `memory` is the file that keeps idle ages over a restart.

    Raises:
        InvalidInputError: no partition is named, one twice, or a pattern can't be read.
    """
    partitions = section.partitions
    if not partitions or len(set(partitions)) < len(partitions):
        raise InvalidInputError("scavenger.slurm.partitions", "at least one partition, each once", list(partitions))

    def query(name: str, argv: list[str], parse: Callable[[str], AnswerT], interval: float) -> Query[AnswerT]:
        pace = Pace(interval, section.timeout_seconds, section.longest_pause_seconds)
        return Query("slurm", name, argv, parse, pace, clock, run)

    names = ",".join(partitions)
    several = len(partitions) > 1
    states = ["-o", "%R|%T|%N" if several else "%T|%N"]
    pools = {name: name for name in partitions} if several else None
    questions = Questions(
        nodes=query(
            "nodes",
            [section.sinfo, "-h", "-p", names, *states],
            partial(parse_states, pools=pools),
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
        classes=query(
            "classes",
            [section.sinfo, "-h", "-p", names, "-o", "%G|%f|%N"],
            parse_classes,
            section.classes_interval_seconds,
        ),
    )
    slowest = max(section.queue_interval_seconds, section.reservations_interval_seconds)
    trust = Trust(
        stale_seconds=section.stale_seconds,
        horizon_seconds=believed_seconds(slowest, section.stale_seconds),
        wanted=node_filter(section.include, section.exclude, "scavenger.slurm"),
        pool=partitions[0],
    )
    return PolledSource(questions, trust, clock, holdings, Memory(memory, clock))
