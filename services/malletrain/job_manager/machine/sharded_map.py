"""A map whose copies are cheap: they share what neither of them has changed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

_V = TypeVar("_V")

_SHARDS = 256
"""With 10,000 keys a change of a copy copies some 40 of them."""


class ShardedMap(Generic[_V]):
    """Values by name, in dictionaries that copies share until they change them."""

    def __init__(self) -> None:
        self._shards: list[dict[str, _V]] = [{} for _ in range(_SHARDS)]
        self._own = set(range(_SHARDS))

    def copy(self) -> ShardedMap[_V]:
        """The same, to be changed by itself."""
        twin: ShardedMap[_V] = ShardedMap.__new__(ShardedMap)
        twin._shards = self._shards.copy()
        twin._own = set()
        self._own = set()
        return twin

    def get(self, name: str) -> _V | None:
        """The value of a name; None if it has none."""
        return self._shards[hash(name) % _SHARDS].get(name)

    def __setitem__(self, name: str, value: _V) -> None:
        """Give a name a value."""
        self._shard(name)[name] = value

    def __delitem__(self, name: str) -> None:
        """Take a name's value.

        Raises:
            KeyError: it has none.
        """
        del self._shard(name)[name]

    def items(self) -> Iterator[tuple[str, _V]]:
        """All names with their values, in no order to rely on."""
        return (item for shard in self._shards for item in shard.items())

    def _shard(self, name: str) -> dict[str, _V]:
        """Where a name is, to be changed."""
        number = hash(name) % _SHARDS
        if number not in self._own:
            self._shards[number] = self._shards[number].copy()
            self._own.add(number)
        return self._shards[number]
