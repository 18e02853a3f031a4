"""Long lists in messages of bounded size: cut by those who send them, joined by those who follow a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from google.protobuf.message import Message

MAX_BYTES = 4 * 1024 * 1024
"""Of a message with a list, apart from its last entry. Ordinary installations get everything in one."""

MessageT = TypeVar("MessageT", bound=Message)


def pieces(entries: Iterable[MessageT], max_bytes: int = MAX_BYTES) -> Iterator[tuple[list[MessageT], bool]]:
    """Cut a list; an empty one is one piece.

    Args:
        entries: Entries; taken as they are needed, so that no more than a piece is in memory.
        max_bytes: A piece ends with the entry by which it reaches this size.

    Yields:
        Pieces, and whether others follow.
    """
    piece: list[MessageT] = []
    size = 0
    for entry in entries:
        if size >= max_bytes:
            yield piece, True
            piece, size = [], 0
        piece.append(entry)
        size += entry.ByteSize()
    yield piece, False


class Joined:
    """Joins the pieces of a message that was sent in several."""

    def __init__(self) -> None:
        self._begun: Any = None

    def add(self, message: Any) -> Any | None:
        """The whole message; None if this one goes on."""
        if self._begun is not None:
            self._begun.MergeFrom(message)  # which appends to lists
            self._begun.more = message.more
        elif getattr(message, "more", False):
            self._begun = type(message)()
            self._begun.CopyFrom(message)
        else:
            return message
        if self._begun.more:
            return None
        whole, self._begun = self._begun, None
        return whole
