"""What is stored can be loaded again, also as version 0.1.0 wrote it."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import StaticPool

from malletrain.model.scaling import RescaleStall
from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobDeclaration
from malletrain.profiler.machine.donors import InterruptionHistory
from malletrain.profiler.machine.family_store import FamilyMember
from malletrain.profiler.machine.points import CurvePoint, CurveSource, PointHistory
from malletrain.profiler.machine.profile_scheduler import ProfilingState
from malletrain.profiler.machine.runs import ProfileRun, ProfileRunState
from malletrain.profiler.settings import ProfilerSettings
from malletrain.profiler.store import METADATA, ProfilerStore
from malletrain.runtime.database.migrating import open_database
from tests.support.postgresql import Locate

RUN: dict[str, Any] = {
    "job_id": "j000002",
    "state": "MEASURING",
    "reason": "measures at 4",
    "asked": True,
    "not_before": 0.0,
    "began": 1795313900.5,
    "top": 8,
    "nodes": 4,
    "arrived": None,
    "base_steps": 12,
    "visited": [8],
    "donor": "",
    "donor_nodes": 3,
    "donors": ["j000001"],
    "growths": 1,
    "shrinks": 0,
    "node_seconds": 81.5,
    "stalled_node_seconds": 16.25,
    "seconds": 12.0,
    "seen": 1795313912.5,
    "seen_nodes": 8,
    "seen_steady": False,
}
DESK = {"runs": [RUN], "ledger": {"turns": {"j000001": 1}, "counts": {"j000001": 1}}}
KINSHIP: dict[str, Any] = {
    "memories": {
        "j000002": {"rates": {"8": 700.0}, "errors": {"8": 0.02}, "doubts": {"1": 0.3}, "times": {"8": 1795313912.0}}
    },
    "families": {
        "cnn": [
            {
                "job_id": "j000000",
                "knots": [
                    {
                        "nodes": 4,
                        "rate": 390.0,
                        "steps": 96,
                        "error": 0.01,
                        "unix_seconds": 1795313800.0,
                        "shared": False,
                    }
                ],
                "rescales": [{"from_nodes": 4, "to_nodes": 8, "seconds": 2.5}],
            }
        ]
    },
    "left": ["j000003"],
}


def database_of_0_1_0() -> Engine:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE profiler_documents (name VARCHAR(32) NOT NULL, body TEXT NOT NULL, PRIMARY KEY (name))")
        )
        for name, body in (("desk", DESK), ("kinship", KINSHIP)):
            row = {"name": name, "body": json.dumps(body)}
            connection.execute(text("INSERT INTO profiler_documents VALUES (:name, :body)"), row)
    METADATA.create_all(engine)  # as the revisions do
    return engine


def stored(engine: Engine) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """The documents by name, and the rows by kind and name."""
    with engine.connect() as connection:
        documents = connection.execute(text("SELECT name, body FROM profiler_documents")).all()
        rows = connection.execute(text("SELECT kind, name, body FROM profiler_points")).all()
    return (
        {name: json.loads(body) for name, body in documents},
        {(kind, name): json.loads(body) for kind, name, body in rows},
    )


def test_rows_of_version_0_1_0_are_loaded() -> None:
    store = ProfilerStore(database_of_0_1_0())
    state, families = store.load_state(), store.load_families(8)
    run = state.runs["j000002"]
    assert run == state.active
    assert (run.state, run.visited, run.donors) == (ProfileRunState.MEASURING, (8,), ("j000001",))
    assert (run.node_seconds, run.seen, run.asked) == (81.5, 1795313912.5, True)
    assert state.interruptions == InterruptionHistory({"j000001": 1}, {"j000001": 1})
    assert store.load_histories() == {"j000002": PointHistory({8: 700.0}, {8: 0.02}, {1: 0.3}, {8: 1795313912.0})}
    point = CurvePoint(4, 390.0, 96, 0.01, 1795313800.0)
    assert families.families == {"cnn": (FamilyMember("j000000", (point,), (RescaleStall(4, 8, 2.5),)),)}
    assert families.left == {"j000003"}


def test_what_was_stored_by_version_0_1_0_makes_curves() -> None:
    store = ProfilerStore(database_of_0_1_0())
    curves = CurveEstimator(ProfilerSettings().options(), store.load_families(8), store.load_histories())
    curves.put_job(JobDeclaration(job_id="j000009", min_nodes=1, max_nodes=8, family="cnn"))
    (profile,) = curves.refresh(1795313800.0)
    assert {point.nodes: point.source for point in profile.points}[4] is CurveSource.FAMILY
    assert (profile.scale_up.seconds, profile.scale_up.source) == (2.5, CurveSource.FAMILY)


def test_the_document_of_version_0_1_0_becomes_a_row_for_each_job_and_family() -> None:
    engine = database_of_0_1_0()
    store = ProfilerStore(engine)
    state, families, histories = store.load_state(), store.load_families(8), store.load_histories()
    store.write(store.changes(state, families, histories))
    rows = {
        ("history", "j000002"): KINSHIP["memories"]["j000002"],
        ("family", "cnn"): KINSHIP["families"]["cnn"],
        ("left", ""): ["j000003"],
    }
    assert stored(engine) == ({"desk": DESK}, rows)
    again = ProfilerStore(engine)
    assert (again.load_state(), again.load_histories()) == (state, histories)
    assert (again.load_families(8).families, again.load_families(8).left) == (families.families, families.left)
    again.write(again.changes(state, families, histories))
    assert stored(engine) == ({"desk": DESK}, rows)


def test_only_what_differs_is_written(locate: Locate) -> None:
    engine = open_database(locate("profiler"))
    store = ProfilerStore(engine)
    state = ProfilingState({"a": ProfileRun("a", ProfileRunState.QUEUED, "waits")})
    families = store.load_families(8)
    before = {"a": PointHistory({1: 2.0}), "b": PointHistory(), "c": PointHistory()}
    store.write(store.changes(state, families, before))
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM profiler_documents"))
        connection.execute(text("DELETE FROM profiler_points"))
    changed = PointHistory({4: 7.0})
    store.write(store.changes(state, families, {"a": PointHistory({1: 2.0}), "b": changed}))
    documents, rows = stored(engine)
    assert (documents, list(rows)) == ({}, [("history", "b")]), "an equal one is not written"
    store.write(store.changes(state, families, {"a": before["a"], "b": changed, "c": PointHistory()}))
    assert set(stored(engine)[1]) == {("history", "b"), ("history", "c")}, "c had been deleted, and is new"


def test_what_is_saved_is_loaded_again(locate: Locate) -> None:
    written = ProfilerStore(database_of_0_1_0())
    state, families, histories = written.load_state(), written.load_families(8), written.load_histories()
    engine = open_database(locate("profiler"))
    store = ProfilerStore(engine)
    store.write(store.changes(state, families, histories))
    documents, rows = stored(engine)
    assert (documents, rows["family", "cnn"]) == ({"desk": DESK}, KINSHIP["families"]["cnn"]), "in the same form"
    again = ProfilerStore(engine)
    assert (again.load_state(), again.load_histories()) == (state, histories)
    assert again.load_families(8).families == families.families


def test_an_empty_database_is_an_empty_state(locate: Locate) -> None:
    store = ProfilerStore(open_database(locate("profiler")))
    assert store.load_state() == ProfilingState()
    assert store.load_families(8).families == {}
    assert store.load_histories() == {}
