"""U by minute in the Allocator's database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, Column, Engine, Float, Table, delete, func, insert, select

from malletrain.allocator.history.plan_store import METADATA
from malletrain.allocator.utilization.definition import MinuteUse

MINUTES_KEPT = 50_000
"""More than a month: a what-if goes back for 30 days."""

_MINUTES = Table(
    "utilization_minutes",
    METADATA,
    Column("unix_seconds", BigInteger, primary_key=True, autoincrement=False),
    Column("nodes", Float, nullable=False),
    Column("trained_samples", Float, nullable=False),
    Column("free_samples", Float, nullable=False),
    Column("static_samples", Float, nullable=False),
)


class UtilizationStore:
    """Stores the newest minutes."""

    def __init__(self, engine: Engine, minutes_kept: int = MINUTES_KEPT) -> None:
        self._engine = engine
        self._minutes_kept = minutes_kept

    def add(self, minutes: Sequence[MinuteUse]) -> None:
        """Store minutes in place of earlier versions of them, and delete those that are too old.

        Raises:
            DatabaseUnavailableError: the database can't be written; the call may be repeated.
        """
        rows = {int(minute.start): _columns(minute) for minute in minutes}
        if not rows:
            return
        with self._engine.begin() as connection:
            connection.execute(delete(_MINUTES).where(_MINUTES.c.unix_seconds.in_(rows)))
            connection.execute(insert(_MINUTES), list(rows.values()))
            count = connection.scalar(select(func.count()).select_from(_MINUTES)) or 0
            if count > self._minutes_kept:
                oldest = select(_MINUTES.c.unix_seconds).order_by(_MINUTES.c.unix_seconds)
                surplus = connection.scalars(oldest.limit(count - self._minutes_kept)).all()
                connection.execute(delete(_MINUTES).where(_MINUTES.c.unix_seconds.in_(surplus)))

    def since(self, unix_seconds: float, max_minutes: int | None = None) -> list[MinuteUse]:
        """Minutes that begin at a time or later, oldest first.

        Args:
            unix_seconds: Seconds since the epoch.
            max_minutes: So many at most; None: all.
        """
        query = select(_MINUTES).where(_MINUTES.c.unix_seconds >= unix_seconds).order_by(_MINUTES.c.unix_seconds)
        with self._engine.connect() as connection:
            return [MinuteUse(float(start), *values) for start, *values in connection.execute(query.limit(max_minutes))]


def _columns(minute: MinuteUse) -> dict[str, float]:
    return {
        "unix_seconds": int(minute.start),
        "nodes": minute.nodes,
        "trained_samples": minute.trained,
        "free_samples": minute.free,
        "static_samples": minute.static,
    }
