"""Which GPUs of a PBS cluster are idle, those of partly used hosts included. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from malletrain.scavenger.machine.gpu_units import MAX_GPUS, GpuShare, unit_name
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.sources.schedulers.availability import NodeStates
from malletrain.scavenger.sources.schedulers.pbs_hosts import (
    USUAL_GPU_RESOURCES,
    GpuResources,
    Vnode,
    facts_of,
    is_offline,
    is_wanted,
    read_hosts,
    reservations_of,
    size_bytes,
    text_of,
)

_GIVEN_WHOLE = frozenset({"force_excl", "force_exclhost"})
"""Values of `sharing` with which PBS gives a vnode or a host to one job, whatever the job asks for."""
_MAX_COUNT = 1_000_000
_MAX_DIGITS = 9


class _OddAmountError(Exception):
    """A resource of a vnode is not what it should be."""


@dataclass(frozen=True)
class _Amounts:
    """GPUs, CPUs, and memory in bytes."""

    gpus: int = 0
    cpus: int = 0
    memory: int = 0

    def __add__(self, other: _Amounts) -> _Amounts:
        return _Amounts(self.gpus + other.gpus, self.cpus + other.cpus, self.memory + other.memory)

    def left_beside(self, used: _Amounts) -> _Amounts:
        """What is not in use; never less than nothing."""
        return _Amounts(max(0, self.gpus - used.gpus), max(0, self.cpus - used.cpus), max(0, self.memory - used.memory))

    def gpus_with(self, share: GpuShare) -> int:
        """How many GPUs have their share of CPUs and memory; memory that is not told is not asked for."""
        least = [self.gpus, self.cpus // share.cpus]
        if share.memory_mib:
            least.append(self.memory // (share.memory_mib << 20))
        return min(least)


def parse_gpus(
    text: str,
    wanted: GpuShare,
    held: Callable[[], Iterable[str]] = tuple,
    *,
    queues: Iterable[str] = (),
    pool: str = "",
    gpu_resources: GpuResources = USUAL_GPU_RESOURCES,
    topology_resources: Sequence[str] = (),
) -> NodeStates:
    """The answer to `pbsnodes -av -F json`: each GPU is a unit, named by `unit_name`; hosts without GPUs are left out.

    What is idle of a host is what its vnodes have (`resources_available`) without what is in use of them
    (`resources_assigned`), a placeholder of ours included. Vnodes in any other state than `free`, and those that PBS
    gives to one job as a whole, count as used. Which numbers are idle follows from how many are: the lowest ones that
    are not held. A host of which an amount can't be read is not used.

    Args:
        text: What was printed.
        wanted: What a placeholder asks for beside a GPU.
        held: Tells the units on which agents of ours are.
        queues: Only vnodes of these queues, and vnodes that belong to no queue; empty: all vnodes.
        pool: Pool of all these hosts.
        gpu_resources: Where it is told what GPUs are.
        topology_resources: Resources of a vnode that name the groups it is in, from the outermost.

    Raises:
        UnreadableError: the text has another form.
    """
    hosts = read_hosts(text)
    ours, of_queues = frozenset(held()), frozenset(queues)
    unclear = dict(hosts.unclear)
    idle: set[str] = set()
    offline: set[str] = set()
    facts: dict[str, NodeFacts] = {}
    parts: dict[str, tuple[str, ...]] = {}
    reserved: dict[str, tuple[str, ...]] = {}
    for host, vnodes in hosts.vnodes.items():
        try:
            total, left = _amounts(vnodes)
        except _OddAmountError as error:
            unclear.setdefault(host, str(error))
            continue
        if not total.gpus or not is_wanted(vnodes, of_queues):
            continue
        share = _share(total, wanted)
        units = tuple(unit_name(host, number) for number in range(total.gpus))
        parts[host] = units
        about = facts_of(vnodes, pool, gpu_resources, topology_resources)
        fact = replace(about, gpus=1, cpus=share.cpus, memory_mib=share.memory_mib)
        facts.update(dict.fromkeys(units, fact))
        if any(map(is_offline, vnodes)):
            offline.update(units)
        elif host not in unclear:
            free = [unit for unit in units if unit not in ours][: left.gpus_with(share)]
            idle.update(free)
            if names := reservations_of(vnodes):
                reserved.update(dict.fromkeys(free, names))
    return NodeStates(
        idle=frozenset(idle),
        known=frozenset(facts),
        facts=facts,
        reserved_by=reserved,
        offline=frozenset(offline),
        units=hosts.split,
        parts=parts,
        unclear=unclear,
    )


def _share(total: _Amounts, wanted: GpuShare) -> GpuShare:
    """CPUs and memory of each GPU: at least one CPU; memory where the host's is told."""
    return GpuShare(
        wanted.cpus or max(1, total.cpus // total.gpus), wanted.memory_mib or (total.memory // total.gpus) >> 20
    )


def _amounts(vnodes: Iterable[Vnode]) -> tuple[_Amounts, _Amounts]:
    """What a host has, and what of it is idle.

    Raises:
        _OddAmountError: an amount has another form.
    """
    total = left = _Amounts()
    for vnode in vnodes:
        available = _read(vnode, "resources_available")
        assigned = _read(vnode, "resources_assigned")
        total += available
        if total.gpus > MAX_GPUS:
            raise _OddAmountError(f"ngpus = {total.gpus}")
        if text_of(vnode.get("state")) == "free" and text_of(vnode.get("sharing")) not in _GIVEN_WHOLE:
            left += available.left_beside(assigned)
    return total, left


def _read(vnode: Vnode, name: str) -> _Amounts:
    table = vnode.get(name, {})
    if not isinstance(table, dict):
        raise _OddAmountError(f"{name} = {_excerpt(table)}")
    return _Amounts(_count(table, "ngpus"), _count(table, "ncpus"), _memory(table))


def _count(table: Vnode, name: str) -> int:
    """A whole number, also one that is written as a text; none: 0."""
    value = table.get(name, 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS:
        value = int(value)
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise _OddAmountError(f"{name} = {_excerpt(value)}")
    return value


def _memory(table: Vnode) -> int:
    value = table.get("mem", 0)
    in_bytes = value if type(value) is int and value >= 0 else size_bytes(value)
    if in_bytes is None:
        raise _OddAmountError(f"mem = {_excerpt(value)}")
    return in_bytes


def _excerpt(value: Any) -> str:
    return repr(value)[:40]
