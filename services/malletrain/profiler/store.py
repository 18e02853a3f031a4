"""The part of Profiler's state that outlives the process: runs, interruptions, families and histories of points.

The names of the two documents and of their fields are those of version 0.1.0, so that older databases can be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Engine, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from malletrain.model.scaling import RescaleStall
from malletrain.profiler.donors import InterruptionHistory
from malletrain.profiler.family_store import FamilyMember, FamilyStore
from malletrain.profiler.points import CurvePoint, PointHistory
from malletrain.profiler.profile_scheduler import ProfilingState
from malletrain.profiler.runs import ProfileRun, ProfileRunState

_RUNS_DOCUMENT, _POINTS_DOCUMENT = "desk", "kinship"


class _Base(DeclarativeBase):
    pass


METADATA = _Base.metadata


class _Document(_Base):
    __tablename__ = "profiler_documents"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    body: Mapped[str] = mapped_column(Text)


class ProfilerStore:
    """Two JSON documents. Each is written only when it differs from what is stored."""

    def __init__(self, engine: Engine) -> None:
        """Read the documents. The table is there: see `malletrain.runtime.database.migrating`.

        Raises:
            DatabaseUnavailableError: the database can't be read.
        """
        self._engine = engine
        with Session(engine) as session:
            self._written = {row.name: row.body for row in session.query(_Document)}

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
        found = self._read(_POINTS_DOCUMENT)
        families = {name: [_member(entry) for entry in members] for name, members in found.get("families", {}).items()}
        return FamilyStore(members_kept, families, found.get("left", ()))

    def load_histories(self) -> dict[str, PointHistory]:
        """Histories of the measured points, by job, as they were last saved."""
        memories = self._read(_POINTS_DOCUMENT).get("memories", {})
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
        members = {name: [_member_document(member) for member in kept] for name, kept in families.families.items()}
        memories = {job_id: asdict(history) for job_id, history in histories.items()}
        content = {"memories": memories, "families": members, "left": sorted(families.left)}
        self._write(_POINTS_DOCUMENT, json.dumps(content))

    def _write(self, name: str, body: str) -> None:
        if self._written.get(name) == body:
            return
        with Session(self._engine) as session, session.begin():
            session.merge(_Document(name=name, body=body))
        self._written[name] = body

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def _read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._written.get(name, "{}"))
        return found


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
