"""The group of a job: what is next, when it can be formed, what is confirmed."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.supervisor.elastic.membership import Membership, slots_of
from malletrain.supervisor.workers.slot import Slot


def warm(state: Membership, *hosts: str) -> Membership:
    for host in hosts:
        for slot in slots_of(host, state.commanded.get(host, 1)):
            state = state.became_warm(slot)
    return state


def all_back(state: Membership) -> Membership:
    for slot in state.living:
        state = state.came_back(slot)
    return state


def all_registered(state: Membership) -> Membership:
    for slot in state.joining:
        state = state.registered(slot)
    return state


def running(*hosts: str) -> Membership:
    """A complete group on these hosts."""
    state = warm(Membership().command(1, dict.fromkeys(hosts, 1), 10.0), *hosts)
    state, _ = state.form(0.0)
    return all_registered(state)


def test_a_world_is_formed_once_every_host_is_warm() -> None:
    state = Membership().command(1, {"a": 1, "b": 2}, warm_by=10.0)
    assert not warm(state, "a").can_form(5.0)
    state = warm(state, "a", "b")
    assert state.can_form(5.0)
    state, formation = state.form(5.0)
    assert formation.hosts == (("a", 1), ("b", 2))
    assert formation.added == (Slot("a", 0), Slot("b", 0), Slot("b", 1))
    assert state.confirmed_sequence == 0
    assert all_registered(state).confirmed_sequence == 1


def test_a_slow_host_is_waited_for_only_so_long() -> None:
    state = warm(Membership().command(1, {"a": 1, "b": 1}, warm_by=10.0), "a")
    assert not state.can_form(9.9)
    assert state.form(10.0)[1].hosts == (("a", 1),)


def test_a_job_does_not_begin_on_fewer_hosts_than_it_asks_for() -> None:
    state = warm(Membership(min_hosts=2).command(1, dict.fromkeys("abc", 1), warm_by=10.0), "a")
    assert not state.can_form(3600.0)
    assert warm(state, "c").form(10.0)[1].hosts == (("a", 1), ("c", 1))


def test_those_that_train_go_on_below_it_until_they_are_commanded_otherwise() -> None:
    state = replace(running("a", "b"), min_hosts=2)
    state = all_back(state.ended(Slot("b", 0)))
    assert state.form(3600.0)[1].hosts == (("a", 1),)


def test_those_that_stay_keep_the_lower_ranks() -> None:
    state = warm(running("a", "b").command(2, {"c": 1, "b": 1, "a": 1}, 10.0), "c")
    assert state.change_due(0.0)
    state, formation = all_back(state).form(0.0)
    assert formation.hosts == (("a", 1), ("b", 1), ("c", 1))
    assert formation.added == (Slot("c", 0),)


def test_a_shrink_does_not_wait_for_new_workers() -> None:
    state = running("a", "b").command(2, {"a": 1, "c": 1}, warm_by=10.0)
    assert state.target(0.0) == (("a", 1),)
    state, formation = all_back(state).form(0.0)
    assert formation.removed == (Slot("b", 0),)
    assert state.confirmed_sequence == 1
    state = warm(state, "c")
    assert state.target(0.0) == (("a", 1), ("c", 1))


def test_where_all_are_replaced_a_survivor_hands_on_the_state() -> None:
    state = warm(running("a", "b").command(2, {"c": 1, "d": 1}, 10.0), "c", "d")
    state, first = all_back(state).form(0.0)
    assert first.hosts == (("a", 1), ("c", 1), ("d", 1))
    state = all_registered(state)
    assert state.confirmed_sequence == 1
    state, second = all_back(state).form(0.0)
    assert second.hosts == (("c", 1), ("d", 1))
    assert state.confirmed_sequence == 2


def test_nothing_is_formed_before_every_living_member_is_back() -> None:
    state = warm(running("a", "b").command(2, {"a": 1, "b": 1, "c": 1}, 10.0), "c")
    state = state.came_back(Slot("a", 0))
    assert not state.can_form(0.0)
    assert state.ended(Slot("b", 0)).can_form(0.0)


def test_a_dead_member_is_neither_confirmed_nor_kept() -> None:
    state = running("a", "b").ended(Slot("b", 0))
    assert state.confirmed_hosts == ("a",)
    state, formation = all_back(state).form(20.0)
    assert formation.hosts == (("a", 1),)


def test_a_released_host_is_not_confirmed_any_more() -> None:
    assert running("a", "b").release(frozenset({"a"})).confirmed_hosts == ("b",)


def test_an_old_command_is_ignored() -> None:
    state = running("a").command(5, {"a": 1, "b": 1}, 10.0)
    assert state.command(5, {"c": 1}, 10.0) == state
    assert state.command(4, {"c": 1}, 10.0) == state


def test_at_a_stop_members_that_wait_get_back_to_work() -> None:
    state = warm(all_back(running("a", "b").command(2, {"a": 1, "b": 1, "c": 1}, 10.0)), "c").closed()
    assert not state.change_due(0.0)
    state, formation = state.form(0.0)
    assert formation.hosts == (("a", 1), ("b", 1))
    assert formation.added == ()
    assert not state.ready


def test_a_host_of_which_a_worker_died_can_not_hand_on_the_state() -> None:
    state = warm(Membership().command(1, {"a": 2}, 10.0), "a")
    state = all_registered(state.form(0.0)[0])
    assert not state.lost
    state = state.ended(Slot("a", 1))
    assert state.lost
    assert not state.can_form(99.0)


def test_a_bridge_goes_on_while_its_successors_boot() -> None:
    state = running("a", "b").command(2, {"c": 1}, 10.0)
    assert not state.has_heir
    state, formation = all_back(state).form(0.0)
    assert formation.hosts == (("a", 1),)
    assert not state.change_due(0.0)
    assert warm(state, "c").target(0.0) == (("a", 1), ("c", 1))


def test_after_a_group_is_dissolved_new_workers_form_the_next() -> None:
    state = running("a").command(2, {"a": 1, "b": 1}, 10.0).release(frozenset({"a"}))
    assert not state.has_heir
    state = state.closed().ended(Slot("a", 0))
    assert state.lost
    state = state.dissolved()
    assert not state.can_form(0.0)
    state, formation = warm(state, "b").form(0.0)
    assert formation.hosts == (("b", 1),)
    assert formation.added == (Slot("b", 0),)
    assert all_registered(state).confirmed_sequence == 2


def test_members_that_all_wait_are_stuck() -> None:
    state = running("a", "b").ended(Slot("b", 0))
    assert not state.stuck
    assert all_back(state).stuck


HOSTS = ("a", "b", "c", "d")


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_whatever_happens_it_comes_to_the_commanded_world(data: st.DataObject) -> None:
    """After any history, letting warm-ups, returns and registrations happen leads to exactly what is commanded."""
    state = running("a", "b")
    now, sequence = 0.0, 1
    for _ in range(data.draw(st.integers(0, 12))):
        now += 1.0
        match data.draw(st.sampled_from(["command", "release", "warm", "back", "end", "register", "form", "close"])):
            case "command":
                sequence += 1
                hosts = data.draw(st.sets(st.sampled_from(HOSTS), min_size=1))
                state = state.command(sequence, dict.fromkeys(sorted(hosts), 1), now + 5)
            case "release" if len(state.commanded) > 1:
                state = state.release(frozenset({data.draw(st.sampled_from(sorted(state.commanded)))}))
            case "warm":
                host = data.draw(st.sampled_from(HOSTS))
                if Slot(host, 0) not in state.members:
                    state = state.became_warm(Slot(host, 0))
            case "back":
                state = state.came_back(Slot(data.draw(st.sampled_from(HOSTS)), 0))
            case "end" if state.living:
                state = state.ended(data.draw(st.sampled_from(sorted(state.living))))
            case "close" if not state.has_heir:
                state = state.closed()
            case "register":
                state = all_registered(state)
            case "form" if state.can_form(now):
                state = form_and_check(state, now)
        if state.lost:
            state = state.dissolved()
    if state.closing:
        state = state.dissolved()
    state = settle(state, now + 10)
    assert dict(state.hosts) == dict(state.commanded)
    assert state.confirmed_sequence == state.sequence
    assert set(state.confirmed_hosts) == set(state.commanded)


def form_and_check(state: Membership, now: float) -> Membership:
    before = state
    after, formation = state.form(now)
    hosts = [host for host, _ in formation.hosts]
    assert len(hosts) == len(set(hosts))
    assert set(formation.added) <= before.warm
    assert not set(formation.removed) & set(after.members)
    if before.hosts:
        assert set(after.members) & before.living, "nobody is left who has the state"
    return after


def settle(state: Membership, now: float) -> Membership:
    for _ in range(6):
        state = all_registered(state)
        missing = [
            host for host in state.commanded if Slot(host, 0) not in state.members or Slot(host, 0) in state.dead
        ]
        state = warm(state, *missing)
        if state.change_due(now) or state.ready or state.dead:
            state = all_back(state)
        if state.can_form(now):
            state = form_and_check(state, now)
    return state


def test_a_training_winds_down_once_another_than_rank_0_has_ended_well() -> None:
    state = running("a", "b", "c")
    assert not state.winding_down
    state = state.ended(Slot("b", 0), early=True)
    assert state.winding_down
    assert not state.change_due(0.0), "rank 0 is about to end, too"
    assert not warm(state.command(2, {"a": 1, "c": 1, "d": 1}, 0.0), "d").change_due(0.0)
    assert not state.ended(Slot("a", 0)).winding_down, "rank 0 has ended"


def test_it_does_not_wind_down_if_a_member_comes_back_for_another_world() -> None:
    state = running("a", "b", "c").ended(Slot("b", 0), early=True)
    assert not state.came_back(Slot("a", 0)).winding_down
    state, formation = all_back(state).form(0.0)
    assert formation.hosts == (("a", 1), ("c", 1))
    assert not state.early
    assert not state.change_due(0.0)
    assert warm(state, "b").change_due(0.0), "it is started again, and joins"


def test_a_loss_is_no_winding_down() -> None:
    state = running("a", "b").ended(Slot("b", 0))
    assert not state.winding_down
    assert state.change_due(0.0)
