"""What of the Profiler outlives the process: runs, interruptions, families."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Engine, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from malletrain.profiler.curve import PairStall
from malletrain.profiler.desk import Desk
from malletrain.profiler.donors import Ledger
from malletrain.profiler.evidence import Memory
from malletrain.profiler.families import Member
from malletrain.profiler.kinship import Kinship
from malletrain.profiler.knots import Knot
from malletrain.profiler.runs import Run, RunState

_DESK, _KINSHIP = "desk", "kinship"


class _Base(DeclarativeBase):
    pass


class _Document(_Base):
    __tablename__ = "profiler_documents"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    body: Mapped[str] = mapped_column(Text)


class ProfilerStore:
    """Two documents; each is written only when it differs from what is there."""

    def __init__(self, engine: Engine) -> None:
        """Open the table, making it where needed.

        Raises:
            sqlalchemy.exc.OperationalError: the database can't be opened.
        """
        _Base.metadata.create_all(engine)
        self._engine = engine
        with Session(engine) as session:
            self._written = {row.name: row.body for row in session.query(_Document)}

    def load_desk(self) -> Desk:
        """The desk as it was last saved; an empty one before."""
        found = self._read(_DESK)
        runs = {entry["job_id"]: _run(entry) for entry in found.get("runs", ())}
        ledger = found.get("ledger", {})
        return Desk(runs, Ledger(ledger.get("turns", {}), ledger.get("counts", {})))

    def load_kinship(self, members_kept: int) -> Kinship:
        """What was learned, as it was last saved."""
        found = self._read(_KINSHIP)
        memories = {job_id: _memory(entry) for job_id, entry in found.get("memories", {}).items()}
        families = {name: [_member(entry) for entry in members] for name, members in found.get("families", {}).items()}
        return Kinship(members_kept, memories, families, found.get("left", ()))

    def save(self, desk: Desk, kinship: Kinship) -> None:
        """Write what has changed, in one transaction.

        Raises:
            sqlalchemy.exc.OperationalError: the database can't be written; nothing of this call is stored.
        """
        documents = {
            _DESK: json.dumps({"runs": [asdict(run) for run in desk.runs.values()], "ledger": asdict(desk.ledger)}),
            _KINSHIP: json.dumps(
                {
                    "memories": {job_id: asdict(memory) for job_id, memory in kinship.memories.items()},
                    "families": {name: [asdict(m) for m in members] for name, members in kinship.families.items()},
                    "left": sorted(kinship.left),
                }
            ),
        }
        changed = {name: body for name, body in documents.items() if self._written.get(name) != body}
        if not changed:
            return
        with Session(self._engine) as session, session.begin():
            for name, body in changed.items():
                session.merge(_Document(name=name, body=body))
        self._written.update(changed)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def _read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._written.get(name, "{}"))
        return found


def _run(entry: dict[str, Any]) -> Run:
    lists = {name: tuple(entry[name]) for name in ("visited", "donors")}
    return Run(**{**entry, **lists, "state": RunState(entry["state"])})


def _memory(entry: Mapping[str, Mapping[str, float]]) -> Memory:
    # JSON knows no numbers as keys.
    return Memory(**{name: {int(nodes): value for nodes, value in part.items()} for name, part in entry.items()})


def _member(entry: dict[str, Any]) -> Member:
    knots = tuple(Knot(**knot) for knot in entry["knots"])
    return Member(entry["job_id"], knots, tuple(PairStall(**stall) for stall in entry["rescales"]))
