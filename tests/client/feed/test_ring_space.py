from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.feeding.schedule import RingSpace


@given(
    size=st.integers(64, 2000),
    most=st.integers(1, 8),
    steps=st.lists(st.tuples(st.integers(1, 700), st.integers(0, 6)), max_size=60),
)
def test_places_never_overlap_and_what_is_needed_stays(size: int, most: int, steps: list[tuple[int, int]]) -> None:
    space = RingSpace(size, most)
    for owner, (length, keep) in enumerate(steps):
        needed = {place.owner for place in space.places[-keep:]} if keep else set()
        fits, shed = space.shed(length, needed.__contains__)
        assert needed.isdisjoint(place.owner for place in shed)
        assert needed <= {place.owner for place in space.places}
        if fits:
            space.take(length, owner)
        else:
            assert needed or length > size
        taken = sorted(space.places)
        assert len(taken) <= most
        assert all(one.offset + one.length <= other.offset for one, other in pairwise(taken))
        assert all(place.offset >= 0 and place.offset + place.length <= size for place in taken)
        assert all(place.offset % 64 == 0 for place in taken)


def test_room_for_several_is_room_for_each_of_them() -> None:
    space = RingSpace(1024, 8)
    for owner in range(5):
        space.take(192, owner)
    fits, shed = space.shed(3 * 192, lambda owner: owner >= 3, 3)
    assert fits
    assert [place.owner for place in shed] == [0, 1, 2]
    for owner in range(5, 8):
        assert space.shed(192, lambda _: True) == (True, [])
        space.take(192, owner)
