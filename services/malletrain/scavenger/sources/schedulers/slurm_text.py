"""Parsers of what Slurm's commands print. Pure.

Commands are asked for text by `-o`: their JSON differs from release to release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from malletrain.model.topology import MAX_LEVELS, GroupPath, path_problem
from malletrain.scavenger.machine.observations import NodeFacts, gpu_memory_of
from malletrain.scavenger.sources.schedulers.availability import (
    NodeReservation,
    NodeStates,
    PlannedStart,
    UnreadableError,
)
from malletrain.scavenger.sources.schedulers.hostlists import expand

USABLE_STATES = frozenset({"idle", "planned"})
"""States of usable nodes, as whole words. `planned` nodes are kept for a larger job and can't be backfilled.

A suffix means that a node can't be used: `idle~` is powered down, `idle*` does not answer.
"""

NODE_STATES = USABLE_STATES | {
    *("allocated", "alloc", "blocked", "block", "boot", "canc_r", "cancel_reboot", "cloud", "comp", "completing"),
    *("down", "drain", "drained", "draining", "drng", "dynamic_future", "dynamic_norm", "error", "ext", "external"),
    *("fail", "failg", "failing", "future", "futr", "inval", "maint", "mix", "mixed", "npc", "perfctrs", "plnd"),
    *("pow_dn", "pow_off", "pow_up", "power_down", "power_up", "powered_dn", "powered_down", "powering_down"),
    *("powering_up", "powring_dn", "reboot", "reboot_issued", "reboot_requested", "reserved", "resm", "resume", "resv"),
    *("undrain", "unk", "unknown"),
}
"""All words for states in `sinfo`, long and short, without suffixes (slurm_protocol_defs.c, and earlier versions)."""
STATE_SUFFIXES = "*~#!%$@^-+"

_OFFLINE = ("drain", "fail", "maint")
"""Beginnings of the states of nodes that an operator has taken out of use, e.g. of `draining`."""
NOTHING = ("", "(null)", "None", "N/A", "n/a")
# A kind may begin with a digit (2080ti, 1g.10gb) or consist of digits where a count follows (3090).
_KIND = r"[^:,()]*[^:,()\d][^:,()]*|\d+(?=:\d)"
_GPU = re.compile(rf"gpu(?::(?P<kind>{_KIND}))?(?::(?P<count>\d+))?(?:\([^)]*\))?")
_AMOUNT = re.compile(r"([0-9]{1,12})\+?")
_NOT_TOLD: Mapping[str, int] = MappingProxyType({})
_WORD = re.compile(r"[A-Za-z][A-Za-z_/+]*[^\sA-Za-z0-9|]*")
PAIR = re.compile(r"(?:^|(?<=\s))([A-Za-z]+)=(\S*)")
_NO_TOPOLOGY = re.compile(r"\bno topology\b", re.IGNORECASE)


def lines_of(text: str) -> list[str]:
    """The lines of an answer.

    Raises:
        UnreadableError: the last line does not end: it may be cut short.
    """
    if text and not text.endswith("\n"):
        raise UnreadableError("an answer that ends with a line break", text[-40:])
    return [line for line in text.split("\n") if line.strip()]


def parse_states(text: str, pools: Mapping[str, str] | None = None) -> NodeStates:
    """The answer to `sinfo -h -p PARTITION -o '%T|%N'`, or with several partitions `-o '%R|%T|%N'`.

    A node that is also named with another state, or with one that is not known, is not idle.

    Args:
        text: What was printed.
        pools: Pool of each partition, where several were asked for. A node belongs to the first partition that has it.

    Raises:
        UnreadableError: the text has another form.
    """
    usable: set[str] = set()
    unusable: set[str] = set()
    offline: set[str] = set()
    members: dict[str, set[str]] = {}
    unclear: dict[str, str] = {}
    lines = lines_of(text)
    for line in lines:
        partition, state, names = state_of(line, with_partition=pools is not None)
        if pools is not None and partition not in pools:
            raise UnreadableError(f"one of the partitions {', '.join(pools)}", line)
        (usable if state in USABLE_STATES else unusable).update(names)
        if state.startswith(_OFFLINE):
            offline.update(names)
        if not is_known_state(state):
            unclear.update(dict.fromkeys(names, state))
        members.setdefault(partition, set()).update(names)
    known = frozenset(usable | unusable)
    if unclear.keys() == known and not all(map(may_be_state, unclear.values())):
        raise UnreadableError("the state of a node", lines[0])
    facts: dict[str, NodeFacts] = {}
    for partition, pool in (pools or {}).items():
        for name in members.get(partition, ()):
            facts.setdefault(name, NodeFacts(pool=pool))
    return NodeStates(frozenset(usable - unusable), known, facts, offline=frozenset(offline), unclear=unclear)


def is_known_state(state: str) -> bool:
    """Whether this is a word for a state, with or without a suffix."""
    return state.rstrip(STATE_SUFFIXES) in NODE_STATES


def may_be_state(state: str) -> bool:
    """Whether this could be a word for a state of a later version."""
    return _WORD.fullmatch(state) is not None


def parse_planned(text: str) -> tuple[PlannedStart, ...]:
    """The answer to `squeue -h -t PD -o '%i|%S|%Y'`: pending jobs with planned start and nodes, times in UTC.

    Raises:
        UnreadableError: the text has another form.
    """
    starts = []
    for line in lines_of(text):
        parts = line.split("|")
        if len(parts) != 3:
            raise UnreadableError("JOB|START|NODES", line)
        job, start, nodes = (part.strip() for part in parts)
        if start not in NOTHING and nodes not in NOTHING:
            starts.append(PlannedStart(job, time_of(start), expand(nodes)))
    return tuple(starts)


def parse_reservations(text: str) -> tuple[NodeReservation, ...]:
    """The answer to `scontrol -o show reservations`, times in UTC.

    Raises:
        UnreadableError: the text has another form.
    """
    reservations = []
    for line in lines_of(text):
        if line.startswith("No reservations"):
            continue
        pairs = dict(PAIR.findall(line))
        if not {"ReservationName", "StartTime", "EndTime", "Nodes"} <= pairs.keys():
            raise UnreadableError("a reservation with StartTime, EndTime and Nodes", line)
        if pairs["Nodes"] in NOTHING:
            continue
        start, end = time_of(pairs["StartTime"]), time_of(pairs["EndTime"])
        reservations.append(NodeReservation(pairs["ReservationName"], start, end, expand(pairs["Nodes"])))
    return tuple(reservations)


def parse_classes(text: str, gpu_memory_mib: Mapping[str, int] = _NOT_TOLD) -> dict[str, NodeFacts]:
    """The answer to `sinfo -h -e -p PARTITION -o '%G|%f|%c|%m|%N'`: GPUs, features, CPUs and memory of every node.

    `-N` would give the same and costs Slurm twenty times as much on a large machine. Without `-e`, CPUs and memory are
    the least of all nodes with the same GPUs and features.

    Args:
        text: What was printed.
        gpu_memory_mib: Memory of a GPU of each kind in MiB.

    Raises:
        UnreadableError: the text has another form.
    """
    facts_of_nodes: dict[str, NodeFacts] = {}
    for line in lines_of(text):
        parts = line.split("|")
        if len(parts) != 5:
            raise UnreadableError("GRES|FEATURES|CPUS|MEMORY|NODES", line)
        gres, features, cpus, memory, nodes = (part.strip() for part in parts)
        kind, count = gpus_of(gres)
        facts = NodeFacts(
            gpu_type=kind,
            gpus=count,
            features=() if features in NOTHING else tuple(features.split(",")),
            cpus=_amount(cpus),
            memory_mib=_memory_mib(memory),
            gpu_memory_mib=gpu_memory_of(kind, gpu_memory_mib),
        )
        for name in _nodes(nodes):
            facts_of_nodes.setdefault(name, facts)
    return facts_of_nodes


def _amount(text: str) -> int:
    """CPUs or MiB. `16+`: at least so many; 0: it says something else."""
    match = _AMOUNT.fullmatch(text)
    return int(match[1]) if match else 0


def _memory_mib(text: str) -> int:
    """A node's memory; 0 where Slurm was not told it, which is then 1 MiB."""
    mib = _amount(text)
    return mib if mib > 1 else 0


