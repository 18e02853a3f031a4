"""The store keeps a step whole, and what it has kept survives a kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy.exc

from malletrain.job_manager.machine.fair_share import OwnerUse
from malletrain.job_manager.machine.stimuli import Completion, PlanReceived, Submitted
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.storage.change import Change, Submission
from malletrain.job_manager.storage.store import JobStore, UnknownJobError, decode, encode
from malletrain.model.job_state import JobState
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import open_database
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec
from tests.support.postgresql import Locate
from tests.support.waiting import wait_until

WRITER = """
import sys
from pathlib import Path
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import open_database
from malletrain.job_manager.storage.change import Change
from malletrain.job_manager.storage.store import JobStore
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import open_database
from tests.job_manager.harness import running

url, state_dir, password_file = sys.argv[1:]
address = DatabaseAddress("job_manager", Path(state_dir), url, Path(password_file) if password_file else None)
store = JobStore(open_database(address))
machine = running("a b", spare="c d")
store.save(Change(machine.state.jobs.values(), machine.events, machine.state.generation))
generation = machine.state.generation
while True:
    machine.events.clear()
    machine.plan(j1="a b" if generation % 2 else "a b c")
    machine.confirm()
    generation = machine.state.generation
    store.save(Change(machine.state.jobs.values(), machine.events, generation))
    print(generation, flush=True)
