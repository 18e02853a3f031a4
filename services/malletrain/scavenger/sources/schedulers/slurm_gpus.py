"""Which GPUs of a Slurm cluster are idle, those of partly used nodes included. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from malletrain.scavenger.machine.gpu_units import MAX_GPUS, GpuShare, unit_name
from malletrain.scavenger.machine.observations import NodeFacts, gpu_memory_of
from malletrain.scavenger.sources.schedulers.availability import NodeStates, UnreadableError
from malletrain.scavenger.sources.schedulers.slurm_text import NOTHING, PAIR, gpus_of, lines_of

_BUSY_STATES = frozenset({"IDLE", "MIXED", "ALLOCATED"})
"""States of nodes that work, whatever runs there."""
_HARMLESS_FLAGS = frozenset({"PLANNED", "CLOUD", "COMPLETING", "DYNAMIC_NORM"})
"""What may be added to them. Any other flag keeps us away: the node is drained, reserved, silent or without power."""
_OFFLINE_FLAGS = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINTENANCE", "MAINT"})

_NOT_TOLD: Mapping[str, int] = MappingProxyType({})
_USED = re.compile(r"gpu(?::[^:,()]+)?:(\d{1,6})(?:\([^)]*\))?")


@dataclass(frozen=True)
class _Node:
    """A line of the answer: what a node has, and what is in use of it. Memory in MiB."""

    name: str
    words: frozenset[str]
    kind: str
    features: tuple[str, ...]
    gpus: int
    used_gpus: int
    cpus: int
    used_cpus: int
    memory_mib: int
    used_memory_mib: int

    @property
    def usable(self) -> bool:
        return bool(self.words & _BUSY_STATES) and self.words <= _BUSY_STATES | _HARMLESS_FLAGS

    def share(self, wanted: GpuShare) -> GpuShare:
        """CPUs and memory of each GPU: at least one CPU, at least 1 MiB."""
        return GpuShare(
            wanted.cpus or max(1, self.cpus // self.gpus), wanted.memory_mib or max(1, self.memory_mib // self.gpus)
        )

    def idle_gpus(self, share: GpuShare) -> int:
        """How many GPUs are idle that have their share of CPUs and memory left."""
        return max(
            0,
            min(
                self.gpus - self.used_gpus,
                (self.cpus - self.used_cpus) // share.cpus,
                (self.memory_mib - self.used_memory_mib) // share.memory_mib,
            ),
        )


def parse_gpus(
    text: str,
    partitions: Sequence[str],
    wanted: GpuShare,
    held: Callable[[], Iterable[str]] = tuple,
    gpu_memory_mib: Mapping[str, int] = _NOT_TOLD,
) -> NodeStates:
    """The answer to `scontrol -o -d show nodes`: each GPU is a unit, named by `unit_name`; other nodes are left out.

    Which of a node's numbers are idle follows from how many are: the lowest ones that are not held. Slurm counts a
    placeholder of ours among what is in use.

    Args:
        text: What was printed.
        partitions: Those whose nodes count. A node belongs to the first one that has it, which is its pool.
        wanted: What a placeholder asks for beside a GPU.
        held: Tells the units on which agents of ours are.
        gpu_memory_mib: Memory of a GPU of each kind in MiB.

    Raises:
        UnreadableError: the text has another form.
    """
    ours = frozenset(held())
    idle: set[str] = set()
    offline: set[str] = set()
    facts: dict[str, NodeFacts] = {}
    parts: dict[str, tuple[str, ...]] = {}
    for line in lines_of(text):
        pairs = _pairs(line)
        of_node = pairs.get("Partitions", "").split(",")
        pool = next((name for name in partitions if name in of_node), None)
        if pool is None or (node := _node_with_gpus(pairs, line)) is None:
            continue
        share = node.share(wanted)
        units = tuple(unit_name(node.name, number) for number in range(node.gpus))
        parts[node.name] = units
        memory = gpu_memory_of(node.kind, gpu_memory_mib)
        fact = NodeFacts(pool, node.kind, 1, node.features, share.cpus, share.memory_mib, memory)
        facts.update(dict.fromkeys(units, fact))
        if node.usable:
            idle.update([unit for unit in units if unit not in ours][: node.idle_gpus(share)])
        if node.words & _OFFLINE_FLAGS:
            offline.update(units)
    return NodeStates(frozenset(idle), frozenset(facts), facts, offline=frozenset(offline), parts=parts)


def _pairs(line: str) -> dict[str, str]:
    """Of equal names the first counts: comments and reasons come last, and may look like pairs."""
    pairs: dict[str, str] = {}
    for name, value in PAIR.findall(line):
        pairs.setdefault(name, value)
    if not pairs.get("NodeName"):
        raise UnreadableError("NodeName=", line)
    return pairs


def _node_with_gpus(pairs: Mapping[str, str], line: str) -> _Node | None:
    """The node of a line; None where it has no GPUs."""
    kind, gpus = gpus_of(pairs.get("Gres", ""))
    if not gpus:
        return None
    if gpus > MAX_GPUS:
        raise UnreadableError(f"at most {MAX_GPUS} GPUs of a node", line)
    if "GresUsed" not in pairs:
        raise UnreadableError("GresUsed=, as scontrol -d shows it", line)
    features = pairs.get("ActiveFeatures", "")
    return _Node(
        name=pairs["NodeName"],
        words=frozenset(_words(pairs.get("State", ""))),
        kind=kind,
        features=() if features in NOTHING else tuple(features.split(",")),
        gpus=gpus,
        used_gpus=_in_use(pairs["GresUsed"], line) + _in_use(pairs.get("GresDrain", ""), line),
        cpus=_number(pairs, "CPUEfctv" if "CPUEfctv" in pairs else "CPUTot", line),
        used_cpus=_number(pairs, "CPUAlloc", line),
        memory_mib=_number(pairs, "RealMemory", line) - _number(pairs, "MemSpecLimit", line, 0),
        used_memory_mib=_number(pairs, "AllocMem", line),
    )


def _in_use(gres: str, line: str) -> int:
    """How many GPUs; what can't be read must not count as idle."""
    plain = gres.replace(":(null)", "")  # so say earlier releases where GPUs have no kind
    items = (item for item in re.split(r",(?![^(]*\))", plain) if item.startswith("gpu"))
    counts = [_USED.fullmatch(item) for item in items]
    if None in counts:
        raise UnreadableError("GresUsed= with numbers of GPUs", line)
    return sum(int(count[1]) for count in counts if count is not None)


def _words(state: str) -> list[str]:
    """Words of a state. A sign after one, such as `*` for a node that is silent, is a word of its own."""
    words = []
    for word in state.split("+"):
        letters = word.rstrip("*~#!%$@^-")
        words += [letters] if letters == word else [letters, word[len(letters) :]]
    return words


def _number(pairs: Mapping[str, str], name: str, line: str, otherwise: int | None = None) -> int:
    text = pairs.get(name)
    if text is None and otherwise is not None:
        return otherwise
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 15:
        raise UnreadableError(f"{name}= with a number", line)
    return int(text)
