"""Generations: one at a time, asked to leave only once the next one stands by, or must."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from malletrain.supervisor.membership import Slot, slots_of
from malletrain.supervisor.rotation import Rotation

NOW = 100.0


def slots(*hosts: str) -> tuple[Slot, ...]:
    return tuple(Slot(host, 0) for host in hosts)


def commanded(*hosts: str, sequence: int = 1, rotation: Rotation | None = None, warm_by: float = NOW + 10) -> Rotation:
    return (rotation or Rotation()).command(sequence, dict.fromkeys(hosts, 1), warm_by)


def training(*hosts: str) -> Rotation:
    rotation = commanded(*hosts)
    members = slots(*hosts)
    rotation = rotation.form(frozenset(members), members, NOW)
    for slot in members:
        rotation = rotation.start(slot)
    return rotation


def test_the_first_generation_waits_for_all_slots_until_time_is_up() -> None:
    rotation = commanded("a", "b")
    one = frozenset(slots("a"))
    assert not rotation.can_form(one, NOW)
    assert rotation.can_form(frozenset(slots("a", "b")), NOW)
    assert rotation.target(one, NOW + 10) == (("a", 1),)
    assert not rotation.can_form(frozenset(), NOW + 10)


def test_a_generation_is_confirmed_once_all_its_members_have_started() -> None:
    rotation = commanded("a", "b")
    rotation = rotation.form(frozenset(slots("a", "b")), slots("a", "b"), NOW).start(Slot("a", 0))
    assert rotation.confirmed_sequence == 0
    assert rotation.confirmed_hosts == ()
    rotation = rotation.start(Slot("b", 0))
    assert rotation.confirmed_sequence == 1
    assert rotation.confirmed_hosts == ("a", "b")


def test_nobody_leaves_before_the_next_generation_stands_by() -> None:
    rotation = commanded("a", "b", sequence=2, rotation=training("a"))
    assert rotation.confirmed_hosts == ("a",)
    assert not rotation.change_due(frozenset(slots("a")), NOW)
    assert rotation.change_due(frozenset(slots("a", "b")), NOW)
    assert rotation.change_due(frozenset(slots("a", "b")), NOW)


def test_no_change_is_due_for_the_hosts_that_train_already() -> None:
    rotation = commanded("a", sequence=2, rotation=training("a"))
    assert not rotation.change_due(frozenset(slots("a")), NOW)
    assert rotation.confirmed_sequence == 2


def test_a_newcomer_that_never_boots_is_left_out_when_time_is_up() -> None:
    rotation = commanded("a", "b", "c", sequence=2, rotation=training("a"))
    ready = frozenset(slots("a", "b"))
    assert not rotation.change_due(ready, NOW + 9)
    assert rotation.change_due(ready, NOW + 10)
    assert rotation.target(ready, NOW + 10) == (("a", 1), ("b", 1))


def test_the_next_generation_begins_when_the_last_member_has_left() -> None:
    rotation = training("a", "b").leave(NOW + 60)
    ready = frozenset(slots("a", "b"))
    rotation = rotation.ended(Slot("a", 0), NOW)
    assert not rotation.can_form(ready, NOW)
    rotation = rotation.ended(Slot("b", 0), NOW)
    assert rotation.can_form(ready, NOW)
    assert rotation.world == ()


def test_the_earlier_limit_to_leave_holds_and_saving_extends_it() -> None:
    rotation = training("a").leave(NOW + 60).leave(NOW + 2).leave(NOW + 30)
    assert not rotation.overdue(NOW + 1)
    assert rotation.overdue(NOW + 2)
    assert not rotation.extend(NOW + 300).overdue(NOW + 2)


def test_a_command_that_is_not_newer_changes_nothing() -> None:
    rotation = training("a")
    assert rotation.command(1, {"z": 1}, NOW) is rotation


@st.composite
def rotations(draw: st.DrawFn) -> tuple[Rotation, frozenset[Slot], float]:
    """A rotation after some events, in any order they can come in."""
    hosts = ["a", "b", "c"]
    rotation, now = Rotation(), 0.0
    ready: frozenset[Slot] = frozenset()
    for sequence in range(1, draw(st.integers(1, 12))):
        now += draw(st.floats(0, 20))
        chosen = draw(st.lists(st.sampled_from(hosts), min_size=1, unique=True))
        ready = frozenset(Slot(host, 0) for host in draw(st.sets(st.sampled_from(hosts))))
        event = draw(st.sampled_from(["command", "form", "end", "leave", "start", "release"]))
        if event == "command":
            rotation = rotation.command(sequence, dict.fromkeys(chosen, 1), now + 10)
        elif event == "form" and rotation.can_form(ready, now):
            members = tuple(slot for entry in rotation.target(ready, now) for slot in slots_of(*entry))
            rotation = rotation.form(ready, members, now)
        elif event == "leave" and rotation.living:
            rotation = rotation.leave(now + 60)
        elif event == "release":
            rotation = rotation.release(set(chosen) - set(rotation.commanded))
        elif rotation.living:
            slot = draw(st.sampled_from(rotation.living))
            rotation = rotation.start(slot) if event == "start" else rotation.ended(slot, now + 5)
    return rotation, ready, now


@given(rotations())
def test_what_always_holds(case: tuple[Rotation, frozenset[Slot], float]) -> None:
    rotation, ready, now = case
    assert not (rotation.can_form(ready, now) and rotation.living), "two generations at once"
    assert set(rotation.confirmed_hosts) <= {host for host, _ in rotation.world} & set(rotation.commanded)
    assert rotation.confirmed_sequence <= rotation.sequence
    assert set(rotation.target(ready, now)) <= set(rotation.commanded.items())
    assert bool(rotation.members) == bool(rotation.world)
    if rotation.commanded:
        everyone = frozenset(slot for entry in rotation.commanded.items() for slot in slots_of(*entry))
        idle = replace(rotation, members=(), world=(), gone=frozenset())
        assert idle.can_form(everyone, now), "with all standing by, training can go on"