"""


@pytest.fixture
def database(locate: Locate) -> DatabaseAddress:
    return locate("job_manager")


def test_a_state_comes_back_as_it_was(database: DatabaseAddress) -> None:
    machine = running("a b c", job_spec(slots_per_node=2, environment={"A": "1"}), job_spec(), spare="d")
    machine.leave("b")
    store = JobStore(open_database(database))
    store.save(Change(machine.state.jobs.values(), machine.events, machine.state.generation))
    found = JobStore(open_database(database)).load()
    assert found.jobs == machine.state.jobs
    assert (found.generation, found.last_number, found.idle) == (1, 2, None)


def test_jobs_stored_by_earlier_versions_can_be_read() -> None:
    machine = running("a")
    machine.end()
    body = encode(machine.job()).replace('"counted_failures":1', '"strikes":1')
    assert "strikes" in body
    assert decode(body) == machine.job()


def test_fields_of_later_versions_are_left_out_and_an_unknown_value_is_told() -> None:
    machine = running("a")
    body = encode(machine.job())
    later = body.replace('{"number"', '{"new":{"a":1},"number"', 1).replace('"spec":{', '"spec":{"newer":2,', 1)
    assert later.count("new") == body.count("new") + 2
    assert decode(later) == machine.job()
    reason = decode(body.replace(f'"reason_code":"{machine.job().reason_code}"', '"reason_code":"NEW"')).reason_code
    assert reason is JobReason.UNSPECIFIED
    with pytest.raises(UnknownJobError, match=r"j000001 .* use the version that wrote it or a later one"):
        decode(body.replace('"backend":"UNSPECIFIED"', '"backend":"ABACUS"'))


def test_ended_jobs_are_kept_but_not_loaded(database: DatabaseAddress) -> None:
    machine = running("a")
    machine.end(completion=Completion(5, {"loss": 0.25}))
    store = JobStore(open_database(database))
    store.save(Change(machine.ended.values(), machine.events, 1))
    assert store.load().jobs == {}
    assert store.load().last_number == 1
    assert store.job(1) == machine.ended["j000001"]
    assert store.jobs(0, 10, [JobState.COMPLETED]) == [machine.ended["j000001"]]
    assert store.jobs(0, 10, [JobState.FAILED]) == []
    journal = [stored.event for stored in store.events(0, 100, 1)]
    assert journal == machine.events
    assert [event.to_state for event in journal][-1] is JobState.COMPLETED


def test_a_submission_and_its_jobs_are_stored_together_or_not_at_all(database: DatabaseAddress) -> None:
    store = JobStore(open_database(database))
    machine = MachineHarness()
    machine.submit(job_spec())
    submission = Submission("r1", "digest", (1,))
    store.save(Change(machine.state.jobs.values(), machine.events, submission=submission))
    assert store.submission("r1") == submission
    assert store.submission("r2") is None
    machine.submit(job_spec())
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        store.save(Change(machine.state.jobs.values(), machine.events, submission=submission))
    assert len(store.load().jobs) == 1


def test_killed_in_the_middle_of_writing(database: DatabaseAddress) -> None:
    root = Path(__file__).parents[2]
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, database.url, str(database.state_dir), str(database.password_file or "")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    seen = 0
    while seen < 30:
        seen = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    seen = max([seen, *map(int, writer.stdout.read().split())])
    wait_until(lambda: writer.poll() is not None)
    store = JobStore(open_database(database))
    state = store.load()
    (job,) = state.jobs.values()
    assert state.generation >= seen, "what was told to be stored is stored"
    assert job.plan_generation == state.generation
    last = store.events(0, 100_000, 1)[-1].event
    assert last.to_state is job.state
    assert last.nodes == job.commanded
    assert last.reason == job.reason


def test_generation_is_kept_even_where_no_job_changes(database: DatabaseAddress) -> None:
    machine = MachineHarness()
    machine.idle("a")
    result = machine(PlanReceived(41, ()))
    store = JobStore(open_database(database))
    store.save(Change(result.changed, result.events, result.state.generation))
    assert store.load().generation == 41


def test_jobs_that_were_stored_without_an_owner_get_one_for_ever(tmp_path: Path) -> None:
    dump = Path(__file__).parents[1] / "system" / "state_0_1_0" / "job_manager.sql"
    path = tmp_path / "job_manager.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text())
    connection.close()
    for account in ("root", "somebody-else"):
        store = JobStore(open_database(DatabaseAddress("job_manager", tmp_path)), account)
        jobs = store.jobs(0, 1000, [])
        assert {job.owner for job in jobs} == {"root"}
        assert {job.owner for job in store.load().jobs.values()} == {"root"}
        assert store.jobs(0, 1000, [], owner="root") == jobs
        assert store.jobs(0, 1000, [], owner="somebody-else") == []
        assert store.owners({jobs[0].id, "j999999"}) == {jobs[0].id: "root"}
        store.close()


def test_jobs_are_found_by_their_owner(database: DatabaseAddress) -> None:
    store = JobStore(open_database(database), "root")
    machine = MachineHarness()
    for owner in ("ada", "bob", "ada"):
        machine(Submitted((job_spec(),), owner))
    store.save(Change(machine.state.jobs.values(), machine.events))
    assert [job.number for job in store.jobs(0, 10, [], owner="ada")] == [1, 3]
    assert store.owners(machine.state.jobs) == {"j000001": "ada", "j000002": "bob", "j000003": "ada"}
    assert JobStore(open_database(database), "root").load().jobs == machine.state.jobs


def test_a_reason_may_quote_any_log(database: DatabaseAddress) -> None:
    store = JobStore(open_database(database))
    event = replace(running("a").events[0], reason="ended: \0\x01 \N{SNOWMAN}")
    store.save(Change((), [event]))
    assert [stored.event.reason for stored in store.events(0, 10, None)] == ["ended: \N{REPLACEMENT CHARACTER}\x01 ☃"]


def test_numbers_may_be_large(database: DatabaseAddress) -> None:
    store = JobStore(open_database(database))
    store.save(Change(generation=2**53))
    assert store.load().generation == 2**53
    assert store.job(10**18 - 1) is None
    assert store.events(10**18 - 1, 10, 10**18 - 1) == []


def test_changes_one_after_another_are_one(database: DatabaseAddress) -> None:
    machine = running("a b", spare="c")
    first = Change(tuple(machine.state.jobs.values()), tuple(machine.events), 1, None, {"ada": OwnerUse(1.0)}, {"bob"})
    events = len(machine.events)
    machine.leave("b")
    later = Change(
        tuple(machine.state.jobs.values()), tuple(machine.events[events:]), None, None, {"bob": OwnerUse(2.0)}, {"ada"}
    )
    store = JobStore(open_database(database))
    store.save(first.followed_by(later))
    found = store.load()
    assert found.jobs == machine.state.jobs
    assert found.generation == 1
    assert found.ledger == {"bob": OwnerUse(2.0)}
    assert [stored.event for stored in store.events(0, 100, None)] == machine.events
