"""The history of the idle set in the Allocator's database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Float,
    Integer,
    Row,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
)

from malletrain.allocator.history.idle_history import MAX_UNSTORED, IdleHistory, IdleRow, IdleRowKind
from malletrain.allocator.history.plan_store import METADATA
from malletrain.runtime.clock import Clock
from malletrain.runtime.kernel.write_behind import WriteBehind
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import scavenger_pb2

_ROWS = Table(
    "idle_history",
    METADATA,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("unix_seconds", Float, nullable=False),
    Column("kind", String(8), nullable=False),
    Column("joined", Text, nullable=False),
    Column("left_nodes", Text, nullable=False),
    sqlite_autoincrement=True,
)
_ROWS_READ = 100
"""A whole set of some thousand nodes has 200 kB."""


class IdleStore:
    """Stores the newest rows."""

    def __init__(self, engine: Engine, rows_kept: int) -> None:
        self._engine = engine
        self._rows_kept = rows_kept

    def add(self, rows: Sequence[IdleRow]) -> None:
        """Store rows in one transaction, and delete those that are too old.

        Raises:
            DatabaseUnavailableError: the database can't be written.
        """
        if not rows:
            return
        with self._engine.begin() as connection:
            connection.execute(insert(_ROWS), [_columns(row) for row in rows])
            newest = connection.scalar(select(func.max(_ROWS.c.sequence))) or 0
            connection.execute(delete(_ROWS).where(_ROWS.c.sequence <= newest - self._rows_kept))

    def rows(self) -> list[IdleRow]:
        """All rows, oldest first."""
        with self._engine.connect() as connection:
            return [_row(row) for row in connection.execute(select(_ROWS).order_by(_ROWS.c.sequence))]

    def page(self, after: int, max_rows: int, max_characters: int) -> tuple[list[tuple[int, IdleRow]], bool]:
        """The rows that follow a sequence number, oldest first, each with its own; and whether there are more.

        Args:
            after: The sequence number; 0: from the first row on.
            max_rows: So many rows at most, at least 1.
            max_characters: No more rows once they have so many characters as they are stored.
        """
        query = select(_ROWS).where(_ROWS.c.sequence > after).order_by(_ROWS.c.sequence).limit(max_rows + 1)
        rows: list[tuple[int, IdleRow]] = []
        with self._engine.connect() as connection:
            for row in connection.execute(query.execution_options(yield_per=_ROWS_READ)):
                if len(rows) >= max_rows or max_characters <= 0:
                    return rows, True
                max_characters -= len(row.joined) + len(row.left_nodes)
                rows.append((row.sequence, _row(row)))
        return rows, False


def _columns(row: IdleRow) -> dict[str, object]:
    return {
        "unix_seconds": row.unix_seconds,
        "kind": row.kind.value,
        "joined": json.dumps(dict(row.joined), separators=(",", ":")),
        "left_nodes": json.dumps(row.left, separators=(",", ":")),
    }


def _row(row: Row[tuple[object, ...]]) -> IdleRow:
    return IdleRow(row.unix_seconds, IdleRowKind(row.kind), json.loads(row.joined), tuple(json.loads(row.left_nodes)))


_TOGETHER_SECONDS = 1.0
"""Changes within this time are stored in one transaction. A kill loses so much of the history at most."""

Rows = tuple[IdleRow, ...]


class IdleRecording:
    """Makes rows of the Scavenger's messages and has them stored."""

    def __init__(self, store: IdleStore, clock: Clock) -> None:
        self._clock = clock
        self._history = IdleHistory()
        self._rows = WriteBehind[Rows](
            store.add,
            lambda earlier, later: (*earlier, *later),
            "the idle set's history",
            may_begin=lambda: asyncio.sleep(_TOGETHER_SECONDS),
        )
        self.run, self.flush = self._rows.run, self._rows.flush

    def record(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        """Take over a message."""
        now = unix_seconds(message.event_time) if message.HasField("event_time") else self._clock.time()
        joined = {
            node.name: unix_seconds(node.idle_since) if node.HasField("idle_since") else now for node in message.joined
        }
        if sum(map(len, self._rows.waiting)) >= MAX_UNSTORED:
            self._rows.drop_later()
            self._history.begin_anew()
        self._rows.add((self._history.row(now, joined, message.left, snapshot=message.snapshot),))
