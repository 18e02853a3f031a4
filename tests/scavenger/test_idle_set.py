from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.machine.drains import Drain, DrainSet
from malletrain.scavenger.machine.idle_set import IdleEvent, IdleNode, IdleSet

NAMES = ("a", "b", "c")

# One step: seconds that pass, and what happens then.
_pictures = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 12))
_observe = st.tuples(st.just("observe"), _pictures)
_reclaim = st.tuples(st.just("reclaim"), st.tuples(st.sets(st.sampled_from(NAMES), min_size=1), st.integers(1, 8)))
_drain = st.tuples(st.just("drain"), st.frozensets(st.sampled_from(NAMES)))
_tick = st.tuples(st.just("tick"), st.none())
steps = st.lists(st.tuples(st.integers(0, 6), st.one_of(_observe, _reclaim, _drain, _tick)), max_size=25)


@given(debounce=st.integers(0, 6), steps=steps)
def test_the_idle_set_keeps_its_promises(debounce: int, steps: list[tuple[int, tuple[str, object]]]) -> None:
    idle_set = IdleSet(debounce)
    now = 100.0
    source: dict[str, float] = {}
    cooldowns: dict[str, float] = {}
    announced: dict[str, float] = {}
    drained: frozenset[str] = frozenset()
    for passed, (kind, what) in steps:
        now += passed
        if kind == "observe":
            assert isinstance(what, dict)
            source = {name: now - age for name, age in what.items()}
            event = idle_set.observe(now, source)
        elif kind == "reclaim":
            assert isinstance(what, tuple)
            names, cooldown = what
            cooldowns |= {name: max(cooldowns.get(name, now), now + cooldown) for name in names}
            event = idle_set.reclaim(now, names, cooldown)
        elif kind == "drain":
            assert isinstance(what, frozenset)
            drained = what
            event = idle_set.drain(now, DrainSet().drained(drained, Drain("", "", 0.0)))
        else:
            event = idle_set.tick(now)
        cooldowns = {name: until for name, until in cooldowns.items() if until > now}

        must_leave = {
            name
            for name, since in announced.items()
            if name not in source or name in cooldowns or name in drained or source[name] > since
        }
        assert set(event.left) == must_leave
        assert len(event.left) == len(must_leave)
        for name in event.left:
            del announced[name]
        for node in event.joined:
            assert node.name not in announced
            assert node.name not in drained
            assert node.idle_since == source[node.name] <= now - debounce
            announced[node.name] = node.idle_since
        # All that may count does, and nothing else; what has just left comes back at the next chance.
        kept_out = drained | cooldowns.keys()
        may_count = {name for name, since in source.items() if name not in kept_out and since + debounce <= now}
        assert set(announced) == may_count - must_leave
        assert {node.name for node in idle_set.members()} == set(announced)
        deadline = idle_set.next_deadline()
        assert (deadline is None) == (set(source) - drained == set(announced))
        assert idle_set.since() == {name: source[name] for name in announced}
        assert deadline is None or (deadline <= now) == bool(may_count & must_leave)
        announced = {name: source[name] for name in announced}


def test_a_node_counts_at_the_end_of_its_debounce_and_not_before() -> None:
    idle_set = IdleSet(10)
    assert not idle_set.observe(105, {"a": 100, "b": 103})
    assert idle_set.next_deadline() == 110
    assert not idle_set.tick(109.9)
    assert idle_set.tick(110) == IdleEvent(joined=(IdleNode("a", 100),))
    assert idle_set.next_deadline() == 113


def test_a_node_that_leaves_in_its_debounce_is_never_announced() -> None:
    idle_set = IdleSet(10)
    assert not idle_set.observe(100, {"a": 100})
    assert not idle_set.observe(109, {})
    assert not idle_set.tick(120)
    assert not idle_set.was_announced("a")


def test_what_happens_at_one_instant_is_one_event() -> None:
    idle_set = IdleSet(10, order=("c", "b", "a"))
    idle_set.observe(100, {"a": 50, "b": 90})
    event = idle_set.observe(110, {"b": 90, "c": 100, "d": 60})
    assert event == IdleEvent(joined=(IdleNode("c", 100), IdleNode("d", 60)), left=("a",))
    assert [node.name for node in idle_set.members()] == ["c", "b", "d"]


def test_a_node_that_was_used_between_two_pictures_leaves_and_comes_back() -> None:
    idle_set = IdleSet(10)
    idle_set.observe(100, {"a": 50})
    assert idle_set.observe(200, {"a": 195}) == IdleEvent(left=("a",))
    assert idle_set.tick(205) == IdleEvent(joined=(IdleNode("a", 195),))
    assert idle_set.observe(300, {"a": 250}) == IdleEvent(left=("a",))
    assert idle_set.next_deadline() == 260
    assert idle_set.tick(300) == IdleEvent(joined=(IdleNode("a", 250),))


def test_a_reclaimed_node_stays_out_until_the_hold_is_over() -> None:
    idle_set = IdleSet(10)
    idle_set.observe(100, {"a": 50, "b": 95})
    assert idle_set.reclaim(101, ["a", "b", "x"], 30) == IdleEvent(left=("a",))
    assert idle_set.cooldowns() == {"a": 131, "b": 131, "x": 131}
    assert not idle_set.reclaim(102, ["a"], 5), "a shorter cooldown does not shorten it"
    assert not idle_set.tick(130)
    assert idle_set.next_deadline() == 131
    assert idle_set.tick(131) == IdleEvent(joined=(IdleNode("a", 50), IdleNode("b", 95)))
    assert not idle_set.tick(130.9), "a clock that goes back a little brings no cooldown back"


def test_holds_of_an_earlier_life_count() -> None:
    idle_set = IdleSet(0, reclaimed_until={"a": 120.0})
    assert not idle_set.observe(100, {"a": 50})
    assert idle_set.tick(120) == IdleEvent(joined=(IdleNode("a", 50),))
