"""How long growths took, in the Allocator's database: by training environment and pool, kept over restarts."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, Column, Engine, Float, Integer, Table, Text, delete, func, insert, select

from malletrain.allocator.history.plan_store import METADATA
from malletrain.allocator.machine.growth_times import KEPT, BootTime
from malletrain.runtime.clock import Clock

_ROWS_KEPT = 10_000
"""Of all environments and pools together: users may have any number of environments."""

_ROWS = Table(
    "boot_times",
    METADATA,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("unix_seconds", Float, nullable=False),
    Column("environment", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("seconds", Float, nullable=False),
    sqlite_autoincrement=True,
)


class BootTimeStore:
    """Stores the newest fifteen of each training environment and pool."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def add(self, measured: Sequence[BootTime]) -> None:
        """Store what has been measured in one transaction, and delete what is too old.

        Raises:
            DatabaseUnavailableError: the database can't be written.
        """
        if not measured:
            return
        now = self._clock.time()
        with self._engine.begin() as connection:
            connection.execute(
                insert(_ROWS),
                [
                    {"unix_seconds": now, "environment": one.environment, "pool": one.pool, "seconds": one.seconds}
                    for one in measured
                ],
            )
            newest = connection.scalar(select(func.max(_ROWS.c.sequence))) or 0
            connection.execute(delete(_ROWS).where(_ROWS.c.sequence <= newest - _ROWS_KEPT))
            for environment, pool in {(one.environment, one.pool) for one in measured}:
                same = (_ROWS.c.environment == environment) & (_ROWS.c.pool == pool)
                newest_rows = select(_ROWS.c.sequence).where(same).order_by(_ROWS.c.sequence.desc()).limit(KEPT)
                oldest = connection.scalar(select(func.min(newest_rows.subquery().c.sequence))) or 0
                connection.execute(delete(_ROWS).where(same & (_ROWS.c.sequence < oldest)))

    def all(self) -> list[BootTime]:
        """What is kept, oldest first."""
        query = select(_ROWS.c.environment, _ROWS.c.pool, _ROWS.c.seconds).order_by(_ROWS.c.sequence)
        with self._engine.connect() as connection:
            return [BootTime(*row) for row in connection.execute(query)]
