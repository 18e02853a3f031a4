"""The source `pbs`: which commands are asked, and how often."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from malletrain.runtime.clock import Clock
from malletrain.scavenger.sources.schedulers.commands import RunCommand, run_command
from malletrain.scavenger.sources.schedulers.holdings import Holdings
from malletrain.scavenger.sources.schedulers.memory import Memory
from malletrain.scavenger.sources.schedulers.patterns import node_filter
from malletrain.scavenger.sources.schedulers.pbs_json import parse_jobs, parse_reservations, parse_vnodes
from malletrain.scavenger.sources.schedulers.polled import PolledSource, Questions, Trust, believed_seconds
from malletrain.scavenger.sources.schedulers.query import Pace, Query
from malletrain.scavenger.sources.schedulers.settings import PbsSettings

AnswerT = TypeVar("AnswerT")


def pbs_source(
    section: PbsSettings,
    clock: Clock,
    run: RunCommand = run_command,
    holdings: Holdings | None = None,
    memory: Path | None = None,
) -> PolledSource:
    """The source of a PBS cluster's idle nodes; `memory` is the file that keeps idle ages over a restart.

    Raises:
        InvalidInputError: a pattern can't be read.
    """

    def query(name: str, argv: list[str], parse: Callable[[str], AnswerT], interval: float) -> Query[AnswerT]:
        pace = Pace(interval, section.timeout_seconds, section.longest_pause_seconds)
        return Query("pbs", name, argv, parse, pace, clock, run)

    vnodes = partial(
        parse_vnodes, queues=section.queues, pool=section.pool, gpu_type_resource=section.gpu_type_resource
    )
    questions = Questions(
        nodes=query("nodes", [section.pbsnodes, "-av", "-F", "json"], vnodes, section.interval_seconds),
        planned=query("queue", [section.qstat, "-f", "-F", "json"], parse_jobs, section.queue_interval_seconds),
        reservations=query(
            "reservations", [section.pbs_rstat, "-f"], parse_reservations, section.reservations_interval_seconds
        ),
    )
    slowest = max(section.queue_interval_seconds, section.reservations_interval_seconds)
    trust = Trust(
        stale_seconds=section.stale_seconds,
        horizon_seconds=believed_seconds(slowest, section.stale_seconds),
        wanted=node_filter(section.include, section.exclude, "scavenger.pbs"),
        pool=section.pool,
    )
    return PolledSource(questions, trust, clock, holdings, Memory(memory, clock))
