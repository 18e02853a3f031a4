"""Usage is stored with the change that it belongs to: it is the journal's after a kill, a repetition and a removal."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from malletrain.fleet.spec import FleetSpec
from malletrain.job_manager.machine.jobs import job_id
from malletrain.job_manager.machine.state import JobEvent, ManagerPolicy, ManagerState
from malletrain.job_manager.machine.state_machine import TransactionResult
from malletrain.job_manager.machine.stimuli import Cancelled, Completion, IdleSetSeen, Progressed, Stimulus
from malletrain.job_manager.machine.usage import UsageAmounts, day_of
from malletrain.job_manager.storage.change import Change
from malletrain.job_manager.storage.store import JobStore
from malletrain.job_manager.storage.usage_query import MAX_SUMS, StoredUsage, UsageKey, UsageQuery
from malletrain.job_manager.storage.usage_store import UsageStore
from malletrain.job_manager.usage_report import UsageEntry, entries_of
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.engine import open_engine
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import LimitExceededError
from tests.job_manager.harness import MachineHarness
from tests.job_manager.journal_usage import JournalRow, JournalUsage, journal_usage
from tests.support.builders import job_spec
from tests.support.postgresql import Locate
from tests.support.waiting import wait_until

ALL = frozenset(UsageKey)
EVER = 10**6
EARLIER = {
    "0.1.0": Path("tests/system/state_0_1_0/job_manager.sql"),
    "before revisions": Path("tests/runtime/database/before_revisions/job_manager.sql"),
}
WRITER = """
import sys
from pathlib import Path
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import open_database
from malletrain.job_manager.storage.store import JobStore
from tests.job_manager.test_usage_store import saving

url, state_dir, password_file = sys.argv[1:]
address = DatabaseAddress("job_manager", Path(state_dir), url, Path(password_file) if password_file else None)
machine = saving(JobStore(open_database(address)))
machine.plan(j1="n1 n2")
machine.confirm()
while True:
    machine.wait(977.0)
    machine.leave("n2")
    machine.wait(11.0)
    machine.released("n2")
    machine.confirm()
    machine.join("n2")
    machine.plan(j1="n1 n2")
    machine.confirm()
    print(machine.state.generation, flush=True)
