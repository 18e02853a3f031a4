"""Reads the hosts, by their vnodes, that `pbsnodes -av -F json` prints. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from malletrain.model.node_needs import ANY_GPU, MAX_AMOUNTS
from malletrain.model.topology import GroupPath, path_problem
from malletrain.scavenger.machine.observations import NodeFacts, gpu_memory_of
from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.tolerant_json import read_answer

Vnode = Mapping[str, Any]
"""The attributes of a vnode, as `pbsnodes -F json` prints them."""

_OFFLINE = frozenset({"offline", "offline_by_mom", "maintenance", "resv-exclusive"})
"""States in which a node is left by whatever of ours runs there; `resv-exclusive`: a reservation has begun."""
_STATES = _OFFLINE | {
    *("free", "busy", "job-busy", "job-exclusive", "job-sharing", "down", "Stale", "state-unknown", "unresolvable"),
    *("provisioning", "wait-provisioning", "sleep", "initializing"),
}
"""All words for states (openpbs, attr_node_func.c), of which a vnode may have several."""
_SIZE = re.compile(r"([0-9]{1,18})([kmgtp]?)b?", re.IGNORECASE)


@dataclass(frozen=True)
class GpuResources:
    """The resources of PBS that describe a vnode's GPUs.

    Attributes:
        kind: Resource of a vnode that names its kind of GPU.
        memory: Resource of a vnode that is the memory of each of its GPUs.
        memory_mib: Memory of a GPU of each kind in MiB, for vnodes without that resource.
    """

    kind: str = "gpu_type"
    memory: str = "gpu_memory"
    memory_mib: Mapping[str, int] = field(default_factory=dict)


USUAL_GPU_RESOURCES = GpuResources()


@dataclass(frozen=True)
class PbsHosts:
    """The hosts in an answer of PBS.

    Attributes:
        vnodes: The vnodes of each host.
        units: The host of each vnode.
        unclear: Hosts with a vnode in a state that is not known, and what was said of it.
    """

    vnodes: Mapping[str, Sequence[Vnode]]
    units: Mapping[str, str]
    unclear: Mapping[str, str]

    @property
    def offline(self) -> frozenset[str]:
        """Hosts with a vnode that an operator has taken out of use, or whose reservation has begun."""
        return frozenset(host for host, vnodes in self.vnodes.items() if any(map(is_offline, vnodes)))

    @property
    def split(self) -> dict[str, str]:
        """The host of each vnode that has another name."""
        return {vnode: host for vnode, host in self.units.items() if vnode != host}


def read_hosts(text: str) -> PbsHosts:
    """The answer to `pbsnodes -av -F json`.

    Raises:
        UnreadableError: the text has another form.
    """
    hosts: dict[str, list[Vnode]] = {}
    units: dict[str, str] = {}
    unclear: dict[str, str] = {}
    for name, entry in _section(text, "nodes").items():
        vnode = entry if isinstance(entry, dict) else {}
        # A vnode of which nothing can be read is at least named after its host: `pn006[1]`.
        host = text_of(table_of(vnode, "resources_available").get("host")) or name.partition("[")[0] or name
        if not _is_clear(vnode.get("state")):
            unclear[host] = str(vnode.get("state", "no state"))
        hosts.setdefault(host, []).append(vnode)
        units[name] = host
    if hosts and not any(text_of(vnode.get("state")) for vnodes in hosts.values() for vnode in vnodes):
        raise UnreadableError("vnodes with their states", text)
    return PbsHosts(hosts, units, unclear)


def _section(text: str, name: str) -> Mapping[str, Any]:
    answer = read_answer(text)
    if "pbs_version" not in answer:
        raise UnreadableError("an answer of PBS", text)
    section = answer.get(name, {})
    if not isinstance(section, dict):
        raise UnreadableError(f"an object {name}", str(section))
    return section


def _is_clear(state: object) -> bool:
    return isinstance(state, str) and all(word.strip() in _STATES for word in state.split(","))


def is_offline(vnode: Vnode) -> bool:
    """Whether what is ours there must leave."""
    return not _OFFLINE.isdisjoint(word.strip() for word in text_of(vnode.get("state")).split(","))


def is_wanted(vnodes: Iterable[Vnode], queues: frozenset[str]) -> bool:
    """Whether all vnodes belong to one of these queues, or to none; without queues all are wanted."""
    if not queues:
        return True
    return all(not (of := _queues(vnode)) or bool(of & queues) for vnode in vnodes)


def _queues(vnode: Vnode) -> frozenset[str]:
    """Queues that a vnode belongs to, by its attribute `queue` or by the resource `Qlist` that sites define."""
    listed = text_of(table_of(vnode, "resources_available").get("Qlist"))
    names = [text_of(vnode.get("queue")), *listed.split(",")]
    return frozenset(name.strip() for name in names if name.strip())


def reservations_of(vnodes: Iterable[Vnode]) -> tuple[str, ...]:
    """Names of the reservations of a host."""
    names: list[str] = []
    for vnode in vnodes:
        listed = vnode.get("resv") or []
        for entry in listed if isinstance(listed, list) else [listed]:
            names += [name.strip() for name in str(entry).split(",") if name.strip()]
    return tuple(names)


def facts_of(
    vnodes: Sequence[Vnode], pool: str, gpu_resources: GpuResources, topology_resources: Sequence[str]
) -> NodeFacts:
    """What a host is.

    Args:
        gpu_resources: Where it is told what GPUs are.
        topology_resources: Resources of a vnode that name the groups it is in, from the outermost.
    """
    gpus = cpus = memory_mib = 0
    gpu_memory_mib: list[int] = []
    kinds: dict[str, None] = {}
    features: dict[str, None] = {}
    for vnode in vnodes:
        available = table_of(vnode, "resources_available")
        own_gpus = _count(available.get("ngpus"))
        own_kind = text_of(available.get(gpu_resources.kind))
        if own_gpus:
            by_kind = gpu_memory_of(own_kind or ANY_GPU, gpu_resources.memory_mib)
            gpu_memory_mib.append(_mib(available.get(gpu_resources.memory)) or by_kind)
        gpus += own_gpus
        memory_mib += _mib(available.get("mem"))
        cpus += _count(available.get("ncpus"))
        kinds[own_kind] = None
        features[text_of(available.get("arch"))] = None
    path = tuple(_group(vnodes, name) for name in topology_resources) if topology_resources else ()
    # Where a level is missing or can't be read, nothing within it is known.
    known = path[: path.index("")] if "" in path else path
    amounts = cpus, memory_mib, min(gpu_memory_mib, default=0)
    return _shared_facts(pool, "+".join(filter(None, kinds)), gpus, tuple(filter(None, features)), amounts, known)


def _group(vnodes: Iterable[Vnode], resource: str) -> str:
    """A host's group of a level: the first value, where it has several ("a,b"); empty: none that is usable."""
    for vnode in vnodes:
        value = table_of(vnode, "resources_available").get(resource)
        name = str(value).split(",")[0].strip() if isinstance(value, str | int) else ""
        if name and not path_problem((name,)):
            return name
    return ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def size_bytes(value: Any) -> int | None:
    """A size such as `24684096kb` or `64gb` in bytes; without a unit it is bytes. None: it is something else.

    So are words of 8 bytes (`100mw`), in which no node's memory is told.
    """
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else int(match[1]) << 10 * " kmgtp".index(match[2].lower() or " ")


def _mib(value: Any) -> int:
    """A size in MiB, rounded down; 0: it is none."""
    return min((size_bytes(value) or 0) >> 20, MAX_AMOUNTS["memory_mib"])


@lru_cache(maxsize=1024)
def _shared_facts(
    pool: str, kinds: str, gpus: int, features: tuple[str, ...], amounts: tuple[int, int, int], path: GroupPath
) -> NodeFacts:
    """Facts are shared between equal nodes, of which there may be thousands."""
    cpus, memory_mib, gpu_memory_mib = amounts
    return NodeFacts(pool, (kinds or "gpu") if gpus else "", gpus, features, cpus, memory_mib, gpu_memory_mib, path)


def table_of(attributes: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An attribute that is a table; an empty one where it is none."""
    table = attributes.get(name, {})
    return table if isinstance(table, dict) else {}


def text_of(value: object) -> str:
    """A text; an empty one where it is none."""
    return value if isinstance(value, str) else ""
