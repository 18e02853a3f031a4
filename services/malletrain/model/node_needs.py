"""What a job needs of each of its nodes, and which nodes suit it. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

ANY_GPU = "gpu"
"""Kind of GPU that any GPU is; also what a scheduler's GPUs without a kind are called."""
MAX_EXCLUDED = 256
MAX_AMOUNTS: Mapping[str, int] = {"gpu_memory_mib": 1 << 30, "gpus": 1024, "cores": 1 << 20, "memory_mib": 1 << 30}
"""The most that may be asked for, by the fields that both `NodeNeeds` (least) and `NodeTraits` (present) have."""
_MAX_NAME = 128
_MAX_CONSTRAINT = 512
_MAX_FEATURES = 16
_COUNT = re.compile(r"[0-9]{1,2}")
"""Taken for a number of GPUs; a site may well call a kind 4090."""
_FEATURE = re.compile(r"[^\s&|,()\[\]*\"]+")


@dataclass(frozen=True)
class NodeNeeds:
    """What a job needs of each of its nodes. Empty fields ask for nothing.

    Attributes:
        gpu: Kind of GPU, as the scheduler spells it, capitals or not; `gpu`: any kind.
        constraint: Features of the scheduler: `a`, `a&b` (all of them) or `a|b` (at least one).
        pool: Pool, or the partition that a pool's name begins with.
        excluded_nodes: Nodes that it must not have.
        gpu_memory_mib: Least memory of each GPU in MiB.
        gpus: Least number of GPUs.
        cores: Least number of cores, as the scheduler counts them.
        memory_mib: Least memory in MiB.
        well: Whether it must not count as slow; no field of a job, but the operator's choice.
    """

    gpu: str = ""
    constraint: str = ""
    pool: str = ""
    excluded_nodes: tuple[str, ...] = ()
    gpu_memory_mib: int = 0
    gpus: int = 0
    cores: int = 0
    memory_mib: int = 0
    well: bool = False

    def __bool__(self) -> bool:
        """Whether it asks for anything."""
        return self != NO_NEEDS


NO_NEEDS = NodeNeeds()
"""Any node suits."""


class NodeTraits(NamedTuple):
    """What nodes are chosen by, besides their names.

    Attributes:
        pool: Its pool, e.g. "main/a100x4".
        gpu_type: Kind of its GPUs; empty without GPUs.
        features: The scheduler's features.
        gpus: How many GPUs it has.
        cores: How many cores it has, as the scheduler counts them; 0: not known.
        memory_mib: Its memory in MiB; 0: not known.
        gpu_memory_mib: Memory of each of its GPUs in MiB, of different ones the least; 0: none, or not known.
        slow: Whether it counts as slow.
    """

    pool: str = ""
    gpu_type: str = ""
    features: tuple[str, ...] = ()
    gpus: int = 0
    cores: int = 0
    memory_mib: int = 0
    gpu_memory_mib: int = 0
    slow: bool = False


class NeedError(Exception):
    """A need that can't be met by any node whatever, or can't be read.

    Attributes:
        field: Field of `NodeNeeds`.
        expected: What it may be.
        got: What it is.
    """

    def __init__(self, field: str, expected: str, got: object) -> None:
        super().__init__(f"{field}: expected {expected}, got {got!r}")
        self.field, self.expected, self.got = field, expected, got


