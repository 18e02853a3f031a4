"""What is told of nodes: that they are left out, or slow. Each once in a while, in a queue with a limit. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

FORMAT = 1
MAX_PENDING = 1000
"""Notices that wait for a receiver."""
MAX_TOLD = 20_000
"""Nodes and kinds of which is remembered when they were told."""
MAX_BATCH = 100
_MAX_REASON_LENGTH = 500


class NodeNoticeKind(StrEnum):
    """What is wrong with a node."""

    QUARANTINED = "quarantined"
    CHECK_FAILED = "check-failed"
    SLOW = "slow"
    CALLED_SLOW = "called-slow"


class NodeNotice(NamedTuple):
    """One event of a node that receivers are told.

    Attributes:
        node: Its name.
        kind: What is wrong with it.
        reason: Who says so and why, for people.
        unix_seconds: When it was noted, in seconds since the epoch.
        until_unix_seconds: Until when the node is left out; 0: it is not.
    """

    node: str
    kind: NodeNoticeKind
    reason: str
    unix_seconds: float
    until_unix_seconds: float = 0.0


class NodeNoticeQueue:
    """What one receiver is still to be told, and what it was told lately.

    Attributes:
        left_out: How many notices found no room since the last delivery.
    """

    def __init__(
        self, kinds: Collection[NodeNoticeKind], repeat_seconds: float, content: Mapping[str, Any] | None = None
    ) -> None:
        """Begin with what was there before a restart.

        Args:
            kinds: What is told.
            repeat_seconds: For how long the same is not told again of the same node.
            content: What `to_json` has made; what makes no sense in it is left out.
        """
        self._kinds = frozenset(kinds)
        self._repeat_seconds = repeat_seconds
        stored = content or {}
        self._sequence = _whole(stored.get("sequence"))
        self.left_out = _whole(stored.get("left_out"))
        self._pending = dict(list(_read_pending(stored.get("pending")))[:MAX_PENDING])
        self._sent_at = dict(list(_read_sent_times(stored.get("told")))[:MAX_TOLD])

    def __len__(self) -> int:
        """How many notices wait."""
        return len(self._pending)

    def add_notice(self, notice: NodeNotice) -> bool:
        """Take up something to tell, unless it was told lately or is not to be told.

        Returns:
            Whether anything has changed.
        """
        if notice.kind not in self._kinds:
            return False
        key = (notice.node, notice.kind)
        told_at = self._sent_at.get(key)
        # The clock may have been set back: what was told in the future was told long ago.
        if told_at is not None and abs(notice.unix_seconds - told_at) < self._repeat_seconds:
            return False
        if len(self._pending) >= MAX_PENDING:
            self.left_out += 1
            return True
        self._sequence += 1
        self._pending[self._sequence] = notice._replace(reason=notice.reason[:_MAX_REASON_LENGTH])
        self._sent_at.pop(key, None)
        self._sent_at[key] = notice.unix_seconds
        while len(self._sent_at) > MAX_TOLD:
            del self._sent_at[next(iter(self._sent_at))]
        return True

    def batch(self) -> tuple[tuple[int, ...], str]:
        """The numbers of those that are told next, the oldest first, and JSON for the receiver; none if none waits."""
        numbers = tuple(sorted(self._pending)[:MAX_BATCH])
        if not numbers:
            return (), ""
        content = {
            "format": FORMAT,
            "id": f"nodes-{numbers[0]}-{numbers[-1]}",
            "event": "nodes",
            "unixSeconds": self._pending[numbers[-1]].unix_seconds,
            "nodes": [_for_receivers(number, self._pending[number]) for number in numbers],
            "leftOut": self.left_out,
        }
        return numbers, json.dumps(content)

    def done(self, numbers: Collection[int], left_out: int) -> None:
        """Notices were told, or are given up.

        Args:
            left_out: How many the receiver knows of that found no room.
        """
        for number in numbers:
            self._pending.pop(number, None)
        self.left_out = max(0, self.left_out - left_out)

    def to_json(self) -> dict[str, Any]:
        """All that is known, for a state file."""
        return {
            "sequence": self._sequence,
            "left_out": self.left_out,
            "pending": {str(number): list(notice) for number, notice in self._pending.items()},
            "told": [[node, kind.value, told_at] for (node, kind), told_at in self._sent_at.items()],
        }


def _for_receivers(number: int, notice: NodeNotice) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": number,
        "name": notice.node,
        "event": notice.kind.value,
        "reason": notice.reason,
        "unixSeconds": notice.unix_seconds,
    }
    if notice.until_unix_seconds:
        row["untilUnixSeconds"] = notice.until_unix_seconds
    return row


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _read_pending(stored: object) -> list[tuple[int, NodeNotice]]:
    read = []
    for number, row in stored.items() if isinstance(stored, dict) else ():
        try:
            node, kind, reason, noted, until = row
            notice = NodeNotice(str(node), NodeNoticeKind(kind), str(reason), float(noted), float(until))
            key = int(number)
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(notice.unix_seconds) and math.isfinite(notice.until_unix_seconds):
            read.append((key, notice))
    return read


def _read_sent_times(stored: object) -> list[tuple[tuple[str, NodeNoticeKind], float]]:
    read = []
    for row in stored if isinstance(stored, list) else ():
        try:
            node, kind, told_at = row
            read.append(((str(node), NodeNoticeKind(kind)), float(told_at)))
        except (TypeError, ValueError, OverflowError):
            continue
    return read
