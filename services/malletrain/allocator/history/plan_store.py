"""The plans in the Allocator's database. Generations continue from there after a restart."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    LargeBinary,
    MetaData,
    Select,
    Table,
    delete,
    func,
    insert,
    select,
)

from malletrain.v1 import allocator_pb2

_PLANS_READ = 20
"""A plan of a thousand jobs on ten thousand nodes has 270 kB, compressed."""
_COMPRESSED = b"\x78"
"""First byte of what zlib has compressed. A plan as such begins with the tag of its generation."""
_LEVEL = 1
"""Higher levels take several times as long and gain little."""


METADATA = MetaData()
"""Of all tables of the Allocator."""

_PLANS = Table(
    "plans",
    METADATA,
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("plan", LargeBinary, nullable=False),
)


class PlanStore:
    """Stores the newest plans, compressed. Plans of earlier versions are stored as they are."""

    def __init__(self, engine: Engine, plans_kept: int, bytes_kept: float = float("inf")) -> None:
        """
        Args:
            engine: The database.
            plans_kept: So many of the newest plans are kept at most.
            bytes_kept: They have so many bytes together at most, but for the newest one, which is always kept.
        """
        self._engine = engine
        self._plans_kept = plans_kept
        self._bytes_kept = bytes_kept

    def newest(self) -> allocator_pb2.Plan | None:
        """The plan of the highest generation; None before the first."""
        return self._one(select(_PLANS.c.plan).order_by(_PLANS.c.generation.desc()).limit(1))

    def get(self, generation: int) -> allocator_pb2.Plan | None:
        """The plan of a generation; None where it is not kept."""
        return self._one(select(_PLANS.c.plan).where(_PLANS.c.generation == generation))

    def _one(self, query: Select[bytes]) -> allocator_pb2.Plan | None:
        with self._engine.connect() as connection:
            stored = connection.scalar(query)
        return None if stored is None else _unpack(stored)

    def newest_first(self, before: int = 0, max_plans: int | None = None) -> Iterator[allocator_pb2.Plan]:
        """Plans, read one after the other, the newest first.

        Args:
            before: Only those of lower generations; 0: all.
            max_plans: So many at most; None: no limit.
        """
        query = select(_PLANS.c.plan).order_by(_PLANS.c.generation.desc()).limit(max_plans)
        if before:
            query = query.where(_PLANS.c.generation < before)
        with self._engine.connect() as connection:
            for row in connection.execution_options(yield_per=_PLANS_READ).execute(query):
                yield _unpack(row.plan)

    def add(self, *plans: allocator_pb2.Plan) -> None:
        """Store plans in place of earlier versions of them, and delete plans that are too old.

        Raises:
            DatabaseUnavailableError: the database can't be written; the call may be repeated.
        """
        if not plans:
            return
        packed = {plan.generation: _pack(plan) for plan in plans}
        with self._engine.begin() as connection:
            # A changed row is deleted and inserted again: understood by every database, unlike any form of upsert.
            connection.execute(delete(_PLANS).where(_PLANS.c.generation.in_(packed)))
            rows = [{"generation": generation, "plan": plan} for generation, plan in packed.items()]
            connection.execute(insert(_PLANS), rows)
            oldest = max(max(packed) - self._plans_kept + 1, self._oldest_that_fits(connection))
            connection.execute(delete(_PLANS).where(_PLANS.c.generation < oldest))

    def _oldest_that_fits(self, connection: Connection) -> int:
        """Generation of the oldest plan that may be kept by its bytes; 0: all may."""
        if self._bytes_kept == float("inf"):
            return 0
        so_far = func.sum(func.length(_PLANS.c.plan)).over(order_by=_PLANS.c.generation.desc())
        sizes = select(_PLANS.c.generation, so_far.label("bytes")).subquery()
        too_old = connection.scalar(select(func.max(sizes.c.generation)).where(sizes.c.bytes > self._bytes_kept))
        newest = connection.scalar(select(func.max(_PLANS.c.generation))) or 0
        return 0 if too_old is None else min(too_old + 1, newest)

    def count(self) -> int:
        """Number of stored plans."""
        with self._engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(_PLANS)) or 0


def _pack(plan: allocator_pb2.Plan) -> bytes:
    return zlib.compress(plan.SerializeToString(), _LEVEL)


def _unpack(stored: bytes) -> allocator_pb2.Plan:
    return allocator_pb2.Plan.FromString(zlib.decompress(stored) if stored[:1] == _COMPRESSED else stored)
