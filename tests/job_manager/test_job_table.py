"""Indices beside the jobs. That they are right after any stimuli is checked by the invariants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.job_manager.machine.job_marks import JobMark
from malletrain.job_manager.machine.job_table import JobTable, OwnerTally, ShardedMap
from malletrain.job_manager.machine.state import ManagerState
from malletrain.job_manager.machine.validation import StateInvariantError, check_state
from malletrain.runtime.kernel.documents import from_document, to_document
from tests.job_manager.harness import running
from tests.support.builders import job_spec

ONE, TWO = "j000001", "j000002"


def test_a_copy_of_a_map_changes_by_itself_and_so_does_the_first() -> None:
    first: ShardedMap[int] = ShardedMap()
    first["a"] = first["b"] = 1
    second = first.copy()
    second["a"] = 2
    del second["b"]
    first["c"] = 3
    third = second.copy()
    second["a"] = 4
    assert [dict(found.items()) for found in (first, second, third)] == [{"a": 1, "b": 1, "c": 3}, {"a": 4}, {"a": 2}]


def test_the_state_before_a_step_stays_as_it_was() -> None:
    machine = running("a b", job_spec(), job_spec(), spare="c")
    before, indices = machine.state, JobTable.of(dict(machine.state.jobs)).indices()
    machine.leave("b")
    machine.plan(j1="a", j2="c")
    assert JobTable.over(before.jobs).indices() == indices
    check_state(before)


def test_jobs_are_found_by_their_nodes_and_by_what_is_to_be_done() -> None:
    machine = running("a b", job_spec(), job_spec(), spare="c")
    machine.leave("b")
    table = JobTable.over(machine.state.jobs)
    assert [job.id for job in table.on_nodes(["b", "c", "nowhere"])] == [ONE]
    assert [job.id for job in table.marked(JobMark.COMMANDED)] == [ONE]
    assert table.owners == {"": OwnerTally(jobs=2, places=2, nodes=2, weights={1.0: 2}, shares={1.0: 2})}
    machine.released("b")
    assert JobTable.over(machine.state.jobs).on_nodes(["b"]) == []


def test_a_state_is_written_and_read_without_its_indices() -> None:
    state = running("a b").state
    written = to_document(state)
    assert set(written["jobs"]) == {ONE}
    assert from_document(ManagerState, written) == state


def test_a_wrong_index_is_a_broken_invariant() -> None:
    state = running("a b").state
    table = JobTable.of(state.jobs)
    table.held.remove(table[ONE], ["b"])
    with pytest.raises(StateInvariantError, match="index held"):
        check_state(replace(state, jobs=table))
