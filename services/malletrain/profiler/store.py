"""The part of Profiler's state that outlives the process: runs, interruptions, families and histories of points.

The name of the document of runs and those of all fields are as in version 0.1.0, so that older databases can be read.
What was measured was one document there; now it has a row for each job and each family, so that one change writes one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Column, Engine, MetaData, String, Table, Text, bindparam, delete, insert, select

from malletrain.model.scaling import RescaleStall
from malletrain.profiler.machine.donors import InterruptionHistory
from malletrain.profiler.machine.family_store import FamilyMember, FamilyStore
from malletrain.profiler.machine.points import CurvePoint, PointHistory
from malletrain.profiler.machine.profile_scheduler import ProfilingState
from malletrain.profiler.machine.runs import ProfileRun
from malletrain.runtime.kernel.documents import from_document, to_document

_RUNS_DOCUMENT, _POINTS_DOCUMENT = "desk", "kinship"
_HISTORY, _FAMILY, _LEFT = "history", "family", "left"
"""Kinds of rows: points of a job, members of a family, and the one row of the jobs that have left theirs."""


METADATA = MetaData()

_DOCUMENTS = Table(
    "profiler_documents",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("body", Text, nullable=False),
)
_POINTS = Table(
    "profiler_points",
    METADATA,
    Column("kind", String(16), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("body", Text, nullable=False),
)


_Key = tuple[str, str]
"""Kind and name of a row of points."""


@dataclass(frozen=True)
class RowChanges:
    """What is to be stored.

    Attributes:
        documents: Bodies of documents by name.
        removed_documents: Names of documents.
        rows: Bodies of rows of points.
        removed_rows: Rows of points that go.
    """

    documents: Mapping[str, str] = field(default_factory=dict)
    removed_documents: frozenset[str] = frozenset()
    rows: Mapping[_Key, str] = field(default_factory=dict)
    removed_rows: frozenset[_Key] = frozenset()

    def __bool__(self) -> bool:
        """Whether there is anything to store."""
        return any((self.documents, self.removed_documents, self.rows, self.removed_rows))

    def followed_by(self, later: RowChanges) -> RowChanges:
        """Merge this batch and a later one, so that few wait while the database is away."""
        return RowChanges(
            {**self.documents, **later.documents},
            self.removed_documents | later.removed_documents,
            {key: body for key, body in self.rows.items() if key not in later.removed_rows} | dict(later.rows),
            (self.removed_rows - later.rows.keys()) | later.removed_rows,
        )


class ProfilerStore:
    """JSON documents. Each is written only when it differs from what was written before."""

    def __init__(self, engine: Engine) -> None:
        """Read the documents. The table is there: see `malletrain.runtime.database.migrating`.

        Raises:
            DatabaseUnavailableError: the database can't be read.
        """
        self._engine = engine
        with engine.connect() as connection:
            self._documents: dict[str, str] = {row.name: row.body for row in connection.execute(select(_DOCUMENTS))}
            rows = connection.execute(select(_POINTS))
            self._rows: dict[_Key, str] = {(kind, name): body for kind, name, body in rows}
        # What the rows were made of: what is the same object needs no look.
        self._sources: dict[_Key, object] = {}

    def load_state(self) -> ProfilingState:
        """Runs and interruptions as they were last saved; an empty state before."""
        document = self._read(_RUNS_DOCUMENT)
        runs = {entry["job_id"]: from_document(ProfileRun, entry) for entry in document.get("runs", ())}
        interruptions = document.get("ledger", {})
        history = InterruptionHistory(interruptions.get("turns", {}), interruptions.get("counts", {}))
        return ProfilingState(runs, history)

    def load_families(self, members_kept: int) -> FamilyStore:
        """Families as they were last saved.

        Args:
            members_kept: Number of newest members of a family whose points are kept from now on.
        """
        earlier = self._read(_POINTS_DOCUMENT)
        stored = earlier.get("families", {}) | self._read_rows(_FAMILY)
        families = {name: tuple(_member(entry) for entry in members) for name, members in stored.items()}
        left = set(self._read_rows(_LEFT).get("", earlier.get("left", ())))
        return FamilyStore(members_kept, families, left)

    def load_histories(self) -> dict[str, PointHistory]:
        """Histories of the measured points, by job, as they were last saved."""
        memories = self._read(_POINTS_DOCUMENT).get("memories", {}) | self._read_rows(_HISTORY)
        return {job_id: _history(entry) for job_id, entry in memories.items()}

    def changes(
        self, state: ProfilingState, families: FamilyStore | None, histories: Mapping[str, PointHistory]
    ) -> RowChanges:
        """What differs from what was stored, or was returned here before: the caller stores it. Writes nothing.

        Args:
            state: Runs and interruptions.
            families: What families have learned; None: nothing is to be looked at but the runs.
            histories: Points that were measured, by job; looked at with families only.
        """
        runs = [to_document(run) for run in state.runs.values()]
        ledger = {"turns": state.interruptions.latest, "counts": state.interruptions.counts}
        body = json.dumps({"runs": runs, "ledger": ledger})
        documents = {} if self._documents.get(_RUNS_DOCUMENT) == body else {_RUNS_DOCUMENT: body}
        self._documents |= documents
        if families is None:
            return RowChanges(documents)
        changed, gone = self._changed_points(families, histories)
        without = frozenset({_POINTS_DOCUMENT} & self._documents.keys())
        self._documents.pop(_POINTS_DOCUMENT, None)
        return RowChanges(documents, without, changed, gone)

    def _changed_points(
        self, families: FamilyStore, histories: Mapping[str, PointHistory]
    ) -> tuple[dict[_Key, str], frozenset[_Key]]:
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
        self._rows = {key: body for key, body in self._rows.items() if key not in gone} | changed
        self._sources = sources
        return changed, frozenset(gone)

    def write(self, changes: RowChanges) -> None:
        """Write changes in one transaction; may be called in any thread, one call at a time.

        Raises:
            DatabaseUnavailableError: the database can't be written; the call may be repeated.
        """
        gone = [{"of": name} for name in changes.documents.keys() | changes.removed_documents]
        documents = [{"name": name, "body": body} for name, body in changes.documents.items()]
        gone_points = [{"of_kind": kind, "of": name} for kind, name in changes.rows.keys() | changes.removed_rows]
        points = [{"kind": kind, "name": name, "body": body} for (kind, name), body in changes.rows.items()]
        # A changed row is deleted and inserted again: understood by every database, unlike any form of upsert.
        steps = (
            (delete(_DOCUMENTS).where(_DOCUMENTS.c.name == bindparam("of")), gone),
            (insert(_DOCUMENTS), documents),
            (
                delete(_POINTS).where(_POINTS.c.kind == bindparam("of_kind"), _POINTS.c.name == bindparam("of")),
                gone_points,
            ),
            (insert(_POINTS), points),
        )
        with self._engine.begin() as connection:
            for statement, rows in steps:
                if rows:
                    connection.execute(statement, rows)

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def _read_rows(self, kind: str) -> dict[str, Any]:
        return {name: json.loads(body) for (of_kind, name), body in self._rows.items() if of_kind == kind}

    def _read(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._documents.get(name, "{}"))
        return document


def _row_document(key: _Key, source: Any) -> Any:
    return asdict(source) if key[0] == _HISTORY else [_member_document(member) for member in source]


def _history(entry: Mapping[str, Mapping[str, float]]) -> PointHistory:
    # Scales are strings here, as keys of JSON. `to_document` would write pairs, which earlier versions can't read.
    return PointHistory(**{name: {int(nodes): value for nodes, value in part.items()} for name, part in entry.items()})


def _member(entry: dict[str, Any]) -> FamilyMember:
    points = (
        CurvePoint(point["nodes"], point["rate"], point["steps"], point["error"], point["unix_seconds"])
        for point in entry["knots"]
    )
    rescales = (from_document(RescaleStall, stall) for stall in entry["rescales"])
    return FamilyMember(entry["job_id"], tuple(points), tuple(rescales))


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
    return {"job_id": member.job_id, "knots": points, "rescales": to_document(member.rescales)}