def check_needs(needs: NodeNeeds) -> None:
    """Check what a user has submitted.

    Raises:
        NeedError: a field can't be used.
    """
    for field in ("gpu", "pool"):
        text = getattr(needs, field)
        if len(text) > _MAX_NAME or not all(letter.isprintable() and letter != " " for letter in text):
            raise NeedError(field, f"at most {_MAX_NAME} printable characters without blanks", text)
    if _COUNT.fullmatch(needs.gpu):
        raise NeedError("gpu", "a kind of GPU such as a100; how many is gpus", needs.gpu)
    if len(needs.constraint) > _MAX_CONSTRAINT:
        raise NeedError("constraint", f"at most {_MAX_CONSTRAINT} characters", needs.constraint[:_MAX_NAME])
    if "&" in needs.constraint and "|" in needs.constraint:
        raise NeedError(
            "constraint", "features joined either by & (all of them) or by | (one of them)", needs.constraint
        )
    if len(_features(needs.constraint)) > _MAX_FEATURES:
        raise NeedError("constraint", f"at most {_MAX_FEATURES} features", needs.constraint)
    for feature in _features(needs.constraint):
        if not _FEATURE.fullmatch(feature) or not feature.isprintable():
            raise NeedError("constraint", "a feature, a&b or a|b", needs.constraint)
    if len(needs.excluded_nodes) > MAX_EXCLUDED:
        raise NeedError("excluded_nodes", f"at most {MAX_EXCLUDED} nodes", len(needs.excluded_nodes))
    for place, name in enumerate(needs.excluded_nodes):
        if not name.strip() or name != name.strip() or len(name) > _MAX_NAME or not name.isprintable():
            raise NeedError(f"excluded_nodes[{place}]", f"the name of a node, at most {_MAX_NAME} characters", name)
    for field, most in MAX_AMOUNTS.items():
        if not 0 <= getattr(needs, field) <= most:
            unit = " MiB" if field.endswith("_mib") else ""
            raise NeedError(field, f"0 to {most}{unit}", getattr(needs, field))


class Need(NamedTuple):
    """One of the things that a job needs.

    Attributes:
        text: For people, e.g. "GPU a100".
        part: It alone.
    """

    text: str
    part: NodeNeeds


@lru_cache(maxsize=4096)
def needs_of(needs: NodeNeeds) -> tuple[Need, ...]:
    """What a job needs, one thing after the other; each feature of `a&b` is one."""
    singles = []
    if needs.pool:
        singles.append(Need(f"pool {needs.pool}", NodeNeeds(pool=needs.pool)))
    if needs.gpu:
        singles.append(Need(f"GPU {needs.gpu}", NodeNeeds(gpu=needs.gpu)))
    if needs.gpu_memory_mib:
        words = f"GPUs of at least {size_in_words(needs.gpu_memory_mib)}"
        singles.append(Need(words, NodeNeeds(gpu_memory_mib=needs.gpu_memory_mib)))
    if needs.gpus:
        singles.append(Need(f"at least {_count_in_words(needs.gpus, 'GPU')}", NodeNeeds(gpus=needs.gpus)))
    if needs.cores:
        singles.append(Need(f"at least {_count_in_words(needs.cores, 'core')}", NodeNeeds(cores=needs.cores)))
    if needs.memory_mib:
        words = f"at least {size_in_words(needs.memory_mib)} of memory"
        singles.append(Need(words, NodeNeeds(memory_mib=needs.memory_mib)))
    if needs.constraint:
        parts = [needs.constraint] if "|" in needs.constraint else _features(needs.constraint)
        singles += [Need(f"feature {part}", NodeNeeds(constraint=part)) for part in dict.fromkeys(parts)]
    if needs.excluded_nodes:
        count = len(set(needs.excluded_nodes))
        named = f"not {needs.excluded_nodes[0]}" if count == 1 else f"none of {count} excluded nodes"
        singles.append(Need(named, NodeNeeds(excluded_nodes=needs.excluded_nodes)))
    if needs.well:
        singles.append(Need("not slow", NodeNeeds(well=True)))
    return tuple(singles)


class TraitCensus:
    """What many nodes are, of which most are alike: for each need only different traits are looked at."""

    def __init__(self, nodes: Mapping[str, NodeTraits]) -> None:
        self._nodes = nodes
        self._counts = Counter(nodes.values())

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self._nodes)

    def count(self, needs: NodeNeeds) -> int:
        """How many of the nodes suit a job."""
        suitable = sum(count for traits, count in self._counts.items() if has_traits(needs, traits))
        excluded = (self._nodes[name] for name in _as_set(needs.excluded_nodes) if name in self._nodes)
        return suitable - sum(has_traits(needs, traits) for traits in excluded)

    def unknown(self, needs: NodeNeeds) -> int:
        """The number of nodes of which it is not known whether they have an amount that is needed."""
        return sum(count for traits, count in self._counts.items() if _is_unknown(needs, traits))

    def kinds(self, all_needs: Sequence[NodeNeeds]) -> dict[tuple[int, ...], list[str]]:
        """The nodes that do not suit all of some jobs, in their order, by the jobs' indices that they do not suit."""
        by_traits = {
            traits: tuple(index for index, needs in enumerate(all_needs) if not has_traits(needs, traits))
            for traits in self._counts
        }
        by_name: dict[str, list[int]] = {}
        for index, needs in enumerate(all_needs):
            for name in _as_set(needs.excluded_nodes):
                by_name.setdefault(name, []).append(index)
        kinds: dict[tuple[int, ...], list[str]] = {}
        for name, traits in self._nodes.items():
            barred = by_traits[traits]
            if name in by_name:
                barred = tuple(sorted({*barred, *by_name[name]}))
            if barred:
                kinds.setdefault(barred, []).append(name)
        return kinds


