"""Generations: one at a time, asked to leave only once the next one is warm, or must."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from malletrain.supervisor.elastic.membership import slots_of
from malletrain.supervisor.restarting.generation_state import GenerationState
from malletrain.supervisor.workers.slot import Slot

NOW = 100.0


def slots(*hosts: str) -> tuple[Slot, ...]:
    return tuple(Slot(host, 0) for host in hosts)


def commanded(
    *hosts: str, sequence: int = 1, state: GenerationState | None = None, warm_by: float = NOW + 10
) -> GenerationState:
    return (state or GenerationState()).command(sequence, dict.fromkeys(hosts, 1), warm_by)


def training(*hosts: str) -> GenerationState:
    state = commanded(*hosts)
    members = slots(*hosts)
    state = state.form(frozenset(members), members, NOW)
    for slot in members:
        state = state.start(slot)
    return state


def test_the_first_generation_waits_for_all_slots_until_time_is_up() -> None:
    state = commanded("a", "b")
    one = frozenset(slots("a"))
    assert not state.can_form(one, NOW)
    assert state.can_form(frozenset(slots("a", "b")), NOW)
    assert state.target(one, NOW + 10) == (("a", 1),)
    assert not state.can_form(frozenset(), NOW + 10)


def test_slots_that_are_needed_to_train_at_all_are_waited_for_without_limit() -> None:
    state = GenerationState(min_hosts=2).command(1, dict.fromkeys("abc", 1), NOW)
    assert not state.can_form(frozenset(slots("a")), NOW + 3600)
    assert state.target(frozenset(slots("a", "c")), NOW) == (("a", 1), ("c", 1))


def test_fewer_hosts_than_the_job_asks_for_can_be_commanded() -> None:
    state = GenerationState(min_hosts=3).command(1, dict.fromkeys("abc", 1), NOW).release({"c"})
    assert not state.can_form(frozenset(slots("a")), NOW + 10)
    assert state.can_form(frozenset(slots("a", "b")), NOW)


def test_a_generation_has_whole_replicas_only_after_a_loss_too() -> None:
    state = commanded("a", "b", "c", "d", state=GenerationState(hosts_per_replica=2))
    everyone = frozenset(slots("a", "b", "c", "d"))
    state = state.form(everyone, slots("a", "b", "c", "d"), NOW).release({"b"})
    assert state.change_due(everyone, NOW)
    assert state.target(everyone, NOW) == (("a", 1), ("c", 1))
    # Where one is not warm in time, its replica is left out.
    assert commanded("a", "b", "c", "d", state=GenerationState(hosts_per_replica=2)).target(
        frozenset(slots("a", "c", "d")), NOW + 1000
    ) == (("a", 1), ("c", 1))
    assert state.release({"a", "c"}).target(everyone, NOW) == ()


def test_replicas_that_must_be_near_each_other_are_those_of_the_command() -> None:
    fixed = GenerationState(hosts_per_replica=2, fixed_replicas=True)
    state = commanded("a1", "a2", "b1", "b2", state=fixed)
    everyone = frozenset(slots("a1", "a2", "b1", "b2"))
    assert state.target(everyone, NOW) == (("a1", 1), ("a2", 1), ("b1", 1), ("b2", 1))
    assert state.release({"a2"}).target(everyone, NOW) == (("b1", 1), ("b2", 1))
    assert state.release({"a2", "b1"}).target(everyone, NOW) == ()
    # Where one is not warm in time, its own replica is left out.
    assert state.target(frozenset(slots("a1", "b1", "b2")), NOW + 1000) == (("b1", 1), ("b2", 1))
    grown = commanded("b1", "b2", "a1", "a3", sequence=2, state=state.release({"a2"}))
    assert grown.target(frozenset(slots("a1", "a3", "b1", "b2")), NOW) == (("b1", 1), ("b2", 1), ("a1", 1), ("a3", 1))


def test_a_generation_is_confirmed_once_all_its_members_have_started() -> None:
    state = commanded("a", "b")
    state = state.form(frozenset(slots("a", "b")), slots("a", "b"), NOW).start(Slot("a", 0))
    assert state.confirmed_sequence == 0
    assert state.confirmed_hosts == ()
    state = state.start(Slot("b", 0))
    assert state.confirmed_sequence == 1
    assert state.confirmed_hosts == ("a", "b")


def test_a_generation_does_not_leave_for_a_smaller_one_whose_workers_stood_by_first() -> None:
    state = training("a", "b", "c")
    late = NOW + 3600
    assert not state.change_due(frozenset(slots("a", "c")), late)
    assert not state.change_due(frozenset(slots("a", "b", "c")), late)
    partly = replace(state, hosts=(("a", 1), ("c", 1)), members=slots("a", "c"))
    assert not partly.change_due(frozenset(slots("b")), late)
    assert not partly.change_due(frozenset(slots("a", "b")), late)
    assert partly.change_due(frozenset(slots("a", "b", "c")), late)
    assert state.release({"b"}).change_due(frozenset(slots("a")), late), "what it uses is not its own any more"


def test_nobody_leaves_before_the_next_generation_stands_by() -> None:
    state = commanded("a", "b", sequence=2, state=training("a"))
    assert state.confirmed_hosts == ("a",)
    assert not state.change_due(frozenset(slots("a")), NOW)
    assert state.change_due(frozenset(slots("a", "b")), NOW)
    assert state.change_due(frozenset(slots("a", "b")), NOW)


def test_no_change_is_due_for_the_hosts_that_train_already() -> None:
    state = commanded("a", sequence=2, state=training("a"))
    assert not state.change_due(frozenset(slots("a")), NOW)
    assert state.confirmed_sequence == 2


def test_a_new_worker_that_never_boots_is_left_out_when_time_is_up() -> None:
    state = commanded("a", "b", "c", sequence=2, state=training("a"))
    ready = frozenset(slots("a", "b"))
    assert not state.change_due(ready, NOW + 9)
    assert state.change_due(ready, NOW + 10)
    assert state.target(ready, NOW + 10) == (("a", 1), ("b", 1))


def test_the_next_generation_begins_when_the_last_member_has_left() -> None:
    state = training("a", "b").leave(NOW + 60)
    ready = frozenset(slots("a", "b"))
    state = state.ended(Slot("a", 0), NOW)
    assert not state.can_form(ready, NOW)
    state = state.ended(Slot("b", 0), NOW)
    assert state.can_form(ready, NOW)
    assert state.hosts == ()


def test_the_earlier_limit_to_leave_holds_and_saving_extends_it() -> None:
    state = training("a").leave(NOW + 60).leave(NOW + 2).leave(NOW + 30)
    assert not state.overdue(NOW + 1)
    assert state.overdue(NOW + 2)
    assert not state.extend(NOW + 300).overdue(NOW + 2)


def test_a_command_that_is_not_newer_changes_nothing() -> None:
    state = training("a")
    assert state.command(1, {"z": 1}, NOW) is state


@st.composite
def generation_states(draw: st.DrawFn) -> tuple[GenerationState, frozenset[Slot], float]:
    """A state after some events, in any order they can come in."""
    hosts = ["a", "b", "c", "d"]
    replica = draw(st.integers(1, 2))
    state, now = GenerationState(hosts_per_replica=replica), 0.0
    ready: frozenset[Slot] = frozenset()
    for sequence in range(1, draw(st.integers(1, 12))):
        now += draw(st.floats(0, 20))
        chosen = draw(st.lists(st.sampled_from(hosts), min_size=1, unique=True))
        ready = frozenset(Slot(host, 0) for host in draw(st.sets(st.sampled_from(hosts))))
        event = draw(st.sampled_from(["command", "form", "end", "leave", "start", "release"]))
        if event == "command":
            state = state.command(sequence, dict.fromkeys(chosen, 1), now + 10)
        elif event == "form" and state.can_form(ready, now):
            members = tuple(slot for entry in state.target(ready, now) for slot in slots_of(*entry))
            state = state.form(ready, members, now)
        elif event == "leave" and state.living:
            state = state.leave(now + 60)
        elif event == "release":
            state = state.release(set(chosen) - set(state.commanded))
        elif state.living:
            slot = draw(st.sampled_from(state.living))
            state = state.start(slot) if event == "start" else state.ended(slot, now + 5)
    return state, ready, now


@given(generation_states())
def test_what_always_holds(case: tuple[GenerationState, frozenset[Slot], float]) -> None:
    state, ready, now = case
    assert not (state.can_form(ready, now) and state.living), "two generations at once"
    assert set(state.confirmed_hosts) <= {host for host, _ in state.hosts} & set(state.commanded)
    assert state.confirmed_sequence <= state.sequence
    assert set(state.target(ready, now)) <= set(state.commanded.items())
    assert bool(state.members) == bool(state.hosts)
    assert len(state.target(ready, now)) % state.hosts_per_replica == len(state.hosts) % state.hosts_per_replica == 0
    if len(state.commanded) >= state.hosts_per_replica:
        everyone = frozenset(slot for entry in state.commanded.items() for slot in slots_of(*entry))
        idle = replace(state, members=(), hosts=(), gone=frozenset())
        assert idle.can_form(everyone, now), "with all warm, training can go on"


def test_no_change_is_made_while_a_training_winds_down() -> None:
    state = training("a", "b").ended(Slot("b", 0), NOW, early=True)
    assert state.winding_down
    grown = commanded("a", "b", "c", sequence=2, state=state)
    assert not grown.change_due(frozenset(slots("a", "b", "c")), NOW)
    assert grown.leave(NOW + 1).winding_down is False, "a node that is wanted back is given back"
    over = state.ended(Slot("a", 0), NOW)
    assert not over.winding_down
    assert not over.form(frozenset(slots("a", "b")), slots("a", "b"), NOW).early


def test_a_loss_is_no_winding_down() -> None:
    assert not training("a", "b").ended(Slot("b", 0), NOW).winding_down
