"""The journal of auto-tuning in the Allocator's database: what each run led to, why, and what is remembered since."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from sqlalchemy import BigInteger, Column, Engine, Float, Integer, String, Table, Text, delete, func, insert, select

from malletrain.allocator.auto_tuning.documents import from_json, to_json
from malletrain.allocator.auto_tuning.machine import Decided, TuningEvent, TuningState
from malletrain.allocator.history.plan_store import METADATA

ROWS_KEPT = 1000
"""Six weeks of runs every hour."""

_RUNS = Table(
    "tuning_runs",
    METADATA,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("unix_seconds", Float, nullable=False),
    Column("event", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("state", Text, nullable=False),
    sqlite_autoincrement=True,
)


@dataclass(frozen=True, slots=True)
class TuningRun:
    """One stored run of auto-tuning.

    Attributes:
        unix_seconds: When it ended, in seconds since the epoch.
        event: What it led to.
        reason: Why, for people.
    """

    unix_seconds: float
    event: TuningEvent
    reason: str


class TuningStore:
    """Stores the newest runs, and what is remembered after the newest one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, unix_seconds: float, decided: Decided) -> None:
        """Store a run, and delete those that are too old.

        Raises:
            DatabaseUnavailableError: the database can't be written.
        """
        row = {
            "unix_seconds": unix_seconds,
            "event": decided.event.value,
            "reason": decided.reason,
            "state": to_json(decided.state),
        }
        with self._engine.begin() as connection:
            connection.execute(insert(_RUNS), row)
            newest = connection.scalar(select(func.max(_RUNS.c.sequence))) or 0
            connection.execute(delete(_RUNS).where(_RUNS.c.sequence <= newest - ROWS_KEPT))

    def state(self) -> TuningState | None:
        """What is remembered; None: nothing, or what no version before this one can have written."""
        with self._engine.connect() as connection:
            text = connection.scalar(select(_RUNS.c.state).order_by(_RUNS.c.sequence.desc()).limit(1))
        if text is None:
            return None
        try:
            return from_json(TuningState, text)
        except ValueError as error:
            structlog.get_logger(__name__).error("what auto-tuning remembered can't be read", error=str(error))
            return None

    def newest(self, count: int) -> list[TuningRun]:
        """The newest runs, the newest first."""
        query = (
            select(_RUNS.c.unix_seconds, _RUNS.c.event, _RUNS.c.reason).order_by(_RUNS.c.sequence.desc()).limit(count)
        )
        with self._engine.connect() as connection:
            return [TuningRun(row[0], TuningEvent(row[1]), row[2]) for row in connection.execute(query)]
