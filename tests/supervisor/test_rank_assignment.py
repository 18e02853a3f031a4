"""Every worker that asks for its place gets an answer, members of a new group once its new workers connect."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.supervisor.elastic.horovod_backend import RankAssignment
from malletrain.supervisor.workers.slot import Slot

A, B, C = (Slot(name, 0) for name in "abc")


def test_places_are_given_once_all_new_workers_have_shown_up() -> None:
    places = RankAssignment(-1)
    first, second = places.ask_place(A), places.ask_place(B)
    places.give_places({A: 0, C: 1}, {1})
    assert not first.done()
    places.show_up(1)
    assert (first.result(0), second.result(0)) == (0, -1)


def test_without_new_workers_they_are_given_at_once() -> None:
    places = RankAssignment(-1)
    place = places.ask_place(A)
    places.give_places({A: 0}, ())
    assert place.result(0) == 0


def test_a_group_whose_new_worker_died_is_taken_back() -> None:
    places = RankAssignment(-1)
    place = places.ask_place(A)
    places.give_places({A: 0, C: 1}, {1})
    assert places.recall() == {A}
    places.show_up(1)
    assert not place.done()
    places.give_places({A: 7}, ())
    assert place.result(0) == 7


def test_a_world_that_has_begun_can_not_be_taken_back() -> None:
    places = RankAssignment(-1)
    place = places.ask_place(A)
    places.give_places({A: 0}, ())
    assert places.recall() == set()
    assert place.result(0) == 0


def test_who_waits_for_the_next_world_is_not_taken_back_with_the_last() -> None:
    places = RankAssignment(-1)
    places.give_places({A: 0}, ())
    place = places.ask_place(A)
    assert places.recall() == set()
    assert not place.done()


def test_the_one_before_at_the_same_slot_has_gone() -> None:
    places = RankAssignment(-1)
    gone, place = places.ask_place(A), places.ask_place(A)
    assert gone.result(0) == -1
    places.refuse(A)
    assert place.result(0) == -1


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.sampled_from([A, B, C])),
            st.tuples(st.just("refuse"), st.sampled_from([A, B, C])),
            st.tuples(st.just("give"), st.sets(st.integers(0, 2))),
            st.tuples(st.just("show up"), st.integers(0, 2)),
            st.tuples(st.just("recall"), st.none()),
        )
    )
)
def test_in_the_end_nobody_waits(steps: list[tuple[str, object]]) -> None:
    places = RankAssignment(-1)
    asked = []
    for step in steps:
        match step:
            case "ask", Slot() as slot:
                asked.append(places.ask_place(slot))
            case "refuse", Slot() as slot:
                places.refuse(slot)
            case "give", set() as ranks:
                places.give_places({A: 0, B: 1}, ranks)
            case "show up", int() as rank:
                places.show_up(rank)
            case _:
                places.recall()
    places.close()
    assert all(place.done() for place in [*asked, places.ask_place(A)])
