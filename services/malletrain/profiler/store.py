"""The part of Profiler's state that outlives the process: runs, interruptions, families and histories of points.

The name of the document of runs and those of all fields are as in version 0.1.0, so that older databases can be read.
What was measured was one document there; now it has a row for each job and each family, so that one change writes one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Engine, String, Text, delete
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from malletrain.model.scaling import RescaleStall
from malletrain.profiler.donors import InterruptionHistory
from malletrain.profiler.family_store import FamilyMember, FamilyStore
from malletrain.profiler.points import CurvePoint, PointHistory
from malletrain.profiler.profile_scheduler import ProfilingState
from malletrain.profiler.runs import ProfileRun, ProfileRunState

_RUNS_DOCUMENT, _POINTS_DOCUMENT = "desk", "kinship"
_HISTORY, _FAMILY, _LEFT = "history", "family", "left"
"""Kinds of rows: points of a job, members of a family, and the one row of the jobs that have left theirs."""


class _Base(DeclarativeBase):
    pass


METADATA = _Base.metadata


class _Document(_Base):
    __tablename__ = "profiler_documents"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    body: Mapped[str] = mapped_column(Text)


class _Points(_Base):
    __tablename__ = "profiler_points"

    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    body: Mapped[str] = mapped_column(Text)


_Key = tuple[str, str]
"""Kind and name of a row of points."""


class ProfilerStore:
    """JSON documents. Each is written only when it differs from what is stored."""

    def __init__(self, engine: Engine) -> None:
        """Read the documents. The table is there: see `malletrain.runtime.database.migrating`.

        Raises:
            DatabaseUnavailableError: the database can't be read.
        """
        self._engine = engine
        with Session(engine) as session:
            self._written = {row.name: row.body for row in session.query(_Document)}
            self._rows: dict[_Key, str] = {(row.kind, row.name): row.body for row in session.query(_Points)}
        # What the rows were made of: what is the same object needs no look.
        self._sources: dict[_Key, object] = {}

    def load_state(self) -> ProfilingState:
        """Runs and interruptions as they were last saved; an empty state before."""
        found = self._read(_RUNS_DOCUMENT)
        runs = {entry["job_id"]: _run(entry) for entry in found.get("runs", ())}
        interruptions = found.get("ledger", {})
        history = InterruptionHistory(interruptions.get("turns", {}), interruptions.get("counts", {}))
        return ProfilingState(runs, history)

    def load_families(self, members_kept: int) -> FamilyStore:
        """Families as they were last saved.

        Args:
            members_kept: Number of newest members of a family whose points are kept from now on.
        """
        earlier = self._read(_POINTS_DOCUMENT)
        found = earlier.get("families", {}) | self._read_rows(_FAMILY)
        families = {name: [_member(entry) for entry in members] for name, members in found.items()}
        left = self._read_rows(_LEFT).get("", earlier.get("left", ()))
        return FamilyStore(members_kept, families, left)

    def load_histories(self) -> dict[str, PointHistory]:
        """Histories of the measured points, by job, as they were last saved."""
        memories = self._read(_POINTS_DOCUMENT).get("memories", {}) | self._read_rows(_HISTORY)
        return {job_id: _history(entry) for job_id, entry in memories.items()}

    def save(self, state: ProfilingState, families: FamilyStore, histories: Mapping[str, PointHistory]) -> None:
        """Write what has changed.

        Raises:
            DatabaseUnavailableError: the database can't be written; the call may be repeated.
        """
        self.save_runs(state)
        self.save_points(families, histories)

    def save_runs(self, state: ProfilingState) -> None:
        """Write the runs if they have changed.

        Raises:
            DatabaseUnavailableError: the database can't be written; the call may be repeated.
        """
        runs = [asdict(run) for run in state.runs.values()]
        ledger = {"turns": state.interruptions.latest, "counts": state.interruptions.counts}
        self._write(_RUNS_DOCUMENT, json.dumps({"runs": runs, "ledger": ledger}))

    def save_points(self, families: FamilyStore, histories: Mapping[str, PointHistory]) -> None:
        """Write what was measured of jobs and families if it has changed.

        Raises:
            DatabaseUnavailableError: the database can't be written; the call may be repeated.
        """
        sources: dict[_Key, Any] = {(_HISTORY, job_id): history for job_id, history in histories.items()}
        sources |= {(_FAMILY, name): members for name, members in families.families.items()}
        bodies = {
            key: json.dumps(_row_document(key, source))
            for key, source in sources.items()
            if self._sources.get(key) is not source
        }
        bodies[_LEFT, ""] = json.dumps(sorted(families.left))
        changed = {key: body for key, body in bodies.items() if self._rows.get(key) != body}
        gone = self._rows.keys() - sources.keys() - {(_LEFT, "")}
        if changed or gone or _POINTS_DOCUMENT in self._written:
            self._write_rows(changed, gone)
        self._sources = sources

    def _write_rows(self, changed: Mapping[_Key, str], gone: Collection[_Key]) -> None:
        with Session(self._engine) as session, session.begin():
            for (kind, name), body in changed.items():
                session.merge(_Points(kind=kind, name=name, body=body))
            for kind, name in gone:
                session.execute(delete(_Points).where(_Points.kind == kind, _Points.name == name))
            session.execute(delete(_Document).where(_Document.name == _POINTS_DOCUMENT))
        self._written.pop(_POINTS_DOCUMENT, None)
        self._rows = {key: body for key, body in self._rows.items() if key not in gone} | dict(changed)

    def _write(self, name: str, body: str) -> None:
        if self._written.get(name) == body:
            return
        with Session(self._engine) as session, session.begin():
            session.merge(_Document(name=name, body=body))
        self._written[name] = body

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def _read_rows(self, kind: str) -> dict[str, Any]:
        return {name: json.loads(body) for (of_kind, name), body in self._rows.items() if of_kind == kind}

    def _read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._written.get(name, "{}"))
        return found


def _row_document(key: _Key, source: Any) -> Any:
    return asdict(source) if key[0] == _HISTORY else [_member_document(member) for member in source]


def _run(entry: dict[str, Any]) -> ProfileRun:
    lists = {name: tuple(entry[name]) for name in ("visited", "donors")}
    return ProfileRun(**{**entry, **lists, "state": ProfileRunState(entry["state"])})


def _history(entry: Mapping[str, Mapping[str, float]]) -> PointHistory:
    # JSON has strings as keys only.
    return PointHistory(**{name: {int(nodes): value for nodes, value in part.items()} for name, part in entry.items()})


def _member(entry: dict[str, Any]) -> FamilyMember:
    points = (
        CurvePoint(point["nodes"], point["rate"], point["steps"], point["error"], point["unix_seconds"])
        for point in entry["knots"]
    )
    return FamilyMember(entry["job_id"], tuple(points), tuple(RescaleStall(**stall) for stall in entry["rescales"]))


def _member_document(member: FamilyMember) -> dict[str, Any]:
    points = [
        {
            "nodes": point.nodes,
            "rate": point.rate,
            "steps": point.steps,
            "error": point.relative_error,
            "unix_seconds": point.unix_seconds,
            # Version 0.1.0 expects it; a member's own points are never those of others.
            "shared": False,
        }
        for point in member.points
    ]
    return {"job_id": member.job_id, "knots": points, "rescales": [asdict(stall) for stall in member.rescales]}