def parse_topology(text: str) -> dict[str, GroupPath]:
    """The answer to `scontrol show topology`: the switches or blocks of every node, from the outermost.

    Nodes on several switches of a level have the first of them. Of more than `MAX_LEVELS` levels, the innermost count.

    Raises:
        UnreadableError: the text has another form.
    """
    groups: dict[str, dict[int, str]] = {}
    for line in lines_of(text):
        if _NO_TOPOLOGY.search(line):
            continue
        pairs = dict(PAIR.findall(line.strip()))
        name = pairs.get("SwitchName") or pairs.get("BlockName") or pairs.get("AggregatedBlock")
        level = pairs.get("BlockSize", "") if "AggregatedBlock" in pairs else pairs.get("Level", "0")
        if not name or not re.fullmatch(r"[0-9]{1,9}", level) or path_problem((name,)):
            raise UnreadableError("a switch with Level and Nodes, or a block with Nodes", line)
        for node in _nodes(pairs.get("Nodes", "")):
            groups.setdefault(node, {}).setdefault(int(level), name)
    known: dict[GroupPath, GroupPath] = {}
    paths = {}
    for node, by_level in groups.items():
        path = tuple(by_level[level] for level in sorted(by_level, reverse=True))[-MAX_LEVELS:]
        paths[node] = known.setdefault(path, path)
    return paths


def state_of(line: str, *, with_partition: bool) -> tuple[str, str, tuple[str, ...]]:
    """Partition (or nothing), state and nodes of a line.

    Raises:
        UnreadableError: the line has another form.
    """
    parts = line.split("|")
    if len(parts) != 2 + with_partition:
        raise UnreadableError("PARTITION|STATE|NODES" if with_partition else "STATE|NODES", line)
    partition, state, nodes = parts if with_partition else ("", *parts)
    return partition, state, _nodes(nodes)


def _nodes(expression: str) -> tuple[str, ...]:
    return () if expression in NOTHING else expand(expression)


def gpus_of(gres: str) -> tuple[str, int]:
    """Type (several joined by +) and number of a node's GPUs, e.g. of `gpu:a100:4(S:0-1),craynetwork:4`."""
    kinds: list[str] = []
    total = 0
    for item in re.split(r",(?![^(]*\))", gres):
        if match := _GPU.fullmatch(item.strip()):
            total += int(match["count"] or 1)
            kinds.append(match["kind"] or "gpu")
    return "+".join(dict.fromkeys(kinds)), total


def time_of(text: str) -> float:
    """Seconds since the epoch; the commands are run with TZ=UTC."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise UnreadableError("a time such as 2026-11-21T03:58:44", text) from error
