"""The plans in the Allocator's database. Generations continue from there after a restart."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from sqlalchemy import BigInteger, Engine, LargeBinary, delete, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from malletrain.v1 import allocator_pb2

_PLANS_READ = 20
"""A plan of a thousand jobs on ten thousand nodes has 270 kB, compressed."""
_COMPRESSED = b"\x78"
"""First byte of what zlib has compressed. A plan as such begins with the tag of its generation."""
_LEVEL = 1
"""Higher levels take several times as long and gain little."""


class _Base(DeclarativeBase):
    pass


METADATA = _Base.metadata


class _PlanRow(_Base):
    __tablename__ = "plans"

    generation: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    plan: Mapped[bytes] = mapped_column(LargeBinary)


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
        with Session(self._engine) as session:
            row = session.scalars(select(_PlanRow).order_by(_PlanRow.generation.desc()).limit(1)).first()
            return _unpack(row.plan) if row else None

    def get(self, generation: int) -> allocator_pb2.Plan | None:
        """The plan of a generation; None where it is not kept."""
        with Session(self._engine) as session:
            row = session.get(_PlanRow, generation)
            return _unpack(row.plan) if row else None

    def newest_first(self, before: int = 0, most: int | None = None) -> Iterator[allocator_pb2.Plan]:
        """Plans, read one after the other, the newest first.

        Args:
            before: Only those of lower generations; 0: all.
            most: So many at most; None: no limit.
        """
        with Session(self._engine) as session:
            query = select(_PlanRow.plan).order_by(_PlanRow.generation.desc()).limit(most)
            if before:
                query = query.where(_PlanRow.generation < before)
            for plan in session.scalars(query.execution_options(yield_per=_PLANS_READ)):
                yield _unpack(plan)

    def add(self, *plans: allocator_pb2.Plan) -> None:
        """Store plans in place of earlier versions of them, and delete plans that are too old.

        Raises:
            DatabaseUnavailableError: the database can't be written; the call may be repeated.
        """
        if not plans:
            return
        with Session(self._engine) as session, session.begin():
            for plan in plans:
                session.merge(_PlanRow(generation=plan.generation, plan=_pack(plan)))
            session.flush()
            newest = max(plan.generation for plan in plans)
            oldest = max(newest - self._plans_kept + 1, self._oldest_that_fits(session))
            session.execute(delete(_PlanRow).where(_PlanRow.generation < oldest))

    def _oldest_that_fits(self, session: Session) -> int:
        """Generation of the oldest plan that may be kept by its bytes; 0: all may."""
        if self._bytes_kept == float("inf"):
            return 0
        so_far = func.sum(func.length(_PlanRow.plan)).over(order_by=_PlanRow.generation.desc())
        sizes = select(_PlanRow.generation, so_far.label("bytes")).subquery()
        too_old = session.scalar(select(func.max(sizes.c.generation)).where(sizes.c.bytes > self._bytes_kept))
        newest = session.scalar(select(func.max(_PlanRow.generation))) or 0
        return 0 if too_old is None else min(too_old + 1, newest)

    def count(self) -> int:
        """Number of stored plans."""
        with Session(self._engine) as session:
            return session.scalar(select(func.count()).select_from(_PlanRow)) or 0


def _pack(plan: allocator_pb2.Plan) -> bytes:
    return zlib.compress(plan.SerializeToString(), _LEVEL)


def _unpack(stored: bytes) -> allocator_pb2.Plan:
    return allocator_pb2.Plan.FromString(zlib.decompress(stored) if stored[:1] == _COMPRESSED else stored)
