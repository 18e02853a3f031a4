"""The benchmark of joins: what docs/performance.md says of them comes from it."""

from __future__ import annotations

from benchmarks.joins import measured


def test_nodes_that_join_are_given_to_jobs_in_time_that_is_counted() -> None:
    found = measured(jobs=4, nodes=40, events=10.0, seconds=2.0)
    joins = found["join_to_command"]
    assert (joins["count"], found["joined_and_unused"]) == (10, 0)
    # Two messages and a transaction take as long on any machine.
    assert joins["median_ms"] > 10
    assert found["leave_to_release"]["count"] == 10
    assert set(found["plans"]) <= {"applied", "in part", "refused"}
    assert found["cores"]["allocator"] > 0
