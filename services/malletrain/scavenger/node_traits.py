"""What nodes are, as settings or the JSON beside a trace say: entries by names of nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic import Field, TypeAdapter, ValidationError

from malletrain.model.node_needs import MAX_AMOUNTS
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.frozen_settings import FrozenSettings
from malletrain.scavenger.machine.observations import NodeFacts, gpu_memory_of


class NodeTraitsEntry(FrozenSettings):
    """A section `[scavenger.node_traits.NODES]`: what nodes of the static source are."""

    pool: str = Field(default="", description="Pool of these nodes; empty: there is only one.")
    gpu_type: str = Field(default="", description="Kind of their GPUs, e.g. a100.")
    gpus: int = Field(default=0, ge=0, le=1024, description="GPUs of each of them.")
    gpu_memory_mib: int = Field(
        default=0,
        ge=0,
        le=MAX_AMOUNTS["gpu_memory_mib"],
        description="Memory of each GPU in MiB, e.g. 81920; 0: as `scavenger.gpu_memory_mib` says of its kind.",
    )
    cores: int = Field(default=0, ge=0, le=MAX_AMOUNTS["cores"], description="Cores of each of them; 0: not known.")
    memory_mib: int = Field(
        default=0, ge=0, le=MAX_AMOUNTS["memory_mib"], description="Memory of each of them in MiB; 0: not known."
    )
    features: tuple[str, ...] = Field(default=(), description="Their features, for jobs that need some.")


_ENTRIES = TypeAdapter(dict[str, NodeTraitsEntry])


def entries_of_json(value: object, field: str) -> dict[str, NodeTraitsEntry]:
    """Entries by names of nodes, from JSON that has been read.

    Raises:
        InvalidInputError: it has another form; names the entry.
    """
    try:
        return _ENTRIES.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (field, *first["loc"])))
        raise InvalidInputError(place, first["msg"], first["input"]) from error


def facts_by_node(
    entries: Mapping[str, NodeTraitsEntry],
    nodes: Collection[str],
    gpu_memory_mib: Mapping[str, int],
    field: str,
    listed_in: str,
) -> dict[str, NodeFacts]:
    """What each node is that an entry names; of several entries the first counts.

    Args:
        entries: By name, or by several names as Slurm writes them: `n[1-4]`.
        nodes: All nodes.
        gpu_memory_mib: Memory of a GPU of each kind in MiB.
        field: Where the entries are, for errors.
        listed_in: Where the nodes are, for errors.

    Raises:
        InvalidInputError: an entry names a node that is none, or has a kind of GPU and no GPUs.
    """
    if not entries:
        return {}
    # The library that reads lists takes time to load.
    from malletrain.scavenger.sources.schedulers.availability import UnreadableError
    from malletrain.scavenger.sources.schedulers.hostlists import expand

    facts_of_nodes: dict[str, NodeFacts] = {}
    known = frozenset(nodes)
    for names, entry in entries.items():
        place = f"{field}.{names}"
        try:
            listed = expand(names)
        except UnreadableError as error:
            raise InvalidInputError(place, "names of nodes", names) from error
        kind = (entry.gpu_type or "gpu") if entry.gpus else ""
        memory = entry.gpu_memory_mib or gpu_memory_of(kind, gpu_memory_mib)
        facts = NodeFacts(entry.pool, kind, entry.gpus, entry.features, entry.cores, entry.memory_mib, memory)
        for name in listed:
            if name not in known:
                raise InvalidInputError(place, f"nodes that are in {listed_in}", name)
            facts_of_nodes.setdefault(name, facts)
        if entry.gpu_type and not entry.gpus:
            raise InvalidInputError(f"{place}.gpus", "at least 1, as there is a gpu_type", entry.gpus)
        if entry.gpu_memory_mib and not entry.gpus:
            raise InvalidInputError(f"{place}.gpus", "at least 1, as there is a gpu_memory_mib", entry.gpus)
    return facts_of_nodes
