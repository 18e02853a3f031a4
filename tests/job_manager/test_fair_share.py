"""What owners have used, what that makes their jobs weigh, and who is admitted next."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.job_manager.machine.admission import Places, first_in_line, next_in_line
from malletrain.job_manager.machine.fair_share import (
    OwnerUse,
    changed_uses,
    exponents,
    next_weight,
    settle_ledger,
    weigh_owners,
)
from malletrain.job_manager.machine.sharing import owner_shares
from malletrain.job_manager.machine.state import ManagerPolicy, ManagerState
from malletrain.job_manager.machine.stimuli import Cancelled, NodesChanged, Progressed, Ticked
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.machine.validation import StateInvariantError, check_state
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.job_manager.storage.change import Change
from malletrain.job_manager.storage.store import JobStore
from malletrain.job_manager.wire import job_message, owner_message
from malletrain.model.job_state import JobState
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.kernel.documents import from_document, to_document
from tests.job_manager.harness import MachineHarness
from tests.support.builders import job_spec

HOUR = 3600.0
DAY = 24 * HOUR
FAIR = ManagerPolicy(fair_share_half_life_seconds=7 * DAY)
USES = st.dictionaries(st.sampled_from(["ada", "bob", "eve", "kim"]), st.floats(0, 1e9), min_size=1)


def test_half_of_a_use_is_left_after_a_half_life() -> None:
    use = OwnerUse(node_seconds=800.0, since=100.0)
    assert use.at(100.0, DAY) == 800.0
    assert use.at(100.0 + DAY, DAY) == pytest.approx(400.0)
    assert use.at(100.0 + 3 * DAY, DAY) == pytest.approx(100.0)
    assert use.at(0.0, DAY) == 800.0, "a clock that goes back gives nothing back"


def test_nodes_that_are_held_for_a_short_while_count_in_full() -> None:
    assert OwnerUse(nodes=4, since=0.0).at(10.0, 7 * DAY) == pytest.approx(40.0, rel=1e-4)


@given(
    nodes=st.lists(st.integers(0, 100), min_size=1, max_size=6),
    seconds=st.floats(1, 1e6),
    half_life=st.floats(10, 1e8),
)
def test_how_often_it_is_settled_makes_no_difference(nodes: list[int], seconds: float, half_life: float) -> None:
    rarely: dict[str, OwnerUse] = {}
    often: dict[str, OwnerUse] = {}
    for index, count in enumerate(nodes):
        now = index * seconds
        rarely = settle_ledger(rarely, {"ada": count}, now, half_life)
        for step in range(3):
            often = settle_ledger(often, {"ada": count, "bob": step}, now + step * seconds / 3, half_life)
    now = len(nodes) * seconds
    assert often["ada"].at(now, half_life) == pytest.approx(rarely["ada"].at(now, half_life), rel=1e-9)


def test_an_owner_without_jobs_is_forgotten_once_its_use_is_nothing() -> None:
    ledger = settle_ledger({}, {"ada": 2}, 0.0, DAY)
    ledger = settle_ledger(ledger, {}, 100.0, DAY)
    assert ledger["ada"].at(100.0, DAY) == pytest.approx(200.0, rel=1e-3)
    assert "ada" in settle_ledger(ledger, {}, 5 * DAY, DAY)
    after = settle_ledger(ledger, {}, 9 * DAY, DAY)
    assert after == {}
    assert changed_uses(ledger, after) == ({}, {"ada"})


def test_weights_are_the_classic_fair_share_and_one_at_just_the_share() -> None:
    assert exponents({"ada": 50.0, "bob": 50.0}) == {"ada": 0.0, "bob": 0.0}
    assert exponents({"ada": 75.0, "bob": 25.0}) == {"ada": -0.5, "bob": 0.5}
    assert exponents({"ada": 10.0, "bob": 0.0, "eve": 0.0}) == {"ada": -2.0, "bob": 1.0, "eve": 1.0}
    assert exponents({"ada": 0.0, "bob": 0.0}) == {"ada": 0.0, "bob": 0.0}
    assert exponents({"ada": 1e6}) == {"ada": 0.0}
    many = {"ada": 1.0, **{f"u{index}": 0.0 for index in range(50)}}
    assert exponents(many)["ada"] == -3.0, "no weight is so small that rounding decides"


@given(uses=USES)
def test_who_has_used_less_weighs_at_least_as_much(uses: dict[str, float]) -> None:
    found = exponents(uses)
    ordered = sorted(uses, key=uses.__getitem__)
    assert all(found[less] >= found[more] for less, more in pairwise(ordered))


@given(present=st.integers(-12, 4), exponent=st.floats(-3, 1))
def test_a_weight_moves_by_whole_steps_and_stays_within_one(present: int, exponent: float) -> None:
    before = 2.0 ** (present / 4)
    after = next_weight(before, exponent)
    if abs(exponent - present / 4) < 0.2499:
        assert after == before
    elif after != before:
        assert after == 2.0 ** (round(4 * exponent) / 4)
    assert next_weight(after, exponent) == after, "it comes to rest"


def test_the_weight_of_an_owner_who_is_alone_is_one_whatever_it_was() -> None:
    ledger = {"ada": OwnerUse(1000.0, 1, 0.0, 0.5), "bob": OwnerUse(10.0, 0, 0.0, 2.0)}
    after = weigh_owners(ledger, frozenset({"ada"}), 1.0, DAY)
    assert [after["ada"].weight, after["bob"].weight] == [1.0, 1.0]


def in_line(queue: str, taken: str, places: Places, uses: dict[str, float] | None) -> str:
    """Owners are letters; a queue is their jobs in the order in which they came."""
    jobs = list(enumerate(queue))
    found = next_in_line(jobs, lambda job: job[1], Counter(taken), places, uses)
    return " ".join(f"{owner}{number}" for number, owner in found)


@pytest.mark.parametrize(
    ("queue", "taken", "places", "uses", "expected"),
    [
        ("aab", "", Places(2), None, "a0 a1"),
        ("aab", "aa", Places(2), None, ""),
        ("aab", "a", Places(4, 2), None, "a0 b2"),
        ("aaab", "aa", Places(9, 2), None, "b3"),
        ("aaa", "", Places(9, 2), None, "a0 a1"),
        ("aabb", "", Places(3), {}, "a0 b2 a1"),
        ("aabb", "a", Places(2), {}, "b2"),
        ("aabb", "", Places(1), {"a": 5.0, "b": 1.0}, "b2"),
        ("aabb", "", Places(2), {"a": 5.0, "b": 1.0}, "b2 a0"),
        ("abc", "", Places(2), {"a": 5.0, "b": 1.0}, "c2 b1"),
        ("aab", "b", Places(4, 1), {"a": 5.0}, "a0"),
    ],
)
def test_who_is_admitted_next(
    queue: str, taken: str, places: Places, uses: dict[str, float] | None, expected: str
) -> None:
    assert in_line(queue, taken, places, uses) == expected


@given(queue=st.text("abc", max_size=12), taken=st.text("abc", max_size=4), uses=st.none() | USES)
def test_one_owner_or_no_rule_is_first_come_first_served(queue: str, taken: str, uses: dict[str, float] | None) -> None:
    free = list(range(len(queue)))
    expected = first_in_line(free, len(taken), 5)
    assert next_in_line(free, lambda _: "a", Counter(a=len(taken)), Places(5), uses) == expected
    assert next_in_line(free, lambda number: queue[number], Counter(taken), Places(5), None) == expected


@given(
    queue=st.text("abc", max_size=12),
    taken=st.text("abc", max_size=4),
    per_owner=st.integers(0, 4),
    fair=st.booleans(),
)
def test_places_are_filled_as_far_as_owners_may_and_each_line_keeps_its_order(
    queue: str, taken: str, per_owner: int, fair: bool
) -> None:
    jobs = list(range(len(queue)))
    places = Places(6, per_owner)
    found = next_in_line(jobs, queue.__getitem__, Counter(taken), places, {"a": 3.0} if fair else None)
    counts = Counter(taken) + Counter(queue[job] for job in found)
    assert len(found) <= max(0, 6 - len(taken))
    for owner in "abc":
        own = [job for job in jobs if queue[job] == owner]
        mine = [job for job in found if queue[job] == owner]
        assert mine == own[: len(mine)]
        assert not mine or not per_owner or counts[owner] <= per_owner
        if len(mine) < len(own) and counts.total() < 6:
            assert counts[owner] >= per_owner > 0, "a job waits and a place is free"


def test_a_limit_holds_back_an_owner_says_so_and_nobody_else() -> None:
    machine = MachineHarness(ManagerPolicy(max_parallel=3, max_parallel_per_owner=2))
    machine.submit(job_spec(), job_spec(), job_spec(), owner="ada")
    machine.submit(job_spec(), owner="bob")
    states = [job.state for job in machine.state.jobs.values()]
    assert states == [JobState.WAITING, JobState.WAITING, JobState.QUEUED, JobState.WAITING]
    third = machine.job("j000003")
    assert third.reason_code is JobReason.OWNER_LIMIT
    assert third.reason == "waits for one of 3 places, of which ada may have 2"
    rows = [event.reason_code for event in machine.events if event.job_id == "j000003"]
    assert rows == [JobReason.SUBMITTED, JobReason.OWNER_LIMIT]
    machine(Cancelled("j000001", "ada"))
    assert machine.job("j000003").state is JobState.WAITING


def two_owners(**policy: float) -> MachineHarness:
    """ada trains on three nodes and bob on one, an hour long."""
    machine = MachineHarness(ManagerPolicy(**{"fair_share_half_life_seconds": 7 * DAY, **policy}))  # type: ignore[arg-type]
    machine.idle(*"abcd")
    machine.submit(job_spec(), owner="ada")
    machine.submit(job_spec(), owner="bob")
    machine.plan(j1="a b c", j2="d")
    machine.confirm("j000001")
    machine.confirm("j000002")
    machine.now += HOUR
    return machine


def weights(machine: MachineHarness) -> list[float]:
    return [job.share_weight for job in machine.state.jobs.values()]


def test_own_weights_count_among_the_jobs_of_their_owner_and_not_against_others() -> None:
    machine = MachineHarness(ManagerPolicy(fair_share_half_life_seconds=7 * DAY))
    machine.submit(job_spec(weight=100.0), job_spec(weight=300.0), owner="ada")
    machine(NodesChanged(frozenset("e"), frozenset(), machine.now))
    assert weights(machine) == [1.0, 1.0], "an owner who is alone is asked nothing"
    machine.submit(job_spec(weight=0.5), owner="bob")
    machine(NodesChanged(frozenset("f"), frozenset(), machine.now))
    effective = [job.spec.weight * job.share_weight for job in machine.state.jobs.values()]
    assert effective == pytest.approx([0.5, 1.5, 1.0])


def test_owners_are_charged_for_what_their_jobs_hold_and_weigh_accordingly() -> None:
    machine = two_owners()
    result = machine(NodesChanged(frozenset("e"), frozenset(), machine.now))
    ada, bob = owner_shares(machine.state, machine.now, 7 * DAY)
    assert (ada.owner, ada.jobs, ada.admitted_jobs, ada.nodes) == ("ada", 1, 1, 3)
    assert ada.used_node_seconds == pytest.approx(3 * HOUR, rel=0.01)
    assert ada.used_fraction == pytest.approx(0.75)
    assert (ada.weight, bob.weight) == (2**-0.5, 2**0.5)
    assert weights(machine) == [2**-0.5, 2**0.5]
    assert {job.id for job in result.changed} == {"j000001", "j000002"}, "the Allocator hears of it"
    assert not result.events
    assert job_message(machine.job("j000002")).share_weight == 2**0.5
    assert owner_message(bob).used_fraction == pytest.approx(0.25)


def test_ticks_and_progress_leave_the_weights_alone() -> None:
    machine = two_owners()
    before = weights(machine)
    machine(Ticked())
    machine(Progressed("j000001", 100, False))
    assert weights(machine) == before == [1.0, 1.0]


def test_a_job_gets_its_weight_when_it_is_admitted_and_one_when_its_owner_is_alone() -> None:
    machine = two_owners(max_parallel=2)
    machine.submit(job_spec(), owner="bob")
    assert weights(machine) == [2**-0.5, 2**0.5, 1.0], "a queued job has none yet"
    machine(Cancelled("j000002", "bob"))
    machine.end("j000002")
    assert weights(machine) == [2**-0.5, 2**0.5]
    machine(Cancelled("j000003", "bob"))
    assert weights(machine) == [1.0]
    assert machine.state.ledger["bob"].weight == 1.0


def test_without_fair_share_there_is_no_ledger() -> None:
    machine = two_owners(fair_share_half_life_seconds=0.0)
    machine.join("e")
    assert machine.state.ledger == {}
    assert weights(machine) == [1.0, 1.0]
    shares = owner_shares(machine.state, machine.now, 0.0)
    assert [(share.nodes, share.used_node_seconds) for share in shares] == [(3, 0.0), (1, 0.0)]


def test_fair_share_that_is_turned_off_leaves_nothing_behind() -> None:
    machine = two_owners()
    machine.join("e")
    machine.policy = ManagerPolicy()
    machine.join("f")
    assert machine.state.ledger == {}
    assert weights(machine) == [1.0, 1.0]


def test_one_owner_is_served_as_without_fair_share() -> None:
    def story(policy: ManagerPolicy) -> MachineHarness:
        machine = MachineHarness(policy)
        machine.idle(*"abcd")
        machine.submit(job_spec(), job_spec(), job_spec(), owner="ada")
        machine.plan(j1="a b c", j2="d")
        machine.confirm("j000001")
        machine.now += HOUR
        machine.leave("a")
        machine(Cancelled("j000002", "ada"))
        return machine

    with_it, without = (
        story(ManagerPolicy(max_parallel=2, fair_share_half_life_seconds=DAY)),
        story(ManagerPolicy(max_parallel=2)),
    )
    assert with_it.state.jobs == without.state.jobs
    assert with_it.events == without.events
    assert with_it.effects == without.effects


def test_a_wrong_charge_is_a_broken_invariant() -> None:
    machine = two_owners()
    machine.state.ledger["ada"] = OwnerUse(nodes=9)  # type: ignore[index]
    with pytest.raises(StateInvariantError, match="owner ada holds 3 nodes and is charged for 9"):
        check_state(machine.state)


def test_the_ledger_survives_a_restart_and_goes_on(tmp_path: Path) -> None:
    machine = two_owners()
    machine.join("e")
    database = DatabaseAddress("job_manager", tmp_path)
    store = JobStore(open_database(database))
    store.save(Change(machine.state.jobs.values(), machine.events, 1, uses=machine.state.ledger))
    store.save(Change((), (), uses={"eve": OwnerUse(5.0, 0, 1.0)}))
    store.save(Change((), (), forgotten={"eve"}))
    store.close()
    found = JobStore(open_database(database)).load()
    assert found.ledger == machine.state.ledger
    assert found.jobs == machine.state.jobs
    later = machine.now + HOUR
    assert found.ledger["ada"].at(later, 7 * DAY) == pytest.approx(6 * HOUR, rel=0.01), "its jobs train on meanwhile"


def test_recordings_keep_the_ledger() -> None:
    machine = two_owners()
    machine.join("e")
    assert from_document(ManagerState, to_document(machine.state)) == machine.state


def test_fair_share_is_on_by_default_with_a_week() -> None:
    assert JobManagerSettings().policy().fair_share_half_life_seconds == 7 * DAY
    assert JobManagerSettings().policy().max_parallel_per_owner == 0
