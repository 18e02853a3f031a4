"""What Slurm's commands print. Only texts that `-o` asks for: JSON differs from release to release."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from malletrain.scavenger.sources.base import NodeFacts
from malletrain.scavenger.sources.schedulers.answers import NodeStates, PlannedStart, Reservation, UnreadableError
from malletrain.scavenger.sources.schedulers.hostlists import expand

USABLE_STATES = frozenset({"idle", "planned"})
"""Whole words. `planned` nodes are held for a larger job: nothing else may fill them. A suffix (`idle~`, `idle*`) means
powered down, not answering, about to reboot..: not usable."""

NOTHING = ("", "(null)", "None", "N/A", "n/a")
_STATE = re.compile(r"[A-Za-z][A-Za-z_/+]*[^\sA-Za-z0-9|]*")
# A kind may begin with a digit (2080ti, 1g.10gb) or consist of digits where a count follows (3090).
_KIND = r"[^:,()]*[^:,()\d][^:,()]*|\d+(?=:\d)"
_GPU = re.compile(rf"gpu(?::(?P<kind>{_KIND}))?(?::(?P<count>\d+))?(?:\([^)]*\))?")
_PAIR = re.compile(r"(?:^|(?<=\s))([A-Za-z]+)=(\S*)")


def lines_of(text: str) -> list[str]:
    """The lines of an answer.

    Raises:
        UnreadableError: the last line is cut short: a name in it may be the beginning of another.
    """
    if text and not text.endswith("\n"):
        raise UnreadableError("an answer that ends with a line break", text[-40:])
    return [line for line in text.split("\n") if line.strip()]


def parse_states(text: str, pools: Mapping[str, str] | None = None) -> NodeStates:
    """The answer to `sinfo -h -p PARTITION -o '%T|%N'`, or with several partitions `-o '%R|%T|%N'`.

    A node that is named with any other state, too, is not idle.

    Args:
        text: What was printed.
        pools: Pool of each partition, where several were asked for; a node belongs to that of the first that has it.

    Raises:
        UnreadableError: the text is something else.
    """
    usable: set[str] = set()
    unusable: set[str] = set()
    members: dict[str, set[str]] = {}
    for line in lines_of(text):
        partition, state, names = _state_line(line, with_partition=pools is not None)
        if pools is not None and partition not in pools:
            raise UnreadableError(f"one of the partitions {', '.join(pools)}", line)
        (usable if state in USABLE_STATES else unusable).update(names)
        members.setdefault(partition, set()).update(names)
    known = frozenset(usable | unusable)
    facts: dict[str, NodeFacts] = {}
    for partition, pool in (pools or {}).items():
        for name in members.get(partition, ()):
            facts.setdefault(name, NodeFacts(pool=pool))
    return NodeStates(frozenset(usable - unusable), known, facts)


def parse_planned(text: str) -> tuple[PlannedStart, ...]:
    """The answer to `squeue -h -t PD -o '%i|%S|%Y'`: pending jobs with planned start and nodes, times in UTC.

    Raises:
        UnreadableError: the text is something else.
    """
    found = []
    for line in lines_of(text):
        parts = line.split("|")
        if len(parts) != 3:
            raise UnreadableError("JOB|START|NODES", line)
        job, start, nodes = (part.strip() for part in parts)
        if start not in NOTHING and nodes not in NOTHING:
            found.append(PlannedStart(job, _time(start), expand(nodes)))
    return tuple(found)


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """The answer to `scontrol -o show reservations`, times in UTC.

    Raises:
        UnreadableError: the text is something else.
    """
    found = []
    for line in lines_of(text):
        if line.startswith("No reservations"):
            continue
        pairs = dict(_PAIR.findall(line))
        if not {"ReservationName", "StartTime", "EndTime", "Nodes"} <= pairs.keys():
            raise UnreadableError("a reservation with StartTime, EndTime and Nodes", line)
        if pairs["Nodes"] in NOTHING:
            continue
        start, end = _time(pairs["StartTime"]), _time(pairs["EndTime"])
        found.append(Reservation(pairs["ReservationName"], start, end, expand(pairs["Nodes"])))
    return tuple(found)


def parse_classes(text: str) -> dict[str, NodeFacts]:
    """The answer to `sinfo -h -p PARTITION -o '%G|%f|%N'`: GPUs and features of every node.

    Without `-N`, which costs Slurm twenty times as much on a large machine.

    Raises:
        UnreadableError: the text is something else.
    """
    found: dict[str, NodeFacts] = {}
    for line in lines_of(text):
        parts = line.split("|")
        if len(parts) != 3:
            raise UnreadableError("GRES|FEATURES|NODES", line)
        gres, features, nodes = (part.strip() for part in parts)
        kind, count = _gpus(gres)
        named = () if features in NOTHING else tuple(features.split(","))
        for name in _nodes(nodes):
            found.setdefault(name, NodeFacts(gpu_type=kind, gpus=count, features=named))
    return found


def _state_line(line: str, *, with_partition: bool) -> tuple[str, str, tuple[str, ...]]:
    parts = line.split("|")
    if len(parts) != 2 + with_partition:
        raise UnreadableError("PARTITION|STATE|NODES" if with_partition else "STATE|NODES", line)
    partition, state, nodes = parts if with_partition else ("", *parts)
    if not _STATE.fullmatch(state):
        raise UnreadableError("the state of a node", line)
    return partition, state, _nodes(nodes)


def _nodes(expression: str) -> tuple[str, ...]:
    return () if expression in NOTHING else expand(expression)


def _gpus(gres: str) -> tuple[str, int]:
    """Type (several joined by +) and number of a node's GPUs, e.g. of `gpu:a100:4(S:0-1),craynetwork:4`."""
    kinds: list[str] = []
    total = 0
    for item in re.split(r",(?![^(]*\))", gres):
        if found := _GPU.fullmatch(item.strip()):
            total += int(found["count"] or 1)
            kinds.append(found["kind"] or "gpu")
    return "+".join(dict.fromkeys(kinds)), total


def _time(text: str) -> float:
    """Seconds since the epoch; the commands are run with TZ=UTC."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise UnreadableError("a time such as 2026-11-21T03:58:44", text) from error


def state_lines(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each state with its nodes, for those who want more than who is idle.

    Raises:
        UnreadableError: the text is something else.
    """
    for line in lines_of(text):
        _, state, names = _state_line(line, with_partition=False)
        yield state, names
