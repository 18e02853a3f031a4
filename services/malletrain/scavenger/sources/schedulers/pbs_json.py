"""Parsers of what the commands of PBS print: `pbsnodes -av -F json`, `qstat -f -w`, `pbs_rstat -f`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from malletrain.model.node_needs import ANY_GPU, MAX_AMOUNTS
from malletrain.model.topology import GroupPath, path_problem
from malletrain.scavenger.machine.observations import NodeFacts, gpu_memory_of
from malletrain.scavenger.sources.schedulers.availability import (
    NodeReservation,
    NodeStates,
    PlannedStart,
    UnreadableError,
)
from malletrain.scavenger.sources.schedulers.pbs_jobs import read_jobs
from malletrain.scavenger.sources.schedulers.tolerant_json import read_answer

_CHUNK = re.compile(r"([][A-Za-z0-9._-]+)((?::[^:+()]*)*)")
_FIELD = re.compile(r"\s*([A-Za-z_.]+) = (.*)")
_OFFLINE = frozenset({"offline", "offline_by_mom", "maintenance", "resv-exclusive"})
"""States in which a node is left by whatever of ours runs there; `resv-exclusive`: a reservation has begun."""
_STATES = _OFFLINE | {
    *("free", "busy", "job-busy", "job-exclusive", "job-sharing", "down", "Stale", "state-unknown", "unresolvable"),
    *("provisioning", "wait-provisioning", "sleep", "initializing"),
}
"""All words for states (openpbs, attr_node_func.c), of which a vnode may have several."""
_NO_ESTIMATE = "UNKNOWN"
_SIZE = re.compile(r"([0-9]{1,18})([kmgtp]?)b?", re.IGNORECASE)
_NOTHING_ASSIGNED = re.compile(r"0+(\.0+)?([kmgtp]?[bw])?|0+(:0+)+|", re.IGNORECASE)


@dataclass(frozen=True)
class GpuResources:
    """Where it is told what GPUs are.

    Attributes:
        kind: Resource of a vnode that names its kind of GPU.
        memory: Resource of a vnode that is the memory of each of its GPUs.
        memory_mib: Memory of a GPU of each kind in MiB, for vnodes without that resource.
    """

    kind: str = "gpu_type"
    memory: str = "gpu_memory"
    memory_mib: Mapping[str, int] = field(default_factory=dict)


_USUAL = GpuResources()


def parse_vnodes(
    text: str,
    *,
    queues: Iterable[str] = (),
    pool: str = "",
    gpu_resources: GpuResources = _USUAL,
    topology_resources: Sequence[str] = (),
) -> NodeStates:
    """The answer to `pbsnodes -av -F json`.

    The state `free` is not enough: vnodes that are used in part, or reserved for later, are free, too. A host is idle
    when all its vnodes are. One with a vnode whose state is not known is not.

    Args:
        text: What was printed.
        queues: Only vnodes of these queues, and vnodes that belong to no queue; empty: all vnodes.
        pool: Pool of all these nodes.
        gpu_resources: Where it is told what GPUs are.
        topology_resources: Resources of a vnode that name the groups it is in, from the outermost.

    Raises:
        UnreadableError: the text has another form.
    """
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    units: dict[str, str] = {}
    unclear: dict[str, str] = {}
    wanted = frozenset(queues)
    for name, entry in _section(text, "nodes").items():
        vnode = entry if isinstance(entry, dict) else {}
        # A vnode of which nothing can be read is at least named after its host: `pn006[1]`.
        host = _text(_table(vnode, "resources_available").get("host")) or name.partition("[")[0] or name
        if not _is_clear(vnode.get("state")):
            unclear[host] = str(vnode.get("state", "no state"))
        hosts.setdefault(host, []).append(vnode)
        units[name] = host
    if hosts and not any(_text(vnode.get("state")) for vnodes in hosts.values() for vnode in vnodes):
        raise UnreadableError("vnodes with their states", text)
    idle = {host for host, vnodes in hosts.items() if all(map(_is_idle, vnodes)) and _is_wanted(vnodes, wanted)}
    return NodeStates(
        idle=frozenset(idle),
        known=frozenset(hosts),
        facts={host: _facts(vnodes, pool, gpu_resources, topology_resources) for host, vnodes in hosts.items()},
        reserved_by={host: names for host in idle if (names := _reservations(hosts[host]))},
        offline=frozenset(host for host, vnodes in hosts.items() if any(map(_is_offline, vnodes))),
        units={unit: host for unit, host in units.items() if unit != host},
        unclear=unclear,
    )


def parse_jobs(text: str) -> tuple[PlannedStart, ...]:
    """The answer to `qstat -f -w`: jobs with an estimated start, times in UTC.

    PBS estimates only the first `backfill_depth` jobs, and only with `strict_ordering` or backfilling on. An estimate
    that can't be read is left out.

    Raises:
        UnreadableError: the text has another form, or there are estimates, and none can be read.
    """
    found = []
    fault: UnreadableError | None = None
    for job, attributes in read_jobs(text, ("job_state", "estimated")).items():
        estimated = _table(attributes, "estimated")
        start, places = estimated.get("start_time"), estimated.get("exec_vnode")
        if attributes.get("job_state") != "Q" or not isinstance(start, str) or not isinstance(places, str):
            continue
        if start != _NO_ESTIMATE:
            try:
                found.append(PlannedStart(job, _time(start), _vnodes(places)))
            except UnreadableError as error:
                fault = error
    if fault is not None and not found:
        raise fault
    return tuple(found)


def parse_reservations(text: str) -> tuple[NodeReservation, ...]:
    """The answer to `pbs_rstat -f`, times in UTC.

    A reservation that can't be read is left out, if others can: its nodes name it (`resv`), and are not used while its
    start is not known. Line breaks within values are printed as they are, so that a user could add lines to what he
    has reserved: of each field the first line counts. A reservation that is named twice is reserved twice.

    Raises:
        UnreadableError: the text has another form.
    """
    if text and not text.endswith("\n"):
        raise UnreadableError("an answer that ends with a line break", text[-40:])
    found = []
    fault: UnreadableError | None = None
    for block in re.split(r"^Resv ID: ", text, flags=re.MULTILINE)[1:]:
        try:
            found.append(_reservation(block))
        except UnreadableError as error:
            fault = error
    if not found and text.strip():
        raise fault or UnreadableError("reservations", text)
    return tuple(found)


def _reservation(block: str) -> NodeReservation:
    name, *lines = block.split("\n")
    fields: dict[str, str] = {}
    for entry in map(_FIELD.fullmatch, lines):
        if entry:
            fields.setdefault(entry[1], entry[2])
    if not {"reserve_start", "reserve_end"} <= fields.keys():
        raise UnreadableError("a reservation with reserve_start and reserve_end", name)
    nodes = _vnodes(fields["resv_nodes"]) if "resv_nodes" in fields else ()
    return NodeReservation(name.strip(), _time(fields["reserve_start"]), _time(fields["reserve_end"]), nodes)


def _section(text: str, name: str) -> Mapping[str, Any]:
    found = read_answer(text)
    if "pbs_version" not in found:
        raise UnreadableError("an answer of PBS", text)
    section = found.get(name, {})
    if not isinstance(section, dict):
        raise UnreadableError(f"an object {name}", str(section))
    return section


def _is_clear(state: object) -> bool:
    return isinstance(state, str) and all(word.strip() in _STATES for word in state.split(","))


def _is_idle(vnode: Mapping[str, Any]) -> bool:
    if vnode.get("state") != "free" or vnode.get("jobs"):
        return False
    assigned = vnode.get("resources_assigned", {})
    return isinstance(assigned, dict) and all(
        _NOTHING_ASSIGNED.fullmatch(str(amount)) is not None for amount in assigned.values()
    )


def _is_offline(vnode: Mapping[str, Any]) -> bool:
    return not _OFFLINE.isdisjoint(word.strip() for word in _text(vnode.get("state")).split(","))


def _is_wanted(vnodes: Iterable[Mapping[str, Any]], queues: frozenset[str]) -> bool:
    if not queues:
        return True
    return all(not (of := _queues(vnode)) or bool(of & queues) for vnode in vnodes)


def _queues(vnode: Mapping[str, Any]) -> frozenset[str]:
    """Queues that a vnode belongs to, by its attribute `queue` or by the resource `Qlist` that sites define."""
    listed = _text(_table(vnode, "resources_available").get("Qlist"))
    names = [_text(vnode.get("queue")), *listed.split(",")]
    return frozenset(name.strip() for name in names if name.strip())


def _reservations(vnodes: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    names: list[str] = []
    for vnode in vnodes:
        found = vnode.get("resv") or []
        for entry in found if isinstance(found, list) else [found]:
            names += [name.strip() for name in str(entry).split(",") if name.strip()]
    return tuple(names)


def _facts(
    vnodes: Sequence[Mapping[str, Any]], pool: str, gpu_resources: GpuResources, topology_resources: Sequence[str]
) -> NodeFacts:
    gpus = cpus = memory_mib = 0
    gpu_memory_mib: list[int] = []
    kinds: dict[str, None] = {}
    features: dict[str, None] = {}
    for vnode in vnodes:
        available = _table(vnode, "resources_available")
        own_gpus = _count(available.get("ngpus"))
        own_kind = _text(available.get(gpu_resources.kind))
        if own_gpus:
            by_kind = gpu_memory_of(own_kind or ANY_GPU, gpu_resources.memory_mib)
            gpu_memory_mib.append(_mib(available.get(gpu_resources.memory)) or by_kind)
        gpus += own_gpus
        memory_mib += _mib(available.get("mem"))
        cpus += _count(available.get("ncpus"))
        kinds[own_kind] = None
        features[_text(available.get("arch"))] = None
    path = tuple(_group(vnodes, name) for name in topology_resources) if topology_resources else ()
    # Where a level is missing or can't be read, nothing within it is known.
    known = path[: path.index("")] if "" in path else path
    amounts = cpus, memory_mib, min(gpu_memory_mib, default=0)
    return _shared_facts(pool, "+".join(filter(None, kinds)), gpus, tuple(filter(None, features)), amounts, known)


def _group(vnodes: Iterable[Mapping[str, Any]], resource: str) -> str:
    """A host's group of a level: the first value, where it has several ("a,b"); empty: none that is usable."""
    for vnode in vnodes:
        value = _table(vnode, "resources_available").get(resource)
        name = str(value).split(",")[0].strip() if isinstance(value, str | int) else ""
        if name and not path_problem((name,)):
            return name
    return ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _mib(value: Any) -> int:
    """A size such as `24684096kb` or `64gb` in MiB, rounded down; without a unit it is bytes. 0: it is something else.

    So are words of 8 bytes (`100mw`), which no node's memory is told in.
    """
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return 0
    return min(int(found[1]) << 10 * " kmgtp".index(found[2].lower() or " ") >> 20, MAX_AMOUNTS["memory_mib"])


@lru_cache(maxsize=1024)
def _shared_facts(
    pool: str, kinds: str, gpus: int, features: tuple[str, ...], amounts: tuple[int, int, int], path: GroupPath
) -> NodeFacts:
    """Facts are shared between equal nodes, of which there may be thousands."""
    cpus, memory_mib, gpu_memory_mib = amounts
    return NodeFacts(pool, (kinds or "gpu") if gpus else "", gpus, features, cpus, memory_mib, gpu_memory_mib, path)


def _vnodes(text: str) -> tuple[str, ...]:
    """Names in `(pn001:ncpus=8)+(pn002:ncpus=8+pn003:ncpus=8)`."""
    names = []
    for chunk in re.split(r"\+", text):
        found = _CHUNK.fullmatch(chunk.strip().strip("()"))
        if not found:
            raise UnreadableError("vnodes such as (pn001:ncpus=8)+(pn002:ncpus=8)", text)
        names.append(found[1])
    return tuple(dict.fromkeys(names))


def _table(attributes: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = attributes.get(name, {})
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _time(text: str) -> float:
    """Seconds since the epoch; the commands are run with TZ=UTC, in the C locale."""
    try:
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise UnreadableError("a time such as Sat Nov 21 03:21:04 2026", text) from error
