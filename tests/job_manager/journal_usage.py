"""Usage as the journal alone has it, added up in the plainest way: the standard by which kept usage is judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from malletrain.common.gpus import node_of

PREEMPTIONS = ("PREEMPTED", "PREEMPTED_BELOW_MINIMUM", "PREEMPTED_STATE_LOST")


@dataclass(frozen=True)
class JournalRow:
    """A row of the journal, from wherever it comes."""

    time: float
    job_id: str
    reason_code: str
    nodes: tuple[str, ...]


@dataclass
class JournalUsage:
    """Node-seconds and preemptions by job, and the node-seconds of all: each node once."""

    node_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    preemptions: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    total: float = 0.0


def journal_usage(rows: Iterable[JournalRow], now: float) -> JournalUsage:
    """From the rows of all jobs, in their order, until a moment in seconds since the epoch."""
    found, held, time = JournalUsage(), dict[str, tuple[str, ...]](), now
    for row in rows:
        _add(found, held, row.time - time)
        time = row.time
        held[row.job_id] = row.nodes
        found.preemptions[row.job_id] += row.reason_code in PREEMPTIONS
    _add(found, held, now - time)
    return found


def _add(found: JournalUsage, held: Mapping[str, tuple[str, ...]], seconds: float) -> None:
    if seconds <= 0:
        return
    names = [name for entries in held.values() for name in entries]
    found.total += seconds * len({node_of(name) for name in names})
    on_node: dict[str, int] = defaultdict(int)
    for name in names:
        on_node[node_of(name)] += 1
    for job_id, entries in held.items():
        found.node_seconds[job_id] += seconds * sum(1.0 / on_node[node_of(name)] for name in entries)
