from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.fleet.flotilla import Flotilla, create_flotilla
from malletrain.fleet.problem import FleetProblem, Pace
from malletrain.fleet.rates import rate_table
from malletrain.fleet.remaining_work import min_gpus, replan_counts
from malletrain.fleet.replan import after_join, after_leave
from malletrain.fleet.sharing import Preprocessing, Sharing
from tests.fleet.problems import BY_HAND, problems

TABLE = rate_table(BY_HAND)
NO_LIMIT = float("inf")
LOCKSTEP = Preprocessing(NO_LIMIT, Pace.LOCKSTEP, Sharing.FLOTILLA)
OWN = Preprocessing(NO_LIMIT, Pace.OWN, Sharing.FLOTILLA)
SLOW = Preprocessing(10.0, Pace.LOCKSTEP, Sharing.FLOTILLA)


@given(problem=problems(), data=st.data())
def test_after_a_leave_the_pace_is_the_largest_possible(problem: FleetProblem, data: st.DataObject) -> None:
    table = rate_table(problem)
    flotilla = create_flotilla(table, range(len(problem.models)), problem.gpus, problem.tolerance)
    gpus = data.draw(st.integers(0, sum(flotilla.gpus)))
    shrunk = after_leave(table, flotilla, gpus)
    kept = shrunk.flotilla.members
    assert sorted((*kept, *shrunk.paused)) == sorted(flotilla.members)
    assert len(kept) == min(gpus, len(flotilla.members))
    if not kept:
        return
    pace = min(shrunk.flotilla.rates(table))
    # The published rule, tried with every rate of every member.
    possible = [rate for member in kept for rate in table.rows[member][:gpus]]
    best = max(rho for rho in possible if _needed(table.rows, kept, rho, gpus) <= gpus)
    assert pace == best
    assert sum(shrunk.flotilla.gpus) <= gpus


def _needed(rows: tuple[tuple[float, ...], ...], members: tuple[int, ...], pace: float, gpus: int) -> int:
    return sum(
        next((count for count, rate in enumerate(rows[member], 1) if rate >= pace), gpus + 1) for member in members
    )


def test_those_that_need_most_gpus_are_paused() -> None:
    shrunk = after_leave(TABLE, Flotilla((0, 1), (1, 2)), 1)
    assert (shrunk.flotilla, shrunk.paused) == (Flotilla((0,), (1,)), (1,))
    assert after_leave(TABLE, Flotilla((0, 1), (1, 2)), 0).paused == (0, 1)


def test_gpus_that_join_go_to_the_slowest_where_they_gain_more_than_the_stall() -> None:
    flotilla = Flotilla((1, 2), (1, 1))
    # The pace goes from 10 to 20 samples/s for two members; a stall of s seconds costs 2 * 20 * s.
    assert after_join(TABLE, flotilla, 3, LOCKSTEP, 61.0, 30.0) == Flotilla((1, 2), (1, 2))
    assert after_join(TABLE, flotilla, 3, LOCKSTEP, 59.0, 30.0) == flotilla
    # At their own pace only the slow one stops.
    assert after_join(TABLE, flotilla, 3, OWN, 61.0, 30.0) == Flotilla((1, 2), (1, 2))
    # Preprocessing is slower than any of them.
    assert after_join(TABLE, flotilla, 3, SLOW, 1e6, 30.0) == flotilla


@given(problem=problems(max_models=3, max_gpus=6))
def test_the_last_end_by_remaining_work_is_the_earliest_of_all_divisions(problem: FleetProblem) -> None:
    table, work = rate_table(problem), dict(enumerate(problem.samples()))
    if len(work) > problem.gpus:
        return
    counts = min_gpus(table, work, problem.gpus)
    assert sum(counts.values()) <= problem.gpus

    def last(division: tuple[int, ...]) -> float:
        return max(work[m] / table.rate(m, count) for m, count in enumerate(division))

    every = product(range(1, problem.gpus + 1), repeat=len(work))
    best = min(last(division) for division in every if sum(division) <= problem.gpus)
    assert last(tuple(counts[m] for m in work)) == pytest.approx(best)
    # Nobody could do with fewer GPUs.
    for member, count in counts.items():
        assert all(work[member] / table.rate(member, fewer) > best for fewer in range(1, count))


def test_a_plan_by_remaining_work_changes_for_more_than_the_stall_only() -> None:
    work = {1: 1200.0, 2: 600.0}
    # b needs 40 s and c 60 s; with the third GPU c needs 30 s, and the last end is b's.
    assert replan_counts(TABLE, work, {1: 1, 2: 1}, 3, stall_s=5.0) == {1: 1, 2: 2}
    assert replan_counts(TABLE, work, {1: 1, 2: 1}, 3, stall_s=35.0) == {1: 1, 2: 1}


def test_members_that_wait_find_free_gpus_and_nobody_stops_for_less_than_its_stall() -> None:
    # b has two GPUs of three. c fits on the third: it ends after 60 s, b after 20 s.
    work = {1: 1200.0, 2: 600.0}
    assert replan_counts(TABLE, work, {1: 2}, 3, stall_s=5.0) == {1: 1, 2: 2}
    assert replan_counts(TABLE, work, {1: 2}, 3, stall_s=25.0) == {1: 2, 2: 1}
    # With two GPUs c finds none unless b gives one back.
    assert replan_counts(TABLE, work, {1: 2}, 2, stall_s=25.0) == {1: 1, 2: 1}


def test_more_members_than_gpus_are_a_list_by_remaining_time() -> None:
    work = {0: 600.0, 1: 1200.0, 2: 600.0}
    assert replan_counts(TABLE, work, {}, 2, stall_s=0.0) == {2: 1, 1: 1}
    assert replan_counts(TABLE, work, {0: 1}, 2, stall_s=0.0) == {0: 1, 2: 1}


@given(problem=problems(), data=st.data())
def test_a_search_that_is_left_out_would_have_changed_nothing(problem: FleetProblem, data: st.DataObject) -> None:
    table = rate_table(problem)
    members = range(min(len(problem.models), problem.gpus))
    work = {member: data.draw(st.sampled_from([1.0, 40.0, 2000.0, 9999.0])) for member in members}
    held = min_gpus(table, {member: data.draw(st.sampled_from([1.0, 900.0])) for member in members}, problem.gpus)
    stall_s = data.draw(st.sampled_from([0.0, 1.0, 30.0]))
    wanted = min_gpus(table, work, problem.gpus)
    before = max(work[member] / table.rate(member, held[member]) for member in members)
    ends = {member: work[member] / table.rate(member, count) for member, count in wanted.items()}
    after = max(end + (stall_s if wanted[member] != held[member] else 0.0) for member, end in ends.items())
    assert replan_counts(table, work, held, problem.gpus, stall_s) == (wanted if after < before else held)