def as_asked(nodes: Mapping[str, NodeTraits], asked: Iterable[NodeNeeds]) -> dict[str, NodeTraits]:
    """Nodes with their amounts lowered to what some jobs ask for, so that those are equal that no job tells apart.

    The memory of alike nodes may differ by a few MiB, so that there would be as many different traits as nodes.
    """
    needs = list(asked)
    well = any(need.well for need in needs)
    steps = {field: sorted({0, *(getattr(need, field) for need in needs)}) for field in MAX_AMOUNTS}

    def lowered(traits: NodeTraits) -> NodeTraits:
        gpus, cores, memory_mib, gpu_memory_mib = (
            steps[field][bisect_right(steps[field], getattr(traits, field)) - 1]
            for field in ("gpus", "cores", "memory_mib", "gpu_memory_mib")
        )
        slow = traits.slow and well
        return NodeTraits(traits.pool, traits.gpu_type, traits.features, gpus, cores, memory_mib, gpu_memory_mib, slow)

    by_traits = {traits: lowered(traits) for traits in frozenset(nodes.values())}
    return {name: by_traits[traits] for name, traits in nodes.items()}


def size_in_words(mib: int) -> str:
    """`40 GiB`, `2 TiB` or `1500 MiB`: exactly that many MiB, in the largest unit that it is whole in."""
    for unit, size in (("TiB", 1 << 20), ("GiB", 1 << 10)):
        if mib and not mib % size:
            return f"{mib // size} {unit}"
    return f"{mib} MiB"


def in_words(needs: NodeNeeds) -> str:
    """What a job needs, for people; empty where any node suits."""
    return ", ".join(need.text for need in needs_of(needs))


def suits(needs: NodeNeeds, name: str, traits: NodeTraits) -> bool:
    """Whether a node is one that the job may have."""
    return name not in _as_set(needs.excluded_nodes) and has_traits(needs, traits)


@lru_cache(maxsize=65536)
def has_traits(needs: NodeNeeds, traits: NodeTraits) -> bool:
    """Whether nodes with these traits suit a job, those left out that it excludes by name."""
    if needs.pool and traits.pool != needs.pool and not traits.pool.startswith(f"{needs.pool}/"):
        return False
    if needs.gpu and not _is_gpu(needs.gpu, traits.gpu_type):
        return False
    if needs.gpus > traits.gpus or needs.gpu_memory_mib > traits.gpu_memory_mib:
        return False
    if needs.cores > traits.cores or needs.memory_mib > traits.memory_mib:
        return False
    if needs.well and traits.slow:
        return False
    if not needs.constraint:
        return True
    wanted = _features(needs.constraint)
    met = (feature in traits.features for feature in wanted)
    return any(met) if "|" in needs.constraint else all(met)


def _is_gpu(wanted: str, gpu_type: str) -> bool:
    """Nodes whose GPUs are of several kinds (a100+v100) suit those alone that take any kind."""
    if wanted.casefold() == ANY_GPU:
        return bool(gpu_type)
    return wanted.casefold() == gpu_type.casefold()


def _is_unknown(needs: NodeNeeds, traits: NodeTraits) -> bool:
    return (
        bool(needs.gpu_memory_mib and traits.gpus and not traits.gpu_memory_mib)
        or bool(needs.cores and not traits.cores)
        or bool(needs.memory_mib and not traits.memory_mib)
    )


def _count_in_words(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _features(constraint: str) -> Sequence[str]:
    return [part.strip() for part in re.split(r"[&|]", constraint)] if constraint else []


@lru_cache(maxsize=1024)
def _as_set(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)
