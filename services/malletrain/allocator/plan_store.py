"""The plans in the Allocator's database. Generations continue from there after a restart."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import BigInteger, Engine, LargeBinary, delete, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from malletrain.v1 import allocator_pb2

_PLANS_READ = 20
"""Plans of a thousand nodes have some 50 kB each."""


class _Base(DeclarativeBase):
    pass


METADATA = _Base.metadata


class _PlanRow(_Base):
    __tablename__ = "plans"

    generation: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    plan: Mapped[bytes] = mapped_column(LargeBinary)


class PlanStore:
    """Stores the newest plans."""

    def __init__(self, engine: Engine, plans_kept: int) -> None:
        self._engine = engine
        self._plans_kept = plans_kept

    def newest(self) -> allocator_pb2.Plan | None:
        """The plan of the highest generation; None before the first."""
        with Session(self._engine) as session:
            row = session.scalars(select(_PlanRow).order_by(_PlanRow.generation.desc()).limit(1)).first()
            return allocator_pb2.Plan.FromString(row.plan) if row else None

    def get(self, generation: int) -> allocator_pb2.Plan | None:
        """The plan of a generation; None where it is not kept."""
        with Session(self._engine) as session:
            row = session.get(_PlanRow, generation)
            return allocator_pb2.Plan.FromString(row.plan) if row else None

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
                yield allocator_pb2.Plan.FromString(plan)

    def add(self, plan: allocator_pb2.Plan) -> None:
        """Store a plan in place of an earlier version of it, and delete plans that are too old."""
        with Session(self._engine) as session, session.begin():
            session.merge(_PlanRow(generation=plan.generation, plan=plan.SerializeToString()))
            session.execute(delete(_PlanRow).where(_PlanRow.generation <= plan.generation - self._plans_kept))

    def count(self) -> int:
        """Number of stored plans."""
        with Session(self._engine) as session:
            return session.scalar(select(func.count()).select_from(_PlanRow)) or 0