"""


@pytest.fixture
def database(locate: Locate) -> DatabaseAddress:
    return locate("job_manager")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def change_of(result: TransactionResult) -> Change:
    usage = {(row.job_number, row.day): row for row in result.usage}
    return Change(result.changed, result.events, usage=usage)


def saved_by(store: JobStore) -> Callable[[Stimulus, ManagerState, TransactionResult], None]:
    """Has each step of a machine stored."""

    def save(stimulus: Stimulus, before: ManagerState, result: TransactionResult) -> None:
        del stimulus, before
        if change := change_of(result):
            store.save(change)

    return save


def saving(store: JobStore) -> MachineHarness:
    """A machine whose steps are stored, with two jobs of ada's and a fleet of bob's."""
    machine = MachineHarness(ManagerPolicy(meters_usage=True), now=at("2026-07-30T18:00:00"), observe=saved_by(store))
    machine(IdleSetSeen(frozenset(("n1", "n2", "n3", "n4")), {"n1": 4, "n2": 4}))
    machine.submit(job_spec(project="bio"), job_spec(), owner="ada")
    fleet = FleetSpec("fleet", max_nodes=2, gpus_per_node=2, samples_per_epoch=10.0)
    machine.submit(*(job_spec(1, 4, fleet=fleet, project="chem") for _ in range(2)), owner="bob")
    return machine


def story(store: JobStore) -> MachineHarness:
    """From July to September: a preemption, a fleet whose members share a node, an end, and a job that waits."""
    machine = saving(store)
    machine.plan(j1="n1 n2", j2="n3", j3="n4#0", j4="n4#1")
    for number in range(1, 5):
        machine.confirm(job_id(number))
    machine.wait(3600.0)
    machine(Progressed("j000001", 500, stalled=False))
    machine.leave("n2")
    machine.wait(60.0)
    machine.released("n2")
    machine.confirm()
    machine.wait(36 * 3600.0)
    machine.plan(j1="n1", j2="n3", j3="n4#0 n4#1", j4="")
    machine(Cancelled("j000004", "bob"))
    machine.end("j000004")
    machine.confirm("j000003")
    machine.wait(31 * 86_400.0)
    machine(Progressed("j000001", 90_000, stalled=False))
    machine(Cancelled("j000002", "ada"))
    machine.end("j000002")
    machine.wait(10.0)
    machine.end("j000001", completion=Completion(90_100))
    machine.wait(5000.0)
    return machine


def rows_of(address: DatabaseAddress) -> list[JournalRow]:
    events = [row.event for row in JobStore(open_engine(address)).events(0, 10**6, None)]
    return [JournalRow(event.unix_seconds, event.job_id, code_of(event), event.nodes) for event in events]


def code_of(event: JobEvent) -> str:
    """Version 0.1.0 has written sentences only."""
    return "PREEMPTED" if event.reason.startswith("preempted:") else event.reason_code.value


def asked(
    address: DatabaseAddress, keys: frozenset[UsageKey], now: float, since: str = "", until: str = "", owner: str = ""
) -> tuple[list[UsageEntry], StoredUsage]:
    """What JobManager would answer from what is stored."""
    engine = open_engine(address)
    query = UsageQuery(keys, day_of(at(since)) if since else 0, day_of(at(until)) if until else EVER, owner)
    stored = UsageStore(engine).read(query)
    samples = {job.number: job.samples for job in JobStore(engine).load().jobs.values()}
    engine.dispose()
    return entries_of(stored, query, now, samples, ()), stored


def total(entries: list[UsageEntry]) -> UsageAmounts:
    return sum((entry.amounts for entry in entries), UsageAmounts())


def check_journal(address: DatabaseAddress, now: float, within: float = 1e-3) -> JournalUsage:
    """What is stored of usage is what is stored of the journal."""
    expected = journal_usage(rows_of(address), now)
    by_job = {entry.job_id: entry.amounts for entry in asked(address, frozenset({UsageKey.JOB}), now)[0]}
    for name, seconds in expected.node_seconds.items():
        found = by_job.get(name, UsageAmounts())
        assert found.node_seconds == pytest.approx(seconds, abs=within)
        assert found.preemptions == expected.preemptions[name]
    whole = total(asked(address, frozenset(), now)[0]).node_seconds
    assert whole == pytest.approx(expected.total, abs=within)
    return expected


def test_stored_usage_is_that_of_the_journal(database: DatabaseAddress) -> None:
    machine = story(JobStore(open_database(database)))
    assert check_journal(database, machine.now).total > 4 * 86_400.0
    whole = {job.id: machine.used(job.id) for job in (*machine.state.jobs.values(), *machine.ended.values())}
    by_job = {entry.job_id: entry.amounts for entry in asked(database, frozenset({UsageKey.JOB}), machine.now)[0]}
    assert by_job == {name: amounts for name, amounts in whole.items() if amounts != UsageAmounts()}
    assert by_job["j000001"].samples == 90_100
    assert JobStore(open_engine(database)).load().usage == machine.state.usage


def test_usage_is_added_up_by_what_is_asked_for(database: DatabaseAddress) -> None:
    machine = story(JobStore(open_database(database)))
    entries, _ = asked(database, ALL - {UsageKey.JOB}, machine.now)
    assert [(entry.month, entry.owner, entry.project) for entry in entries] == [
        ("2026-07", "ada", ""),
        ("2026-07", "ada", "bio"),
        ("2026-07", "bob", "chem"),
        ("2026-08", "ada", ""),
        ("2026-08", "ada", "bio"),
        ("2026-08", "bob", "chem"),
        ("2026-09", "ada", ""),
        ("2026-09", "ada", "bio"),
        ("2026-09", "bob", "chem"),
    ]
    august, _ = asked(database, frozenset({UsageKey.OWNER}), machine.now, "2026-08-01", "2026-08-02")
    assert {entry.owner: round(entry.amounts.node_seconds) for entry in august} == {
        "ada": 2 * 86_400,
        "bob": 86_400,
    }
    hers, _ = asked(database, ALL, machine.now, owner="ada")
    assert {entry.owner for entry in hers} == {"ada"}
    assert total(hers) == total([entry for entry in asked(database, ALL, machine.now)[0] if entry.owner == "ada"])


def test_a_row_that_is_stored_again_counts_once(database: DatabaseAddress) -> None:
    store = JobStore(open_database(database))
    machine = story(store)
    before = asked(database, ALL, machine.now)
    store.save(Change(usage=machine.usage))
    assert asked(database, ALL, machine.now) == before


def test_usage_stays_when_jobs_are_removed(database: DatabaseAddress) -> None:
    store = JobStore(open_database(database))
    machine = story(store)
    keys = ALL - {UsageKey.JOB}
    before, _ = asked(database, keys, machine.now)
    for number in (1, 2, 3, 4):  # 3 trains on, and so stays
        store.save(Change(removed_jobs=[number]))
        store.save(Change(removed_jobs=[number]))
    after, stored = asked(database, keys, machine.now)
    assert [replace(entry, amounts=UsageAmounts()) for entry in after] == [
        replace(entry, amounts=UsageAmounts()) for entry in before
    ]
    for found, expected in zip(after, before, strict=True):
        assert found.amounts.node_seconds == pytest.approx(expected.amounts.node_seconds)
        assert found.amounts.samples == expected.amounts.samples
    assert stored.cut == ()
    by_job, _ = asked(database, frozenset({UsageKey.JOB}), machine.now)
    assert [entry.job_id for entry in by_job] == ["", "j000003"]
    assert total(by_job).node_seconds == pytest.approx(total(before).node_seconds)


def test_a_part_of_a_month_says_what_is_known_for_the_whole_only(database: DatabaseAddress) -> None:
    store = JobStore(open_database(database))
    machine = story(store)
    store.save(Change(removed_jobs=[1, 2]))
    _, whole = asked(database, ALL, machine.now, "2026-07-01", "2026-09-01")
    assert whole.cut == ()
    entries, stored = asked(database, ALL, machine.now, "2026-07-31", "2026-08-10")
    assert stored.cut == ("2026-07", "2026-08")
    assert {entry.owner for entry in entries} == {"bob"}
    assert asked(database, ALL, machine.now, "2026-07-31", "2026-08-10", "bob")[1].cut == ()


def test_the_last_samples_of_a_job_may_come_after_its_end(database: DatabaseAddress) -> None:
    store = JobStore(open_database(database))
    machine = story(store)
    late = replace(machine.job("j000001"), samples=90_500)
    never_trained = replace(machine.job("j000002"), number=9, samples=7)
    for _ in range(2):
        store.save(Change([late, never_trained]))
    by_job = {entry.job_id: entry.amounts for entry in asked(database, frozenset({UsageKey.JOB}), machine.now)[0]}
    assert (by_job["j000001"].samples, by_job["j000009"].samples) == (90_500, 7)


def test_too_many_rows_are_refused(database: DatabaseAddress) -> None:
    engine = open_database(database)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO usage (job_number, day, month, owner, project, node_seconds, gpu_seconds, "
                "lost_node_seconds, samples, preemptions) WITH RECURSIVE numbers(n) AS "
                f"(SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n <= {MAX_SUMS}) "
                "SELECT n, 20000, 24297, 'ada', '', 1.0, 0, 0, 0, 0 FROM numbers"
            )
        )
    with pytest.raises(LimitExceededError):
        asked(database, frozenset({UsageKey.JOB}), 0.0)
    assert total(asked(database, frozenset({UsageKey.OWNER}), 0.0)[0]).node_seconds == MAX_SUMS + 1


def test_rows_of_jobs_that_go_on_count_among_those_that_are_too_many(database: DatabaseAddress) -> None:
    engine = open_database(database)
    columns = "job_number, day, month, owner, project, " + ", ".join(field.name for field in fields(UsageAmounts))
    numbers = f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n <= {MAX_SUMS // 3})"
    with engine.begin() as connection:
        for place in range(3):
            shown = f"SELECT n, {20000 + 31 * place}, {24297 + place}, 'ada', '', 1.0, 0, 0, 0, 0"
            connection.execute(text(f"INSERT INTO usage ({columns}) {numbers} {shown} FROM numbers"))
        going_on = "since, nodes, gpus, lost, samples_before, preemptions_before"
        shown = "SELECT n, 20093, 24300, 'ada', '', 1.0, 0, 0, 0, 0, 1735995200.0, 0, 0, 0, 0, 0"
        connection.execute(text(f"INSERT INTO usage ({columns}, {going_on}) {numbers} {shown} FROM numbers"))
    with pytest.raises(LimitExceededError):
        asked(database, frozenset({UsageKey.JOB}), 1735995200.0)
    jobs = MAX_SUMS // 3 + 1
    assert total(asked(database, frozenset({UsageKey.OWNER}), 1735995200.0)[0]).node_seconds == 4 * jobs


def test_after_kill_9_usage_and_journal_agree(database: DatabaseAddress) -> None:
    JobStore(open_database(database)).close()
    arguments = [database.url, str(database.state_dir), str(database.password_file or "")]
    with subprocess.Popen([sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            assert writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
    wait_until(lambda: bool(rows_of(database)), 30, "the database answers")
    now = rows_of(database)[-1].time + 100.0
    assert check_journal(database, now).preemptions["j000001"] >= 20
    usage = JobStore(open_engine(database)).load().usage["j000001"]
    assert usage.holding.nodes >= 1.0


# Databases of earlier versions.


def without_usage(address: DatabaseAddress) -> None:
    """As the revision before has it."""
    with open_engine(address).begin() as connection:
        connection.execute(text("DROP TABLE usage"))
        connection.execute(text("DROP TABLE usage_of_removed"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))


def test_usage_of_the_time_before_is_taken_from_the_journal(database: DatabaseAddress) -> None:
    machine = story(JobStore(open_database(database)))
    keys = ALL - {UsageKey.PROJECT}
    expected, _ = asked(database, keys, machine.now)
    without_usage(database)
    open_database(database).dispose()
    check_journal(database, machine.now)
    found, _ = asked(database, keys, machine.now)
    assert [(entry.month, entry.job_id, entry.owner) for entry in found] == [
        (entry.month, entry.job_id, entry.owner) for entry in expected
    ]
    for new, kept in zip(found, expected, strict=True):
        assert new.amounts.node_seconds == pytest.approx(kept.amounts.node_seconds)
        assert new.amounts.preemptions == kept.amounts.preemptions
        assert new.amounts.lost_node_seconds == pytest.approx(kept.amounts.lost_node_seconds, abs=1.0)
    assert total(found).samples == total(expected).samples
    usage, kept_usage = JobStore(open_engine(database)).load().usage, machine.state.usage
    assert usage.keys() == kept_usage.keys()
    assert usage["j000003"].holding == kept_usage["j000003"].holding


def test_what_an_upgraded_database_goes_on_with_is_that_of_the_journal(database: DatabaseAddress) -> None:
    store = JobStore(open_database(database))
    machine = story(store)
    store.close()
    without_usage(database)
    store = JobStore(open_database(database))
    machine.observe = saved_by(store)
    machine.state = replace(store.load(), idle=machine.state.idle, generation=machine.state.generation)
    machine.wait(2 * 86_400.0)
    machine.leave("n4")
    machine.end("j000003")
    machine.wait(50.0)
    machine.plan(j3="n1#0 n3#1")
    machine.confirm("j000003")
    machine.wait(86_400.0)
    check_journal(database, machine.now)


@pytest.mark.parametrize("version", EARLIER)
def test_databases_of_earlier_versions_have_usage(tmp_path: Path, version: str) -> None:
    address = DatabaseAddress("job_manager", tmp_path)
    with closing(sqlite3.connect(address.file)) as connection:
        connection.executescript(EARLIER[version].read_text())
    store = JobStore(open_database(address), owner_of_earlier_jobs="ada")
    now = rows_of(address)[-1].time + 60.0
    assert check_journal(address, now).total > 0
    entries, _ = asked(address, ALL, now)
    assert {(entry.owner, entry.project) for entry in entries} == {("ada", "")}
    samples = sum(job.samples for job in store.jobs(0, 1000, ()))
    assert total(entries).samples == samples
