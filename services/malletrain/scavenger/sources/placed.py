"""A source of whose nodes the operator says where they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import structlog

from malletrain.model.topology import GroupPath
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.machine.gpu_units import node_of_unit, path_of_unit
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts, Observation
from malletrain.scavenger.sources.base import NodeSource, WrappingSource

_SHOWN = 5


class PlacedSource(WrappingSource):
    """Another source, whose nodes are in the groups that the settings name, whatever the scheduler says."""

    def __init__(self, inner: NodeSource, paths: Mapping[str, GroupPath]) -> None:
        super().__init__(inner)
        self._paths = dict(paths)
        self._logged = False
        self._log = structlog.get_logger(__name__)

    async def observations(self) -> AsyncIterator[Observation]:
        """Observations of the inner source with each node's groups, without nodes that it does not name."""
        async for observation in self._inner.observations():
            self._tell_unknown(observation.known)
            yield replace(observation, facts=self._placed(observation))

    def _placed(self, observation: Observation) -> dict[str, NodeFacts]:
        facts = dict(observation.facts)
        for name in {*facts, *observation.idle}:
            if (path := self._paths.get(node_of_unit(name))) is not None:
                facts[name] = _with_path(facts.get(name, NO_FACTS), path_of_unit(name, path))
        return facts

    def _tell_unknown(self, known: frozenset[str]) -> None:
        """Log once which nodes the settings name that the source does not know."""
        if self._logged or not known:
            return
        self._logged = True
        if unknown := sorted(self._paths.keys() - set(map(node_of_unit, known))):
            self._log.warning(
                "scavenger.topology names nodes that the source does not know",
                nodes=len(unknown),
                first=unknown[:_SHOWN],
            )


def paths_of(topology: Mapping[str, GroupPath], known: Sequence[str] | None = None) -> dict[str, GroupPath]:
    """The groups of each node, from the setting `scavenger.topology`.

    Args:
        topology: Groups by lists of nodes such as `n[001-032]`.
        known: All nodes that there are; None: that is not known beforehand.

    Raises:
        InvalidInputError: a list can't be read, or names a node that another one has named, or that is not there.
    """
    # The library that reads lists takes time to load.
    from malletrain.scavenger.sources.schedulers.availability import UnreadableError
    from malletrain.scavenger.sources.schedulers.hostlists import MAX_NODES, expand

    paths: dict[str, GroupPath] = {}
    there = None if known is None else frozenset(known)
    for names, path in topology.items():
        field = f"scavenger.topology.{names}"
        try:
            listed = expand(names)
        except UnreadableError as error:
            raise InvalidInputError(field, "names of nodes, such as n[001-032]", names) from error
        if len(paths) + len(listed) > MAX_NODES:
            raise InvalidInputError("scavenger.topology", f"at most {MAX_NODES} nodes", names)
        for name in listed:
            if there is not None and name not in there:
                raise InvalidInputError(field, "nodes that are in scavenger.nodes", name)
            if name in paths:
                raise InvalidInputError(field, "nodes that no other entry names", name)
            paths[name] = path
    return paths


@lru_cache(maxsize=8192)
def _with_path(facts: NodeFacts, path: GroupPath) -> NodeFacts:
    return replace(facts, topology=path)
