"""Every row of the journal says why, for people and for scripts."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from malletrain.common.job_limits import JobLimits
from malletrain.job_manager.machine.stimuli import Cancelled, Completion, Outcome, Progressed
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.storage.change import Change
from malletrain.job_manager.storage.store import JobStore
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import open_database
from malletrain.v1 import resources_pb2
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

R = JobReason


def codes(machine: MachineHarness, since: int = 0) -> list[JobReason]:
    return [event.reason_code for event in machine.events[since:]]


def test_the_contract_has_the_same_reasons() -> None:
    names = [name.removeprefix("JOB_REASON_") for name in resources_pb2.JobReason.keys()]  # noqa: SIM118 - no mapping
    assert names == [code.value for code in JobReason]


def test_from_submission_to_completion() -> None:
    machine = running("a b", job_spec(), spare="c")
    machine.plan(j1="a b c")
    machine.confirm()
    machine.end(completion=Completion())
    expected = [R.SUBMITTED, R.ADMITTED, R.PLAN_STARTED, R.CONFIRMED, R.PLAN_RESCALED, R.CONFIRMED, R.TRAINER_DONE]
    assert codes(machine) == expected
    assert machine.job().reason_code is R.TRAINER_DONE


def test_a_preemption_is_counted_once_whatever_follows() -> None:
    below = running("a b", job_spec(2, 2))
    before = len(below.events)
    below.leave("b")
    below.end(outcome=Outcome.STOPPED)
    assert codes(below, before) == [R.PREEMPTED_BELOW_MINIMUM, R.NODE_RELEASED, R.STOPPED]

    stopping = running("a b")
    stopping(Cancelled("j000001"))
    before = len(stopping.events)
    stopping.leave("b")
    assert stopping.job().reason_code is R.CANCELLED
    stopping.end(outcome=Outcome.STOPPED)
    assert codes(stopping, before) == [R.PREEMPTED, R.NODE_RELEASED, R.CANCELLED]
    assert stopping.job().reason == "cancelled by its owner"

    failing = running("a b")
    before = len(failing.events)
    failing.leave("b")
    failing.end()
    expected = [R.PREEMPTED, R.NODE_RELEASED, R.PREEMPTION_NOT_SURVIVED, R.PLAN_STARTED]
    assert codes(failing, before) == expected


def test_a_restart_after_a_stall_and_its_last() -> None:
    machine = running("a", job_spec(max_restarts=1, limits=JobLimits(step_seconds=30.0)))
    before = len(machine.events)
    for _ in range(2):
        machine(Progressed("j000001", 10, stalled=True))
        machine.wait(30)
        machine.end(outcome=Outcome.STOPPED)
        if not machine.job().state.final:
            machine.confirm()
    assert codes(machine, before) == [R.STALLED, R.RESTARTED, R.PLAN_STARTED, R.CONFIRMED, R.STALLED, R.STALLED]
    assert machine.job().reason_code is R.STALLED


def test_a_journal_of_version_0_1_0_gets_the_column(tmp_path: Path) -> None:
    dump = Path(__file__).parents[1] / "system" / "state_0_1_0" / "job_manager.sql"
    path = tmp_path / "job_manager.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text())
    connection.close()
    store = JobStore(open_database(DatabaseAddress("job_manager", tmp_path)))
    assert {stored.event.reason_code for stored in store.events(0, 1000, None)} == {R.UNSPECIFIED}
    assert {job.reason_code for job in store.jobs(0, 1000, [])} == {R.UNSPECIFIED}
    machine = running("a")
    store.save(Change([], machine.events))
    assert [stored.event for stored in store.events(0, 1000, None)][-len(machine.events) :] == machine.events
